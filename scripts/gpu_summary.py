#!/usr/bin/env python3
"""summary.json and index.html over what scripts/gpu-validate.sh left.

    gpu_summary.py FOLDER SECONDS < "NAME STATE SECONDS" lines
    gpu_summary.py --page OUT [FOLDER COMMIT]...    OUT/gpu.md, of summary.json as it was left; runs that OUT/gpu.json
                                                  has fill in what these did not reach
"""
import html
import json
import os
import sys

import tables


def main():
    if sys.argv[1] == "--page":
        return kept(*sys.argv[2:])
    folder, seconds = sys.argv[1], int(sys.argv[2])
    parts = [dict(zip(("part", "state", "seconds"), line.split())) for line in sys.stdin if line.strip()]
    rows = []
    for p in parts:
        path = os.path.join(folder, p["part"] + ".json")
        if p["state"] == "done" and os.path.exists(path):
            with open(path) as f:
                document = json.load(f)
            if "models" in document:
                rows += variants(p["part"], document)
    torch = load(folder, "pytorch.json") or []
    stacks = [t for name in ("mlp", "heavy", "encoder") for t in (load(folder, name + ".json") or {}).get("tables", [])]
    summary = {"seconds": seconds, "doctor": load(folder, "doctor.json"), "parts": parts, "variants": rows, "pytorch": torch, "tables": stacks}
    tables.keep(folder, "summary.json", summary)
    tables.keep(folder, "index.html", page(folder, summary))


def kept(out, *runs):
    """The page of validations: what each of them has that none before it has, and what none has."""
    runs = [{"commit": commit, "gpu": machine(f), **load(f, "summary.json")} for f, commit in zip(runs[::2], runs[1::2])]
    before = [r for r in load(out, "gpu.json") or [] if r["commit"] not in {n["commit"] for n in runs}]
    text, kept, shown, done, missing = ["# gpu\n", "MB are 10^6 bytes; counted: parameters, state and feeds too.\n"], [], set(), set(), []
    for run in runs + before:
        parts = [(group, [{k: v for k, v in r.items() if k not in ("group", "error")} for r in run["variants"] if r["group"] == group])
                 for group in dict.fromkeys(r["group"] for r in run["variants"])]
        parts += [(t["title"], t["rows"]) for t in run.get("tables", [])]
        parts += [("PyTorch, GPT-2", run["pytorch"])] if run["pytorch"] else []
        fresh = [(title, rows) for title, rows in parts if title not in shown]
        if fresh:
            kept.append(run)
            text.append(f"`scripts/gpu-validate.sh` at {run['commit']} on {run['gpu']}.\n")
        for title, rows in fresh:
            shown.add(title)
            text.append(f"**{title}**\n\n{tables.text([{k: cell(v) for k, v in r.items()} for r in rows])}\n")
        done |= {p["part"] for p in run["parts"] if p["state"] == "done"}
        missing += [p["part"] for p in run["parts"] if p["state"] != "done"]
    text.append("Not run, or not to the end: " + (", ".join(m for m in dict.fromkeys(missing) if m not in done) or "nothing") + ".\n")
    tables.keep(out, "gpu.json", kept)
    tables.keep(out, "gpu.md", "\n".join(text))


def machine(folder):
    with open(os.path.join(folder, "gpu.txt")) as f:
        return f.read().strip()


def cell(v):
    return "-" if v is None else f"{v:.3g}" if isinstance(v, float) and abs(v) < 1 else str(v)


def load(folder, name):
    try:
        with open(os.path.join(folder, name)) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def variants(group, document):
    rows = []
    for i, m in enumerate(document["models"]):
        memory, pair = m["memory"] or {}, document["pairs"][i - 1] if i else {}
        name = os.path.splitext(os.path.basename(m["model"]))[0]
        rows.append({
            "group": group, "variant": name, "error": m.get("error"), **({"rehearsed": "no numbers were computed"} if m.get("rehearsed") else {}),
            "live peak MB": mb(memory.get("live_peak_bytes")), "predicted MB": mb(memory.get("predicted_live_peak_bytes")),
            "counted MB": mb(memory.get("total_peak_bytes")), "saving": share(pair.get("saving")),
            "step s": (m.get("step_seconds") or {}).get("median"), "overhead": share(pair.get("overhead")),
            "loss difference": pair.get("loss_difference"), "gradient difference": pair.get("max_relative_gradient_difference"),
        })
        if m.get("rehearsed"):
            device = m.get("device") or {}
            for absent in ("step s", "overhead", "loss difference", "gradient difference"):
                del rows[-1][absent]
            rows[-1].update({"copies to host": device.get("copies_to_host"), "synchronizations": device.get("synchronizations"),
                             "nodes on the host": device.get("fallback_nodes")})
    return rows


def mb(n):
    return None if n is None else round(n / 1e6, 1)


def share(x):
    return None if not isinstance(x, (int, float)) else round(x, 4)


def page(folder, s):
    reports = sorted(f for f in os.listdir(folder) if f.endswith((".html", ".md")) and f != "index.html")
    links = " ".join(f'<a href="{html.escape(f)}">{html.escape(f)}</a>' for f in reports)
    return f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>remat on this machine</title>
<style>body{{font:15px/1.5 system-ui;margin:2em;color-scheme:light dark}}table{{border-collapse:collapse;margin:1em 0}}
td,th{{padding:.2em .7em;text-align:right;border-bottom:1px solid #8884}}td:first-child,th:first-child{{text-align:left}}
main{{overflow-x:auto}}a{{margin-right:1em}}</style><main>
<h1>remat on this machine</h1><p>{s["seconds"]} s in all. Reports: {links}</p>
{table(s["variants"])}{"<h2>PyTorch beside it</h2>" + table(s["pytorch"]) if s["pytorch"] else ""}
<h2>Parts</h2>{table(s["parts"])}</main>
"""


def table(rows):
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(k)}</th>" for k in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell(r.get(k)))}</td>" for k in rows[0]) + "</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


if __name__ == "__main__":
    main()
