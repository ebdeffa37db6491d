// Batches of windows from token files (data/source.h), of one source or of several, mixed.
//
// Which windows come is a function of the cursor = windows drawn so far and, where sources are
// mixed, of the windows drawn of each, so resuming is setting these numbers.
#pragma once
#include <stdbool.h>
#include "data/batch.h"
#include "data/mixture.h"
#include "data/source.h"
#include "data/tokens.h"

typedef struct LoaderConfig {
  // Read by loader_open alone. As mixture_parse takes it; a path may be a glob(7) pattern, files in
  // name order; a folder stands for FOLDER/SPLIT-*.bin, as ./prepare names them. split: "train" or
  // "val".
  const char *pattern, *split;
  const TokenFile *text; // NULL, or one file over the caller's memory in the place of all paths
  int64_t batch;         // B
  int64_t seq;           // T
  int64_t vocab_size;    // 0: the ids are not checked before loader_check
  uint64_t seed;
  bool shuffle;
  DocumentsMode documents;
  bool alone; // of DOCUMENTS_MASK: a window for each piece of a document instead of packed ones
  bool whole; // every token that counts is a target once: windows reach to the files' ends. seq
              // becomes the rows of the longest piece where there is none of so many
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
  uint64_t cursor;  // windows drawn so far; of one source, setting it moves the loader
  int64_t tokens;   // in all files
  int64_t windows;  // of all sources, in one epoch of each
  TokenFile *files; // [file_count], those of a source one after the other
  int file_count;
  Source *sources; // [source_count]
  int source_count;
  double weights[MOST_SOURCES];
  uint64_t began;         // cursor at which the weights began to hold
  Draws first, now;       // since then: at this process' start, and as far as was drawn last
  bool apart;             // no document sees another
  bool packed;            // windows hold several documents: batches have lengths
  int64_t longest;        // rows of a document in any window, padding counted as one
  int64_t most_documents; // of a window at most, padding counted as one
  double mean_documents;  // the same of the mean window
  double padding;         // share of the rows
  int64_t documents, cut; // but for joined windows: that have a row; more rows than a window
  // Tokens that have others before them in their document or file, in an epoch of each source, and
  // those of them that count as targets
  int64_t targets, counted;
  uint64_t fingerprint; // of all files, in their order: what they hold, not where they are
  int32_t *window;      // [T + 1]
  bool *mask;           // [T]
  LoaderWatch watch;
} Loader;

// Opens all files, and checks them where vocab_size is not 0. Every window has a token that counts:
// where files have a mask, windows are pieces of documents, or of the files where documents are not
// apart, and the pieces in which none counts are left out. Fewer windows than one batch is an error
// that says how many tokens are needed and how many there are.
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

// Where the window of a cursor lies: its source, and how many windows of that were drawn before.
// The cursor is not below the one at this process' start.
typedef struct LoaderPlace {
  const Source *source;
  uint64_t position;
} LoaderPlace;
LoaderPlace loader_place(const Loader *loader, uint64_t cursor);
// Windows that were drawn of a source in all, once `cursor` were drawn of all.
uint64_t loader_drawn(const Loader *loader, int source, uint64_t cursor);
// Moves a loader to a cursor: of each source were drawn so many windows in all, and so many of them
// since the weights hold.
void loader_resume(Loader *loader, uint64_t cursor, const uint64_t *drawn, const uint64_t *since);
