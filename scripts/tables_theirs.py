"""What the documents that the tables repeat say, and the memory-profiling notebook's own tables."""

# Beside our figures, by table. The documents: a gradient-checkpointing notebook, a checkpointed
# MLP, a heavy stack whose backward peak does not move, a memory-profiling notebook, and the
# overview of a lab on half types, accumulation and checkpointing. All theirs are PyTorch on a GPU.
THEIRS = {
    "encoder": """What the notebook says of this experiment (PyTorch, one GPU, AdamW, fp16): 30 to 50 % less memory
for 20 to 30 % more time, and the loss curve unchanged.""",
    "theory": """What the notebook says: 1 - 1/sqrt(L) of the activations, and less than that in all, since parameters
stay; 90 % for 100 layers.""",
    "mlp": """What the text says of this network: checkpoint_sequential in 3 segments saves 1 - 1/sqrt(L), 78 % of
20 layers' activations, for 2/sqrt(L), 45 %, more compute. Here activations of 32 rows are next to nothing
beside the gradients of 20 matrices of 1024 x 1024, which are returned.""",
    "heavy": """What the document says: the peak of the backward pass does not move, because it is the gradients;
in its extreme run, 40 layers with batch 64 and a checkpoint every 4, forward keeps 10 MB instead
of 40, 75 % less.""",
    "half": """What the lab says: GPT-2 small in fp16 takes 4.5 GB instead of 8; GPT-2 medium checkpointed 7 GB
instead of 12, in 125 % of the time; both together save 65 to 70 %.""",
    "recipes": """What the lab says of its recipes: fp16 takes 4.5 GB instead of 8 and is 2.2 times as fast on a GPU;
everything together saves 65 to 70 % and is 10 to 15 % slower.""",
    "profiling": """What the notebook says: memory grows linearly with the batch; of the six configurations, fp16 saves
about half, accumulation costs nothing, and all together save most. Here accumulation keeps one more set
of gradients, which is not nothing beside a batch of two.""",
}


def profiling(lab):
    """The batch sweep and the six configurations of the memory-profiling notebook."""
    small, MB, PERCENT = lab.a.small, lambda n: f"{n / 1e6:.1f}", lambda x: f"{x * 100:.1f} %"
    model = ["gpt2-tiny", "--seq", "32"] if small else ["gpt2", "--seq", "512"]
    d = lab.json("sweep", *model, "--batch", "1,2,4,8,16", "--strategy", "none,full", "--optimizer", "adamw")
    first = {}
    rows = []
    for p in d["points"]:
        total = p["total_bytes"]
        base = first.setdefault(p["strategy"], total)
        rows.append({"strategy": p["strategy"], "batch": str(p["batch"]), "in all MB": MB(total), "of batch 1": f"{total / base:.2f}", "a sample MB": MB(total / p["batch"])})
    tables = [(f"{model[0]}, {model[2]} tokens a sample, AdamW, by batch: predicted", rows)]
    name, size = ("gpt2-tiny", ["--batch", "2", "--seq", "32"]) if small else ("gpt2-medium", ["--batch", "2", "--seq", "128"])
    lab.remat("model", name, *size, "--no-weights", "-o", "six.onnx")
    d = lab.json("--provider", "cuda", "--rehearse", "compare", "six.onnx", "--six", "--steps", "2")
    rows = []
    for m in d["models"]:
        mem = m["memory"]
        total = mem["total_peak_bytes"]
        base = total if not rows else base
        rows.append({"variant": m["label"], "live peak MB": MB(mem["live_peak_bytes"]), "in all MB": MB(total), "saved": PERCENT(1 - total / base) if rows else "-",
                     "predicted": "exact" if mem["predicted_live_peak_bytes"] == mem["live_peak_bytes"] else "not"})
    tables.append((f"{name}, {size[1]} x {size[3]} tokens, AdamW, six configurations: rehearsed on the CUDA provider, no numbers were computed", rows))
    return tables
