#!/usr/bin/env python3
"""Lines of production Go by package, at two commits, and why each package grew, as docs/results/lines.md.

    scripts/lines.py [--before COMMIT] [--out docs/results]

Production is what no test, example, tool for tests or generator makes: *.go without *_test.go,
testdata, examples, and files that say that they are generated. A package that grew by 100 lines
or more and has no reason in the table below ends the script with exit code 1.
Standard library and git only.
"""
import argparse
import collections
import os
import subprocess
import sys

import tables

LEAST = 100  # lines of growth that want a reason
# What was one package is set beside what it became.
MOVED = {"cmd/internal/flow": "internal/pipeline", "report": "internal/report"}
WHY = {
    ".": "the library: open, derive, plan, rewrite, predict, run",
    "cmd/remat": "train, eval, advise, sweep, split, apply, bundles, ranks, rehearsals; one flag table less",
    "internal/pipeline": "variants, candidates and files in place of the loops of flow; advice, budgets of layers, bundles, adapters, half types weighed, stages, shards",
    "internal/ranks": "what ranks hold and send, and in which order stages run",
    "internal/report": "training, advice, rehearsal, ranks and sweeps as text, JSON, page and picture",
    "internal/step": "one model of a step: roles, dependencies, translation, providers; eight passes walked on their own before",
    "internal/units": "sizes, times and counts in words, for report, commands and planner, each of which had its own",
    "onnx": "origin and control dependencies of a node in its metadata, places, dimensions",
    "onnx/traits": "facts of more operators, in one row each, and those of CUDA's kernels",
    "runtime/predict": "what ONNX Runtime knows of shapes, and what sessions keep on a device",
    "rewrite/upgrade": "operators of opsets 7 to 10",
    "ortmodel": "the slab, the device's arena, scratch of CUDA's kernels",
    "planner": "the knee, bounds of work, limits of layers; its own walks and tuning left it",
    "rewrite/adapter": "low-rank adapters: found, added, merged, exported",
    "rewrite/loss": "a loss for a model that was exported without one",
    "rewrite/unpack": "weights that ONNX Runtime packed in few bits, as standard operators",
    "rewrite/control": "the one builder of control dependencies, lifted and lowered",
    "rewrite/normalize": "what exporters write out and kernels compute at once; far logarithms, norms at 0, views that ONNX Runtime makes anew",
    "rewrite/optim": "seven optimizers beside SGD and AdamW's first form: lion, adafactor, apollo-mini, muon, adamw8bit",
    "rewrite/precision": "gradients that wait in half; casts cut where they raise the peak",
    "rewrite/quantize": "frozen weights in int8 and int4",
    "rewrite/stage": "graphs cut into stages and buckets",
    "rewrite/tile": "micro-batches, sums in slices, a workspace in bytes",
    "rewrite": "layers told from a few of them, what CUDA has no right kernel for, packed sequences, guards against the next fusion",
    "internal/ortest": "graphs as text, feeds and checks that all packages' tests share",
    "runtime": "slabs, rehearsals, what outputs share, providers",
    "runtime/mpi": "MPI, loaded where it is",
    "runtime/ort": "the slab's and the counting allocators, sessions that leave nothing",
    "runtime/ort/nulldevice": "CUDA without a device",
    "rewrite/grad": "rules of operators that exports have now",
    "train": "the loop: steps, evaluation, checkpoints, ranks, pipelines, memory",
    "train/data": "tokens, tables, images, archives, labels, shuffles that resume",
    "train/data/hf": "tokenizers and templates of chats",
    "train/watch": "what a training tells while it runs",
}


def count(commit):
    git = lambda *args: subprocess.run(["git", "-C", tables.HERE, *args], capture_output=True, check=True).stdout
    lines = collections.Counter()
    for line in git("ls-tree", "-r", "--full-tree", commit).decode().splitlines():
        digest, path = line.split()[2], line.split("\t")[1]
        if not path.endswith(".go") or path.endswith("_test.go") or "testdata/" in path or path.startswith("examples/"):
            continue
        text = git("cat-file", "blob", digest)
        if b"Code generated" not in text[:400]:
            package = os.path.dirname(path) or "."
            lines[MOVED.get(package, package)] += text.count(b"\n")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--before", default="1cdabd3", help="the commit that growth is counted from")
    p.add_argument("--out", help="folder for lines.md")
    a = p.parse_args()
    before, after = count(a.before), count("HEAD")
    grown = sorted(set(before) | set(after), key=lambda d: before[d] - after[d])
    silent = [d for d in grown if after[d] - before[d] >= LEAST and d not in WHY]
    rows = [{"package": d, "before": f"{before[d]:,}", "now": f"{after[d]:,}", "by": f"{after[d] - before[d]:+,}", "what grew": WHY.get(d, "") if after[d] > before[d] else ""}
            for d in grown if abs(after[d] - before[d]) >= LEAST]
    less = sum(before[d] - after[d] for d in grown if after[d] < before[d])
    text = f"""# Lines of production Go

`scripts/lines.py --out docs/results` at {tables.commit()}, beside {a.before}: {sum(before.values()):,} lines then, {sum(after.values()):,} now;
{less:,} fewer in the packages that shrank. Files that are generated, tests, and examples are not counted. What
cmd/internal/flow and report were is set beside the packages that they became.

{tables.text(rows)}
"""
    if a.out:
        tables.keep(a.out, "lines.md", text)
    print(text)
    if silent:
        sys.exit("no reason is given for: " + ", ".join(silent))


if __name__ == "__main__":
    main()
