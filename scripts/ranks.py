#!/usr/bin/env python3
"""Ranks: what local training costs in loss, and what each rank takes.

    make build ort
    scripts/ranks.py --out docs/results

sync: a GPT-2 of 2 layers, 128 wide, on bytes of text, by 4 ranks of 8 x 64 tokens, 480 steps:
gradients summed every step, and several outer optimizers every 16 steps; validation on the
text's last tenth. memory: GPT-2 124M by 2 ranks or stages, predicted and measured. Ends with 1 where the
two differ.

The text is this project's documentation unless --text names files. --out writes ranks.md and
ranks.json; --only sync or memory makes a part.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)) + sorted(glob.glob(os.path.join(ROOT, "*.md")))
TRAIN = "--shuffle --steps 480 --lr 1e-3 --warmup 20 --schedule cosine --val 10%"
WAYS = [("step", ""), ("local=16", "--outer-lr 1 --outer-momentum 0"), ("local=16", "--outer-lr 1 --outer-momentum 0.3"),
        ("local=16", "--outer-lr 0.7 --outer-momentum 0.5"), ("local=16", "--outer-lr 0.7 --outer-momentum 0.9")]


def remat(program, line, cwd):
    """The JSON document of a command, whose words are split at spaces."""
    done = subprocess.run([program, "--quiet", "--json", *line.split()], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"remat {line}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def sync(program, data, dir):
    subprocess.run([program, *"model gpt2-tiny --layers 2 --hidden 128 --heads 4 --vocab 256 --seq 64 --batch 8 -o m.onnx".split()], cwd=dir, check=True, capture_output=True)
    data.astype(np.uint16).tofile(os.path.join(dir, "bytes.bin"))
    rows = []
    for i, (way, outer) in enumerate(WAYS):
        line = f"train m.onnx --tokens bytes.bin {TRAIN} --ranks 4 --sync {way} {outer} -o sync{i}"
        d = remat(program, line, dir)
        rows.append({"sync": way, "outer": outer.replace("--outer-", ""), "val_loss": d["val_loss"], "tokens": d["tokens"], "bytes_sent": d["ranks"]["bytes_sent"], "command": line})
    return rows


def memory(program, dir):
    subprocess.run([program, *"model gpt2 --batch 0 --seq 0 -o gpt2.onnx".split()], cwd=dir, check=True, capture_output=True)
    np.random.default_rng(1).integers(0, 50257, 8192).astype(np.uint16).tofile(os.path.join(dir, "tokens.bin"))
    rows = []
    for batch, seq in ((1, 512), (2, 256)):
        for way, flags in (("step", "--ranks 2 --sync step"), ("shard", "--ranks 2 --sync shard"), ("local=1", "--ranks 2 --sync local=1"),
                           ("pipeline", "--pipeline 2 --accumulate 2")):
            line = f"train gpt2.onnx --dim batch={batch},seq={seq} --tokens tokens.bin --steps 1 {flags} -o memory{batch}{way}"
            d = remat(program, line, dir)
            m, r = d["memory"], d["ranks"]
            rows.append({"size": f"{batch} x {seq}", "sync": way, "command": line, "held": [r["predicted_held_bytes"], r["held_bytes"]],
                         "live": [m["predicted_live_peak_bytes"], m["live_peak_bytes"]], "session": [m["predicted_session_bytes"], m["session_bytes"]],
                         "parameters_and_state": m["parameter_bytes"] + m["state_bytes"], "sync_bytes": r["sync_bytes"], "bytes_sent": r["bytes_sent"]})
            subprocess.run(["rm", "-rf", f"memory{batch}{way}"], cwd=dir, check=True)
    return rows


def page(parts):
    text = "# Ranks\n\n`scripts/ranks.py` made this; all ranks in one process, whose bits are those under `mpirun`.\n"
    if parts.get("sync"):
        text += "\n## Local training\n\nGPT-2 of 2 layers, 128 wide, bytes of text, 4 ranks of 8 x 64 tokens a step, 480 steps, from scratch.\n\n"
        text += "| --sync | outer | validation loss | tokens | MB sent by rank 0 |\n| --- | --- | ---: | ---: | ---: |\n"
        for r in parts["sync"]:
            text += f"| {r['sync']} | {r['outer'] or '–'} | {r['val_loss']:.4f} | {r['tokens']} | {r['bytes_sent'] / 1e6:.1f} |\n"
    if parts.get("memory"):
        text += "\n## Memory of a rank\n\nGPT-2 124M with AdamW, 2 ranks; bytes, predicted and measured.\n\n"
        text += "| batch | --sync | live peak | | session | | held beside | | parameters and state | sent a time, by the model | sent |\n"
        text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        for r in parts["memory"]:
            figures = [*r["live"], *r["session"], *r["held"], r["parameters_and_state"], r["sync_bytes"], r["bytes_sent"]]
            text += f"| {r['size']} | {r['sync']} | " + " | ".join(str(x) for x in figures) + " |\n"
    commands = [r["command"] for rows in parts.values() for r in rows]
    return text + "\nThe commands:\n\n```\n" + "\n".join("remat " + " ".join(c.split()) for c in commands) + "\n```\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(ROOT, "bin", "remat"))
    p.add_argument("--text", nargs="*", default=TEXT)
    p.add_argument("--only", choices=["sync", "memory"])
    p.add_argument("--out")
    o = p.parse_args()
    data = np.frombuffer(b"".join(open(f, "rb").read() for f in o.text), dtype=np.uint8)
    parts = {}
    with tempfile.TemporaryDirectory() as dir:
        if o.only != "memory":
            parts["sync"] = sync(os.path.abspath(o.remat), data, dir)
        if o.only != "sync":
            parts["memory"] = memory(os.path.abspath(o.remat), dir)
    text = page(parts)
    print(text)
    if o.out:
        with open(os.path.join(o.out, "ranks.md"), "w") as f:
            f.write(text)
        with open(os.path.join(o.out, "ranks.json"), "w") as f:
            json.dump(parts, f, indent=1)
            f.write("\n")
    differ = [r for r in parts.get("memory", []) if any(r[k][0] != r[k][1] for k in ("live", "session", "held"))]
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
