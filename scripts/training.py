#!/usr/bin/env python3
"""`remat train` beside PyTorch's loop.

    make build ort
    scripts/training.py curves     300 steps on the same batches: losses, validation, bits with recomputation
    scripts/training.py optimizers the same 300 steps by each optimizer: validation loss beside AdamW's, state in bytes a parameter
    scripts/training.py exports    GPT-2 124M by both exporters and a Llama: export, train, apply, load, compare
    scripts/training.py all --out docs/results

curves: a GPT-2 of 4 layers, from the same weights, AdamW, 10 % of warm-up, a cosine, gradients
clipped at norm 1, four micro-batches a step. Ends with 1 where a loss differs by more than 1e-3
of itself, the validation perplexity by more than 0.2 %, or recomputation changes a bit of the state.

optimizers: the set-up of curves, without PyTorch, each optimizer with a rate of its own. Ends with 1
where a validation loss is more than 1 % above AdamW's, but for APOLLO-Mini of embeddings too.

exports: one command trains an export on a text within --memory; `remat apply` writes the trained
forward model, whose weights PyTorch loads. Ends with 1 where the validation losses differ by
more than 1e-4, or the process took more than the memory named and 5 %.

The text is this project's documentation unless --text names files. --out writes training.md and
training.json with the commit and the commands. --small shrinks the models, for tries.
Needs torch, transformers, onnx and onnxscript.
"""
import argparse
import glob
import hashlib
import json
import math
import os
import sys
import tempfile

import numpy as np
import onnx
import tables
import torch
import transformers

LEARNING_RATE, WARMUP, STEPS, ACCUMULATE = 1e-3, 30, 300, 4


class WithLoss(torch.nn.Module):
    """The loss alone; the mask of ones keeps transformers from looking for packed sequences."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        mask = torch.ones_like(input_ids)
        return self.model(input_ids=input_ids, attention_mask=mask, labels=labels, use_cache=False).loss


def gpt2(layers, width, heads, positions, vocab=50257):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=positions, vocab_size=vocab,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager"))


def llama(layers, width, heads, positions, vocab=50257):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=width * 8 // 3 // 16 * 16, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=positions,
        attn_implementation="eager", tie_word_embeddings=False))


def export(model, shape, path, exporter):
    ids = torch.zeros(shape, dtype=torch.long)
    names = dict(input_names=["input_ids", "labels"], output_names=["loss"])
    module = WithLoss(model.eval())
    if exporter == "dynamo":
        torch.onnx.export(module, (ids, ids.clone()), path, dynamo=True, optimize=False, external_data=True, verbose=False, **names)
    else:
        torch.onnx.export(module, (ids, ids.clone()), path, dynamo=False, opset_version=18, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE, **names)


def weights_of(path, model):
    """The initializers of a forward model by PyTorch's names, for load_state_dict."""
    held = {}
    for t in onnx.load(path).graph.initializer:
        held[t.name] = onnx.numpy_helper.to_array(t)
    wanted = model.state_dict()
    state = {name: torch.tensor(held[key]) for name in wanted for key in ("model." + name, name) if key in held}
    # An export holds tied parameters once, under one of their names.
    given = {wanted[name].data_ptr() for name in state}
    missing = [name for name, p in model.named_parameters() if p.data_ptr() not in given]
    if missing:
        sys.exit(f"{path}: no initializer for {', '.join(missing[:3])}")
    model.load_state_dict(state, strict=False)


@torch.no_grad()
def validation(model, rows):
    """Mean loss over all predicted tokens of equally long rows."""
    losses = [WithLoss(model)(r, r).item() for r in torch.tensor(rows).unsqueeze(1)]
    return sum(losses) / len(losses)


def log_of(folder):
    """The losses of all steps, and the validations, as the run logged them."""
    lines = [json.loads(line) for line in open(os.path.join(folder, "log.jsonl"))]
    return [r for r in lines if "loss" in r], [r for r in lines if "val_loss" in r]


def rows_of(tokens, length):
    n = len(tokens) // length
    return np.asarray(tokens[:n * length], np.int64).reshape(n, length)


def small_gpt2(lab, a):
    """What curves and optimizers train: a model, as it is and exported to model.onnx, and its batches
    and validation rows, also in train.npy and val.npy."""
    layers, width, heads, length, micro = (2, 32, 2, 32, 2) if a.small else (4, 128, 4, 128, 2)
    steps = 40 if a.small else STEPS
    torch.manual_seed(0)
    model = gpt2(layers, width, heads, length, vocab=256)
    export(model, (micro, length), lab.at("model.onnx"), "torchscript")
    rows = rows_of(np.frombuffer(a.words, np.uint8), length)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    held, rows = rows[:64], rows[64:]
    needed = steps * ACCUMULATE * micro
    rows = np.resize(rows, (needed, length))  # more than an epoch begins again
    np.save(lab.at("train.npy"), rows)
    np.save(lab.at("val.npy"), held)
    about = f"GPT-2 of {layers} layers, {width} wide, bytes of text, {ACCUMULATE} x {micro} x {length} tokens a step, {steps} steps."
    return model, rows.reshape(steps, ACCUMULATE, micro, length), held, about


def small_flags(steps, optimizer, rate):
    return ["--tokens", "train.npy", "--val", "val.npy", "--steps", str(steps), "--accumulate", str(ACCUMULATE), "--optimizer", optimizer,
            "--lr", str(rate), "--schedule", "cosine", "--warmup", str(WARMUP), "--clip-norm", "1"]


def curves(lab, a):
    """The same 300 steps in PyTorch, by remat, and by remat with recomputation."""
    model, batches, held, about = small_gpt2(lab, a)
    steps = len(batches)
    flags = [*small_flags(steps, "adamw", LEARNING_RATE), "--weight-decay", "0.01"]
    runs = {}
    for name, more in (("remat", []), ("remat, recomputed", ["--strategy", "full"])):
        folder = name.replace(", ", "-")
        tables.note(f"curves: {name}")
        lab.remat("train", "model.onnx", *flags, *more, "-o", folder)
        steps_of, validations = log_of(lab.at(folder))
        state = open(lab.at(os.path.join(folder, "state.safetensors")), "rb").read()
        runs[name] = {"losses": [r["loss"] for r in steps_of], "norms": [r["gradient_norm"] for r in steps_of],
                      "perplexity": validations[-1]["perplexity"], "live": steps_of[-1]["live_peak_bytes"], "state": tensors_of(state)}
    tables.note("curves: PyTorch")
    runs["PyTorch"] = in_torch(model, batches, held)

    beside, faults, table = runs["PyTorch"], [], []
    for name, r in runs.items():
        apart = max(abs(x - y) / abs(y) for x, y in zip(r["losses"], beside["losses"]))
        off = abs(r["perplexity"] / beside["perplexity"] - 1)
        same = r.get("state") == runs["remat"]["state"] if "state" in r else None
        table.append({"run": name, "loss, step 1": f"{r['losses'][0]:.6f}", f"loss, step {steps}": f"{r['losses'][-1]:.6f}",
                      "largest difference": f"{apart:.1e}", "validation perplexity": f"{r['perplexity']:.4f}", "off by": f"{100 * off:.3f} %",
                      "live peak MB": tables.MB(r["live"]) if "live" in r else "-", "bits of the state": {None: "-", True: "same", False: "OTHER"}[same]})
        if len(r["losses"]) != steps:
            faults.append(f"{name}: {len(r['losses'])} losses of {steps}")
        if apart > 1e-3:
            faults.append(f"{name}: a loss differs by {apart:.1e}")
        if off > 0.002:
            faults.append(f"{name}: perplexity {r['perplexity']}, PyTorch {beside['perplexity']}")
        if same is False:
            faults.append(f"{name}: the state has other bits")
    return about, table, faults


# Optimizer, rate, flags, and whether its loss is to be AdamW's. AdamW's rate is that of curves, and
# Adafactor's and Muon's the same; APOLLO-Mini's are the better ones of 1e-3, 3e-3 and 1e-2.
OPTIMIZERS = [("adamw", LEARNING_RATE, [], True), ("adafactor", LEARNING_RATE, [], True), ("muon", LEARNING_RATE, [], True),
              ("apollo-mini", 1e-2, ["--hidden-only", "1"], True), ("apollo-mini", 3e-3, [], False)]


def optimizers(lab, a):
    """The same 300 steps by each optimizer."""
    model, batches, _, about = small_gpt2(lab, a)
    parameters = sum(p.numel() for p in model.parameters())
    table, faults, beside = [], [], None
    for optimizer, rate, more, claimed in OPTIMIZERS:
        name = " ".join([optimizer, *more])
        tables.note(f"optimizers: {name}")
        folder = name.replace(" ", "_")
        end = lab.json("train", "model.onnx", *small_flags(len(batches), optimizer, rate), *more, "-o", folder)
        losses, validations = log_of(lab.at(folder))
        loss = validations[-1]["val_loss"]
        beside = beside or loss
        # --accumulate keeps a sum of gradients, as large as the parameters, beside the optimizer's state.
        state = end["memory"]["state_bytes"] / parameters - 4
        table.append({"optimizer": name, "rate": f"{rate:g}", "loss, step 1": f"{losses[0]['loss']:.4f}", f"loss, step {len(batches)}": f"{losses[-1]['loss']:.4f}",
                      "validation loss": f"{loss:.4f}", "beside AdamW's": f"{100 * (loss / beside - 1):+.2f} %",
                      "parameters and state, bytes a parameter": f"{4 + state:.2f}"})
        if claimed and not a.small and loss > 1.01 * beside:
            faults.append(f"{name}: validation loss {loss}, AdamW's {beside}")
    return about, table, faults


def tensors_of(state):
    """A hash of the tensors of a safetensors file: what is said beside them may differ."""
    head = int.from_bytes(state[:8], "little")
    return hashlib.sha256(state[8 + head:]).hexdigest()


def in_torch(model, steps, held):
    model.eval()  # no dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, len(steps))
    losses = []
    for batches in torch.tensor(steps):
        optimizer.zero_grad()
        loss = 0.0
        for batch in batches:
            part = WithLoss(model)(batch, batch) / len(batches)
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
    return {"losses": losses, "perplexity": math.exp(validation(model, held))}


# Name, model, exporter, and the memory that is named.
EXPORTS = {
    "GPT-2 124M, TorchScript": (lambda: gpt2(12, 768, 12, 256), "torchscript", "3GiB"),
    "GPT-2 124M, dynamo": (lambda: gpt2(12, 768, 12, 256), "dynamo", "3GiB"),
    "Llama, dynamo": (lambda: llama(8, 512, 8, 256), "dynamo", "2GiB"),
}
SMALL = {
    "GPT-2, TorchScript": (lambda: gpt2(2, 32, 2, 64), "torchscript", "1GiB"),
    "GPT-2, dynamo": (lambda: gpt2(2, 32, 2, 64), "dynamo", "1GiB"),
    "Llama, dynamo": (lambda: llama(2, 32, 2, 64), "dynamo", "1GiB"),
}


def exports(lab, a):
    """One command trains an export on a text; the trained forward model goes back to PyTorch."""
    length, steps = (64, 3) if a.small else (256, 10)
    cut = len(a.words) * 9 // 10
    for name, part in (("train.txt", a.words[:cut]), ("val.txt", a.words[cut:])):
        open(lab.at(name), "wb").write(part)
    table, faults = [], []
    for name, (make, exporter, memory) in (SMALL if a.small else EXPORTS).items():
        tables.note(f"exports: {name}")
        torch.manual_seed(0)
        model, folder = make(), name.replace(", ", "-").replace(" ", "_")
        export(model, (1, length), lab.at(folder + ".onnx"), exporter)
        end = lab.json("train", folder + ".onnx", "--text", "train.txt", "--val", "val.txt", "--memory", memory, "--optimizer", "adamw",
                       "--lr", "1e-4", "--warmup", "2", "--steps", str(steps), "-o", folder)
        lab.remat("apply", folder + "/state.safetensors", folder + ".onnx", "-o", folder + "_trained.onnx")
        before = [t.detach().clone() for t in model.parameters()]
        weights_of(lab.at(folder + "_trained.onnx"), model)
        moved = sum(not torch.equal(x, y) for x, y in zip(before, model.parameters()))
        # The run keeps the tokens of each text; the validation's is the shorter.
        texts = [np.load(f) for f in glob.glob(lab.at(os.path.join(folder, "tokens-*.npy")))]
        rows = rows_of(min(texts, key=len), length)
        loss = validation(model, rows)
        apart = abs(loss - end["val_loss"])
        table.append({"export": name, "memory named": memory, "total MB": tables.MB(end["memory"]["total_peak_bytes"]),
                      "resident MB": tables.MB(end["memory"]["rss_peak_bytes"]), "loss, first": f"{end['loss_first']:.4f}", "loss, last": f"{end['loss_last']:.4f}",
                      "validation loss": f"{end['val_loss']:.6f}", "PyTorch's": f"{loss:.6f}", "parameters changed": f"{moved} of {len(before)}"})
        if not apart <= 1e-4:
            faults.append(f"{name}: validation loss {end['val_loss']}, PyTorch {loss}")
        if moved < len(before):
            faults.append(f"{name}: {len(before) - moved} parameters as they were")
        if not a.small and not end["loss_last"] < end["loss_first"]:
            faults.append(f"{name}: the loss did not fall")
    return f"{steps} steps of AdamW on 1 x {length} tokens of text.", table, faults


TITLES = {"curves": "The same steps in PyTorch and by remat", "optimizers": "The same steps by each optimizer", "exports": "From an export and a text to trained weights"}
PARTS = {"curves": curves, "optimizers": optimizers, "exports": exports}


def save(a, parts, about):
    """training.md and training.json: each part with the commit that it is of; one that was not
    run stays as it was."""
    place = os.path.join(a.out, "training.json")
    document = json.load(open(place)) if os.path.exists(place) else {}
    document.update({name: {"machine": about, "about": said, "rows": rows, "commands": commands} for name, (said, rows, _, commands) in parts.items()})
    lines = ["# Training beside PyTorch", ""]
    for name, part in document.items():
        at = part["machine"]
        lines += ["## " + TITLES[name], "",
                  f"`scripts/training.py {name}` at {at['commit']}: PyTorch {at['torch']}, transformers {at['transformers']}, ONNX Runtime {at['onnxruntime']}, {at['cpu']}, {at['cores']} cores.",
                  part["about"], "", tables.text(part["rows"]), "", "The commands:", "", "```", *part["commands"], "```", ""]
    tables.keep(a.out, "training.md", "\n".join(lines))
    tables.keep(a.out, "training.json", document)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=[*PARTS, "all"])
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--text", nargs="+", help="files to train on")
    p.add_argument("--small", action="store_true", help="small models, for tries")
    p.add_argument("--keep", help="a new folder to work in, which stays")
    p.add_argument("--out", help="folder for training.md and training.json")
    a = p.parse_args()
    a.remat, a.provider, a.rehearse, a.largest = os.path.abspath(a.remat), "cpu", False, 0
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    docs = os.path.join(tables.HERE, "..", "docs")
    files = a.text or sorted(glob.glob(os.path.join(docs, "*.md")))
    a.words = b"".join(open(f, "rb").read() for f in files)
    torch.set_num_threads(a.threads)
    if a.keep:
        os.makedirs(a.keep)
    with tempfile.TemporaryDirectory() as folder:
        done, lab = {}, None
        for name, part in PARTS.items():
            if a.part in (name, "all"):
                lab = tables.Lab(a, os.path.join(a.keep or folder, name))
                os.makedirs(lab.folder)
                done[name] = (*part(lab, a), lab.commands)
        about = {**tables.machine(lab), "torch": torch.__version__, "transformers": transformers.__version__}
    for name, (said, rows, *_) in done.items():
        print(f"{TITLES[name]}. {said}\n\n{tables.text(rows)}\n")
    if a.out:
        save(a, done, about)
    faults = [f for part in done.values() for f in part[2]]
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
