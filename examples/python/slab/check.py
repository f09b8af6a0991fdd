"""Runs a written file's steps in plain onnxruntime and then in one slab, and compares.

    check.py libremat_slab.so small.onnx [feeds.npz]

Prints, as JSON, whether every output of every step has the same bits, the slab, the most
that a step held, and what lay elsewhere: by the file's own places, and where these, or how
the steps are run, are not what the file wants. Without feeds the inputs are random.
"""
import ctypes
import json
import os
import sys

import numpy as np
import onnxruntime as ort

STEPS = 4
TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
         "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def make_session(path, in_slab):
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.intra_op_num_threads = 1
    if in_slab:
        options.add_session_config_entry("session.use_env_allocators", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def values(session, held):
    """Inputs by name: those given, by NAME, in:NAME or param:NAME, else random."""
    rng, out = np.random.default_rng(7), {}
    for i in session.get_inputs():
        given = [held[k] for k in (i.name, "in:" + i.name, "param:" + i.name) if k in held]
        dtype = np.dtype(TYPES[i.type])
        if given:
            value = given[0]
        elif dtype.kind == "f":
            value = np.abs(rng.standard_normal(i.shape)) * 0.02 if i.shape else 1e-3
        else:
            value = rng.integers(0, 8, i.shape)
        out[i.name] = np.ascontiguousarray(value, dtype).reshape(i.shape)  # it gives a number an axis
    return out


def steps(session, given, new, begin=lambda: None, keep=None):
    """The bytes of all outputs of each step. Next values are written over their inputs, as
    the file wants it, and outputs given back before the next step, unless keep keeps them."""
    inputs = {k: ort.OrtValue.ortvalue_from_numpy(v.copy()) for k, v in given.items()}
    over = {output: name for name, output in new.items()}
    ran = []
    for _ in range(STEPS):
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for o in session.get_outputs():
            if o.name in over:
                binding.bind_ortvalue_output(o.name, inputs[over[o.name]])
            else:
                binding.bind_output(o.name)
        begin()
        session.run_with_iobinding(binding)
        ran.append([v.numpy().tobytes() for v in binding.get_outputs()])
        if keep is not None:
            keep.append(binding)
    return ran


def failing(session, given):
    """Steps that end in the middle: an index that is out of range. Returns how many did."""
    failed = 0
    for name, value in given.items():
        if value.dtype.kind == "i" and value.shape:
            try:
                session.run(None, given | {name: value + (1 << 20)})
            except Exception:  # whatever ONNX Runtime makes of it
                failed += 1
    return failed


def run(session, given, new):
    """The same, in the plainest way: all outputs in memory of their own."""
    given, ran = dict(given), []
    names = [o.name for o in session.get_outputs()]
    for _ in range(STEPS):
        outputs = dict(zip(names, session.run(None, given)))
        ran.append([v.tobytes() for v in outputs.values()])
        given.update({name: outputs[output] for name, output in new.items()})
    return ran


def main(library, path, feeds=None):
    library = os.path.abspath(library)
    held = np.load(feeds) if feeds else {}
    plain = make_session(path, False)
    entries = plain.get_modelmeta().custom_metadata_map
    new = json.loads(entries["remat.roles"]).get("new") or {}
    given = values(plain, held)
    want = steps(plain, given, new)
    failed_too = make_session(path, False)

    ort.register_execution_provider_library("remat-slab", library)
    slab = ctypes.CDLL(library)
    for figure in (slab.remat_slab_bytes, slab.remat_slab_live_peak, slab.remat_slab_astray):
        figure.restype = ctypes.c_int64
    if slab.remat_slab_register():
        sys.exit(1)
    text = entries["remat.slab"]

    def fresh():
        """A session that draws the random numbers of the plain one."""
        slab.remat_slab_load(None)
        return make_session(path, True)

    def ran(text, how=steps, **more):
        session = fresh()
        refused = slab.remat_slab_load(text.encode())
        got = how(session, given, new, **more)
        return {"refused": refused, "same": got == want, "slab": slab.remat_slab_bytes(),
                "live": slab.remat_slab_live_peak(), "astray": slab.remat_slab_astray()}

    def after_failing():
        session = fresh()
        slab.remat_slab_load(text.encode())
        failed, before = failing(session, given), slab.remat_slab_astray()
        got = steps(session, given, new)
        failing(failed_too, given)  # which draws what the failing steps drew
        return {"failed": failed, "same": got == steps(failed_too, given, new), "astray": slab.remat_slab_astray() - before}

    print(json.dumps({
        "outputs": len(want[0]),
        "different": len({bytes().join(s) for s in want}),
        "table": ran(text),
        "marked": ran(text, begin=slab.remat_slab_step),
        "kept": ran(text, keep=[]),
        "run": ran(text, how=run),
        "after failing": after_failing(),
        "cut off": ran(text[:-9]),
        "another step": ran("2 4096 64 2 none AIAgAQAAZAA"),
        "again": ran(text),
    }, indent=1))


main(*sys.argv[1:])
