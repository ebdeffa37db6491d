// Writing text with a trained model: one sequence, the packed qkv rows of each layer as the KV
// cache.
#pragma once
#include <stdio.h>
#include "model/llama.h"

typedef struct SampleOptions {
  double temperature; // 0 = always the likeliest token
  int64_t top_k;      // 0 = all
  double top_p;       // 1 = all
  uint64_t seed;
  int64_t max_tokens; // tokens to write
} SampleOptions;

typedef struct Generator Generator;

// What generator_create will take on the backend.
size_t generator_bytes(const ModelConfig *model, const Backend *be, int64_t max_positions);
// Buffers for up to max_positions tokens (prompt included), apart from the model's own activations.
// max_positions may not exceed the backend's.
Generator *generator_create(Llama *llama, int64_t max_positions, Error *err);
void generator_destroy(Generator *g);

// Called for each new token; returns false to stop.
typedef bool TokenSink(void *context, int32_t token);

// Feeds the prompt (count >= 1 token ids), then samples until max_tokens, end of document (which is
// not passed to sink), a full cache, or sink says stop. Returns the number of tokens written, or
// -1.
int64_t generate(Generator *g, const int32_t *prompt, int64_t count, const SampleOptions *options,
                 TokenSink *sink, void *context, Error *err);

// Picks a token id from logits[V] (overwritten): temperature, then top-k, then top-p, then the
// uniform draw u in [0, 1). Ties are broken by the lower id, so equal inputs give equal tokens.
int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u);
