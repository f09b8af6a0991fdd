"""Writes rewrite/precision/kernels/table.txt: which kernels ONNX Runtime has.

What docs/OperatorKernels.md is generated from (get_all_opkernel_def) is asked
of the installed package itself, so the table has the version of that package.
The CUDA rows need onnxruntime-gpu; a GPU is not needed, but the libraries that
its providers link to must be found. Older releases of the CPU package are asked
for the kernels that they have already, each in a folder of its own:

    for v in 1.17.3 1.18.1 … 1.30.0; do pip install --target old/$v onnxruntime==$v "numpy<2.3"; done
    python scripts/kernel_table.py old/* > rewrite/precision/kernels/table.txt

(1.18 and older want "numpy<2".) A row of the CPU's holds the types of its last
field's release, "since=1.30"; without one, of the oldest release given.
"""

import collections
import json
import os
import subprocess
import sys

import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as state

CODES = {
    "tensor(double)": "d", "tensor(float)": "f", "tensor(float16)": "h", "tensor(bfloat16)": "b",
    "tensor(bool)": "o", "tensor(string)": "t", "tensor(int8)": "c", "tensor(int16)": "s",
    "tensor(int32)": "i", "tensor(int64)": "l", "tensor(uint8)": "C", "tensor(uint16)": "S",
    "tensor(uint32)": "I", "tensor(uint64)": "L",
}
ORDER = "dfhbcsilCSILot"
PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}
DOMAINS = ("", "com.microsoft", "com.microsoft.nchwc")


def codes(types):
    found = {CODES[t] for t in types if t in CODES}
    return "".join(c for c in ORDER if c in found)


def constraints(table):
    return " ".join(f"{name}={codes(types)}" for name, types in sorted(table.items()) if codes(types))


def kernels():
    """Maps provider, domain, operator, first and last version to types by constraint."""
    rows = collections.defaultdict(lambda: collections.defaultdict(set))
    for k in state.get_all_opkernel_def():
        if k.provider not in PROVIDERS or k.domain not in DOMAINS:
            continue
        first, last = k.version_range
        row = rows[PROVIDERS[k.provider], k.domain or "-", k.op_name, first, "" if last > 1000 else last]
        for name, types in k.type_constraints.items():
            row[name].update(types)
    return rows


def older(folder):
    """Asks the package in a folder for its version and its CPU kernels."""
    out = subprocess.run([sys.executable, __file__, "--list"], env=dict(os.environ, PYTHONPATH=folder), check=True,
                         stdout=subprocess.PIPE).stdout
    said = json.loads(out)
    rows = collections.defaultdict(list)
    for domain, op, first, last, types in said["kernels"]:
        rows[domain, op].append((first, last, {name: set(list_) for name, list_ in types.items()}))
    return release(said["version"]), rows


def release(version):
    return tuple(int(n) for n in version.split(".")[:2])


def listed():
    rows = [[domain, op, first, last, {name: sorted(types) for name, types in types.items()}]
            for (provider, domain, op, first, last), types in kernels().items() if provider == "cpu"]
    json.dump({"version": onnxruntime.__version__, "kernels": rows}, sys.stdout)


def serves(first, last, version):
    return version == first or last != "" and first <= version <= last


def history(now, version, domain, op, releases):
    """Lists release and types of a kernel for one version of its operator, each where they grow."""
    steps = []
    for number, rows in releases:
        types = collections.defaultdict(set)
        old = [had for first, last, had in rows.get((domain, op), []) if serves(first, last, version)]
        for had in old:
            for name in now:
                types[name] |= had.get(name, now[name]) & now[name]
        grown = not steps or any(codes(types[n]) != codes(steps[-1][1][n]) for n in now)
        if old and grown and all(codes(types[n]) for n in now if codes(now[n])):
            steps.append((number, types))
    if not steps or any(codes(now[n]) != codes(steps[-1][1][n]) for n in now):
        steps.append((release(onnxruntime.__version__), now))
    return [(number, constraints(types)) for number, types in steps]


def cpu_rows(key, now, versions, releases):
    """Yields the rows of one kernel: one for each release in which it got types."""
    _, domain, op, first, last = key
    served = [v for v in versions.get((domain, op), []) if serves(first, last, v)]
    histories = {v: history(now, v, domain, op, releases) for v in served}
    if len({str(h) for h in histories.values()}) <= 1:
        ranges = [(first, last, next(iter(histories.values()), [(None, constraints(now))]))]
    else:
        ranges = [(v, v, histories[v]) for v in served]
    for first, last, steps in ranges:
        for number, types in steps:
            since = "" if number is None or releases and number == releases[0][0] else " since=%d.%d" % number
            yield f"cpu {domain} {op} {first}-{last} {types}".rstrip() + since


def ports(formal):
    names = [p.typeStr if hasattr(p, "typeStr") else p.type_str for p in formal]
    more = "*" if formal and "Variadic" in str(formal[-1].option) else ""
    return ",".join(n if "(" not in n else "" for n in names) + more


def schemas():
    import onnx.defs
    found = {}
    for s in list(onnx.defs.get_all_schemas_with_history()) + list(state.get_all_operator_schema()):
        if s.domain in DOMAINS:
            found.setdefault((s.domain or "-", s.name, s.since_version), s)
    return found


def schema_rows(found):
    for (domain, op, since), s in sorted(found.items()):
        types = {}
        for c in s.type_constraints:
            name = c.type_param_str
            types[name] = c.allowed_type_strs
        yield f"schema {domain} {op} {since} in:{ports(s.inputs)} out:{ports(s.outputs)} {constraints(types)}".rstrip()


def main(folders):
    import onnx
    releases = sorted((older(f) for f in folders), key=lambda r: r[0])
    found = schemas()
    versions = collections.defaultdict(list)
    for domain, op, since in sorted(found):
        versions[domain, op].append(since)
    print(f"# Kernels of ONNX Runtime {onnxruntime.__version__} by provider, domain, operator, versions and types;")
    if releases:
        print("# the CPU's since 1.%d, or since the release that a row names;" % releases[0][0][1])
    print(f"# operator schemas of onnx {onnx.__version__}. Written by scripts/kernel_table.py.")
    print("# d float64 f float32 h float16 b bfloat16 c s i l int8-64 C S I L uint8-64 o bool t string")
    rows = kernels()
    for key in sorted(rows, key=str):
        if key[0] == "cpu":
            for line in cpu_rows(key, rows[key], versions, releases):
                print(line)
        else:
            print(f"{key[0]} {key[1]} {key[2]} {key[3]}-{key[4]} {constraints(rows[key])}".rstrip())
    for line in schema_rows(found):
        print(line)


if __name__ == "__main__":
    listed() if sys.argv[1:] == ["--list"] else main(sys.argv[1:])
