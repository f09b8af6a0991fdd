"""Our half of the comparison: a written training graph in plain onnxruntime.

Nothing of remat is needed to train with its files, so the clock runs here, in
the same process as PyTorch's; only the byte counts come from `remat run`.
"""
import json
import time

import numpy as np
import onnxruntime as ort
from safetensors.numpy import load_file


class Variant:
    """values are the weights, and state that variants share: with a rate of 0
    parameters stay, and what m and v are changes no time."""

    def __init__(self, name, file, values, feeds, level, threads):
        self.name = name
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False
        options.graph_optimization_level = LEVELS[level]
        self.session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.values, self.memory = {}, {}
        for i in self.session.get_inputs():
            if i.name in feeds:
                v = feeds[i.name]
            elif i.name == "step":
                v = np.array(1, np.int64)
            else:  # the optimizer's state, and a learning rate of 0
                v = values.setdefault(i.name, np.zeros(i.shape, np.float32))
            self.values[i.name] = ort.OrtValue.ortvalue_from_numpy(v)

    def rows(self):
        """Where the outputs P.new.0, P.new.1, … of a file with rows as outputs go, each onto its rows of P, and
        the sums before a gradient and itself, all into one memory."""
        at, places = {}, {}
        meta = self.session.get_modelmeta().custom_metadata_map
        if meta.get("remat.outputs") != "rows":
            return places
        shapes = {o.name: o.shape for o in self.session.get_outputs()}
        for gradient, sums in json.loads(meta["remat.roles"]).get("sums", {}).items():
            if gradient not in self.memory:
                self.memory[gradient] = np.empty(shapes[gradient], np.float32)
            places.update(dict.fromkeys([*sums, gradient], self.memory[gradient].ctypes.data))
        for o in self.session.get_outputs():  # in order
            head, _, number = o.name.rpartition(".")
            if head.endswith(".new") and number.isdigit():
                places[o.name] = at.setdefault(head, self.values[head[:-4]].data_ptr())
                at[head] += 4 * int(np.prod(o.shape))
        return places

    def timed(self):
        binding = self.session.io_binding()
        for name, v in self.values.items():
            binding.bind_ortvalue_input(name, v)
        rows = self.rows()
        for o in self.session.get_outputs():
            if o.name.endswith(".new"):  # in place, as training does
                binding.bind_ortvalue_output(o.name, self.values[o.name[:-4]])
            elif o.name in rows:
                binding.bind_output(o.name, "cpu", 0, np.float32, o.shape, rows[o.name])
            else:
                binding.bind_output(o.name, "cpu")
        wall, cpu = time.perf_counter(), time.process_time()
        self.session.run_with_iobinding(binding)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        names = [o.name for o in self.session.get_outputs()]
        return wall, cpu, float(binding.get_outputs()[names.index("loss")].numpy())


LEVELS = {
    "0": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "1": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "99": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def weights(path):
    """One copy for all variants."""
    return load_file(path)


def by_operator(file, values, level, threads, folder):
    """Milliseconds of one step by operator type."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    options.graph_optimization_level = LEVELS[level]
    options.enable_profiling = True
    options.profile_file_prefix = folder + "/profile"
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        binding = session.io_binding()
        for name, v in values.items():
            binding.bind_ortvalue_input(name, v)
        for o in session.get_outputs():
            binding.bind_output(o.name, "cpu")
        session.run_with_iobinding(binding)
        del binding
    with open(session.end_profiling()) as f:
        events = [e for e in json.load(f) if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    table = {}
    for e in events[len(events) // 2 :]:
        n, ms = table.get(e["args"]["op_name"], (0, 0.0))
        table[e["args"]["op_name"]] = n + 1, ms + e["dur"] / 1000
    return [(op, n, ms) for op, (n, ms) in table.items()]
