#!/usr/bin/env python3
"""Makes conversations of the manual pages in a text of scripts/fetch_text.sh.

usage: zstd -dc text.jsonl.zst | make_turns.py OUT

Writes OUT/turns.jsonl, and of one page in ten OUT/held_out.jsonl, lines for ./prepare --chat. A
conversation asks for one name of a page: what it does (the line of NAME), its prototype and its
header (SYNOPSIS), its section of the manual; one to four turns in one of several forms. The same
text gives the same bytes. A held-out page was read in pretraining, but no question about it.
"""
import hashlib
import json
import os
import re
import sys

PAGE = re.compile(r"^\S+\((\d)\S*\).*\n+NAME\n +(.+?)\n\n", re.S)
PROTOTYPE = r"^ {7}((?:[\w*]+ )+\**%s\([^;]*\));"
ASK = {
    "does": ["What does {} do?", "What is {} for?", "Tell me what {} does.", "Explain {} in a line."],
    "prototype": ["What is the prototype of {}?", "How is {} declared?", "Show me how {} is called."],
    "header": ["Which header declares {}?", "What must I include for {}?"],
    "section": ["In which section of the manual is {}?", "Where in the manual is {}?"],
}


def draw(*words):
    """A number that follows from the words."""
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "little")


def facts(text, section, purpose, name):
    """[(kind, answer)] of a name."""
    found = [("does", f"{name}: {purpose}.")]
    prototype = re.search(PROTOTYPE % re.escape(name), text, re.M)
    if prototype:
        found.append(("prototype", re.sub(r"\s+", " ", prototype[1]) + ";"))
        header = re.findall(r"^ {7}(#include <\S+>)", text[:prototype.start()], re.M)
        if header:
            found.append(("header", header[-1]))
    found.append(("section", f"{name} is in section {section}."))
    return found


def conversations(line):
    page = PAGE.match(line["text"])
    if not page or " - " not in re.sub(r"\s+", " ", page[2]):
        return
    names, purpose = re.sub(r"\s+", " ", page[2]).split(" - ", 1)
    for name in names.split(", "):
        known = facts(line["text"], page[1], purpose.rstrip("."), name)
        first = draw("first", name) % len(known)
        count = 1 + draw("count", name) % len(known)
        messages = []
        for kind, answer in (known[first:] + known[:first])[:count]:
            form = ASK[kind][draw("form", kind, name) % len(ASK[kind])]
            messages.append({"role": "user", "content": form.format(name)})
            messages.append({"role": "assistant", "content": answer})
        if re.fullmatch(r"[\w.+-]+", name):
            yield {"messages": messages}


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    counts = [0, 0]
    os.makedirs(sys.argv[1], exist_ok=True)
    with open(f"{sys.argv[1]}/turns.jsonl", "w", encoding="utf-8") as turns, \
            open(f"{sys.argv[1]}/held_out.jsonl", "w", encoding="utf-8") as held_out:
        for line in map(json.loads, sys.stdin):
            held = draw("held out", line.get("source", line["text"][:200])) % 10 == 0
            for conversation in conversations(line):
                (held_out if held else turns).write(json.dumps(conversation) + "\n")
                counts[held] += len(conversation["messages"]) // 2
    print(f"{counts[0]} turns, {counts[1]} of held-out pages")


if __name__ == "__main__":
    main()
