#!/usr/bin/env python3
"""Compares the ids and the mask of ./prepare --chat with those of the Python package transformers.

    scripts/check_chat.py [--count N] [--jinja FILE] [FOLDER ...]
    scripts/check_chat.py [--jinja FILE] --fixtures    writes tests/fixtures/chat anew

2 N random conversations (N is 1000) for every FOLDER with a tokenizer and a chat template, or for
each of the kinds below; --jinja names the file of Llama 3.1's template, which adds two kinds, or
with FOLDERs replaces their template. The kinds are the templates that are known with tokenizers
that put a space in front of words, that normalize, and whose special tokens take the white space
around them (lstrip, rstrip). The conversations have roles of tools and others in any order, tool
calls, contents that are lists of text parts, keys that are null, and weights.

The ids are apply_chat_template's; the mask is that of the same template with {% generation %}
around the content and the end of each turn that counts. In half of the conversations the contents
spell markers. Those are special tokens to transformers and text to us, so there the template's own
and the tokenizer's are renamed. A list of text parts is joined for transformers where the template
would write Python's repr of it, or fail: everywhere but in Llama 3.1's contents of tools. A
conversation that transformers cannot render must be refused. Needs ./prepare, and the packages
transformers (5.24 or later; torch is not needed) and jinja2.
"""
import argparse
import glob
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from check_tokenizers import (LLAMA3, NEWER_FORMS, Texts, byte_level, characters, fallback, read,
                              split)

PREPARE = os.environ.get("PREPARE", "./prepare")
FIXTURES = "tests/fixtures/chat"
MARKERS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|begin_of_text|>", "<|end_of_text|>"]
RENAMED = {marker: chr(0xe000 + i) for i, marker in enumerate(MARKERS)}
LEFT_OUT = str.maketrans("", "", "".join(NEWER_FORMS) + "".join(RENAMED.values()))


def open_folder(folder, jinja=None):
    config = json.loads(read(f"{folder}/tokenizer_config.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json",
                                        bos_token=config.get("bos_token"),
                                        eos_token=config.get("eos_token"))
    # Else a space in front of a word has no offset, and transformers loses a turn's mask with it.
    if '"ByteLevel"' in tokenizer.backend_tokenizer.to_str():
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    jinja = jinja or f"{folder}/chat_template.jinja"
    tokenizer.chat_template = read(jinja) if os.path.exists(jinja) else config.get("chat_template")
    return tokenizer


# ---- Theirs

def writes_json(template):
    return "tojson" in template


def with_generation(template):
    """The template with marks around what counts; None where it has no place."""
    counts = "message['role'] == 'assistant' and message['weight'] != 0"
    chatml = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    llama3 = "{{ content }}{% endfor %}"
    if chatml in template:
        said = "{{ message['content'] + '<|im_end|>' }}"
        return template.replace(chatml, "{{'<|im_start|>' + message['role'] + '\n'}}"
                                f"{{% if {counts} %}}{{% generation %}}{said}{{% endgeneration %}}"
                                f"{{% else %}}{said}{{% endif %}}{{{{ '\n' }}}}")
    if llama3 in template:
        return template.replace(llama3, f"{{% if {counts} %}}"
                                "{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
                                "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
                                "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}"
                                "{% endgeneration %}{% else %}{{ content }}{% endif %}{% endfor %}")
    if not writes_json(template):
        return None
    turn = ("{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
            "message['content'] | trim + '<|eot_id|>' }}")
    template = template.replace(turn, (
        f"{{%- if {counts} %}}{{{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}}}"
        "{%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}"
        f"{{%- else %}}{turn}{{%- endif %}}"))
    call = template.index("""{{- '{"name": "' + tool_call.name""")
    end = template.index("{%- endif %}", call)
    written = template[call:end] + '{{- "<|eot_id|>" }}'
    behind = template.index("{%- elif message.role ==", end)
    return (f"{template[:call]}{{%- if {counts} %}}{{%- generation %}}{written}"
            f"{{%- endgeneration %}}{{%- else %}}{written}{{%- endif %}}{{%- endif %}}"
            f"{template[behind:]}")


def is_tool(template, message):
    return (writes_json(template) and message.get("tool_calls") is None and
            message.get("role") in ("tool", "ipython"))


def joined(template, messages):
    """The messages with text parts as one text, where the template does not write them as JSON."""
    return [dict(m, content="".join(part["text"] for part in m["content"]))
            if isinstance(m.get("content"), list) and not is_tool(template, m) else m
            for m in messages]


def direct(tokenizer, messages):
    """ids as transformers has them, and the mask or None. Raises what the template raises."""
    messages = joined(tokenizer.chat_template, messages)
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    marked = with_generation(tokenizer.chat_template)
    if not marked:
        return ids, None
    made = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=True,
                                         return_dict=True, return_assistant_tokens_mask=True)
    assert made["input_ids"] == ids
    return ids, made["assistant_masks"]


def renamed(text):
    """The text with a character of its own for each marker."""
    for marker, character in RENAMED.items():
        text = text.replace(marker, character)
    return text


def renamed_tokenizer(tokenizer):
    """One whose markers are these characters."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in description["added_tokens"]:
        token["content"] = renamed(token["content"])
    vocabulary = description["model"]["vocab"]
    description["model"]["vocab"] = {renamed(token): i for token, i in vocabulary.items()}
    return Tokenizer.from_str(json.dumps(description))


def by_names(tokenizer, other, messages):
    """ids and mask where markers inside of contents are text: the template's are renamed."""
    messages = joined(tokenizer.chat_template, messages)
    hidden = [dict(m, content=f"QX{i:05d}XQ") for i, m in enumerate(messages)]
    text = renamed(tokenizer.apply_chat_template(hidden, tokenize=False))
    trims = "trim" in tokenizer.chat_template
    first, *pieces = re.split(r"QX(\d{5})XQ", text)
    made, counted = first, []
    for number, behind in zip(pieces[::2], pieces[1::2]):
        message = messages[int(number)]
        content = message["content"].strip() if trims else message["content"]
        if message["role"] == "assistant" and message.get("weight") != 0:
            counted.append((len(made), len(made) + len(content) + 1))  # and the marker
        made += content + behind
    encoding = other.encode(made, add_special_tokens=False)
    assert max(encoding.ids) < len(tokenizer)
    mask = [int(any(begin < end and last > first for first, end in counted))
            for begin, last in encoding.offsets]
    return encoding.ids, mask


# ---- Ours

def read_documents(folder):
    """{ids: mask} of a dataset's documents (data/README.md has the format)."""
    documents = {}
    for path in sorted(glob.glob(f"{folder}/*.bin")):
        with open(path, "rb") as file:
            header = struct.unpack("<256i", file.read(1024))
            ids = struct.unpack(f"<{header[2]}{'I' if header[1] == 7 else 'H'}", file.read())
        with open(path[:-3] + "docs", "rb") as file:
            head = struct.unpack("<IIQQQIIQ", file.read(48))
            ends = struct.unpack(f"<{head[4]}I", file.read(4 * head[4]))
            bits = file.read()
        mask = [bits[i // 8] >> i % 8 & 1 for i in range(len(ids))] if head[5] else [1] * len(ids)
        documents.update((ids[start:end], mask[start:end]) for start, end in zip((0,) + ends, ends))
    return documents


def run_prepare(folder, conversations, jinja, work):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        source = jinja if jinja and name == "chat_template.jinja" else f"{folder}/{name}"
        if os.path.exists(source):
            shutil.copyfile(source, f"{work}/{name}")
    with open(f"{work}/chat.jsonl", "w", encoding="utf-8") as file:
        for messages in conversations:
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return subprocess.run([PREPARE, "--chat", "--force", "--tokenizer", work, "--out",
                           f"{work}/out", f"{work}/chat.jsonl"], check=False, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ours(folder, conversations, jinja):
    """{ids: mask}"""
    with tempfile.TemporaryDirectory() as work:
        said = run_prepare(folder, conversations, jinja, work)
        if said.returncode:
            sys.exit(f"{folder}: {said.stderr}")
        return read_documents(f"{work}/out")


def refused(folder, conversations, jinja):
    """Of conversations that transformers cannot render, those that we do not refuse by their
    line."""
    wrong = []
    with tempfile.TemporaryDirectory() as work:
        for messages in conversations:
            good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            said = run_prepare(folder, [good, messages], jinja, work)
            if said.returncode != 1 or "chat.jsonl' line 2: " not in said.stderr:
                wrong.append(messages)
    return wrong


# ---- Conversations

class Conversations:
    """Random ones. markers: contents spell them, and are then strings. added: tokens that are not
    special."""

    def __init__(self, seed, template, markers, special, added):
        self.pick = random.Random(seed)
        self.texts = Texts(seed, markers or ["QX"])
        self.template, self.markers, self.special, self.added = template, markers, special, added

    def space(self):
        return self.pick.choice(["", "", "", "\n", "\n\n", " ", "  ", "\t", "\r\n", "\u00a0",
                                 "\u2003", "\x1c", "\x0b", " \n ", "\n  "])

    def content(self):
        pick = self.pick
        text = (self.texts.text() if pick.random() < 0.7 else
                pick.choice(["", "Yes.", "\n", "A", "é", "日", "\u0301a", "  ", "'s"]))
        if self.added and pick.random() < 0.4:
            token = pick.choice(self.added)
            text = pick.choice([token + text, text + token, text + self.space() + token + text])
        if not self.markers:
            for token in self.special:
                text = text.replace(token, "")
        return self.space() + text.translate(LEFT_OUT) + self.space()

    def json(self, depth=0):
        pick = self.pick
        kind = pick.randrange(9 if depth < 3 else 7)
        if kind < 2:
            return self.content()
        if kind == 8:
            return {self.content() if pick.random() < 0.3 else f"k{i}": self.json(depth + 1)
                    for i in range(pick.randrange(4))}
        if kind == 7:
            return [self.json(depth + 1) for _ in range(pick.randrange(4))]
        return pick.choice([None, True, False, 0, -1, 12345678901234567890123, 0.1, 1e16, -0.0,
                            1e-5, 123456.0, 3.5e300, 1 / 3, 2.0 ** 60, pick.random(),
                            pick.random() * 10 ** pick.randrange(-20, 20)])

    def parts(self):
        parts = [{"type": "text", "text": self.content()} for _ in range(self.pick.randrange(4))]
        return [dict(part, image_url=None) if self.pick.random() < 0.3 else part for part in parts]

    def call(self):
        arguments = self.json()
        if not isinstance(arguments, (dict, str)):
            arguments = {"x": arguments}
        return [{"id": "c1", "type": "function",
                 "function": {"name": self.pick.choice(["get", "a\"b", "é"]),
                              "arguments": arguments}}]

    def message(self):
        pick = self.pick
        role = pick.choice(["user", "user", "assistant", "assistant", "assistant", "system", "tool",
                            "ipython", "developer", "", "日本", " user\n"])
        message = {"role": role, "content": self.content()}
        if self.markers:
            message["role"] = role if not is_tool(self.template, message) else "user"
            return message
        kind = pick.random()
        if kind < 0.25:
            message["content"] = self.parts()
        if is_tool(self.template, message) and kind < 0.5:
            message["content"] = self.pick.choice([self.parts(), {"a": self.json()}, [self.json()]])
        if pick.random() < 0.3:
            message["tool_calls"] = None
        if role == "assistant" and pick.random() < 0.2:
            message["tool_calls"] = self.call()
            message["content"] = pick.choice([message["content"], None]) if writes_json(
                self.template) else message["content"]
        return message

    def conversation(self):
        pick = self.pick
        if pick.random() < 0.3:  # the usual order
            messages = [{"role": role, "content": self.content()} for _ in range(pick.randrange(1, 4))
                        for role in ("user", "assistant")]
        else:
            messages = [self.message() for _ in range(pick.randrange(7))]
            messages.insert(pick.randrange(len(messages) + 1),
                            {"role": "assistant", "content": self.content()})
        if pick.random() < 0.3:
            messages.insert(0, {"role": "system", "content": self.content()})
        for message in messages:
            if pick.random() < 0.1:
                message["weight"] = pick.choice([0, 1, 0.0, None])
            if pick.random() < 0.2:
                message[pick.choice(["name", "tool_call_id"])] = pick.choice([None, "x"])
        if not any(m["role"] == "assistant" and m.get("weight") != 0 for m in messages):
            messages.append({"role": "assistant", "content": self.content()})
        items = [list(message.items()) for message in messages]
        for item in items:
            pick.shuffle(item)
        return [dict(item) for item in items]

    def broken(self):
        """One that the template cannot write."""
        pick = self.pick
        wrong = [{"content": "a"}, {"role": None, "content": "a"}, {"role": 3, "content": "a"}]
        if "trim" not in self.template:
            wrong += [{"role": "assistant"}, {"role": "user", "content": None},
                      {"role": "user", "content": 5}]
        if writes_json(self.template):
            call = self.call()
            wrong += [{"role": "assistant", "tool_calls": calls} for calls in (
                [], call + call, [{}], [{"function": {"name": "a"}}], {}, "",
                [{"function": {"arguments": {}}}], [{"function": {"name": None, "arguments": 1}}])]
            wrong += [{"role": "tool"}, {"role": "ipython", "content": None}]
        messages = self.conversation()
        messages.insert(pick.randrange(1, len(messages) + 1), pick.choice(wrong))
        return messages


def makers(tokenizer, seed):
    """[(markers in contents, maker of conversations, what gives their ids and mask)]"""
    tokens = tokenizer.added_tokens_decoder.values()
    special = tokenizer.all_special_tokens + [token.content for token in tokens if token.special]
    added = [token.content for token in tokens if not token.special]
    other = renamed_tokenizer(tokenizer)
    return [(markers, Conversations(seed, tokenizer.chat_template, markers, special, added), expect)
            for markers, expect in (([], lambda messages: direct(tokenizer, messages)),
                                    (MARKERS, lambda messages: by_names(tokenizer, other, messages)))]


def check(name, folder, count, jinja):
    """Prints two lines; returns how much differs."""
    tokenizer = open_folder(folder, jinja)
    failed = 0
    for markers, maker, expect in makers(tokenizer, 5):
        conversations = [maker.conversation() for _ in range(count)]
        mine = ours(folder, conversations, jinja)
        wrong = masked = compared = 0
        for messages in conversations:
            theirs, mask = expect(messages)
            found = mine.get(tuple(theirs))
            wrong += found is None
            compared += bool(found and mask)
            masked += bool(found and mask and mask != found)
            if (not found or mask and mask != found) and wrong + masked <= 3:
                print("  mask differs:" if found else "  ids differ:", ascii(messages)[:600])
        broken = [] if markers else [maker.broken() for _ in range(20)]
        for messages in broken:
            try:
                direct(tokenizer, messages)
                sys.exit(f"transformers renders {messages}")
            except Exception as why:  # pylint: disable=broad-except
                if isinstance(why, AssertionError):
                    raise
        passed = refused(folder, broken, jinja)
        for messages in passed[:3]:
            print("  not refused:", ascii(messages)[:600])
        failed += wrong + masked + len(passed)
        print(f"{name}: {count} conversations {'with' if markers else 'without'} markers in "
              f"contents: {wrong} differ in ids, {masked} of {compared} in the mask"
              + (f"; {len(broken) - len(passed)} of {len(broken)} refused" if broken else ""),
              flush=True)
    return failed


# ---- Kinds

def write_json(path, value):
    with open(path, "w", encoding="ascii") as file:
        json.dump(value, file)
        file.write("\n")


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")
SMOLLM2 = CHATML.replace("{{'<|im_start|>'", "{% if loop.first and messages[0]['role'] != 'system' "
                         "%}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                         "trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>'", 1)
LLAMA3_CHAT = ("{% set loop_messages = messages %}{% for message in loop_messages %}"
               "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
               "+ message['content'] | trim + '<|eot_id|>' %}"
               "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
               "{{ content }}{% endfor %}{% if add_generation_prompt %}"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")


def save(folder, tokenizer, template, bos, eos):
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json", pretty=False)
    write_json(f"{folder}/tokenizer_config.json",
               {"bos_token": bos, "eos_token": eos, "chat_template": template,
                "tokenizer_class": "PreTrainedTokenizerFast"})


def marked(tokenizer, left=(), right=(), others=True):
    """With all markers as special tokens, of which those that are named take the white space on that
    side. others: with tokens that are not special, of every flag but single_word, and of white space."""
    tokenizer.add_special_tokens([
        AddedToken(marker, special=True, normalized=False, lstrip=marker in left,
                   rstrip=marker in right) for marker in MARKERS])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word"),
        AddedToken("  ", normalized=False), AddedToken("   ")] if others else [])
    return tokenizer


def make_kinds(folder):
    """Writes tokenizers with templates; returns their names."""
    def llama3(*arguments, prefix=False):
        return byte_level(400, [split(Regex(LLAMA3))], *arguments, prefix=prefix)

    def chatml(name, tokenizer, template=CHATML):
        save(f"{folder}/{name}", tokenizer, template, None, "<|im_end|>")

    for name, tokenizer in (
            ("prefix", marked(byte_level(400, [], prefix=True, regex=True), others=False)),
            ("left", marked(llama3(), MARKERS)), ("right", marked(llama3(), (), MARKERS)),
            ("both", marked(llama3(prefix=True), MARKERS, MARKERS))):
        chatml(f"{name}-chatml", tokenizer)
        save(f"{folder}/{name}-llama3", tokenizer, LLAMA3_CHAT, "<|begin_of_text|>", "<|eot_id|>")
    nfc = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("e", "ee")])
    chatml("nfc-smollm2", marked(llama3(nfc), (), ["<|im_end|>"]), SMOLLM2)
    chatml("nfkc-chatml", marked(llama3(normalizers.NFKC()), ["<|im_end|>"], ["<|im_start|>"]))
    for fuse in (False, True):
        chatml(f"unknown-{fuse}",
               marked(characters(600, fuse, split(" ", "merged_with_next")), others=False))
    for scheme in (None, "always", "first"):
        letters = marked(fallback(460, scheme), ["<|im_end|>"], ["<|im_end|>", "<|im_start|>"], False)
        save(f"{folder}/metaspace-{scheme}", letters, SMOLLM2, "<s>", "</s>")
    return sorted(os.listdir(folder))


def check_kinds(count, jinja):
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        kinds = [(name, f"{work}/{name}", None) for name in make_kinds(work)]
        kinds += [(f"fixture {name}", f"{FIXTURES}/{name}", None) for name in
                  sorted(os.listdir(FIXTURES))]
        if jinja:
            kinds += [("llama3 with --jinja", f"{FIXTURES}/llama3", jinja),
                      ("both-llama3 with --jinja", f"{work}/both-llama3", jinja)]
        for name, folder, template in kinds:
            failed += check(name, folder, count, template)
    print(f"{2 * count * len(kinds)} conversations: {failed} differ")
    return failed


# ---- Fixtures

def write_cases(folder, file, jinja=None):
    cases = []
    for markers, maker, expect in makers(open_folder(folder, jinja), 9):
        while len(cases) < (24 if markers else 12):
            messages = maker.conversation()
            if len(json.dumps(messages)) < 1500:
                ids, mask = expect(messages)
                cases.append({"line": json.dumps({"messages": messages}), "ids": ids, "mask": mask})
    write_json(f"{folder}/{file}", cases)


def write_fixtures(jinja):
    """The tokenizers that are there stay."""
    for name in ("chatml", "llama3"):
        if not os.path.exists(f"{FIXTURES}/{name}"):
            subprocess.run([PREPARE, "--train-tokenizer", "400", "--template", name, "--out",
                            f"{FIXTURES}/{name}", "data/README.md", "README.md"], check=True)
    if not os.path.exists(f"{FIXTURES}/smollm2"):
        # One that puts a space in front of words, and whose vocabulary is of characters.
        tokenizer = fallback(460, "first")
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        save(f"{FIXTURES}/smollm2", tokenizer, SMOLLM2, "<s>", "</s>")
    with tempfile.TemporaryDirectory() as work:
        make_kinds(work)
        for name in ("prefix-chatml", "both-llama3"):
            if not os.path.exists(f"{FIXTURES}/{name}"):
                shutil.copytree(f"{work}/{name}", f"{FIXTURES}/{name}")
    for name in sorted(os.listdir(FIXTURES)):
        write_cases(f"{FIXTURES}/{name}", "expected.json")
    if jinja:
        write_cases(f"{FIXTURES}/llama3", "expected_llama3.1.json", jinja)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="conversations for each tokenizer")
    parser.add_argument("--jinja", metavar="FILE")
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    logging.set_verbosity_error()
    if options.fixtures:
        write_fixtures(options.jinja)
        return 0
    if not options.folders:
        return check_kinds(options.count, options.jinja) > 0
    return sum(check(f, f, options.count, options.jinja) for f in options.folders) > 0


if __name__ == "__main__":
    sys.exit(main())
