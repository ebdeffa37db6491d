#!/usr/bin/env python3
"""Makes one .jsonl of the unpacked Debian packages in a folder: what fetch_text.sh calls.

usage: collect_text.py FOLDER [--kernel-mb N]  > text.jsonl

FOLDER/NAME is package NAME, unpacked; FOLDER/kernel holds the kernel's source tree. A line is
{"source": "NAME/path", "text": ...}. The lines come in the order of their paths, so the same
packages give the same bytes. Manual pages are formatted by groff, HTML and dictionaries become
plain text. Left out: tables that a program wrote (lists of registers above all), text that is not
English or not UTF-8, indexes, and whatever was there before.
"""
import argparse
import gzip
import hashlib
import html.parser
import json
import multiprocessing
import os
import re
import struct
import subprocess
import sys
import zlib

# What of the kernel comes first: its documentation and its core. The other folders (drivers, other
# machines, file systems) follow in the order of a hash of their names, until --kernel-mb is reached.
CORE = re.compile(r"(Documentation|block|include/linux|init|io_uring|ipc|kernel|lib|mm|virt)/")
KERNEL_TEXT = re.compile(r"\.(c|h|S|rst|txt|py|sh)$")
PLAIN = re.compile(r"\.(py|pm|pl|pod|go|txt)(\.gz)?$|/games/fortunes/[a-z-]+$")
PASS_OVER = re.compile(
    r"^/perl-doc/usr/share/man|/drm/amd/include/"
    r"|/(genindex(-all)?|contents|search|bookindex)\.(html|rst)"
    r"|/(changelog|Changes|ChangeLog|copyright|README\.Debian)\b(?!-)|/(unicore|rubi|_static|testdata|dedication)/|CoreList"
    r"|allkeys|/version\d+\.txt|/sqlite3/(requirements|doc_backlink|matrix)")
OTHER_LANGUAGE = re.compile(
    r"/(?!en)[a-z]{2}([-_][A-Za-z]{2})?/.*\.html|\.(?!en)[a-z]{2}([-_][A-Za-z]{2})?\.(html|txt)")
# A longer text is cut into documents of about this size, between paragraphs.
DOCUMENT_BYTES = 200_000
BLOCK_TAGS = set("p div br li tr dt dd h1 h2 h3 h4 h5 h6 pre table ul ol dl section".split())
SILENT_TAGS = set("script style head svg nav select button".split())


class Reader(html.parser.HTMLParser):
    """Text of an HTML page: blocks on lines of their own, white space kept inside <pre>."""

    def __init__(self):
        super().__init__()
        self.parts, self.silent, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.silent += tag in SILENT_TAGS
        self.pre += tag == "pre"
        if tag in BLOCK_TAGS:
            self.parts.append("\n\n" if tag in ("p", "pre") or re.match(r"h\d", tag) else "\n")

    def handle_endtag(self, tag):
        self.silent = max(0, self.silent - (tag in SILENT_TAGS))
        self.pre = max(0, self.pre - (tag == "pre"))
        if tag in BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.silent:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def from_html(data):
    reader = Reader()
    reader.feed(data.decode("utf-8"))
    reader.close()
    return "".join(reader.parts).replace("¶", "")


def from_man(data):
    """A manual page as a terminal of 80 columns shows it: neither justified nor hyphenated."""
    if data.startswith(b".so "):
        return ""  # only another page's name
    data = re.sub(rb"^(\.TH .*)$", rb"\1\n.na", data, count=1, flags=re.M)
    page = subprocess.run(["groff", "-t", "-mandoc", "-Tutf8", "-Kutf8", "-P-cbou", "-rHY=0"],
                          input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return page.stdout.decode("utf-8")


def from_sword(path):
    """Verses or comments of a SWORD module: records of (offset, size, size unpacked), zlib each."""
    with open(path, "rb") as index, open(path[:-1] + "z", "rb") as packed:
        records, data = index.read(), packed.read()
    blocks = [zlib.decompress(data[at:at + size]) for at, size, _ in struct.iter_unpack("<3I", records)
              if size]
    text = b"\n".join(blocks).decode("utf-8", "strict")
    text = re.sub(r"<note.*?</note>", "", text, flags=re.S)
    text = re.sub(r"</?(p|div|lg|l|br|chapter|verse)\b[^>]*>", "\n", text)
    return re.sub(r"<[^>]*>|\x00", "", text)


def is_table(text):
    """Whether a program is likely to have written this: digits or #define without end."""
    dense = len(re.sub(r"\s+", "", text))
    digits = len(re.findall(r"[0-9]|0x[0-9a-fA-F]+", text))
    lines = text.count("\n") + 1
    defines = len(re.findall(r"^#\s*define\s+\w+\s+\S+", text, re.M))
    return dense == 0 or digits > 0.3 * dense or (lines > 200 and defines > 0.5 * lines)


def cut(text):
    """Pieces of about DOCUMENT_BYTES that end where a paragraph ends, if it ends in time."""
    start = 0
    while len(text) - start > 2 * DOCUMENT_BYTES:
        at = text.find("\n\n", start + DOCUMENT_BYTES, start + 2 * DOCUMENT_BYTES)
        at = at + 2 if at >= 0 else start + DOCUMENT_BYTES
        yield text[start:at]
        start = at
    yield text[start:]


def clean(text):
    text = text.replace("\r\n", "\n").replace("\f", "\n").lstrip("\ufeff")
    text = re.sub(r"[ \t\u00a0]+\n", "\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def documents(job):
    """The texts of a file, or none; job = (path, its name in the corpus)."""
    path, _ = job
    try:
        if path.endswith((".bzs", ".czs")):
            text = from_sword(path)
        else:
            with open(path, "rb") as file:
                data = file.read()
            if path.endswith((".gz", ".dz")):
                data = gzip.decompress(data)
            name = re.sub(r"\.gz$", "", path)
            read = (from_man if re.search(r"/man/man\d/", path) else
                    from_html if name.endswith(".html") else
                    lambda raw: raw.decode("utf-8", "ignore" if path.endswith(".dz") else "strict"))
            text = read(data)
    except (UnicodeDecodeError, subprocess.CalledProcessError):
        return []
    text = clean(text)
    if len(text) < 200 or "\x00" in text:
        return []
    return [piece for piece in cut(text) if not is_table(piece)]


def files_below(folder):
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in files:
            path = os.path.join(where, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def wanted(path, sources):
    """Whether a package's file is text for us; sources: packages that come with their sources."""
    package = path.split("/", 1)[0]
    slashed = "/" + path
    if PASS_OVER.search(slashed) or OTHER_LANGUAGE.search(slashed):
        return False
    if re.search(r"/man/man\d/", path) or re.search(r"\.dict\.dz$|\.[bc]zs$", path):
        return True
    if re.search(r"\.html(\.gz)?$", path):
        return package not in sources
    return bool(PLAIN.search(slashed))


def kernel_files(folder, limit):
    found = []
    for path in files_below(folder):
        name = os.path.relpath(path, folder).split("/", 1)[-1]
        size = os.path.getsize(path)
        if KERNEL_TEXT.search(name) and size < DOCUMENT_BYTES and not PASS_OVER.search("/" + name):
            group = "/".join(name.split("/")[:-1][:3])
            rank = b"" if CORE.match(name) else hashlib.sha256(group.encode()).digest()
            found.append((rank, "linux/" + name, path, size))
    total = 0
    for _, name, path, size in sorted(found):
        if total + size > limit:
            break
        total += size
        yield path, name


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--kernel-mb", type=int, default=222, help="text of the kernel, at most")
    args = parser.parse_args()
    kernel = os.path.join(args.folder, "kernel")
    jobs = list(kernel_files(kernel, args.kernel_mb * 1_000_000))
    names = [os.path.relpath(path, args.folder) for path in files_below(args.folder)
             if not path.startswith(kernel + "/")]
    sources = {name.split("/", 1)[0] for name in names if "/_sources/" in name}
    jobs += [(os.path.join(args.folder, name), name) for name in names if wanted(name, sources)]
    jobs.sort(key=lambda job: job[1])
    seen, sums = set(), {}
    with multiprocessing.Pool() as pool:
        for (_, name), texts in zip(jobs, pool.imap(documents, jobs, chunksize=32)):
            for text in texts:
                mark = hashlib.sha256(text.encode()).digest()
                if mark in seen:
                    continue
                seen.add(mark)
                sys.stdout.write(json.dumps({"source": name, "text": text}, ensure_ascii=False) + "\n")
                count, size = sums.get(name.split("/", 1)[0], (0, 0))
                sums[name.split("/", 1)[0]] = count + 1, size + len(text.encode())
    sums["all"] = tuple(map(sum, zip(*sums.values())))
    for package, (count, size) in sorted(sums.items(), key=lambda entry: entry[1][1]):
        print(f"{size / 1e6:9.2f} MB {count:7d} documents  {package}", file=sys.stderr)


if __name__ == "__main__":
    main()
