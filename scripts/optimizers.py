#!/usr/bin/env python3
"""Optimizers that hold little state beside their authors' implementations and PyTorch's.

    make build ort
    scripts/optimizers.py

Ten steps of a small network, with matrices large enough for codes, from the same weights on the same
batch: by `remat run` with the optimizer in the graph, and by a reference in PyTorch. Prints, of the way
that each parameter went, how far the two are apart, and ends with 1 where that is more than 1e-3 of the
way, or what is said below.

adafactor: transformers.optimization.Adafactor without relative steps, and torch.optim.Adafactor with
them. muon: torch.optim.Muon with the rate of match_rms_adamw, in float32 where it computes in
bfloat16, and torch.optim.AdamW for vectors. apollo-mini: the package apollo-torch, with the signs
that remat draws for its normal numbers; left out where it is not installed. adamw8bit: torch.optim.AdamW,
whose moments are float32, so up to 5e-2 of the way is the eight bits' own.
Needs torch, transformers, onnx and safetensors.
"""
import argparse
import inspect
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

STEPS, RATE = 10, 0.01


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(24, 200), torch.nn.Tanh(), torch.nn.Linear(200, 40), torch.nn.Tanh(), torch.nn.Linear(40, 16))

    def forward(self, x, y):
        return (self.layers(x) - y).square().mean()


def signs(n, draw=0):
    """As rewrite/optim/random.go."""
    p = 2**31 - 1
    x = [(48271 * (i + 1) + 69621 * (draw + 1)) % p for i in range(n)]
    for k in (1234577, 777767777, 1618033987):
        x = [v * (v + k) % p for v in x]
    return [1.0 - 2 * (v % 2) for v in x]


def adafactor(model):
    return [transformers.optimization.Adafactor(model.parameters(), lr=RATE, scale_parameter=False, relative_step=False)]


def relative(model):
    return [torch.optim.Adafactor(model.parameters(), lr=RATE, eps=(1e-15, 1e-3))]


def muon(model):
    module = sys.modules["torch.optim._muon"]
    exec(inspect.getsource(module._zeropower_via_newtonschulz).replace("bfloat16", "float32"), vars(module))
    return [torch.optim.Muon([p for p in model.parameters() if p.dim() > 1], lr=RATE, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=RATE, weight_decay=0.1)]


def apollo(model):
    try:
        import apollo_torch
        from apollo_torch import random_projector
    except ImportError:
        return None
    random_projector.stable_randn = lambda shape, seed, device=None, dtype=torch.float32: torch.tensor(signs(max(shape)), dtype=dtype).reshape(shape)
    low = {"rank": 1, "proj": "random", "scale_type": "tensor", "scale": 128, "update_proj_gap": 200, "proj_type": "std"}
    return [apollo_torch.APOLLOAdamW([{"params": [p for p in model.parameters() if p.dim() > 1], **low},
                                      {"params": [p for p in model.parameters() if p.dim() < 2]}], lr=RATE, eps=1e-8)]


def adamw(model):
    return [torch.optim.AdamW(model.parameters(), lr=RATE)]


# A reference, further flags of grad, and how far they may be apart.
CASES = {
    "adafactor": (adafactor, [], 1e-3),
    "adafactor, relative": (relative, ["--relative-step", "1e-3"], 1e-3),
    "apollo-mini": (apollo, [], 1e-3),
    "muon": (muon, [], 1e-3),
    "adamw8bit": (adamw, [], 5e-2),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remat", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "remat"), help="the program")
    a = parser.parse_args()
    program = os.path.abspath(a.remat)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        def remat(*args):
            done = subprocess.run([program, "--quiet", *args], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"remat {' '.join(args)}: {done.stderr.strip()}")
        torch.manual_seed(0)
        x, y = torch.randn(32, 24), torch.randn(32, 16)
        first = Loss()
        torch.onnx.export(first, (x, y), os.path.join(folder, "model.onnx"), dynamo=False, opset_version=18, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE, input_names=["x", "y"], output_names=["loss"])
        np.savez(os.path.join(folder, "batch.npz"), x=x.numpy(), y=y.numpy())
        for name, (reference, flags, most) in CASES.items():
            model = Loss()
            model.load_state_dict(first.state_dict())
            optimizers = reference(model)
            if optimizers is None:
                print(f"{name}: its package is not installed")
                continue
            for _ in range(STEPS):
                model.zero_grad()
                model(x, y).backward()
                for o in optimizers:
                    o.step()
            remat("grad", "model.onnx", "-o", "train.onnx", "--optimizer", name.split(",")[0], *flags)
            remat("run", "train.onnx", "--feeds", "batch.npz", "--steps", str(STEPS), "--lr", str(RATE), "--save", "state.safetensors")
            state = load_file(os.path.join(folder, "state.safetensors"))
            apart = {}
            for key, p in model.named_parameters():
                way = (p - first.state_dict()[key]).detach().norm().item()
                apart[key] = np.linalg.norm(state[key] - p.detach().numpy()) / way
            key = max(apart, key=apart.get)
            if not apart[key] <= most:
                wrong.append(name)
            print(f"{name}: at most {apart[key]:.1e} of the way apart ({key})")
    sys.exit(f"too far apart: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
