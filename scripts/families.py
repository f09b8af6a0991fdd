#!/usr/bin/env python3
"""What exports how: models of many families, each as a new user would take it from
PyTorch to a rewritten training graph, and what came of it, as a page.

    pip install -r scripts/requirements.txt
    make build ort
    scripts/families.py [--only GLOB]... [--list] [--jobs N] [--json FILE] [--out docs/results/families.md]

For each model of family_models.py, by the tools' defaults:

1. `torch.onnx.export(dynamo=True, optimize=False)`, or TorchScript where the table says
   so. A model that needs a switch is first exported without it, to say what happens.
2. `remat grad --optimizer adamw`. What it trains is set against the parameters that
   get a gradient in PyTorch, by name. requires_grad=False is in no file, so a frozen
   parameter counts as PyTorch's; with the flags of the table the sets must be equal.
3. `remat grad`, run three times with 8 threads: every gradient is within 1e-4 of the
   model's largest from PyTorch's autograd, and the three runs are equal bit for bit.
4. `remat rewrite` with full, sqrt and optimal, and `remat compare`: the same bits, or
   gradients (AdamW's first moments) within 1e-6 of the largest; every live peak,
   session and reservation that was predicted equals what was measured.

Results are kept in --json, one entry per model with commit and digest of the program,
so a run goes on where it ended; --again measures models anew that are there already.
--work keeps the exports, which do not depend on the program. REMAT names the program.
Each stage has a time limit, and ends as a fault. --fresh leaves the initial values of all weights; else
they are moved a little, as training would, so that no gradient is zero by symmetry.
"""
import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import tables

HERE = os.path.dirname(os.path.abspath(__file__))
STRATEGIES = ["full", "sqrt", "optimal"]
LIMITS = {"export": 150, "grad": 60, "run": 60, "full": 60, "sqrt": 60, "optimal": 150, "compare": 90}
BOUND, SAME = 1e-4, 1e-6
RUNS, THREADS = 3, 8


class Fault(Exception):
    """A stage that did not do what it should; its text is for the table."""


# One model, in a process of its own.


def work(spec, folder, entry, a):
    """Fills entry stage by stage and raises nothing; entry["faults"] says what failed."""
    faults = entry["faults"] = []
    entry["seconds"] = {}
    try:
        with timed(entry, "export"):
            exported = export_once(spec, folder, a.fresh)
        entry["exported"] = exported
        if exported.get("error"):
            raise Fault("export: " + exported["error"])
        program = a.remat
        derived = attempt(entry, derive, spec, folder, program, entry)
        attempt(entry, gradients, spec, folder, program, entry)
        if derived:
            attempt(entry, rewrites, folder, program, entry, a.strategies)
    except Fault as e:
        faults.append(str(e))
    for name in os.listdir(folder):
        if name not in KEPT and not name.startswith("model.onnx"):
            os.remove(os.path.join(folder, name))


def attempt(entry, stage, *args):
    """Whether the stage went through; else its fault is noted, once."""
    try:
        stage(*args)
        return True
    except Fault as e:
        text = str(e)
    except Exception as e:  # the table's business is to say so and go on
        text = "script: " + first_line(e)
    if text not in entry["faults"]:
        entry["faults"].append(text)
    return False


KEPT = {"exported.json", "feeds.npz", "torch.npz", "log"}


class timed:
    def __init__(self, entry, stage):
        self.entry, self.stage = entry, stage

    def __enter__(self):
        self.start = time.time()

    def __exit__(self, *_):
        self.entry["seconds"][self.stage] = round(time.time() - self.start, 1)


class limit:
    """Ends what runs in this process after so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def late(*_):
            raise TimeoutError(f"not done after {self.seconds} s")
        signal.signal(signal.SIGALRM, late)
        signal.alarm(self.seconds)

    def __exit__(self, *_):
        signal.alarm(0)


def export_once(spec, folder, fresh):
    """What exported.json says; makes it, the file, the feeds and PyTorch's answers if
    they are not there."""
    place = os.path.join(folder, "exported.json")
    if os.path.exists(place):
        with open(place) as f:
            return json.load(f)
    out = {}
    with limit(LIMITS["export"]):
        try:
            if spec.bare:
                out["bare"] = bare(spec, folder, fresh)
            out.update(export(spec, folder, fresh))
        except Exception as e:  # an exporter's refusals are of every kind
            out["error"] = first_line(e)
            return out
    tables.keep(folder, "exported.json", out)
    return out


def bare(spec, folder, fresh):
    """What happens without the switches: the error, "another loss" or nothing."""
    import onnxruntime
    import torch

    path = os.path.join(folder, "bare.onnx")
    try:
        model, feeds = spec.build(fresh, switches=False)
        want = float(loss_of(model, feeds))
        to_onnx(model, feeds, path, "dynamo")
        onnxruntime.set_default_logger_severity(4)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        got = float(session.run(["loss"], {k: v.numpy() for k, v in feeds.items() if k in names})[0])
        return "" if abs(got - want) <= 1e-4 * abs(want) else f"exports, with loss {got:.4g} instead of {want:.4g}"
    except Exception as e:
        return "fails: " + first_line(e)


def loss_of(model, feeds):
    """The loss, its gradients in the parameters; buffers (running statistics) stay."""
    kept = {k: b.clone() for k, b in model.named_buffers()}
    loss = model(*feeds.values())
    loss.backward()
    for k, b in model.named_buffers():
        b.copy_(kept[k])
    return loss.detach()


def export(spec, folder, fresh):
    import numpy as np
    import torch

    model, feeds = spec.build(fresh)
    loss = loss_of(model, feeds)
    groups = {}
    for name, w in model.named_parameters(remove_duplicate=False):
        g = groups.setdefault(id(w), {"names": [], "trained": w.requires_grad and w.grad is not None})
        g["names"].append(name)
    grads = {n: w.grad.numpy() for n, w in model.named_parameters() if w.requires_grad and w.grad is not None}
    np.savez(os.path.join(folder, "torch.npz"), loss=loss.numpy(), **{"grad:" + k: v for k, v in grads.items()})
    np.savez(os.path.join(folder, "feeds.npz"), **{"in:" + k: v.numpy() for k, v in feeds.items()})
    model.zero_grad(set_to_none=True)
    to_onnx(model, feeds, os.path.join(folder, "model.onnx"), spec.exporter)
    return {"parameters": list(groups.values()), "elements": sum(w.numel() for w in model.parameters())}


def to_onnx(model, feeds, path, exporter):
    import torch

    names = dict(input_names=list(feeds), output_names=["loss"])
    if exporter == "dynamo":
        torch.onnx.export(model, tuple(feeds.values()), path, dynamo=True, optimize=False, verbose=False, **names)
    else:
        torch.onnx.export(model, tuple(feeds.values()), path, dynamo=False, do_constant_folding=False, opset_version=18,
                          training=torch.onnx.TrainingMode.TRAINING, **names)


def remat(program, folder, entry, stage, *args, flags=()):
    """A command's document; its error is a Fault."""
    command = [program, "--json", "--quiet", *flags, *args]
    with timed(entry, stage):
        p = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = p.communicate(timeout=LIMITS[stage])
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise Fault(f"{stage}: not done after {LIMITS[stage]} s")
    if p.returncode:
        lines = [x for x in err.strip().splitlines() if x.startswith("remat")] or err.strip().splitlines() or ["no message"]
        raise Fault(f"{stage}: exit {p.returncode}: {short(lines[-1])}")
    warned = [short(x) for x in err.splitlines() if x.startswith("warning")]
    if warned:
        entry.setdefault("warnings", {})[stage] = warned[:6]
    return json.loads(out) if out.strip() else {}


def short(text, most=300):
    text = text.removeprefix("remat: ").strip()
    return text if len(text) <= most else text[:most] + " …"


def derive(spec, folder, program, entry):
    """grad --optimizer adamw by default, then with the table's flags."""
    document = remat(program, folder, entry, "grad", "grad", "model.onnx", "--optimizer", "adamw", "-o", "train.onnx")
    groups = entry["exported"]["parameters"]
    entry["exit"] = 0
    entry["default"] = trained = against(document["parameters"], groups)
    if spec.grad:
        document = remat(program, folder, entry, "grad", "grad", "model.onnx", "--optimizer", "adamw", *spec.grad, "-o", "train.onnx")
        entry["flagged"] = trained = against(document["parameters"], groups)
    for kind, text in (("missing", "not trained"), ("frozen", "trained, without a gradient in PyTorch"), ("extra", "trained, no parameter")):
        if trained[kind]:
            entry["faults"].append(f"{text}: {few(trained[kind])}")


def against(names, groups):
    """Names that remat trains, set against PyTorch's parameters."""
    owner = {n: g for g in groups for n in g["names"]}
    trained = {id(owner[n]) for n in names if n in owner}
    return {
        "trained": len(names), "expected": sum(g["trained"] for g in groups),
        "missing": [g["names"][0] for g in groups if g["trained"] and id(g) not in trained],
        "frozen": [n for n in names if n in owner and not owner[n]["trained"]],
        "extra": [n for n in names if n not in owner],
    }


def few(names, most=3):
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def gradients(spec, folder, program, entry):
    """Gradients against autograd's, and against themselves."""
    import numpy as np

    remat(program, folder, entry, "grad", "grad", "model.onnx", *spec.grad, "-o", "grads.onnx")
    results = []
    for i in range(RUNS):
        out = f"run{i}.npz"
        document = remat(program, folder, entry, "run", "run", "grads.onnx", "--feeds", "feeds.npz", "--out", out, flags=("--threads", str(THREADS)))
        entry.setdefault("predicted", []).append(foretold(document["memory"]))
        with np.load(os.path.join(folder, out)) as z:
            results.append({k: z[k] for k in z.files})
    first = results[0]
    differ = sorted({k for r in results[1:] for k in first if not np.array_equal(first[k], r[k], equal_nan=True)})
    entry["equal"] = not differ
    if differ:
        entry["faults"].append(f"{RUNS} runs differ in {few(differ)}")
    got = {k.removesuffix(".grad"): v for k, v in first.items() if k.endswith(".grad")}
    entry["largest"] = max((float(np.abs(v).max()) for v in got.values()), default=0.0)
    with np.load(os.path.join(folder, "torch.npz")) as z:
        want = {k[5:]: z[k] for k in z.files if k.startswith("grad:")}
        loss = float(z["loss"])
    if spec.random:
        entry["gradient"] = None
        return
    off = abs(float(first["loss"]) - loss) / max(abs(loss), 1e-30)
    entry["loss"] = [float(first["loss"]), loss]
    if not off <= 1e-4:
        entry["faults"].append(f"loss {float(first['loss']):.6g}, PyTorch's {loss:.6g}")
    scale = max((float(np.abs(g).max()) for g in want.values()), default=0.0)
    worst, where = 0.0, ""
    for group in entry["exported"]["parameters"]:
        w = next((want[n] for n in group["names"] if n in want), None)
        if w is None:
            continue
        held = [got[n] for n in group["names"] if n in got]
        if not held:
            continue  # derive said that it is not trained
        d = float(np.abs(sum(held) - w).max()) / scale if held[0].shape == w.shape else float("inf")
        if not d <= worst:
            worst, where = d, group["names"][0]
    entry["gradient"] = {"worst": worst, "where": where, "of": len(want)}
    if not worst <= BOUND:
        entry["faults"].append(f"gradient of {where} off by {worst:.2g} of the largest")


def foretold(memory):
    return all(memory[f"predicted_{k}_bytes"] == memory[f"{k}_bytes"] for k in ("live_peak", "session", "reserved"))


def rewrites(folder, program, entry, strategies):
    """The strategies, and one comparison with the graph as derived."""
    written = []
    for s in strategies:
        try:
            remat(program, folder, entry, s, "rewrite", "train.onnx", "--strategy", s, "-o", s + ".onnx")
            written.append(s)
        except Fault as e:
            entry["faults"].append(str(e))
    document = remat(program, folder, entry, "compare", "compare", "train.onnx", *[s + ".onnx" for s in written], "--feeds", "feeds.npz", "--steps", "2")
    models = dict(zip(["given"] + written, document["models"]))
    entry["peaks"] = {s: m["memory"]["live_peak_bytes"] for s, m in models.items()}
    for s, m in models.items():
        ok = foretold(m["memory"])
        entry["predicted"].append(ok)
        if m["memory"]["predicted_live_peak_bytes"] is None:
            entry["faults"].append(f"{s}: no peak is predicted")
        elif not ok:
            entry["faults"].append(f"{s}: predicted is not measured: " + ", ".join(
                f"{k} {m['memory'][f'predicted_{k}_bytes']} for {m['memory'][f'{k}_bytes']}" for k in ("live_peak", "session", "reserved")))
    entry["bits"] = {}
    first = document["models"][0]["steps"][0]["outputs"]["loss"]
    for s, pair in zip(written, document["pairs"]):
        if pair["bit_identical"]:
            entry["bits"][s] = 0.0
            continue
        # AdamW's first moment after a step is a tenth of the gradient.
        by = (pair["max_gradient_difference"] or 0) / max(0.1 * entry["largest"], 1e-30)
        loss = models[s]["steps"][0]["outputs"]["loss"]
        entry["bits"][s] = max(by, abs(loss - first) / max(abs(first), 1e-30))
        if not entry["bits"][s] <= SAME:
            entry["faults"].append(f"{s}: results differ by {entry['bits'][s]:.2g}")


def first_line(e):
    """The first line of what was raised first, less where in a source file."""
    while e.__cause__ is not None:
        e = e.__cause__
    lines = [x for x in str(e).strip().splitlines() if x.strip()] or [""]
    text = re.sub(r' at "/[^"]*":\d+', "", lines[0].strip())
    return f"{type(e).__name__}: {text[:220]}"


# All of them.


def child(spec, folder, place, a):
    os.setsid()
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    entry = {"name": spec.name}
    work(spec, folder, entry, a)
    tables.keep(*os.path.split(place), entry)


def measure(specs, a, kept, digest, commit):
    """Runs what is not kept yet, a.jobs at a time, and saves after each."""
    context = multiprocessing.get_context("fork")
    for module in ("torch", "torch.onnx", "onnxscript", "onnxruntime", "transformers", "numpy"):
        __import__(module)
    todo = [s for s in specs if due(a.again, kept.get(s.name), digest)]
    running, whole = {}, sum(LIMITS.values()) + 60
    while todo or running:
        while todo and len(running) < a.jobs:
            spec = todo.pop(0)
            folder = os.path.join(a.work, spec.name)
            if a.export:
                shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder, exist_ok=True)
            place = os.path.join(folder, "entry")
            p = context.Process(target=child, args=(spec, folder, place, a))
            p.start()
            running[spec.name] = (spec, p, place, time.time())
        time.sleep(0.1)
        for name, (spec, p, place, start) in list(running.items()):
            late = time.time() - start > whole
            if p.is_alive() and not late:
                continue
            if late:
                os.killpg(p.pid, signal.SIGKILL)
            p.join()
            del running[name]
            entry = {"name": name, "faults": [f"script: ended with {p.exitcode}" if not late else f"not done after {whole} s"], "seconds": {}}
            if os.path.exists(place):
                with open(place) as f:
                    entry = json.load(f)
                os.remove(place)
            entry.update(program=digest, commit=commit, total=round(time.time() - start, 1))
            kept[name] = entry
            tables.keep(*os.path.split(a.json), kept)
            print(f"{len(todo) + len(running):3d} to go  {name:24s} {entry['total']:6.1f} s  {'; '.join(entry['faults']) or 'ok'}", flush=True)


def due(again, entry, digest):
    """Whether a model is to be measured."""
    return not entry or again == "all" or again == "failed" and entry["faults"] or again == "stale" and entry["program"] != digest


def digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", default=[], metavar="GLOB", help="models or families that match; may be repeated")
    p.add_argument("--list", action="store_true", help="print the models")
    p.add_argument("--jobs", type=int, default=2, metavar="N", help="models at a time (default: 2)")
    p.add_argument("--json", default="families.json", metavar="FILE", help="where results are kept (default: families.json)")
    p.add_argument("--out", metavar="FILE.md", help="writes the page")
    p.add_argument("--work", metavar="FOLDER", help="keeps the exports there, for the next run")
    p.add_argument("--again", choices=["failed", "stale", "all"], help="do what failed anew, what another program or other flags gave, or all")
    p.add_argument("--export", action="store_true", help="export anew")
    p.add_argument("--patience", type=int, default=1, metavar="N", help="multiplies the time limits, on a busy machine")
    p.add_argument("--strategies", type=lambda s: s.split(","), default=STRATEGIES, metavar="S,…", help="of rewrite (default: full,sqrt,optimal)")
    p.add_argument("--fresh", action="store_true", help="leave the weights' initial values")
    a = p.parse_args()
    import family_models

    specs = [s for s in family_models.TABLE if not a.only or any(fnmatch.fnmatch(x, g) for g in a.only for x in (s.name, s.family))]
    if a.list:
        for s in specs:
            print(f"{s.name:24s} {s.family:20s} {s.exporter:12s} {s.written()}")
        return 0
    LIMITS.update({k: v * a.patience for k, v in LIMITS.items()})
    a.remat = os.path.abspath(os.environ.get("REMAT") or os.path.join(HERE, "..", "bin", "remat"))
    kept = {}
    if os.path.exists(a.json):
        with open(a.json) as f:
            kept = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        a.work = a.work or folder
        measure(specs, a, kept, "-".join([digest_of(a.remat), *a.strategies, *["fresh"] * a.fresh]), tables.commit())
    if a.out:
        import families_page

        families_page.write(a.out, family_models.TABLE, kept, a.only)
    return 1 if any(kept[s.name]["faults"] for s in specs) else 0


if __name__ == "__main__":
    sys.exit(main())
