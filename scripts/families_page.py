"""The page of families.py: the table, what exports how by family, and what fails
with the way out. Standard library only."""
import importlib.metadata
import os

import tables

PACKAGES = ("torch", "onnxscript", "transformers", "timm", "diffusers", "peft", "torchvision", "onnxruntime")
SCALE = (("MiB", 1 << 20), ("KiB", 1 << 10))


def write(path, specs, kept, only=()):
    done = [(s, kept[s.name]) for s in specs if s.name in kept]
    command = " ".join(["scripts/families.py", *[f"--only '{g}'" for g in only], "--out", "docs/results/" + os.path.basename(path)])
    tables.keep(*os.path.split(path), page(done, command))


def page(done, command):
    good = [s for s, e in done if not e["faults"]]
    predictions = [x for _, e in done for x in e.get("predicted", ())]
    return "\n".join([
        "# What exports how: models of many families, from PyTorch to a rewritten training graph", "",
        f"`{command}`, commit {commits(done)}, on {tables.cpu()}, {os.cpu_count()} cores; " + versions() + ".", "",
        f"{len(done)} models, {len(good)} without fault; predicted = measured in {sum(predictions)} of {len(predictions)} runs "
        "(live peak, session and reserved each).", "",
        *HEAD, "", tables.text([row(s, e) for s, e in done]), "",
        "## What to write", "",
        "Most need nothing but the lines of the README:", "",
        *how(done), "",
        "## What fails, and the way out", "",
        *(fails(done) or ["Nothing in this table."]), "",
    ])


HEAD = """Small models (widths of 16 to 64, two layers, few tokens) with random weights, so peaks
are small; what counts is that they hold. By the tools' defaults, but for the switches of
a row, which stand in full below the table:

- **trained**: `remat grad --optimizer adamw` without flags ended with 0 and trains so
  many parameters, of so many that get a gradient in PyTorch, the same by name. "+ N frozen":
  N more that `requires_grad=False` or `torch.no_grad` froze, which no file says; with the flags that
  stand below, exactly the others are trained, and the rest of the row is of that.
- **gradient**: the largest difference of any gradient from PyTorch's autograd, as a share
  of the model's largest gradient; at most 1e-4 passes.
- **runs**: three runs of the gradients with 8 threads, bit for bit.
- **peak**: of the AdamW step as derived, then rewritten with full, sqrt and optimal.
- **results**: of the rewritten graphs beside the given one: the same bits, or the largest
  difference of gradients and loss, relative; at most 1e-6 passes.
- **predicted**: of how many runs (gradients, given, rewritten) live peak, session and reserved bytes
  were foretold exactly.
- **s**: seconds of `grad`, and of planning and writing full, sqrt and optimal.

What was not run is "-".
""".splitlines()


def row(spec, entry):
    seconds = entry["seconds"]
    return {
        "model": spec.name, "family": spec.family,
        "exporter and switch": "; ".join([{"dynamo": "dynamo", "torchscript": "TorchScript"}[spec.exporter], *spec.switches]),
        "trained": trained(entry), "gradient": gradient(spec, entry),
        "runs": {True: "equal", False: "differ", None: "-"}[entry.get("equal")],
        "peak": peaks(entry.get("peaks")), "results": results(entry.get("bits")),
        "predicted": predicted(entry.get("predicted")),
        "s": " / ".join(f"{seconds[k]:.0f}" if k in seconds else "-" for k in ("grad", "full", "sqrt", "optimal")),
    }


def trained(entry):
    d = entry.get("default")
    if d is None:
        return "-"
    own = d["trained"] - len(d["frozen"])
    text = f"{own} of {d['expected']}"
    if d["frozen"]:
        text += f" + {len(d['frozen'])} frozen"
    return text


def gradient(spec, entry):
    g = entry.get("gradient")
    return "drawn" if spec.random and "gradient" in entry else f"{g['worst']:.0e}" if g else "-"


def peaks(of):
    if not of:
        return "-"
    unit, size = next((u for u in SCALE if of["given"] >= u[1]), ("B", 1))
    number = lambda s: f"{of[s] / size:.3g}" if s in of else "-"
    return f"{number('given')} → {' / '.join(number(s) for s in ('full', 'sqrt', 'optimal'))} {unit}"


def results(bits):
    if bits is None:
        return "-"
    off = {s: x for s, x in bits.items() if x}
    return "same bits" if not off else "; ".join(f"{s} {x:.0e}" for s, x in off.items())


def predicted(each):
    return f"{sum(each)} of {len(each)}" if each else "-"


def how(done):
    """A line for each family and each way to write it."""
    lines = []
    for family in dict.fromkeys(s.family for s, _ in done):
        ways = {}
        for s, e in done:
            if s.family == family and not e["faults"]:
                ways.setdefault(s.written(flags=bool(e["default"]["frozen"])), []).append((s, e))
        if not ways:
            continue
        lines.append(f"- **{family}**")
        for way, rows in ways.items():
            lines.append(f"  - {', '.join(s.name for s, _ in rows)}: {way or 'as it is'}")
            without = list(dict.fromkeys(e["exported"]["bare"] for _, e in rows if e["exported"].get("bare")))
            lines += [f"    (without: {'; '.join(without)})"] if without else []
    return lines


def fails(done):
    lines = []
    for s, e in done:
        if e["faults"]:
            lines.append(f"- **{s.name}**: " + "; ".join(e["faults"]))
            if s.out:
                lines.append(f"  Way out: {s.out}")
    return lines


def commits(done):
    names = [e["commit"] for _, e in done]
    return ", ".join(f"{c} ({names.count(c)} models)" if len(set(names)) > 1 else c for c in dict.fromkeys(names))


def versions():
    found = []
    for p in PACKAGES:
        try:
            found.append(f"{p} {importlib.metadata.version(p)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found)
