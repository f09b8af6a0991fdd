#!/usr/bin/env python3
"""What each stage of the planner is worth, as docs/results/planner.md and .json.

    make build ort
    scripts/planner.py --out docs/results

Makes training graphs of the zoo (transformers of three sizes, an encoder, stacks of
linear layers, a step in micro-batches) and of testdata/models (a convolutional network with skips, a recurrent
one, foreign joint graphs), with and without an optimizer, writes their planning
problems with `remat plan -d dump`, and runs `go test ./planner -bench Stages` on them.
--keep DIR leaves the problems there; --stages and --numbers go to the benchmark;
--measured F.json makes the page of figures that the benchmark wrote before.
Standard library only.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SAMPLES = os.path.join(ROOT, "testdata", "models")
BEGIN, END = "<!-- measured -->", "<!-- end of what is measured -->"

# name: zoo model and sizes, optimizer, flags of plan
ZOO = {
    "gpt2-tiny-sgd": ("gpt2-tiny", "sgd", ""),
    "gpt2-1x512-sgd": ("gpt2 --batch 1 --seq 512", "sgd", ""),
    "gpt2-1x1024-adamw": ("gpt2 --batch 1 --seq 1024", "adamw", ""),
    "gpt2-1x1024-slices": ("gpt2 --batch 1 --seq 1024", "none", "--chunk-loss auto"),
    "gpt2-8x1024": ("gpt2 --batch 8 --seq 1024", "none", ""),
    "gpt2-8x1024-slices": ("gpt2 --batch 8 --seq 1024", "none", "--chunk-loss auto"),
    "gpt2-8x1024-parts8": ("gpt2 --batch 8 --seq 1024", "none", "--chunk-loss 8 --tile auto"),
    "gpt2-8x1024-parts32": ("gpt2 --batch 8 --seq 1024", "none", "--chunk-loss 32 --tile auto"),
    "gpt2-8x1024-batches8": ("gpt2 --batch 8 --seq 1024", "none", "--micro-batches 8 --chunk-loss 4"),
    "gpt2-xl-1x1024-sgd": ("gpt2-xl --batch 1 --seq 1024", "sgd", ""),
    "encoder-sgd": ("encoder", "sgd", ""),
    "heavy40-sgd": ("heavy --layers 40 --batch 64", "sgd", ""),
    "mlp": ("mlp", "none", ""),
}
FORWARD = ["resnet18_like.ts", "lstm_char.ts", "seq20_relu.dyn", "llama_tiny.dyn", "bert_tiny.ts"]  # with SGD
JOINT = {"joint-gpt2-1x1024": "gpt2_small_b1s1024", "joint-gpt2-tiny-adamw": "gpt2_tiny_eager.step_adamw"}


def run(*command, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def problems(remat, folder):
    """Writes NAME.json into folder for every graph."""
    with tempfile.TemporaryDirectory() as work:
        def dump(name, train, flags=""):
            run(remat, "--quiet", "plan", train, "--strategy", "none", *flags.split(), "-d", "dump=d", cwd=work)
            shutil.move(os.path.join(work, "d", "problem.json"), os.path.join(folder, name + ".json"))
            shutil.rmtree(os.path.join(work, "d"))

        def derive(forward, optimizer):
            run(remat, "--quiet", "grad", forward, "--optimizer", optimizer, "-o", "train.onnx", cwd=work)
            return "train.onnx"

        for name, (model, optimizer, flags) in ZOO.items():
            run(remat, "--quiet", "model", *model.split(), "--no-weights", "-o", "f.onnx", cwd=work)
            dump(name, derive("f.onnx", optimizer), flags)
        for name in FORWARD:
            dump(name, derive(os.path.join(SAMPLES, name + ".onnx"), "sgd"))
        for name, file in JOINT.items():
            dump(name, os.path.join(SAMPLES, "joint", file + ".onnx"))


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def percent(x):
    return f"{100 * x:+.2f} %"


def page(found):
    """The measured part of the page."""
    mb = lambda n: f"{n / 1e6:.1f}" if n >= 1e7 else f"{n / 1e6:.3f}"
    rows = []
    for name, m in found["standard"].items():
        rows.append([name, mb(m["Plain"]["Peak"]), mb(m["Full"]["Peak"]), mb(m["Peaks"][0]), f"{100 * m['Work'][0]:.1f} %", f"{m['Seconds']:.2f}"])
    text = "**The graphs.** Peaks in MB of 10^6 bytes; the least peak that the search found, and its work.\n\n"
    text += table(["graph", "none", "full", "least", "more work", "CPU s"], rows)
    rows = []
    for stage, losses in found["without"].items():
        cells = []
        for key in ("Peak", "Work", "Least", "Plain", "Full", "Selective"):
            worst = max(losses, key=lambda l: l[key])
            mean = sum(l[key] for l in losses) / len(losses)
            cells.append(f"{percent(mean)}, {percent(worst[key])}" if abs(worst[key]) >= 5e-5 or abs(mean) >= 5e-5 else "0")
        early = sum(l["EarlyNodes"] for l in losses)
        rows.append([stage, *cells, f"{early:+d}", f"{sum(l['Seconds'] for l in losses):+.2f}"])
    text += "\n\n**Each stage left out.** Mean over the graphs, then the graph where it costs most.\n\n"
    text += table(["without", "peak at equal work", "work at equal peak", "least peak", "none", "full", "selective", "control edges in files", "CPU s"], rows)
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(ROOT, "bin", "remat"))
    p.add_argument("--out", help="folder of planner.md and planner.json")
    p.add_argument("--keep", help="folder for the problems")
    p.add_argument("--stages", default="", help="names of stages, comma-separated")
    p.add_argument("--numbers", action="store_true", help="halve and double every number too")
    p.add_argument("--measured", help="figures measured before")
    a = p.parse_args()
    found = json.load(open(a.measured)) if a.measured else None
    if found is None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = os.path.abspath(a.keep or temporary)
            os.makedirs(folder, exist_ok=True)
            problems(os.path.abspath(a.remat), folder)
            out = os.path.join(temporary, "found.out")
            run("go", "test", "./planner", "-run", "^$", "-bench", "Stages", "-benchtime", "1x", "-timeout", "60m",
                "-problems", folder, "-stages-out", out, "-stages", a.stages, *(["-numbers"] if a.numbers else []), cwd=ROOT)
            found = json.load(open(out))
    found["commit"] = found.get("commit") or run("git", "rev-parse", "--short", "HEAD", cwd=ROOT).strip()
    text = page(found)
    if not a.out:
        print(text)
        return
    path = os.path.join(a.out, "planner.md")
    old = open(path).read() if os.path.exists(path) else f"# planner\n\n{BEGIN}\n{END}\n"
    head, rest = old.split(BEGIN)
    tail = rest.split(END)[1]
    with open(path, "w") as f:
        f.write(f"{head}{BEGIN}\n\n`scripts/planner.py` at {found['commit']}.\n\n{text}\n\n{END}{tail}")
    for m in found["standard"].values():  # of the frontier, its ends
        m["Peaks"], m["Work"] = [m["Peaks"][0], m["Peaks"][-1]], [m["Work"][0], m["Work"][-1]]
    with open(os.path.join(a.out, "planner.json"), "w") as f:
        json.dump(found, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
