#!/usr/bin/env python3
"""--overhead 5 %, 10 % and 20 % on ten graphs: what was planned, and what the clock says.

    make build ort
    scripts/overhead.py [--only GLOB]... [--steps N] --out docs/results

Each graph's operators are timed first (remat run --profile), so that the bound is one of time
(--costs). Then the plain step and the three written ones run in turns, in one process, and
medians are compared. Of GPT-2's six layers the whole curve is drawn, with what optimal takes
where nothing is asked for. Standard library only.
"""
import argparse
import fnmatch
import os
import shutil
import tempfile

import tables

BOUNDS = ("5%", "10%", "20%")
SAMPLES = os.path.join(tables.HERE, "..", "testdata", "models")
CURVE = "GPT-2, 6 layers of 384, 2 x 256, AdamW"
ZOO = {
    CURVE: (["gpt2", "--layers=6", "--hidden=384", "--heads=6", "--batch=2", "--seq=256", "--vocab=8000"], "adamw"),
    "GPT-2, 2 layers of 384, 4 x 256": (["gpt2", "--layers=2", "--hidden=384", "--heads=6", "--batch=4", "--seq=256", "--vocab=8000"], "none"),
    "GPT-2, 4 layers of 512, 1 x 512, SGD": (["gpt2-medium", "--layers=4", "--hidden=512", "--heads=8", "--batch=1", "--seq=512", "--vocab=4000"], "sgd"),
    "encoder, 288 wide, SGD": (["encoder", "--hidden=288"], "sgd"),
    "MLP, 512 wide": (["mlp", "--hidden=512"], "none"),
    "heavy, 8 layers of 1024, SGD": (["heavy", "--layers=8", "--hidden=1024", "--batch=64"], "sgd"),
}
EXPORTS = {"ResNet, exported": "resnet18_like.ts", "Llama, exported": "llama_tiny.dyn", "LSTM, exported": "lstm_char.ts", "BERT, exported": "bert_tiny.ts"}


def exported(lab, name):
    """The training graph of a sample, with AdamW."""
    for kind in ("onnx", "npz"):
        shutil.copy(os.path.join(SAMPLES, f"{name}.{kind}"), lab.folder)
    lab.remat("grad", f"{name}.onnx", "--optimizer", "adamw", "-o", f"{name}_step.onnx")
    return f"{name}_step.onnx", ["--feeds", f"{name}.npz"]


def measure(lab, step, feeds, steps):
    """A row for each bound: the plan's, and the medians' in turns."""
    with open(lab.at("costs.json"), "w") as f:
        f.write(lab.remat("--json", "run", step, "--steps", "5", "--profile", *feeds))
    plans, files = {}, [step]
    for bound in BOUNDS:
        files.append(f"{bound[:-1]}_{step}")
        plans[bound] = lab.json("rewrite", step, "--overhead", bound, "--costs", "costs.json", "-o", files[-1])
    d = lab.json("compare", *files, "--steps", str(steps), *feeds)
    base = d["models"][0]["step_seconds"]
    noise = (base["upper_quartile"] - base["lower_quartile"]) / base["median"]
    for i, (bound, plan) in enumerate(plans.items()):
        m = d["models"][i + 1]
        live, predicted = m["memory"]["live_peak_bytes"], m["memory"]["predicted_live_peak_bytes"]
        yield {"at most": bound, "planned": f"{100 * plan['overhead']:.1f} %", "measured": f"{100 * (m['step_seconds']['median'] / base['median'] - 1):+.1f} %",
               "plain's quartiles apart": f"{100 * noise:.1f} %", "step ms": f"{1e3 * m['step_seconds']['median']:.1f}",
               "live peak, of plain": f"{100 * live / d['models'][0]['memory']['live_peak_bytes']:.1f} %", "predicted": "exact" if live == predicted else str(predicted)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", help="graphs that match")
    p.add_argument("--steps", type=int, default=21, help="of each graph, in turns")
    p.add_argument("--out", help="folder for overhead.md and overhead.png")
    a = tables.alone(p)
    commit, rows = tables.commit(), []
    with tempfile.TemporaryDirectory() as folder:
        lab = tables.Lab(a, folder)
        for i, name in enumerate(n for n in [*ZOO, *EXPORTS] if not a.only or any(fnmatch.fnmatch(n, g) for g in a.only)):
            step, feeds = (lab.train(f"graph{i}", *ZOO[name]), []) if name in ZOO else exported(lab, EXPORTS[name])
            for row in measure(lab, step, feeds, a.steps):
                rows.append({"graph": name, **row})
                tables.note(" | ".join(rows[-1].values()))
            if name == CURVE and a.out:
                lab.remat("plan", step, "--strategy", "optimal", "--pareto", "--png", "overhead.png")
                shutil.move(lab.at("overhead.png"), os.path.join(a.out, "overhead.png"))
    text = f"""# What --overhead keeps

`scripts/overhead.py --out docs/results` at {commit} on {tables.cpu()}, ONNX Runtime's CPU provider, one thread. The
bound is one of time, by `--costs`. *planned* is the plan's, *measured* the median of {a.steps} steps beside the plain step's,
all four in turns; how far the plain step's quartiles are apart says how much a median is worth.

{tables.text(rows)}

![{CURVE}: live peak against work, and what optimal takes unasked](overhead.png)

The curve is of {CURVE}, its work in FLOPs. `optimal` without a bound takes the point that is named so.
"""
    if a.out:
        tables.keep(a.out, "overhead.md", text)
    print(text)


if __name__ == "__main__":
    main()
