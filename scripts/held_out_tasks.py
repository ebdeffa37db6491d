#!/usr/bin/env python3
"""Makes tasks for ./train --score from the documents of a text that ./prepare keeps for validation.

usage: scripts/held_out_tasks.py TEXT.jsonl[.zst] OUT [--val-fraction 0.02] [--seed 0]

OUT gets lambada_openai.jsonl: passages whose last word stands in them before; and blimp/RULE.jsonl:
sentences, beside the same sentence with one word that breaks a rule. Both have the form of their
namesakes, not their care: a person has read none of them, and a broken sentence may be correct
English. They compare models that were trained on the same text. With other arguments of ./prepare
than here the tasks are of texts that a model was trained on.
"""
import argparse
import json
import pathlib
import re
import subprocess

from rng import draw, stream_key

MANY_DOCUMENTS = 100  # of data/prepare/run.c: from here on whole documents are kept for validation
PAIRS = [("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("this", "these"),
         ("a", "an"), ("it", "its")]
SENTENCE = re.compile(r"(?<=[.!?] )[A-Z][A-Za-z,' ]{30,160}[.]")
PASSAGE_WORDS = 40


def fail(sentence):
    raise SystemExit(f"held_out_tasks.py: {sentence}")


def held_out(lines, fraction, seed):
    """The texts that is_validation() of data/prepare/run.c chooses, where there are many."""
    key = stream_key(seed, "prepare.split")
    kept = draw(key, (1 << 64) - 1) % MANY_DOCUMENTS
    number = -1
    for number, line in enumerate(lines):
        chosen = (draw(key, number) >> 11) / (1 << 53) < fraction
        if number == kept or chosen and number != (kept + 1) % MANY_DOCUMENTS:
            try:
                yield json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                fail(f"line {number + 1} is no object with a \"text\": take a .jsonl or .jsonl.zst")
    if number + 1 < MANY_DOCUMENTS:
        fail(f"{number + 1} documents are too few: of fewer than {MANY_DOCUMENTS} ./prepare keeps "
             "their ends for validation")


def sentences_of(text):
    return SENTENCE.findall(re.sub(r"\s+", " ", text))


def broken(sentence):
    """Of each pair that the sentence has exactly one word of: its name, and the sentence with the
    other word in that place."""
    for pair in PAIRS:
        found = list(re.finditer(rf"\b({pair[0]}|{pair[1]})\b", sentence))
        if len(found) == 1:
            begin, end = found[0].span()
            yield "_".join(pair), sentence[:begin] + pair[found[0][0] == pair[0]] + sentence[end:]


def passages_of(text):
    """Whole sentences, PASSAGE_WORDS words or more, that end in a word they had before, but not
    among the last three."""
    words = []
    for sentence in sentences_of(text):
        words += sentence[:-1].split()
        if len(words) < PASSAGE_WORDS:
            words[-1] += "."
            continue
        last = words[-1]
        if len(last) > 3 and last.islower() and last in words[:-4] and last not in words[-4:-1]:
            yield " ".join(words)
        words = []


def write(path, questions):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(question) + "\n" for question in questions)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("text", type=pathlib.Path)
    options.add_argument("out", type=pathlib.Path)
    options.add_argument("--val-fraction", type=float, default=0.02)
    options.add_argument("--seed", type=int, default=0)
    options = options.parse_args()
    if not options.text.is_file():
        fail(f"there is no file '{options.text}'")
    reader = None
    try:
        if options.text.suffix == ".zst":
            reader = subprocess.Popen(["zstdcat", options.text], stdout=subprocess.PIPE, text=True)
        lines = reader.stdout if reader else open(options.text, encoding="utf-8")
    except OSError as error:
        fail(f"{error.strerror}: '{error.filename}'")
    passages, rules, documents = [], {}, 0
    for text in held_out(lines, options.val_fraction, options.seed):
        documents += 1
        passages += passages_of(text)
        for sentence in sentences_of(text):
            for rule, bad in broken(sentence):
                rules.setdefault(rule, {})[sentence] = bad
    if reader and reader.wait() != 0:
        fail(f"zstdcat could not read '{options.text}'")
    if passages:
        write(options.out / "lambada_openai.jsonl", ({"text": passage} for passage in passages))
    for rule, found in rules.items():
        write(options.out / "blimp" / f"{rule}.jsonl",
              ({"sentence_good": good, "sentence_bad": bad, "UID": rule}
               for good, bad in found.items()))
    print(f"{documents} documents: {len(passages)} passages; sentences by rule:",
          ", ".join(f"{rule} {len(found)}" for rule, found in sorted(rules.items())))


if __name__ == "__main__":
    main()
