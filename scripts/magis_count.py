"""What a training step of PyTorch holds at most, counted without the memory for it.

The step runs on fake tensors, which have shapes and no numbers. Each operator's new
storages are added as it returns, and taken off when Python and autograd have let go of
them, as PyTorch's allocator would. What an operator allocates for itself and releases
before it returns is not seen, in PyTorch's favour.
"""
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Storages(TorchDispatchMode):
    """Adds up the storages that are alive and were not there before."""

    def __init__(self, before):
        super().__init__()
        self.known = weakref.WeakSet(before)
        self.live = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.add(t.untyped_storage())
        return out

    def add(self, storage):
        if storage in self.known:
            return
        self.known.add(storage)
        n = storage.nbytes()
        self.live += n
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.release, n)

    def release(self, n):
        self.live -= n


def step(model, batch, rate):
    """Forward, backward, and an update by SGD, after which the gradients go."""
    loss = model(*batch)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-rate)
            p.grad = None


def counted(make, batch, rate=0.01):
    """Bytes of a model's parameters, and the most that its step holds beside them and the batch."""
    with FakeTensorMode():
        model = make()
        batch = tuple(torch.empty(t.shape) for t in batch)
        before = [t.untyped_storage() for t in [*model.parameters(), *model.buffers(), *batch]]
        with Storages(before) as storages:
            step(model, batch, rate)
    return sum(p.numel() * p.element_size() for p in model.parameters()), storages.peak
