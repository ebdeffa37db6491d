#!/usr/bin/env python3
"""Runs llama.cpp's converter over a folder with a tokenizer that was trained here.

usage: scripts/to_gguf.py LLAMA_CPP FOLDER [options of convert_hf_to_gguf.py, --outfile and --outtype too]

LLAMA_CPP is a checkout of github.com/ggml-org/llama.cpp. Its converter knows a byte-level BPE by
the ids of one test string, so it refuses a vocabulary that it has not met. What llama.cpp must know
is only how text is split: this finds that in tokenizer.json, for Llama 3's pattern and GPT-2's. A
folder with Llama 3's own tokenizer needs no such help. llama.cpp loads no vocabulary without merges,
so a model of bytes is refused.
"""
import json
import pathlib
import sys

# Patterns and llama.cpp's names for them. smaug-bpe is Llama 3's pattern without that model's
# ignore_merges.
NAMES = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "smaug-bpe",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
}


def fail(sentence):
    sys.exit(f"to_gguf.py: {sentence}")


def pattern_of(folder):
    """The regular expression that splits text."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    if not tokenizer["model"].get("merges"):
        fail(f"{folder}: its tokens are bytes, and llama.cpp loads no vocabulary without merges: "
             "train one with ./prepare --train-tokenizer, and a model on it")
    parts = tokenizer["pre_tokenizer"].get("pretokenizers", [tokenizer["pre_tokenizer"]])
    patterns = [part["pattern"].get("Regex", "") for part in parts if part["type"] == "Split"]
    if not patterns:
        fail(f"{folder}: a tokenizer that ./prepare did not train; run the converter itself")
    return patterns[0]


def main():
    if len(sys.argv) < 3:
        fail("usage: scripts/to_gguf.py LLAMA_CPP FOLDER [options of the converter]")
    llama_cpp, folder = map(pathlib.Path, sys.argv[1:3])
    for file in llama_cpp / "convert_hf_to_gguf.py", folder / "tokenizer.json":
        if not file.is_file():
            fail(f"there is no {file}")
    pattern = pattern_of(folder)
    if pattern not in NAMES:
        fail(f"{folder}: llama.cpp has no name for the pattern {pattern}")
    sys.path.insert(0, str(llama_cpp))
    sys.path.insert(1, str(llama_cpp / "gguf-py"))
    import convert_hf_to_gguf
    from conversion.base import TextModel
    TextModel.get_vocab_base_pre = lambda self, tokenizer: NAMES[pattern]
    sys.argv = ["convert_hf_to_gguf.py", str(folder), *sys.argv[3:]]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
