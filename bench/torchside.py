#!/usr/bin/env python3
"""PyTorch's half of the comparison: GPT-2 of transformers, one step at a time.

    bench/compare.py                                      # uses it, on the CPU
    bench/torchside.py --device cuda --models gpt2 gpt2-medium --json F   # alone, on a GPU

A step is what a training graph of remat does: forward, backward, all gradients
returned; with an optimizer, the update too. Its peak is read off PyTorch's own
record of every allocation and release of the CPU allocator (torch.profiler with
profile_memory), temporaries inside operators included, counted from the step's
start. What the math library allocates for itself is not in it, in PyTorch's
favour. On a GPU it is what PyTorch's caching allocator says was allocated.
"""
import argparse
import os
import statistics
import sys
import time

import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import tables  # noqa: E402


class Variant:
    """One way to run the model: checkpoint and optimizer are the choices."""

    def __init__(self, name, weights, config, batch, checkpoint=False, attention="eager", adamw=False, shared=None):
        self.name = name
        self.batch = batch
        self.checkpoint = checkpoint
        if shared:  # another variant's model and state: with a rate of 0 they stay
            self.model, self.optimizer = shared.model, shared.optimizer
            return
        self.model = GPT2LMHeadModel(
            GPT2Config(**config, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation=attention)
        )
        if weights:
            missing = self.model.load_state_dict(load_file(weights), strict=False).missing_keys
            if [k for k in missing if k != "lm_head.weight"]:
                raise SystemExit(f"{weights}: lacks {missing}")
            self.model.tie_weights()
        self.model.to(batch[0].device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0) if adamw else None

    def step(self):
        if self.checkpoint:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()
        self.model.zero_grad(set_to_none=True)
        ids, labels = self.batch
        loss = self.model(ids, labels=labels, use_cache=False).loss
        loss.backward()
        if self.optimizer:
            self.optimizer.step()
        return loss.item()

    def timed(self):
        self.model.zero_grad(set_to_none=True)
        wall, cpu = time.perf_counter(), time.process_time()
        loss = self.step()
        return time.perf_counter() - wall, time.process_time() - cpu, loss

    def parameter_bytes(self):
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def state_bytes(self):
        if not self.optimizer:
            return 0
        return sum(
            t.numel() * t.element_size()
            for s in self.optimizer.state.values()
            for t in s.values()
            if torch.is_tensor(t)
        )

    def live_peak(self):
        """Largest sum of what the step allocated and had not yet released."""
        self.model.zero_grad(set_to_none=True)
        if self.batch[0].is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.step()
            return torch.cuda.max_memory_allocated() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
            self.step()
        sizes = [
            (e.start_ns(), e.nbytes())
            for e in p.profiler.kineto_results.events()
            if e.name() == "[memory]" and e.device_type() == torch.profiler.DeviceType.CPU
        ]
        live = peak = 0
        for _, n in sorted(sizes, key=lambda x: x[0]):
            live += n
            peak = max(peak, live)
        return peak

    def by_operator(self):
        """Milliseconds of one step by operator, what each calls left to that."""
        self.step()
        with profile(activities=[ProfilerActivity.CPU]) as p:
            self.step()
        return [(e.key.removeprefix("aten::"), e.count, e.self_cpu_time_total / 1000) for e in p.key_averages()]


def environment():
    return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"


# Layers, width and heads of the models by the zoo's names.
SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-tiny": (2, 64, 4)}


def main():
    """One row per model, type and checkpointing, by itself."""
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cpu")
    p.add_argument("--models", nargs="+", default=["gpt2"], choices=SIZES)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--json", required=True)
    a = p.parse_args()
    rows = []
    for model in a.models:
        layers, width, heads = SIZES[model]
        ids = torch.randint(0, 50257, (a.batch, a.seq), device=a.device)
        for dtype in (None, torch.float16, torch.bfloat16):
            for checkpoint in (False, True):
                torch.manual_seed(0)
                config = dict(n_layer=layers, n_embd=width, n_head=heads)
                v = Variant(model, None, config, (ids, ids), checkpoint, "sdpa")
                with torch.autocast(a.device.split(":")[0], dtype=dtype, enabled=dtype is not None):
                    v.step()
                    peak = v.live_peak()
                    seconds = [v.timed()[0] for _ in range(a.steps)]
                rows.append({
                    "model": model, "type": str(dtype or torch.float32)[6:], "checkpointed": checkpoint,
                    "live peak MB": round(peak / 1e6, 1), "counted MB": round((peak + v.parameter_bytes()) / 1e6, 1),
                    "step s": statistics.median(seconds), "version": torch.__version__,
                })
                print(rows[-1], file=sys.stderr, flush=True)
                del v
    tables.keep(*os.path.split(a.json), rows)


if __name__ == "__main__":
    main()
