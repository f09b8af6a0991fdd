"""Writes rewrite/precision/kernels/table.txt: which kernels ONNX Runtime has.

What docs/OperatorKernels.md is generated from (get_all_opkernel_def) is asked
of the installed package itself, so the table has the version of that package.
The CUDA rows need onnxruntime-gpu; a GPU is not needed, but the libraries that
its providers link to must be found.

    python scripts/kernel_table.py > rewrite/precision/kernels/table.txt
"""

import collections

import onnx.defs
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
    rows = collections.defaultdict(lambda: collections.defaultdict(set))
    for k in state.get_all_opkernel_def():
        if k.provider not in PROVIDERS or k.domain not in DOMAINS:
            continue
        first, last = k.version_range
        row = rows[PROVIDERS[k.provider], k.domain or "-", k.op_name, first, "" if last > 1000 else last]
        for name, types in k.type_constraints.items():
            row[name].update(types)
    for key in sorted(rows, key=str):
        provider, domain, op, first, last = key
        yield f"{provider} {domain} {op} {first}-{last} {constraints(rows[key])}".rstrip()


def ports(formal):
    names = [p.typeStr if hasattr(p, "typeStr") else p.type_str for p in formal]
    more = "*" if formal and "Variadic" in str(formal[-1].option) else ""
    return ",".join(n if "(" not in n else "" for n in names) + more


def schemas():
    found = {}
    for s in list(onnx.defs.get_all_schemas_with_history()) + list(state.get_all_operator_schema()):
        if s.domain in DOMAINS:
            found.setdefault((s.domain or "-", s.name, s.since_version), s)
    for (domain, op, since), s in sorted(found.items()):
        types = {}
        for c in s.type_constraints:
            name = c.type_param_str
            types[name] = c.allowed_type_strs
        yield f"schema {domain} {op} {since} in:{ports(s.inputs)} out:{ports(s.outputs)} {constraints(types)}".rstrip()


print(f"# Kernels of ONNX Runtime {onnxruntime.__version__} by provider, domain, operator, versions and types;")
print(f"# operator schemas of onnx {onnx.__version__}. Written by scripts/kernel_table.py.")
print("# d float64 f float32 h float16 b bfloat16 c s i l int8-64 C S I L uint8-64 o bool t string")
for line in kernels():
    print(line)
for line in schemas():
    print(line)
