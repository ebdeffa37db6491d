// A set of token files DIR/NAME-00000.bin, DIR/NAME-00001.bin, ... of at most `limit` tokens each.
// They are written under temporary names, and take their own when all is done.
#pragma once
#include <stdbool.h>
#include "data/tokens.h"

typedef struct Shards {
  const char *dir, *name; // the caller's
  int64_t limit;          // tokens a file
  int64_t vocab_size;
  TokenWriter writer; // of the last file, while open
  bool open;
  int count; // files begun
  int64_t tokens, documents;
} Shards;

enum { SHARDS_MAX = 100000 }; // as many as five digits number, so that name order is their order

int shards_append(Shards *s, const int32_t *tokens, int64_t count, Error *err);
// Completes the last file; all are on disk, still under temporary names.
int shards_finish(Shards *s, Error *err);
// Gives the files their names, and removes those of an earlier, longer set.
int shards_commit(Shards *s, Error *err);
// Removes the temporary files; safe at any time before the commit.
void shards_discard(Shards *s);
