#!/usr/bin/env python3
"""`grad --lora` and `apply` beside PEFT, on a small Llama, GPT-2 and ViT by each exporter.

    make build ort
    scripts/adapters.py --out docs/results

For each export: pairs of rank 4 on all linear layers of a block, the same numbers in A and B on
both sides. Then (1) the gradients of A and B; (2) a few steps of AdamW, after which the loss and
the logits of the graph with its pairs, and of the model that `remat apply` merged them into;
(3) the loss of the adapter that `remat apply --adapter` wrote, loaded by PEFT, and its files as
PEFT would write them; (4) the live peak beside that of the same step from an export that PEFT
made, predictions, and the bits of none, full and least. Ends with 1 where gradients differ by
more than 1e-4 of the largest, outputs by more than 1e-5 of it, a prediction is not exact, AdamW's
moments differ by more than 1e-6 of the largest under two strategies, or the step of the least plan takes more than the one from PEFT's export.
Needs torch, transformers and peft.
"""
import argparse
import os
import sys
import tempfile

import numpy as np
import tables
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

RANK, ALPHA, STEPS, LEARNING_RATE = 4, 8, 3, 1e-2
STRATEGIES = ["none", "full", "least"]
EXPORTERS = {
    "dynamo": dict(dynamo=True, optimize=False, verbose=False),
    "dynamo, optimized": dict(dynamo=True, optimize=True, verbose=False),
    "TorchScript": dict(dynamo=False, opset_version=18, do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE),
    "TorchScript, folded": dict(dynamo=False, opset_version=18, do_constant_folding=True),
}


class Text(torch.nn.Module):
    """The mask of ones keeps transformers from looking for packed sequences."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        out = self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels, use_cache=False)
        return out.loss, out.logits


class Image(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        out = self.model(pixel_values=pixel_values, labels=labels)
        return out.loss, out.logits


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager"))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=64, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        attn_implementation="eager"))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager"))


def words():
    ids = torch.randint(0, 512, (2, 48))
    return {"input_ids": ids, "labels": ids.clone()}


def pictures():
    return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 10, (4,))}


# A model, the module around it that returns its loss, its feeds, and what gets pairs: all
# linear layers of a block, of GPT-2 the fused projection too.
MODELS = {
    "Llama": (llama, Text, words, r".*layers\.\d+\..*proj", "*_proj.weight"),
    "GPT-2": (gpt2, Text, words, r".*\.h\.\d+\..*(c_attn|c_proj|c_fc)", "*.h.*.c_*.weight"),
    "ViT": (vit, Image, pictures, r".*layers?\.\d+\..*(query|key|value|[qkv]_proj|o_proj|dense|fc\d)", "*.layer*.weight"),
}


def build(name):
    """The same model at every call. Exporters merge equal constants: norms and biases must differ."""
    torch.manual_seed(0)
    model = MODELS[name][0]()
    with torch.no_grad():
        for w in model.parameters():
            w.add_(0.02 * torch.randn_like(w))
    return model.eval()


def adapted(name):
    return get_peft_model(build(name), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=MODELS[name][3])).eval()


def pairs_of(model):
    """PEFT's parameters by the path of their module, as [A, B]."""
    found = {}
    for name, p in model.named_parameters():
        for i, part in enumerate((".lora_A.default.weight", ".lora_B.default.weight")):
            if name.endswith(part):
                found.setdefault(name[len("base_model.model."):-len(part)], [None, None])[i] = p
    return found


def export(model, feeds, path, exporter):
    torch.onnx.export(model, tuple(feeds.values()), path, input_names=list(feeds), output_names=["loss", "logits"], **EXPORTERS[exporter])


def apart(a, b):
    """The largest difference as a share of the largest number."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


class Case:
    """One model by one exporter."""

    def __init__(self, lab, name, exporter):
        self.lab, self.name = lab, name
        self.wrapper, self.glob = MODELS[name][1], MODELS[name][4]
        torch.manual_seed(1)
        self.feeds = MODELS[name][2]()
        self.file = f"{name}-{exporter}".replace(" ", "-").replace(",", "") + ".onnx"
        export(self.wrapper(build(name)), self.feeds, lab.at(self.file), exporter)
        self.arrays = {k: v.numpy() for k, v in self.feeds.items()}
        self.save("feeds.npz", {})

    def save(self, name, more):
        np.savez(self.lab.at(name), **self.arrays, **more)
        return name

    def derive(self, out, *flags):
        d = self.lab.json("grad", self.file, "--lora", f"{self.glob}:r={RANK},alpha={ALPHA}", *flags, "-o", out)
        return [p[:-len(".lora_A")] for p in d["parameters"] if p.endswith(".lora_A")]

    def outputs(self, graph, feeds):
        self.lab.remat("run", graph, "--feeds", feeds, "--out", "out.npz")
        return dict(np.load(self.lab.at("out.npz")))

    def loss(self, peft):
        with torch.no_grad():
            loss, logits = self.wrapper(peft)(**self.feeds)
        return float(loss), logits.numpy()

    def gradients(self):
        """The largest difference of a pair's gradients from PEFT's, with random A and B in both."""
        weights = self.derive("grads.onnx")
        model = adapted(self.name)
        pairs = pairs_of(model)
        module = lambda w: w.removeprefix("model.").removesuffix(".weight")
        if sorted(map(module, weights)) != sorted(pairs):
            return None, f"pairs on {sorted(map(module, weights))}, PEFT's on {sorted(pairs)}"
        torch.manual_seed(2)
        given = {}
        with torch.no_grad():
            for w in weights:
                for p, part in zip(pairs[module(w)], "AB"):
                    p.copy_(0.1 * torch.randn_like(p))
                    given[f"{w}.lora_{part}"] = p.T.contiguous().numpy()
        self.wrapper(model)(**self.feeds)[0].backward()
        ours = self.outputs("grads.onnx", self.save("pairs.npz", given))
        worst = max(apart(ours[f"{w}.lora_{part}.grad"], p.grad.T.numpy()) for w in weights for p, part in zip(pairs[module(w)], "AB"))
        return worst, None

    def trained(self):
        """Differences of loss and logits: merged from unmerged, and PEFT with our adapter from unmerged."""
        from safetensors.numpy import load_file
        self.derive("train.onnx", "--optimizer", "adamw")
        d = self.lab.json("run", "train.onnx", "--feeds", "feeds.npz", "--steps", str(STEPS), "--lr", str(LEARNING_RATE), "--save", "state.safetensors")
        self.losses = [s["outputs"]["loss"] for s in d["steps"]]
        state = load_file(self.lab.at("state.safetensors"))
        self.lab.remat("apply", "state.safetensors", self.file, "-o", "merged.onnx", "--adapter", "adapter", "--strip-prefix", "model.")
        unmerged = self.outputs("grads.onnx", self.save("state.npz", {k: v for k, v in state.items() if ".lora_" in k and not k.endswith((".m", ".v"))}))
        merged = self.outputs("merged.onnx", "feeds.npz")
        loaded = self.loss(PeftModel.from_pretrained(build(self.name), self.lab.at("adapter")).eval())
        both = lambda loss, logits: max(abs(loss / float(unmerged["loss"]) - 1), apart(logits, unmerged["logits"]))
        self.moved = apart(unmerged["logits"], self.loss(build(self.name))[1])
        return both(float(merged["loss"]), merged["logits"]), both(*loaded)

    def peaks(self, train):
        """The measured live peaks by strategy, whether each was predicted, and the largest difference of a moment."""
        files = [self.lab.rewrite(train, "--strategy", s) for s in STRATEGIES]
        d = self.lab.json("compare", *files, "--feeds", "feeds.npz", "--steps", "2", "--lr", str(LEARNING_RATE))
        keys = ("live_peak_bytes", "session_bytes", "reserved_bytes")
        exact = all(m["memory"][k] == m["memory"]["predicted_" + k] for m in d["models"] for k in keys)
        return [m["memory"]["live_peak_bytes"] for m in d["models"]], exact, max(0 if p["bit_identical"] else p["max_relative_gradient_difference"] for p in d["pairs"])

    def theirs(self):
        """The live peaks of the same step from an export that PEFT made."""
        export(self.wrapper(adapted(self.name)), self.feeds, self.lab.at("peft.onnx"), "dynamo")
        self.lab.remat("grad", "peft.onnx", "--params", "*lora_*", "--optimizer", "adamw", "-o", "peft_train.onnx")
        return self.peaks("peft_train.onnx")[0]


def row(lab, name, exporter, faults):
    case = Case(lab, name, exporter)
    miss = lambda text: faults.append(f"{name}, {exporter}: {text}")
    gradient, other = case.gradients()
    if other:
        miss(other)
        return {"model": name, "exporter": exporter}
    merged, loaded = case.trained()
    ours, exact, bits = case.peaks("train.onnx")
    theirs = case.theirs()
    for what, value, most in (("gradients", gradient, 1e-4), ("merged", merged, 1e-5), ("loaded by PEFT", loaded, 1e-5)):
        if not value <= most:
            miss(f"{what}: {value:.2e}, more than {most}")
    if ours[-1] > theirs[-1]:
        miss(f"{STRATEGIES[-1]}: {ours[-1]} bytes, from PEFT's export {theirs[-1]}")
    if not exact:
        miss("a prediction is not exact")
    if bits > 1e-6:
        miss(f"full or least differ from none by {bits:.1e} of the largest moment")
    if not case.losses[-1] < case.losses[0]:
        miss(f"the loss does not fall: {case.losses}")
    return {
        "model": name, "exporter": exporter, "gradients": f"{gradient:.1e}", "merged": f"{merged:.1e}", "in PEFT": f"{loaded:.1e}",
        "adapters moved logits by": tables.PERCENT(case.moved),
        **{f"{s} KB (PEFT's export)": f"{m / 1e3:.0f} ({p / 1e3:.0f})" for s, m, p in zip(STRATEGIES, ours, theirs)},
        "predicted": "exact" if exact else "NOT exact", "bits": "same" if bits == 0 else f"{bits:.1e} apart",
    }


def save(a, body, rows, about):
    lines = ["# Adapters beside PEFT's", "",
             f"`scripts/adapters.py` at {about['commit']}: PyTorch {torch.__version__}, transformers {transformers.__version__}, PEFT {a.peft}, ONNX Runtime {about['onnxruntime']}.",
             f"Pairs of rank {RANK} on all linear layers of a block. Differences are shares of the largest number: gradients of A and B from",
             f"PEFT's; loss and logits after {STEPS} steps of AdamW, of the model with the pairs merged, and of PEFT with the adapter that",
             "`remat apply --adapter` wrote. Live peaks are measured, of the AdamW step under each strategy; in brackets that of the step",
             "from an export that PEFT made.", "", body, ""]
    tables.keep(a.out, "adapters.md", "\n".join(lines))
    tables.keep(a.out, "adapters.json", {"machine": about, "rows": rows})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--model", choices=MODELS, action="append", help="only this one; may be repeated")
    p.add_argument("--exporter", choices=EXPORTERS, action="append", help="only this one; may be repeated")
    p.add_argument("--out", help="folder for adapters.md and adapters.json")
    a = p.parse_args()
    import peft
    a.remat, a.provider, a.rehearse, a.largest, a.peft = os.path.abspath(a.remat), "cpu", False, 0, peft.__version__
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    torch.set_num_threads(a.threads)
    rows, faults = [], []
    for name in a.model or MODELS:
        for exporter in a.exporter or EXPORTERS:
            tables.note(f"{name}, {exporter}")
            with tempfile.TemporaryDirectory() as folder:
                lab = tables.Lab(a, folder)
                rows.append(row(lab, name, exporter, faults))
                about = tables.machine(lab)
    body = tables.text(rows)
    print(body)
    if a.out:
        save(a, body, rows, about)
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
