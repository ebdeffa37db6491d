// Batches of windows from token files (data/source.h), of one source or of several, mixed.
//
// The next windows follow from the cursor, the number of windows drawn so far, and in a mixture
// from the number drawn from each source. So resuming means setting these numbers.
#pragma once
#include <stdbool.h>
#include "data/batch.h"
#include "data/mixture.h"
#include "data/source.h"
#include "data/tokens.h"

typedef struct LoaderConfig {
  // Read by loader_open alone. As mixture_parse takes it. A path that exists is taken literally: a
  // file, or a folder, which stands for FOLDER/SPLIT-*.bin, as ./prepare names them. Any other path
  // is a glob(7) pattern, files in name order. split: "train" or "val".
  const char *pattern, *split;
  const TokenFile *text; // NULL, or one file over the caller's memory in the place of all paths
  int64_t batch;         // B
  int64_t seq;           // T
  int64_t vocab_size;    // 0: loader_check comes later
  uint64_t seed;
  bool shuffle;
  DocumentsMode documents;
  bool alone; // with DOCUMENTS_MASK: a window for each piece of a document instead of packed ones
  bool whole; // every token that counts is a target once: windows reach to the files' ends. If all
              // pieces are shorter than seq, seq becomes the rows of the longest
} LoaderConfig;

typedef struct Loader {
  LoaderConfig config;
  uint64_t cursor;  // windows drawn so far; of one source, setting it moves the loader
  int64_t tokens;   // in all files
  int64_t windows;  // of all sources, in one epoch of each
  TokenFile *files; // [file_count], a source's files one after the other
  int file_count;
  Source *sources; // [source_count]
  int source_count;
  double weights[MOST_SOURCES];
  uint64_t began;         // cursor at which the weights began to hold
  Draws now;              // since then, at the end of the last batch
  bool apart;             // no document sees another
  bool packed;            // windows hold several documents: batches have lengths
  int64_t longest;        // rows of a document in any window, padding counted as one
  int64_t most_documents; // documents in a window at most, padding counted as one
  double mean_documents;  // documents in a window on average, padding counted as one
  double padding;         // share of the rows
  int64_t documents, cut; // not for joined windows: documents with a row, documents that are cut
  // Tokens with a token before them in their document or file, in an epoch of each source, and how
  // many of these count as targets
  int64_t targets, counted;
  uint64_t fingerprint; // of all files, in their order: what they hold, not where they are
  int32_t *window;      // [T + 1]
  bool *mask;           // [T]
  // After loader_check:
  TokenFacts *facts; // [file_count]
  uint64_t checksum; // of the tokens of all files that do not say it themselves, so that the
                     // fingerprint has samples of them alone; 0: there are none
} Loader;

// Opens all files, and checks them where vocab_size is not 0. Every window has a token that counts:
// where files have a mask, windows are pieces of documents, or of the files where documents are not
// apart, and the pieces in which none counts are left out. Fewer windows than one batch is an error
// that says how many tokens are needed and how many there are.
Loader *loader_open(const LoaderConfig *config, Error *err); // NULL on error
// Comes once, before the first window. From here on windows have only the tokens that the files had
// now. Files without checksums of their blocks are read whole; a line on standard error says so if
// they have more than a GB or take longer than a second. 1 if an id is not below vocab_size: the
// message says which, and the caller adds what to do. -1 on other errors.
int loader_check(Loader *loader, int64_t vocab_size, Error *err);
uint32_t loader_largest(const Loader *loader); // id in any of its files, after loader_check
// The first file of `loader` whose contents are also a file of `other`; NULL if there is none. Both
// loaders were checked.
const TokenFile *loader_common(const Loader *loader, const Loader *other);
void loader_close(Loader *loader);

// The next B windows. A batch may span two epochs. An error names a file that cannot be read or was
// changed; after it the cursor stands anywhere.
int loader_next(Loader *loader, Batch *batch, Error *err);
// The window of that cursor alone, which stays where it is, as window `row` of the batch; the
// windows of a batch come in their order, after batch_clear.
int loader_window(const Loader *loader, uint64_t cursor, int64_t row, Batch *batch, Error *err);

// Where the window of a cursor lies: its source, and how many windows of that were drawn before.
// The cursor of a mixture is not below the end of the last batch.
typedef struct LoaderPlace {
  const Source *source;
  uint64_t position;
} LoaderPlace;
LoaderPlace loader_place(const Loader *loader, uint64_t cursor);
// Moves a loader to a cursor. For each source: the windows drawn in all, and the windows drawn
// since the weights hold.
void loader_resume(Loader *loader, uint64_t cursor, const uint64_t *drawn, const uint64_t *since);
