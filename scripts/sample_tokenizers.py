"""Texts and tokenizers for check_tokenizers.py and compare_tokenizers.py."""
import glob
import importlib.util
import json
import os
import random
import sysconfig
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# ---- Texts

SCRIPTS = ["LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC", "DEVANAGARI", "TAMIL", "THAI",
           "HANGUL SYLLABLE", "HIRAGANA", "KATAKANA", "CJK UNIFIED", "ARMENIAN", "GEORGIAN",
           "ETHIOPIC"]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u2003",
          "\u3000", "\u2028", "\x0b", "\x0c", "\u0085", "\u200b", "\u180e"]


def letters_of_scripts():
    letters = {script: [] for script in SCRIPTS}
    for code in range(0x41, 0x20000):
        name = unicodedata.name(chr(code), "")
        for script in SCRIPTS:
            if name.startswith(script) and unicodedata.category(chr(code))[0] in "LM":
                letters[script].append(chr(code))
    return letters


def is_assigned(code):
    """In the Unicode of this Python; not a surrogate."""
    return unicodedata.category(chr(code)) not in ("Cn", "Cs")


class Texts:
    """Random texts. The same seed gives the same texts."""

    def __init__(self, seed, markers):
        self.random = random.Random(seed)
        self.markers = markers or ["<s>", "</s>", "<|endoftext|>"]
        self.letters = letters_of_scripts()
        self.code = []
        for pattern in (sysconfig.get_path("stdlib") + "/*.py", "kernels/*/*.c*", "model/*.c",
                        "*/*.md", "/usr/share/common-licenses/*", "/usr/include/*.h"):
            for path in sorted(glob.glob(pattern)):
                with open(path, encoding="utf-8", errors="ignore") as file:
                    self.code.append(file.read())

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


# ---- Tokenizers that packages hold

def package_folder(name):
    spec = importlib.util.find_spec(name)
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def of_ranks(path, pattern, special):
    from transformers.convert_slow_tokenizer import TikTokenConverter
    return TikTokenConverter(vocab_file=path, pattern=pattern,
                             extra_special_tokens=special).converted()


def of_tekken(path, folder):
    with open(path, encoding="utf-8") as file:
        tekken = json.load(file)
    count = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
    ranks = os.path.join(folder, "tekken.tiktoken")
    with open(ranks, "w", encoding="ascii") as file:
        for token in tekken["vocab"][:count]:
            file.write(f"{token['token_bytes']} {token['rank']}\n")
    return of_ranks(ranks, tekken["config"]["pattern"], ["<s>", "</s>", "[INST]", "[/INST]"])


def of_sentencepiece(path, metaspace):
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    vocabulary = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    scores = {piece: model.get_score(i) for piece, i in vocabulary.items()}
    merges = []
    for piece, i in vocabulary.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                merges.append((-scores[piece], vocabulary[piece[:cut]], vocabulary[piece[cut:]],
                               (piece[:cut], piece[cut:])))
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocabulary, [merge[3] for merge in merges], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    like_llama2(tokenizer, metaspace)
    tokenizer.add_special_tokens([token for token in vocabulary
                                  if model.is_control(vocabulary[token]) or token == "<unk>"])
    return tokenizer


def like_llama2(tokenizer, metaspace):
    end = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
           decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(end)
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", metaspace, split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                     normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])


def make_large(folder):
    """Writes what the installed packages hold; returns the paths."""
    made = {}
    llama, whisper = package_folder("llama_models"), package_folder("whisper")
    mistral = package_folder("mistral_common")
    if llama:
        special = ["<|begin_of_text|>", "<|end_of_text|>"]
        special += [f"<|reserved_special_token_{i}|>" for i in range(254)]
        made["llama3"] = of_ranks(llama + "/llama3/tokenizer.model", LLAMA3, special)
        made["llama3"].model.ignore_merges = True
    if whisper:
        for name in ("gpt2", "multilingual"):
            made[name] = of_ranks(f"{whisper}/assets/{name}.tiktoken", GPT2, ["<|endoftext|>"])
    if mistral:
        made["tekken"] = of_tekken(mistral + "/data/tekken_240911.json", folder)
        made["mistral-v1"] = of_sentencepiece(mistral + "/data/tokenizer.model.v1", None)
        made["mistral-v3"] = of_sentencepiece(
            mistral + "/data/mistral_instruct_tokenizer_240323.model.v3", "first")
    for name, tokenizer in made.items():
        tokenizer.save(f"{folder}/{name}.json", pretty=True)
    return [f"{folder}/{name}.json" for name in made]


# ---- Small ones, trained here

def corpus(prose):
    pick = Texts(3, ["<s>"])
    texts = [path for pattern in ("data/*.md", "README.md") for path in sorted(glob.glob(pattern))]
    for path in texts:
        with open(path, encoding="utf-8") as file:
            yield file.read()
    for _ in range(prose):
        yield pick.prose()


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


def characters(size, fuse, pre_tokenizer, normalizer=None, decoder=None):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    return train(tokenizer, size, special=["<unk>"])


def with_added(tokenizer):
    """Tokens with every flag."""
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|endo|>"])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
        AddedToken("mot", single_word=True, lstrip=True, normalized=False),
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
            made[f"{behavior}{'-inverted' * invert}"] = byte_level(
                500, [split(Regex(r"\s+|\p{L}"), behavior, invert), split("e", behavior)])
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            meta = pre_tokenizers.Metaspace("▁", scheme, split=cut)
            made[f"metaspace-{scheme}{'-split' * cut}"] = with_added(characters(
                700, cut, meta, None, decoders.Metaspace("▁", scheme, split=cut)))
    made["empty-matches"] = byte_level(500, [split(Regex(r"\s*|x"), "merged_with_previous")])
    made["lines"] = byte_level(500, [split(Regex(r"^.|\w+$"), "isolated")])
    made["digits"] = byte_level(500, [pre_tokenizers.Digits(False)], regex=True)
    made["punctuation"] = byte_level(500, [pre_tokenizers.Punctuation("contiguous")], regex=True)
    made["white-space"] = characters(600, True, pre_tokenizers.WhitespaceSplit())
    made["strip"] = byte_level(500, [], normalizers.Sequence(
        [normalizers.Strip(True, False), normalizers.Replace("a", "bb"),
         normalizers.Strip(False, True)]), regex=True)
    made["unknown"] = characters(600, False, None, None, decoders.Fuse())
    made["unknown-fused"] = characters(600, True, split(" ", "merged_with_next"))
    made["prefix-after-split"] = byte_level(500, [split("b", "merged_with_next")], prefix=True)
    made["strip-decoder"] = characters(600, False, None, None, decoders.Sequence(
        [decoders.Strip("e", 2, 0), decoders.Replace("th", "[th]"), decoders.Fuse()]))
    return made
