#!/usr/bin/env python3
"""Fine-tuning half a billion parameters: adapters, frozen weights in four bits, beside PyTorch and PEFT.

    make build ort
    scripts/finetune.py --out docs/results [--row NAME ...] [--work DIR]

A Llama-like model in the shape of Qwen2.5-0.5B (hidden 896, 24 layers, 14 heads, 2 of keys and values,
intermediate 4864, vocabulary 151936, tied embeddings), seeded weights, exported by transformers; one
sequence of 512 tokens a step. Adapters of rank 8 on all projections, their frozen weights in int4, int8 and
float32; everything trained with APOLLO-Mini and AdamW. Each row is derived, rewritten and run alone. A row
takes minutes of two cores; --predict NAME only predicts that row, as for one that needs more memory than there is.

Counted are parameters, state, feeds, session and live peak; the process is the largest RssAnon and
RssShmem of its status while it runs, which leaves out mapped files. --work keeps the files of a row, and
does not make again those that are there. Needs torch, transformers and peft.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import tables

SHAPE = dict(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
             num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, rope_theta=1e6, attn_implementation="eager")
TOKENS, RATE = 512, "1e-4"
LORA = ["--lora", "*_proj.weight:r=8,alpha=16"]

# What is trained, and how its step is planned.
ROWS = {
    "adapters, frozen in int4": ([*LORA, "--quantize-frozen", "int4", "--optimizer", "adamw"], ["--strategy", "least", "--chunk-loss", "8"]),
    "adapters, frozen in int8": ([*LORA, "--quantize-frozen", "int8", "--optimizer", "adamw"], ["--strategy", "least", "--chunk-loss", "8"]),
    "adapters, frozen in float32": ([*LORA, "--optimizer", "adamw"], ["--strategy", "full"]),
    "everything, APOLLO-Mini": (["--optimizer", "apollo-mini"], ["--strategy", "full"]),
    "everything, AdamW": (["--optimizer", "adamw"], ["--strategy", "full"]),
}
EMPTY = dict.fromkeys(("trained", "by", "parameters MB", "state MB", "live peak MB", "counted MB", "predicted", "process MB", "s a step", "losses"), "")
TORCH = {"adapters, PEFT": True, "everything, AdamW, PyTorch": False}


def build():
    import torch
    import transformers
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE))


def batch():
    ids = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (1, TOKENS))
    return {"input_ids": ids, "labels": ids}


def export(path):
    import torch

    class Text(torch.nn.Module):
        """The mask of ones keeps transformers from looking for packed sequences."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, labels):
            return self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels, use_cache=False).loss

    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    torch.onnx.export(Text(build()).eval(), (ids, ids.clone()), path, dynamo=True, optimize=False, external_data=True, verbose=False,
                      input_names=["input_ids", "labels"], output_names=["loss"])


def torch_steps(adapters, steps):
    """A process of its own: the losses and seconds of the steps."""
    import torch
    torch.set_num_threads(2)
    model = build().train()
    if adapters:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=r".*_proj"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=float(RATE))
    feeds = {k: torch.tensor(v) for k, v in batch().items()}
    feeds["attention_mask"] = torch.ones_like(feeds["input_ids"])
    done = []
    for _ in range(steps):
        began = time.time()
        loss = model(**feeds, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done.append({"loss": loss.item(), "seconds": time.time() - began})
    print(json.dumps(done))


def anonymous(pid):
    """The bytes of a process that no file is behind, and 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/status") as f:
            held = dict(line.split(":", 1) for line in f)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(held[k].split()[0]) * 1024 for k in ("RssAnon", "RssShmem") if k in held)


def watched(command, folder):
    """What a command prints, and its largest memory beyond mapped files."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder)
        most = 0
        while child.poll() is None:
            most = max(most, anonymous(child.pid))
            time.sleep(0.01)
        out.seek(0), err.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(command)}: {err.read().strip()[-500:]}")
        return out.read(), most


class Row:
    """A step by remat: derived and rewritten where its files are not there, and run."""

    def __init__(self, lab, name):
        self.lab, self.name = lab, name
        self.derive, self.plan = ROWS[name]
        self.file = name.replace(", ", "-").replace(" ", "-")

    def made(self, file, *args):
        if os.path.exists(self.lab.at(file)):
            self.lab.commands.append("remat " + " ".join([*args, "-o", file]))
        else:
            self.lab.remat(*args, "-o", file)
        return file

    def written(self):
        train = self.made(f"{self.file}.onnx", "grad", "qwen.onnx", *self.derive)
        return self.made(f"{self.file}_written.onnx", "rewrite", train, *self.plan)

    def predicted(self):
        m = self.lab.json("inspect", self.written(), "--memory")["memory"]
        if not m["exact"]:
            sys.exit(f"{self.name}: the prediction is not exact")
        return {**EMPTY, "trained": self.name, "by": "remat", "live peak MB": mega(m["predicted_live_peak_bytes"]),
                "counted MB": mega(m["predicted_total_peak_bytes"]), "predicted": "not run"}

    def measured(self, steps):
        file = self.written()
        args = ["--json", "run", file, "--feeds", "batch.npz", "--steps", str(steps), "--lr", RATE]
        self.lab.commands.append("remat " + " ".join(args))
        text, process = watched([self.lab.a.remat, "--quiet", "--threads", str(self.lab.a.threads), *args], self.lab.folder)
        d = json.loads(text)
        m = d["memory"]
        keys = ("live_peak_bytes", "session_bytes", "reserved_bytes")
        counted = m["total_peak_bytes"]
        return {
            **EMPTY, "trained": self.name, "by": "remat", "parameters MB": mega(m["parameter_bytes"]), "state MB": mega(m["state_bytes"]),
            "live peak MB": mega(m["live_peak_bytes"]), "counted MB": mega(counted),
            "predicted": "exact" if all(m[k] == m["predicted_" + k] for k in keys) else "NOT exact",
            "process MB": mega(process), "s a step": f"{min(s['seconds'] for s in d['steps']):.1f}",
            "losses": " ".join(f"{s['outputs']['loss']:.4f}" for s in d["steps"]),
        }


def mega(n):
    return f"{n / 1e6:.0f}"


def torch_row(lab, name, steps):
    text, process = watched([sys.executable, os.path.abspath(__file__), "--torch", name, "--steps", str(steps)], lab.folder)
    done = json.loads(text)
    return {**EMPTY, "trained": name, "by": "PyTorch", "process MB": mega(process),
            "s a step": f"{min(s['seconds'] for s in done):.1f}", "losses": " ".join(f"{s['loss']:.4f}" for s in done)}


def save(a, rows, about, lab):
    text = ["# Half a billion parameters, fine-tuned", "",
            f"`scripts/finetune.py` at {about['commit']}, {about['cpu']}: the shape of Qwen2.5-0.5B, seeded weights, 1 x {TOKENS} tokens,",
            "adapters of rank 8 on all projections. Counted are parameters, state, feeds, session and live peak; *predicted* says that",
            "live peak, session and reservation were foretold to the byte; a row that was not run is the prediction alone. *Process* is its largest memory beyond mapped files, that of the",
            "runtime's code and graph included; PyTorch's holds its weights in it, remat's maps the frozen ones. 2 threads, the fastest",
            "of the steps: times of one run on a shared machine. Adapters begin from other random numbers in PEFT.", "",
            tables.text(rows), "", "The commands:", "", "```", *dict.fromkeys(lab.commands), "```", ""]
    os.makedirs(a.out, exist_ok=True)
    for name, content in (("finetune.md", "\n".join(text)), ("finetune.json", json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")):
        part = os.path.join(a.out, name + ".part")
        with open(part, "w") as f:
            f.write(content)
        os.replace(part, part[:-5])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--remat", default=os.path.join(tables.HERE, "..", "bin", "remat"), help="the program")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--row", choices=[*ROWS, *TORCH], action="append", help="only this one; may be repeated")
    p.add_argument("--predict", choices=ROWS, action="append", default=[], help="do not run this row; may be repeated")
    p.add_argument("--work", help="folder for the files, kept")
    p.add_argument("--out", help="folder for finetune.md and finetune.json")
    p.add_argument("--torch", choices=TORCH, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.torch:
        return torch_steps(TORCH[a.torch], a.steps)
    a.remat, a.provider, a.rehearse, a.largest = os.path.abspath(a.remat), "cpu", False, 0
    if not os.path.exists(a.remat):
        sys.exit(f"{a.remat}: no such program; make build, or --remat PATH")
    with tempfile.TemporaryDirectory() as folder:
        lab = tables.Lab(a, os.path.abspath(a.work) if a.work else folder)
        os.makedirs(lab.folder, exist_ok=True)
        if not os.path.exists(lab.at("qwen.onnx")):
            tables.note("export")
            export(lab.at("qwen.onnx"))
        np.savez(lab.at("batch.npz"), **batch())
        rows = []
        for name in a.row or [*ROWS, *TORCH]:
            tables.note(name)
            if name in TORCH:
                rows.append(torch_row(lab, name, a.steps))
            else:
                row = Row(lab, name)
                rows.append(row.predicted() if name in a.predict else row.measured(a.steps))
            print(rows[-1], flush=True)
        print(tables.text(rows))
        if a.out:
            save(a, rows, tables.machine(lab), lab)
    sys.exit("a prediction is not exact" if any(r.get("predicted") == "NOT exact" for r in rows) else 0)


if __name__ == "__main__":
    main()
