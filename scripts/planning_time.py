#!/usr/bin/env python3
"""Where the time of planning goes, as docs/results/planning_time.md.

    pip install -r scripts/requirements.txt
    make build ort
    scripts/planning_time.py [--only GLOB]... [--before OTHER_REMAT] [--out docs/results]

For GPT-2 124M and XL, and for exports of five families, each with AdamW: `remat rewrite`
with --strategy optimal and, --budget given, within that share of the peak. Of each command
its CPU time, that part of it which ONNX Runtime's sessions take (by the CPU profile that
remat writes), and how many sessions it opened; then the CPU time that loading the written
file takes by itself, with one thread, at the level that remat runs steps at and at ONNX
Runtime's default level. Everything is timed --turns times, in turns, and its median taken. --before times
another build of remat beside this one: the machine's speed moves, a ratio does
less. --work keeps the graphs. Everything is CPU time, the user's and the system's, so a busy machine makes all of it
longer, but not in proportion to what else it does.
"""
import argparse
import fnmatch
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BEGIN, END = "<!-- measured -->", "<!-- end of what is measured -->"
ZOO = {"gpt2 124M 8 x 1024": "gpt2 --batch 8 --seq 1024", "gpt2 XL 1 x 1024": "gpt2-xl --batch 1 --seq 1024"}


def exports():
    """name: how to make the model, the exporter, flags of grad."""
    import torch
    import family_models
    import forward_models as base

    def gemma3():
        return base.causal("Gemma3TextConfig", "Gemma3ForCausalLM", num_key_value_heads=2, head_dim=16, sliding_window=4, num_hidden_layers=6)

    def mamba2():
        return family_models.sequential("Mamba2Config", "Mamba2ForCausalLM", num_hidden_layers=3, state_size=8, num_heads=4, head_dim=16,
                                        n_groups=1, chunk_size=4, conv_kernel=3)

    def whisper():
        import transformers

        c = transformers.WhisperConfig(vocab_size=67, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                                       encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
                                       dropout=0.0, use_cache=False, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                       attn_implementation="eager")
        return base.Named(transformers.WhisperForConditionalGeneration(c), ["input_features", "labels"], None), \
            dict(input_features=torch.randn(2, 8, 32), labels=base.ids(seq=7))

    def efficientnet():
        import timm

        return base.images(timm.create_model("efficientnet_b0", num_classes=10, drop_rate=0.0), size=64)

    return {"Gemma 3, 6 layers": (gemma3, "dynamo", ()), "Whisper, 2 + 2 layers": (whisper, "dynamo", ("--frozen", "*.encoder.embed_positions.*")),
            "Mamba 2, 3 layers": (mamba2, "dynamo", ()), "diffusion U-Net": (family_models.sd_unet, "dynamo", ()),
            "EfficientNet-B0": (efficientnet, "ts", ())}


def cpu():
    """The CPU time of what was run so far, in seconds."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def timed(command, cwd=None):
    """A command's output and its CPU time."""
    before = cpu()
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return done, cpu() - before


def make(remat, name, folder):
    """Writes folder/train.onnx, if it is not there."""
    train = os.path.join(folder, "train.onnx")
    if os.path.exists(train):
        return train
    os.makedirs(folder, exist_ok=True)
    flags = ()
    if name in ZOO:
        timed([remat, "--quiet", "model", *ZOO[name].split(), "--no-weights", "-o", "model.onnx"], folder)
    else:
        sys.path.insert(0, HERE)
        import families
        import family_models

        build, exporter, flags = exports()[name]
        model, feeds = family_models.Model(name, "", build, exporter=exporter).build(False)
        families.to_onnx(model, feeds, os.path.join(folder, "model.onnx"), exporter)
    timed([remat, "--quiet", "grad", "model.onnx", "--optimizer", "adamw", *flags, "-o", "train.onnx"], folder)
    return train


LEVELS = {"steps": "ORT_ENABLE_BASIC", "default": "ORT_ENABLE_ALL"}
LOAD = """
import resource, sys, onnxruntime as o
o.set_default_logger_severity(4)
s = o.SessionOptions()
s.graph_optimization_level, s.intra_op_num_threads = getattr(o.GraphOptimizationLevel, sys.argv[2]), 1
cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
before = cpu()
o.InferenceSession(sys.argv[1], s, providers=["CPUExecutionProvider"])
print(cpu() - before)
"""


def in_sessions(profile):
    """The share of a CPU profile's samples that lies in making sessions."""
    text = subprocess.run(["go", "tool", "pprof", "-top", "-cum", "-unit=ms", "-nodecount=1000000", "-nodefraction=0", profile],
                          capture_output=True, text=True, check=True).stdout
    total = float(re.search(r"Total samples = ([\d.]+)", text)[1]) * (1000 if "ms (" not in text.split("Total samples")[1][:20] else 1)
    inside = sum(float(m[1]) for m in re.finditer(r"([\d.]+)ms\s+\S+\s+\S*_Cfunc_ortCreateSession\w*", text))
    return inside / total if total else 0


def measure(remat, before, folder, flags, turns):
    """Medians of so many turns, in each of which everything is timed once."""
    command = ["rewrite", "train.onnx", *flags]
    seconds, given, loading = [], [], {k: [] for k in LEVELS}
    for _ in range(turns):
        if before:
            given.append(timed([before, *command, "-o", "before.onnx"], folder)[1])
        done, took = timed([remat, *command, "-o", "written.onnx", "-d", "sessions"], folder)
        seconds.append(took)
        for k, level in LEVELS.items():
            loading[k].append(float(timed([sys.executable, "-c", LOAD, "written.onnx", level], folder)[0].stdout))
    profile = os.path.join(folder, "cpu")
    timed([remat, *command, "-o", "written.onnx", "-d", "cpu=" + profile], folder)
    nodes = int(re.search(r"(\d+) nodes in order", done.stdout)[1])
    said = done.stdout.strip().splitlines()[-1].split(": ", 1)[1]
    median = statistics.median(seconds)
    return {"seconds": median, "sessions": len(re.findall(r"^session \d+:", done.stderr, re.M)), "inside": median * in_sessions(profile), "nodes": nodes,
            "loading": {k: statistics.median(v) for k, v in loading.items()}, "before": statistics.median(given) if before else 0, "said": said}


def row(remat, before, name, flags, work, turns):
    folder = os.path.join(work, re.sub(r"\W+", "-", name))
    make(remat, name, folder)
    m = measure(remat, before, folder, flags, turns)
    cells = [name, " ".join(flags).replace("--strategy ", ""), f"{m['nodes']:,}", f"{m['sessions']}", f"{m['seconds']:.1f}", f"{m['inside']:.1f}",
             f"{m['seconds'] - m['inside']:.1f}"]
    for loading in m["loading"].values():
        cells += [f"{loading:.1f}", f"{m['seconds'] - loading:.1f}"]
    if before:
        cells.append(f"{m['seconds'] / m['before']:.2f}")
    print("| " + " | ".join(cells) + " |", m["said"], file=sys.stderr, flush=True)
    return cells + [m["said"].replace("live peak ", "")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(ROOT, "bin", "remat"))
    p.add_argument("--before", help="another build of remat, timed beside this one")
    p.add_argument("--only", action="append", help="names of graphs to take")
    p.add_argument("--budget", help="a budget to plan within too, such as 25%%")
    p.add_argument("--turns", type=int, default=3, help="how often everything is timed (default: 3)")
    p.add_argument("--work", help="folder that keeps the graphs")
    p.add_argument("--out", help="folder of planning_time.md")
    a = p.parse_args()
    remat, before = os.path.abspath(a.remat), a.before and os.path.abspath(a.before)
    names = [n for n in [*ZOO, "Gemma 3, 6 layers", "Whisper, 2 + 2 layers", "Mamba 2, 3 layers", "diffusion U-Net", "EfficientNet-B0"]
             if not a.only or any(fnmatch.fnmatch(n, g) for g in a.only)]
    asked = [["--strategy", "optimal"]] + ([["--budget", a.budget]] if a.budget else [])
    with tempfile.TemporaryDirectory() as temporary:
        rows = [row(remat, before, n, flags, os.path.abspath(a.work or temporary), a.turns) for n in names for flags in asked]
    heads = ["graph", "asked", "nodes", "sessions", "all", "in sessions", "else", "loading", "beyond it", "loading, default level", "beyond that"] + (["of before"] if before else []) + ["live peak"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    text = f"`scripts/planning_time.py` at {commit}, on {os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[1]:.0f}, medians of {a.turns}.\n\n"
    text += "\n".join("| " + " | ".join(r) + " |" for r in [heads, ["---", "---"] + ["---:"] * (len(heads) - 3) + ["---"], *rows])
    if not a.out:
        print(text)
        return
    path = os.path.join(a.out, "planning_time.md")
    old = open(path).read() if os.path.exists(path) else f"# The time of planning\n\n{BEGIN}\n{END}\n"
    head, tail = old.split(BEGIN)[0], old.split(END)[1]
    with open(path, "w") as f:
        f.write(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")


if __name__ == "__main__":
    main()
