// Writing text with a trained model: one sequence, the packed qkv rows of each layer as the KV
// cache.
#pragma once
#include "model/llama.h"

enum { MAX_ENDS = 16 };

typedef struct SampleOptions {
  double temperature; // 0 = always the likeliest token
  int64_t top_k;      // 0 = all
  double top_p;       // 1 = all
  uint64_t seed;
  int64_t max_tokens;     // tokens to write
  int32_t ends[MAX_ENDS]; // the tokens that end a text
  int end_count;
} SampleOptions;

// Adds a token that ends a text; a negative id is ignored. At most MAX_ENDS.
void sample_options_end(SampleOptions *options, int32_t id);
// What a backend chooses tokens by, of the first. A temperature below 1 / FLT_MAX acts as 0: its
// inverse is no float.
Draw sample_draw(const SampleOptions *options);

typedef struct Generator Generator;

// Buffers for up to max_positions tokens (prompt included), apart from the model's own activations.
// max_positions may not exceed the backend's. NULL and a sentence where there is no memory for
// them.
Generator *generator_create(Llama *llama, int64_t max_positions, Error *err);
void generator_destroy(Generator *g); // NULL is fine

// Feeds the prompt (count >= 1 token ids). When the cache is full, the newer half of its tokens is
// fed again, so that text has no limit. -1 and a sentence where the prompt has no token, or one
// beyond the vocabulary.
int generator_start(Generator *g, const int32_t *prompt, int64_t count,
                    const SampleOptions *options, Error *err);
// The next token: 1. At the end, after max_tokens or where one of `ends` was sampled: 0. Logits
// that are not finite: -1.
int generator_next(Generator *g, int32_t *id, Error *err);
// How many tokens it gave since generator_start.
int64_t generator_written(const Generator *g);
