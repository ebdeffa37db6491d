// What files are, told by their names and first bytes. Between the files of corpus.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "data/corpus/corpus.h"

enum { FILE_PROBE_BYTES = 1 << 16 };

// What begins with start[bytes], decompressed and at most FILE_PROBE_BYTES of it: empty, binary,
// parquet, a Git LFS pointer (FILE_BROKEN) or text. The sentence says why it is not text.
FileKind file_kind(const char *name, const char *start, size_t bytes, Error *err);
bool file_is_stdin(const char *path);
bool file_is_jsonl(const Corpus *corpus, const char *path);
