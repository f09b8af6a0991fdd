#!/usr/bin/env python3
"""What remat feeds to a language model, against PyTorch.

    pip install torch transformers onnx onnxscript tokenizers
    scripts/check_data.py [--gpt2 FOLDER] [--text FILE] [--folder OUT]

Exports small models with random weights (GPT-2, Llama, one that takes the next
tokens as targets as nanoGPT does, BERT's inputs beside a causal model) by both
exporters, lets `remat eval --text` compute the mean loss over a text, and compares
with PyTorch's over the same text, tokenized by the tokenizers library and cut into
blocks here. The difference must stay below 1e-5 of the loss, and the number of
labels must be the same. --gpt2 is a folder with GPT-2's encoder.json and vocab.bpe;
without it every model reads the tokenizer of train/data/testdata. REMAT names the
program.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

import golden_tokens

HERE = os.path.dirname(os.path.abspath(__file__))
REMAT = os.environ.get("REMAT", os.path.join(HERE, "../bin/remat"))
BATCH, LENGTH = 3, 48


class WithLoss(nn.Module):
    """A model of transformers, fed by position; a mask of ones keeps it from looking
    for packed sequences."""

    def __init__(self, model, *more):
        super().__init__()
        self.model, self.more = model, more

    def forward(self, input_ids, labels, *more):
        named = dict(zip(self.more, more))
        named.setdefault("attention_mask", torch.ones_like(input_ids))
        out = self.model(input_ids=input_ids, labels=labels, use_cache=False, **named)
        return out.loss, out.logits


class Next(nn.Module):
    """Targets are the next tokens, and -1 is none."""

    def __init__(self, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, 32), nn.Embedding(LENGTH, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, vocab, bias=False)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1))

    def forward(self, idx, targets):
        h = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.block(h, src_mask=self.mask))
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1), logits


def models(vocab):
    import transformers as t

    off = dict(attn_implementation="eager")
    gpt2 = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=vocab, n_layer=2, n_embd=32, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **off))
    llama = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                             intermediate_size=64, max_position_embeddings=64, **off))
    yield "gpt2", WithLoss(gpt2), ["input_ids", "labels"], {}
    yield "gpt2, mask, positions, types", WithLoss(gpt2, "attention_mask", "position_ids", "token_type_ids"), \
        ["input_ids", "labels", "attention_mask", "position_ids", "token_type_ids"], {}
    yield "llama", WithLoss(llama), ["input_ids", "labels"], {}
    yield "llama, mask, positions", WithLoss(llama, "attention_mask", "position_ids"), ["input_ids", "labels", "attention_mask", "position_ids"], {}
    yield "next tokens", Next(vocab), ["idx", "targets"], dict(next=True)


def blocks(ids, following):
    n = (len(ids) - following) // LENGTH
    x = torch.tensor(ids[: n * LENGTH]).view(n, LENGTH)
    y = torch.tensor(ids[1 : n * LENGTH + 1]).view(n, LENGTH) if following else x
    return x, y


def expected(model, names, ids, following):
    """The mean over all labels, and their number."""
    x, y = blocks(ids, following)
    total, count = 0.0, 0
    with torch.no_grad():
        for a, b in zip(x.split(BATCH), y.split(BATCH)):
            loss = model(a, b, *extra(names, a))[0]
            n = b.numel() if following else b[:, 1:].numel()
            total, count = total + loss.item() * n, count + n
    return total / count, count


def extra(names, x):
    made = dict(attention_mask=torch.ones_like(x), position_ids=torch.arange(x.shape[1]).expand_as(x), token_type_ids=torch.zeros_like(x))
    return [made[n] for n in names[2:]]


def write(model, names, path, exporter):
    ids = torch.randint(0, 50, (BATCH, LENGTH))
    args = (ids, ids.clone(), *extra(names, ids))
    options = dict(input_names=names, output_names=["loss", "logits"], opset_version=18)
    if exporter == "dynamo":
        torch.onnx.export(model, args, path, dynamo=True, external_data=True, **options)
    else:
        torch.onnx.export(model, args, path, dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE, **options)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gpt2")
    p.add_argument("--text", default=os.path.join(HERE, "../cmd/remat/demo/alice.txt"))
    p.add_argument("--folder")
    a = p.parse_args()
    torch.manual_seed(0)
    folder = a.folder or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    if a.gpt2:
        tokenizer, flags = golden_tokens.gpt2(a.gpt2), []
    else:
        path = os.path.join(HERE, "../train/data/testdata/llama3.json")
        tokenizer, flags = Tokenizer.from_file(path), ["--tokenizer", path]
    with open(a.text, newline="") as f:
        ids = tokenizer.encode(f.read(), add_special_tokens=False).ids
    failed = 0
    for name, model, names, how in models(tokenizer.get_vocab_size()):
        model.eval()
        with torch.no_grad():
            for w in model.parameters():  # exporters merge equal constants
                w.add_(0.02 * torch.randn_like(w))
        want, count = expected(model, names, ids, int("next" in how))
        for exporter in ("torchscript", "dynamo"):
            path = os.path.join(folder, name.replace(", ", "-").replace(" ", "-") + "." + exporter + ".onnx")
            try:
                write(model, names, path, exporter)
            except Exception as e:
                print(f"{name:32} {exporter:12} not exported: {str(e).splitlines()[0][:120]}", flush=True)
                continue
            run = subprocess.run([REMAT, "eval", path, "--text", a.text, "--json", "--quiet", *flags], capture_output=True, text=True)
            if run.returncode:
                print(f"{name:32} {exporter:12} FAILED: {run.stderr.strip()}", flush=True)
                failed += 1
                continue
            got = json.loads(run.stdout)
            off = abs(got["loss"] - want) / want
            ok = off < 1e-5 and got["tokens"] == count
            failed += not ok
            print(f"{name:32} {exporter:12} loss {got['loss']:.7f}, PyTorch {want:.7f}, off {off:.1e}; {got['tokens']} labels of {count}"
                  f"{'' if ok else '  FAILED'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
