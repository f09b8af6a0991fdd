#!/usr/bin/env python3
"""What PyTorch's GPT-2 says, for comparison with the zoo's.

    pip install torch transformers safetensors numpy
    scripts/gpt2_reference.py OUT [--layers 2 --hidden 24 --heads 3 --vocab 61
                                   --positions 12 --batch 2 --seq 12 --seed 0]

writes OUT.safetensors (the weights, in Hugging Face's names) and OUT.npz:

    in:input_ids, in:labels   the feeds; some labels are -100
    out:loss, out:logits      of transformers' GPT2LMHeadModel, float32, CPU
    grad:NAME                 the loss's gradient by each parameter
    train:loss                the losses of ten AdamW steps on that batch, with
                              PyTorch's defaults but for train:lr

The same weights go into the zoo's model by

    remat model gpt2 --layers 2 … --weights OUT.safetensors -o M.onnx

models/testdata/gpt2_reference.* is what the defaults make.

With --weights the weights are those of a file, and OUT.npz holds only in:… and
train:…, which is small for a model of any size:

    remat model gpt2-tiny -o T.onnx
    scripts/gpt2_reference.py models/testdata/gpt2-tiny_training --weights T.safetensors \\
        --hidden 64 --heads 4 --vocab 512 --positions 64 --seq 64
"""
import argparse

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    for name, default in dict(layers=2, hidden=24, heads=3, vocab=61, positions=12, batch=2, seq=12, seed=0).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--weights", help="a safetensors file to take the weights from")
    a = p.parse_args()

    torch.manual_seed(a.seed)
    config = GPT2Config(
        n_layer=a.layers, n_embd=a.hidden, n_head=a.heads, vocab_size=a.vocab, n_positions=a.positions,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config)
    if a.weights:
        missing, unknown = model.load_state_dict(load_file(a.weights), strict=False)
        if unknown or missing != ["lm_head.weight"]:
            p.error(f"{a.weights}: lacks {missing}, has {unknown} besides")
        model.tie_weights()
    with torch.no_grad():
        # Biases and norms off their zeros and ones, and weights large enough
        # that attention is far from uniform.
        for name, w in [] if a.weights else model.named_parameters():
            if "ln_" in name or name.endswith("bias"):
                w.add_(0.1 * torch.randn_like(w))
            else:
                w.mul_(5.0)

    ids = torch.randint(0, a.vocab, (a.batch, a.seq))
    labels = ids.clone()
    labels[0, : a.seq // 4] = -100
    out = model(ids, labels=labels, use_cache=False)
    out.loss.backward()

    arrays = {"in:input_ids": ids.numpy(), "in:labels": labels.numpy()}
    arrays["out:loss"] = out.loss.detach().numpy()
    arrays["out:logits"] = out.logits.detach().numpy()
    weights = {}
    for name, w in model.named_parameters():
        weights[name] = w.detach().clone()
        arrays["grad:" + name] = w.grad.numpy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(ids, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    arrays["train:loss"], arrays["train:lr"] = np.array(losses, np.float64), np.array(1e-3)
    if a.weights:
        arrays = {k: v for k, v in arrays.items() if k.startswith(("in:", "train:"))}
    else:
        save_file(weights, a.out + ".safetensors", metadata={"format": "pt"})
    np.savez_compressed(a.out + ".npz", **arrays)
    print(f"loss {out.loss.item():.6f}, {sum(w.numel() for w in weights.values())} parameters")


if __name__ == "__main__":
    main()
