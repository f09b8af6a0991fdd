#!/usr/bin/env python3
"""What PyTorch says of the zoo's mlp, for comparison.

    pip install torch safetensors numpy
    scripts/mlp_reference.py OUT [--layers 20 --hidden 16 --classes 10 --batch 8 --seed 0]

writes OUT.safetensors (the weights, in the zoo's names) and OUT.npz with the
keys of gpt2_reference.py: in:x, in:labels, out:loss, grad:NAME, train:loss.
models/testdata/mlp_reference.* is what the defaults make.

With --weights the weights are those of a file, and OUT.npz holds only in:… and
train:…:

    remat model mlp -o M.onnx
    scripts/mlp_reference.py models/testdata/mlp_training --weights M.safetensors \\
        --hidden 1024 --batch 32 --lr 3e-5

The learning rate is what keeps that run reproducible. With 1e-3 each of 1,024
addends of a sum moves the same way by 1e-3 a step, the loss jumps, and rounding
decides where: PyTorch's own float32 and float64 runs then part by 2e-3 in ten
steps (by 3e-6 with 1e-4, by 3e-7 with 3e-5, while the loss falls to a
twentieth).
"""
import argparse

import numpy as np
import torch
from safetensors.torch import load_file, save_file


class MLP(torch.nn.Module):
    def __init__(self, layers, hidden, classes):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(layers))
        self.head = torch.nn.Linear(hidden, classes)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    for name, default in dict(layers=20, hidden=16, classes=10, batch=8, seed=0).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--weights", help="a safetensors file to take the weights from")
    a = p.parse_args()

    torch.manual_seed(a.seed)
    model = MLP(a.layers, a.hidden, a.classes)
    with torch.no_grad():
        for w in model.parameters():
            w.mul_(1.7)
    x = torch.randn(a.batch, a.hidden)
    labels = torch.randint(0, a.classes, (a.batch,))
    if a.weights:
        model.load_state_dict(load_file(a.weights))
        x = (32 * x).round() / 32  # few bits, which compress
    arrays = {"in:x": x.numpy(), "in:labels": labels.numpy()}
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        if step == 0 and not a.weights:
            arrays["out:loss"] = loss.detach().numpy()
            for name, w in model.named_parameters():
                arrays["grad:" + name] = w.grad.numpy().copy()
        optimizer.step()
        losses.append(loss.item())
    arrays["train:loss"], arrays["train:lr"] = np.array(losses, np.float64), np.array(a.lr)
    if not a.weights:
        save_file(weights, a.out + ".safetensors", metadata={"format": "pt"})
    np.savez_compressed(a.out + ".npz", **arrays)
    print("losses", losses)


if __name__ == "__main__":
    main()
