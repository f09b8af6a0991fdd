"""The rows of the table of slabs; see tables.py."""
import os

NOTE = """Each row is a step that `remat run` executed twice, on the CPU. "slab / live" is the region in which the
step lies, over its live peak; "reserved" is what the session's allocator took in all, measured
beside predicted; "arena / live" is what ONNX Runtime's arena reserves for the same step, set up as
suits it. "process" is the most that the process held, less what it held as the program
started, over the total: parameters, optimizer state, feeds, and what is reserved, as predicted. It has
ONNX Runtime's graph in it, some 3 kB a node, which outweighs a small model. "beyond MB" is the
difference of the two in place of the ratio; below 0, what the program gave back of its start is more than what
came to be beside the total. The start is 24 to 37 MB for the same peak, by how the system caches the program's file: least
where the file was just built, and then "beyond" reads up to 13 MB more. The time of a step beside one in the arena is
`go test ./runtime -bench SlabBesideArena`."""

STRATEGIES = ("none", "sqrt", "full", "selective", "optimal")


def gpt2(small):
    """The rows of the table of arenas in RATIONALE.md that the zoo has: model, flags, optimizer, strategies."""
    if small:
        return [("gpt2-tiny", ["--seq=16"], "none", ("none", "full"))]
    return [
        ("gpt2", ["--batch=4", "--seq=64"], "adamw", ("none",)),
        ("gpt2", ["--seq=512"], "adamw", ("none", "optimal")),
        ("gpt2", ["--seq=128"], "none", ("none", "full")),
        ("gpt2", ["--seq=512"], "none", ("none", "full")),
        ("gpt2", ["--seq=1024"], "none", ("full", "optimal")),
        ("gpt2", ["--seq=1024"], "adamw", ("least --outputs rows",)),
        ("gpt2-medium", ["--seq=512"], "none", ("none", "full")),
    ]


def zoo(small):
    """Every model that is no GPT-2 of its true size, with each optimizer and strategy."""
    flags = {"gpt2-tiny": [], "mlp": ["--hidden=64"] if small else [], "encoder": ["--layers=2", "--hidden=48", "--heads=2"] if small else [],
             "heavy": ["--hidden=64"] if small else []}
    return [(model, flags[model], optimizer, STRATEGIES) for model in flags for optimizer in ("none", "sgd", "adamw")]


def slab(lab):
    return table(lab, "GPT-2, as in RATIONALE.md's table of arenas", gpt2(lab.a.small))


def slab_zoo(lab):
    return table(lab, "The zoo", zoo(lab.a.small))


def table(lab, title, cases):
    rows = []
    try:
        for model, flags, optimizer, strategies in cases:
            train = lab.train("step", [model, *flags], optimizer)
            for strategy in strategies:
                file = lab.rewrite(train, "--strategy", *strategy.split())
                rows.append({"model": " ".join([model, *flags]), "optimizer": optimizer, "strategy": strategy, **row(lab.json("run", file, "--steps", "2"))})
                os.remove(lab.at(file))
    except KeyboardInterrupt:
        title += " (interrupted)"
    return [(title, rows)] if rows else []


def row(run):
    m, load = run["memory"], run["load"]
    live, most = m["live_peak_bytes"], m["rss_peak_bytes"]
    total = sum(m[k] for k in ("parameter_bytes", "state_bytes", "feed_bytes", "predicted_reserved_bytes"))
    ratio = lambda a, b: f"{a / b:.4f}"
    return {
        "live MB": f"{live / 1e6:.3f}", "slab / live": ratio(m["slab_bytes"], live), "reserved MB": f"{m['reserved_bytes'] / 1e6:.3f}",
        "predicted": "exact" if m["predicted_reserved_bytes"] == m["reserved_bytes"] and not m["astray_bytes"] else f"{(m['predicted_reserved_bytes'] or 0) / 1e6:.3f}",
        "arena / live": ratio(m["arena_reserved_bytes"], live),
        "process": ratio(most - load["start_rss_bytes"], total),
        "beyond MB": f"{(most - load['start_rss_bytes'] - total) / 1e6:.1f}",
    }
