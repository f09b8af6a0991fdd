#!/usr/bin/env python3
"""What frozen weights in eight and four bits cost, and what they save.

    make build ort
    scripts/quantize.py                       a Llama with adapters, a GPT-2 whose last layer trains
    scripts/quantize.py --out docs/results    writes quantize.md and quantize.json too

Trains both models from a seed on this project's documents, byte by byte, so that
their weights mean something; then, on bytes that they did not see, with frozen
weights in float32, int8 and int4 (remat grad --quantize-frozen):

    loss       of the model as it was trained, whose base is frozen
    gradients  of what trains (adapters are given an output first, that all may have
               a gradient): |g - g32| / |g32|, and the cosine of both, over all
    memory     of an AdamW step, as remat rewrite writes it and ONNX Runtime runs it

and the error of other ways to cut the same weights into blocks. Ends with 1 where a
prediction is not exact, rewritten steps differ in a bit, or an error is larger than
the bounds below. Needs torch, transformers and peft.
"""
import argparse
import glob
import os
import sys
import tempfile

import numpy
import tables
import torch
from lora import PROJECTIONS, WithLoss
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TYPES = ["float32", "int8", "int4"]
STRATEGIES = ["none", "full", "least"]
BOUNDS = {"int8": (0.001, 0.02), "int4": (0.05, 0.35)}  # of the loss, as a share; of the gradients' error


# What the table shows and does not say.
NOTE = """Under `least`, *gpt2* takes more in int4 than in int8: wide copies of codes of four bits have shapes that
ONNX Runtime knows, so their buffers wait for the next copy of as many elements."""


def text():
    """This project's documents in bytes: what is trained on, and what is not."""
    files = sorted(glob.glob(os.path.join(tables.HERE, "..", "docs", "*.md")))
    data = torch.from_numpy(numpy.frombuffer(b"".join(open(f, "rb").read() for f in files), dtype=numpy.uint8).astype(numpy.int64))
    return data[:-20000], data[-20000:]


def batch(data, a, generator):
    at = torch.randint(0, len(data) - a.tokens, (a.batch,), generator=generator)
    return torch.stack([data[i:i + a.tokens] for i in at])


def train(model, a):
    """Steps of AdamW over all of a model."""
    generator, data = torch.Generator().manual_seed(2), text()[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr)
    for _ in range(a.steps):
        ids = batch(data, a, generator)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tables.note(f"{type(model).__name__}: loss {loss:.3f} after {a.steps} steps")
    return model


def llama(a):
    torch.manual_seed(0)
    return train(LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=a.width, intermediate_size=a.width * 11 // 4, num_hidden_layers=a.layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=a.tokens, use_cache=False)), a)


def gpt2(a):
    torch.manual_seed(0)
    return train(GPT2LMHeadModel(GPT2Config(
        vocab_size=256, n_embd=a.width, n_layer=a.layers, n_head=4, n_positions=a.tokens, use_cache=False,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)), a)


def adapted(model):
    """The model with adapters that return something: their second factor is zero at first."""
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=PROJECTIONS))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.01)
    return model


def schemes(model):
    """The error of a model's matrices, |w - q| / |w| over all, by how they are cut."""
    weights = [p.detach().double().numpy() for name, p in model.named_parameters() if p.dim() == 2 and "lora" not in name]
    def error(block, least, most, extreme, along):
        off = all = 0.0
        for w in weights:
            flat = (w if along == "memory" else w.T).reshape(-1)
            x = numpy.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
            top = numpy.take_along_axis(x, numpy.abs(x).argmax(1)[:, None], 1)
            scale = (top / extreme).astype(numpy.float32).astype(numpy.float64)
            q = numpy.clip(numpy.round(x / numpy.where(scale == 0, 1, scale)), least, most) * scale
            off, all = off + ((x - q) ** 2).sum(), all + (x ** 2).sum()
        return (off / all) ** 0.5
    rows = []
    for bits, least, most, extreme, blocks in ((8, -127, 127, 127, (32, 64, 128)), (4, -7, 7, 7, (16, 32, 64)), (4, -8, 7, -8, (16, 32, 64))):
        for block in blocks:
            rows.append({"codes": f"{least} to {most}", "block": str(block), "bits a weight": f"{bits + 32 / block:g}",
                         **{f"blocks along the {k}": tables.PERCENT(error(block, least, most, extreme, v)) for k, v in
                            (("last axis", "memory"), ("first axis", "across"))}})
    return rows


def gradients(lab, file):
    d = lab.json("run", file, "--feeds", "batch.npz", "--out", "out.npz")
    arrays = numpy.load(lab.at("out.npz"))
    grads = {k: arrays[k] for k in sorted(arrays.files) if k.endswith(".grad")}
    return d["steps"][0]["outputs"]["loss"], numpy.concatenate([g.astype(numpy.float64).ravel() for g in grads.values()])


def measure(lab, name, trained):
    """A row for each type of one model's frozen weights."""
    rows, wide = [], None
    for kind in TYPES:
        tables.note(f"{name}: {kind}")
        flags = ["--params", trained] + (["--quantize-frozen", kind] if kind != "float32" else [])
        lab.remat("grad", f"{name}.onnx", "-o", f"{name}_{kind}.onnx", *flags)
        loss, g = gradients(lab, f"{name}_{kind}.onnx")
        wide = wide or (loss, g)
        lab.remat("grad", f"{name}.onnx", "-o", f"{name}_{kind}_adamw.onnx", "--optimizer", "adamw", *flags)
        files = [lab.rewrite(f"{name}_{kind}_adamw.onnx", "--strategy", s) for s in STRATEGIES]
        d = lab.json("compare", f"{name}_{kind}_adamw.onnx", *files, "--feeds", "batch.npz", "--steps", "2")
        memory = [m["memory"] for m in d["models"]]
        rows.append({
            "model": name, "frozen in": kind, "loss": loss, "loss_share": loss / wide[0] - 1,
            "gradient_error": float(numpy.linalg.norm(g - wide[1]) / numpy.linalg.norm(wide[1])),
            "cosine": float(g @ wide[1] / numpy.linalg.norm(g) / numpy.linalg.norm(wide[1])), "parameters": memory[1]["parameter_bytes"],
            "live": [m["live_peak_bytes"] for m in memory[1:]], "total": [m["total_peak_bytes"] for m in memory[1:]],
            "exact": all(m[k] == m["predicted_" + k] for m in memory for k in ("live_peak_bytes", "session_bytes")),
            "rewritten": [p["max_relative_gradient_difference"] for p in d["pairs"]],
            "same_bits": all(p["bit_identical"] for p in d["pairs"][:2]),
        })
    return rows


def missed(rows):
    """What does not hold, one line each."""
    for r in rows:
        where = f"{r['model']}, {r['frozen in']}"
        if not r["exact"]:
            yield f"{where}: a prediction is not exact"
        if not r["same_bits"]:
            yield f"{where}: none and full do not have the bits of the plain step"
        share, error = BOUNDS.get(r["frozen in"], (0, 0))
        if abs(r["loss_share"]) > share or r["gradient_error"] > error:
            yield f"{where}: loss off by {r['loss_share']}, gradients by {r['gradient_error']}"


def shown(rows):
    kib = lambda n: f"{n / 2**10:.0f}"
    return [{
        "model": r["model"], "frozen in": r["frozen in"], "loss": f"{r['loss']:.5f}", "of float32's": f"{100 * r['loss_share']:+.3f} %",
        "gradients off by": f"{100 * r['gradient_error']:.2f} %", "cosine": f"{r['cosine']:.6f}", "parameters KiB": kib(r["parameters"]),
        **{f"total KiB, {s}": kib(t) for s, t in zip(STRATEGIES, r["total"])}, "predicted": "exact" if r["exact"] else "NOT exact",
    } for r in rows]


def save(a, lab, errors, rows, about, cuts):
    """quantize.md and quantize.json, with the commit that they are of."""
    lines = ["# Frozen weights in eight and four bits", "",
             f"`scripts/quantize.py --layers {a.layers} --steps {a.steps}` at {about['commit']}: PyTorch {torch.__version__}, ONNX Runtime {about['onnxruntime']}. Models of {a.layers} layers,",
             f"{a.width} wide, trained for {a.steps} steps on this project's documents, {a.batch} x {a.tokens} bytes a step; loss and gradients on bytes",
             "that they did not see. *llama*: adapters of rank 8 on all projections train. *gpt2*: the last layer trains.",
             "Totals are parameters, state, feeds, session and live peak of an AdamW step, by strategy.", "", errors, "", NOTE, "",
             "The weights of *llama* themselves, by how they are cut into blocks, each with a float32 scale; the block's",
             "largest value gets the code -8 where there is one, with a scale of the other sign if need be:", "", cuts, "",
             "The commands:", "", "```", *lab.commands, "```", ""]
    tables.keep(a.out, "quantize.md", "\n".join(lines))
    tables.keep(a.out, "quantize.json", {"machine": about, "rows": rows})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    for name, value in (("layers", 2), ("width", 128), ("batch", 4), ("tokens", 64), ("steps", 200)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", help="folder for quantize.md and quantize.json")
    a = p.parse_args()
    a.remat, a.provider, a.largest, a.rehearse = os.path.abspath(a.remat), "cpu", 0, False
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    torch.set_num_threads(a.threads)
    ids = batch(text()[1], a, torch.Generator().manual_seed(3))
    with tempfile.TemporaryDirectory() as folder:
        lab, rows = tables.Lab(a, folder), []
        numpy.savez(lab.at("batch.npz"), input_ids=ids.numpy(), labels=ids.numpy())
        for name, model, trained in (("llama", adapted(llama(a)), "*lora_*"), ("gpt2", gpt2(a), f"*.h.{a.layers - 1}.*")):
            if name == "llama":
                cuts = tables.text(schemes(model))
            torch.onnx.export(WithLoss(model.train()), (ids, ids.clone()), lab.at(name + ".onnx"), dynamo=True, optimize=False,
                              input_names=["input_ids", "labels"], output_names=["loss"], verbose=False)
            rows += measure(lab, name, trained)
        about = tables.machine(lab)
    errors = tables.text(shown(rows))
    print(errors, cuts, sep="\n\n")
    if a.out:
        save(a, lab, errors, rows, about, cuts)
    faults = list(missed(rows))
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
