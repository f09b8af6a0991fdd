#!/usr/bin/env python3
"""LoRA beside training everything, and beside PyTorch with PEFT, on one measure.

    make build ort
    scripts/lora.py                       a Llama of 4 layers, 256 wide, 2 x 128 tokens
    scripts/lora.py --out docs/results    writes lora.md and lora.json too

Exports the model with and without adapters (r=8 on all projections), derives the
AdamW step of each, rewrites it, runs it, and takes the same steps in PyTorch:

    parameters + AdamW's state + feeds + session + live peak = total

The live peak of a step in PyTorch is read off its record of every allocation (see
bench/torchside.py); PyTorch has no session. Ends with 1 where the adapters' step
takes no 40 % less than the full step under the same strategy, where what full and
least write for it takes more than PyTorch without checkpointing, least for adapters that
grad --lora added 1 % more than for PEFT's, where a prediction
is not exact, or losses differ by more than 1e-4.
Needs torch, transformers and peft.
"""
import argparse
import os
import sys
import tempfile

import tables

sys.path.insert(0, os.path.join(tables.HERE, "..", "bench"))
import torch
import torchside
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STRATEGIES = ["none", "full", "least"]
OWN = "adapters, by --lora"  # which begin from other random numbers than PEFT's
LEARNING_RATE, STEPS = 1e-3, 3


class Step(torchside.Variant):
    """AdamW steps of a model on one batch."""

    def __init__(self, model, batch, checkpoint=False):
        self.model, self.batch, self.checkpoint = model, batch, checkpoint
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels).loss


def llama(a, adapters):
    """The same weights at every call; adapters says whether LoRA is added."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=a.vocab, hidden_size=a.width, intermediate_size=a.width * 11 // 4, num_hidden_layers=a.layers,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=a.tokens, use_cache=False))
    if adapters:
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=PROJECTIONS))
    return model.train()


def in_torch(a, adapters, checkpoint, batch):
    """A row of PyTorch's: its losses, and what a step takes once AdamW has its state."""
    step = Step(llama(a, adapters), batch, checkpoint)
    losses = [step.step() for _ in range(STEPS)]
    state, live = step.state_bytes(), step.live_peak()
    feeds = sum(t.numel() * t.element_size() for t in batch)
    return {"parameters": step.parameter_bytes(), "state": state, "feeds": feeds, "session": 0, "live": live, "losses": losses, "exact": None}


def derive(a, lab, adapters, batch):
    """The AdamW step as remat grad writes it."""
    name = "lora" if adapters else "full"
    torch.onnx.export(WithLoss(llama(a, adapters)), batch, lab.at(name + ".onnx"), dynamo=True, optimize=False,
                      input_names=["input_ids", "labels"], output_names=["loss"], verbose=False)
    lab.remat("grad", name + ".onnx", "--params", "*lora_*" if adapters else "*.weight", "--optimizer", "adamw",
              "--weight-decay", "0.01", "-o", name + "_train.onnx")
    return name + "_train.onnx"


def derive_own(a, lab):
    """The AdamW step of the plain export with adapters that remat adds; full.onnx is there."""
    lab.remat("grad", "full.onnx", "--lora", "*_proj.weight:r=8,alpha=16", "--optimizer", "adamw", "--weight-decay", "0.01", "-o", "own_train.onnx")
    return "own_train.onnx"


def in_onnxruntime(lab, train, *flags):
    """A row of the file that remat rewrite makes."""
    d = lab.json("run", lab.rewrite(train, *flags), "--feeds", "batch.npz", "--steps", str(STEPS), "--lr", str(LEARNING_RATE))
    m = d["memory"]
    exact = all(m[k] == m["predicted_" + k] for k in ("live_peak_bytes", "session_bytes", "reserved_bytes"))
    return {"parameters": m["parameter_bytes"], "state": m["state_bytes"], "feeds": m["feed_bytes"], "session": m["session_bytes"],
            "live": m["live_peak_bytes"], "losses": [s["outputs"]["loss"] for s in d["steps"]], "exact": exact}


# What the table shows and does not say.
NOTE = """PyTorch's checkpointed step of the adapters takes less than what least writes. At its
peak that holds eight values of the MLP's width, 5.4 of 10.4 MiB, for the backward of
SiLU, which is one kernel in PyTorch."""

PARTS = ("parameters", "state", "session", "live")


def total(r):
    return r["feeds"] + sum(r[k] for k in PARTS)


def measure(a, lab, batch):
    """All rows, by what is trained and how."""
    import numpy
    numpy.savez(lab.at("batch.npz"), input_ids=batch[0].numpy(), labels=batch[1].numpy())
    rows = {}
    for what in ("everything", "adapters"):
        adapters = what == "adapters"
        for checkpoint in (False, True):
            tables.note(f"{what}: PyTorch{', checkpointed' if checkpoint else ''}")
            rows[what, "PyTorch" + (", checkpointed" if checkpoint else "")] = in_torch(a, adapters, checkpoint, batch)
        train = derive(a, lab, adapters, batch)
        for strategy in STRATEGIES:
            tables.note(f"{what}: {strategy}")
            rows[what, "remat " + strategy] = in_onnxruntime(lab, train, "--strategy", strategy)
        if adapters:
            rows[what, "remat full, prepacked"] = in_onnxruntime(lab, train, "--strategy", "full", "--prepack", "on")
    own = derive_own(a, lab)
    for strategy in STRATEGIES:
        tables.note(f"--lora: {strategy}")
        rows[OWN, "remat " + strategy] = in_onnxruntime(lab, own, "--strategy", strategy)
    return rows


def missed(rows):
    """What does not hold, one line each."""
    for (what, how), r in rows.items():
        full, beside = rows.get(("everything", how)), rows["adapters" if what == OWN else what, "PyTorch"]
        if what == "adapters" and full and how.startswith("remat") and total(r) > 0.6 * total(full):
            yield f"adapters, {how}: {total(r)} bytes, {total(r) / total(full):.3f} of training everything"
        if what == "adapters" and how in ("remat full", "remat least") and total(r) > total(beside):
            yield f"adapters, {how}: {total(r)} bytes, PyTorch {total(beside)}"
        if r["exact"] is False:
            yield f"{what}, {how}: a prediction is not exact"
        if what == OWN and how == "remat least" and total(r) > 1.01 * total(rows["adapters", how]):
            yield f"{what}, {how}: {total(r)} bytes, of PEFT's export {total(rows['adapters', how])}"
        for x, y in zip(r["losses"][:1 if what == OWN else None], beside["losses"]):
            if abs(x - y) > 1e-4:
                yield f"{what}, {how}: loss {x}, PyTorch {y}"


def table(rows):
    full = total(rows["everything", "PyTorch"])
    mib = lambda n: f"{n / 2**20:.2f}"
    return [{
        "trained": what, "step": how, **{k + " MiB": mib(r[k]) for k in PARTS}, "total MiB": mib(total(r)),
        "of the same, everything": "-" if what == "everything" or ("everything", how) not in rows else tables.PERCENT(total(r) / total(rows["everything", how])),
        "of PyTorch, everything": tables.PERCENT(total(r) / full),
        "predicted": {None: "-", True: "exact", False: "NOT exact"}[r["exact"]], f"loss, step {STEPS}": f"{r['losses'][-1]:.6f}",
    } for (what, how), r in rows.items()]


def save(a, lab, body, rows, about):
    """lora.md and lora.json, with the commit that they are of."""
    lines = ["# LoRA beside training everything", "",
             f"`scripts/lora.py` at {about['commit']}: PyTorch {torch.__version__}, ONNX Runtime {about['onnxruntime']}, {about['cores']} cores. AdamW on a Llama of",
             f"{a.layers} layers, {a.width} wide, {a.vocab} words, {a.batch} x {a.tokens} tokens; adapters of rank 8 on all seven projections of a layer.",
             "Total is parameters, state, feeds, session and live peak, counted at the allocators.", "", body, "", NOTE, "", "The commands:", "", "```", *lab.commands, "```", ""]
    tables.keep(a.out, "lora.md", "\n".join(lines))
    tables.keep(a.out, "lora.json", {"machine": about, "rows": rows})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    for name, value in (("layers", 4), ("width", 256), ("vocab", 2048), ("batch", 2), ("tokens", 128)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--out", help="folder for lora.md and lora.json")
    a = p.parse_args()
    a.remat, a.provider, a.rehearse, a.largest = os.path.abspath(a.remat), "cpu", False, 0
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    ids = torch.randint(0, a.vocab, (a.batch, a.tokens))
    with tempfile.TemporaryDirectory() as folder:
        lab = tables.Lab(a, folder)
        rows = measure(a, lab, (ids, ids.clone()))
        about = tables.machine(lab)
    shown = table(rows)
    body = tables.text(shown)
    print(body)
    if a.out:
        save(a, lab, body, shown, about)
    faults = list(missed(rows))
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
