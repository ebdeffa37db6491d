// What ./prepare writes into a folder: token files in shards, and the tokenizer.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "data/documents.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"

// A set of token files DIR/NAME-00000.bin, DIR/NAME-00001.bin, ... of at most `limit` tokens each,
// and for each of them the ends of its documents, DIR/NAME-00000.docs.
typedef struct Shards {
  const char *dir, *name; // the caller's
  int64_t limit;          // tokens a file
  int64_t vocab_size;
  uint64_t tokenizer; // its fingerprint
  TokenWriter writer; // of the last file, while open
  DocumentsWriter documents;
  bool open;
  int count; // files begun
  int64_t tokens;
} Shards;

enum { SHARDS_MAX = 100000 }; // as many as five digits number, so that name order is their order

// The next tokens of a document, or all of one. mask: [count] 0 or 1, 1 where a token counts as a
// target; NULL: all do. last: the document ends with them.
int shards_append(Shards *s, const int32_t *tokens, const uint8_t *mask, int64_t count, bool last,
                  Error *err);
// Completes the last file; all are on disk.
int shards_finish(Shards *s, Error *err);
// Frees the memory; the files stay. Safe at any time.
void shards_close(Shards *s);

// ---- The folder that ./prepare writes (base/folder.h)

// Whether a file of this name is one that ./prepare writes.
bool dataset_has(const char *name);
// Whether the folder holds a dataset of ./prepare, or is a run's folder.
bool dataset_or_run(const char *folder);
// Refuses a folder, as folder_look found it, that holds other files than a dataset's, or a dataset
// and `force` is not set. The files of this tokenizer alone are no hindrance. out: its name for
// sentences.
int dataset_check(const Folder *folder, const char *out, const Tokenizer *tokenizer, bool force,
                  Error *err);
