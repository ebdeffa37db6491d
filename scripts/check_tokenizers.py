#!/usr/bin/env python3
"""Compares ids and decoded text with those of the Python package tokenizers.

    scripts/check_tokenizers.py [--mb N] [TOKENIZER.json ...]
    scripts/check_tokenizers.py --fixtures      writes tests/fixtures/tokenizers anew, of its texts

The texts are code, prose in many scripts, emoji, random Unicode, markers and random white space:
N MB (20) for every tokenizer that is named; else a tenth of that for each of small ones that are
trained on the spot, one for every component that we read. Every character of Unicode is tried
alone, too; those that differ are counted and left out of the texts. Needs
`make build/release/tests/bench/tokenize` and the package tokenizers.
"""
import argparse
import base64
import glob
import json
import os
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

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
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CJK = "[一-龥ࠀ-一가-퟿]+"
LLAMA2_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                    decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def read(path, errors="strict"):
    with open(path, encoding="utf-8", errors=errors) as file:
        return file.read()


# ---- Texts

SCRIPTS = ["LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC", "DEVANAGARI", "TAMIL", "THAI",
           "HANGUL SYLLABLE", "HIRAGANA", "KATAKANA", "CJK UNIFIED", "ARMENIAN", "GEORGIAN",
           "ETHIOPIC"]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u2003",
          "\u3000", "\u2028", "\x0b", "\x0c", "\u0085", "\u200b", "\u180e"]


def letters_of_scripts():
    names = {chr(code): unicodedata.name(chr(code), "") for code in range(0x41, 0x20000)
             if unicodedata.category(chr(code))[0] in "LM"}
    return {script: [letter for letter, name in names.items() if name.startswith(script)]
            for script in SCRIPTS}


def is_assigned(code):
    """In the Unicode of this Python; not a surrogate."""
    return unicodedata.category(chr(code)) not in ("Cn", "Cs")


class Texts:
    """Random texts. The same seed gives the same texts."""

    def __init__(self, seed, markers):
        self.random = random.Random(seed)
        self.markers = markers or ["<s>", "</s>", "<|endoftext|>"]
        self.letters = letters_of_scripts()
        self.code = [read(path, "ignore") for pattern in (
            sysconfig.get_path("stdlib") + "/*.py", "kernels/*/*.c*", "model/*.c", "*/*.md",
            "/usr/share/common-licenses/*", "/usr/include/*.h") for path in sorted(glob.glob(pattern))]

    def piece_of_code(self):
        text = self.random.choice(self.code)
        start = self.random.randrange(max(1, len(text) - 3000))
        return text[start:start + self.random.randrange(3000)]

    def prose(self):
        pick = self.random
        letters = self.letters[pick.choice(SCRIPTS)]
        words = []
        for _ in range(pick.randrange(60)):
            words.append("".join(pick.choices(letters, k=pick.randrange(1, 9))))
            words.append(pick.choice([" ", " ", " ", ", ", ". ", "'s ", "\n", " 12 ", "-"]))
        return "".join(words)

    def emoji(self):
        ranges = [(0x1f300, 0x1faff), (0x2600, 0x27bf), (0x1f1e6, 0x1f1ff), (0x1f3fb, 0x1f3ff)]
        joins = ["", "", "\u200d", "\ufe0f", " ", "\ufe0f\u200d"]
        pick = self.random
        codes = (pick.randint(*pick.choice(ranges)) for _ in range(pick.randrange(30)))
        return "".join(chr(code) + pick.choice(joins) for code in codes if is_assigned(code))

    def any_characters(self):
        pick = self.random
        tops = [0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000]
        codes = (pick.randrange(pick.choice(tops)) for _ in range(pick.randrange(80)))
        return "".join(chr(code) for code in codes if is_assigned(code))

    def space(self):
        return "".join(self.random.choices(SPACES, k=self.random.randrange(12)))

    def digits(self):
        return "".join(self.random.choices("0123456789.,eE+-\u0663\u0967\u00b2\u00bd", k=20))

    def letters_many(self):
        return self.random.choice("aA= .0\u00e9\u2581") * self.random.randrange(400)

    def marker(self):
        marker = self.random.choice(self.markers)
        cut = self.random.randrange(len(marker) + 1) if self.random.random() < 0.2 else 0
        return self.random.choice(["", " ", "x", "\n"]) + marker[cut:]

    def text(self):
        kinds = [self.piece_of_code, self.prose, self.emoji, self.any_characters, self.space,
                 self.digits, self.letters_many, self.marker, self.space, self.marker]
        return "".join(self.random.choice(kinds)() for _ in range(self.random.randrange(1, 9)))

    def megabytes(self, megabytes):
        texts, size = [], 0
        while size < 1e6 * megabytes:
            texts.append(self.text())
            size += len(texts[-1].encode())
        return texts


# ---- Small ones, trained here

def like_llama2(tokenizer, metaspace):
    tokenizer.decoder = LLAMA2_DECODER
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", metaspace, split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                     normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])


def corpus(prose):
    pick = Texts(3, ["<s>"])
    return list(map(read, sorted(glob.glob("data/*.md")) + ["README.md"])) + [
        pick.prose() for _ in range(prose)]


def train(tokenizer, size, special=(), alphabet=(), prose=40):
    tokenizer.train_from_iterator(corpus(prose), trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=list(alphabet),
        show_progress=False))
    return tokenizer


def byte_level(size, steps, normalizer=None, prefix=False, regex=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    steps = steps + [pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, size, alphabet=pre_tokenizers.ByteLevel.alphabet())


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def fallback(size, metaspace):
    """Like Llama 2's: trained on characters, with tokens for bytes in front."""
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    trained = json.loads(train(trained, size, special=first, alphabet="éö日本", prose=0).to_str())
    letters = dict(trained["model"]["vocab"])
    merges = [tuple(merge) for merge in trained["model"]["merges"]]
    for merge in ("▁", "▁"), ("▁▁", "▁▁"), ("e", "▁"), ("▁▁", "s"):
        letters["".join(merge)] = len(letters)
        merges.insert(3, merge)
    tokenizer = Tokenizer(models.BPE(letters, merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    like_llama2(tokenizer, metaspace)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def characters(size, fuse, pre_tokenizer, decoder=None):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    return train(tokenizer, size, special=["<unk>"])


def with_added(tokenizer):
    """Tokens with every flag but single_word, which is refused."""
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|endo|>"])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word"),
        AddedToken("mot", lstrip=True, normalized=False),
        AddedToken("caf\u00e9"), AddedToken("\u212bngstr\u00f6m", normalized=False),
        AddedToken("  "), AddedToken("e\u0301t\u00e9")])
    tokenizer.add_special_tokens([AddedToken("<sp left>", lstrip=True, normalized=True)])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return tokenizer


def fixtures():
    """The kinds that people have; tests/unit/test_tokenizer.c reads them."""
    llama3 = with_added(byte_level(310, [split(Regex(LLAMA3))]))
    llama3.model.ignore_merges = True
    return {
        "llama3": llama3,
        "gpt2": byte_level(300, [], prefix=True, regex=True),
        "smollm": byte_level(300, [pre_tokenizers.Digits(True)], regex=True),
        "qwen": with_added(byte_level(300, [split(Regex(LLAMA3))], normalizers.NFC())),
        "llama2": with_added_llama2(fallback(460, None)),
        "mistral": fallback(460, "first"),
    }


def with_added_llama2(tokenizer):
    tokenizer.add_tokens([AddedToken("<extra>"), AddedToken("<raw>", normalized=False)])
    return tokenizer


def small():
    """One for every component, beside the fixtures."""
    made = fixtures()
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        made[form] = with_added(byte_level(600, [split(Regex(GPT2))], getattr(normalizers, form)()))
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next",
                     "contiguous"):
        for invert in (False, True):
            pattern = "th" if behavior.startswith("merged") else Regex(r"\s+|\p{L}")
            made[f"{behavior}{'-inverted' * invert}"] = byte_level(
                500, [split(pattern, behavior, invert), split("e", behavior)])
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            meta = pre_tokenizers.Metaspace("▁", scheme, split=cut)
            made[f"metaspace-{scheme}{'-split' * cut}"] = with_added(characters(
                700, cut, meta, LLAMA2_DECODER))
    made["empty-matches"] = byte_level(500, [split(Regex(r"\s*|x"))])
    made["lines"] = byte_level(500, [split(Regex(r"^.|\w+$"), "isolated")])
    made["digits"] = byte_level(500, [pre_tokenizers.Digits(False)], regex=True)
    made["punctuation"] = byte_level(500, [pre_tokenizers.Punctuation("contiguous")], regex=True)
    made["white-space"] = characters(600, True, pre_tokenizers.WhitespaceSplit())
    made["replace"] = byte_level(500, [], normalizers.Sequence(
        [normalizers.Replace("a", "bb"), normalizers.Replace("\n", " ")]), regex=True)
    made["unknown"] = characters(600, False, None, decoders.Fuse())
    made["unknown-fused"] = characters(600, True, split(" ", "merged_with_next"))
    made["prefix-after-split"] = byte_level(500, [split("b", "merged_with_next")], prefix=True)
    made["strip-decoder"] = characters(600, False, None, decoders.Sequence(
        [decoders.Replace("th", "[th]"), decoders.Fuse(), decoders.Strip("e", 2, 0)]))
    return made | families()


def deepseek(patterns, normalizer=None):
    steps = [split(Regex(pattern)) for pattern in patterns] + [pre_tokenizers.Digits(True)]
    return byte_level(400, steps, normalizer)


def families():
    """What models' files have beside the fixtures. SmolLM's is StarCoder's, too."""
    yi = fallback(460, None)
    yi.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁")])
    yi.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                    decoders.Fuse()])
    phi3 = fallback(460, None)
    phi3.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    return {
        "deepseek-coder": deepseek([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK]),
        "deepseek": deepseek([
            r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK], normalizers.Sequence([])),
        "gpt-neox": with_added(byte_level(400, [], normalizers.NFC(), regex=True)),
        "phi-4": byte_level(400, [split(Regex(LLAMA3), "removed", invert=True)]),
        "nemo": byte_level(400, [split(Regex(TEKKEN))]),
        "yi": yi,
        "phi-3": phi3,
    }


# ---- Comparing

def every_character(top):
    """Each between letters, digits, spaces and marks: {text: character}."""
    return {f"a{c}b {c}1{c}{c} .{c}\u0301 .\u0301{c}\u0323 ": c for c in map(chr, range(1, top))
            if not "\ud800" <= c <= "\udfff"}


def run_ours(path, texts):
    """[(ids, decoded bytes)] of texts, which are bytes."""
    with tempfile.TemporaryFile() as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)
        file.seek(0)
        said = subprocess.run([TOOL, path], stdin=file, stdout=subprocess.PIPE, check=True)
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
    """The texts whose ids or decoded text differ."""
    ours = run_ours(path, [text.encode() for text in texts])
    encodings = (encoding for start in range(0, len(texts), 2000) for encoding in
                 theirs.encode_batch_fast(texts[start:start + 2000], add_special_tokens=False))
    return [text for text, (ids, decoded), encoding in zip(texts, ours, encodings)
            if ids != encoding.ids or decoded.decode(errors="replace") != theirs.decode(ids)]


def broken_bytes(path, count):
    """Byte-level tokenizers without a normalizer give every byte back. How many texts do not?"""
    pick = random.Random(7)
    texts = [bytearray("Größe 日本 don't 123 \U0001f600 <|x|>\n".encode() * 3) for _ in range(count)]
    for text in texts:
        for _ in range(pick.randrange(20)):
            text[pick.randrange(len(text))] = pick.randrange(256)
    return sum(text != decoded for text, (_, decoded) in zip(texts, run_ours(path, texts)))


def is_lossless(description):
    text = json.dumps(description["pre_tokenizer"])
    return ('"ByteLevel"' in text and '"add_prefix_space": true' not in text and
            '"Removed"' not in text and description["normalizer"] is None)


def known_difference(character, normalizes):
    """The libraries know Unicode of different years: PCRE2 10.42 and utf8proc 2.8 that of 2021 and
    2022, as Python 3.11 does; the Python package's Oniguruma a later one, its normalizer that of
    2016."""
    return unicodedata.category(character) == "Cn" or (normalizes and character in NEWER_FORMS)


def check(path, megabytes, top, name):
    """Prints a line, and what differs. Returns how much of it should not."""
    theirs = Tokenizer.from_file(path)
    description = json.loads(read(path))
    normalizes = '"NF' in json.dumps(description["normalizer"])
    every = every_character(top)
    differ = {every[text] for text in differing(path, theirs, list(every))}
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
    for text in bad[:5]:
        ids = theirs.encode(text, add_special_tokens=False).ids
        print(f"  {ascii(text)}: theirs {ids} {ascii(theirs.decode(ids))}, "
              f"ours {run_ours(path, [text.encode()])[0]}")
    return len(bad) + len(unexpected) + (lossy or 0)


# ---- Fixtures

def write_fixtures():
    def base64_of(text):
        return base64.b64encode(text.encode()).decode()

    texts = [base64.b64decode(case["text"]).decode()
             for case in json.loads(read(f"{FIXTURES}/llama3/expected.json"))]
    for name, tokenizer in fixtures().items():
        folder = f"{FIXTURES}/{name}"
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(f"{folder}/tokenizer.json", pretty=False)
        coded = [(text, tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
        cases = [json.dumps({"text": base64_of(text), "ids": ids,
                             "decoded": base64_of(tokenizer.decode(ids))}) for text, ids in coded]
        with open(f"{folder}/expected.json", "w", encoding="ascii") as file:
            file.write("[" + ",\n".join(cases) + "]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20, help="of text for each tokenizer")
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("tokenizers", nargs="*")
    options = parser.parse_args()
    if options.fixtures:
        write_fixtures()
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in options.tokenizers:
            failed += check(path, options.mb, 0x110000, os.path.basename(path))
        for name, tokenizer in ({} if options.tokenizers else small()).items():
            path = f"{folder}/small-{name}.json"
            tokenizer.save(path)
            failed += check(path, options.mb / 10, 0x3000, f"small {name}")
    print(f"{failed} differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
