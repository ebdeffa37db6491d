#!/usr/bin/env python3
"""Compares the ids and the mask of ./prepare --chat with those of the Python package transformers.

    scripts/check_chat.py [--count N] [--jinja FILE] [FOLDER ...]
    scripts/check_chat.py --fixtures     writes tests/fixtures/chat anew

N random conversations (2000) for every FOLDER with a tokenizer and a chat template, or for those of
tests/fixtures/chat; --jinja replaces their template. ids are apply_chat_template's, and the mask is
that of the same template with {% generation %} around the assistant's turn. A marker inside a
content is a special token to transformers and text to us, so such contents are compared with the
template's text cut at its own markers and encoded with encode_special_tokens=True. A token that
joins the template's last newline with the first of an answer counts to transformers, not to us.
Needs ./prepare and the packages transformers (torch is not needed) and jinja2.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from check_tokenizers import Texts, fallback

PREPARE = os.environ.get("PREPARE", "./prepare")
FIXTURES = "tests/fixtures/chat"
MARKERS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|begin_of_text|>", "<|end_of_text|>"]


def open_folder(folder, jinja):
    with open(f"{folder}/tokenizer_config.json", encoding="utf-8") as file:
        config = json.load(file)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json",
                                        bos_token=config.get("bos_token"),
                                        eos_token=config.get("eos_token"))
    # Else a space in front of a word has no offset, and transformers loses a turn's mask with it.
    if '"ByteLevel"' in tokenizer.backend_tokenizer.to_str():
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.chat_template = config.get("chat_template")
    if os.path.exists(f"{folder}/chat_template.jinja"):
        with open(f"{folder}/chat_template.jinja", encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
    if jinja:
        with open(jinja, encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
    return tokenizer


# ---- Theirs

def with_generation(template):
    """The template with marks around the assistant's words and end; None where it has no place."""
    chatml = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    llama3 = "{{ content }}{% endfor %}"
    if chatml in template:
        return template.replace(chatml, "{{'<|im_start|>' + message['role'] + '\n'}}"
                                "{% if message['role'] == 'assistant' %}{% generation %}"
                                "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
                                "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
                                "{{ '\n' }}")
    if llama3 in template:
        return template.replace(llama3, "{% if message['role'] == 'assistant' %}"
                                "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
                                "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}"
                                "{% endgeneration %}{% else %}{{ content }}{% endif %}{% endfor %}")
    return None


def direct(tokenizer, messages):
    """ids as transformers has them, and the mask or None."""
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    marked = with_generation(tokenizer.chat_template)
    if not marked:
        return ids, None
    made = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=True,
                                         return_dict=True, return_assistant_tokens_mask=True)
    assert made["input_ids"] == ids
    return ids, made["assistant_masks"]


def by_parts(tokenizer, messages):
    """ids where markers inside of contents are text."""
    hidden = [dict(m, content=f"QX{i:05d}XQ") for i, m in enumerate(messages)]
    text = tokenizer.apply_chat_template(hidden, tokenize=False)
    trims = "trim" in tokenizer.chat_template
    plain = tokenizer.backend_tokenizer
    parts, ids = [""], []
    while text:
        marker = next((m for m in MARKERS if text.startswith(m)), None)
        if marker:
            parts += [marker, ""]
        else:
            parts[-1] += text[0]
        text = text[len(marker) if marker else 1:]
    plain.encode_special_tokens = True
    scheme = getattr(plain.pre_tokenizer, "prepend_scheme", None)
    if scheme == "first":  # a part is not the first one
        plain.pre_tokenizer.prepend_scheme = "never"
    for i, part in enumerate(parts):
        for k, message in enumerate(messages):
            content = message["content"].strip() if trims else message["content"]
            part = part.replace(f"QX{k:05d}XQ", content) if i % 2 == 0 else part
        ids += ([tokenizer.convert_tokens_to_ids(part)] if i % 2 else
                plain.encode(part, add_special_tokens=False).ids)
    plain.encode_special_tokens = False
    if scheme:
        plain.pre_tokenizer.prepend_scheme = scheme
    return ids


# ---- Ours

def read_part(folder, name):
    """[(ids, mask)] of the documents of a part."""
    documents, shard = [], 0
    while os.path.exists(f"{folder}/{name}-{shard:05d}.bin"):
        with open(f"{folder}/{name}-{shard:05d}.bin", "rb") as file:
            header = struct.unpack("<256i", file.read(1024))
            wide = header[1] == 7
            data = file.read()
        ids = struct.unpack(f"<{header[2]}{'I' if wide else 'H'}", data)
        with open(f"{folder}/{name}-{shard:05d}.docs", "rb") as file:
            head = struct.unpack("<IIQQQIIQ", file.read(48))
            ends = struct.unpack(f"<{head[4]}I", file.read(4 * head[4]))
            bits = file.read()
        mask = [bits[i // 8] >> i % 8 & 1 for i in range(len(ids))] if head[5] else [1] * len(ids)
        for start, end in zip((0,) + ends, ends):
            documents.append((list(ids[start:end]), mask[start:end]))
        shard += 1
    return documents


def ours(folder, conversations, jinja):
    """[(ids, mask)], in no order."""
    with tempfile.TemporaryDirectory() as work:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            source = jinja if jinja and name == "chat_template.jinja" else f"{folder}/{name}"
            if os.path.exists(source):
                with open(source, "rb") as read, open(f"{work}/{name}", "wb") as write:
                    write.write(read.read())
        with open(f"{work}/chat.jsonl", "w", encoding="utf-8") as file:
            for messages in conversations:
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
        subprocess.run([PREPARE, "--chat", "--tokenizer", work, "--out", f"{work}/out",
                        f"{work}/chat.jsonl"], check=True, stdout=subprocess.DEVNULL)
        return read_part(f"{work}/out", "train") + read_part(f"{work}/out", "val")


# ---- Conversations

def random_conversations(count, markers, tokenizer):
    texts = Texts(5, markers or ["QX"])
    pick = random.Random(9)
    ends = ["", "", "", "\n", "\n\n", " ", "  ", "\t", "\r\n", "\u00a0", "\u2003", "\x1c", "\x0b"]

    def content():
        text = texts.text() if pick.random() < 0.8 else pick.choice(["", "Yes.", "\n", "A", "é"])
        if not markers:
            for special in tokenizer.all_special_tokens:
                text = text.replace(special, "")
        return pick.choice(ends) + text + pick.choice(ends)

    for _ in range(count):
        system = [{"role": "system", "content": content()}] if pick.random() < 0.3 else []
        turns = [{"role": role, "content": content()} for _ in range(pick.randrange(1, 4))
                 for role in ("user", "assistant")]
        yield system + turns


def check(folder, count, jinja):
    tokenizer = open_folder(folder, jinja)
    failed = 0
    for markers in ([], MARKERS):
        conversations = list(random_conversations(count, markers, tokenizer))
        mine = {}
        for ids, mask in ours(folder, conversations, jinja):
            mine.setdefault(tuple(ids), mask)
        wrong = joined = masked = 0
        for messages in conversations:
            theirs, mask = (by_parts(tokenizer, messages), None) if markers else direct(
                tokenizer, messages)
            found = mine.get(tuple(theirs))
            wrong += found is None
            if found is None and wrong <= 3:
                print("  differs:", ascii(messages)[:500])
            if mask and found is not None and mask != found:
                turns = sum(m["role"] == "assistant" for m in messages)
                # At most one token for each answer, which counts there and not here.
                fine = all(a <= b for a, b in zip(found, mask)) and \
                    sum(mask) - sum(found) <= turns
                joined += fine
                masked += not fine
        failed += wrong + masked
        print(f"{folder}: {count} conversations {'with' if markers else 'without'} markers in "
              f"contents: {wrong} differ in ids, {masked} in the mask"
              + ("" if markers else f" ({joined} have a newline joined with the template's)"))
    return failed


# ---- Fixtures

def write_json(path, value):
    with open(path, "w", encoding="ascii") as file:
        json.dump(value, file)
        file.write("\n")


SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
           "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
           "Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|im_start|>assistant\n' }}{% endif %}")


def make_folders():
    for name in ("chatml", "llama3"):
        subprocess.run([PREPARE, "--train-tokenizer", "400", "--template", name, "--force", "--out",
                        f"{FIXTURES}/{name}", "data/README.md", "README.md"], check=True,
                       stdout=subprocess.DEVNULL)
    # One that puts a space in front of words, and whose vocabulary is of characters.
    tokenizer = fallback(460, "first")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    os.makedirs(f"{FIXTURES}/smollm2", exist_ok=True)
    tokenizer.save(f"{FIXTURES}/smollm2/tokenizer.json", pretty=False)
    write_json(f"{FIXTURES}/smollm2/tokenizer_config.json",
               {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMOLLM2,
                "tokenizer_class": "PreTrainedTokenizerFast"})


def write_fixtures():
    make_folders()
    for name in ("chatml", "llama3", "smollm2"):
        folder = f"{FIXTURES}/{name}"
        tokenizer = open_folder(folder, None)
        cases = []
        for markers in ([], MARKERS):
            for messages in random_conversations(12, markers, tokenizer):
                messages = [dict(m, content=m["content"][:120] if i % 3 else m["content"][-60:])
                            for i, m in enumerate(messages)]
                ids, mask = (by_parts(tokenizer, messages), None) if markers else direct(
                    tokenizer, messages)
                cases.append({"messages": messages, "ids": ids, "mask": mask})
        write_json(f"{folder}/expected.json", cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="conversations for each tokenizer")
    parser.add_argument("--jinja", metavar="FILE")
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    if options.fixtures:
        write_fixtures()
        return 0
    folders = options.folders or [f"{FIXTURES}/{name}" for name in sorted(os.listdir(FIXTURES))]
    return sum(check(folder, options.count, options.jinja) for folder in folders) > 0


if __name__ == "__main__":
    sys.exit(main())
