// Batches of windows from token files. A window is T + 1 tokens: inputs and, shifted by one,
// targets. Windows of one file do not overlap in their inputs; files are not joined.
//
// Training (shuffle): epoch e visits every window once, in the order of a pseudo-random permutation
// keyed by (seed, e), with the windows of each file shifted by a random offset of the epoch. Both
// are pure functions of the cursor = sequences drawn so far, so resuming is setting one number.
// Without shuffle, and for validation: file order.
#pragma once
#include <stdbool.h>
#include "data/batch.h"
#include "data/tokens.h"

typedef struct LoaderConfig {
  // Read by loader_open alone. A path or a glob(7) pattern, files in name order; a folder stands
  // for FOLDER/SPLIT-*.bin, as ./prepare names them. split: "train" or "val".
  const char *pattern, *split;
  int64_t batch;      // B
  int64_t seq;        // T
  int64_t vocab_size; // 0: the ids are not checked before loader_check
  uint64_t seed;
  bool shuffle;
} LoaderConfig;

// How far the files are checked. All tokens are: by the first half second of loader_check, then by
// the calls of loader_look, which take a hundredth of the time for it. Two seconds after the last
// file they begin again with the files that were written to since.
typedef struct LoaderWatch {
  struct LoaderSeen *seen; // [file_count]; NULL before loader_check
  int at;                  // the file that is being checked
  TokenCheck check;        // how far
  struct timespec time;    // of the file when that began
  double due_ms;           // now_ms() at which loader_look checks again
} LoaderWatch;

typedef struct Loader {
  LoaderConfig config;
  uint64_t cursor;  // sequences drawn so far; setting it moves the loader
  int64_t tokens;   // in all files
  int64_t windows;  // sequences an epoch
  TokenFile *files; // [file_count]
  int file_count;
  int64_t *first_window; // [file_count + 1] windows in the files before each; the last is the total
  uint64_t fingerprint;  // of all files, in their order: what they hold, not where they are
  int32_t *window;       // [T + 1]
  LoaderWatch watch;
} Loader;

// Opens all files, and checks them where vocab_size is not 0. Fewer windows than one batch is an
// error that says how many tokens are needed and how many there are.
Loader *loader_open(const LoaderConfig *config, Error *err); // NULL on error
// From here on no id that is not below vocab_size is given out, and the files are checked. Comes
// once; an error was found in the first half second.
int loader_check(Loader *loader, int64_t vocab_size, Error *err);
void loader_close(Loader *loader);

// The next B windows. A batch may span two epochs. An error names a file that cannot be read, holds
// an id beyond the vocabulary, or was changed; after it the cursor stands anywhere.
int loader_next(Loader *loader, Batch *batch, Error *err);
// The window of that cursor alone, which stays where it is, as window `row` of the batch; the
// windows of a batch come in their order, after batch_clear. The caller calls loader_look.
int loader_window(const Loader *loader, uint64_t cursor, int64_t row, Batch *batch, Error *err);
// Goes on with the check of the files: -1 where one is damaged or was changed, or holds an id that
// is not below vocab_size. For callers that read single windows, or the files themselves.
int loader_look(Loader *loader, Error *err);
// The first file whose name belongs to another file by now, or to none; NULL: there is none. The
// loader still reads the files that it opened.
const char *loader_replaced(const Loader *loader);

// Where the sequence of that cursor lies: its file, of the loader, and its first token there.
typedef struct LoaderPlace {
  const char *path;
  int64_t token;
} LoaderPlace;
LoaderPlace loader_place(const Loader *loader, uint64_t cursor);

// Bijection of [0, n): where position i goes in the order of `key`. Exposed for tests.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key);
