#include "kernels/spec.h"

#include "kernels/muon_groups.h"

static bool keeps_scores(const Spec *s) {
  const bool own_lengths = s->usual_documents > 0 && !s->biases_documents;
  return s->train && (s->deterministic || (own_lengths && documents_need_deterministic(s->d)));
}

DocumentCalls document_calls(const Spec *s) {
  const int64_t usual = s->usual_documents, longest = (s->longest_document + 127) / 128 * 128;
  if (usual == 0) return (DocumentCalls){0};
  if (s->biases_documents) return (DocumentCalls){s->batch, s->seq, 1};
  int64_t per_call = usual;
  if (keeps_scores(s)) {
    const int64_t windows = s->max_tokens / longest, most = windows > 1 ? windows : 1;
    if (per_call > most) per_call = most;
  }
  return (DocumentCalls){per_call, longest, (usual + per_call - 1) / per_call};
}

// Of the deterministic backward of attention. Pieces of sequences need less.
static size_t scores_bytes(const Spec *s) {
  const DocumentCalls calls = document_calls(s);
  const int64_t B = calls.usual > 0 ? calls.per_call : s->batch,
                T = calls.usual > 0 ? calls.longest : s->seq;
  return keeps_scores(s) ? (size_t)(B * s->H * T * T) * BF16_BYTES : 0;
}

void spec_estimate_gpu(Spec *s) {
  // Columns of the narrowest tile of each mainloop (kernels/fused/tiles.c): a tile writes a part.
  const int64_t tile = s->mainloop == MAINLOOP_MMA_SYNC ? 64 : 128;
  const size_t loss_parts = (size_t)(s->V / tile + 1);
  s->most_parts.sumsq = s->D / tile + 1;
  s->most_parts.s = s->F / tile + 1;
  s->folds_softmax = false;
  // Scratch of the SwiGLU and of attention's backward, the bias of its scores, and two sums of each
  // row of dlogits.
  const int64_t of_swiglu = s->F * (s->fp8 ? 2 : 1);
  s->workspace_bytes =
      (size_t)s->max_tokens * BF16_BYTES * (size_t)(of_swiglu + 4 * query_width(s)) +
      scores_bytes(s) + document_bias_bytes(s) +
      (size_t)chunk_rows(s) * loss_parts * 2 * FP32_BYTES;
  s->list_bytes = muon_bytes; // beside which the tables of the parameters are small
  s->granule = 0;
}
