#!/usr/bin/env python3
"""The same bundle in Python, Node, the browser, Java, C and Go, and what trains in the browser at size.

    make build ort test-runtimes
    scripts/runtimes.py [--part same|webgpu|browser]... --out docs/results

same     go test ./cmd/remat -run TestBundleHeld: five steps in each runtime, and the live peak that
         scripts/counting/counting.c counts in it
webgpu   go test ./cmd/remat -run TestWebGPU: five steps in headless Chromium by WebGPU, with an adapter in software
browser  scripts/page.sh in headless Chromium, beside GPT-2's first loss by examples/python: minutes a step

Each row is kept in runtimes.json with its commit; the page is written of all of them, so that a part can be
made again alone. Standard library only; the browser's part needs the Python package onnxruntime.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

import tables

ROOT = os.path.join(tables.HERE, "..")
NAMES = {"c": "C", "python": "Python", "node": "Node", "java": "Java", "go": "Go", "web": "browser"}
CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"]
# Steps of each of page.sh's bundles.
STEPS = {"plain-32x512": 1, "rewritten-32x512": 1, "gpt2-1x512": 1, "rewritten-24x512": 1, "plain-24x512": 1}
MB = lambda n: f"{n / 1e6:,.0f}"


def tested(name, count):
    """The rows that a test logs."""
    done = subprocess.run(["go", "test", "-count=1", "-timeout", "40m", "-v", "./cmd/remat", "-run", name + "$"], cwd=ROOT, capture_output=True, text=True)
    rows = [json.loads(x) for x in re.findall(r"row (\{.*\})", done.stdout)]
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    if len(rows) != count:
        sys.exit(f"{name}: {len(rows)} of {count} ran: make test-runtimes installs what is missing")
    yield rows


def same(a):
    return tested("TestBundleHeld", 11)


def webgpu(a):
    return tested("TestWebGPU", 2)


def browser(a):
    """What the page posts of one bundle after another, and the first loss of GPT-2 in Python."""
    folder = os.path.abspath(a.work)
    page = subprocess.Popen([os.path.join(tables.HERE, "page.sh"), folder], env={**os.environ, "PORT": "0", "REMAT": a.remat}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    said = []
    for line in page.stderr:
        said.append(line.strip())
        if line.startswith("http://"):
            break
    else:
        sys.exit("page.sh: " + " ".join(said[-3:]))
    try:
        for name, steps in STEPS.items():
            if a.bundle and name not in a.bundle:
                continue
            row = opened(f"{said[-1]}?bundles={name}&steps={steps}", page.stdout)
            if name == "gpt2-1x512":
                row["cpu"] = first_loss(os.path.join(folder, name))
            yield [row]
    finally:
        page.kill()


def first_loss(bundle):
    """Of the example in Python, which is ended after its first step."""
    program = os.path.join(ROOT, "examples", "python", "train.py")
    with subprocess.Popen([sys.executable, "-u", program, bundle], stdout=subprocess.PIPE, text=True) as p:
        loss = p.stdout.readline().split()[1]
        p.kill()
    return float(loss)


def opened(url, results):
    """The row that a page in headless Chromium posts when it is done."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        chromium = subprocess.Popen([os.environ.get("REMAT_CHROMIUM", "chromium"), *CHROMIUM, "--user-data-dir=" + profile, url], start_new_session=True,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return json.loads(results.readline())[0]
        finally:
            os.killpg(chromium.pid, signal.SIGKILL)
            chromium.wait()


PARTS = {"same": same, "webgpu": webgpu, "browser": browser}


def same_rows(rows):
    exact = lambda r: "exact" if r["live"] == r["predicted"] else f"{100 * (r['live'] / r['predicted'] - 1):+.0f} %"
    return [{"runtime": NAMES[r["target"]], "next values": r["way"], "predicted bytes": f"{r['predicted']:,}", "measured bytes": f"{r['live']:,}",
             "difference": "a heap" if r["target"] == "web" else exact(r), "held between steps": f"{r['rest']:,}" if r["rest"] else "",
             "losses, from C's": f"{r['apart']:.1e}" if r["apart"] else "the same", "losses": " ".join(f"{x:.6f}" for x in r["losses"])} for r in rows]


def webgpu_rows(rows):
    losses = lambda list: " ".join(f"{x:.6f}" for x in list)
    return [{"optimizer": r["name"], "rewritten": r["strategy"], "losses by WebGPU": losses(r["losses"]), "in C": losses(r["cpu"]), "apart": f"{r['apart']:.1e}"} for r in rows]


def browser_rows(rows):
    def row(r):
        p = r["predicted"]
        everything = sum(p[k] for k in ("parameter_bytes", "state_bytes", "feed_bytes", "session_bytes", "live_peak_bytes"))
        ends = re.sub(r"\s+", " ", r["error"] or "")
        return {"bundle": r["name"], "predicted MB": MB(everything), "of it live": MB(p["live_peak_bytes"]), "heap MB": MB(r["heap"]),
                "losses": " ".join(f"{x:.6f}" for x in r["losses"]), "on the CPU": f"{r['cpu']:.6f}" if "cpu" in r else "",
                "ends": "as asked" if not r["error"] else ends if len(ends) < 90 else ends[:90] + " …"}
    return [row(r) for r in sorted(rows, key=lambda r: list(STEPS).index(r["name"]))]


SAME = """**The same bundle.** A GPT of 6 layers with AdamW, rewritten to 60 % of its peak and bundled once for the browser, trains five steps
in each runtime by the programs of [examples](../../examples); and bundled for C, with next values bound, in those that bind. Losses agree to
1e-5. *Measured* is the live peak of a step: what ONNX Runtime holds at most, less what it holds between steps, counted by a library
(`scripts/counting/counting.c`) that is loaded before it. In Go the loss is in the program's memory, and so not in the prediction. Between steps
Python keeps returned values in ONNX Runtime's memory, the others in their own. The browser shows no more than the size of its heap, in
which are its module (some 30 MB), all inputs, the session and the live peak; predicted are all of those but the module."""
BROWSER = """**In the browser**, headless Chromium, one thread, what `make page` shows: each bundle in a worker with a heap of its own, which ends
at 4,295 MB, 4 GiB. *Predicted* is inputs, session and live peak; the heap holds the module too, has gaps, and grows by up to 101 MB
more than was asked for. Plain is `--strategy none`, which only orders the nodes; `rewritten` has a budget of 1 GiB of live
peak; GPT-2 124M updates by SGD, and its loss in Python stands beside."""
WEBGPU = """**By WebGPU.** A GPT of 2 layers trains five steps in headless Chromium, with an adapter in software (SwiftShader), by the same page with
`?provider=webgpu`, and in C on the CPU. What WebGPU has no kernel for, WebAssembly computes. Its memory is not predicted."""


def page(kept):
    commits = {p: ", ".join(dict.fromkeys(r["commit"] for r in kept[p])) for p in PARTS if p in kept}
    parts = [f"`scripts/runtimes.py --part {p}` at {c}" for p, c in commits.items()]
    if len(commits) == len(PARTS) and len(set(commits.values())) == 1:
        parts = [f"`scripts/runtimes.py` at {commits['same']}"]
    return "\n\n".join(["# Runtimes", f"{', '.join(parts)}, on {tables.cpu()}, {os.cpu_count()} cores.",
                        *([SAME, tables.text(same_rows(kept["same"]))] if "same" in kept else []),
                        *([WEBGPU, tables.text(webgpu_rows(kept["webgpu"]))] if "webgpu" in kept else []),
                        *([BROWSER, tables.text(browser_rows(kept["browser"]))] if "browser" in kept else [])]) + "\n"


def key(row):
    """What a row is of."""
    return row.get("name") or (row["target"], row["way"])


def kept_in(folder):
    path = os.path.join(folder, "runtimes.json")
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    p.add_argument("--bundle", action="append", choices=STEPS, help="of the browser's part, only this one; may be repeated")
    p.add_argument("--out", required=True, metavar="FOLDER", help="where runtimes.md and runtimes.json are written")
    p.add_argument("--work", default=os.path.join(ROOT, "out", "page"), metavar="FOLDER", help="of the page's bundles (default: out/page)")
    a = tables.alone(p)
    for part in a.part or PARTS:
        commit = tables.commit()
        for rows in PARTS[part](a):
            kept = kept_in(a.out)
            made = {key(row) for row in rows}
            kept[part] = [r for r in kept.get(part, []) if key(r) not in made] + [{**row, "commit": commit} for row in rows]
            tables.keep(a.out, "runtimes.json", kept)
            tables.keep(a.out, "runtimes.md", page(kept))


if __name__ == "__main__":
    main()
