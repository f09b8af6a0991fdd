"""What remat advise says of three trainings that do not fit as they are made."""
import resource
import time

CASES = [
    ("GPT-2 355M, AdamW, 1 x 1024 tokens, 8 GB on the CPU", ["gpt2-medium", "--memory", "8GB"], "cpu"),
    ("GPT-2 774M, AdamW, 16 x 1024 tokens, 24 GB on CUDA", ["gpt2-large", "--batch", "16", "--memory", "24GB"], "cuda"),
    ("GPT-2 1.5B, AdamW, 1 x 1024 tokens, 16 GB on the CPU", ["gpt2-xl", "--memory", "16GB"], "cpu"),
]

NOTE = """Predicted; nothing ran. "alone saves" is against the step as it is made, with all gradients kept
to its end; "takes" is of the measure with those before it that it needs. The commands of
what is recommended:

"""


def advise(lab):
    """The measures of each case, and below them, in NOTE, the commands."""
    mb = lambda n: "-" if n is None else f"{n / 1e6:.0f}"
    share = lambda x: "-" if x is None else f"{100 * x:.1f} %"
    tables, text = [], NOTE
    for title, args, provider in CASES:
        if lab.a.small:
            args = [{"gpt2-medium": "gpt2-tiny", "gpt2-large": "gpt2-tiny", "gpt2-xl": "gpt2-tiny"}.get(w, w) for w in args]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        d = lab.json("--provider", provider, "advise", *args)
        took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        n, r = d["need"], d["recommended"]
        rows = [{"": what, "MB": mb(n[key + "_bytes"])} for what, key in (
            ("parameters", "parameter"), ("gradients", "gradient"), ("optimizer state", "state"), ("activations", "activation"), ("other", "other"), ("total", "total"))]
        rows.append({"": "missing", "MB": mb(d["short_bytes"])})
        tables.append((f"{title}: what it needs ({took:.0f} s to advise, {seconds:.0f} of processor time)", rows))
        tables.append((f"{title}: what helps; the largest batch of a run is {d['largest_batch']}", [{
            "measure": m["name"], "alone saves MB": mb(m["alone_saves_bytes"]), "takes MB": mb(m["total_bytes"]), "more work": share(m["overhead"]),
            "fits": "yes" if m["fits"] else "no", "": "; ".join(w for w in (m["did"], m["remark"]) if w),
        } for m in d["measures"]]))
        text += f"{title}: takes {mb(r['total_peak_bytes'])} MB, {share(r['overhead'])} more work.\n\n```\n" + "\n".join(r["commands"]) + "\n```\n\n"
    lab.notes["advise"] = text.rstrip()
    return tables
