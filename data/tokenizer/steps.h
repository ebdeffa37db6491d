// The steps of a tokenizer.json: how its normalizer changes a text, where its pre_tokenizer cuts it
// into words, and how its decoder makes a text of tokens. Each of the three is null, a component
// with a "type", or a Sequence of components.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer/regex.h"

typedef enum Stage { NORMALIZE, CUT, DECODE } Stage;

// Fingerprints contain these numbers, and the numbers of `scheme` and `behavior`.
enum { NORMALIZE_FORM, NORMALIZE_PREPEND, NORMALIZE_REPLACE };
enum {
  CUT_PREFIX, // puts `to` in front of a piece that does not begin with it
  CUT_META,   // replaces every space by `to`, and puts it in front as `scheme` says
  CUT_SPLIT,  // the matches of `regex` are pieces, and the text between them
};
enum { DECODE_BYTE_LEVEL, DECODE_BYTE_FALLBACK, DECODE_REPLACE = 3, DECODE_STRIP }; // 2 is gone

typedef struct Step {
  int kind;        // of its stage
  char *from, *to; // owned: the text to replace or strip, or a Split's pattern; the text to write
  Regex *regex;    // owned
  int form;        // NORMALIZE_FORM: utf8proc's options
  int64_t left;    // DECODE_STRIP: at most this many times, from the start of the whole text
  enum { PREFIX_ALWAYS, PREFIX_FIRST, PREFIX_NEVER } scheme; // first: of the whole text
  enum {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
  } behavior;
  bool invert; // CUT_SPLIT: the text between matches is the match
} Step;

typedef struct Steps {
  Stage stage;
  Step *list; // [count]
  int count;
  bool byte_level; // CUT: the vocabulary is of bytes; no step follows ByteLevel
  bool fused;      // DECODE, while reading: the next steps see the whole text
  bool missing;    // the component is null
} Steps;

int steps_read(Steps *steps, Stage stage, const cJSON *component, Error *err);
void steps_close(Steps *steps); // zeros are fine
