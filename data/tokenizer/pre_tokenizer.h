// The pre_tokenizer of a tokenizer.json, in steps, each of which cuts the pieces of the one before:
// Split, ByteLevel, Digits, Metaspace, Punctuation, WhitespaceSplit, and Sequences of these.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "base/text.h"

typedef struct CutStep {
  enum {
    CUT_PREFIX, // puts `prefix` in front of a piece that does not begin with it
    CUT_META,   // makes every space `prefix`, and then as `scheme` says
    CUT_SPLIT,  // cuts by the regex
  } kind;
  char *prefix;                                              // owned
  enum { PREFIX_ALWAYS, PREFIX_FIRST, PREFIX_NEVER } scheme; // first: of the whole text
  char *pattern;                                             // owned; `regex` is made of it
  Regex *regex;
  enum {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
  } behavior;
  bool invert; // what lies between matches is what matches
} CutStep;

typedef struct PreTokenizer {
  CutStep *steps; // [count]
  int count;
  bool byte_level; // the vocabulary is of bytes; nothing comes behind ByteLevel
} PreTokenizer;

// Start from zeros.
int pre_tokenizer_read(PreTokenizer *p, const cJSON *component, Error *err);
void pre_tokenizer_close(PreTokenizer *p);

// What cutting writes, one for each thread: buffers[count] and scans[count], of the steps.
typedef struct Cutter {
  const PreTokenizer *rules;
  Text *buffers;
  RegexScan **scans; // NULL where the step has no regex
} Cutter;
void cutter_open(Cutter *c, const PreTokenizer *rules);
void cutter_close(Cutter *c);

typedef int PieceTaker(void *to, const char *text, size_t bytes, Error *err);

typedef struct Piece {
  const char *text;
  size_t bytes;
  bool first;     // begins where the text begins
  bool continues; // and is to have nothing in front of it
} Piece;

// Calls `take` for every pre-token of the piece, in order. What is no UTF-8 is a pre-token of its
// own. valid: the caller knows that all of it is UTF-8.
int cutter_cut(Cutter *c, Piece piece, bool valid, PieceTaker *take, void *to, Error *err);
