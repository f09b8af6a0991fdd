#!/usr/bin/env python3
"""Forward exports of many families of models, by both exporters of PyTorch, and
what `remat grad` makes of them against PyTorch's autograd.

    pip install torch transformers onnx onnxscript onnxruntime safetensors numpy
    scripts/forward_exports.py FOLDER [--case GLOB]... [--variant GLOB]... [--list] [--export] [--check]

Without --export and --check it does both. Each CASE.VARIANT.onnx has an .npz
beside it: in:FEED, out:loss, grad:INITIALIZER (found by name or, where the
exporter renamed or transposed it, by its values) and missing, the parameters
that no initializer holds. What an exporter refuses is said and left out.

The check derives the training graph in both dialects, runs it in ONNX Runtime at
levels 0, 1 and 99, and asks for the loss within 1e-5 and each gradient within
1e-4 of its own largest magnitude or 1e-6 of the model's largest. It says what is
trained that PyTorch has as no parameter. REMAT names the program.

What fails through no fault of the derivative: exporters compute ahead what a
parameter makes with constants (a recurrent cell's first step, a concatenated tied
weight), so that a part of its gradient goes elsewhere; a batch norm in training
mode with next to no variance (mobilenet_v2) is as far from float64 in PyTorch.
"""
import argparse
import contextlib
import fnmatch
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np

warnings.filterwarnings("ignore")

# Exporter, opset, options of torch.onnx.export, free axes.
VARIANTS = {
    "ts13": ("ts", 13, dict(training="EVAL", do_constant_folding=True), False),
    "ts14train": ("ts", 14, dict(training="TRAINING", do_constant_folding=False), False),
    "ts17axes": ("ts", 17, dict(training="TRAINING", do_constant_folding=False), True),
    "ts18kept": ("ts", 18, dict(training="EVAL", do_constant_folding=True, keep_initializers_as_inputs=True), True),
    "ts20": ("ts", 20, dict(training="PRESERVE", do_constant_folding=True), False),
    "dyn18": ("dyn", 18, dict(external_data=False), False),
    "dyn18axes": ("dyn", 18, dict(external_data=False), True),
    "dyn20plain": ("dyn", 20, dict(external_data=True, optimize=False), False),
    "dyn23": ("dyn", 23, dict(external_data=False), False),
    "dyn23axes": ("dyn", 23, dict(external_data=False), True),
}


def cases():
    import forward_models
    import forward_ops

    hidden = {"causal", "masked", "vision", "images", "recurrent", "seq2seq_", "attend", "apply", "conv", "ids", "classes", "each", "each_conv", "scalar"}
    found = {}
    for module in (forward_models, forward_ops):
        for name, f in vars(module).items():
            if inspect.isfunction(f) and name not in hidden and f.__module__ == module.__name__:
                found[name] = f
    found.update(forward_ops.CASES)
    return found


def build(make, train):
    import torch

    torch.manual_seed(7)
    model, feeds, axes = make()
    with torch.no_grad():
        for i, w in enumerate(model.parameters()):
            # Exporters merge equal values: fresh biases and norms must differ.
            w.add_(0.02 * torch.randn_like(w))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.1 * torch.randn_like(b))
            if name.endswith("running_var"):
                b.copy_(1 + 0.3 * torch.rand_like(b))
    return model.train(train), feeds, axes


def export(name, make, variant, folder):
    import torch

    kind, opset, options, free = VARIANTS[variant]
    train = kind == "ts" and options["training"] == "TRAINING"
    model, feeds, axes = build(make, train)
    if free and not axes:
        return "no free axes"
    path = os.path.join(folder, f"{name}.{variant}.onnx")
    values = tuple(feeds.values())
    saved = {k: v.clone() for k, v in model.state_dict().items()}
    out = model(*values)
    loss = out[0] if isinstance(out, tuple) else out
    loss.backward()
    model.load_state_dict(saved)
    outputs = ["loss"] + [f"out{i}" for i in range(len(out) - 1 if isinstance(out, tuple) else 0)]
    common = dict(opset_version=opset, input_names=list(feeds), output_names=outputs)
    with quiet():
        if kind == "ts":
            options = dict(options, training=getattr(torch.onnx.TrainingMode, options["training"]))
            torch.onnx.export(model, values, path, dynamo=False, dynamic_axes=axes if free else None, **common, **options)
        else:
            shapes = free_shapes(model, feeds, axes) if free else None
            torch.onnx.export(model, values, path, dynamo=True, dynamic_shapes=shapes, verbose=False, **common, **options)
    model.load_state_dict(saved)
    arrays = {"in:" + k: v.numpy() for k, v in feeds.items()}
    arrays["out:loss"] = loss.detach().numpy()
    missing = match(path, model, arrays)
    arrays["missing"] = np.array(missing, dtype=str)
    np.savez(path.removesuffix(".onnx") + ".npz", **arrays)
    return f"{len(missing)} parameters in no initializer: {' '.join(missing[:4])}" if missing else ""


@contextlib.contextmanager
def quiet():
    """Keeps what exporters print, from C++ too, off the terminal."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            for to, fd in enumerate(kept, 1):
                os.dup2(fd, to)
                os.close(fd)


def free_shapes(model, feeds, axes):
    """dynamic_shapes of torch.export, a tuple for the parameters of forward."""
    import torch

    each = [{i: torch.export.Dim(s, min=2, max=64) for i, s in axes.get(n, {}).items()} for n in feeds]
    names = list(inspect.signature(model.forward).parameters.values())
    if names[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        each = each[:len(names) - 1] + [tuple(each[len(names) - 1:])]
    return tuple(each)


def match(path, model, arrays):
    """Adds grad:INITIALIZER for every parameter that the file holds."""
    import onnx
    from onnx import numpy_helper

    m = onnx.load(path)
    held = {t.name: numpy_helper.to_array(t) for t in m.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    missing = []
    for name, w in model.named_parameters():
        if w.grad is None:
            continue
        g, v = w.grad.numpy(), w.detach().numpy()
        hits = []
        for key, a in held.items():
            for change in (lambda x: x, lambda x: x.T, lambda x: x.reshape(a.shape)):
                if a.size == v.size and change(v).shape == a.shape and np.array_equal(change(v), a):
                    hits.append((key, change(g)))
                    break
        if not hits:
            missing.append(name)
            continue
        # Of a tied weight the exporter may have made two.
        key = "grad:" + "|".join(k for k, _ in hits)
        arrays[key] = arrays.get(key, 0) + hits[0][1]
    return missing


def check(path, program):
    import onnx
    import onnxruntime as rt

    rt.set_default_logger_severity(3)
    expected = np.load(path.removesuffix(".onnx") + ".npz")
    faults, notes = [], []
    known = {n for k in expected if k.startswith("grad:") for n in k[5:].split("|")}
    try:
        s = rt.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = {i.name for i in s.get_inputs()}
        loss = float(s.run(["loss"], {k[3:]: expected[k] for k in expected if k.startswith("in:") and k[3:] in names})[0])
    except Exception as e:
        return [], [f"does not run as exported: {first_line(e)}"]
    want = float(expected["out:loss"])
    if not abs(loss - want) <= 1e-5 * abs(want):
        return [], [f"has another loss as exported: {loss!r}, PyTorch {want!r}"]
    for dialect in ("onnx", "ort"):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as tmp:
            out = os.path.join(tmp, "t.onnx") if not external(path) else path.removesuffix(".onnx") + ".train.onnx"
            p = subprocess.run([program, "--json", "grad", path, "--loss", "loss", "--dialect", dialect, "-o", out], capture_output=True, text=True)
            if p.returncode:
                faults.append(f"grad: {p.stderr.strip()}")
                break
            m = onnx.load(out, load_external_data=False)
            feeds = parameters(m, os.path.dirname(out))
            names = [i.name for i in m.graph.input]
            if dialect == "onnx":
                foreign = {n.op_type for n in m.graph.node if n.domain not in ("", "ai.onnx")}
                if foreign:
                    faults.append(f"foreign operators {foreign}")
                extra = [n for n in names if n + ".grad" in {o.name for o in m.graph.output} and n not in known]
                if extra:
                    notes.append("also trained: " + " ".join(extra))
            feeds.update({k[3:]: expected[k] for k in expected if k.startswith("in:") and k[3:] in names})
            for level, name in ((0, "ORT_DISABLE_ALL"), (1, "ORT_ENABLE_BASIC"), (99, "ORT_ENABLE_ALL")):
                o = rt.SessionOptions()
                o.graph_optimization_level = getattr(rt.GraphOptimizationLevel, name)
                o.intra_op_num_threads = 1
                try:
                    s = rt.InferenceSession(out, o, providers=["CPUExecutionProvider"])
                    got = dict(zip([x.name for x in s.get_outputs()], s.run(None, feeds)))
                except Exception as e:
                    faults.append(f"{dialect} level {level}: {first_line(e)}")
                    break
                bad = compare(got, expected)
                if bad:
                    faults.append(f"{dialect} level {level}: {'; '.join(bad[:4])}{' …' if len(bad) > 4 else ''}")
                    break
    return faults, notes


def external(path):
    """Weights in a file beside the model, where the training graph must lie too."""
    return os.path.exists(path + ".data")


def parameters(m, folder):
    places = json.loads({p.key: p.value for p in m.metadata_props}.get("remat.parameters", "{}"))
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in m.graph.input}
    out = {}
    for name, at in places.items():
        if name in shapes:
            with open(os.path.join(folder, at["file"]), "rb") as f:
                f.seek(at["offset"])
                out[name] = np.frombuffer(f.read(at["bytes"]), np.float32).reshape(shapes[name])
    return out


def compare(got, expected):
    bad = []
    want = float(expected["out:loss"])
    if not abs(float(got["loss"]) - want) <= 1e-5 * abs(want):
        bad.append(f"loss {float(got['loss'])!r}, want {want!r}")
    grads = {k[5:]: expected[k] for k in expected if k.startswith("grad:")}
    largest = max((np.abs(g).max() for g in grads.values()), default=0)
    for name, g in grads.items():
        parts = [got.get(n + ".grad") for n in name.split("|")]
        if all(p is None for p in parts):
            if np.abs(g).max() > 0 and g.size > 1:
                bad.append(f"{name} has no gradient")
            continue
        h = sum(p if p.shape == g.shape else p.T.reshape(g.shape) for p in parts if p is not None)
        off = np.abs(h - g).max()
        if not (off <= 1e-4 * np.abs(g).max() or off <= 1e-6 * largest):
            bad.append(f"{name} off by {off:.2g}, its largest is {np.abs(g).max():.2g}, the model's {largest:.2g}")
    return bad


def first_line(e):
    text = str(e).strip().splitlines() or [""]
    return f"{type(e).__name__}: {text[0][:200]}"


def chosen(globs, names):
    return [n for n in names if not globs or any(fnmatch.fnmatch(n, g) for g in globs)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--variant", action="append", default=[])
    p.add_argument("--list", action="store_true")
    p.add_argument("--export", action="store_true")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    both = a.export == a.check
    if a.list or a.export or both:
        table = cases()
        if a.list:
            print("\n".join(table))
            return 0
        for name in chosen(a.case, table):
            for variant in chosen(a.variant, VARIANTS):
                try:
                    said = export(name, table[name], variant, a.folder)
                except Exception as e:
                    said = "not exported: " + first_line(e)
                if said:
                    print(f"{name}.{variant}: {said}", flush=True)
    if not (a.check or both):
        return 0
    program = os.environ.get("REMAT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "remat")
    failed = total = 0
    for file in sorted(os.listdir(a.folder)):
        stem = file.removesuffix(".npz")
        name, _, variant = stem.rpartition(".")
        if stem == file or not chosen(a.case, [name]) or not chosen(a.variant, [variant]):
            continue
        faults, notes = check(os.path.join(a.folder, stem + ".onnx"), program)
        total += 1
        failed += bool(faults)
        for line in notes + ["FAILS " + f for f in faults]:
            print(f"{stem}: {line}", flush=True)
    print(f"{total} exports, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
