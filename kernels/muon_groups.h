// The matrices that Muon makes orthogonal on a GPU (cuda/muon.h), grouped by shape, and the memory
// that they take. It needs no CUDA: --plan counts it without a GPU.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/bf16.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  MUON_SQUARES = 3,
  MUON_SHAPES = 4, // in a launch, at most
};

typedef struct MuonGroup {
  int64_t rows, cols, count;
  int64_t batch;  // matrices in a launch
  bool joins;     // it shares the launch of the group before it; then batch is count for both
  int64_t placed; // by muon_place
  bf16_bits *X;   // [count, rows, cols]
  float *factors; // [count] of X: what it is multiplied by
} MuonGroup;

typedef struct Muon {
  MuonGroup *groups;
  int group_count;
  bf16_bits *Y;               // for one launch: laid out like the X of its groups
  bf16_bits *S[MUON_SQUARES]; // for one launch: [matrices, n, n], n the smaller side
  char *memory;
  size_t bytes;
} Muon;

// True if one side is at least twice the other: then Newton-Schulz' iteration needs only products
// of n x n matrices (cuda/muon.h).
static inline bool muon_is_long(int64_t rows, int64_t cols) {
  return rows >= 2 * cols || cols >= 2 * rows;
}

// The groups of the list's parts, without memory; muon_free releases what it allocated.
Muon muon_plan(const ParamTensor *list, int count);
void muon_free(Muon *muon);
// The bytes of muon_plan.
size_t muon_bytes(const ParamTensor *list, int count);
// Groups in the launch that begins with group i.
int muon_joined(const Muon *muon, int i);
// Lays out all memory in a block and returns its size; memory: NULL where only that is wanted. The
// X of groups in one launch lie in their order, with nothing else between them.
size_t muon_lay_out(Muon *muon, char *memory);

typedef struct MuonPlace {
  bf16_bits *X; // [rows, cols]
  float *factor;
} MuonPlace;
// Of the next matrix of that shape: each gets one, once. The groups have their memory.
MuonPlace muon_place(Muon *muon, int64_t rows, int64_t cols);

#ifdef __cplusplus
}
#endif
