// The members of a Tokenizer, for the files of this folder.
#pragma once
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/cut.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/tokenizer.h"

// ---- Added tokens: those that are found in a text as they are, before anything else looks at it

typedef struct AddedToken {
  char *content; // owned, as the file has it
  Text pattern;  // the text to look for: the same, or its normalized form
  int32_t id;
  bool special, normalized;
  bool left, right; // with the white space on that side
} AddedToken;

typedef struct AddedTokens {
  AddedToken *tokens; // [count], by pattern
  size_t count;
  size_t first_at[257]; // [first_at[c], first_at[c + 1]) begin with the byte c
} AddedTokens;

// Reads the list into raw, whose tokens are looked for before the normalizer, and normalized, whose
// are looked for behind it. Start from zeros. Tokens that the vocabulary lacks get the next free
// ids, as in the Python package, and the file must agree.
int added_read(AddedTokens *raw, AddedTokens *normalized, const cJSON *list, bool byte_level,
               const Steps *normalizer, Vocabulary *vocabulary, Error *err);
void added_close(AddedTokens *added);

// ---- The tokenizer

struct Tokenizer {
  TokenizerFacts facts;
  char *name; // owned; facts.name
  char *json; // [json_bytes] and a NUL: the file
  size_t json_bytes;
  char *config; // tokenizer_config.json, or NULL if there was none
  size_t config_bytes;
  char *chat_template; // owned; facts.chat_template
  bool jinja;          // it is a file of its own, CHAT_TEMPLATE_FILE
  Steps normalizer, pre_tokenizer, decoder;
  AddedTokens raw, normalized; // added tokens: before and behind the normalizer
  Bpe bpe;
  const AddedToken **added; // [vocab_size] by id; NULL for most
};
