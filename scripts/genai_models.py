#!/usr/bin/env python3
"""The samples of testdata/models/genai: what ONNX Runtime's builder of generating models
writes, with PyTorch's answers.

    pip install -r scripts/requirements.txt onnxruntime-genai tokenizers
    scripts/genai_models.py --out testdata/models/genai

Each is a tiny decoder with a window, a cap or norms of heads, in float32 or with weights
in four bits: logits and a cache, no loss. The archive holds a batch, and the loss of the
next token and its gradients by PyTorch in float64, whose weights are those of the file,
widened. Keys as in testdata/models/README.md.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import torch
import transformers
from onnx import numpy_helper
from tokenizers import Tokenizer, models

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             max_position_embeddings=32, head_dim=16, bos_token_id=1, eos_token_id=2)
KINDS = {
    # Of the root of the width the builder keeps two decimals; a layer as wide as the
    # vocabulary it takes for the last one.
    "gemma2_fp32": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM, dict(sliding_window=4, hidden_size=64, vocab_size=80), "fp32"),
    "qwen3_int4": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, dict(tie_word_embeddings=True), "int4"),
    "llama_int4": (transformers.LlamaConfig, transformers.LlamaForCausalLM, dict(tie_word_embeddings=False), "int4"),
}


def build(kind, folder):
    config, cls, extra, precision = KINDS[kind]
    sizes = {**SIZES, **extra}
    torch.manual_seed(0)
    model = cls(config(**sizes)).float().eval()
    for p in model.parameters():  # norms of ones have the gradients of any
        p.data += 0.1 * torch.randn_like(p)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(sizes["vocab_size"])}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2", pad_token="w0").save_pretrained(folder)
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", folder, "-o", folder + "/out", "-p", precision, "-e", "cpu"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return model.double(), onnx.load(folder + "/out/model.onnx")


def widened(node, tensors):
    """The weight [N, K] of a MatMulNBits of four bits without zero points."""
    at = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    codes, scales = tensors[node.input[1]], tensors[node.input[2]]
    codes = np.stack([codes & 15, codes >> 4], -1).reshape(at["N"], -1, at["block_size"]).astype(np.float64)
    return ((codes - 8) * scales.reshape(at["N"], -1, 1)).reshape(at["N"], -1)[:, : at["K"]]


def of(name):
    """The parameters of PyTorch's that an initializer or a packed weight is of, in rows."""
    name = name.replace("_Q4", "").replace(".MatMul.", ".").replace(".attn.", ".self_attn.").replace(".layernorm.", ".")
    name = name.replace("model.layers.2.final_norm_layernorm", "model.norm")
    if "qkv_proj" in name:
        return [name.replace("qkv_proj", x + "_proj") for x in "qkv"]
    return [name]


def sample(kind, out):
    with tempfile.TemporaryDirectory() as folder:
        model, graph = build(kind, folder)
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.graph.initializer}
    own = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for n in graph.graph.node:
            if n.op_type == "MatMulNBits":
                rows = torch.tensor(widened(n, tensors))
                for p in of(n.input[1]):
                    own[p].copy_(rows[: own[p].shape[0]])
                    rows = rows[own[p].shape[0]:]
    torch.manual_seed(1)
    ids = torch.randint(3, SIZES["vocab_size"], (2, 9))
    loss = model(ids, labels=ids).loss
    loss.backward()
    arrays = {"in:input_ids": ids.numpy(), "in:labels": ids.numpy(), "in:attention_mask": np.ones((2, 9), np.int64), "out:loss": np.float32(loss.item())}
    for name in tensors:
        parts = [own[p] for p in of(name) if p in own]
        if not parts or "_Q4" in name:
            continue
        g = torch.cat([p.grad for p in parts]).numpy()
        arrays["grad:" + name] = (g.T if g.shape != tensors[name].shape or "MatMul" in name else g).astype(np.float32)
    graph.producer_version = ""
    onnx.save(graph, os.path.join(out, kind + ".onnx"))
    np.savez_compressed(os.path.join(out, kind + ".npz"), **arrays)
    print(kind, loss.item(), sorted(k for k in arrays if k.startswith("grad:")))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for kind in KINDS:
        sample(kind, a.out)


if __name__ == "__main__":
    main()
