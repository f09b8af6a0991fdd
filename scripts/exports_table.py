#!/usr/bin/env python3
"""The table of validate_exports.sh: FILE.json of compare and FILE.planned.json of
plan, one row for each FILE. Standard library only; OUT=FILE.md gets it as a page."""
import json
import os
import sys

import tables

MB = lambda n: f"{n / 1e6:.1f}"
PERCENT = lambda x: f"{100 * x:.1f} %"


def load(path):
    with open(path) as f:
        return json.load(f)


def row(file):
    d, plan = load(file + ".json"), load(file + ".planned.json")
    a, b = d["models"]
    pair = d["pairs"][0]
    peaks = [m["memory"]["live_peak_bytes"] for m in (a, b)]
    totals = [m["memory"]["total_peak_bytes"] for m in (a, b)]
    exact = all(m["memory"]["predicted_live_peak_bytes"] == m["memory"]["live_peak_bytes"] for m in (a, b))
    same = "same bits" if pair["bit_identical"] else f"within {pair['max_relative_gradient_difference'] or 0:.1e}"
    return {
        "graph": os.path.basename(file), "live peak MB": f"{MB(peaks[0])} -> {MB(peaks[1])}", "saved": PERCENT(pair["saving"]),
        "everything MB": f"{MB(totals[0])} -> {MB(totals[1])}", "saved in all": PERCENT(pair["total_saving"]),
        "predicted": "exact" if exact else "not exact", "more FLOPs": PERCENT(plan["overhead"]),
        "step s": f"{a['step_seconds']['median']:.1f} -> {b['step_seconds']['median']:.1f}",
        "results": same,
    }


def page(rows):
    first = load(sys.argv[1] + ".json")["models"][0]
    versions = "unknown"
    try:
        import importlib.metadata as m
        versions = ", ".join(f"{p} {m.version(p)}" for p in ("torch", "transformers"))
    except Exception:
        pass
    versions = os.environ.get("EXPORTED_BY") or versions
    return "\n".join([
        "# Exports of transformers, and a joint graph of another tool, on the CPU", "",
        f"`{' '.join(['scripts/validate_exports.sh', 'FOLDER'])}` on {tables.cpu()}, {os.cpu_count()} cores, {first['threads']} thread(s);",
        f"ONNX Runtime {first['ort_version']} at level {first['opt_level']}; exported by {versions}.", "",
        f"Exports (`NAME-EXPORTER`, 1 x 512 tokens): `grad {os.environ['GRAD']}`, as derived and with `--strategy {os.environ['STRATEGY']}`.",
        "A joint graph is compared as it is. Everything counts parameters, state and feeds; MB are 10^6 bytes.",
        "Results are all that the graphs return: loss, and updated parameters or gradients.", "",
        tables.text(rows), "",
    ])


def main():
    rows = [row(f) for f in sys.argv[1:]]
    print(tables.text(rows))
    out = os.environ.get("OUT")
    if out:
        with open(out + ".part", "w") as f:
            f.write(page(rows))
        os.replace(out + ".part", out)


if __name__ == "__main__":
    main()
