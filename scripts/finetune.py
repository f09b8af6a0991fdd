#!/usr/bin/env python3
"""Fine-tuning half a billion parameters: adapters, frozen weights in four bits, beside PyTorch and PEFT.

    make build ort
    scripts/finetune.py --out docs/results [--row NAME ...] [--large NAME ...] [--work DIR]

A Llama-like model in the shape of Qwen2.5-0.5B (hidden 896, 24 layers, 14 heads, 2 of keys and values,
intermediate 4864, vocabulary 151936, tied embeddings), seeded weights, exported by transformers; one
sequence of 512 tokens a step. Adapters of rank 8 on all projections, their frozen weights in int4, int8 and
float32; everything trained with APOLLO-Mini and AdamW. Each row is derived, rewritten and run alone, in
rounds: a row is run once in each. A row takes minutes of two cores; --predict NAME only predicts that row,
as for one that needs more memory than there is.

The larger models are planned within a memory for adapters of rank 8, frozen weights in int4; --large NAME runs
that one in a control group of this memory, which counts all of the process and pages of files, --predict NAME
does not. Without --row and --large, all rows are made.

Counted are parameters, state, feeds, session and live peak; the process is the largest RssAnon and
RssShmem of its status while it runs, which leaves out mapped files. --work keeps the files of a row, and
does not make again those that are there. Each row says its commit, and the load of the machine as it began; --out keeps
the rows of a page that are not made now. A row of PyTorch's whose packages are not installed is left out.
Ends with 1 where a prediction is not exact, or a larger model takes more than its memory.
Needs torch and transformers; peft and bitsandbytes for their rows (finetune_torch.py).
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import finetune_torch
import large
import numpy as np
import tables

RATE = finetune_torch.RATE
LORA = ["--lora", "*_proj.weight:r=8,alpha=16"]

# What is trained, and how its step is planned.
ROWS = {
    "adapters, frozen in int4": ([*LORA, "--quantize-frozen", "int4", "--optimizer", "adamw"], ["--strategy", "least", "--chunk-loss", "8"]),
    "adapters, frozen in int8": ([*LORA, "--quantize-frozen", "int8", "--optimizer", "adamw"], ["--strategy", "least", "--chunk-loss", "8"]),
    "adapters, frozen in float32": ([*LORA, "--optimizer", "adamw"], ["--strategy", "full"]),
    "everything, APOLLO-Mini": (["--optimizer", "apollo-mini"], ["--strategy", "full"]),
    "everything, AdamW": (["--optimizer", "adamw"], ["--strategy", "full"]),
}
# Larger models: their file, their adapters, and the memory that everything counted is to keep.
LARGE = {
    "GPT-2 XL, 1 x 1024": ("gpt2-xl", "*:r=8,alpha=16", 2),
    "Qwen2.5-1.5B's shape, 1 x 512": ("qwen_1.5b", "*_proj.weight:r=8,alpha=16", 4),
}
COLUMNS = ("parameters MB", "state MB", "live peak MB", "counted MB", "predicted", "process MB", "s a step", "processor s a step", "losses", "threads", "load", "commit")
GB = 10**9


class Refused(Exception):
    """A run that ended with another code than 0, and its last line."""


def watched(command, folder, group=None):
    """What a command prints, its largest memory beyond mapped files, and the seconds of a processor that it
    had taken when it said that it had done a number of steps."""
    with tempfile.TemporaryDirectory() as logs, open(os.path.join(logs, "out"), "w+") as out, open(os.path.join(logs, "err"), "w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, preexec_fn=group.enter if group else None)
        most, busy, said = 0, {}, open(err.name)
        while child.poll() is None:
            most = max(most, finetune_torch.anonymous(child.pid))
            for line in said:
                if done := re.match(r"steps: (\d+) of", line):
                    busy[int(done[1])] = tables.processor(child.pid)
            time.sleep(0.05)
        said.close(), out.seek(0), err.seek(0)
        if child.returncode:
            raise Refused(f"{' '.join(command)}: code {child.returncode}: {err.read().strip()[-500:]}")
        return out.read(), most, busy


def mega(n):
    return f"{n / 1e6:.0f}"


class Row:
    """A step by remat: derived and rewritten where its files are not there, and run."""

    def __init__(self, lab, name):
        self.lab, self.name, self.feeds, self.limits = lab, name, "batch.npz", []
        self.derive, self.plan = ROWS[name]
        self.file = name.replace(", ", "-").replace(" ", "-")

    def made(self, file, *args):
        if os.path.exists(self.lab.at(file)):
            self.lab.commands.append("remat " + " ".join([*args, "-o", file]))
        else:
            self.lab.remat(*args, "-o", file)
        return file

    def source(self):
        path = self.lab.at("qwen.onnx")
        if not os.path.exists(path):
            tables.note("export")
            finetune_torch.export(self.lab.a.shape, path)
        np.savez(self.lab.at("batch.npz"), **finetune_torch.batch(self.lab.a.shape))
        return "qwen.onnx"

    def written(self):
        train = self.made(f"{self.file}.onnx", "grad", self.source(), *self.derive)
        return self.made(f"{self.file}_written.onnx", "rewrite", train, *self.plan)

    def predicted(self):
        m = self.lab.json("inspect", self.written(), "--memory")["memory"]
        if not m["exact"]:
            sys.exit(f"{self.name}: the prediction is not exact")
        held = m["peak"]["categories"]
        return self.row(held, m["predicted_live_peak_bytes"], m["predicted_total_peak_bytes"], "not run")

    def row(self, held, live, counted, predicted, **more):
        sizes = (held["parameter_bytes"], held["state_bytes"], live, counted)
        return {**self.titles(), **dict.fromkeys(COLUMNS, ""), **dict(zip(COLUMNS, [mega(n) for n in sizes])), "predicted": predicted, **more}

    def titles(self):
        return {"trained": self.name, "by": "remat"}

    def measured(self, group=None):
        file = self.written()
        args = ["--json", "run", file, *(["--feeds", self.feeds] if self.feeds else []), *self.limits, "--steps", str(self.lab.a.steps), "--lr", RATE]
        self.lab.commands.append("remat " + " ".join(args))
        text, process, busy = watched([self.lab.a.remat, "--threads", str(self.lab.a.threads), *args], self.lab.folder, group)
        d = json.loads(text)
        m = d["memory"]
        exact = all(m[k] == m["predicted_" + k] for k in ("live_peak_bytes", "session_bytes", "reserved_bytes"))
        return self.row(m, m["live_peak_bytes"], m["total_peak_bytes"], "exact" if exact else "NOT exact", **{
            "process MB": mega(process), "s a step": f"{min(s['seconds'] for s in d['steps']):.1f}",
            "processor s a step": f"{min(taken):.1f}" if (taken := [busy[k + 1] - t for k, t in busy.items() if k + 1 in busy]) else "",
            "losses": " ".join(f"{s['outputs']['loss']:.4f}" for s in d["steps"])})


class Torch(Row):
    """The same by PyTorch."""

    def __init__(self, lab, name):
        self.lab, self.name = lab, name

    def measured(self):
        command = [sys.executable, os.path.join(tables.HERE, "finetune_torch.py"), self.name, "--shape", self.lab.a.shape,
                   "--steps", str(self.lab.a.steps), "--threads", str(self.lab.a.threads)]
        d = json.loads(watched(command, self.lab.folder)[0])
        return {"trained": self.name, "by": "PyTorch", **dict.fromkeys(COLUMNS, ""), "process MB": mega(d["process_bytes"]),
                "s a step": f"{min(s['seconds'] for s in d['steps']):.1f}", "processor s a step": f"{min(s['processor'] for s in d['steps'][1:] or d['steps']):.1f}",
                "losses": " ".join(f"{s['loss']:.4f}" for s in d["steps"])}


class Large(Row):
    """A larger model's step within a memory."""

    def __init__(self, lab, name):
        self.lab, self.name, self.feeds = lab, name, None
        self.file, adapters, self.memory = LARGE[name]
        self.limits = ["--memory-limit", f"{self.memory}GB"]
        self.derive = ["--lora", adapters, "--quantize-frozen", "int4", "--optimizer", "adamw"]
        self.plan = ["--budget-total", f"{self.memory}GB", "--chunk-loss", "8"]

    def titles(self):
        return {"adapters of": self.name, "memory": f"{self.memory} GB"}

    def source(self):
        name = f"{self.file}_forward.onnx"
        if self.file not in finetune_torch.SHAPES:
            return self.made(name, "model", self.file, "--batch", "1", "--seq", "1024")
        if not os.path.exists(self.lab.at(name)):
            tables.note(f"export of {self.file}")
            finetune_torch.export(self.file, self.lab.at(name), drawn=True)
        return name

    def predicted(self):
        return {**super().predicted(), "control group MB": ""}

    def measured(self):
        group = large.Group(self.memory * GB)
        try:
            return {**super().measured(group), "control group MB": mega(group.peak())}
        finally:
            group.close()

    def fits(self, row):
        """Whether what is counted keeps the memory, and so does the process where it was run."""
        return all(float(row[k] or 0) <= self.memory * 1000 for k in ("counted MB", "process MB"))


def rounds(lab, rows):
    """Each row, run once in every round: its fastest step, its largest process."""
    best, commit = {}, tables.commit()
    for _ in range(lab.a.rounds):
        for row in rows:
            load = f"{os.getloadavg()[0]:.0f}"
            tables.note(f"{row.name}, load {load}")
            lab.commands.clear()
            now = row.predicted() if row.name in lab.a.predict else row.measured()
            now.update(threads=str(lab.a.threads), load=load, commit=commit, commands=list(lab.commands))
            old = best.setdefault(row.name, now)
            if old is not now:
                for key, pick in (("s a step", min), ("processor s a step", min), ("process MB", max)):
                    old[key] = pick(old[key], now[key], key=lambda s: float(s or 0))
                if now["predicted"] != old["predicted"]:
                    old["predicted"] = "NOT exact"
            print({k: v for k, v in now.items() if k != "commands"}, flush=True)
    return list(best.values())


def shown(rows):
    return tables.text([{k: v for k, v in r.items() if k not in ("commands", "remark")} for r in rows])


def together(old, new, names):
    """The rows of a page: those that were made now, and the others as they were."""
    rows = {next(iter(r.values())): r for r in [*old, *new]}
    return [rows[n] for n in names if n in rows]


def save(a, rows, larger, about):
    try:
        with open(os.path.join(a.out, "finetune.json")) as f:
            was = json.load(f)
    except FileNotFoundError:
        was = {}
    rows = together(was.get("rows", []), rows, [*ROWS, *finetune_torch.ROWS])
    larger = together(was.get("larger", []), larger, LARGE)
    text = ["# Half a billion parameters, fine-tuned", "",
            f"`scripts/finetune.py` at {about['commit']}, {about['cpu']}, {about['cores']} cores: the shape of Qwen2.5-0.5B, seeded weights,",
            f"1 x {finetune_torch.TOKENS} tokens, adapters of rank 8 on all projections. Counted are parameters, state, feeds, session and live peak;",
            "*predicted* says that live peak, session and reservation were foretold to the byte; a row that was not run is the prediction",
            "alone. *Process* is its largest memory beyond mapped files, that of the runtime's code and graph included; PyTorch's holds its",
            "weights in it, remat's maps the frozen ones. A step is the fastest of those that were run; *processor* is the time of all",
            "processors in a step, after the first where there are more, which a busy machine changes less. The machine was shared: rows say its",
            "load as they began, where it was noted, and their commit; times of rows at other loads do not compare. Adapters begin from other random numbers in PEFT; NF4 is by bitsandbytes, its products in float32.", "",
            shown(rows), ""]
    if larger:
        text += ["## Larger models within a memory", "",
                 "Adapters of rank 8 on all linear layers of a block, AdamW, frozen weights in int4, planned with `--budget-total`. What was",
                 "run was run with `--memory-limit` in a control group of that memory, which counts the whole process and pages of files;",
                 "these give way.", "", shown(larger), "", *(f"{r['remark']}\n" for r in larger if r.get("remark"))]
    commands = [c for r in rows + larger for c in r["commands"]]
    text += ["The commands:", "", "```", *dict.fromkeys(commands), "```", ""]
    tables.keep(a.out, "finetune.md", "\n".join(text))
    tables.keep(a.out, "finetune.json", {"machine": about, "rows": rows, "larger": larger})


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--row", choices=[*ROWS, *finetune_torch.ROWS], action="append", help="only this one; may be repeated")
    p.add_argument("--large", choices=LARGE, action="append", help="this one; may be repeated")
    p.add_argument("--predict", choices=[*ROWS, *LARGE], action="append", default=[], help="do not run this row; may be repeated")
    p.add_argument("--work", help="folder for the files, kept: 30 GB")
    p.add_argument("--out", help="folder for finetune.md and finetune.json")
    p.add_argument("--shape", choices=finetune_torch.SHAPES, default="qwen", help="of the rows; small for tries")
    a = p.parse_args()
    a.remat, a.provider, a.rehearse, a.largest = os.path.abspath(a.remat), "cpu", False, 0
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    return a


def main():
    a = arguments()
    everything = not a.row and not a.large
    with tempfile.TemporaryDirectory() as folder:
        lab = tables.Lab(a, os.path.abspath(a.work) if a.work else folder)
        os.makedirs(lab.folder, exist_ok=True)
        names = [*ROWS, *finetune_torch.ROWS] if everything else a.row or []
        large_rows = [Large(lab, n) for n in (LARGE if everything else a.large or [])]
        try:
            for n in names:
                if absent := finetune_torch.missing(n):
                    tables.note(f"{n}: left out, as {', '.join(absent)} is not installed")
            rows = rounds(lab, [Row(lab, n) if n in ROWS else Torch(lab, n) for n in names if n in ROWS or not finetune_torch.missing(n)])
            larger = rounds(lab, large_rows)
        except Refused as e:
            sys.exit(str(e))
        for table in filter(None, (rows, larger)):
            print(shown(table))
        if a.out:
            save(a, rows, larger, tables.machine(lab))
    wrong = [f"{r[next(iter(r))]}: a prediction is not exact" for r in rows + larger if r["predicted"] == "NOT exact"]
    wrong += [f"{row.name}: more than {row.memory} GB" for row, r in zip(large_rows, larger) if not row.fits(r)]
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
