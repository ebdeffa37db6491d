#!/usr/bin/env python3
"""Times our tokenizer against tiktoken and tokenizers, by turns, in one run on one core.

    scripts/compare_tokenizers.py NAME=FILE ...        such as english=book.txt c=kernel.txt

With Llama 3's vocabulary, from the package llama_models: seconds to load its tokenizer.json, and
MB a second to encode the first 10 MB of each text, in pieces of about 10 kB that end with a line.
Processor time; the best of five rounds. Ours is build/release/tests/bench/tokenize, whose cache
starts empty in each. Needs the packages llama_models, tiktoken, tokenizers and transformers.
"""
import base64
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
from tokenizers import Tokenizer

from check_tokenizers import TOOL
from sample_tokenizers import LLAMA3, make_large, package_folder

ROUNDS, BYTES, PIECE = 5, 10_000_000, 10_000


def read_pieces(path):
    with open(path, "rb") as file:
        text = file.read(BYTES).decode(errors="ignore")
    pieces, at = [], 0
    while at < len(text):
        end = text.find("\n", at + PIECE) + 1 or len(text)
        pieces.append(text[at:end])
        at = end
    return pieces


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def main():
    texts = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    if not texts:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        path = next(p for p in make_large(folder) if p.endswith("/llama3.json"))
        with open(package_folder("llama_models") + "/llama3/tokenizer.model", "rb") as file:
            lines = [line.split() for line in file]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        special = {"<|begin_of_text|>": len(ranks), "<|end_of_text|>": len(ranks) + 1}
        tik = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks,
                                special_tokens=special)
        theirs = Tokenizer.from_file(path)
        load = {"ours": 1e9, "tokenizers": 1e9}
        print(f"{'':12} {'ours':>10} {'tiktoken':>10} {'tokenizers':>10}   ours / tiktoken")
        for name, file in texts.items():
            pieces = read_pieces(file)
            size = sum(len(piece.encode()) for piece in pieces)
            cut = f"{folder}/text"
            with open(cut, "w", encoding="utf-8", newline="") as out:
                out.writelines(pieces)
            best = {"ours": 1e9, "tiktoken": 1e9, "tokenizers": 1e9}
            for turn in range(ROUNDS):
                said = subprocess.run([TOOL, "time", path, cut, "0"], check=True,
                                      stdout=subprocess.PIPE).stdout.split()
                load["ours"] = min(load["ours"], float(said[0]))
                best["ours"] = min(best["ours"], float(said[1]))
                best["tiktoken"] = min(best["tiktoken"], seconds(
                    lambda: [tik.encode_ordinary(piece) for piece in pieces]))
                if turn < 2:
                    load["tokenizers"] = min(load["tokenizers"],
                                             seconds(lambda: Tokenizer.from_file(path)))
                    best["tokenizers"] = min(best["tokenizers"], seconds(
                        lambda: [theirs.encode(p, add_special_tokens=False) for p in pieces]))
            rate = {key: size / 1e6 / value for key, value in best.items()}
            print(f"{name + ', MB/s':12} {rate['ours']:10.1f} {rate['tiktoken']:10.1f} "
                  f"{rate['tokenizers']:10.1f}   {rate['ours'] / rate['tiktoken']:.2f}", flush=True)
        print(f"{'loading, s':12} {load['ours']:10.2f} {'':10} {load['tokenizers']:10.2f}")


if __name__ == "__main__":
    main()
