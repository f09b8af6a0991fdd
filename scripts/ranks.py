#!/usr/bin/env python3
"""Ranks: what each takes, what plans say of large models, what local training costs in loss.

    make build ort
    scripts/ranks.py --out docs/results

memory: GPT-2 124M by ranks and stages, predicted and measured, of each rank. Ends with 1 where
the two differ.
overlap: GPT-2 124M by two ranks under mpirun, gradients sent at the step's end and in buckets:
the share of the time of sending in which a rank computes. Needs Open MPI.
plans: advise --ranks for GPT-2 XL on 4 x 24 GiB, and for the shape of Llama 7B, exported from
fake tensors with its weights in a sparse file, on 8 x 80 GiB. Needs PyTorch and transformers.
diloco, outer: local training from a common start, beside steps (ranks_local.py): 19 M parameters,
and several rates and outer optimizers of a small model.
sync: a GPT-2 of 2 layers, 128 wide, on bytes of text, by 4 ranks of 8 x 64 tokens, 480 steps:
gradients summed every step, and several outer optimizers every 16 steps; validation on the
text's last tenth. The text is this project's documentation unless --text names files.

--out writes ranks.md from ranks.json, where each part is kept with its commit, as soon as it is
made; --only makes some parts, or none, and leaves the others as they were. --work keeps the runs of diloco
and outer, and goes on where an earlier start of the script was ended.
"""
import argparse
import contextlib
import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import ranks_local
import tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)) + sorted(glob.glob(os.path.join(ROOT, "*.md")))
TRAIN = "--shuffle --steps 480 --lr 1e-3 --warmup 20 --schedule cosine --val 10%"
WAYS = [("step", ""), ("local=16", "--outer-lr 1 --outer-momentum 0"), ("local=16", "--outer-lr 1 --outer-momentum 0.3"),
        ("local=16", "--outer-lr 0.7 --outer-momentum 0.5"), ("local=16", "--outer-lr 0.7 --outer-momentum 0.9")]
PLANS = [
    ("GPT-2 XL, 1 x 1024 tokens a rank, 4 ranks of 24 GiB, links of 10 Gbit/s, steps of 20 s assumed",
     "advise gpt2-xl --batch 1 --seq 1024 --memory 24GiB --ranks 4 --link 10Gbit/s --step-seconds 20 --provider cpu"),
    ("The shape of Llama 7B, 1 x 1024 tokens a rank, 8 ranks of 80 GiB, links of 100 Gbit/s, steps of 10 s assumed",
     "advise llama.onnx --memory 80GiB --ranks 8 --link 100Gbit/s --step-seconds 10 --provider cpu"),
]


def remat(program, line, cwd):
    """The JSON document of a command, whose words are split at spaces."""
    done = subprocess.run([program, "--quiet", "--json", *line.split()], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"remat {line}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def sync(program, o, dir):
    data = np.frombuffer(b"".join(open(f, "rb").read() for f in o.text), dtype=np.uint8)
    subprocess.run([program, *"model gpt2-tiny --layers 2 --hidden 128 --heads 4 --vocab 256 --seq 64 --batch 8 -o m.onnx".split()], cwd=dir, check=True, capture_output=True)
    data.astype(np.uint16).tofile(os.path.join(dir, "bytes.bin"))
    rows = []
    for i, (way, outer) in enumerate(WAYS):
        line = f"train m.onnx --tokens bytes.bin {TRAIN} --ranks 4 --sync {way} {outer} -o sync{i}"
        d = remat(program, line, dir)
        rows.append({"sync": way, "outer": outer.replace("--outer-", ""), "val_loss": d["val_loss"], "tokens": d["tokens"], "bytes_sent": d["ranks"]["bytes_sent"], "command": line})
    return rows


def memory(program, _, dir):
    subprocess.run([program, *"model gpt2 --batch 0 --seq 0 -o gpt2.onnx".split()], cwd=dir, check=True, capture_output=True)
    np.random.default_rng(1).integers(0, 50257, 8192).astype(np.uint16).tofile(os.path.join(dir, "tokens.bin"))
    ways = [(f"{batch} x {seq}", way, f"--dim batch={batch},seq={seq} --ranks 2 {flags}")
            for batch, seq in ((1, 512), (2, 256))
            for way, flags in (("step", "--sync step"), ("step, 4 buckets", "--buckets 4"), ("shard", "--sync shard"), ("local=1", "--sync local=1"))]
    ways += [("2 runs of 1 x 256", f"pipeline {k}", f"--dim batch=1,seq=256 --pipeline {k} --accumulate 2") for k in (2, 4)]
    rows = []
    for size, way, flags in ways:
        line = f"train gpt2.onnx --tokens tokens.bin --steps 1 {flags} -o run"
        d = remat(program, line, dir)
        for r in d["each_rank"]:
            rows.append({"size": size, "way": way, "command": line, **r})
        print(f"{size}, {way}", file=sys.stderr, flush=True)
        subprocess.run(["rm", "-rf", "run"], cwd=dir, check=True)
    return rows


def overlap(program, _, dir):
    subprocess.run([program, *"model gpt2 --batch 0 --seq 0 -o gpt2.onnx".split()], cwd=dir, check=True, capture_output=True)
    np.random.default_rng(1).integers(0, 50257, 8192).astype(np.uint16).tofile(os.path.join(dir, "tokens.bin"))
    rows = []
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for flags in ("", "--buckets 2", "--buckets 4", "--buckets 8"):
        line = f"train gpt2.onnx --dim batch=1,seq=256 --tokens tokens.bin --steps 3 --gradient-norm=false --threads 1 {flags} -o run"
        done = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", program, "--quiet", "--json", *line.split()], cwd=dir, env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"mpirun remat {line}: {done.stderr.strip()}")
        r = json.loads(done.stdout)["ranks"]
        rows.append({"flags": flags, "command": line, **{k: r[k] for k in ("syncs", "sync_bytes", "bytes_sent", "held_bytes", "predicted_held_bytes", "send_seconds", "overlapped")}})
        print(f"overlap {flags}", file=sys.stderr, flush=True)
        subprocess.run(["rm", "-rf", "run"], cwd=dir, check=True)
    return rows


def llama(path, seq=1024):
    """Exports the shape of Llama 7B, whose numbers are zeros that take no room on the disk."""
    import onnx_ir
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False))  # whose defaults are 7B's

        def forward(self, input_ids, labels):
            return self.model(input_ids=input_ids, labels=labels).loss

    with FakeTensorMode(allow_non_fake_inputs=True):
        ids = torch.zeros(1, seq, dtype=torch.int64)
        made = torch.onnx.export(Loss(), (), kwargs={"input_ids": ids, "labels": ids.clone()}, dynamo=True, optimize=False, verbose=False)
    weights, at = os.path.basename(path) + ".weights", 0
    for v in made.model.graph.initializers.values():
        t = v.const_value
        v.const_value = onnx_ir.ExternalTensor(weights, at, t.nbytes, t.dtype, shape=t.shape, name=v.name, base_dir=os.path.dirname(path))
        at += -(-t.nbytes // 4096) * 4096
    with open(os.path.join(os.path.dirname(path), weights), "wb") as f:
        f.truncate(at)
    onnx_ir.save(made.model, path)


def plans(program, _, dir):
    llama(os.path.join(dir, "llama.onnx"))
    rows = []
    for what, line in PLANS:
        d = remat(program, line, dir)
        rows.append({"what": what, "command": line, "need": d["need"], "ranks": d["ranks"]})
        print(what, file=sys.stderr, flush=True)
    return rows


def sync_table(rows):
    text = "## Local training\n\nGPT-2 of 2 layers, 128 wide, bytes of text, 4 ranks of 8 x 64 tokens a step, 480 steps, from scratch.\n\n"
    text += "| --sync | outer | validation loss | MB sent by rank 0 |\n| --- | --- | ---: | ---: |\n"
    for r in rows:
        text += f"| {r['sync']} | {r['outer'] or '–'} | {r['val_loss']:.4f} | {r['bytes_sent'] / 1e6:.1f} |\n"
    return text


PAIRS = ("live_peak_bytes", "session_bytes", "held_bytes")


def memory_table(rows):
    text = "## Memory of each rank\n\nGPT-2 124M with AdamW, one step, all ranks in one process; bytes, predicted and measured. In all: parameters, state, feeds,\n"
    text += "sessions, live peak and what is held beside, measured. Sent: by the model, and counted, of rank 0, which gives nobody its state;\n"
    text += "local training sends a byte for the state that was saved and 48 at the end. Buckets take more than `step`: what graphs leave for each\n"
    text += "other, with the gradient of the tied embedding among it, is more than the sums that need not be held.\n\n"
    text += "| batch | way | rank | live peak | | session | | held beside | | in all | sent | |\n"
    text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    for r in rows:
        figures = [x for k in PAIRS for x in (r["predicted_" + k], r[k])]
        figures.append(sum(r[k] for k in ("parameter_bytes", "state_bytes", "feed_bytes", *PAIRS)))
        figures += [r["sync_bytes"], r["bytes_sent"]] if r["rank"] == 0 else ["", ""]
        text += f"| {r['size']} | {r['way']} | {r['rank']} | " + " | ".join(f"{x:,}" if x != "" else "" for x in figures) + " |\n"
    return text


def overlap_table(rows):
    text = "## Sending while computing\n\nGPT-2 124M, 1 x 256 tokens a rank, 2 ranks under mpirun on one machine. Shares of time are of a machine that had other work.\n\n"
    text += "| gradients sent | by the model, a step | sent, a step | seconds of sending | computing in |\n| --- | ---: | ---: | ---: | ---: |\n"
    for r in rows:
        shares = f"{r['send_seconds']:.2f} | {100 * r['overlapped']:.0f} %" if r["overlapped"] is not None else "| none"
        text += f"| {r['flags'].replace('--buckets ', 'in buckets: ') or 'at the end'} | {r['sync_bytes']:,} | {r['bytes_sent'] // r['syncs']:,} | {shares} |\n"
    return text


def plans_table(rows):
    text = "## Plans for machines that are not here\n\nPredicted, on paper: nothing ran. AdamW, float32, the CPU's kernels. The time of a step is assumed, for\n"
    text += "the efficiency. A pipeline has four micro-batches a stage.\n"
    for r in rows:
        text += f"\n{r['what']}. One rank alone, with nothing done about it, needs {r['need']['total_bytes'] / 2**30:.2f} GiB:\n\n"
        text += "| --sync | the fullest rank takes | work again | fits | sends | every | seconds | efficiency |\n| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n"
        for a in r["ranks"]:
            if a["total_bytes"] is None:
                text += f"| {a['sync']} | {a['remark']} | | | | | | |\n"
                continue
            text += f"| {a['sync']} | {a['total_bytes'] / 2**30:.2f} GiB | {100 * a['overhead']:.1f} % | {'yes' if a['fits'] else 'no'} | {a['sync_bytes'] / 2**30:.2f} GiB | {a['steps_between']} | {a['sync_seconds']:.2f} | {100 * a['efficiency']:.1f} % |\n"
    return text


def local(name):
    return lambda program, o, dir: ranks_local.make(name, remat, program, o, dir), lambda rows: ranks_local.table(name, rows)


PARTS = {"memory": (memory, memory_table), "overlap": (overlap, overlap_table), "plans": (plans, plans_table),
         **{name: local(name) for name in ranks_local.SETUPS}, "sync": (sync, sync_table)}


def page(parts):
    made = ", ".join(f"{name} at {parts[name]['commit']}" for name in PARTS if name in parts)
    text = f"# Ranks\n\n`scripts/ranks.py` made this: {made}. Ranks in one process have the bits of those under `mpirun`.\n"
    for name, (_, table) in PARTS.items():
        if name not in parts:
            continue
        p = parts[name]
        start = "mpirun -n 2 remat " if name == "overlap" else "remat "
        lines = dict.fromkeys(start + " ".join(r["command"].split()) for r in p["rows"])
        text += f"\n{table(p['rows'])}\n```\n" + "\n".join(lines) + "\n```\n"
        text += f"\n{p['note']}\n" if "note" in p else ""
    return text


def keep(out, parts):
    if out:
        tables.keep(out, "ranks.md", page(parts))
        tables.keep(out, "ranks.json", parts)


def folder(o, name):
    """Where a part runs: the folder goes with it unless --work keeps it."""
    if not o.work or name not in ranks_local.SETUPS:
        return tempfile.TemporaryDirectory()
    dir = os.path.abspath(os.path.join(o.work, name))
    os.makedirs(dir, exist_ok=True)
    return contextlib.nullcontext(dir)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(ROOT, "bin", "remat"))
    p.add_argument("--text", nargs="*", default=TEXT)
    p.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    p.add_argument("--commit", default=tables.commit(), help="of the program (default: that of the working tree)")
    p.add_argument("--work", help="folder for the runs of diloco and outer")
    p.add_argument("--jobs", type=int, default=1, help="how many of these run at a time")
    p.add_argument("--out")
    o = p.parse_args()
    kept = os.path.join(o.out, "ranks.json") if o.out else ""
    parts = json.load(open(kept)) if kept and os.path.exists(kept) else {}
    for name in (name for name in PARTS if name in o.only):
        with folder(o, name) as dir:
            rows = PARTS[name][0](os.path.abspath(o.remat), o, dir)
        commits = dict.fromkeys(r["commit"] for r in rows if "commit" in r)
        parts[name] = {"commit": " and ".join(commits) or o.commit, "rows": rows}
        keep(o.out, parts)
    keep(o.out, parts)
    print(page(parts))
    differ = [r for r in parts.get("memory", {"rows": []})["rows"] if any(r["predicted_" + k] != r[k] for k in PAIRS)]
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
