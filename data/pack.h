// Windows that are filled with pieces of documents. A document of n tokens has n - 1 rows: a token
// and the one that comes next. One with more rows than a window is cut into pieces of a window's
// rows and the rest, each of which begins with the last token of the one before. So every token but
// a document's first is a target once. A piece in which no token counts is left out.
//
// Several pieces a window, by best fit and falling size: each piece goes into the window that it
// leaves the least room in. Or one piece a window, in the order of the files: attention is causal,
// so such a piece sees nothing but itself without being told where it ends. The result depends on
// nothing but the documents' lengths, what counts, and T.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "data/tokens.h"

// Rows of a document: tokens [first, first + rows) of a file are inputs, the next ones targets.
typedef struct WindowPiece {
  uint32_t file, first, rows;
} WindowPiece;

typedef struct Packing {
  WindowPiece *pieces; // in the order of the files
  uint32_t *list;      // the pieces of each window, largest first; NULL: window i is piece i alone
  uint32_t *begin;     // [windows + 1]: where the window's list begins
  int64_t windows;
  int64_t padded;         // windows that are not full
  int64_t documents, cut; // that have a row; of these the ones with more rows than a window
  int64_t count, rows;    // of all pieces; the rest of the windows is padding
  int64_t counted;        // tokens that count as a target; rows includes the others
  int64_t left_out;       // rows of the pieces in which none does
  int64_t longest;        // rows of a piece, or of a window's padding, at most
  int64_t most;           // pieces of a window at most
} Packing;

// Windows of T rows with the documents of files[count]. by_file: each file is one document, and so
// is one whose ends are not known. alone: a window has one piece.
int pack(Packing *packing, const TokenFile *files, int count, int64_t T, bool by_file, bool alone,
         Error *err);
void packing_free(Packing *packing); // zeros are fine
