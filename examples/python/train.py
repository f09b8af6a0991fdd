#!/usr/bin/env python3
"""Trains five steps from a bundle.

    pip install onnxruntime numpy
    remat rewrite step.onnx --strategy full --bundle B --for python
    python train.py B
"""
import json
import pathlib
import sys

import numpy as np
import onnxruntime as ort

if len(sys.argv) != 2:
    sys.exit("usage: train.py BUNDLE")
folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
if not any("next" in i for i in manifest["inputs"]):
    sys.exit("the bundle's graph updates nothing: derive it with remat grad --optimizer sgd, or another")


def batch(shape, dtype, below):
    """Stands for data of yours."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    values = (i * 7 + 3) % max(below, 1) if dtype.kind in "iu" else ((i * 37) % 19 - 9) / 64
    return values.astype(dtype).reshape(shape)


def first(i):
    shape, dtype = i["shape"], np.dtype(i["type"])
    if i["fed"] == "batch":
        return batch(shape, dtype, i.get("below", 0))
    if "initial" in i:
        at = i["initial"]
        raw = np.fromfile(folder / at["file"], np.uint8, at["bytes"], offset=at["offset"])
        return raw.view(dtype).reshape(shape)
    if i["fed"] == "parameter":
        sys.exit(f"{i['name']}: the bundle has no first value of it")
    return np.zeros(shape, dtype)


asked = manifest["session"]
options = ort.SessionOptions()
options.enable_mem_pattern = asked["memory_pattern"]  # off: a pattern holds more from the second step on
options.enable_cpu_mem_arena = asked["arena"]
options.intra_op_num_threads = asked["intra_op_num_threads"]
options.graph_optimization_level = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}[asked["graph_optimization_level"]]
session = ort.InferenceSession(str(folder / manifest["graph"]), options, providers=["CPUExecutionProvider"])

inputs = {i["name"]: i for i in manifest["inputs"]}
value = {name: ort.OrtValue.ortvalue_from_numpy(first(i)) for name, i in inputs.items()}
becomes = {i["next"]: name for name, i in inputs.items() if "next" in i}
scalars = {"lr": 1e-3, "step": 1, "loss_scale": next((i["value"] for i in inputs.values() if i["fed"] == "loss_scale"), 0)}

for run in range(5):
    for name, i in inputs.items():
        if i["fed"] in scalars:
            value[name] = ort.OrtValue.ortvalue_from_numpy(np.asarray(scalars[i["fed"]], i["type"]))
    binding = session.io_binding()
    for name, v in value.items():
        binding.bind_ortvalue_input(name, v)
    for o in manifest["outputs"]:
        if manifest["next_values"] == "bound" and o["name"] in becomes:
            binding.bind_ortvalue_output(o["name"], value[becomes[o["name"]]])  # over its input
        else:
            binding.bind_output(o["name"])
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()  # its outputs keep it alive, and it the last step's values
    out = dict(zip([o["name"] for o in manifest["outputs"]], binding.get_outputs()))
    if manifest["next_values"] == "returned":
        value.update({of: out[name] for name, of in becomes.items()})
    print(run + 1, "%.9g" % out[manifest["loss"]].numpy())
    if "found_inf" in out and out["found_inf"].numpy():  # a gradient overflowed, and nothing was updated
        scalars["loss_scale"] /= 2
    else:
        scalars["step"] += 1
