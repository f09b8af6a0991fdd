#!/usr/bin/env python3
"""GPT-2 124M, 8 x 1024 tokens, gradients returned: the peak by how much more work a plan may do.

    make build ort
    scripts/fastsa.py --out docs/results

Predicted. The bounds are the pair that FastSA is measured on, and one between; the target of each is beside
what is reached, by default, with large gradients summed up where they are returned (--outputs rows), and
with nothing in parts. Standard library only.
"""
import argparse
import tempfile

import tables

TARGETS = {"3%": 0.31, "12%": 0.15, "30%": 0.09}
WAYS = {"by default": [], "sums as returned": ["--outputs", "rows"], "nothing in parts": ["--micro-batches", "off"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", help="folder for fastsa.md")
    a = tables.alone(p)
    commit = tables.commit()
    with tempfile.TemporaryDirectory() as folder:
        lab = tables.Lab(a, folder)
        step = lab.train("gpt2", ["gpt2", "--batch=8", "--seq=1024"])
        plans = {(bound, way): lab.json("plan", step, "--overhead", bound, *flags) for bound in TARGETS for way, flags in WAYS.items()}
    first = next(iter(plans.values()))
    returned = first["total"]["parameter_bytes"]
    lines = ["# GPT-2 124M, 8 x 1024 tokens: peak by work", "", f"`scripts/fastsa.py --out docs/results` at {commit}; predicted, one thread.", "",
             f"Live peak as a share of the plain step's, {first['peak_bytes_before'] / 1e6:.0f} MB. The gradients that are returned are {returned / first['peak_bytes_before']:.3f} of it.", "",
             "| at most | the step | more work | live peak MB | share | target |", "|--:|---|--:|--:|--:|--:|"]
    for (bound, way), d in plans.items():
        lines.append(f"| {bound} | {way} | {100 * d['overhead']:.1f} % | {d['peak_bytes_after'] / 1e6:.0f} | {d['peak_bytes_after'] / d['peak_bytes_before']:.3f} | {TARGETS[bound]} |")
    text = "\n".join(lines) + "\n"
    if a.out:
        tables.keep(a.out, "fastsa.md", text)
    print(text)


if __name__ == "__main__":
    main()
