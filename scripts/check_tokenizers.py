#!/usr/bin/env python3
"""Compares ids and decoded text with those of the Python package tokenizers.

    scripts/check_tokenizers.py [--mb N] [TOKENIZER.json ...]
    scripts/check_tokenizers.py --fixtures      writes tests/fixtures/tokenizers anew
    scripts/check_tokenizers.py --make FOLDER   writes those that the packages hold

The texts are code, prose in many scripts, emoji, random Unicode, markers and random white space:
N MB (20) for every tokenizer that is named, or that an installed package holds (Llama 3's from
llama_models, GPT-2's from openai-whisper, Mistral's from mistral_common), and a tenth of that for
small ones that are trained on the spot, one for every component that we read. Every character of
Unicode is tried alone, too; those that differ are counted and left out of the texts. Needs
`make build/release/tests/bench/tokenize` and the packages tokenizers and transformers.
"""
import argparse
import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer

from sample_tokenizers import Texts, fixtures, make_large, small

TOOL = os.environ.get("TOKENIZE", "build/release/tests/bench/tokenize")
FIXTURES = "tests/fixtures/tokenizers"
# Marks and compatibility characters of 2017 to 2021, which the Python package's normalizer does not
# know: found by trying every character.
NEWER_FORMS = {chr(code) for first, last in (
    (0x7fd, 0x7fd), (0x898, 0x89f), (0x8ca, 0x8d3), (0x9fe, 0x9fe), (0xc3c, 0xc3c),
    (0xd3b, 0xd3c), (0xeba, 0xeba), (0x1715, 0x1715), (0x1abf, 0x1ace), (0x1df6, 0x1dfa),
    (0x32ff, 0x32ff), (0xa7f2, 0xa7f4), (0xa82c, 0xa82c), (0xab69, 0xab69), (0x10781, 0x107ba),
    (0x10d24, 0x10d27), (0x10eab, 0x10eac), (0x10f46, 0x10f50), (0x10f82, 0x10f85),
    (0x11070, 0x11070), (0x1133b, 0x1133b), (0x1145e, 0x1145e), (0x11839, 0x1183a),
    (0x11938, 0x11943), (0x119e0, 0x119e0), (0x11a34, 0x11a99), (0x11d42, 0x11d97),
    (0x16ff0, 0x16ff1), (0x1e130, 0x1e136), (0x1e2ae, 0x1e2ef), (0x1f16c, 0x1f16c),
    (0x1fbf0, 0x1fbf9)) for code in range(first, last + 1)}


def every_character(top):
    """Each between letters, digits, spaces and marks."""
    codes = [c for c in range(1, top) if not 0xd800 <= c < 0xe000]
    return {chr(c): f"a{chr(c)}b {chr(c)}1{chr(c)}{chr(c)} .{chr(c)}\u0301 "
                    f".\u0301{chr(c)}\u0323 " for c in codes}


# ---- Comparing

def run_ours(path, texts):
    """[(ids, decoded bytes)] of texts, which are bytes."""
    with tempfile.TemporaryFile() as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)
        file.seek(0)
        said = subprocess.run([TOOL, "texts", path], stdin=file, stdout=subprocess.PIPE, check=True)
    out, at, results = said.stdout, 0, []
    for _ in texts:
        count, = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{count}i", out, at + 4))
        at += 4 + 4 * count
        length, = struct.unpack_from("<I", out, at)
        results.append((ids, out[at + 4:at + 4 + length]))
        at += 4 + length
    assert at == len(out)
    return results


def differing(path, theirs, texts):
    """The texts whose ids or decoded text differ, with both answers."""
    found = []
    ours = run_ours(path, [text.encode() for text in texts])
    for start in range(0, len(texts), 2000):
        encodings = theirs.encode_batch_fast(texts[start:start + 2000], add_special_tokens=False)
        for i, encoding in enumerate(encodings, start):
            decoded = theirs.decode(encoding.ids)
            ids, text = ours[i]
            if ids != encoding.ids or text.decode(errors="replace") != decoded:
                found.append((texts[i], encoding.ids, ids, decoded, text))
    return found


def broken_bytes(path, count):
    """Byte-level tokenizers without a normalizer give every byte back. How many texts do not?"""
    pick = random.Random(7)
    texts = []
    for _ in range(count):
        text = bytearray("Größe 日本 don't 123 \U0001f600 <|x|>\n".encode() * 3)
        for _ in range(pick.randrange(20)):
            text[pick.randrange(len(text))] = pick.randrange(256)
        texts.append(bytes(text))
    return sum(text != decoded for text, (_, decoded) in zip(texts, run_ours(path, texts)))


def is_lossless(description):
    text = json.dumps(description["pre_tokenizer"])
    return ('"ByteLevel"' in text and '"add_prefix_space": true' not in text and
            '"Removed"' not in text and description["normalizer"] is None)


def shorten(path, theirs, text):
    """A short part of a text that still differs, by taking parts away."""
    step = len(text) // 2
    while step:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + step:]
            if shorter and differing(path, theirs, [shorter]):
                text = shorter
            else:
                at += step
        step //= 2
    return text


def known_difference(character, normalizes):
    """The libraries know Unicode of different years: PCRE2 10.42 and utf8proc 2.8 that of 2021 and
    2022, as Python 3.11 does; the Python package's Oniguruma a later one, its normalizer that of
    2016."""
    return unicodedata.category(character) == "Cn" or (normalizes and character in NEWER_FORMS)


def check(path, megabytes, top, name):
    """Prints a line, and what differs. Returns how much of it should not."""
    theirs = Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as file:
        description = json.load(file)
    normalizes = any(f'"{form}"' in json.dumps(description["normalizer"])
                     for form in ("NFC", "NFD", "NFKC", "NFKD"))
    every = every_character(top)
    character_of = {text: character for character, text in every.items()}
    differ = {character_of[text] for text, *_ in differing(path, theirs, list(every.values()))}
    unexpected = sorted(c for c in differ if not known_difference(c, normalizes))
    markers = [token["content"] for token in description["added_tokens"]][:40]
    left_out = str.maketrans("", "", "".join(differ | (NEWER_FORMS if normalizes else set())))
    texts = [text.translate(left_out) for text in Texts(1, markers).megabytes(megabytes)]
    bad = differing(path, theirs, texts)
    lossy = broken_bytes(path, 2000) if is_lossless(description) else None
    print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts) / 1e6:.1f} MB, "
          f"{len(bad)} differ; {len(every)} characters, {len(differ)} differ by Unicode's year"
          f" ({' '.join(f'U+{ord(c):04X}' for c in sorted(differ)[:4])}), "
          f"{len(unexpected)} otherwise"
          f"{'' if lossy is None else f'; 2000 texts of broken UTF-8, {lossy} differ'}", flush=True)
    if unexpected:
        print("  " + " ".join(f"U+{ord(c):04X}" for c in unexpected[:200]))
    for text, *_ in bad[:5]:
        text = shorten(path, theirs, text)
        (_, ids, ours, decoded, mine), = differing(path, theirs, [text])
        print(f"  {ascii(text)}: theirs {ids} {ascii(decoded)}, ours {ours} {mine}")
    return len(bad) + len(unexpected) + (lossy or 0)


# ---- Fixtures

NASTY = [
    "",
    " ",
    "a",
    "Hello world",
    " two  spaces   three ",
    "don't DON'T we'Ll",
    "1234567 3.14 1,000",
    "line\nline\r\n\r\n  indented\n\n\n",
    "tab\tand\x0bvertical \u00a0nbsp\u2003em\u3000wide \u180e.",
    "Gr\u00f6\u00dfe na\u00efve e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u212b caf\u00e9 cafe\u0301",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4 \u4e2d\u6587",
    "\u0915\u094d\u0937 \u0e44\u0e17\u0e22 \u0639\u0631\u0628\u064a \u05e2\u05d1",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u2581under\u2581line \u2581\u2581",
    "<|begin|>text<|end|><|endo|><|endof",
    "x <left> y <right> z <both> w  <both>  <left>",
    "word words sword word. mot motet mot",
    "<s>a</s> <unk><extra> <raw> <raw>b<extra>c",
    "<sp left>  <sp left>",
    "<0x41><0x0A>",
    "a" * 300,
    " " * 200 + "x",
    "ab" * 100 + "\n" * 70,
    "\x00\x01\x7f\u0080\u00ff\ufffd\U0010ffff",
    "for (int i = 0; i < n; i++) {\n\tx[i] += y[i] * 2.5e-3f; // sum\n}\n",
    "s\u0307\u0323 \u1100\u1161\u11a8 \uac01",
]


def write_fixtures():
    for name, tokenizer in fixtures().items():
        folder = f"{FIXTURES}/{name}"
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(f"{folder}/tokenizer.json", pretty=False)
        cases = []
        for text in NASTY:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": base64.b64encode(text.encode()).decode(), "ids": ids,
                          "decoded": base64.b64encode(tokenizer.decode(ids).encode()).decode()})
        with open(f"{folder}/expected.json", "w", encoding="ascii") as file:
            file.write("[" + ",\n".join(json.dumps(case) for case in cases) + "]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20, help="of text for each tokenizer")
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("--make", metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="only those trained here")
    parser.add_argument("tokenizers", nargs="*")
    options = parser.parse_args()
    if options.fixtures:
        write_fixtures()
        return 0
    if options.make:
        print("\n".join(make_large(options.make)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        failed = 0
        large = [] if options.small else make_large(folder)
        for path in options.tokenizers or large:
            failed += check(path, options.mb, 0x110000, os.path.basename(path))
        for name, tokenizer in ({} if options.tokenizers else small()).items():
            path = f"{folder}/small-{name}.json"
            tokenizer.save(path)
            failed += check(path, options.mb / 10, 0x3000, f"small {name}")
    print(f"{failed} differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
