// A source of windows: some token files, what an epoch of them holds, and in which order. A window
// is T rows: inputs and, shifted by one, targets.
//
// Joined: T + 1 tokens that follow one another in a file, wherever documents end. Windows of one
// file do not overlap in their inputs; files are not joined. Packed: pieces of documents
// (data/pack.h). Alone: one such piece, then padding. Packed windows and those of pieces alone are
// the same in each epoch, and each has a token that counts.
//
// With `shuffle` epoch e visits every window once, in the order of a pseudo-random permutation
// keyed by (seed, e); joined windows of each file are shifted by a random offset of the epoch.
// Both are pure functions of the position = windows drawn so far. Else: their order as they lie.
#pragma once
#include <stdbool.h>
#include "data/pack.h"
#include "data/tokens.h"

typedef enum WindowKind { WINDOWS_JOINED, WINDOWS_PACKED, WINDOWS_ALONE } WindowKind;

typedef struct Source {
  char *name;             // for people: its paths, owned
  double share;           // of the tokens that count; the shares of all sources add up to 1
  const TokenFile *files; // [file_count], the caller's
  int file_count;
  int64_t T, tokens; // tokens: in all files
  int64_t windows;   // an epoch
  uint64_t seed;
  bool shuffle;
  WindowKind kind;
  int64_t targets, counted; // an epoch: tokens that have others before them, those that count
  int64_t *first_window;    // joined: [file_count + 1] windows in the files before each
  Packing packing;          // packed and alone
  uint64_t fingerprint;     // of all files, in their order: what they hold, not where they are
} Source;

// Fills in the windows. by_file: but for joined ones each file is one document.
int source_open(Source *source, bool by_file, Error *err);
void source_close(Source *source); // zeros are fine; the files stay

// Piece i of the window at that position. rows = 0: it has fewer. The rest of the window is
// padding.
WindowPiece source_piece(const Source *source, uint64_t position, int64_t i);

// Bijection of [0, n): where position i goes in the order of `key`. Exposed for tests.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key);
