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

enum { MUON_SQUARES = 4 };

typedef struct MuonGroup {
  int64_t rows, cols, count;
  int64_t batch;  // of them in a launch
  int64_t placed; // by muon_place
  bf16_bits *X;   // [count, rows, cols]
  float *factors; // [count] of X: what it is multiplied by
} MuonGroup;

typedef struct Muon {
  MuonGroup *groups;
  int group_count;
  bf16_bits *Y;               // of one launch: as X
  bf16_bits *S[MUON_SQUARES]; // [batch, n, n], n the smaller side
  char *memory;
  size_t bytes;
} Muon;

// The groups of the list's parts, without memory; muon_free releases what it allocated.
Muon muon_plan(const ParamTensor *list, int count);
void muon_free(Muon *muon);
// The bytes of muon_plan.
size_t muon_bytes(const ParamTensor *list, int count);
// Lays out all memory in a block and returns its size; memory: NULL where only that is wanted.
size_t muon_lay_out(Muon *muon, char *memory);

typedef struct MuonPlace {
  bf16_bits *X; // [rows, cols]
  float *factor;
} MuonPlace;
// The next matrix of that shape, counted from the last reset.
MuonPlace muon_place(Muon *muon, int64_t rows, int64_t cols);
void muon_places_reset(Muon *muon);

#ifdef __cplusplus
}
#endif
