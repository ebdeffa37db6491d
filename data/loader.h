// Batches of windows from token files, of one source or of several, mixed. A window is T rows:
// inputs and, shifted by one, targets.
//
// Joined: T + 1 tokens that follow one another in a file, wherever documents end. Windows of one
// file do not overlap in their inputs; files are not joined. Packed: pieces of documents
// (data/pack.h). Alone: one such piece, then padding. Packed windows and those of pieces alone are
// the same in each epoch, and each has a token that counts.
//
// With `shuffle` epoch e of a source visits every window once, in the order of a pseudo-random
// permutation keyed by (seed, e); joined windows of each file are shifted by a random offset of the
// epoch. Both are pure functions of the position = windows drawn so far. Else: as they lie.
//
// The next windows follow from the windows drawn so far, in all and of each source. So resuming
// means setting Loader.drawn.
#pragma once
#include <stdbool.h>
#include "data/batch.h"
#include "data/mixture.h"
#include "data/pack.h"
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

typedef enum WindowKind { WINDOWS_JOINED, WINDOWS_PACKED, WINDOWS_ALONE } WindowKind;

typedef struct Source {
  char *name;             // for people: its paths, owned
  double share;           // of the tokens that count; the shares of all sources add up to 1
  const TokenFile *files; // [file_count], of the loader
  int file_count;
  int64_t tokens, windows;  // in all files; an epoch
  int64_t targets, counted; // an epoch: tokens that have others before them, those that count
  int64_t *first_window;    // joined: [file_count + 1] windows in the files before each
  Packing packing;          // packed and alone
  uint64_t fingerprint;     // of all files, in their order: what they hold, not where they are
} Source;

// What an epoch of each source holds.
typedef struct Epoch {
  int64_t tokens, windows;
  int64_t targets, counted; // tokens with one before them in their document or file; which count
  int64_t documents, cut;   // not of joined windows: documents with a row, documents that are cut
  // Padding counts as one document here:
  int64_t longest;        // rows of a document in any window
  int64_t most_documents; // in a window
  double mean_documents;  // in a window
  double padding;         // share of the rows
} Epoch;

typedef struct Loader {
  LoaderConfig config;
  TokenFile *files; // [file_count], a source's files one after the other
  int file_count;
  Source *sources; // [source_count]
  int source_count;
  double weights[MOST_SOURCES]; // the sources' shares of the windows; their sum is 1
  bool apart;                   // no document sees another
  WindowKind kind;
  // Joined windows, n = pieces > 1: the batch has B n pieces of T / n rows in the place of B
  // windows. A source reads its share of piece_block windows at a time: first the first pieces of
  // them all, then the second ones, so that a batch, and those next to it, have text of many
  // places. 1: whole windows.
  int64_t pieces, piece_block;
  Draws drawn;
  Epoch epoch;
  uint64_t fingerprint; // of all files, in their order: what they hold, not where they are
  // After loader_check: of the tokens of all files that do not say it themselves, since the
  // fingerprint has only samples of those; 0: there are none.
  uint64_t checksum;
  int32_t *window; // [T + 1]
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
// changed; after it `drawn` is of no use.
int loader_next(Loader *loader, Batch *batch, Error *err);
// Of a loader with one source: the window behind `drawn` others, as window `row` of the batch. The
// windows of a batch come in their order, after batch_clear.
int loader_window(const Loader *loader, uint64_t drawn, int64_t row, Batch *batch, Error *err);
// Piece i of the window at that position of a source. rows = 0: it has fewer. The rest of the
// window is padding.
WindowPiece loader_piece(const Loader *loader, const Source *source, uint64_t position, int64_t i);
// Windows hold several documents, and batches have lengths.
bool loader_packs(const Loader *loader);
// Rows [at, at + rows) of a batch become padding.
void loader_pad(const Loader *loader, Batch *batch, int64_t at, int64_t rows);

// Bijection of [0, n): where position i goes in the order of `key`. Exposed for tests.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key);
