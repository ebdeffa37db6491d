// Choosing the next token from a model's logits.
#pragma once
#include <stdint.h>

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

// Picks a token id from logits[V] (overwritten): temperature, then top-k, then top-p, then the
// uniform draw u in [0, 1). Top-k keeps the k largest, top-p the fewest of these whose
// probabilities reach top_p; among equal logits the lower ids. The draw takes the kept tokens in
// the order of falling logits, or, where all are kept, in the order of ids. -infinity has
// probability 0. Equal inputs give equal tokens. -1 where a logit is NaN or the largest is not
// finite.
int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u);
