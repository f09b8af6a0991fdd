#!/usr/bin/env python3
"""Two programs side by side: the files that they write, figure by figure.

    scripts/before_after.py OLD_BINARY NEW_BINARY [--quick] [--models FOLDER]... [--out docs/results]

For every model, optimizer and strategy both programs derive the training graph,
each its own, and rewrite it. Set side by side are what the written files are
predicted to hold (live peak, session, reserved), the work done again, and the
number of nodes. A share of the files is run, three steps from the same seed and
feeds: losses at every step, and gradients or parameters and state at the end, must
be the same bits, and every figure that was predicted must be what is measured.

The models are the samples under testdata/models (forward graphs, joint graphs, one
to lower), the zoo at small sizes, and what --models names: a folder of forward
graphs NAME.onnx with feeds NAME.npz, and of joint ones in its folder joint.
Without --quick there is GPT-2 124M at 1 x 1024 and 8 x 1024 besides.

A case is worse where what its strategy is to lower is worse: the live peak, or
under a budget the work done again; or where this is equal and another figure is
worse. Where it is better and another figure is worse, it is called traded. Other
bits, a wrong prediction of the new program, and a file that only the old one
writes are worse too. The exit code is 1 if anything is.

--out writes before_after.md and before_after.json there. --cache FILE keeps what a
program gave, by the digest of the program, so that only the new one has to run.
Standard library only.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import tables  # noqa: E402

SAMPLES = os.path.join(HERE, "..", "testdata", "models")
STEPS = 3

OPTIMIZERS = {
    "none": ["--optimizer", "none"],
    "sgd": ["--optimizer", "sgd"],
    "sgd, momentum, clip parameter": ["--optimizer", "sgd", "--momentum", "0.9", "--clip-norm", "1", "--clip-by", "parameter"],
    "adamw": ["--optimizer", "adamw"],
    "adamw, clip, keep": ["--optimizer", "adamw", "--clip-norm", "1", "--keep-grads"],
    "adamw, clip previous, accumulate": ["--optimizer", "adamw", "--clip-norm", "1", "--clip-by", "previous", "--accumulate", "2"],
}

# The flags of each strategy; BUDGET and TOTAL stand for bytes halfway between what
# the old program's files of none and of least take.
STRATEGIES = {
    "none": [], "sqrt": [], "every=2": [], "segments=2": [], "full": [], "selective": [], "least": [],
    "optimal, budget": ["--budget", "BUDGET"], "optimal, total": ["--budget-total", "TOTAL"],
}

# Further ways to write a file: flags of the program, flags of rewrite.
WAYS = {
    "level 0": (["--opt", "0"], []),
    "level 99": (["--opt", "99"], []),
    "cuda": (["--provider", "cuda"], []),
    "cuda, fp16": (["--provider", "cuda"], ["--precision", "fp16"]),
    "fp16": ([], ["--precision", "fp16"]),
    "bf16 emulated": ([], ["--precision", "bf16", "--emulate"]),
    "bf16 stash": ([], ["--precision", "bf16", "--stash-only"]),
    "loss in slices": ([], ["--chunk-loss", "auto"]),
    "tiles": ([], ["--tile", "auto", "--chunk-loss", "auto"]),
    "updates in slices": ([], ["--update-rows", "auto"]),
    "update in backward": ([], ["--update-in-backward"]),
    "prepack": ([], ["--prepack", "on"]),
}

ZOO = {
    "gpt2-tiny": ["gpt2-tiny"],
    "gpt2 small": ["gpt2", "--layers=4", "--hidden=32", "--heads=4", "--vocab=301", "--seq=16", "--batch=4"],
    "gpt2 wide, dropout": ["gpt2", "--layers=3", "--hidden=48", "--heads=4", "--vocab=1009", "--seq=64", "--batch=2", "--dropout=0.1"],
    "encoder small": ["encoder", "--layers=4", "--hidden=48"],
    "mlp small": ["mlp", "--hidden=64"],
    "heavy small": ["heavy", "--layers=8", "--hidden=128"],
}
LARGE = {"gpt2 124M, 1 x 1024": 1, "gpt2 124M, 8 x 1024": 8}

# Samples that --quick leaves out: large ones, and such as another is like.
TWINS = ["stops", "gpt2-tiny", "tiny_eager.EMA", "gpt2_small", "tseval", "gpt2_tiny.dyn", "encoder_postln.ts", "mlp20.ts"]

# What is set side by side, and its unit.
FIGURES = {"live_peak": "B", "session": "B", "reserved": "B", "work": "FLOP"}


class Program:
    """One of the two, with what it gave before."""

    def __init__(self, path, commit, cache):
        self.path = os.path.abspath(path)
        with open(self.path, "rb") as f:
            self.digest = hashlib.sha256(f.read()).hexdigest()[:16]
        self.commit = commit or stamp(self.path) or self.digest
        self.cache = cache.setdefault(self.digest, {})
        usage = subprocess.run([self.path, "plan", "--help"], capture_output=True, text=True).stdout
        self.least = "least" if "|least" in usage else "optimal"  # its name for the least peak

    def call(self, folder, *args, front=()):
        """The document, or who refused and why; and the seconds of CPU."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen([self.path, "--quiet", "--json", "--threads", "2", *(front or ["--provider", "cpu"]), *args],
                                     cwd=folder, stdout=out, stderr=err)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)  # it is reaped
            seconds = used.ru_utime + used.ru_stime
            out.seek(0), err.seek(0)
            if child.returncode:
                return {"refused": f"{args[0]}: exit {child.returncode}: {first_line(err.read())}"}, seconds
            return json.load(out), seconds


def first_line(text):
    return (text.strip().splitlines() or ["no word"])[0]


def stamp(path):
    """The commit that Go noted in a binary, empty where it was built without."""
    try:
        done = subprocess.run(["go", "version", "-m", path], capture_output=True, text=True)
    except OSError:
        return ""
    found = re.search(r"vcs\.revision=(\w{7})", done.stdout)
    return found.group(1) if found else ""


class Source:
    """A model file, or the zoo's arguments of one."""

    def __init__(self, name, path=None, zoo=None, kind="forward"):
        self.name, self.path, self.zoo, self.kind = name, path, zoo, kind
        feeds = path[:-5] + ".npz" if path else ""
        if path and not os.path.exists(feeds):  # one for all exports of a model
            feeds = os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0] + ".npz")
        self.feeds = feeds if path and os.path.exists(feeds) else None
        self.large = name in LARGE

    def key(self):
        if not self.path:
            return " ".join(self.zoo)
        with open(self.path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()[:16]


def sources(folders, quick):
    out = []
    for folder in folders:
        for pattern, kind in (("*.onnx", "forward"), ("stops/*.onnx", "forward"), ("joint/*.onnx", "joint"), ("ort_training/*_op17.onnx", "lower")):
            for path in sorted(glob.glob(os.path.join(folder, pattern))):
                if any(s.path and os.path.basename(s.path) == os.path.basename(path) for s in out):
                    continue  # the same sample in a second folder
                out.append(Source(os.path.relpath(path, folder)[:-5], path=os.path.abspath(path), kind=kind))
    out += [Source(n, zoo=z) for n, z in ZOO.items()]
    if quick:
        return [s for s in out if not any(x in s.name for x in TWINS)]
    return out + [Source(n, zoo=["gpt2", "--seq=1024", f"--batch={b}"]) for n, b in LARGE.items()]


def extents(path):
    """The shapes of the arrays of an .npz by name, less the prefix."""
    out = {}
    with zipfile.ZipFile(path) as z:
        for name in z.namelist():
            with z.open(name) as f:
                magic = f.read(8)
                size = struct.unpack("<H", f.read(2))[0] if magic[6] == 1 else struct.unpack("<I", f.read(4))[0]
                shape = re.search(r"'shape': \(([^)]*)\)", f.read(size).decode())
            out[name[:-4].split(":")[-1]] = [int(x) for x in shape.group(1).split(",") if x.strip()]
    return out


def dims(source, document):
    """--dim for the free dimensions, as the feeds say; 4 where they do not."""
    free = {d: 4 for d in document["free_dimensions"]}
    fed = extents(source.feeds) if source.feeds else {}
    for i in document["inputs"]:
        declared = re.search(r"\[(.*)\]", i["type"]).group(1).split(",")
        for name, n in zip(declared, fed.get(i["name"], [])):
            if name in free:
                free[name] = n
    return ["--dim", ",".join(f"{k}={v}" for k, v in free.items())] if free else []


def cases(source, quick):
    """(optimizer, strategy, way) of a model, an empty way being the usual one."""
    turn = zlib.crc32(source.name.encode())
    if source.kind == "forward":
        optimizers = list(OPTIMIZERS)
        if quick:  # one a model; with AdamW, a stack of twenty takes its time
            optimizers = [["none", "adamw"][turn % 2 if "20" not in source.name else 0]]
        elif source.large:
            optimizers = ["none", "sgd", "adamw"]
    else:
        optimizers = [""]
    out = []
    for o in optimizers:
        strategies = list(STRATEGIES)
        if quick:
            strategies = ["none", "sqrt", "least", "optimal, budget"]
        elif source.large:
            strategies = ["none", "sqrt", "full", "least", "optimal, budget", "optimal, total"]
        out += [(o, s, "") for s in strategies]
        if quick or source.large or "stops" in source.name or o not in ("none", "adamw", ""):
            continue
        out += [(o, s, w) for w in WAYS for s in ("none", "full", "least")
                if not (w.startswith("update") and o == "none")]
    if quick:  # each way once somewhere
        out.append((optimizers[-1], "full", list(WAYS)[turn % len(WAYS)]))
    return out


def runs(source, optimizer, strategy, way, share):
    """Whether the files of a case are run."""
    if source.large:
        return LARGE[source.name] == 1 and optimizer == "sgd" and strategy == "least"
    if "cuda" in way or "gpt2_small" in source.name:
        return False
    return zlib.crc32(f"{source.name}|{optimizer}|{strategy}|{way}".encode()) % share == 0


def derive(program, source, optimizer, folder):
    """The graph that is rewritten, as train.onnx, with its figures."""
    if source.zoo:
        flags = ["--no-weights"] if source.large else []
        d, _ = program.call(folder, "model", *source.zoo, *flags, "-o", "forward.onnx")
        if "refused" in d:
            return d, []
        path = "forward.onnx"
    else:
        path = source.path
    look, _ = program.call(folder, "inspect", path)
    size = [] if "refused" in look else dims(source, look)
    if source.kind == "joint":
        shutil.copy(path, os.path.join(folder, "train.onnx"))
    elif source.kind == "lower":
        d, _ = program.call(folder, "lower", path, "-o", "train.onnx", front=size)
    else:
        d, _ = program.call(folder, "grad", path, *OPTIMIZERS[optimizer], "-o", "train.onnx", front=size)
    if source.kind != "joint" and "refused" in d:
        return d, size
    return inspected(program, folder, "train.onnx", size), size


def inspected(program, folder, file, front):
    d, _ = program.call(folder, "inspect", "--memory", file, front=[*front, *["--provider", "cpu"] * ("--provider" not in front)])
    if "refused" in d:
        return d
    m = d["memory"]
    return {"live_peak": m["predicted_live_peak_bytes"], "session": m["predicted_session_bytes"], "reserved": m["predicted_reserved_bytes"],
            "exact": m["exact"], "nodes": d["nodes"]}


def written(program, folder, flags, front, file):
    """What one rewriting gave."""
    d, seconds = program.call(folder, "rewrite", "train.onnx", *flags, "-o", file, front=front)
    if "refused" in d:
        return {**d, "seconds": round(seconds, 3)}
    t = d["total"] or {}
    out = {"live_peak": d["peak_bytes_after"], "session": t.get("session_bytes"), "reserved": t.get("reserved_bytes"), "total": t.get("total_bytes"),
           "work": d["recompute_flops"], "overhead": d["overhead"], "seconds": round(seconds, 3)}
    look = inspected(program, folder, file, front)
    out["nodes"] = look.get("nodes")
    if "--provider" not in front or "cuda" not in front:
        off = [k for k in ("live_peak", "session", "reserved") if look.get(k) != out[k]]
        if off:
            out["differs"] = "the file's " + ", ".join(f"{k} is {look.get(k)}, the plan said {out[k]}" for k in off)
    return out


def ran(program, source, optimizer, folder, file, front):
    """Digests of what three steps returned, and figures that were not as predicted."""
    feeds = ["--feeds", source.feeds] if source.feeds else []
    save = ["--save", "state.safetensors"] if optimizer not in ("", "none") else ["--out", "out.npz"]
    steps = 1 if source.large else STEPS
    d, _ = program.call(folder, "run", file, "--steps", str(steps), "--seed", "3", *feeds, *save, front=front)
    if "refused" in d:
        return d
    bits = {"loss": [s["outputs"].get(d["loss_output"]) for s in d["steps"]]}
    bits.update(digests(os.path.join(folder, save[1])))
    os.remove(os.path.join(folder, save[1]))
    m = d["memory"]
    off = [f"{k}: predicted {m[f'predicted_{k}_bytes']}, measured {m[f'{k}_bytes']}" for k in ("live_peak", "session", "reserved") if m[f"predicted_{k}_bytes"] != m[f"{k}_bytes"]]
    return {"bits": bits, "off": off}


def digests(path):
    """One digest a tensor of an .npz or a .safetensors."""
    short = lambda raw: hashlib.sha256(raw).hexdigest()[:12]
    if path.endswith(".npz"):
        with zipfile.ZipFile(path) as z:
            return {n[:-4]: short(z.read(n)) for n in z.namelist()}
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(size))
        head.pop("__metadata__", None)
        out = {}
        for name, t in sorted(head.items()):
            begin, end = t["data_offsets"]
            f.seek(8 + size + begin)
            out[name] = short(f.read(end - begin))
    return out


def group(program, source, optimizer, todo, budgets, share, work):
    """All cases of a model with one optimizer by one program, by label."""
    out, size, folder = {}, None, None
    known = f"{source.key()}|{optimizer}|"
    flags_of = lambda s: [str(budgets.get(x, x)) for x in STRATEGIES[s]]
    try:
        for case in [None, *todo]:
            _, strategy, way = case or ("", "as derived", "")
            run = case and runs(source, *case, share)
            flags = flags_of(strategy) if case else []
            if any(f in ("BUDGET", "TOTAL") for f in flags):
                continue  # nothing to halve
            key = known + "|".join([strategy, way, *flags, *["ran"] * bool(run)])
            if key in program.cache:
                out[strategy, way] = program.cache[key]
            else:
                if folder is None:
                    folder = tempfile.mkdtemp(dir=work)
                    derived, size = derive(program, source, optimizer, folder)
                if not case:
                    out[strategy, way] = derived
                elif "refused" in derived:
                    continue
                else:
                    front, more = WAYS.get(way, ([], []))
                    front = [*size, *front] if "--provider" in front else [*size, *front, "--provider", "cpu"]
                    r = written(program, folder, ["--strategy", program.least if strategy == "least" else strategy.split(",")[0], *flags, *more], front, "small.onnx")
                    if run and "refused" not in r:
                        r.update(ran(program, source, optimizer, folder, "small.onnx", front))
                    out[strategy, way] = r
                    if os.path.exists(os.path.join(folder, "small.onnx")):
                        os.remove(os.path.join(folder, "small.onnx"))
                program.cache[key] = out[strategy, way]
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    return out


def halves(out):
    """Budgets halfway between what none and least take."""
    none, least = (out.get((s, ""), {}) for s in ("none", "least"))
    budgets = {}
    for name, figure in (("BUDGET", "live_peak"), ("TOTAL", "total")):
        if none.get(figure) and least.get(figure):
            budgets[name] = (none[figure] + least[figure]) // 2
    return budgets


def compare(old, new, strategy):
    """The verdict, and in words what it rests on."""
    if "refused" in old or "refused" in new:
        if "refused" in old and "refused" in new:
            return "equal", "" if old["refused"] == new["refused"] else "other words: " + new["refused"]
        return ("worse", new["refused"]) if "refused" in new else ("better", "was refused: " + old["refused"])
    faults = [new["differs"]] if "differs" in new and "differs" not in old else []
    if new.get("off"):
        faults.append("; ".join(new["off"]))
    if "bits" in old and "bits" in new and old["bits"] != new["bits"]:
        a, b = old["bits"], new["bits"]
        differ = [k for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        faults.append(f"other bits in {len(differ)} of {len(b)}: {', '.join(differ[:3])}")
    if faults:
        return "worse", "; ".join(faults)
    goal = "work" if "budget" in strategy or "total" in strategy else "live_peak"
    less, more = [], []
    for f, unit in FIGURES.items():
        a, b = old.get(f), new.get(f)
        if a != b and a is not None and b is not None:
            (less if b < a else more).append((f, f"{f} {a} to {b} {unit}"))
        elif a is None and b is not None:
            less.append((f, f"{f} is predicted"))
        elif b is None and a is not None:
            more.append((f, f"{f} is not predicted"))
    words = ", ".join(w for _, w in more + less)
    if any(f == goal for f, _ in more):
        return "worse", words
    if not more:
        return ("better" if less else "equal"), words
    return ("traded" if any(f == goal for f, _ in less) else "worse"), words


def measure(a, old, new, share, work):
    """The rows of the table."""
    rows, lock, done = [], threading.Lock(), [0]
    models = [s for s in sources([SAMPLES, *a.models], a.quick) if not a.only or any(o in s.name for o in a.only)]
    todo = []
    for s in models:
        by = {}
        for c in cases(s, a.quick):
            by.setdefault(c[0], []).append(c)
        todo += [(s, o, list_) for o, list_ in by.items()]
    heavy = threading.Semaphore(1)

    def one(job):
        source, optimizer, list_ = job
        with heavy if source.large else lock_free():
            plain = [c for c in list_ if "budget" not in c[1] and "total" not in c[1]]
            before = group(old, source, optimizer, plain, {}, share, work)
            budgets = halves(before)
            before = group(old, source, optimizer, list_, budgets, share, work)
            after = group(new, source, optimizer, list_, budgets, share, work)
        with lock:
            for key in before:
                strategy, way = key
                verdict, why = compare(before[key], after.get(key, {"refused": "missing"}), strategy)
                rows.append({"model": source.name, "optimizer": optimizer or "its own", "strategy": strategy, "way": way,
                             "before": before[key], "after": after.get(key), "verdict": verdict, "why": why})
            done[0] += 1
            tables.note(f"{done[0]} of {len(todo)} {source.name}, {optimizer or 'its own update'}: " + counted(rows))
            if a.cache:
                tables.keep(*os.path.split(a.cache), a.kept)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(one, todo))
    order = {(s.name, o): i for i, (s, o, _) in enumerate((s, o or "its own", l) for s, o, l in todo)}
    return sorted(rows, key=lambda r: order[r["model"], r["optimizer"]])


class lock_free:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


VERDICTS = ["equal", "better", "traded", "worse"]


def counted(rows):
    n = {v: sum(r["verdict"] == v for r in rows) for v in VERDICTS}
    return ", ".join(f"{c} {v}" for v, c in n.items() if c) or "nothing"


def page(rows, about):
    """The table as a page: in short, what is not equal, and every peak."""
    ran_ = [r for r in rows if r["after"] and "bits" in r["after"] and "bits" in r["before"]]
    seconds = [sum(r[when].get("seconds", 0) for r in rows if r["before"] and r["after"]) for when in ("before", "after")]
    exact = sum(not r["after"]["off"] for r in ran_)
    same = sum(r["before"]["bits"] == r["after"]["bits"] for r in ran_)
    out = ["# Before and after", "",
           f"`scripts/before_after.py{' --quick' if about['quick'] else ''}`: files written at {about['old']} and at {about['new']}, on {about['cpu']}.",
           f"{len(rows)} cases: {counted(rows)}. Run were {len(ran_)}: the same bits in {same}, predicted = measured in {exact}.",
           f"Rewriting took {seconds[0]:.0f} s of CPU before and {seconds[1]:.0f} s after.",
           "Peaks are predicted live peaks in bytes; work is FLOPs that are done again. Nodes are not judged.", ""]
    kinds = {}
    for r in rows:
        kinds.setdefault(r["way"] or r["strategy"], []).append(r)
    out += [tables.text([{"strategy or way": k, **{v: str(sum(r["verdict"] == v for r in list_)) for v in VERDICTS},
                          "nodes before": nodes(list_, "before"), "nodes after": nodes(list_, "after")} for k, list_ in kinds.items()]), ""]
    differ = [{"model": r["model"], "optimizer": r["optimizer"], "strategy": ", ".join(filter(None, [r["strategy"], r["way"]])), "verdict": r["verdict"], "what": r["why"]}
              for r in sorted(rows, key=lambda r: -VERDICTS.index(r["verdict"])) if r["verdict"] != "equal"]
    out += ["## What differs", "", tables.text(differ) if differ else "Nothing.", ""]
    out += ["## Live peaks", "", "One figure where before and after are equal.", ""]
    columns = ["as derived", *STRATEGIES]
    table = {}
    for r in rows:
        row = table.setdefault((r["model"], r["optimizer"]), {"model": r["model"], "optimizer": r["optimizer"], **{c: "-" for c in columns}})
        if not r["way"] and r["strategy"] in columns:
            a, b = (peak(r[k]) for k in ("before", "after"))
            row[r["strategy"]] = a if a == b else f"{a} -> {b}"
    return "\n".join([*out, tables.text(list(table.values())), ""])


def nodes(rows, when):
    return str(sum((r[when] or {}).get("nodes") or 0 for r in rows))


def peak(record):
    return "refused" if not record or "refused" in record else str(record["live_peak"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old", metavar="OLD_BINARY")
    p.add_argument("new", metavar="NEW_BINARY")
    p.add_argument("--commits", nargs=2, default=["", ""], metavar=("OLD", "NEW"), help="their commits; left out, what Go noted in them, else a digest")
    p.add_argument("--quick", action="store_true", help="fewer models, optimizers and strategies: under two minutes")
    p.add_argument("--models", action="append", default=[], metavar="FOLDER", help="further models; may be repeated")
    p.add_argument("--only", action="append", default=[], metavar="TEXT", help="models whose name holds it; may be repeated")
    p.add_argument("--share", type=int, default=0, metavar="N", help="run the files of one case in N (default: 4, with --quick 8)")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="models at a time (default: 1)")
    p.add_argument("--cache", metavar="FILE", help="keeps there what each program gave")
    p.add_argument("--out", metavar="FOLDER", help="for before_after.md and before_after.json")
    a = p.parse_args()
    for path in (a.old, a.new):
        if not os.access(path, os.X_OK):
            sys.exit(f"{path}: no such program")
    a.kept = {}
    if a.cache and os.path.exists(a.cache):
        with open(a.cache) as f:
            a.kept = json.load(f)
    old, new = (Program(path, c, a.kept) for path, c in zip((a.old, a.new), a.commits))
    with tempfile.TemporaryDirectory(prefix="before-after-") as work:
        rows = measure(a, old, new, a.share or (8 if a.quick else 4), work)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    about = {"old": old.commit, "new": new.commit, "quick": a.quick, "cpu": tables.cpu(), "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
    text = page(rows, about)
    if a.out:
        tables.keep(a.out, "before_after.md", text)
        tables.keep(a.out, "before_after.json", {"about": about, "rows": rows})
    for r in rows:
        if r["verdict"] == "worse":
            print(f"worse: {r['model']}, {r['optimizer']}, {r['strategy']}{', ' * bool(r['way'])}{r['way']}: {r['why']}")
    print(f"{about['old']} and {about['new']}: {counted(rows)} ({about['cpu_seconds']} s of CPU)")
    return 1 if any(r["verdict"] == "worse" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
