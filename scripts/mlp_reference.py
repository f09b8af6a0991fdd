#!/usr/bin/env python3
"""What PyTorch says of the zoo's mlp, for comparison.

    pip install torch safetensors numpy
    scripts/mlp_reference.py OUT [--layers 20 --hidden 16 --classes 10 --batch 8 --seed 0]

writes OUT.safetensors (the weights, in the zoo's names) and OUT.npz with the
keys of gpt2_reference.py: in:x, in:labels, out:loss, grad:NAME, train:loss.
models/testdata/mlp_reference.* is what the defaults make.
"""
import argparse

import numpy as np
import torch
from safetensors.torch import save_file


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
    a = p.parse_args()

    torch.manual_seed(a.seed)
    model = MLP(a.layers, a.hidden, a.classes)
    with torch.no_grad():
        for w in model.parameters():
            w.mul_(1.7)
    x = torch.randn(a.batch, a.hidden)
    labels = torch.randint(0, a.classes, (a.batch,))
    arrays = {"in:x": x.numpy(), "in:labels": labels.numpy()}
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        if step == 0:
            arrays["out:loss"] = loss.detach().numpy()
            for name, w in model.named_parameters():
                arrays["grad:" + name] = w.grad.numpy().copy()
        optimizer.step()
        losses.append(loss.item())
    arrays["train:loss"] = np.array(losses, np.float64)
    save_file(weights, a.out + ".safetensors", metadata={"format": "pt"})
    np.savez_compressed(a.out + ".npz", **arrays)
    print("losses", losses)


if __name__ == "__main__":
    main()
