"""Local training from a common start, beside gradients summed every step.

DiLoCo (arXiv 2311.08105) begins from a model that has learned: so one rank trains first, at a
constant rate. From its weights, with AdamW anew, ranks go on for as many steps as another, each
with batches of its own and a rate that warms up and falls along a cosine.
"""
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import tables

RANKS, BATCH, SEQ = 4, 1, 128
START = "--batch 4 --warmup 40 --save-every 10"
DATA = "--tokens bytes.bin --shuffle --val 0.5%"


class Setup:
    """A model, how it begins, and the ways to go on from there, each with a rate."""

    def __init__(self, layers, hidden, heads, lr, start, warmup, steps, ways):
        self.layers, self.hidden, self.heads, self.lr, self.ways = layers, hidden, heads, lr, ways
        self.start, self.warmup, self.steps = start, warmup, steps


SETUPS = {
    "diloco": Setup(6, 512, 8, "5e-4", 480, 16, 160, [("step", "", "5e-4"), ("local=16", "--outer-lr 1 --outer-momentum 0", "5e-4")]),
    "outer": Setup(2, 128, 4, "1e-3", 480, 16, 160,
                   [("step", "", "1e-3"), ("step", "", "2e-3"), ("step", "", "5e-4")]
                   + [("local=16", f"--outer-lr {lr} --outer-momentum {m}", "1e-3") for lr, m in ((1, 0), (1, 0.3), (0.7, 0.5), (0.7, 0.9))]
                   + [("local=16", "--outer-lr 1 --outer-momentum 0", rate) for rate in ("2e-3", "5e-4")]),
}


def comments():
    """The comments of Go's standard library: English text that is where this project is built."""
    root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    lines, within = [], False
    for path in sorted(glob.glob(os.path.join(root, "src", "**", "*.go"), recursive=True)):
        if path.endswith("_test.go") or re.search("/(testdata|vendor|internal)/", path):
            continue
        with open(path, encoding="utf-8", errors="ignore") as f:
            for line in map(str.strip, f):
                if line.startswith("// "):
                    lines.append(line[3:])
                elif within:
                    lines.append("")
                within = line.startswith("// ")
    return "\n".join(lines).encode()


class Runs:
    """Trainings in a folder that keeps them: one that has ended is not begun again, another goes on."""

    def __init__(self, remat, program, dir, o):
        self.remat, self.program, self.dir, self.commit = remat, program, dir, o.commit
        data = comments()
        self.data = hashlib.sha256(data).hexdigest()
        np.frombuffer(data, np.uint8).astype(np.uint16).tofile(os.path.join(dir, "bytes.bin"))

    def do(self, line):
        subprocess.run([self.program, *line.split()], cwd=self.dir, check=True, capture_output=True)

    def train(self, name, line):
        path, command = os.path.join(self.dir, name + ".json"), f"--threads 1 train {line} -o {name}"
        if os.path.exists(path):
            with open(path) as f:
                kept = json.load(f)
            if (kept["command"], kept["data"]) == (command, self.data):
                return kept
        d = self.remat(self.program, command + (" --resume" if os.path.exists(os.path.join(self.dir, name, "state.safetensors")) else ""), self.dir)
        with open(os.path.join(self.dir, name, "log.jsonl")) as f:
            sent = sum(json.loads(line).get("sent_bytes", 0) for line in f)
        kept = {"command": command, "data": self.data, "commit": self.commit, "val_loss": d["val_loss"], "tokens": d["tokens"], "bytes_sent": sent}
        tables.keep(self.dir, name + ".json", kept)
        print(f"{name}: {kept['val_loss']:.4f}", file=sys.stderr, flush=True)
        return kept


def make(name, remat, program, o, dir):
    """The rows of a set-up; the first is the start's."""
    s, runs = SETUPS[name], Runs(remat, program, dir, o)
    first = f"model gpt2-tiny --layers {s.layers} --hidden {s.hidden} --heads {s.heads} --vocab 256 --seq {SEQ} --batch 0 -o first.onnx"
    apply = "apply start/state.safetensors first.onnx -o common.onnx"
    runs.do(first)
    start = runs.train("start", f"first.onnx {DATA} {START} --steps {s.start} --lr {s.lr}")
    runs.do(apply)

    def go_on(number):
        sync, outer, rate = s.ways[number]
        kept = runs.train(f"way{number}", f"common.onnx {DATA} --batch {BATCH} --ranks {RANKS} --seed 1 --schedule cosine --warmup {s.warmup} --save-every 32 --steps {s.steps} --lr {rate} --sync {sync} {outer}".rstrip())
        return {**kept, "sync": sync, "outer": outer.replace("--outer-", ""), "lr": rate}

    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        ways = list(pool.map(go_on, range(len(s.ways))))
    return [{"commit": start["commit"], "command": first}, start, {"commit": start["commit"], "command": apply}, *ways]


TITLES = {
    "diloco": "Local training of 19 M parameters, from a common start",
    "outer": "Rates and outer optimizers, from a common start",
}


def table(name, rows):
    s, (_, start, _, *ways) = SETUPS[name], rows
    best = min(r["val_loss"] for r in ways if r["sync"] == "step")
    sent = next(r["bytes_sent"] for r in ways if r["sync"] == "step")
    text = f"## {TITLES[name]}\n\nGPT-2 of {s.layers} layers, {s.hidden} wide, on bytes: the comments of Go's standard library (sha256 {start['data'][:12]}), of which the last\n"
    text += f"0.5 % validate. One rank begins, with {start['tokens']:,} tokens in {s.start} steps at a constant rate, and comes to a validation loss of\n"
    text += f"{start['val_loss']:.4f}. From its weights {RANKS} ranks of {BATCH} x {SEQ} tokens a step go on for {s.steps} steps, {ways[0]['tokens']:,} tokens, by each way.\n\n"
    text += "| --sync | --lr | outer | validation loss | of the best `step` | bytes sent by rank 0 | of `step` |\n| --- | ---: | --- | ---: | ---: | ---: | ---: |\n"
    for r in ways:
        text += f"| {r['sync']} | {r['lr']} | {r['outer'] or '–'} | {r['val_loss']:.4f} | {100 * (r['val_loss'] / best - 1):+.2f} % | {r['bytes_sent']:,} | 1/{sent / r['bytes_sent']:.3f} |\n"
    return text
