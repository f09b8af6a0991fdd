#!/usr/bin/env python3
"""Reads a run's event files as TensorBoard does, and holds them to its log.

    remat train gpt2.onnx --text book.txt --steps 100 -o run
    scripts/tensorboard_events.py run

Prints every scalar with its steps, first and last value. Exits with 1 where a value of
log.jsonl is not the one that TensorBoard shows at that step, also after a run was
stopped and went on. Needs the package tensorboard (scripts/requirements.txt).
"""
import argparse
import json
import math
import os
import struct
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit("the package tensorboard is missing: pip install -r scripts/requirements.txt, or pip install tensorboard")


def logged(path):
    """What log.jsonl says, as {tag: {step: value}}."""
    tags = {}
    with open(path) as lines:
        for text in lines:
            line = json.loads(text)
            step = line.pop("step")
            line.pop("skipped", None)
            tokens, seconds = line.pop("tokens", 0), line.pop("seconds", 0)
            if tokens and seconds:
                line["tokens_per_second"] = tokens / seconds
            for tag, value in line.items():
                if value is not None and math.isfinite(float(value)):
                    tags.setdefault(tag, {})[step] = value
    return tags


def single(x):
    """x as a float of four bytes, which event files hold."""
    return struct.unpack("f", struct.pack("f", x))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder")
    a = parser.parse_args()

    board = EventAccumulator(os.path.join(a.run, "events"), size_guidance={"scalars": 0})
    board.Reload()
    shown = {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    wrong = 0
    for tag, want in logged(os.path.join(a.run, "log.jsonl")).items():
        have = shown.get(tag, [])
        differ = [(s, v) for s, v in have if s not in want or v != single(want[s])]
        if differ or [s for s, _ in have] != sorted(want):
            print(f"{tag}: {len(have)} events, {len(want)} in the log, first difference {differ[:1]}", file=sys.stderr)
            wrong += 1
    for tag, events in sorted(shown.items()):
        (first, a0), (last, a1) = events[0], events[-1]
        print(f"{tag:20} {len(events):7} steps, {first} to {last}: {a0:g} to {a1:g}")
    if not shown:
        sys.exit("no scalars in " + a.run)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
