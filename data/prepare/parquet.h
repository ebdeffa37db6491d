// Parquet files as JSON lines: Python's pyarrow reads them, in processes that are started here and
// write into pipes (scripts/parquet_to_jsonl.py, which is in the executable).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"

typedef struct ParquetReader ParquetReader;

// Starts them on files[count] > 0, which stay the caller's. A line is a row. whole: with all its
// columns, or with its messages alone where column is "messages". Else it has the text of `column`,
// where a.b is b inside of a. The Python is $PYTHON, or python3. NULL on error.
ParquetReader *parquet_open(const char *const *files, size_t count, bool whole, const char *column,
                            Error *err);
// Reads up to bytes > 0 of the lines of the first file; behind 0, its end, those of the next one.
// -1 on error: Python or pyarrow is missing, a process ended early, a file is damaged or has no
// such column, or a signal that is held back came.
ssize_t parquet_read(ParquetReader *reader, char *buffer, size_t bytes, Error *err);
uint64_t parquet_position(const ParquetReader *reader); // bytes of the file that were read, about
void parquet_close(ParquetReader *reader);              // ends them; NULL is fine
