// What a Tokenizer is, for the files of this folder.
#pragma once
#include "data/tokenizer/added.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

struct Tokenizer {
  TokenizerFacts facts;
  char *name; // owned; facts.name
  char *json; // [json_bytes] and a NUL: the file
  size_t json_bytes;
  char *config; // tokenizer_config.json, or NULL if there was none
  size_t config_bytes;
  Normalizer normalizer;
  AddedTokens raw, normalized; // added tokens: before and behind the normalizer
  Regex *word;                 // a letter, or what else goes on a word
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  DecodeSteps decoder;
  const AddedToken **added; // [vocab_size] by id; NULL for most
};

uint64_t tokenizer_fingerprint(const Tokenizer *tokenizer);
