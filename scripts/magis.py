#!/usr/bin/env python3
"""The networks of MAGIS (Chen et al., ASPLOS 2024) at its sizes: remat's predicted peak beside PyTorch's.

    make build ort
    scripts/magis.py --out docs/results                 every network, predicted
    scripts/magis.py --network UNet --out docs/results  one alone; the page is of all that were made
    scripts/magis.py --check                            small forms of the networks, executed

Each network (magis_models.py) is exported with its loss in fp32, and `remat grad --optimizer sgd`
derives the step. Peaks are parameters and the most that a step holds beside them; feeds are in
neither. PyTorch's is counted on fake tensors at the same batch (magis_count.py): forward,
backward, SGD. --check executes small forms of all networks, plain and planned, asks that
predictions are exact and losses equal, and ends with 1 where they are not. Needs torch.
"""
import argparse
import json
import os
import sys
import tempfile

import magis_count
import magis_models
import tables
import torch

# What the paper says of peaks at most 10 and 5 % more time, of PyTorch's, over its networks.
PUBLISHED = {0.05: "25 to 70 %", 0.10: "15 to 60 %"}
# In how many micro-batches each network is planned, where its batch has as many; the least peak counts.
SLICES = (4, 8, 16, 32)
BOUNDS = [0.05, 0.10]


def export(model, batch, path):
    torch.onnx.export(model, batch, path, input_names=["x", "target"], output_names=["loss"], dynamo=True, optimize=False, verbose=False, external_data=True)


def derived(lab, name, model, batch):
    file = name.replace("/", "").replace("+", "p")
    export(model, batch, lab.at(file + ".onnx"))
    lab.remat("grad", file + ".onnx", "--optimizer", "sgd", "-o", file + "_step.onnx")
    return file + "_step.onnx"


def row(lab, name):
    full = magis_models.TABLE[name][0]
    parameters, live = magis_count.counted(lambda: magis_models.WithLoss(magis_models.TABLE[name][4]()).train(), magis_models.feeds(name, full))
    step = derived(lab, name, magis_models.build(name), magis_models.feeds(name, full))
    out = {"network": name, "batch": full, "pytorch_bytes": parameters + live, "parameter_bytes": parameters, "plans": []}
    for slices in (None, *(n for n in SLICES if full % n == 0)):
        for bound in BOUNDS:
            flags = ["--micro-batches", str(slices)] if slices else []
            file = f"{step[:-5]}_{slices}_{bound}.onnx"
            try:
                d = lab.json("rewrite", step, "--overhead", f"{100 * bound:.0f}%", *flags, "-o", file)
            except SystemExit as e:
                if "no plan has at most" not in str(e):
                    raise
                tables.note(f"{name} {slices} {bound}: the slices alone add more")
                continue
            peak = lab.json("inspect", "--memory", file)["memory"]["peak"]
            out["plans"].append({
                "bound": bound, "slices": slices or 1, "overhead": d["overhead"], "bytes": d["total"]["parameter_bytes"] + d["peak_bytes_after"],
                "node": peak["node"], "op": peak["op"], "phase": peak["phase"], "layer": peak["layer"],
            })
            tables.note(f"{name} {slices or 1} {bound}: {out['plans'][-1]['bytes'] / out['pytorch_bytes']:.3f}")
            os.remove(lab.at(file))
    return out


# The networks in small, with their inputs and targets.
def small():
    tiny = lambda batch, *dims: torch.randn(batch, *dims)
    channels = [4, 8, 16]
    return {
        "UNet": (magis_models.UNet(channels), tiny(4, 1, 16, 16), tiny(4, 1, 16, 16)),
        "UNet++": (magis_models.UNetPlusPlus(channels), tiny(4, 1, 16, 16), tiny(4, 1, 16, 16)),
        "ResNet-50": (magis_models.ResNet((1, 1, 1, 1), 10), tiny(4, 3, 64, 64), tiny(4, 10, 1, 1)),
        "transformer": (magis_models.transformer(2, 32, 2), tiny(4, 24, 32), tiny(4, 24, 32)),
        "ViT-B/16": (magis_models.ViT(2, 3 * 64, 4, 8, 10), tiny(4, 3, 32, 32), tiny(4, 16, 10)),
    }


def check(lab):
    wrong = 0
    for name, (model, x, target) in small().items():
        torch.manual_seed(0)
        loss = magis_models.WithLoss(model).train()
        want = float(loss(x, target))
        step = derived(lab, "small " + name, loss, (x, target))
        import numpy as np
        np.savez(lab.at("feeds.npz"), x=x.numpy(), target=target.numpy())
        files = [step, lab.rewrite(step, "--strategy", "none", "--micro-batches", "4"), lab.rewrite(step, "--strategy", "least", "--micro-batches", "2")]
        d = lab.json("compare", *files, "--feeds", "feeds.npz", "--steps", "3", "--lr", "0.01")
        for m in d["models"]:
            exact = m["memory"]["live_peak_bytes"] == m["memory"]["predicted_live_peak_bytes"]
            losses = [s["outputs"]["loss"] for s in m["steps"]]
            first = [s["outputs"]["loss"] for s in d["models"][0]["steps"]]
            apart = max(abs(a / b - 1) for a, b in zip(losses, first))
            good = exact and apart < 1e-5 and abs(losses[0] / want - 1) < 1e-5
            wrong += not good
            print(f"{name:12} {m['memory']['live_peak_bytes']:>9} bytes live, {'exact' if exact else 'NOT as predicted'}; losses apart by {apart:.1e} over 3 steps, from PyTorch's by {abs(losses[0] / want - 1):.1e}")
    return wrong


def share(a, b):
    return f"{100 * a / b:.1f} %"


def best(row, bound, sliced):
    """The plan of the least peak within a bound, in micro-batches that were asked for or by default."""
    return min((p for p in row["plans"] if p["bound"] == bound and (p["slices"] > 1) == sliced), key=lambda p: p["bytes"])


def cell(row, bound, sliced):
    p = best(row, bound, sliced)
    return f"{share(p['bytes'], row['pytorch_bytes'])} (+{100 * p['overhead']:.1f} %)" + (f", {p['slices']}" if sliced else "")


def page(a, rows):
    lines = ["# MAGIS's networks at its sizes", "", f"`scripts/magis.py --out docs/results` at {a.commit}; PyTorch {torch.__version__}, ONNX Runtime's kernels on the CPU, one thread.", "",
             "Peak of a training step in fp32 with SGD, parameters included and feeds not, as a share of PyTorch's own",
             "plain step at the same batch. remat's is the prediction, which `scripts/magis.py --check` holds to what",
             "small forms of the networks take, to the byte. PyTorch's is counted on fake tensors, without what an operator",
             "allocates and releases inside. More work is by operations; a slice's reading of the weights counts. *by default*:",
             "`rewrite --overhead` alone, which chooses what is divided, eight micro-batches among it. *in*: `--micro-batches N`,",
             "the best of 4, 8, 16 and 32.", "",
             "| network | batch | PyTorch MB | at most 5 % more work, by default | in | at most 10 %, by default | in |", "|---|--:|--:|--:|--:|--:|--:|"]
    for r in rows:
        cells = [cell(r, bound, sliced) for bound in BOUNDS for sliced in (False, True)]
        lines.append(" | ".join([f"| {r['network']}", str(r["batch"]), f"{r['pytorch_bytes'] / 1e6:.0f}", *cells]) + " |")
    lines += ["", f"MAGIS says of its seven networks, on an RTX 3090, by time: {PUBLISHED[0.05]} of PyTorch's peak at most 5 % slower, {PUBLISHED[0.10]} at most 10 % slower.", "",
              "Where the peak is in micro-batches with at most 10 % more work:", ""]
    for r in rows:
        p = best(r, 0.10, True)
        lines.append(f"- {r['network']}: {p['bytes'] / 1e6:.0f} MB, of them parameters {r['parameter_bytes'] / 1e6:.0f} and their summed gradients as much; the peak is at {p['op']} `{p['node']}`")
    missing = [n for n in magis_models.TABLE if n not in {r["network"] for r in rows}]
    if missing:
        lines += ["", f"Not made: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--network", action="append", choices=list(magis_models.TABLE))
    p.add_argument("--check", action="store_true", help="execute small forms")
    p.add_argument("--out", help="folder for magis.md and magis.json")
    a = tables.alone(p)
    with tempfile.TemporaryDirectory() as folder:
        if a.check:
            sys.exit(1 if check(tables.Lab(a, folder)) else 0)
        kept = {}
        at = a.out and os.path.join(a.out, "magis.json")
        a.commit = tables.commit()
        if at and a.network and os.path.exists(at):
            with open(at) as f:
                document = json.load(f)
            if document["commit"] == a.commit:
                kept = {r["network"]: r for r in document["rows"]}
        for name in a.network or magis_models.TABLE:
            kept[name] = row(tables.Lab(a, folder), name)
            rows = [kept[n] for n in magis_models.TABLE if n in kept]
            text = page(a, rows)
            if a.out:
                tables.keep(a.out, "magis.json", {"commit": a.commit, "rows": rows})
                tables.keep(a.out, "magis.md", text)
    print(text)


if __name__ == "__main__":
    main()
