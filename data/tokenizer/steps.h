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
enum { DECODE_BYTE_LEVEL, DECODE_BYTE_FALLBACK, DECODE_REPLACE = 3, DECODE_STRIP };

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

// ---- Normalizing

// True if it keeps newlines, and the spaces at the ends of a text; if it keeps every character that
// is not white space.
bool normalizer_keeps_lines(const Steps *normalizer);
bool normalizer_keeps_characters(const Steps *normalizer);

typedef struct NormalizerBuffers {
  Text now, next;
  int *characters; // [capacity] for utf8proc
  size_t capacity;
} NormalizerBuffers;
void normalizer_buffers_close(NormalizerBuffers *b);

// A text may become this many times as long, and this many bytes longer. A normal form makes 11
// times as much of U+FDFA.
enum { NORMALIZER_GROWTH = 16, NORMALIZER_MORE_BYTES = 1 << 20 };

// text[bytes] -> b->now, which is another text. continues: nothing is put in front. Bytes that are
// not UTF-8 stay. ahead (or NULL): a position in the text becomes the same position in b->now; it
// must be right behind a newline, across which no step joins characters. -1: the text would become
// too long, or utf8proc refuses it.
int normalizer_apply(const Steps *normalizer, NormalizerBuffers *b, const char *text, size_t bytes,
                     bool continues, ptrdiff_t *ahead, Error *err);

// in, with every `from` replaced by `to`, behind `out`. Stops where out has more than `most` bytes.
void text_replace(const Text *in, Text *out, const char *from, const char *to, size_t most);

// Bytes of white space (Unicode's White_Space) at the start, and at the end.
size_t white_space_at_start(const char *text, size_t bytes);
size_t white_space_at_end(const char *text, size_t bytes);

// ---- Cutting

// The buffers of one thread: buffers[count] and scans[count], of the steps.
typedef struct Cutter {
  const Steps *rules;
  Text *buffers;
  RegexScan **scans; // NULL where the step has no regex
} Cutter;
void cutter_open(Cutter *c, const Steps *rules);
void cutter_close(Cutter *c);

// ahead: as in Piece.
typedef int PieceTaker(void *to, const char *text, size_t bytes, ptrdiff_t ahead, Error *err);

typedef struct Piece {
  const char *text;
  size_t bytes;
  bool first;      // begins where the text begins
  bool continues;  // and nothing is put in front of it
  ptrdiff_t ahead; // a position of the text, from the start of the piece; below 0: it lies before
} Piece;

// Calls `take` for every pre-token of the piece, in order. Bytes that are not UTF-8 are a pre-token
// of their own. valid: the caller knows that all of it is UTF-8.
int cutter_cut(Cutter *c, Piece piece, bool valid, PieceTaker *take, void *to, Error *err);
