// A problem for attention: inputs, what the CPU backend makes of them, and what a twin in plain C
// does that rounds to bf16 where a flash-attention kernel does (the probabilities, ds, the outputs,
// and dk and dv of each query head) and computes in fp32 otherwise.
#pragma once
#include "kernels/cuda/attention.h"

typedef struct Sizes {
  size_t rows, qkv, o, lse; // elements
} Sizes;

typedef struct Results {
  float *o, *lse, *dqkv;
} Results;

typedef struct Problem {
  AttentionShape s;
  int32_t *lengths; // [documents], or NULL
  int64_t documents;
  Sizes n;
  uint16_t *qkv, *d_o;     // as the GPU gets them
  float *qkv_f, *d_o_f;    // the same values
  Results reference, twin; // the CPU backend, and the rounding twin
} Problem;

// Random inputs, with both results; lse as the GPU has it.
Problem problem_new(AttentionShape s);
// Of documents, which have all rows together: s.rows of them, or with MASK_BIAS those of windows.
Problem problem_of_documents(AttentionShape s, const int32_t *lengths, int64_t count);
void problem_free(Problem *p);

// bf16 values in fp32, in fresh memory.
float *widened(const uint16_t *from, size_t n);
