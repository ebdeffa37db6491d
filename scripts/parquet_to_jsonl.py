#!/usr/bin/env python3
"""Parquet files -> .jsonl on standard output, for ./prepare. Needs the Python package pyarrow.

usage: scripts/parquet_to_jsonl.py [--field NAME] FILE... | ./prepare --jsonl --out FOLDER -
       scripts/parquet_to_jsonl.py --chat [--field NAME] FILE... | ./prepare --chat ... -
"""
import argparse
import json
import sys

import pyarrow.parquet

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--chat", action="store_true", help="the column holds lists of messages")
parser.add_argument("--field", help="the column (text; with --chat messages)")
parser.add_argument("files", nargs="+", metavar="FILE")
options = parser.parse_args()
name = "messages" if options.chat else "text"
column = options.field or name
for path in options.files:
    try:
        table = pyarrow.parquet.ParquetFile(path)
        if column not in table.schema_arrow.names:
            raise OSError("there are only the columns " + ", ".join(table.schema_arrow.names))
        for batch in table.iter_batches(1024, columns=[column]):
            for value in batch.column(0).to_pylist():
                if isinstance(value, str) == options.chat and value is not None:
                    raise OSError("it holds " + ("text: leave --chat out" if options.chat else
                                                 "no text: are these messages for --chat?"))
                print(json.dumps({name: value or ([] if options.chat else "")}, default=str))
    except BrokenPipeError:
        sys.exit(1)  # ./prepare has said why
    except (OSError, pyarrow.ArrowException) as why:
        sys.exit(f"parquet_to_jsonl.py: '{path}', column '{column}': {why}")
