#!/usr/bin/env python3
"""Joint graphs as PyTorch writes them: forward, backward and, if asked for, the
update of the parameters, in one graph of ordinary ONNX operators.

    pip install torch transformers onnx onnxscript
    scripts/export_joint.py FOLDER [--case GLOB]... [--list]
    scripts/export_joint.py FOLDER --model gpt2 --step adamw [--layers N --width N --heads N
        --batch N --seq N --vocab N] [--exporter dynamo|torchscript] [--weights inputs|initializers]
        [--trace functional|aot] [--dynamic] [--logits] [--half float16|bfloat16]

A loss is traced with its gradients (torch.func.grad_and_value under make_fx, or
AOT autograd's joint graph), down to core ATen operators, and that graph is
exported. Each case is written as NAME.onnx with NAME.npz beside it: keys
in:INPUT, param:INPUT (the parameters, where they are inputs) and out:OUTPUT,
PyTorch's own answers. What an exporter refuses is said and left out.

    functional   loss and gradients as torch.func gives them
    aot          the joint graph that torch.compile would split
    --step       grad: loss and gradients; sgd, momentum, adamw: the new
                 parameters and state instead, named new_INPUT
"""
import argparse
import contextlib
import fnmatch
import io
import os
import sys
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")


# Models: a module whose forward takes the feeds and returns (loss, logits), and
# the feeds.


class HuggingFace(nn.Module):
    """A model of transformers with labels among its inputs."""

    def __init__(self, model, names):
        super().__init__()
        import transformers.masking_utils as masking

        masking.is_tracing = lambda *_: True  # make_fx too: look at no value
        self.model, self.names = model, names

    def forward(self, *feeds):
        out = self.model(**dict(zip(self.names, feeds)), return_dict=True)
        return out.loss, out.logits


def gpt2(o, attention="eager", tied=True):
    from transformers import GPT2Config, GPT2LMHeadModel

    c = GPT2Config(n_layer=o.layers, n_embd=o.width, n_head=o.heads, vocab_size=o.vocab, n_positions=o.seq,
                   embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, use_cache=False,
                   attn_implementation=attention, tie_word_embeddings=tied)
    return HuggingFace(GPT2LMHeadModel(c), ["input_ids", "labels"]), tokens(o, 2)


def llama(o, attention="eager"):
    from transformers import LlamaConfig, LlamaForCausalLM

    c = LlamaConfig(num_hidden_layers=o.layers, hidden_size=o.width, intermediate_size=3 * o.width,
                    num_attention_heads=o.heads, num_key_value_heads=max(o.heads // 2, 1), vocab_size=o.vocab,
                    max_position_embeddings=max(o.seq, 16), use_cache=False, attn_implementation=attention)
    return HuggingFace(LlamaForCausalLM(c), ["input_ids", "labels"]), tokens(o, 2)


def bart(o):
    from transformers import BartConfig, BartForConditionalGeneration

    c = BartConfig(encoder_layers=o.layers, decoder_layers=o.layers, d_model=o.width, vocab_size=o.vocab,
                   encoder_attention_heads=o.heads, decoder_attention_heads=o.heads,
                   encoder_ffn_dim=4 * o.width, decoder_ffn_dim=4 * o.width, max_position_embeddings=o.seq,
                   dropout=0, attention_dropout=0, activation_dropout=0, use_cache=False,
                   attn_implementation="eager")
    return HuggingFace(BartForConditionalGeneration(c), ["input_ids", "decoder_input_ids", "labels"]), tokens(o, 3)


def t5(o):
    from transformers import T5Config, T5ForConditionalGeneration

    c = T5Config(num_layers=o.layers, num_decoder_layers=o.layers, d_model=o.width, d_kv=o.width // o.heads,
                 d_ff=4 * o.width, num_heads=o.heads, vocab_size=o.vocab, dropout_rate=0, use_cache=False)
    return HuggingFace(T5ForConditionalGeneration(c), ["input_ids", "decoder_input_ids", "labels"]), tokens(o, 3)


def bert(o):
    from transformers import BertConfig, BertForMaskedLM

    c = BertConfig(num_hidden_layers=o.layers, hidden_size=o.width, num_attention_heads=o.heads,
                   intermediate_size=4 * o.width, vocab_size=o.vocab, max_position_embeddings=o.seq,
                   hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")
    ids, labels = tokens(o, 2)
    return HuggingFace(BertForMaskedLM(c), ["input_ids", "attention_mask", "labels"]), \
        (ids, torch.ones_like(ids), labels)


def vit(o):
    from transformers import ViTConfig, ViTForImageClassification

    c = ViTConfig(num_hidden_layers=o.layers, hidden_size=o.width, num_attention_heads=o.heads,
                  intermediate_size=4 * o.width, image_size=32, patch_size=4, num_labels=10,
                  hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")
    return HuggingFace(ViTForImageClassification(c), ["pixel_values", "labels"]), images(o)


def batch_norm(n):
    return nn.BatchNorm2d(n, track_running_stats=False)  # else buffers are written while tracing


class Residual(nn.Module):
    def __init__(self, n, m, stride):
        super().__init__()
        self.one, self.two = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = batch_norm(m), batch_norm(m)
        self.short = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), batch_norm(m)) if stride > 1 else None

    def forward(self, x):
        y = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return F.relu(y + (self.short(x) if self.short is not None else x))


class ResNet(nn.Module):
    """Batch normalization in training."""

    def __init__(self, layers, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), batch_norm(width), nn.ReLU(),
                                  nn.MaxPool2d(2))
        stages, n = [], width
        for i in range(layers):
            m = width << (2 * i // layers)
            stages.append(Residual(n, m, 2 if m != n else 1))
            n = m
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(n, 10)

    def forward(self, x, labels):
        logits = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return F.cross_entropy(logits, labels), logits


def resnet(o):
    return ResNet(o.layers, o.width), images(o)


class Recurrent(nn.Module):
    def __init__(self, kind, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.width)
        self.rnn = kind(o.width, o.width, o.layers, batch_first=True)
        self.head = nn.Linear(o.width, o.vocab)

    def forward(self, ids, labels):
        logits = self.head(self.rnn(self.embed(ids))[0])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def lstm(o):
    return Recurrent(nn.LSTM, o), tokens(o, 2)


def gru(o):
    return Recurrent(nn.GRU, o), tokens(o, 2)


class MLP(nn.Module):
    def __init__(self, o, activation):
        super().__init__()
        self.net = nn.Sequential(*[m for _ in range(o.layers) for m in (nn.Linear(o.width, o.width), activation())])

    def forward(self, x, y):
        out = self.net(x)
        return F.mse_loss(out, y), out


def mlp(o, activation=nn.Tanh):
    return MLP(o, activation), (torch.randn(o.batch * o.seq, o.width), torch.randn(o.batch * o.seq, o.width))


class Encoder(nn.Module):
    """Layers of PyTorch's own transformer encoder, the norm first or last."""

    def __init__(self, o, first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(o.width, o.heads, 4 * o.width, 0.0, "gelu", batch_first=True,
                                           norm_first=first)
        self.stack = nn.TransformerEncoder(layer, o.layers, enable_nested_tensor=False)
        for p in self.stack.parameters():  # layers start as copies of one
            nn.init.normal_(p, 0.02 if p.dim() > 1 else 1, 0.1)

    def forward(self, x, y):
        out = self.stack(x)
        return F.mse_loss(out, y), out


def encoder(o, first=False):
    return Encoder(o, first), (torch.randn(o.batch, o.seq, o.width), torch.randn(o.batch, o.seq, o.width))


def tokens(o, n):
    return tuple(torch.randint(3, o.vocab, (o.batch, o.seq)) for _ in range(n))


def images(o):
    return torch.randn(o.batch, 3, 32, 32), torch.randint(0, 10, (o.batch,))


MODELS = {
    "gpt2": gpt2,
    "gpt2-sdpa": lambda o: gpt2(o, "sdpa"),
    "gpt2-untied": lambda o: gpt2(o, "eager", False),
    "llama": llama,
    "llama-sdpa": lambda o: llama(o, "sdpa"),
    "bart": bart, "t5": t5, "bert": bert, "vit": vit, "resnet": resnet, "lstm": lstm, "gru": gru,
    "mlp": mlp,
    "mlp-relu": lambda o: mlp(o, nn.ReLU),
    "encoder": encoder,
    "encoder-prenorm": lambda o: encoder(o, True),
}


# Steps: functions of the parameters, the optimizer's state and the feeds.


class Step:
    """One training step of a model as a function of flat lists of tensors."""

    def __init__(self, o):
        torch.manual_seed(0)
        self.o = o
        self.model, self.feeds = MODELS[o.model](o)
        self.model.train()
        with torch.no_grad():  # exporters merge equal constants: fresh biases and norms must differ
            for w in self.model.parameters():
                w.add_(0.02 * torch.randn_like(w))
        named = dict(self.model.named_parameters())  # a tied one once
        self.names, self.values = list(named), [w.detach().clone() for w in named.values()]
        self.buffers = {k: v.detach() for k, v in self.model.named_buffers()}
        self.inputs, self.outputs = [f"param_{n}" for n in self.names], ["loss"]
        self.state = []
        kinds = {"grad": [], "sgd": [], "momentum": ["m"], "adamw": ["m", "v"]}[o.step]
        for kind in kinds:
            self.inputs += [f"{kind}_{n}" for n in self.names]
            self.state += [torch.rand_like(w) * 0.01 for w in self.values]
        if o.step == "adamw":
            self.inputs.append("step")
            self.state.append(torch.tensor(3.0))
        if o.step == "grad":
            self.outputs += [f"grad_{n}" for n in self.names]
        else:
            self.outputs += [f"new_{n}" for n in self.inputs]
        if o.logits:
            self.outputs.append("logits")
        self.feed_names = [f"in{i}" for i in range(len(self.feeds))]
        if isinstance(self.model, HuggingFace):
            self.feed_names = self.model.names

    def loss(self, weights, feeds):
        cast = contextlib.nullcontext()
        if self.o.half:
            cast = torch.autocast("cpu", dtype=getattr(torch, self.o.half))
        buffers = {k: v.clone() for k, v in self.buffers.items()}
        with cast:
            loss, logits = torch.func.functional_call(self.model, ({**dict(zip(self.names, weights)), **buffers},), tuple(feeds))
        return loss.float(), logits

    def __call__(self, weights, state, feeds):
        (grads, (loss, logits)) = torch.func.grad(
            lambda w: (lambda r: (r[0], r))(self.loss(w, feeds)), has_aux=True)(list(weights))
        return self.finish(loss, logits, weights, state, grads)

    def finish(self, loss, logits, weights, state, grads):
        n, out = len(weights), [loss.detach()]
        if self.o.step == "grad":
            out += list(grads)
        elif self.o.step == "sgd":
            out += [w - 0.01 * g for w, g in zip(weights, grads)]
        elif self.o.step == "momentum":
            m = [0.9 * m + g for m, g in zip(state, grads)]
            out += [w - 0.01 * m for w, m in zip(weights, m)] + m
        else:
            step = state[-1] + 1
            m = [0.9 * m + 0.1 * g for m, g in zip(state[:n], grads)]
            v = [0.999 * v + 0.001 * g * g for v, g in zip(state[n:2 * n], grads)]
            c1, c2 = 1 - 0.9 ** step, 1 - 0.999 ** step
            out += [w * (1 - 1e-5) - 0.001 * (a / c1) / ((b / c2).sqrt() + 1e-8) for w, a, b in zip(weights, m, v)]
            out += m + v + [step]
        if self.o.logits:
            out.append(logits.detach())
        return out


def convolution_backward(dy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
    """The gradient of a two-dimensional convolution as convolutions, since no
    exporter has it as an operator."""
    assert not transposed and groups == 1 and list(dilation) == [1, 1]
    rest = [x.shape[2 + i] - ((dy.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + w.shape[2 + i]) for i in (0, 1)]
    dx = torch.ops.aten.convolution(dy, w, None, stride, padding, dilation, True, rest, 1) if mask[0] else None
    dw = None
    if mask[1]:
        dw = torch.ops.aten.convolution(x.transpose(0, 1), dy.transpose(0, 1), None, [1, 1], padding, stride, False, [0, 0], 1)
        dw = dw.transpose(0, 1)[:, :, :w.shape[2], :w.shape[3]]
    return dx, dw, dy.sum((0, 2, 3)) if mask[2] else None


def max_pool_backward(dy, x, kernel, stride, padding, dilation, ceil, indices):
    """Scatters the gradient to where the maxima were."""
    flat = torch.zeros_like(x).flatten(2)
    return flat.scatter_add(2, indices.flatten(2), dy.flatten(2)).view(x.shape)


def slice_backward(dy, sizes, axis, start, end, stride):
    """Padding with zeros; TorchScript's exporter knows no scattered slice."""
    if stride != 1:
        return NotImplemented
    start, end = (min(max(i + sizes[axis] if i < 0 else i, 0), sizes[axis]) for i in (start, end))
    axis %= dy.dim()
    return torch.ops.aten.constant_pad_nd(dy, [0, 0] * (dy.dim() - 1 - axis) + [start, sizes[axis] - end], 0.0)


def select_backward(dy, sizes, axis, index):
    axis %= len(sizes)
    return slice_backward(dy.unsqueeze(axis), sizes, axis, index % sizes[axis], index % sizes[axis] + 1, 1)


def decompositions(exporter):
    from torch._decomp import core_aten_decompositions, get_decompositions

    a = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([
        a.native_layer_norm_backward, a.embedding_dense_backward, a._softmax_backward_data, a.nll_loss_backward,
        a.nll_loss_forward, a._log_softmax_backward_data, a.gelu_backward, a.tanh_backward, a.threshold_backward,
        a.slice_backward, a.select_backward, a.silu_backward, a.native_batch_norm, a.native_batch_norm_backward,
        a._native_batch_norm_legit, a.mse_loss_backward, a.sigmoid_backward, a._fused_rms_norm, a._fused_rms_norm_backward,
        a.unfold_backward, a.nll_loss2d_forward, a.nll_loss2d_backward, a.t, a.detach, a.squeeze.dims, a.index_put_]))
    table.pop(a.native_layer_norm.default, None)
    table[a.convolution_backward.default] = convolution_backward
    table[a.max_pool2d_with_indices_backward.default] = max_pool_backward
    if exporter == "torchscript":
        table[a.slice_backward.default], table[a.select_backward.default] = slice_backward, select_backward
    table[a.nll_loss_forward.default] = nll_forward
    table[a.nll_loss_backward.default] = nll_backward
    return table


def nll_forward(x, target, weight, reduction, ignore):
    """The mean of the picked log-probabilities; the total is a number."""
    keep = target != ignore
    picked = -x.gather(1, torch.where(keep, target, 0).unsqueeze(1)).squeeze(1)
    total = keep.sum().to(x.dtype)
    picked = torch.where(keep, picked, 0)
    return (picked.sum() / total if reduction == 1 else picked.sum() if reduction == 2 else picked), total


def nll_backward(dy, x, target, weight, reduction, ignore, total):
    keep = (target != ignore).unsqueeze(1)
    index = torch.where(keep, target.unsqueeze(1), 0)
    one = torch.scatter(torch.zeros_like(x), 1, index, -1.0)
    scale = dy / total if reduction == 1 else dy
    return one * torch.where(keep, scale if scale.dim() == 0 else scale.unsqueeze(1), 0)


class Traced(nn.Module):
    """The traced graph as a module for the exporter."""

    def __init__(self, graph, held, constants):
        super().__init__()
        self.graph, self.count = graph, len(constants)
        for i, t in enumerate(constants):
            self.register_buffer(f"constant{i}", t)
        self.held = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in held])

    def forward(self, *args):
        constants = [getattr(self, f"constant{i}") for i in range(self.count)]
        return tuple(self.graph(*self.held, *args, *constants))


def trace(step, o):
    """Returns an fx graph of (parameters, state, feeds) in one flat list."""
    from torch.fx.experimental.proxy_tensor import make_fx

    n, k = len(step.values), len(step.state)
    mode = "symbolic" if o.dynamic else "real"

    def flat(*args):
        return step(list(args[:n]), list(args[n:n + k]), list(args[n + k:]))

    if o.trace == "aot":
        flat = joint(step, n, k)
    sdp = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with sdp, torch.backends.mkldnn.flags(enabled=False):
        graph = make_fx(flat, decomposition_table=decompositions(o.exporter), tracing_mode=mode,
                        _allow_non_fake_inputs=True)(
            *step.values, *step.state, *step.feeds)
    constants = plain(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, constants


def plain(module):
    """Takes away what is about memory alone, and views that needed it; and
    what a decomposition leaves below ATen. Constants become inputs, the last,
    since the exporters lose them; returns their values."""
    a, graph = torch.ops.aten, module.graph
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    constants = []
    for node in list(graph.nodes):
        if node.op == "get_attr":
            constants.append(getattr(module, node.target).detach().clone())
            module._buffers.pop(node.target, None)
            with graph.inserting_after(last):
                last = graph.placeholder(f"constant{len(constants)}")
            node.replace_all_uses_with(last)
            graph.erase_node(node)
        if node.op != "call_function":
            continue
        if node.target is a.empty_permuted.default:
            node.target, node.args, node.kwargs = torch.zeros, node.args[:1], {"dtype": node.kwargs.get("dtype")}
        if node.target in (a.detach.default, a.clone.default, a.lift_fresh_copy.default, a.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in (a.view.default, a._unsafe_view.default):
            node.target = a.reshape.default
        elif node.target is torch.ops.prims.squeeze.default:
            node.target = a.squeeze.dims
        elif node.target is a._to_copy.default and "dtype" in node.kwargs:
            node.target, node.args, node.kwargs = a.to.dtype, (node.args[0], node.kwargs["dtype"]), {}
        elif node.target in (a._softmax.default, a._log_softmax.default):
            node.target = a.softmax.int if node.target is a._softmax.default else a.log_softmax.int
            node.args = node.args[:2]
        elif node.target is a.sum.dim_IntList and not node.args[1]:  # the axes would be an empty float tensor
            node.target, node.args = a.sum.default, node.args[:1]
        elif "pin_memory" in node.kwargs or "device" in node.kwargs:
            node.kwargs = {k: v for k, v in node.kwargs.items() if k == "dtype"}
            if node.target is a.full.default:
                node.target, node.args = torch.full, (node.args[0], 1.0 * node.args[1])
    return constants


def joint(step, n, k):
    """The joint graph of AOT autograd, with the rest of the step after it."""
    from torch._functorch.aot_autograd import aot_export_joint_simple

    def forward(*args):
        return tuple(x for x in step.loss(args[:n], args[n:]))

    weights = [w.clone().requires_grad_() for w in step.values]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        graph = aot_export_joint_simple(forward, (*weights, *step.feeds), trace_joint=True,
                                        decompositions=decompositions(step.o.exporter))

    def flat(*args):
        w, state, feeds = args[:n], args[n:n + k], args[n + k:]
        primals = (*w, *feeds)
        shapes = graph_tangents(graph, len(primals))
        tangents = [torch.ones(shapes[0]), torch.zeros(shapes[1])]
        (loss, logits), grads = graph(primals, tangents)
        return step.finish(loss, logits, w, state, grads[:n])

    return flat


def graph_tangents(graph, primals):
    return [p.meta["val"].shape for p in [q for q in graph.graph.nodes if q.op == "placeholder"][primals:]]


def export(step, graph, constants, o, path):
    held = step.values if o.weights == "initializers" else []
    names = step.inputs[len(held):] + step.feed_names
    args = tuple(([] if held else step.values) + step.state + list(step.feeds))
    module = Traced(graph, held, constants)
    common = dict(input_names=names, output_names=step.outputs)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        if o.exporter == "torchscript":
            axes = {n: {0: "batch", 1: "seq"} if t.dim() > 1 else {0: "batch"}
                    for n, t in zip(step.feed_names, step.feeds)} if o.dynamic else None
            torch.onnx.export(module, args, path, opset_version=o.opset, dynamo=False, dynamic_axes=axes,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, **common)
        else:
            shapes = None
            if o.dynamic:
                dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
                rest = len(args) - len(step.feeds)
                shapes = (tuple([None] * rest + [{d: v for d, v in dims.items() if d < t.dim()} for t in step.feeds]),)
            torch.onnx.export(module, args, path, opset_version=o.opset, dynamo=True, external_data=False, verbose=False,
                              dynamic_shapes=shapes, **common)
    if held:
        rename(path, step)
    return names


def rename(path, step):
    """Gives initializers the parameters' names where they are found by value."""
    import onnx
    from onnx import numpy_helper

    m = onnx.load(path)
    by = {w.numpy().tobytes(): n for n, w in zip(step.inputs, step.values)}
    names = {}
    for t in m.graph.initializer:
        name = by.pop(numpy_helper.to_array(t).tobytes(), None)
        if name:
            names[t.name] = name
            t.name = name
    for node in m.graph.node:
        for i, x in enumerate(node.input):
            node.input[i] = names.get(x, x)
    onnx.save(m, path)


def make(o, folder):
    step = Step(o)
    path = os.path.join(folder, o.name + ".onnx")
    graph, constants = trace(step, o)
    export(step, graph, constants, o, path)
    if o.values:
        with torch.no_grad():
            answers = graph(*step.values, *step.state, *step.feeds, *constants)
        keys = {f"in:{n}": t for n, t in zip(step.feed_names, step.feeds)}
        inputs = list(zip(step.inputs, step.values + step.state))
        keys |= {f"param:{n}": t for n, t in inputs[len(step.values) if o.weights == "initializers" else 0:]}
        keys |= {f"out:{n}": t for n, t in zip(step.outputs, answers)}
        np.savez(path[:-5] + ".npz", **{k: t.detach().float().numpy() if t.dtype == torch.bfloat16 else t.detach().numpy()
                                        for k, t in keys.items()})
    return path


# Cases: what is made when no model is named. The rest is small.
SMALL = dict(layers=2, width=32, heads=2, batch=2, seq=16, vocab=97, step="grad", exporter="dynamo",
             weights="inputs", trace="functional", dynamic=False, logits=False, half=None, opset=20, values=True)


def cases():
    list_ = []

    def add(model, **kw):
        o = argparse.Namespace(**{**SMALL, "model": model, **kw})
        o.name = ".".join([model, str(o.layers), o.step, {"dynamo": "pt2", "torchscript": "ts"}[o.exporter]] + [
            word for word, on in (("init", o.weights == "initializers"), ("aot", o.trace == "aot"), ("dyn", o.dynamic),
                                  ("logits", o.logits), (o.half, o.half), (f"w{o.width}s{o.seq}", o.width != SMALL["width"]))
            if on])
        list_.append(o)

    for model in MODELS:
        deep = 6 if model.startswith(("mlp", "resnet", "encoder")) else 4
        seq = 8 if model in ("lstm", "gru") else 16
        add(model, layers=deep, seq=seq)
        add(model, layers=deep, seq=seq, exporter="torchscript", opset=18)
        add(model, seq=seq, step="sgd", weights="initializers")
        add(model, seq=seq, step="momentum", logits=True)
        add(model, seq=seq, step="adamw")
        add(model, seq=seq, trace="aot")
        add(model, seq=seq, step="adamw", exporter="torchscript", opset=18, weights="initializers")
        add(model, seq=seq, dynamic=True)
    for model in ("gpt2", "llama", "mlp"):
        add(model, half="bfloat16")
        add(model, half="float16")
    for model in ("gpt2", "gpt2-sdpa", "llama", "bart", "t5", "bert"):
        add(model, layers=12, width=64)
    add("gpt2", layers=24)
    add("llama", layers=24, step="adamw")
    for model, batch, layers in (("gpt2", 1, 12), ("llama", 1, 12), ("encoder", 2, 24), ("bert", 1, 12), ("t5", 1, 6)):
        add(model, layers=layers, width=256, heads=8, batch=batch, seq=512, vocab=1000, values=False)
    add("lstm", seq=64, width=64, batch=16)
    return list_


def first_line(e):
    """The first line of what was raised first."""
    while e.__cause__ is not None:
        e = e.__cause__
    return (str(e).strip().splitlines() or [""])[0][:300]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--case", action="append", help="make the cases that match")
    p.add_argument("--list", action="store_true", help="print the cases' names")
    p.add_argument("--model", choices=MODELS)
    p.add_argument("--name", help="the file's name, default MODEL")
    for key, default in SMALL.items():
        if key == "half":
            p.add_argument("--half", choices=["float16", "bfloat16"])
        elif isinstance(default, bool):
            p.add_argument(f"--{key}", action=argparse.BooleanOptionalAction, default=default)
        else:
            p.add_argument(f"--{key}", type=type(default), default=default)
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    todo = cases()
    if a.model:
        a.name = a.name or a.model
        todo = [a]
    elif a.case:
        todo = [o for o in todo if any(fnmatch.fnmatch(o.name, g) for g in a.case)]
    failed = 0
    for o in todo:
        if a.list:
            print(o.name)
            continue
        try:
            print(make(o, a.folder), flush=True)
        except Exception as e:  # the exporter's refusals are of every kind
            failed += 1
            print(f"{o.name}: not exported: {type(e).__name__}: {first_line(e)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
