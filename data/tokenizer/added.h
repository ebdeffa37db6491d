// Added tokens: those that are found in a text as they are, before anything else looks at it.
#pragma once
#include <cjson/cJSON.h>
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/bpe.h"

typedef struct AddedToken {
  char *content; // owned, as the file has it
  Text pattern;  // what is looked for: the same, or its normalized form
  int32_t id;
  bool special, normalized;
  bool single_word; // only where no word goes on beside it
  bool left, right; // with the white space on that side
} AddedToken;

typedef struct AddedTokens {
  AddedToken *tokens; // [count], by pattern
  size_t count;
  size_t first_at[257]; // [first_at[c], first_at[c + 1]) begin with the byte c
} AddedTokens;

// Reads the list into raw, which is looked for before the normalizer, and normalized, which is
// looked for behind it. Start from zeros. Those that the vocabulary lacks get the next free ids, as
// in the Python package, and the file must agree.
int added_read(AddedTokens *raw, AddedTokens *normalized, const cJSON *list, bool byte_level,
               const Normalizer *normalizer, Vocabulary *vocabulary, Error *err);
void added_close(AddedTokens *added);

// The next one that begins in text[bytes] at or after `at`, and its bounds: the leftmost, and of
// those the longest. NULL: there is none.
const AddedToken *added_next(const AddedTokens *added, const char *text, size_t bytes, size_t at,
                             size_t *begin, size_t *end);
