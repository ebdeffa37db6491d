// The only place that knows how our packed, permuted weights relate to Hugging Face's files. Every
// packed tensor is one to three HF tensors stacked, with rows in another order; columns are never
// touched.
#pragma once
#include "model/tensors.h"

typedef struct HfTensor {
  char name[80];      // "model.layers.3.self_attn.q_proj.weight"
  ParamKind kind;     // of the parameter that it is a part of
  int param;          // that parameter's index in the list
  int part;           // 0, 1, 2: q k v, or gate up; 0 otherwise
  int rank;           // 1 for norms, 2 for matrices
  int64_t rows, cols; // in the file; rows = 1 for norms
} HfTensor;

// Number of HF tensors of the model, and the list in the order they stand in a file (HF's own
// names; a tied lm_head is not in the list).
int hf_tensor_count(const ModelConfig *model);
void hf_tensor_list(const ModelConfig *model, HfTensor *list);

// Row of the packed tensor that holds row `row` of HF tensor t.
//   q, k: HF rotates (j, j + d/2) of a head, we store them at (2j, 2j + 1).
//   gate, up: feature f of gate at 2p, of up at 2p + 1, where inside each whole group of 8 features
//   pair i holds feature 0 2 4 6 1 3 5 7 (so that an epilogue's fragments of z and y match without
//   shuffles); a last group of fewer than 8 is in natural order.
int64_t packed_row(const ModelConfig *model, const HfTensor *t, int64_t row);
