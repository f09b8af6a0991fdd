#!/usr/bin/env python3
"""The tables of validate_exports.sh: "STRATEGY …" FILE…, for each FILE.json of
compare and FILE.STRATEGY.planned.json of plan one table, a row for each graph.
Standard library only; OUT=FILE.md gets them as a page."""
import json
import os
import sys

import tables

MB = lambda n: f"{n / 1e6:.1f}"
PERCENT = lambda x: f"{100 * x:.1f} %"


def load(path):
    with open(path) as f:
        return json.load(f)


def rows(file, strategies):
    d = load(file + ".json")
    first, out = d["models"][0], []
    for i, m in enumerate(d["models"]):
        pair = d["pairs"][i - 1] if i else None
        plan = load(f"{file}.{strategies[i - 1]}.planned.json") if i else None
        mem = m["memory"]
        guess = mem["predicted_live_peak_bytes"]
        results = "-"
        if pair:
            results = "same bits" if pair["bit_identical"] else f"within {pair['max_relative_gradient_difference'] or 0:.1e}"
        out.append({
            "graph": strategies[i - 1] if i else "plain",
            "live peak MB": MB(mem["live_peak_bytes"]), "saved": PERCENT(pair["saving"]) if pair else "-",
            "everything MB": MB(mem["total_peak_bytes"]), "saved in all": PERCENT(pair["total_saving"]) if pair else "-",
            "predicted": "exact" if guess == mem["live_peak_bytes"] else "-" if guess is None else MB(guess),
            "more FLOPs": PERCENT(plan["overhead"]) if plan else "-",
            "step s": f"{m['step_seconds']['median']:.2f}",
            "of plain": f"{m['step_seconds']['median'] / first['step_seconds']['median']:.2f}",
            "results": results,
        })
    return out


def page(strategies, files, body):
    first = load(files[0] + ".json")["models"][0]
    versions = "unknown"
    try:
        import importlib.metadata as m
        versions = ", ".join(f"{p} {m.version(p)}" for p in ("torch", "transformers"))
    except Exception:
        pass
    versions = os.environ.get("EXPORTED_BY") or versions
    command = f"GRAD=\"{os.environ['GRAD']}\" STRATEGY={','.join(strategies)} scripts/validate_exports.sh FOLDER"
    return "\n".join([
        "# Exports of transformers, and a joint graph of another tool, on the CPU", "",
        f"`{command}` on {tables.cpu()}, {os.cpu_count()} cores, {first['threads']} thread(s);",
        f"ONNX Runtime {first['ort_version']} at level {first['opt_level']}; exported by {versions}.", "",
        f"Exports (`NAME-EXPORTER`): `grad {os.environ['GRAD']}`, as derived (plain) and with each strategy.",
        "A joint graph is compared as it is. Everything counts parameters, state and feeds; MB are 10^6 bytes.",
        "Results are all that both graphs return: loss, and updated parameters or gradients.", "",
        body, "",
    ])


def main():
    strategies, files = sys.argv[1].split(), sys.argv[2:]
    body = "\n\n".join(f"**{os.path.basename(f)}**\n\n{tables.text(rows(f, strategies))}" for f in files)
    print(body)
    out = os.environ.get("OUT")
    if out:
        tables.keep(*os.path.split(out), page(strategies, files, body))


if __name__ == "__main__":
    main()
