// The folder that ./prepare writes: all of it appears at once, or nothing does. The files go into
// OUT.tmp, which takes the name when it is complete; a dataset that was there is then removed.
#pragma once
#include <stdbool.h>
#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

// In OUT.tmp: the part of standard input that is read twice.
#define OUT_SPOOL ".prepare-stdin"

typedef struct OutFolder {
  PathText path, temporary, old;
  int missing; // parents of it that were made
  int lock;    // on `temporary`, against a second ./prepare
} OutFolder;

// Refuses, and writes nothing, where `out` holds other files than a dataset's, or a dataset and
// `force` is not set. The files of this tokenizer alone are no hindrance.
int out_check(const char *out, const Tokenizer *tokenizer, bool force, Error *err);
// Creates OUT.tmp, empty, and removes the leftovers of an earlier run.
int out_begin(OutFolder *folder, const char *out, Error *err);
// Syncs it and gives it its name.
int out_commit(OutFolder *folder, Error *err);
// Removes OUT.tmp and the folders that were created; safe once, after out_begin succeeded, in place
// of out_commit or after it failed.
void out_discard(OutFolder *folder);
