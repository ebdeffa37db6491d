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

// One more token that ends a text; a negative one is none. At most MAX_ENDS.
void sample_options_end(SampleOptions *options, int32_t id);

typedef struct Generator Generator;

// Buffers for up to max_positions tokens (prompt included), apart from the model's own activations.
// max_positions may not exceed the backend's.
Generator *generator_create(Llama *llama, int64_t max_positions, Error *err);
void generator_destroy(Generator *g);

// Feeds the prompt (count >= 1 token ids). When the cache is full, the newer half of what is in it
// is fed again, so that text can go on for ever.
int generator_start(Generator *g, const int32_t *prompt, int64_t count,
                    const SampleOptions *options, Error *err);
// The next token: 1. At the end, after max_tokens or where one of `ends` was sampled: 0. Logits that
// are not finite: -1.
int generator_next(Generator *g, int32_t *id, Error *err);

// Picks a token id from logits[V] (overwritten): temperature, then top-k, then top-p, then the
// uniform draw u in [0, 1). Ties are broken by the lower id, so equal inputs give equal tokens.
// -1 where a logit is NaN or the largest is not finite.
int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u);
