// A set of token files DIR/NAME-00000.bin, DIR/NAME-00001.bin, ... of at most `limit` tokens each.
#pragma once
#include <stdbool.h>
#include "data/tokens.h"

typedef struct Shards {
  const char *dir, *name; // the caller's
  int64_t limit;          // tokens a file
  int64_t vocab_size;
  uint64_t tokenizer; // its fingerprint
  TokenWriter writer; // of the last file, while open
  bool open;
  int count;           // files begun
  uint64_t *checksums; // [count] of those that are finished
  int64_t tokens;
} Shards;

enum { SHARDS_MAX = 100000 }; // as many as five digits number, so that name order is their order

int shards_append(Shards *s, const int32_t *tokens, int64_t count, Error *err);
// Completes the last file; all are on disk.
int shards_finish(Shards *s, Error *err);
// Frees what is held; the files stay. Safe at any time.
void shards_close(Shards *s);
// The number of a shard's file name, "train-00012.bin", or -1 for any other.
int shard_index(const char *file, const char *name);
