#!/usr/bin/env python3
"""The models of finetune.py, exported, and trained by PyTorch.

    scripts/finetune_torch.py 'adapters, PEFT' --steps 2

A row of PyTorch's in a process of its own: prints the seconds, processor seconds and losses of its steps, and
the most memory beyond mapped files from the first step on, as JSON. Needs torch and transformers; adapters
need peft, frozen weights in four bits bitsandbytes.
"""
import argparse
import ctypes
import gc
import importlib.util
import json
import os
import re
import threading
import time
import zlib

import numpy as np
import torch
import transformers

TOKENS, RATE = 512, "1e-4"
COMMON = dict(vocab_size=151936, num_key_value_heads=2, max_position_embeddings=TOKENS, tie_word_embeddings=True, rope_theta=1e6, attn_implementation="eager")
SHAPES = {
    "qwen": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14),
    "qwen_1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12),
    "small": dict(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000),
}

# What PyTorch trains, and the packages that this needs.
ROWS = {
    "adapters, PEFT": ["peft"],
    "adapters, PEFT, frozen in NF4": ["peft", "bitsandbytes"],
    "everything, AdamW, PyTorch": [],
}


def missing(name):
    """The packages of a row that are not installed."""
    return [p for p in ROWS.get(name, []) if importlib.util.find_spec(p) is None]


def build(shape, device="cpu"):
    """The same weights at every call; on the device "meta" none."""
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**COMMON, **SHAPES[shape]}))


def batch(shape):
    ids = np.random.default_rng(0).integers(0, {**COMMON, **SHAPES[shape]}["vocab_size"], (1, TOKENS))
    return {"input_ids": ids, "labels": ids}


class Text(torch.nn.Module):
    """The mask of ones keeps transformers from looking for packed sequences."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels, use_cache=False).loss


def export(shape, path, drawn=False):
    """Writes the model; drawn: with weights that are drawn as they are written, so that memory holds one at a time."""
    device = "meta" if drawn else "cpu"
    model = build(shape, device)
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device=device)
    program = torch.onnx.export(Text(model).eval(), (ids, ids.clone()), dynamo=True, optimize=False, verbose=False,
                                input_names=["input_ids", "labels"], output_names=["loss"])
    if drawn:
        draw(program.model.graph, model.config)
    program.save(path, external_data=True)


def draw(graph, config):
    """Gives a graph without weights some, as transformers begins: normal with its deviation, norms 1, biases 0."""
    import onnx_ir as ir
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    def numbers(name, shape):
        if name.endswith("inv_freq"):
            return Qwen2RotaryEmbedding(config).inv_freq.numpy()
        if name.endswith("norm.weight") or name.endswith(".bias"):
            return np.full(shape, name.endswith("norm.weight"), np.float32)
        return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32) * np.float32(config.initializer_range)

    for name, value in graph.initializers.items():
        shape = tuple(int(n) for n in value.shape)
        value.const_value = ir.LazyTensor(lambda name=name, shape=shape: ir.tensor(numbers(name, shape), name=name),
                                          dtype=value.dtype, shape=value.shape, name=name)


def in_four_bits(model):
    """Holds the linear layers that get adapters as bitsandbytes does, in NF4, blocks of 64."""
    import bitsandbytes
    for path, layer in list(model.named_modules()):
        if path.endswith("_proj"):
            held = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=torch.float32, quant_type="nf4")
            held.load_state_dict(layer.state_dict())
            parent, name = re.fullmatch(r"(.*)\.(\w+)", path).groups()
            setattr(model.get_submodule(parent), name, held.to("cpu"))  # which quantizes
    return model


def anonymous(pid):
    """The bytes of a process that no file is behind, and 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/status") as f:
            held = dict(line.split(":", 1) for line in f)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(held[k].split()[0]) * 1024 for k in ("RssAnon", "RssShmem") if k in held)


class Watch:
    """The most memory beyond mapped files while it is open."""

    def __enter__(self):
        self.most, self.ends = 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.ends.wait(0.01):
            self.most = max(self.most, anonymous(os.getpid()))

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def train(name, shape, steps):
    model = build(shape).train()
    if "NF4" in name:
        model = in_four_bits(model)
    if name.startswith("adapters"):
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=r".*_proj"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=float(RATE))
    feeds = {k: torch.tensor(v) for k, v in batch(shape).items()}
    feeds["attention_mask"] = torch.ones_like(feeds["input_ids"])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what building took is not counted
    done = []
    with Watch() as watch:
        for _ in range(steps):
            began, busy = time.time(), time.process_time()
            loss = model(**feeds, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done.append({"loss": loss.item(), "seconds": time.time() - began, "processor": time.process_time() - busy})
    return {"steps": done, "process_bytes": watch.most}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name", choices=ROWS)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--shape", choices=SHAPES, default="qwen")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    print(json.dumps(train(a.name, a.shape, a.steps)))


if __name__ == "__main__":
    main()
