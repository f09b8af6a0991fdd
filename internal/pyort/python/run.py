"""Runs models in plain onnxruntime, one job after another.

Reads a list of jobs as JSON on stdin and answers with a list on stdout. A job:
model, feeds (npz, a key per input), out (npz, a key per output), runs,
mem_pattern, bind (output: the input that it is bound onto). With an argument, the path of the counting library, sessions
allocate through it and the answers have each run's peak, in bytes; without it
they allocate through their own arena, as they do by default.
"""
import ctypes
import json
import resource
import sys

import numpy as np
import onnxruntime as ort


def counter(path):
    ort.register_execution_provider_library("counter", path)
    lib = ctypes.CDLL(path)
    lib.counter_register.restype = ctypes.c_char_p
    lib.counter_peak.restype = ctypes.c_int64
    why = lib.counter_register()
    if why:
        sys.exit(why.decode())
    return lib


def execute(job, lib):
    options = ort.SessionOptions()
    if not job["mem_pattern"]:
        options.enable_mem_pattern = False
    if lib:
        options.add_session_config_entry("session.use_env_allocators", "1")
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    held = np.load(job["feeds"])
    feeds = {i.name: ort.OrtValue.ortvalue_from_numpy(held[i.name]) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    answer = {"peaks": [], "inputs": len(feeds), "outputs": len(names)}
    for run in range(job["runs"]):
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            if name in job["bind"]:
                binding.bind_ortvalue_output(name, feeds[job["bind"][name]])
            else:
                binding.bind_output(name)
        if lib:
            lib.counter_mark()
        session.run_with_iobinding(binding)
        if lib:
            answer["peaks"].append(lib.counter_peak())
        if run == 0:
            values = dict(zip(names, (v.numpy() for v in binding.get_outputs())))
            np.savez(job["out"], **values)
    answer["process_peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


def main():
    lib = counter(sys.argv[1]) if len(sys.argv) > 1 else None
    json.dump([execute(job, lib) for job in json.load(sys.stdin)], sys.stdout)


main()
