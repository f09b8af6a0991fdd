#!/usr/bin/env python3
"""Models through parts of which no gradient flows, with PyTorch's gradients.

    pip install torch onnx onnxscript
    scripts/stop_models.py FOLDER

Each is exported three times: NAME.dyn.onnx (dynamo, optimize=False), NAME.dynopt.onnx
(dynamo as it comes) and NAME.ts.onnx (TorchScript, training mode). NAME.npz holds
the feeds, in:FEED; the loss, out:loss; and the gradients, grad:PARAMETER. A
parameter that PyTorch gives no gradient has no entry.

    vq       a quantizer with a straight-through estimator (van den Oord et al., 2017)
    simsiam  two views and a stop-gradient (Chen and He, 2020)
    dqn      a value network and its target network (Mnih et al., 2015)
    gan      a discriminator's step on a detached generator (Goodfellow et al., 2014)
"""
import os
import re
import sys
import warnings

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")


def mlp(*widths):
    layers = []
    for n, m in zip(widths, widths[1:]):
        layers += [nn.Linear(n, m), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.codebook, self.decoder = mlp(6, 8, 4), nn.Embedding(5, 4), mlp(4, 8, 6)

    def forward(self, x):
        z = self.encoder(x)
        distance = ((z[:, None, :] - self.codebook.weight[None]) ** 2).sum(-1)
        q = self.codebook(distance.argmin(1))
        through = z + (q - z).detach()
        commit = F.mse_loss(z, q.detach()) * 0.25 + F.mse_loss(q, z.detach())
        return F.mse_loss(self.decoder(through), x) + commit


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.predictor = mlp(6, 8, 4), mlp(4, 3, 4)

    def forward(self, a, b):
        z, y = self.encoder(a), self.encoder(b)
        near = F.cosine_similarity(self.predictor(z), y.detach()).mean()
        return -0.5 * (near + F.cosine_similarity(self.predictor(y), z.detach()).mean())


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = mlp(4, 8, 3), mlp(4, 8, 3)

    def forward(self, state, action, reward, after):
        value = self.online(state).gather(1, action[:, None])[:, 0]
        best = self.online(after).argmax(1)
        goal = reward + 0.9 * self.target(after).gather(1, best[:, None])[:, 0]
        return F.mse_loss(value, goal.detach())


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.judge = mlp(3, 8, 6), mlp(6, 8, 1)

    def forward(self, noise, real):
        made = self.generator(noise).detach()
        return F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(made)).mean()


MODELS = {
    "vq": (VQ, lambda: dict(x=torch.randn(7, 6))),
    "simsiam": (SimSiam, lambda: dict(a=torch.randn(5, 6), b=torch.randn(5, 6))),
    "dqn": (DQN, lambda: dict(state=torch.randn(5, 4), action=torch.randint(0, 3, (5,)), reward=torch.randn(5),
                              after=torch.randn(5, 4))),
    "gan": (GAN, lambda: dict(noise=torch.randn(5, 3), real=torch.randn(5, 6))),
}
EXPORTS = {
    "dyn": dict(dynamo=True, optimize=False, external_data=False, verbose=False),
    "dynopt": dict(dynamo=True, external_data=False, verbose=False),
    "ts": dict(dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17),
}


def strip(path):
    """Takes the folders of the machine out of the stack traces."""
    m = onnx.load(path)
    for node in m.graph.node:
        node.doc_string = ""
        for p in node.metadata_props:
            if p.key == "pkg.torch.onnx.stack_trace":
                p.value = re.sub(r'File "[^"<]*/', 'File "', p.value)
    onnx.save(m, path)


def make(name, folder):
    torch.manual_seed(0)
    build, feed = MODELS[name]
    model, feeds = build().train(), feed()
    model(*feeds.values()).backward()
    keys = {f"in:{k}": v for k, v in feeds.items()} | {"out:loss": model(*feeds.values()).detach()}
    keys |= {f"grad:{k}": p.grad for k, p in model.named_parameters() if p.grad is not None}
    np.savez_compressed(os.path.join(folder, name + ".npz"), **{k: v.numpy() for k, v in keys.items()})
    for kind, options in EXPORTS.items():
        path = os.path.join(folder, f"{name}.{kind}.onnx")
        torch.onnx.export(model, tuple(feeds.values()), path, input_names=list(feeds), output_names=["loss"], **options)
        strip(path)
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name in MODELS:
        make(name, sys.argv[1])
