#!/usr/bin/env python3
"""Trains a tokenizer on the same text with ./prepare, with the Python package tokenizers, and with
rustbpe where it is installed; prints time, memory and how well each compresses held-out text.

    scripts/compare_tokenizer_training.py [--vocab 32000] [--megabytes 500] FILE_OR_FOLDER...

Files that are UTF-8 are the documents, one file in 50 is held out. Every trainer is a process of its
own and reads the same .jsonl file; the held-out text is encoded by tokenizers (rustbpe's by
tiktoken). PREPARE names another ./prepare. Needs: pip install tokenizers; rustbpe and tiktoken if
they are to be compared.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]
HELD_OUT = 50  # one document in so many
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def documents(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


# ---- The peers, each in a process of its own: text in a .jsonl file -> a file


def train_tokenizers(text, out, vocab):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(text), trainer)
    tokenizer.save(out)


def train_rustbpe(text, out, vocab):
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(documents(text), vocab - len(SPECIAL), pattern=PATTERN)
    with open(out, "w") as file:
        json.dump([[token.hex(), rank] for token, rank in tokenizer.get_mergeable_ranks()], file)


PEERS = {"tokenizers": train_tokenizers, "rustbpe": train_rustbpe}


# ---- Measuring


def run(command):
    """Seconds, CPU seconds and peak MB of a command that must succeed."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command[0]} failed: {' '.join(command)}")
    seconds = time.monotonic() - start
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def tokens_of_json(path, texts):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return sum(len(e) for e in tokenizer.encode_batch(texts, add_special_tokens=False))


def tokens_of_ranks(path, texts):
    import tiktoken

    with open(path) as file:
        ranks = {bytes.fromhex(token): rank for token, rank in json.load(file)}
    encoding = tiktoken.Encoding("peer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return sum(len(ids) for ids in encoding.encode_ordinary_batch(texts))


def first_difference(ours, theirs):
    """Says how far the two files' merges are the same."""
    lists = []
    for path in ours, theirs:
        with open(path, encoding="utf-8") as file:
            merges = json.load(file)["model"]["merges"]
        lists.append([tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges])
    for i, (a, b) in enumerate(zip(*lists)):
        if a != b:
            return f"the first {i} of {len(lists[0])} merges are the same"
    return f"all {len(lists[0])} merges are the same"


def gather(paths, limit, text):
    """Writes documents of `limit` bytes to the file; returns their bytes and those held out."""
    files = []
    for path in paths:
        if os.path.isfile(path):
            files.append(path)
        for folder, _, names in os.walk(path):
            files += [os.path.join(folder, name) for name in names]
    size, held_out = 0, []
    for i, path in enumerate(sorted(files)):
        try:
            with open(path, encoding="utf-8", newline="") as file:
                document = file.read()
        except (UnicodeDecodeError, OSError):
            continue
        if i % HELD_OUT == 0:
            held_out.append(document)
        elif size < limit and document:
            text.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            size += len(document.encode())
    return size, held_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("paths", nargs="+", metavar="FILE_OR_FOLDER")
    options = parser.parse_args()
    if not importlib.util.find_spec("tokenizers"):
        sys.exit("tokenizers is not installed; install it with: pip install tokenizers")
    prepare = os.environ.get("PREPARE", os.path.join(ROOT, "prepare"))
    with tempfile.TemporaryDirectory() as folder:
        text, ours = os.path.join(folder, "text.jsonl"), os.path.join(folder, "ours")
        with open(text, "w", encoding="utf-8", newline="") as file:
            size, held_out = gather(options.paths, options.megabytes * 1e6, file)
        held_bytes = sum(len(document.encode()) for document in held_out)
        print(
            f"{size / 1e6:.0f} MB of text, {held_bytes / 1e6:.1f} MB held out, "
            f"vocabulary {options.vocab}, {os.cpu_count()} cores"
        )
        command = [prepare, "--train-tokenizer", str(options.vocab), "--out", ours, text]
        rows = [["coda.c", *run(command)]]
        ours = os.path.join(ours, "tokenizer.json")
        rows[0].append(tokens_of_json(ours, held_out))
        for name in PEERS:
            if not importlib.util.find_spec(name):
                print(f"{name} is not installed")
                continue
            out = os.path.join(folder, name)
            peer = [sys.executable, os.path.abspath(__file__), "--peer", name, text, out]
            rows.append([name, *run([*peer, str(options.vocab)])])
            tokens = tokens_of_json if name == "tokenizers" else tokens_of_ranks
            rows[-1].append(tokens(out, held_out))
            if name == "tokenizers":
                print(f"coda.c and tokenizers: {first_difference(ours, out)}")
        print("| trainer | seconds | CPU seconds | peak MB | held-out tokens | bytes a token |")
        print("|---|---|---|---|---|---|")
        for name, seconds, cpu, memory, tokens in rows:
            print(
                f"| {name} | {seconds:.1f} | {cpu:.1f} | {memory:.0f} | {tokens} "
                f"({tokens / rows[0][4] - 1:+.2%}) | {held_bytes / tokens:.3f} |"
            )


if sys.argv[1:2] == ["--peer"]:
    PEERS[sys.argv[2]](sys.argv[3], sys.argv[4], int(sys.argv[5]))
else:
    main()
