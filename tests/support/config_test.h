// Configurations as text, and what tests of reading them share.
#pragma once

#include "model/config/config.h"
#include "tests/support/test.h"

#define SIZES                                                                                      \
  "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, "                    \
  "\"num_attention_heads\": 4, \"vocab_size\": 258"
#define REST                                                                                       \
  "\"data\": {\"train\": \"t.bin\"}, \"output\": {\"dir\": \"runs/x\"}, "                          \
  "\"train\": {\"steps\": 10, \"sequence_length\": 32}"
#define MINIMAL "{\"model\": {" SIZES "}, " REST "}"
#define WITH_MODEL(extra) "{\"model\": {" SIZES ", " extra "}, " REST "}"
#define LLAMA3                                                                                     \
  "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "                               \
  "\"original_max_position_embeddings\": 1024"

static inline Config parse_with(const char *json, int count, char *const *overrides) {
  Config config;
  Error err = {""};
  must(config_parse(&config, "c.json", json, count, overrides, &err), &err);
  return config;
}

static inline Config parse(const char *json) {
  return parse_with(json, 0, NULL);
}

// The sentence must hold every one of the words, which end with NULL.
static inline void expect_words(const Error *err, const char *const *words) {
  for (; *words; words++)
    if (!strstr(err->text, *words)) fail_msg("'%s' lacks '%s'", err->text, *words);
}
