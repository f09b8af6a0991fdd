#!/usr/bin/env python3
"""Whether a GPU computes what the CPU does, in the memory that was predicted.

    gpu_check.py --remat bin/remat --out DIR [--provider cuda] [--jobs 8]
    gpu_check.py --remat bin/remat --out DIR --files FOLDER      forward models with AdamW, plain and optimal

Small models, one of convolutions among them, each plain and rewritten, in float32 and in half types, with and without
an optimizer: three steps on the CPU, of the graph in float32, and on the GPU, of what
is written for it. A row is right where live, session and reserved bytes are those
predicted, and the last loss is that of the CPU after as many updates, to 1e-4 of it in float32 and 3e-2 in half
types: a step whose scaled gradients overflow updates nothing. One row trains on data that differs from step to step. gpu_check.json has all
rows; exit code 1 says that one is wrong.
"""
import argparse
import glob
import hashlib
import json
import math
import os
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

import tables

MODELS = {
    "gpt2": ("gpt2-tiny",),
    "encoder": ("encoder", "--layers", "2", "--hidden", "48", "--heads", "2", "--seq", "20", "--batch", "2"),
    "mlp": ("mlp", "--layers", "5", "--hidden", "32", "--batch", "6"),
}
SAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "models")
FILES = {"resnet": os.path.join(SAMPLES, "resnet18_like.ts.onnx")}  # convolutions, for which cuDNN borrows, and normalization over the batch
OPTIMIZERS = ("none", "adamw")
STRATEGIES = ("none", "full", "optimal")
BOUND = {"fp32": 1e-4, "fp16": 3e-2, "bf16": 3e-2}
FIGURES = ("live_peak_bytes", "session_bytes", "reserved_bytes")
LIMIT = 150  # seconds of one command
VOCABULARY = 512  # of gpt2-tiny


class Machine:
    def __init__(self, a):
        self.a = a

    def remat(self, provider, *args):
        rehearsed = ["--rehearse"] if self.a.rehearse and provider == "cuda" else []
        done = subprocess.run([os.path.abspath(self.a.remat), "--json", "--quiet", "--threads", "2", "--provider", provider, *rehearsed, *args],
                              cwd=self.a.out, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"remat {args[0]} on {provider}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout) if done.stdout.strip() else {}


def losses(run):
    """The loss of each step; JSON has those that are no number as text."""
    return [float(s["outputs"][run["loss_output"]]) for s in run["steps"]]


def updates(run):
    """How many updates the last step's loss has seen."""
    return sum(not s.get("skipped", False) for s in run["steps"][:-1])


def far(got, want):
    if got == want or math.isnan(got) and math.isnan(want):
        return 0
    return abs(got - want) / max(abs(want), 1e-12)


def rows(m, name, optimizer):
    """The rows of one training graph."""
    train = f"{name}-{optimizer}"
    model = FILES.get(name)
    if not model:
        model = train + "-m.onnx"
        m.remat("cpu", "model", *MODELS[name], "-o", model)
    m.remat("cpu", "grad", model, "--optimizer", optimizer, "-o", train + ".onnx")
    want = losses(m.remat("cpu", "run", train + ".onnx", "--steps", "3"))
    for strategy in STRATEGIES:
        for precision, bound in BOUND.items():
            if name in FILES and optimizer != "none" and precision != "fp32":
                continue  # normalized over so few samples, losses part after a step in half
            yield row(m, train, strategy, precision, want, bound)


def theirs(m, path):
    """The rows of a forward model that somebody exported."""
    train = os.path.splitext(os.path.basename(path))[0]
    m.remat("cpu", "grad", os.path.abspath(path), "--optimizer", "adamw", "-o", train + ".onnx")
    want = losses(m.remat("cpu", "run", train + ".onnx", "--steps", "3"))
    return [row(m, train, strategy, precision, want, BOUND[precision]) for strategy, precision in (v.split("-") for v in m.a.variants)]


def row(m, train, strategy, precision, want, bound):
    """What a variant of a training graph takes and computes on the GPU."""
    file = f"{train}-{strategy}-{precision}.onnx"
    half = ["--emulate"] if m.a.provider == "cpu" and precision != "fp32" else []
    try:
        m.remat(m.a.provider, "rewrite", train + ".onnx", "--strategy", strategy, "--precision", precision, *half, "--time-limit", "5s", "-o", file)
        run = m.remat(m.a.provider, "run", file, "--steps", "3")
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        return {"row": file[:-5], "error": str(e), "right": False}
    off = [f for f in FIGURES if run["memory"][f] != run["memory"]["predicted_" + f]]
    with open(os.path.join(m.a.out, file), "rb") as f:
        written = hashlib.sha256(f.read()).hexdigest()
    got = {"row": file[:-5], "written": written, "memory": {f: run["memory"][f] for f in FIGURES}, "not as predicted": off}
    if m.a.rehearse:
        return {**got, "right": not off}
    loss, want = losses(run)[-1], want[updates(run)]
    return {**got, "loss": loss, "on the CPU": want, "difference": far(loss, want), "right": not off and far(loss, want) <= bound}


def trained(m):
    """Training reads other tokens in every step."""
    draw, token, tokens = random.Random(1), 0, []
    for _ in range(20000):
        tokens.append(token)
        token = (7 * token + draw.randrange(5) + 3) % VOCABULARY
    with open(os.path.join(m.a.out, "tokens.bin"), "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))
    m.remat("cpu", "model", "gpt2-tiny", "--seq", "64", "--batch", "4", "-o", "data.onnx")
    runs = {}
    for way, provider in (("cpu", "cpu"), ("gpu", m.a.provider)):
        runs[way] = m.remat(provider, "train", "data.onnx", "--tokens", "tokens.bin", "--token-type", "uint16", "--val", "10%", "--steps", "40", "--lr", "1e-3", "-o", "run-" + way)
    off = max(far(runs["gpu"][k], runs["cpu"][k]) for k in ("loss_last", "val_loss"))
    return {"row": "train, on data", "loss": runs["gpu"]["val_loss"], "on the CPU": runs["cpu"]["val_loss"], "difference": off, "not as predicted": [], "right": off <= 1e-3}


def attempt(name, make):
    """The rows that make has, or one that says why it has none."""
    try:
        return list(make())
    except (RuntimeError, KeyError, TypeError, subprocess.TimeoutExpired) as e:
        return [{"row": name, "error": f"{type(e).__name__}: {e}", "right": False}]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--remat", required=True)
    p.add_argument("--out", required=True, help="folder for the graphs and gpu_check.json")
    p.add_argument("--provider", default="cuda", help="cuda, or cpu to try the script")
    p.add_argument("--jobs", type=int, default=min(8, os.cpu_count()))
    p.add_argument("--models", nargs="+", default=[*MODELS, *FILES], choices=[*MODELS, *FILES])
    p.add_argument("--files", metavar="FOLDER", help="forward models to be checked instead")
    p.add_argument("--variants", nargs="+", default=["none-fp32", "optimal-fp32"], metavar="STRATEGY-PRECISION", help="of those models")
    p.add_argument("--rehearse", action="store_true", help="on CUDA without a GPU: memory only")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    m = Machine(a)
    if a.files:
        jobs = [(path, lambda path=path: theirs(m, path)) for path in sorted(glob.glob(os.path.join(a.files, "*.onnx")))]
    else:
        jobs = [] if a.rehearse else [("train, on data", lambda: [trained(m)])]
        jobs += [(f"{n}-{o}", lambda n=n, o=o: rows(m, n, o)) for n in a.models for o in OPTIMIZERS]
    found, wrong = [], []
    with ThreadPoolExecutor(a.jobs) as pool:
        for made in as_completed([pool.submit(attempt, *j) for j in jobs]):
            found += made.result()
            tables.keep(a.out, "gpu_check.json", found)  # what is known stays if the time runs out
            for r in made.result():
                if not r["right"]:
                    wrong.append(r)
                    print(json.dumps(r), flush=True)
    print(f"{len(found)} rows, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
