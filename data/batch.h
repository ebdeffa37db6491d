// A micro-batch on the host: what a loader gives out and the model takes.
#pragma once
#include <stdint.h>

// How documents are read. Mask: no document sees another; if no file has the ends of its documents,
// this equals join. Join: windows run across the ends.
typedef enum DocumentsMode { DOCUMENTS_MASK, DOCUMENTS_JOIN } DocumentsMode;

// The target of a row that does not count: its loss and its gradient are 0.
enum { NO_TARGET = -1 };

// B windows of T rows. A row's input is a token, its target the token that comes next.
typedef struct Batch {
  int32_t *tokens, *targets; // [B, T]; a target may be NO_TARGET
  int32_t *lengths;          // [documents], room for B T: rows of each document, in their order. A
                             // row sees its own document alone, and no document is in two windows
  int64_t documents;         // 0: every window is one, and lengths is not read
  int64_t counted;           // rows with a target
} Batch;

// Memory for `rows` rows, without any yet. It is freed by batch_free, which takes zeros, too.
Batch batch_alloc(int64_t rows);
void batch_free(Batch *batch);
// Rows [at, at + rows) become padding: token 0, no target. longest: the padding is split into
// documents of at most `longest` rows, for which attention is planned; 0: the batch has no lengths.
void batch_pad(Batch *batch, int64_t at, int64_t rows, int64_t longest);
// Before the first row of a new batch is read.
void batch_clear(Batch *batch);
// What attention's FLOPs follow from: the sum of the squares of the documents' lengths. Whole
// windows of T rows have T^2 each.
double batch_attended(const Batch *batch, int64_t windows, int64_t T);
