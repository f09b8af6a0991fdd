#!/usr/bin/env python3
"""Models that do not fit as they are, trained within a memory, under a hard limit.

    make build ort
    scripts/large.py medium    GPT-2 355M, 8 x 512 tokens, AdamW, in 8 GiB: 20 steps
    scripts/large.py xl        GPT-2 1.56B, 1 x 1024 tokens, SGD, every parameter, in 8 GiB: 3 steps

`remat train --memory` chooses everything. It runs in a control group whose memory is
bounded to 5 % more, which counts all of the process: what the program, its threads and
ONNX Runtime take beside the step, and pages of files that were written to. Pages of
files that are only read count too, but give way. (RLIMIT_AS would count what is mapped
and never touched.) The same training without --memory then runs under the same limit,
and must end with a line that says why. The result is docs/results/NAME.md.

Weights are drawn from a seed; the text is this project's documentation. Standard library only.
Needs a system where this user may make a memory control group; --no-limit leaves it out.
"""
import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time

from tables import commit, cpu, keep

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
MODELS = {
    "medium": dict(model="gpt2-medium", title="GPT-2 medium, 355 million parameters, 8 x 512 tokens, AdamW",
                   flags=["--dim", "batch=8,seq=512", "--optimizer", "adamw", "--lr", "3e-4"], steps=20, memory=8),
    "xl": dict(model="gpt2-xl", title="GPT-2 XL, 1.56 billion parameters, all trained, 1 x 1024 tokens, SGD",
               flags=["--dim", "batch=1,seq=1024", "--optimizer", "sgd", "--lr", "0.01"], steps=3, memory=8),
    "tiny": dict(model="gpt2-tiny", title="a test of this script", small=["--vocab=50257"],
                 flags=["--dim", "batch=64,seq=64", "--optimizer", "sgd", "--lr", "0.1"], steps=3, memory=0.75),
}


class Group:
    """A control group that bounds the memory of what runs in it, of version 2 or 1."""

    def __init__(self, size):
        self.path = self.files = None
        for root, bound, peak in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                                  ("/sys/fs/cgroup", "memory.max", "memory.peak")):
            path = os.path.join(root, f"remat-{os.getpid()}")
            try:
                os.mkdir(path)
                with open(os.path.join(path, bound), "w") as f:
                    f.write(str(size))
                self.path, self.peak_file = path, peak
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)
        sys.exit("large.py: no memory control group can be made here: run it where one can, or with --no-limit")

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def peak(self):
        try:
            with open(os.path.join(self.path, self.peak_file)) as f:
                return int(f.read())
        except OSError:
            return None

    def close(self):
        for _ in range(50):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.1)


def text(folder):
    path, docs = os.path.join(folder, "text.txt"), os.path.join(HERE, "..", "docs")
    with open(path, "wb") as out:
        for name in sorted(n for n in os.listdir(docs) if n.endswith(".md")):
            with open(os.path.join(docs, name), "rb") as f:
                out.write(f.read())
    return path


def run(a, limit, *args):
    """Runs remat under the limit: exit code, document, last line of stderr, the group's peak."""
    group = Group(limit) if a.limit else None
    command = [a.remat, "--json", "--threads", str(a.threads), *args]
    print("+ remat " + " ".join(command[2:]), file=sys.stderr, flush=True)
    try:
        with open(os.path.join(a.folder, "err.txt"), "w+") as err:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, text=True, cwd=a.folder, preexec_fn=group.enter if group else None)
            err.seek(0)
            last = (err.read().strip().splitlines() or [""])[-1]
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, last, group.peak() if group else None
    finally:
        if group:
            group.close()


def train(a, name):
    m = MODELS[name]
    limit = int(m["memory"] * GIB * 1.05)
    source = m["model"] + ".onnx"
    if not os.path.exists(os.path.join(a.folder, source)):
        subprocess.run([a.remat, "model", m["model"], *m.get("small", []), "--batch", "0", "--seq", "0", "--seed", "1", "-o", source], cwd=a.folder, check=True, stdout=sys.stderr)
    steps = str(a.steps or m["steps"])
    common = ["train", source, "--text", text(a.folder), *m["flags"]]
    memory = f"{int(m['memory'] * GIB)}"
    for d in ("fitted", "plain"):
        shutil.rmtree(os.path.join(a.folder, d), ignore_errors=True)
    code, d, line, peak = run(a, limit, *common, "-o", "fitted", "--steps", steps, "--memory", memory)
    if code:
        sys.exit(f"large.py: the training ended with {code}: {line}")
    with open(os.path.join(a.folder, "fitted", "log.jsonl")) as f:
        log = [r for r in map(json.loads, f) if "loss" in r]
    with open(os.path.join(a.folder, "fitted", "decided.json")) as f:
        decided = json.load(f)
    shutil.rmtree(os.path.join(a.folder, "fitted"))
    plain = run(a, limit, *common, "-o", "plain", "--steps", "1") if a.limit else None
    shutil.rmtree(os.path.join(a.folder, "plain"), ignore_errors=True)
    return limit, d, log, decided, peak, plain


def size(n):
    return f"{n / GIB:.2f} GiB" if n is not None and n >= GIB / 10 else "-" if n is None else f"{n / (1 << 20):.1f} MiB"


def page(name, a, limit, d, log, decided, peak, plain):
    m, memory = MODELS[name], d["memory"]
    total = sum(memory[k] or 0 for k in ("parameter_bytes", "state_bytes", "feed_bytes", "session_bytes", "live_peak_bytes"))
    said = memory["predicted_live_peak_bytes"]
    seconds = sorted(r["seconds"] for r in log[1:] or log)
    rows = [("parameters", memory["parameter_bytes"]), ("optimizer state", memory["state_bytes"]), ("feeds", memory["feed_bytes"]),
            ("session", memory["session_bytes"]), ("live peak of a step", memory["live_peak_bytes"]), ("together", total),
            ("the process at most", memory["rss_peak_bytes"]), ("the control group at most, cached files included", peak)]
    lines = [f"# {name}", "", f"`scripts/large.py {name}` at {commit()} on {cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}.", "",
             f"**{m['title']}, `--memory {m['memory']}GiB`, {len(log)} steps"
             + (f" in a control group of {size(limit)}**" if a.limit else ", without a hard limit**"), "",
             "What was decided:", "", "```", *decided_lines(decided), "```", "", "What it takes:", "", "| | |", "|---|--:|",
             *(f"| {what} | {size(n)} |" for what, n in rows), "",
             "The live peak of a step was predicted " + ("exactly." if said == memory["live_peak_bytes"] else f"as {said} bytes, measured as {memory['live_peak_bytes']}."),
             f"A step takes {seconds[len(seconds) // 2]:.1f} s here.", "", "| step | loss | seconds |", "|--:|--:|--:|",
             *(f"| {r['step']} | {r['loss']:.4f} | {r['seconds']:.1f} |" for r in log), ""]
    if plain:
        lines += [f"The same without `--memory`, under the same limit, ends with exit code {plain[0]}:", "", "```", plain[2], "```", ""]
    return "\n".join(lines)


def decided_lines(decided):
    """The table of what was decided, as lines."""
    words = lambda measure, did, saves, work, costs: f"{measure}: {did}" + (f"; saves {saves}" if saves else "") + (
        f", {work} more work" if work and work != "0.0 %" else "") + (f"; costs {costs}" if costs else "")
    return [words(*row) for t in decided for row in t["Rows"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name", choices=MODELS)
    p.add_argument("--remat", default=os.path.join(HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--folder", default="large", help="where models and runs go: 3 GB for medium, 20 GB for xl")
    p.add_argument("--steps", type=int, help="default: 20 for medium, 3 for xl")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--no-limit", dest="limit", action="store_false", help="without a control group")
    p.add_argument("--out", default=os.path.join(HERE, "..", "docs", "results"), help="folder for NAME.md")
    a = p.parse_args()
    a.remat, a.folder, a.out = (os.path.abspath(x) for x in (a.remat, a.folder, a.out))
    os.makedirs(a.folder, exist_ok=True)
    body = page(a.name, a, *train(a, a.name))
    print(body)
    keep(a.out, a.name + ".md", body)


if __name__ == "__main__":
    main()
