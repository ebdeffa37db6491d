#!/usr/bin/env python3
"""Parquet files -> .jsonl on standard output, for ./prepare. Needs the Python package pyarrow.

usage: scripts/parquet_to_jsonl.py [--field NAME] FILE... | ./prepare --jsonl --out FOLDER -
"""
import argparse
import json
import sys

import pyarrow.parquet

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--field", default="text", help="the column that holds the text (text)")
parser.add_argument("files", nargs="+", metavar="FILE")
options = parser.parse_args()
for path in options.files:
    try:
        table = pyarrow.parquet.ParquetFile(path)
        if options.field not in table.schema_arrow.names:
            raise OSError("there are only the columns " + ", ".join(table.schema_arrow.names))
        for batch in table.iter_batches(1024, columns=[options.field]):
            for text in batch.column(0).to_pylist():
                print(json.dumps({"text": text or ""}))
    except BrokenPipeError:
        sys.exit(1)  # ./prepare has said why
    except (OSError, pyarrow.ArrowException) as why:
        sys.exit(f"parquet_to_jsonl.py: '{path}', column '{options.field}': {why}")
