"""Runs models in plain onnxruntime, one job after another.

Reads a list of jobs as JSON on stdin and answers with a list on stdout. A job:
model, feeds (npz, a key per input), out (npz, a key per output), runs,
threads, mem_pattern, bind (output: the input that it is bound onto), arena (what
OrtArenaCfg takes, or null). With an argument, the path of the counting library,
sessions allocate through it and the answers have each run's peak, in bytes.
Without it they allocate through their own arena, as they do by default, or
through the job's; what that reserved, in bytes, is read from ONNX Runtime's log,
since the module has no call for it.
"""
import ctypes
import json
import os
import re
import resource
import sys
import tempfile

import numpy as np
import onnxruntime as ort


def counter(path):
    ort.register_execution_provider_library("counter", path)
    lib = ctypes.CDLL(path)
    lib.remat_slab_live_peak.restype = ctypes.c_int64
    if lib.remat_slab_register():
        sys.exit(1)
    return lib


class Log:
    """What is written to stderr meanwhile, by C++ too; shown if it fails."""

    def __enter__(self):
        self.file, self.stderr = tempfile.TemporaryFile("w+"), os.dup(2)
        os.dup2(self.file.fileno(), 2)
        return self

    def __exit__(self, failed, *_):
        os.dup2(self.stderr, 2)
        os.close(self.stderr)
        self.file.seek(0)
        self.text = self.file.read()
        if failed:
            sys.stderr.write(self.text)


def execute_in_arena(job):
    """Executes with an arena of the job's, which replaces the one before."""
    cpu = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(cpu, ort.OrtArenaCfg(job["arena"]))
    ort.set_default_logger_severity(1)  # the arena says whenever it grows
    with Log() as log:
        answer = execute(job, None)
    ort.set_default_logger_severity(2)
    answer["reserved"] = int(re.findall(r"Total allocated bytes: (\d+)", log.text)[-1])
    return answer


def execute(job, lib):
    options = ort.SessionOptions()
    options.log_severity_level = 2
    if job["threads"]:
        options.intra_op_num_threads = job["threads"]
    if not job["mem_pattern"]:
        options.enable_mem_pattern = False
    if lib or job["arena"]:
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
            lib.remat_slab_step()
        session.run_with_iobinding(binding)
        if lib:
            answer["peaks"].append(lib.remat_slab_live_peak())
        if run == 0:
            values = dict(zip(names, (v.numpy() for v in binding.get_outputs())))
            np.savez(job["out"], **values)
            del values  # it may share the outputs' memory
        del binding  # and the outputs with it
    answer["process_peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


def main():
    lib = counter(sys.argv[1]) if len(sys.argv) > 1 else None
    jobs = json.load(sys.stdin)
    json.dump([execute_in_arena(j) if j["arena"] else execute(j, lib) for j in jobs], sys.stdout)


main()
