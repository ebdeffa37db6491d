#!/usr/bin/env python3
"""Parquet files -> JSON lines on standard output. Needs the Python package pyarrow.

./prepare has this script in its executable and calls it for files of Parquet.
usage: scripts/parquet_to_jsonl.py [--field NAME | --chat | --all] FILE...

  --field NAME   the column of the documents (text); a.b is b inside of a, or named so
  --chat         the column messages: a conversation in each row
  --all          rows with all their columns
  --part K/N     for a caller that starts N of these, K = 0 to N - 1: of all batches of rows each
                 converts every Nth, and prints two int64 in front of it: its bytes, and how far
                 into the file it reaches. 0 bytes: the file ends; -n: n bytes of an error follow
"""
import sys

sys.path = [folder for folder in sys.path if folder]  # python3 -c would import from where it is
import argparse
import json
import os
import struct

BATCH_BYTES, BATCH_ROWS = 1 << 20, 1024


class Refused(Exception):
    """A sentence for people."""


def without_nulls(value):
    """A row has every key of its file, null where it was left out. JSON has no NaN."""
    if isinstance(value, dict):
        return {key: without_nulls(of) for key, of in value.items() if of is not None and of == of}
    return [without_nulls(of) for of in value] if isinstance(value, list) else value


def all_line(row):
    return json.dumps(without_nulls(row), default=str) + "\n"


def chat_line(row):
    if isinstance(row["messages"], str):
        raise Refused("the column 'messages' holds text: leave --chat out")
    return all_line({"messages": row["messages"] or []})


def text_line(column):
    """The function for a row's line: its text under its column's names. Rows without it are empty."""
    names = column.split(".")
    start, end = "".join("{" + json.dumps(name) + ": " for name in names), "}" * len(names) + "\n"

    def line(row):
        for name in [column] if column in row else names:
            row = row.get(name) if isinstance(row, dict) else None
        if row and not isinstance(row, str):
            raise Refused(f"the column '{column}' holds no text; --chat reads messages")
        return start + json.dumps(row or "") + end
    return line


def batches_of(path, column, line, first, part, parts):
    """Yields the lines of this part's batches of a file, each with how far it reaches, and b"" for
    the end, which counts as a batch. first: the file's first batch; returns the next file's."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own keeps what is freed
    import pyarrow.parquet
    size = os.path.getsize(path)
    # Reads pages, not whole row groups.
    file = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False)
    meta, before = file.metadata, 0
    paths = [meta.schema.column(i).path for i in range(meta.num_columns)]
    read = [i for i, at in enumerate(paths) if not column or (at + ".").startswith(column + ".")]
    if not read:
        there = paths if "." in column else file.schema_arrow.names
        raise Refused(f"there is no column '{column}', only {', '.join(there)}")
    for group in range(meta.num_row_groups):
        rows = meta.row_group(group).num_rows
        total = sum(meta.row_group(group).column(i).total_uncompressed_size for i in read)
        of_batch = max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(total, 1)))
        count = -(-rows // of_batch)
        if (part - first) % parts < count:  # one of them is this part's
            batches = file.iter_batches(of_batch, row_groups=[group],
                                        columns=column and [column], use_threads=False)
            for i, batch in enumerate(batches):
                if batch.num_rows != min(of_batch, rows - i * of_batch):
                    raise Refused(f"row group {group} is too large")
                if (first + i) % parts == part:
                    reached = before + i * of_batch + batch.num_rows
                    yield "".join(map(line, batch.to_pylist())).encode(), size * reached // meta.num_rows
        first += count
        before += rows
    if first % parts == part:
        yield b"", size
    return first + 1


def batches(files, column, line, part, parts):
    first = 0
    for path in files:
        try:
            first = yield from batches_of(path, column, line, first, part, parts)
        except ImportError as error:
            raise Refused(f"'{path}' is read by the Python package pyarrow, which is missing "
                          f"({error}): python3 -m pip install pyarrow")
        except Exception as error:
            raise Refused(f"cannot read '{path}': {error}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--field", default="text")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--part")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    column = None if options.all else "messages" if options.chat else options.field
    line = all_line if options.all else chat_line if options.chat else text_line(column)
    part, parts = map(int, (options.part or "0/1").split("/"))
    out = sys.stdout.buffer
    try:
        for text, reached in batches(options.files, column, line, part, parts):
            out.write(struct.pack("<qq", len(text), reached) + text if options.part else text)
            out.flush()
    except BrokenPipeError:
        os._exit(1)  # its reader has said why
    except Refused as refused:
        why = " ".join(str(refused).split())
        if not options.part:
            sys.exit(f"parquet_to_jsonl.py: {why}")
        try:
            out.write(struct.pack("<qq", -len(why.encode()), 0) + why.encode())
            out.flush()
        except BrokenPipeError:
            pass  # another of these has said it
        os._exit(1)


main()
