// Where text is cut: a long document into pieces, and a piece into pre-tokens.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/text.h"
#include "data/tokenizer/steps.h"

// ---- A document into pieces, so that a tokenizer gives the ids that it gives for the whole

// How many bytes of text[known] to take as a piece: about 1 MiB, up to the last place before that,
// or the first behind it; a character's boundary where none comes within 16 MiB; 0 if more has to
// be known. complete: the document ends there. A place in front of a byte of `joined`, which the
// tokenizer can join with a newline, does not count. *searched says how far it was looked in vain;
// start with 0.
size_t cut_piece(const ByteSet *joined, const char *text, size_t known, bool complete,
                 size_t *searched);
// `at` or up to 3 bytes less, so that text[at] begins a character. Bytes that are not UTF-8 begin
// one, too.
size_t cut_character(const char *text, size_t at);

// ---- A piece into pre-tokens, by a tokenizer's pre_tokenizer

// The buffers of one thread: buffers[count] and scans[count], of the steps.
typedef struct Cutter {
  const Steps *rules;
  Text *buffers;
  RegexScan **scans; // NULL where the step has no regex
} Cutter;
void cutter_open(Cutter *c, const Steps *rules);
void cutter_close(Cutter *c);

typedef int PieceTaker(void *to, const char *text, size_t bytes, Error *err);

typedef struct Piece {
  const char *text;
  size_t bytes;
  bool first;     // begins where the text begins
  bool continues; // and nothing is put in front of it
} Piece;

// Calls `take` for every pre-token of the piece, in order. Bytes that are not UTF-8 are a pre-token
// of their own.
int cutter_cut(Cutter *c, Piece piece, PieceTaker *take, void *to, Error *err);
