#!/usr/bin/env python3
"""What is left at the limit: of each graph the least that remat writes, the bound below which no plan of
that form can go, and what stands at the peak.

    make build ort
    scripts/limit.py [--only GLOB]... --out docs/results

Predicted, for the CPU provider, `--strategy least`. The bound is the planner's (planner/bound.go):
what an operator reads and makes, outputs that are there by then, and what only backward makes and
still has readers, at the operator where that is most. Standard library only.
"""
import argparse
import collections
import fnmatch
import os
import tempfile

import tables

SAMPLES = os.path.join(tables.HERE, "..", "testdata", "models")
ZOO = {
    "GPT-2 124M, 1 x 1024, AdamW": (["gpt2", "--batch=1", "--seq=1024"], "adamw"),
    "GPT-2 124M, 8 x 1024, AdamW": (["gpt2", "--batch=8", "--seq=1024"], "adamw"),
    "GPT-2 124M, 8 x 1024, gradients returned": (["gpt2", "--batch=8", "--seq=1024"], "none"),
    "GPT-2 355M, 1 x 512, AdamW": (["gpt2-medium", "--batch=1", "--seq=512"], "adamw"),
    "encoder, SGD": (["encoder"], "sgd"),
    "MLP, SGD": (["mlp"], "sgd"),
    "heavy, 8 layers of 1024, SGD": (["heavy", "--layers=8", "--hidden=1024", "--batch=64"], "sgd"),
}
EXPORTS = {"ResNet, AdamW": "resnet18_like.ts", "Llama, AdamW": "llama_tiny.dyn", "LSTM, AdamW": "lstm_char.ts", "BERT, AdamW": "bert_tiny.ts"}
MB = lambda n: f"{n / 1e6:.1f}" if n >= 1e6 else f"{n / 1e6:.3f}"


def standing(peak):
    """What is live at the peak, alike values together, the largest first, to nine tenths of it."""
    groups = collections.Counter()
    for v in peak["live"]:
        groups[v["bytes"], v["op"] or "input", v["category"]] += 1
    rest, said = peak["live_bytes"], []
    for (size, op, category), n in sorted(groups.items(), key=lambda g: -g[0][0] * g[1]):
        if rest <= peak["live_bytes"] / 10 or len(said) == 6:
            break
        said.append(f"{n} x {MB(size)} of {op} ({category})" if n > 1 else f"{MB(size)} of {op} ({category})")
        rest -= n * size
    return "; ".join(said) + f"; {MB(rest)} besides" * (rest > 0)


def row(lab, name):
    if name in ZOO:
        step = lab.train("step", *ZOO[name])
    else:
        step = "step.onnx"
        lab.remat("grad", os.path.abspath(os.path.join(SAMPLES, EXPORTS[name] + ".onnx")), "--optimizer", "adamw", "-o", step)
    plan = lab.json("rewrite", step, "--strategy", "least", "--time-limit", "2m", "-o", "least.onnx")
    memory = lab.json("inspect", "least.onnx", "--memory")["memory"]
    peak, total = memory["peak"], plan["total"]
    return {"graph": name, "parameters, state MB": MB(total["parameter_bytes"] + total["state_bytes"]), "plain MB": MB(plan["peak_bytes_before"]),
            "least MB": MB(peak["live_bytes"]), "bound MB": MB(plan["lower_bound_bytes"]), "above": f"{100 * (peak['live_bytes'] / plan['lower_bound_bytes'] - 1):.0f} %",
            "runs at the peak": f"{peak['op']}, {peak['phase']}", "stands there, MB": standing(peak)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", help="graphs that match")
    p.add_argument("--out", help="folder for limit.md")
    a = tables.alone(p)
    commit, rows = tables.commit(), []
    with tempfile.TemporaryDirectory() as folder:
        for name in [*ZOO, *EXPORTS]:
            if not a.only or any(fnmatch.fnmatch(name, g) for g in a.only):
                rows.append(row(tables.Lab(a, folder), name))
                tables.note(" | ".join(rows[-1].values()))
    details = "\n".join(f"- **{r['graph']}**, at {r['runs at the peak']}: {r['stands there, MB']}." for r in rows)
    short = [{k: v for k, v in r.items() if k != "stands there, MB"} for r in rows]
    text = f"""# What is left at the limit

`scripts/limit.py --out docs/results` at {commit}. Predicted for the CPU provider, `--strategy least --time-limit 2m`; MB are
10^6 bytes, live peaks beside parameters, state and feeds. *bound*: no plan of the form that was written, its slices as they
are, can hold less; it is a bound and not a plan, so it may be out of reach.

{tables.text(short)}

## What stands at the peak

{details}
"""
    if a.out:
        tables.keep(a.out, "limit.md", text)
    print(text)


if __name__ == "__main__":
    main()
