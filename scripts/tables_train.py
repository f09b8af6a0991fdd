"""Tables of scripts/tables.py that train: what accumulation costs, and what it gives."""
import array
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MB = lambda n: f"{n / 1e6:.1f}"
PERCENT = lambda x: f"{100 * x:.1f} %"

NOTE = """The text is the project's own documentation, a token a byte. An update of one row takes the
same sequences as an update of its pair: a mean of micro-batches' gradients is the gradient of the
batch but for the last bits. "losses apart" is the largest difference of a loss as a share of
it. "sums" is what accumulation adds: one set of gradients, whatever the
number of runs; the rest of a step takes what a micro-batch takes. Each run also reads and writes
sums, parameters and state once, so its time is more than its share of the batch's."""

RECIPES = """"in all" is parameters, optimizer state, feeds and the live peak; "process" is the largest
resident size of the whole process, planning and validation included. "reserved" is
what the allocator keeps after a step, perhaps less than the peak. "step s" is the median
without the first step, "CPU s" the processor time of a step, which other work on the machine
changes less, and "of fp32" is of that. On the CPU, float16 is emulated between casts: values
exist in both types, and this recipe is for a GPU. "optimized" clips by the norm of the step
before, which the first step has not: so its losses are others."""


OPTIMIZERS = """"everything" is parameters, state, feeds, session and the live peak of a step with the update in it, written
by `--strategy least`; "bytes a parameter" are of parameters and state. "predicted" says that live peak, session
and reservation were foretold to the byte."""


def optimizers(lab):
    """What each optimizer holds of GPT-2 124M, 1 x 1024 tokens."""
    small = ["--layers=2", "--hidden=64", "--heads=4", "--vocab=512", "--seq=64"] if lab.a.small else ["--seq=1024"]
    rows = []
    for name in ("sgd", "lion", "adamw", "adamw8bit", "muon", "adafactor", "apollo-mini"):
        train = lab.train(name, ["gpt2", "--batch=1", *small], name)
        file = lab.rewrite(train, "--strategy", "least")
        m, trained = lab.json("run", file, "--steps", "2")["memory"], lab.json("inspect", file)["trained"]
        exact = all(m[k] == m["predicted_" + k] for k in ("live_peak_bytes", "session_bytes", "reserved_bytes"))
        rows.append({"optimizer": name, "state MB": MB(m["state_bytes"]), "bytes a parameter": f"{(trained['bytes'] + m['state_bytes']) / trained['elements']:.2f}",
                     "live peak MB": MB(m["live_peak_bytes"]), "everything MB": MB(m["total_peak_bytes"]), "predicted": "exact" if exact else "NOT exact"})
        print(" | ".join(rows[-1].values()), file=sys.stderr, flush=True)
    return [("GPT-2 " + ("small widths" if lab.a.small else "124M, 1 x 1024 tokens"), rows)]


def tokens(lab, name):
    """The documentation as raw tokens, and how many."""
    text = b""
    docs = os.path.join(HERE, "..", "docs")
    for file in sorted(f for f in os.listdir(docs) if f.endswith(".md")):
        with open(os.path.join(docs, file), "rb") as f:
            text += f.read()
    with open(lab.at(name), "wb") as f:
        f.write(array.array("H", list(text)).tobytes())


def trained(lab, folder, *flags):
    """The document of a training, and its log."""
    d = lab.json("train", "model.onnx", "-o", folder, "--tokens", "tokens.bin", *flags)
    with open(os.path.join(lab.at(folder), "log.jsonl")) as f:
        return d, [r for r in map(json.loads, f) if "loss" in r]


def accumulate(lab):
    """Batches of 8, 16 and 32 in one run, and in micro-batches of 2."""
    steps, seq = ("4", "32") if lab.a.small else ("20", "64")
    width = ["--layers=2", "--hidden=64", "--heads=4"] if lab.a.small else ["--layers=4", "--hidden=128", "--heads=4"]
    lab.remat("model", "gpt2", *width, "--vocab=512", f"--seq={seq}", "--batch=0", "--seed=1", "-o", "model.onnx")
    tokens(lab, "tokens.bin")
    rows = []
    for runs in (4, 8, 16):
        whole = None
        for micro, k in ((2 * runs, 1), (2, runs)):
            flags = ["--dim", f"batch={micro}", "--accumulate", str(k), "--steps", steps, "--optimizer", "adamw", "--lr", "1e-3", "--shuffle"]
            d, log = trained(lab, f"of{2 * runs}x{k}", *flags)
            m, losses = d["memory"], [r["loss"] for r in log]
            seconds = sorted(r["seconds"] for r in log[1:])
            if k == 1:
                whole = m, losses
            apart = max(abs(a - b) / abs(b) for a, b in zip(losses, whole[1]))
            rows.append({
                "update": f"{micro} x 1" if k == 1 else f"{micro} x {k} runs", "live peak MB": MB(m["live_peak_bytes"]),
                "sums MB": MB(m["state_bytes"] - whole[0]["state_bytes"]) if k > 1 else "-", "state MB": MB(m["state_bytes"]),
                "in all MB": MB(m["parameter_bytes"] + m["state_bytes"] + m["feed_bytes"] + m["live_peak_bytes"]),
                "update s": f"{seconds[len(seconds) // 2]:.3f}", "loss": f"{losses[0]:.4f} to {losses[-1]:.4f}",
                "losses apart": "-" if k == 1 else f"{apart:.1e}",
            })
    return [(f"GPT-2 of {width[0][9:]} layers of {width[1][9:]}, {seq} tokens, AdamW, {steps} updates: whole batches, and micro-batches of 2", rows)]


def say(text):
    print(text, file=sys.stderr, flush=True)


def recipes(lab):
    """One training with each recipe, from the same weights on the same batches."""
    a, rows = lab.a, []
    small = ["--layers=2", "--hidden=64", "--heads=4"] if a.small else []
    seq = 32 if a.small else a.seq
    lab.remat("model", "gpt2", *small, f"--batch={a.batch}", f"--seq={seq}", "--no-weights", "-o", "gpt2.onnx")
    root = os.path.join(HERE, "..")
    with open(lab.at("docs.txt"), "w") as out:
        for name in ["README.md", *sorted(os.path.join("docs", n) for n in os.listdir(os.path.join(root, "docs")) if n.endswith(".md"))]:
            with open(os.path.join(root, name)) as f:
                out.write(f.read())
    shutil.copytree(os.path.join(root, "recipes"), lab.at("recipes"))
    steps, begin = a.train_steps, time.time()
    for name in ("fp32", "fp16", "optimized"):
        say(f"training with {name}.yaml, {steps} steps ({time.time() - begin:.0f} s so far)")
        d, busy = lab.watched(os.path.join(name, "log.jsonl"), "train", "gpt2.onnx", "--config", f"recipes/{name}.yaml",
                              "--text", "docs.txt", "--steps", str(steps), "--warmup", "1", "-o", name)
        with open(lab.at(os.path.join(name, "log.jsonl"))) as f:
            log = [json.loads(line) for line in f]
        done = [l for l in log if "loss" in l]
        mem, seconds = d["memory"], sorted(l["seconds"] for l in done[1:] or done)
        median = seconds[len(seconds) // 2]
        work = (busy[steps] - busy[1]) / (steps - 1) if steps in busy and 1 in busy and steps > 1 else None
        total = mem["parameter_bytes"] + mem["state_bytes"] + mem["feed_bytes"] + mem["live_peak_bytes"]
        if not rows:
            first = total, work, d["loss_last"]
        rows.append({
            "recipe": name, "live peak MB": MB(mem["live_peak_bytes"]), "in all MB": MB(total),
            "saved": PERCENT(1 - total / first[0]) if rows else "-",
            "reserved MB": MB(max(l["reserved_bytes"] for l in done)), "process MB": MB(mem["rss_peak_bytes"] or 0),
            "step s": f"{median:.2f}", "CPU s": f"{work:.2f}" if work else "-", "of fp32": f"{work / first[1]:.2f}" if work and first[1] else "-",
            "first loss": f"{d['loss_first']:.4f}", "last loss": f"{d['loss_last']:.4f}", "off by": f"{abs(d['loss_last'] / first[2] - 1):.1e}",
            "validation": f"{d['val_loss']:.4f}", "skipped": str(d["skipped_steps"]),
        })
        say(" | ".join(rows[-1].values()))
        shutil.rmtree(lab.at(name))
    tokens = a.batch * (seq - 1)
    return [(f"GPT-2 {'of small widths' if a.small else '124M'}, {a.batch} x {seq} tokens, {steps} steps of {tokens} predicted tokens, from the zoo's weights", rows)]
