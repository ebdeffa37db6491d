// The decoder of a tokenizer.json: ByteLevel, ByteFallback, Metaspace, Replace of a string, Fuse,
// Strip, and Sequences of these.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

typedef struct DecodeStep {
  enum { DECODE_BYTE_LEVEL, DECODE_BYTE_FALLBACK, DECODE_META, DECODE_REPLACE, DECODE_STRIP } kind;
  char *from, *to;     // owned: of Replace, Metaspace and Strip (whose `to` is NULL)
  bool start_is_empty; // Metaspace: in the first token it is nothing, and no space
  bool fused;          // Strip: of the whole text, not of every token
  int64_t left, right; // Strip: at most so many
} DecodeStep;

typedef struct DecodeSteps {
  DecodeStep *steps; // [count]
  int count;
  bool fused;  // while reading: what follows sees the whole text
  bool spaces; // there is no decoder: a space between tokens
} DecodeSteps;

// Start from zeros.
int decode_steps_read(DecodeSteps *d, const cJSON *component, Error *err);
void decode_steps_close(DecodeSteps *d);
