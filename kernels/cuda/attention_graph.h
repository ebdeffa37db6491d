// Causal grouped-query attention as cuDNN operation graphs: the primitive operations that cuDNN
// matches to its flash-attention kernels. The pattern is strict: a graph that deviates from it is
// no error, it is offered no engine.
//
// Facts: NVIDIA's cudnn-frontend 1.23, scaled_dot_product_flash_attention.h (CompositeSDPANode and
// CompositeSDPABackwardNode), reduced to bf16, causal, no dropout, no bias, no padding.
#pragma once
#include "kernels/cuda/cudnn.h"

// B sequences of T positions, H query heads, KV key/value heads, d columns a head. Rows of qkv are
// packed: H q heads, KV k heads, KV v heads; R = (H + 2 KV) d.
typedef struct AttentionShape {
  int64_t B, T, H, KV, d;
} AttentionShape;

static inline int64_t attention_row(const AttentionShape *s) {
  return (s->H + 2 * s->KV) * s->d;
}

// Ids of the tensors in a variant pack; ATTENTION_K is the k columns of qkv, and so on.
enum {
  ATTENTION_Q = 1,      // bf16 [B, T, H, d] with rows of R
  ATTENTION_K,          // bf16 [B, T, KV, d] with rows of R
  ATTENTION_V,          // like K
  ATTENTION_O,          // bf16 [B, T, H, d]
  ATTENTION_LSE,        // fp32 [B, H, T], natural log-sum-exp of the scaled scores
  ATTENTION_DO,         // bf16 [B, T, H, d]
  ATTENTION_DQ,         // like Q
  ATTENTION_DK,         // like K
  ATTENTION_DV,         // like V
  ATTENTION_DQ_SUM,     // fp32 [B, T, H, d] scratch; not there in the deterministic form
  ATTENTION_ROW_SUM,    // fp32 [B, H, T] scratch
  ATTENTION_SCALE,      // host float, 1 / sqrt(d)
  ATTENTION_MASK_VALUE, // host float, -INFINITY
  ATTENTION_ONE,        // host float, 1; backward only
};

// 0 if cuDNN can take the shape on some GPU; else fails with the reason.
int attention_shape_check(const AttentionShape *s, Error *err);

// Builds the graph. handle as for graph_finish. On failure the graph is destroyed.
int attention_graph_forward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                            const AttentionShape *s, Error *err);
// dq is added up in fp32 in no fixed order, so that its last bits may differ between runs; dk and
// dv are not. deterministic: nothing differs, for B H T^2 2 bytes of workspace.
int attention_graph_backward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                             const AttentionShape *s, bool deterministic, Error *err);
