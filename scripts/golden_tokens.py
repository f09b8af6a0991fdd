#!/usr/bin/env python3
"""Tokens of Hugging Face's tokenizers library, for the tests of train/data.

    pip install tokenizers
    scripts/golden_tokens.py GPT2 [OUT] [--random N]

GPT2 is a folder with GPT-2's own encoder.json and vocab.bpe (or vocab.json and
merges.txt). Writes OUT/gpt2_tokens.json: a list of {"text": …, "ids": […]}, and
OUT/NAME.json with NAME_tokens.json: small tokenizers of other kinds, trained here
on a few texts, and what they make of the same texts. OUT is train/data/testdata.
With --random, N random texts come after those, and GPT-2's tokenizer.json is written
too; the tests read another folder than testdata where REMAT_TOKENS names one:

    scripts/golden_tokens.py GPT2 /tmp/tokens --random 5000
    REMAT_TOKENS=/tmp/tokens go test -count=1 -v -run Golden ./train/data/...
"""
import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "Hello, world!", " leading and trailing ", "don't we'll I'd they're you've he's I'M DON'T", "",
    "one  two   three\n\nfour\t\tfive \n six\r\nseven\n", "   \n", "\n\n\n", "a\n\n\nb", "x \n\n y", "tabs\t\tand\tspaces  \t ",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n", "12345 3.14159 1,000,000 2026-11-23 0x1F ½ ² Ⅷ ٣٤",
    "naïve café Ærøskøbing Straße ñandú", "decomposed: e\u0301 a\u030a n\u0303", "Привет, как дела? Объявление.",
    "こんにちは世界。今日はいい天気ですね。", "你好，世界！我喜欢机器学习。", "안녕하세요 세계", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪", "math: ∑ᵢ xᵢ² ≤ ∞ → ∂f/∂x", "\u00a0nbsp\u2003em\u200bzero\ufeffbom\u2028line\u2029par\u0085nel",
    "control: \x00\x01\x7f", "<|endoftext|>", "before<|endoftext|>after <|endoftext|> end", "<|endoftext", "</s><s>[SEP][CLS]",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...,,,;;; ((())) [[]] {{}} --- ___ ***", "it''s 'quoted' \"double\" ‘curly’ “too” — dash – en", "e-mail: a.b@c.de http://x.y/z?q=1&r=2#t",
    "MiXeD CaSe WoRdS camelCase snake_case kebab-case", "\ufffd replacement", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ﬁ ﬂ ﬃ", "ﷺ ㍿ ㈱", "İstanbul ıI ΑΣΑΣ ΣΑΣ",
    "a" * 3 + " " * 17 + "b", "end with newline\n", "end with spaces   ", "。\n中文\n", "x/y\n/z ...\n/w",
]

BYTES = [f"<0x{i:02X}>" for i in range(256)]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def gpt2(folder):
    names = [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")]
    vocab, merges = next(pair for pair in names if os.path.exists(os.path.join(folder, pair[0])))
    t = Tokenizer(models.BPE.from_file(os.path.join(folder, vocab), os.path.join(folder, merges)))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    return t


def trained(t, trainer, after=None):
    t.train_from_iterator(TEXTS * 3 + [" ".join(TEXTS)], trainer)
    if after:
        after(t)
    return t


def bytelevel(pattern=None, size=600, **model):
    t = Tokenizer(models.BPE(**model))
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    return trained(t, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def llama3():
    t = bytelevel(LLAMA3, ignore_merges=True)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def qwen():
    t = bytelevel(QWEN)
    t.normalizer = normalizers.NFC()
    return t


def sentencepiece(metaspace):
    """As Llama 2 (a normalizer that puts ▁ before the text) and as its later form."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # to train on words

    def after(t):
        if metaspace:
            t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        else:
            t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            t.pre_tokenizer = None
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t = trained(t, trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=150,
                                       special_tokens=["<unk>", "<s>", "</s>"] + BYTES))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(state))
    after(t)
    return t


def splits(parts, size=600):
    """A sequence of pre-tokenizers before bytes, as DeepSeek and Falcon have."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return trained(t, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def deepseek():
    split = lambda x: pre_tokenizers.Split(Regex(x), "isolated")
    return splits([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(True)])


def falcon():
    return splits([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
                   pre_tokenizers.Split("e", "merged_with_next"), pre_tokenizers.Split(" ", "merged_with_next")])


def gemma():
    t = sentencepiece(False)
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return t


def bert(lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t = trained(t, trainers.WordPieceTrainer(vocab_size=900, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


KINDS = {"byte_bpe": bytelevel, "llama3": llama3, "qwen": qwen, "llama2": lambda: sentencepiece(False), "llama2_metaspace": lambda: sentencepiece(True),
         "deepseek": deepseek, "falcon": falcon, "gemma": gemma, "bert": lambda: bert(True), "bert_cased": lambda: bert(False)}


def golden(t, texts):
    return [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids} for x in texts]


def random_texts(n):
    """Words of the texts, white space, and characters of every block, unassigned ones left out."""
    import unicodedata
    r = random.Random(1)
    words = [w for x in TEXTS for w in x.split(" ")]
    spaces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u3000", ""]
    chars = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    for _ in range(n):
        parts = []
        for _ in range(r.randrange(1, 30)):
            kind = r.random()
            if kind < 0.5:
                parts.append(r.choice(words))
            elif kind < 0.6:
                parts.append("".join(r.choice(chars) for _ in range(r.randrange(1, 5))))
            elif kind < 0.7:
                parts.append("".join(chr(r.randrange(0x80)) for _ in range(r.randrange(1, 5))))
            parts.append(r.choice(spaces))
        yield "".join(parts)


def dump(path, what):
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, ensure_ascii=True) for x in what) + "\n]\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("gpt2")
    p.add_argument("out", nargs="?", default=os.path.join(os.path.dirname(__file__), "../train/data/testdata"))
    p.add_argument("--random", type=int, default=0)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    texts = TEXTS + list(random_texts(a.random))
    kinds = dict(KINDS, gpt2=lambda: gpt2(a.gpt2))
    for name, make in kinds.items():
        t = make()
        if name != "gpt2" or a.random:
            t.save(os.path.join(a.out, name + ".json"), pretty=False)
        dump(os.path.join(a.out, name + "_tokens.json"), golden(t, texts))


if __name__ == "__main__":
    main()
