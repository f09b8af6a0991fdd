#!/usr/bin/env python3
"""GPT-2 of transformers as a forward graph with its loss, by both exporters.

    pip install torch transformers onnx onnxscript safetensors
    scripts/export_gpt2.py FOLDER [--model gpt2|gpt2-medium] [--batch 1 --seq 512]
                                  [--exporter torchscript|dynamo|both] [--layers N]
                                  [--pretrained]

writes FOLDER/MODEL-torchscript.onnx and FOLDER/MODEL-dynamo.onnx, inputs
input_ids and labels, outputs loss and logits, and FOLDER/MODEL-feeds.npz.
Without --pretrained the weights are random: memory and time do not depend on
them, and nothing is downloaded. The files are large and are not checked in;
scripts/validate_exports.sh takes them through remat.
"""
import argparse
import os

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

# Layers, width, heads.
SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-tiny": (2, 64, 4)}


class WithLoss(torch.nn.Module):
    """Loss first, then the logits, as GPT2LMHeadModel returns them. The mask of
    ones keeps transformers from looking for packed sequences, with an operator
    that the TorchScript exporter does not have."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        mask = torch.ones_like(input_ids)
        out = self.model(input_ids=input_ids, attention_mask=mask, labels=labels, use_cache=False)
        return out.loss, out.logits


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--model", default="gpt2", choices=SIZES)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--layers", type=int, help="fewer layers, for tries")
    p.add_argument("--exporter", default="both", choices=["torchscript", "dynamo", "both"])
    p.add_argument("--opset", type=int, default=18)
    p.add_argument("--pretrained", action="store_true")
    a = p.parse_args()

    torch.manual_seed(0)
    os.makedirs(a.folder, exist_ok=True)
    model = WithLoss(load(a)).eval()
    vocab = model.model.config.vocab_size
    ids = torch.randint(0, vocab, (a.batch, a.seq))
    np.savez(os.path.join(a.folder, a.model + "-feeds.npz"), input_ids=ids.numpy(), labels=ids.numpy())
    for exporter in ("torchscript", "dynamo"):
        if a.exporter in (exporter, "both"):
            path = os.path.join(a.folder, f"{a.model}-{exporter}.onnx")
            export(model, (ids, ids.clone()), path, exporter, a.opset)
            print(path, flush=True)


def load(a):
    off = dict(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager")
    if a.pretrained:
        return GPT2LMHeadModel.from_pretrained(a.model, **off)
    layers, width, heads = SIZES[a.model]
    model = GPT2LMHeadModel(GPT2Config(n_layer=a.layers or layers, n_embd=width, n_head=heads, **off))
    with torch.no_grad():
        # Exporters merge equal constants: fresh biases and norms must differ.
        for w in model.parameters():
            w.add_(0.01 * torch.randn_like(w))
    return model


def export(model, args, path, exporter, opset):
    names = dict(input_names=["input_ids", "labels"], output_names=["loss", "logits"])
    if exporter == "dynamo":
        torch.onnx.export(model, args, path, dynamo=True, external_data=True, opset_version=opset, **names)
    else:
        # Training mode keeps the graph free of folded weights.
        torch.onnx.export(model, args, path, dynamo=False, opset_version=opset, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE, **names)


if __name__ == "__main__":
    main()
