#!/usr/bin/env python3
"""The textbook set-ups as tables, one command each.

    make build ort
    scripts/tables.py encoder      6 layers of 768, mean squared error, 50 steps of SGD
    scripts/tables.py mlp          20 linear layers of 1024: plain, sqrt, segments=3, layers=GLOB
    scripts/tables.py heavy        20 and 40 linear layers of 4096, gradients kept and updated in backward
    scripts/tables.py theory       encoders of 12 to 96 layers: 1 - 1/sqrt(L) beside what is reached
    scripts/tables.py half         GPT-2 124M and 355M, 8 x 1024 tokens, on CUDA: half types and checkpointing (predicted)
    scripts/tables.py recipes      recipes/*.yaml: GPT-2 124M trained on this project's documents, --batch x --seq tokens a step
    scripts/tables.py half_adamw   GPT-2 355M with AdamW, 2 x 128 and 8 x 512 tokens, on CUDA without a GPU: float32 beside half types
    scripts/tables.py rehearsed    GPT-2 124M to 1.5B, encoder, mlp, heavy on CUDA without a GPU: which card each variant fits
    scripts/tables.py optimizers   GPT-2 124M, 1 x 1024 tokens: state and everything counted, by optimizer
    scripts/tables.py accumulate   a small GPT-2: batches of 8 to 32, whole and in micro-batches of 2 (trained)
    scripts/tables.py profiling    GPT-2 by batch (predicted), and the six configurations of GPT-2 355M on CUDA (rehearsed)
    scripts/tables.py advise       GPT-2 355M to 1.5B within 8, 24 and 16 GB: what remat advise says (predicted)
    scripts/tables.py slab         GPT-2: what a step's slab takes beside what is live and the arena, and the process beside everything counted
    scripts/tables.py slab_zoo     the same of the zoo, every optimizer and strategy
    scripts/tables.py all --out docs/results

Every row is a graph that `remat rewrite` wrote and `remat compare` ran (theory:
`remat inspect --memory` of the written file, which is the predicted step; with
--measure N the stacks of up to N layers are run too). --small shrinks all widths,
for tests. --rehearse measures memory on the CUDA provider without a GPU: no numbers
are computed, so times and losses are left out. --out writes TABLE.md and TABLE.json with the commit, the versions and the commands.
Standard library only.
"""
import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

import tables_advise
import tables_slab
import tables_theirs
import tables_train

HERE = os.path.dirname(os.path.abspath(__file__))


class Lab:
    """A folder with graphs, and the program that makes and runs them."""

    def __init__(self, a, folder):
        self.a, self.folder, self.commands, self.notes = a, folder, [], {}

    def at(self, name):
        return os.path.join(self.folder, name)

    def remat(self, *args):
        self.commands.append("remat " + " ".join(args))
        flags = ["--quiet", "--threads", str(self.a.threads)]
        if "--provider" not in args:
            flags += ["--provider", self.a.provider, *(["--rehearse"] if self.a.rehearse else [])]
        done = subprocess.run([self.a.remat, *flags, *args], capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            sys.exit(f"remat {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *args):
        return json.loads(self.remat("--json", *args))

    def watched(self, log, *args):
        """As json, with the seconds of a processor that the program had taken when its
        log got each of its lines; none where the system does not say."""
        self.commands.append("remat " + " ".join(["--json", *args]))
        command = [self.a.remat, "--quiet", "--threads", str(self.a.threads), "--provider", self.a.provider, "--json", *args]
        busy = {}
        with open(self.at("stdout"), "w+") as out, open(self.at("stderr"), "w+") as err:
            child = subprocess.Popen(command, stdout=out, stderr=err, cwd=self.folder)
            while child.poll() is None:
                time.sleep(0.02)
                try:
                    with open(self.at(log)) as f:
                        lines = sum(1 for line in f if '"loss"' in line)
                    busy.setdefault(lines, processor(child.pid))
                except (OSError, IndexError):
                    pass
            out.seek(0), err.seek(0)
            if child.returncode:
                sys.exit(f"remat {' '.join(args)}: {err.read().strip()}")
            return json.load(out), busy

    def train(self, name, model, optimizer="none", *flags):
        """The training graph of a zoo model, its weights recorded by seed."""
        self.remat("model", *model, "--no-weights", "-o", name + "_forward.onnx")
        self.remat("grad", name + "_forward.onnx", "--optimizer", optimizer, *flags, "-o", name + ".onnx")
        return name + ".onnx"

    def rewrite(self, train, *flags, provider=None):
        name = f"{train[:-5]}_{len(self.commands)}.onnx"
        self.remat(*(["--provider", provider] if provider else []), "rewrite", train, *flags, "-o", name)
        return name

    def compare(self, files, steps):
        note(f"running {', '.join(files)}, {steps} steps")
        return self.json("compare", *files, "--steps", str(steps))

    def one_by_one(self, files, steps):
        """As compare, but never two graphs in memory: gradients are not set
        side by side, only the losses are."""
        note(f"running {', '.join(files)} one by one, {steps} steps")
        models = [self.json("run", f, "--steps", str(steps)) for f in files]
        first = models[0]
        same = lambda m: None if losses_of(m) is None else losses_of(m) == losses_of(first)
        pairs = [{"saving": 1 - m["memory"]["live_peak_bytes"] / first["memory"]["live_peak_bytes"], "bit_identical": same(m)} for m in models[1:]]
        return {"models": models, "pairs": pairs}

    def predicted(self, files):
        models = [self.json("inspect", "--memory", f)["memory"] for f in files]
        peak = lambda m: m["predicted_live_peak_bytes"]
        pairs = [{"saving": 1 - peak(m) / peak(models[0]), "bit_identical": None} for m in models[1:]]
        return {"models": [{**m, "memory": {"live_peak_bytes": peak(m)}} for m in models], "pairs": pairs}


def processor(pid):
    """The seconds of a processor that a process has taken."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def note(text):
    print(text, file=sys.stderr, flush=True)


def width(a, full):
    return full // 16 if a.small else full


MB = lambda n: f"{n / 1e6:.1f}"
PERCENT = lambda x: f"{100 * x:.1f} %"


def losses_of(m):
    """The loss of every step, None where no numbers were computed."""
    if m.get("rehearsed") or "steps" not in m:
        return None
    return [s["outputs"][m["loss_output"]] for s in m["steps"]]


def rows_of(document, names, alone=False):
    """One row per compared graph: memory over the step, time, results."""
    first = document["models"][0]
    rows = []
    for i, (name, m) in enumerate(zip(names, document["models"])):
        # A step that cannot be predicted to the byte has no timeline.
        mem, ph, peak = m["memory"], m["phases"] or {}, (m["peak"] or {}).get("categories", {})
        pair = document["pairs"][i - 1] if i else None
        ran = "steps" in m
        losses = losses_of(m)
        timed = ran and m["step_seconds"] is not None
        guess = mem.get("predicted_live_peak_bytes")
        seconds = lambda m: m["step_seconds"]["median"]
        size = lambda n: "-" if n is None else MB(n)
        rows.append({
            "variant": name,
            "live peak MB": MB(mem["live_peak_bytes"]),
            "saved": PERCENT(pair["saving"]) if pair else "-",
            "predicted": "not run" if not ran else "exact" if guess == mem["live_peak_bytes"] else size(guess),
            "before forward MB": size(ph.get("before_forward_bytes")),
            "after forward MB": size(ph.get("after_forward_bytes")),
            "backward peak MB": MB(ph["backward_peak_bytes"] or 0) if ph else "-",
            "activations at peak MB": MB(sum(v for k, v in peak.items() if "activation" in k)) if peak else "-",
            "step s": f"{seconds(m):.3f}" if timed else "-",
            "overhead": PERCENT(seconds(m) / seconds(first) - 1) if pair and timed else "-",
            "same loss" if alone else "same bits": ("yes" if pair["bit_identical"] and losses == first_losses else "no") if pair and losses else "-",
        })
        if not i:
            first_losses = losses
    return rows


def encoder(lab):
    a = lab.a
    steps = 5 if a.small or a.rehearse else a.steps
    train = lab.train("encoder", ["encoder", f"--hidden={width(a, 768)}"], "sgd")
    names = ["plain", "sqrt"]
    files = [lab.rewrite(train, "--strategy", s) for s in ("none", "sqrt")]
    d = lab.compare(files, steps)
    table = (f"Encoder, 6 layers of {width(a, 768)}, input [4,256,{width(a, 768)}], mean squared error, {steps} steps of SGD", rows_of(d, names))
    if a.rehearse:
        return [table]
    curves = [losses_of(m) for m in d["models"]]
    shown = [0, 1, 2, 5, 10, 20, 30, 40, steps - 1]
    loss = [{"step": str(k + 1), **{n: repr(c[k]) for n, c in zip(names, curves)}} for k in sorted({k for k in shown if k < steps})]
    return [
        table,
        ("Loss" + (", the same bits at every step" if all(c == curves[0] for c in curves) else ", NOT the same bits"), loss),
    ]


def mlp(lab):
    train = lab.train("mlp", ["mlp", f"--hidden={width(lab.a, 1024)}"])
    strategies = ["none", "sqrt", "segments=3", "layers=layers.[369]/act"]
    files = [lab.rewrite(train, "--strategy", s) for s in strategies]
    d = lab.compare(files, 4)
    return [(f"MLP, 20 layers of {width(lab.a, 1024)}, batch 32, 10 classes, gradients returned", rows_of(d, strategies))]


def heavy(lab):
    """One table: what the forward pass leaves behind and the peak of the backward
    pass, with gradients kept and with the update in backward."""
    rows = []
    for layers, batch in ((20, 32), (40, 64)):
        model = ["heavy", f"--layers={layers}", f"--batch={batch}", f"--hidden={width(lab.a, 4096)}"]
        of = None
        for optimizer, what in (("none", "gradients kept"), ("sgd", "updated in backward")):
            train = lab.train(f"heavy{layers}{optimizer}", model, optimizer)
            names, files, work = [], [], []
            for s in ("none", "sqrt", "segments=4"):
                plan = lab.json("plan", train, "--strategy", s, "-o", "plan.json")
                files.append(lab.rewrite(train, "--plan", "plan.json"))
                names.append(f"{s}, {what}")
                work.append(plan["overhead"])
            if optimizer == "sgd":
                names, files, work = ["as derived, SGD"] + names, [train] + files, [0] + work
            d = lab.one_by_one(files, 3) if layers <= lab.a.largest else lab.predicted(files)
            of = of or d["models"][0]["phases"]
            rows += heavy_rows(layers, rows_of(d, names, alone=True), [m["phases"] for m in d["models"]], of, work)
    return [(f"Heavy, 20 layers of {width(lab.a, 4096)} with batch 32, and 40 with batch 64", rows)]


def heavy_rows(layers, rows, phases, of, work):
    """The rows of one comparison, with shares of the phases of another run, of."""
    kept = lambda p: p["after_forward_bytes"] - p["before_forward_bytes"]
    less = lambda p, f: "-" if p is of or not p or not of else PERCENT(1 - f(p) / f(of))
    out = []
    for r, p, w in zip(rows, phases, work):
        out.append({
            "layers": str(layers), "variant": r["variant"], "live peak MB": r["live peak MB"], "predicted": r["predicted"],
            "before forward MB": r["before forward MB"], "kept by forward MB": MB(kept(p)) if p else "-", "less ": less(p, kept),
            "backward peak MB": r["backward peak MB"], "less": less(p, lambda p: p["backward_peak_bytes"]),
            "more FLOPs": PERCENT(w), "step s": r["step s"], "same loss": r["same loss"],
        })
    return out


def theory(lab):
    a, rows = lab.a, []
    for layers in (12, 24, 48, 96):
        note(f"encoder of {layers} layers")
        train = lab.train(f"theory{layers}", ["encoder", f"--layers={layers}", f"--hidden={width(a, 768)}"])
        plain = lab.rewrite(train, "--strategy", "none")
        for strategy in ("sqrt", "full"):
            plan = lab.json("plan", train, "--strategy", strategy, "-o", "plan.json")
            small = lab.rewrite(train, "--plan", "plan.json")
            before, after = (lab.json("inspect", "--memory", f)["memory"] for f in (plain, small))
            total = [m["predicted_live_peak_bytes"] for m in (before, after)]
            # What stands between the end of the forward pass and its start is what waits for backward.
            kept = [m["phases"]["after_forward_bytes"] - m["phases"]["before_forward_bytes"] for m in (before, after)]
            row = {
                "layers": str(layers), "strategy": strategy, "1 - 1/sqrt(L)": PERCENT(1 - 1 / math.sqrt(layers)),
                "activations kept MB": f"{MB(kept[0])} -> {MB(kept[1])}", "saved": PERCENT(1 - kept[1] / kept[0]),
                "live peak MB": f"{MB(total[0])} -> {MB(total[1])}", "saved in all": PERCENT(1 - total[1] / total[0]),
                "overhead in FLOPs": PERCENT(plan["overhead"]), "measured": "predicted",
            }
            if layers <= a.measure:
                d = lab.compare([plain, small], 2)
                got = [m["memory"]["live_peak_bytes"] for m in d["models"]]
                row["measured"] = "exact" if got == total else f"{MB(got[0])} -> {MB(got[1])}"
                row["measured"] += f", time {PERCENT(d['pairs'][0]['overhead'])}"
            rows.append(row)
    return [(f"Encoder stacks of {width(a, 768)}, input [4,256,{width(a, 768)}]: theory beside what is reached", rows)]


# What the figures of a table mean.
NOTES = {
    "slab": tables_slab.NOTE,
    "slab_zoo": tables_slab.NOTE,
    "recipes": tables_train.RECIPES,
    "optimizers": tables_train.OPTIMIZERS,
    "accumulate": tables_train.NOTE,
    "heavy": """With gradients kept, checkpointing would lower what the forward pass leaves behind and not
the peak of the backward pass, which is the gradients: it would repeat a fifth of the work for
nothing, so the graph is written without it. With the update in backward the peak falls by the
gradients' size, but for the two that are alive at a time, and what checkpointing frees counts.
"less" is less than plain with gradients kept.""",
    "half_adamw": """Rehearsed: ONNX Runtime's CUDA provider ran three steps without a device, and no numbers
were computed. In fp16 `--overflow auto` lets each update ask its own gradient alone where the step
would else hold no less than in fp32, which is so with 2 x 128 tokens. `least` comes down there to little
more than one next value of the embedding's state, which is float32 in every precision.""",
    "rehearsed": """Rehearsed: ONNX Runtime's CUDA provider ran three steps without a device, and no numbers
were computed. "reserved" is what its arena took for the session and the steps, "in all" adds
parameters, optimizer state and feeds. Neither counts what CUDA's context and the handles of cuBLAS
and cuDNN take on a real device, nor workspaces that these choose there. "copied to host" is bytes
in one step, "waits" how often the host waits for the device in it.""",
}


def half(lab):
    """What half types and checkpointing save, each alone and both, predicted for
    CUDA. The share of a part is what it saves alone, of what both save; "after"
    is what it saves where the other is there already."""
    tables = []
    sizes = {"gpt2": "124M", "gpt2-medium": "355M"}
    for model in sizes:
        small = ["--layers=2", "--hidden=64", "--heads=4", "--vocab=512", "--seq=64"] if lab.a.small else ["--seq=1024"]
        train = lab.train(model, [model, "--batch=8", *small])
        for strategy in (["none"], ["full"], ["full", "--chunk-loss", "auto", "--tile", "auto"], ["least"], ["optimal", "--budget", "80%" if lab.a.small else "10%"]):
            flags = ["--strategy", *strategy]
            plan = {p: lab.json("--provider", "cuda", "plan", train, *flags, "--precision", p, "-o", "plan.json")
                    for p in ("fp32", "fp16") if p == "fp16" or "--budget" not in flags}
            before = plan["fp16"]["peak_bytes_before"]
            if strategy == ["none"]:
                rows = [{"variant": "plain, fp32", "peak MB": MB(before), "of plain": "100.0 %", "more work": "-", "saved by": "-"}]
                cast = before - plan["fp16"]["peak_bytes_after"]
            for precision, d in plan.items():
                if strategy == ["none"] and precision == "fp32":
                    continue
                after = d["peak_bytes_after"]
                row = {"variant": f"{' '.join(strategy)}, {precision}", "peak MB": MB(after), "of plain": PERCENT(after / before),
                       "more work": PERCENT(d["overhead"]), "saved by": "-"}
                if precision == "fp16" and strategy != ["none"] and "fp32" in plan:
                    both, again = before - after, before - plan["fp32"]["peak_bytes_after"]
                    row["saved by"] = (f"fp16 alone {PERCENT(cast / both)}, after {PERCENT((both - again) / both)}; "
                                       f"checkpointing alone {PERCENT(again / both)}, after {PERCENT((both - cast) / both)}")
                rows.append(row)
        tables.append((f"GPT-2 {'small widths' if lab.a.small else sizes[model]}, batch 8, gradients returned in float32; predicted for the CUDA provider, not measured", rows))
    return tables


CARDS = (8, 12, 16, 24, 40, 80)


def card(size):
    """The smallest card that holds size bytes; a card of N GB is taken for N * 10^9 bytes."""
    return next((f"{n} GB" for n in CARDS if size <= n * 1e9), f"more than {CARDS[-1]} GB")


def rehearsed(lab):
    """Each variant's step on ONNX Runtime's CUDA provider, without a device: what
    was predicted beside what the provider took. Interrupted, it returns the rows so far."""
    a, tables = lab.a, []
    small = ["--layers=2", "--hidden=64", "--heads=4", "--vocab=512", "--seq=64"] if a.small else ["--seq=1024"]
    models = [(f"GPT-2 {size}, 8 x {small[-1][6:]} tokens, AdamW", [model, "--batch=8", *small], "adamw")
              for model, size in (("gpt2", "124M"), ("gpt2-medium", "355M"), ("gpt2-xl", "1.5B"))]
    models[2:2] = [(f"Encoder, 6 layers of {width(a, 768)}, SGD", ["encoder", f"--hidden={width(a, 768)}"], "sgd"),
               (f"MLP, 20 layers of {width(a, 1024)}, gradients returned", ["mlp", f"--hidden={width(a, 1024)}"], "none"),
               (f"Heavy, 20 layers of {width(a, 4096)}, SGD", ["heavy", "--layers=20", "--batch=32", f"--hidden={width(a, 4096)}"], "sgd")]
    for title, model, optimizer in models:
        rows = []
        try:
            for row in rehearsed_rows(lab, lab.train(model[0], model, optimizer)):
                rows.append(row)
                note(f"{title}: " + " | ".join(row.values()))
        except KeyboardInterrupt:
            return tables + ([(title + " (interrupted)", rows)] if rows else [])
        tables.append((title, rows))
    return tables


def rehearsed_rows(lab, train):
    for precision in ("fp32", "fp16", "bf16"):
        for strategy in ("none", "sqrt", "full", "optimal"):
            file = lab.rewrite(train, "--strategy", strategy, "--precision", precision, provider="cuda")
            yield {"variant": f"{strategy}, {precision}", **rehearsed_row(lab, file)}
            os.remove(lab.at(file))


def rehearsed_row(lab, file):
    m = lab.json("--provider", "cuda", "--rehearse", "run", file, "--steps", "3")
    mem, device = m["memory"], m["device"]
    exact = lambda what: "exact" if mem["predicted_" + what] == mem[what] else MB(mem["predicted_" + what] or 0)
    total = mem["parameter_bytes"] + mem["state_bytes"] + mem["feed_bytes"] + mem["reserved_bytes"]
    return {"live peak MB": MB(mem["live_peak_bytes"]), "predicted": exact("live_peak_bytes"),
            "reserved MB": MB(mem["reserved_bytes"]), "predicted ": exact("reserved_bytes"),
            "in all MB": MB(total), "fits": card(total),
            "copied to host": str(device["bytes_to_host"]), "waits": str(device["synchronizations"])}


def half_adamw(lab):
    """What a step with AdamW inside holds in float32 and in half types, rehearsed.
    Interrupted, it returns the rows so far."""
    small = ["--layers=2", "--hidden=64", "--heads=4", "--vocab=512"] if lab.a.small else []
    trains = {f"{batch} x {seq}": lab.train(f"gpt2-medium_{batch}_{seq}", ["gpt2-medium", f"--batch={batch}", f"--seq={seq}", *small], "adamw")
              for batch, seq in ((2, 128), (8, 512))}
    title = "GPT-2 small widths" if small else "GPT-2 355M, AdamW: live peak of a step"
    rows, types = [], ("fp32", "bf16", "fp16")
    try:
        for strategy in (["none"], ["full"], ["optimal"], ["least", "--time-limit", "2m"]):
            for tokens, train in trains.items():
                row, exact = {"tokens, strategy": f"{tokens}, {' '.join(strategy)}"}, True
                for precision in types:
                    file = lab.rewrite(train, "--strategy", *strategy, "--precision", precision, provider="cuda")
                    m = lab.json("--provider", "cuda", "--rehearse", "run", file, "--steps", "3")["memory"]
                    os.remove(lab.at(file))
                    exact = exact and m["live_peak_bytes"] == m["predicted_live_peak_bytes"]
                    row[f"{precision} MB"] = MB(m["live_peak_bytes"])
                rows.append({**row, "predicted": "exact" if exact else "differs"})
                note(" | ".join(rows[-1].values()))
    except KeyboardInterrupt:
        title += " (interrupted)"
    return [(title, rows)] if rows else []


TABLES = {"encoder": encoder, "mlp": mlp, "heavy": heavy, "theory": theory, "half": half, "half_adamw": half_adamw, "recipes": tables_train.recipes, "rehearsed": rehearsed,
          "accumulate": tables_train.accumulate, "optimizers": tables_train.optimizers, "advise": tables_advise.advise, "profiling": tables_theirs.profiling, "slab": tables_slab.slab, "slab_zoo": tables_slab.slab_zoo}


def text(rows):
    """Aligned Markdown."""
    head = list(rows[0])
    widths = [max(len(h), *(len(r[h]) for r in rows)) for h in head]
    line = lambda cells: "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths))) + " |"
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(head), rule] + [line([r[h] for h in head]) for r in rows])


def cpu():
    try:
        with open("/proc/cpuinfo") as f:
            return next(l.split(":")[1].strip() for l in f if l.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit():
    """The commit that a kept table is of."""
    done = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine(lab):
    """What the figures depend on."""
    found = lab.json("doctor").get("findings", [])
    version = next((f["is"].split()[0] for f in found if f["what"] == "onnx runtime"), "")
    return {"cpu": cpu(), "cores": os.cpu_count(), "system": platform.system() + " " + platform.machine(), "threads": lab.a.threads,
            "onnxruntime": version, "largest": lab.a.largest, "flags": "".join(f" --{k} {v}" for k, usual in (("batch", 4), ("seq", 256), ("train-steps", 10))
            if (v := getattr(lab.a, k.replace("-", "_"), usual)) != usual), "commit": commit()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", nargs="+", choices=[*TABLES, "all"])
    p.add_argument("--remat", default=os.path.join(HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--provider", default="auto")
    p.add_argument("--steps", type=int, default=50, help="of the encoder")
    p.add_argument("--measure", type=int, default=12, help="theory: run stacks of up to N layers")
    p.add_argument("--batch", type=int, default=4, help="recipes: sequences a step")
    p.add_argument("--seq", type=int, default=256, help="recipes: tokens in a sequence")
    p.add_argument("--train-steps", type=int, default=10, help="recipes: steps")
    p.add_argument("--largest", type=int, default=40, help="heavy: predict stacks of more than N layers, where there is no room to run (20 layers take 4 GB, 40 take 8)")
    p.add_argument("--small", action="store_true", help="a sixteenth of every width")
    p.add_argument("--out", help="folder for TABLE.md and TABLE.json")
    p.add_argument("--rehearse", action="store_true", help="on the CUDA provider without a GPU: memory only, no numbers are computed")
    a = p.parse_args()
    if a.rehearse:
        a.provider = "cuda"
    a.remat = os.path.abspath(a.remat)
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    for name in TABLES if "all" in a.table else a.table:
        begun = commit()  # which may move meanwhile
        with tempfile.TemporaryDirectory() as folder:
            lab = Lab(a, folder)
            tables = TABLES[name](lab)
            about = {**machine(lab), "commit": begun}
        body = "\n\n".join(f"**{title}**\n\n{text(rows)}" for title, rows in tables)
        if a.rehearse:
            body = "rehearsed: no numbers were computed\n\n" + body
        print(body + "\n", flush=True)
        if a.out:
            save(a.out, name, tables, body, about, lab)


def keep(folder, name, content):
    """Writes a file, whole or not at all: a text as it is, anything else as JSON."""
    if not isinstance(content, str):
        content = json.dumps(content, indent=1) + "\n"
    os.makedirs(folder or ".", exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + ".part", "w") as f:
        f.write(content)
    os.replace(path + ".part", path)


def alone(p):
    """The arguments of a script with a page of its own, which a Lab takes: one thread, on the CPU."""
    p.add_argument("--remat", default=os.path.join(HERE, "..", "bin", "remat"), help="the program")
    a = p.parse_args()
    a.threads, a.provider, a.rehearse, a.remat = 1, "cpu", False, os.path.abspath(a.remat)
    return a


def save(folder, name, tables, body, about, lab):
    flags = about["flags"] if name == "recipes" else f" --largest {about['largest']}" if name == "heavy" and about["largest"] < 40 else ""
    remarks = "\n\n".join(notes[name] for notes in (NOTES, lab.notes, tables_theirs.THEIRS) if name in notes)
    lines = [f"# {name}", "", f"`scripts/tables.py {name}{flags}` at {about['commit']} on {about['cpu']}, {about['cores']} cores, {about['system']}, ONNX Runtime {about['onnxruntime']}.",
             "MB are 10^6 bytes. The columns of memory over the step count parameters, state and feeds too.", "", body, "", *([remarks, ""] if remarks else []), "The commands:", "", "```"]
    lines += lab.commands + ["```", ""]
    keep(folder, name + ".md", "\n".join(lines))
    keep(folder, name + ".json", {"machine": about, "tables": [{"title": t, "rows": r} for t, r in tables]})


if __name__ == "__main__":
    main()
