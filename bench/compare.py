#!/usr/bin/env python3
"""GPT-2 in PyTorch and in stock ONNX Runtime, side by side on the CPU.

    pip install -r bench/requirements.txt
    make build ort
    bench/compare.py                          # 2 x 256 tokens
    bench/compare.py --batch 1 --seq 1024
    bench/compare.py --batch 4 --seq 64 --optimizer adamw
    bench/compare.py --by-operator            # where the time goes, on both sides
    bench/compare.py --rehearse               # our half on CUDA, without a GPU

Same weights, same batch, same threads, fp32, one process. The variants take
turns, step by step, so that a busy machine slows all of them. Times are medians
of CPU seconds (with one thread, what the step takes on an idle core); wall time
stands beside them; only ratios mean something. Peaks are bytes counted at the allocator on both
sides: parameters, optimizer state, and the largest sum of what a step has
allocated at one moment (returned gradients are in it). --json F writes all of
it. --rehearse measures memory on ONNX Runtime's CUDA provider without a GPU: no
numbers are computed, so there are no times, no losses, and no PyTorch.

remat's plain graph is what `remat grad` derives, put in order (strategy none);
the others are what --rewrite says, the least peak where nothing is said.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "scripts"))
import tables  # noqa: E402


def main():
    a = arguments()
    with tempfile.TemporaryDirectory(dir=a.keep) as folder:
        rows = (rehearse if a.rehearse else measure)(a, a.keep or folder)
    (print_rehearsed if a.rehearse else print_table)(a, rows)
    if a.json:
        tables.keep(*os.path.split(a.json), {"settings": vars(a), "environment": vars(a).get("environment"), "variants": rows})
    if a.rehearse:
        return
    losses = [r["loss"] for r in rows]
    if max(losses) - min(losses) > 1e-5 * abs(losses[0]):
        sys.exit(f"losses differ: {losses}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(layers=12, hidden=768, heads=12, vocab=50257, batch=2, seq=256, seed=0, threads=1).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--rounds", type=int, default=3, help="turns of every variant")
    p.add_argument("--attention", default="eager", choices=["eager", "sdpa"], help="of transformers")
    p.add_argument("--optimizer", default="none", choices=["none", "adamw"])
    p.add_argument("--opt", default="1", help="ONNX Runtime's optimization level")
    p.add_argument("--rewrite", action="append", help="flags of remat rewrite for one more variant; may be repeated")
    p.add_argument("--remat", default=os.path.join(HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--by-operator", action="store_true", help="profile a step of each variant too")
    p.add_argument("--no-torch", action="store_true", help="our half alone")
    p.add_argument("--rehearse", action="store_true", help="memory of our half on CUDA, without a GPU")
    p.add_argument("--keep", help="an existing folder for the files in between")
    p.add_argument("--json", help="write the numbers to this file")
    a = p.parse_args()
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    if a.rehearse and a.by_operator:
        sys.exit("--by-operator: not with --rehearse, which computes no numbers and takes no times")
    a.rewrite = a.rewrite or ["--strategy least"]
    return a


def measure(a, folder):
    ours = prepare(a, folder)
    theirs = [] if a.no_torch else torch_variants(a, folder)
    for v in theirs:
        v.step()  # warm-up, and the optimizer's state
        v.peak = v.live_peak()
        note(f"{v.name}: {mb(v.peak)} MB")
    for v in ours:
        v.timed()
    for v in theirs + ours:
        v.times = []
    for round_ in range(a.rounds):
        for v in theirs + ours:
            v.times.append(v.timed())
            note(f"round {round_ + 1}: {v.name} {v.times[-1][1]:.2f} CPU s")
    a.operators = operators(a, theirs, ours, folder) if a.by_operator else None
    return [torch_row(v) for v in theirs] + [our_row(v) for v in ours]


# What operators do, by their names on both sides; the rest is "other".
KINDS = {
    "matrix products": "Gemm MatMul FusedMatMul addmm mm bmm baddbmm",
    "softmax and loss": "Softmax LogSoftmax _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward",
    "elementwise": "Mul Add Sub Div Neg Pow Sqrt Tanh Exp Gelu FastGelu BiasGelu Sigmoid Where Cast Max Sum Equal Not And "
    "mul mul_ add add_ sub div div_ neg pow sqrt tanh tanh_backward exp gelu gelu_backward where masked_fill masked_fill_ fill_ zero_ addcdiv_ addcmul_ lerp_",
    "norms and sums": "LayerNormalization ReduceMean ReduceSum ReduceMax native_layer_norm native_layer_norm_backward sum mean",
    "copies": "Transpose Concat Split Slice Gather GatherElements ScatterElements ScatterND Expand Reshape Identity "
    "copy_ cat split clone contiguous index_select embedding_dense_backward index_add_ slice_backward gather",
}
KIND_OF = {op: kind for kind, ops in KINDS.items() for op in ops.split()}


def operators(a, theirs, ours, folder):
    """One step of each variant by kind of operator, in seconds."""
    import ortside

    columns, unknown = {}, {}
    for v in theirs + ours:
        table = v.by_operator() if v in theirs else ortside.by_operator(v.file, v.values, a.opt, a.threads, folder)
        columns[v.name] = column = dict.fromkeys([*KINDS, "other"], 0.0)
        for op, _, ms in table:
            column[KIND_OF.get(op, "other")] += ms / 1000
            if op not in KIND_OF:
                unknown[op] = unknown.get(op, 0) + ms / 1000
    print("\none step by kind of operator, profiled, in seconds\n")
    lines = [["", *columns]] + [[kind, *(f"{c[kind]:.2f}" for c in columns.values())] for kind in [*KINDS, "other"]]
    lines.append(["together", *(f"{sum(c.values()):.2f}" for c in columns.values())])
    print_lines(lines)
    most = sorted(unknown.items(), key=lambda x: -x[1])[:4]
    print("\nmost of the others: " + ", ".join(f"{op} {s:.2f}" for op, s in most))
    return columns


def note(text):
    print(text, file=sys.stderr, flush=True)


def remat(a, *args, **kw):
    done = subprocess.run([a.remat, "--quiet", "--threads", str(a.threads), "--opt", a.opt, *args], capture_output=True, text=True, **kw)
    if done.returncode:
        sys.exit(f"remat {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def graphs(a, folder, *flags):
    """The training graph, and its variants as (name, flags, file), written one by one."""
    at = lambda name: os.path.join(folder, name)
    shape = [f"--{k}={getattr(a, k)}" for k in ("layers", "hidden", "heads", "vocab", "batch", "seq", "seed")]
    remat(a, "model", "gpt2", *shape, *(["--no-weights"] if a.rehearse else []), "-o", at("forward.onnx"))
    remat(a, "grad", at("forward.onnx"), "-o", at("train.onnx"), "--optimizer", a.optimizer)
    for i, how in enumerate(["--strategy none"] + a.rewrite):
        file = at(f"variant{i}.onnx")
        remat(a, *flags, "rewrite", at("train.onnx"), *how.split(), "-o", file)
        yield "remat " + (how if i else "plain"), how, file


def rehearse(a, folder):
    rows = []
    for name, how, file in graphs(a, folder, "--provider", "cuda"):
        d = json.loads(remat(a, "--provider", "cuda", "--rehearse", "--json", "run", file))
        m = d["memory"]
        rows.append({
            **memory_row(name, m["parameter_bytes"], m["state_bytes"], m["live_peak_bytes"], m["output_bytes"]),
            "total_bytes": m["total_peak_bytes"], "predicted_live_peak_bytes": m.get("predicted_live_peak_bytes"),
            "reserved_bytes": m["reserved_bytes"], "device": d["device"], "rehearsed": True, "ort_version": d["ort_version"],
        })
        note(f"remat {how}: {mb(m['live_peak_bytes'])} MB")
    return rows


def prepare(a, folder):
    """The graphs, and the feeds that both sides read."""
    import numpy as np

    import ortside

    at = lambda name: os.path.join(folder, name)
    ids = np.random.default_rng(a.seed).integers(0, a.vocab, (a.batch, a.seq))
    np.savez(at("feeds.npz"), input_ids=ids, labels=ids)
    written = []
    for name, how, file in graphs(a, folder):
        document = run(a, file, folder)  # before anything else holds memory
        written.append((name, file, document))
        note(f"remat {how}: {mb(document['memory']['live_peak_bytes'])} MB")
    variants, weights, feeds = [], ortside.weights(at("forward.safetensors")), dict(np.load(at("feeds.npz")))
    for name, file, document in written:
        v = ortside.Variant(name, file, weights, feeds, a.opt, a.threads)
        v.file, v.document = file, document
        variants.append(v)
    return variants


def run(a, file, folder):
    return json.loads(remat(a, "--json", "run", file, "--feeds", os.path.join(folder, "feeds.npz"), "--lr", "0"))


def torch_variants(a, folder):
    import numpy as np

    try:
        import torch

        import torchside
    except ImportError as e:
        sys.exit(f"{e}; pip install -r bench/requirements.txt, or --no-torch")
    torch.set_num_threads(a.threads)
    a.environment = torchside.environment()
    feeds = np.load(os.path.join(folder, "feeds.npz"))
    batch = tuple(torch.from_numpy(feeds[k]) for k in ("input_ids", "labels"))
    config = dict(n_layer=a.layers, n_embd=a.hidden, n_head=a.heads, vocab_size=a.vocab)
    plain = torchside.Variant("PyTorch plain", os.path.join(folder, "forward.safetensors"), config, batch, False, a.attention, a.optimizer == "adamw")
    return [plain, torchside.Variant("PyTorch checkpointed", None, config, batch, True, shared=plain)]


def torch_row(v):
    return row(v.name, v.parameter_bytes(), v.state_bytes(), v.peak, v.parameter_bytes(), v.times)


def our_row(v):
    m = v.document["memory"]
    r = row(v.name, m["parameter_bytes"], m["state_bytes"], m["live_peak_bytes"], m["output_bytes"], v.times)
    r["total_bytes"] = m["total_peak_bytes"]
    r["predicted_live_peak_bytes"] = m.get("predicted_live_peak_bytes")
    r["ort_version"] = v.document["ort_version"]
    return r


def row(name, parameters, state, peak, returned, times):
    return {
        **memory_row(name, parameters, state, peak, returned),
        "seconds": statistics.median(t[0] for t in times), "cpu_seconds": statistics.median(t[1] for t in times),
        "all_seconds": [t[0] for t in times], "all_cpu_seconds": [t[1] for t in times], "loss": times[0][2],
    }


def memory_row(name, parameters, state, peak, returned):
    return {
        "name": name, "parameter_bytes": parameters, "state_bytes": state, "live_peak_bytes": peak,
        "total_bytes": parameters + state + peak, "returned_bytes": returned,
    }


def print_rehearsed(a, rows):
    print("\nrehearsed: no numbers were computed")
    print(f"GPT-2, {a.layers} layers, width {a.hidden}, {a.batch} x {a.seq} tokens, fp32, optimizer {a.optimizer}, CUDA, ONNX Runtime {rows[0]['ort_version']}, level {a.opt}\n")
    lines = [["", "live peak MB", "predicted MB", "total MB", "ratio", "reserved MB", "synchronizations", "kernels"]]
    for r in rows:
        lines.append([
            r["name"], mb(r["live_peak_bytes"]), mb(r["predicted_live_peak_bytes"]), mb(r["total_bytes"]),
            f"{r['total_bytes'] / rows[0]['total_bytes']:.2f}", mb(r["reserved_bytes"]),
            str(r["device"]["synchronizations"]), str(r["device"]["kernels"]),
        ])
    print_lines(lines)


def print_table(a, rows):
    base = rows[0]
    print(f"\nGPT-2, {a.layers} layers, width {a.hidden}, {a.batch} x {a.seq} tokens, fp32, optimizer {a.optimizer}, {a.threads} thread(s), {a.attention} attention")
    print(a.__dict__.setdefault("environment", "") + f", ONNX Runtime {rows[-1].get('ort_version', '')}, level {a.opt}\n")
    head = ["", "live peak MB", "counted MB", "ratio", "beyond gradients MB", "CPU s", "ratio", "wall s", "loss"]
    lines = [head]
    for r in rows:
        lines.append([
            r["name"], mb(r["live_peak_bytes"]), mb(r["total_bytes"]), f"{r['total_bytes'] / base['total_bytes']:.2f}",
            mb(r["live_peak_bytes"] - r["parameter_bytes"]) if a.optimizer == "none" else "-",
            f"{r['cpu_seconds']:.2f}", f"{r['cpu_seconds'] / base['cpu_seconds']:.2f}", f"{r['seconds']:.2f}", f"{r['loss']:.6f}",
        ])
    print_lines(lines)
    print(f"\nratios are to {base['name']}; counted = parameters + optimizer state + live peak")


def print_lines(lines):
    widths = [max(len(l[i]) for l in lines) for i in range(len(lines[0]))]
    for l in lines:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(l, widths))))


def mb(n):
    return f"{n / 1e6:.1f}"


if __name__ == "__main__":
    main()
