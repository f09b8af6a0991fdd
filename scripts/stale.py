#!/usr/bin/env python3
"""Names the kept tables that are older than the code that made them.

    scripts/stale.py          each page of docs/results: its commit, and what came after it
    scripts/stale.py --fail   exit code 1 where one has no commit, or one that is not in the history

A table says the command that made it and its commit. What came after is every commit that
touches the command's script or a package that plans, writes, predicts or runs steps; it may
have changed a figure, and `git log` says what it was about. Standard library only.
"""
import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RESULTS = os.path.join(ROOT, "docs", "results")
# What a figure depends on, beside the script.
PACKAGES = ["cmd", "internal/pipeline", "internal/step", "models", "onnx", "ortmodel", "planner", "rewrite", "runtime", "train"]


def git(*args):
    done = subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def made(text):
    """The scripts and commits that a page names before its first table."""
    head = text.split("\n|", 1)[0]
    scripts = re.findall(r"`[^`]*?((?:scripts|bench)/[\w.]+)", head)
    commits = re.findall(r"`\S*(?:scripts|bench)/[^`]*`[^`]*?\b(?:at|commit) ([0-9a-f]{7,40})\b", text)
    return list(dict.fromkeys(scripts)), list(dict.fromkeys(commits))


def state(path):
    """A line on a page, and whether its commit is known."""
    with open(path) as f:
        scripts, commits = made(f.read())
    if not commits:
        return "says no commit", False
    lines = []
    for commit in commits:
        if git("merge-base", "--is-ancestor", commit, "HEAD") is None:
            return f"{commit}: not in the history", False
        paths = [":(exclude)*_test.go", *PACKAGES, *scripts]
        later = (git("log", "--oneline", f"{commit}..HEAD", "--", *paths) or "").splitlines()
        lines.append(f"{commit}: " + (f"{len(later)} commits after it, the last one {later[0]}" if later else "nothing after it"))
    return "; ".join(lines), True


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--fail", action="store_true", help="exit code 1 where a page has no commit that is in the history")
    a = p.parse_args()
    unknown = 0
    for name in sorted(os.listdir(RESULTS)):
        if name.endswith(".md"):
            line, known = state(os.path.join(RESULTS, name))
            unknown += not known
            print(f"{name:20} {line}")
    if unknown and a.fail:
        sys.exit(f"{unknown} pages have no commit that is in the history: make them again")


if __name__ == "__main__":
    main()
