"""Tables of scripts/tables.py that train: what accumulation costs, and what it gives."""
import array
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
MB = lambda n: f"{n / 1e6:.1f}"

NOTE = """The text is the project's own documentation, a token a byte. An update of one row takes the
same sequences as an update of its pair: a mean of micro-batches' gradients is the gradient of the
batch but for the last bits. "losses apart" is the largest difference of a loss as a share of
it. "sums" is what accumulation adds: one set of gradients, whatever the
number of runs; the rest of a step takes what a micro-batch takes. Each run also reads and writes
sums, parameters and state once, so its time is more than its share of the batch's."""


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
            flags = ["--dim", f"batch={micro}", "--accumulate", str(k), "--steps", steps, "--optimizer", "adamw", "--lr", "1e-3"]
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
