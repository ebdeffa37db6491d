// Causal grouped-query attention on the GPU through cuDNN, for one shape.
#pragma once
#include <stdbool.h>
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cudnn.h"

// B sequences of T positions, H query heads, KV key/value heads, d columns a head. Rows of qkv are
// packed: H q heads, KV k heads, KV v heads; R = (H + 2 KV) d.
typedef struct AttentionShape {
  int64_t B, T, H, KV, d;
  int64_t
      rows; // 0: all are T long, B T rows. Else sequences share so many rows: at most B of them,
            // at most T long, of lengths that the GPU's memory has (AttentionDocuments)
} AttentionShape;

static inline int64_t attention_rows(const AttentionShape *s) {
  return s->rows > 0 ? s->rows : s->B * s->T;
}

static inline int64_t attention_row(const AttentionShape *s) {
  return (s->H + 2 * s->KV) * s->d;
}

// ---- attention_graph.c: operation graphs, the primitive operations that cuDNN matches to its
// flash-attention kernels. The pattern is strict: cuDNN offers no engine for a graph that deviates
// from it, and reports no error.
//
// Facts: NVIDIA's cudnn-frontend 1.23, scaled_dot_product_flash_attention.h (CompositeSDPANode and
// CompositeSDPABackwardNode), reduced to bf16, causal, no dropout, no bias. Documents are its
// ragged layout.

// Ids of the tensors in a variant pack; ATTENTION_K is the k columns of qkv, and so on.
enum {
  ATTENTION_Q = 1,      // bf16 [B, T, H, d] with rows of R
  ATTENTION_K,          // bf16 [B, T, KV, d] with rows of R
  ATTENTION_V,          // like K
  ATTENTION_O,          // bf16 [B, T, H, d]
  ATTENTION_LSE,        // fp32 [B, H, T], natural log-sum-exp of the scaled scores; of documents
                        // [rows, H]
  ATTENTION_DO,         // bf16 [B, T, H, d]
  ATTENTION_DQ,         // like Q
  ATTENTION_DK,         // like K
  ATTENTION_DV,         // like V
  ATTENTION_DQ_SUM,     // fp32 [B, T, H, d] scratch; absent in the deterministic form
  ATTENTION_ROW_SUM,    // fp32 scratch, like LSE
  ATTENTION_SCALE,      // host float, 1 / sqrt(d)
  ATTENTION_MASK_VALUE, // host float, -INFINITY
  ATTENTION_ONE,        // host float, 1; backward only
  // Of documents alone:
  ATTENTION_LENGTHS,     // int32 [B]: rows of each
  ATTENTION_QKV_OFFSETS, // int64 [B + 1]: elements before its first row in qkv and dqkv
  ATTENTION_O_OFFSETS,   // likewise in o, do, DQ_SUM, DK_HEADS and DV_HEADS
  ATTENTION_LSE_OFFSETS, // likewise in LSE and ROW_SUM
  ATTENTION_DK_HEADS,    // bf16 [rows, H, d] scratch where H > KV, dk of each query head
  ATTENTION_DV_HEADS,    // likewise
};

// 0 if cuDNN supports the shape on some GPU; else fails with the reason.
int attention_shape_check(const AttentionShape *s, Error *err);

// Builds the graph. handle as for graph_finish. On failure the graph is destroyed.
int attention_graph_forward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                            const AttentionShape *s, Error *err);
// dq is added up in fp32 in no fixed order, so that its last bits may differ between runs; those of
// dk and dv do not. deterministic: no bit differs, at the cost of B H T^2 2 bytes of workspace.
int attention_graph_backward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                             const AttentionShape *s, bool deterministic, Error *err);

// Where a shape with `rows` has its sequences, in the GPU's memory: B lengths, and B + 1 offsets
// for each layout, as tensor ids say.
typedef struct AttentionDocuments {
  const int32_t *lengths;
  const int64_t *qkv_offsets, *o_offsets, *lse_offsets;
} AttentionDocuments;

// A table of these for `calls` calls of B sequences each. All arrays begin at 16-byte boundaries,
// as the graphs say, where the table does.
size_t attention_table_bytes(int64_t B, int64_t calls);
// Fills it in on the host for lengths[count], count <= calls B, which lie one after the other.
// Calls get about the same number each; the places left over have length 0 and the end's offset.
void attention_table_fill(const AttentionShape *s, const int32_t *lengths, int64_t count,
                          int64_t calls, void *table);
// The sequences of a call, of a table that lies at that address.
AttentionDocuments attention_table_at(const void *table, int64_t B, int64_t call);

// The fastest of cuDNN's configurations for attention, as Choices remember it.

typedef enum AttentionDirection { ATTENTION_FORWARD, ATTENTION_BACKWARD } AttentionDirection;

// The key of a remembered choice; the fields are as in AttentionOptions.
typedef struct AttentionQuestion {
  AttentionShape shape;
  AttentionDirection direction;
  bool deterministic, both_forms;
  bool first; // ATTENTION_FIRST instead of ATTENTION_FASTEST
} AttentionQuestion;

typedef struct AttentionChoice {
  bool deterministic;     // of a backward: its form
  int number;             // index of the configuration that cuDNN offers for the form
  int64_t engine, kernel; // cuDNN's ids
  double milliseconds;    // of one call; 0 = not timed, and then the choice is not remembered
  double other_form;      // likewise, for the fastest of the other form; 0 = not timed
} AttentionChoice;

// False where no choice is known. An answer that does not fit its question is ignored: where equal
// bits are asked for, the choice never comes from a file.
bool attention_choice_find(const Choices *all, const AttentionQuestion *question,
                           AttentionChoice *choice);
// A choice that was not timed, or that does not fit the question, is not stored.
void attention_choice_keep(Choices *all, const AttentionQuestion *question,
                           const AttentionChoice *choice);

// ---- attention_plan.c. Plans are made once, at creation; a call afterwards only launches, on the
// stream of the handle, and can be captured into a CUDA graph.

typedef struct AttentionCudnn AttentionCudnn;

typedef struct AttentionOptions {
  bool deterministic; // the backward gives the same bits in every run
  bool forward_only;  // no backward: for validation and generation
  // The backward's other form is compiled and timed, too: kept where it is faster and allowed, else
  // there for comparison.
  bool both_forms;
  // The index of a configuration that cuDNN offers, or one of the values below.
  int forward_config, backward_config;
  // The known choices, to which new ones are added; NULL: all configurations are timed. A choice
  // that cuDNN no longer offers, or that no longer compiles, counts as unknown.
  Choices *choices;
} AttentionOptions;
enum {
  // Times all on scratch memory, which it frees again, and keeps the fastest; keeps the first that
  // compiles where the scratch cannot be allocated.
  ATTENTION_FASTEST = -1,
  // The first that compiles. Two runs make the same choice, as `deterministic` needs.
  ATTENTION_FIRST = -2
};

// A configuration that cuDNN offered for one direction, for the start-up table.
typedef struct AttentionConfig {
  int64_t engine, kernel; // cuDNN's ids
  bool deterministic;     // of a backward: its form
  size_t workspace;
  double plan_seconds; // time to compile, 0 = not tried
  double milliseconds; // median of one call, 0 = not timed
  bool chosen;
} AttentionConfig;

// cuDNN's handle (cudnnCreate) with its stream set; it must outlive the object, as must api. NULL
// and a sentence on failure. Waits for the device; may not be called during a capture.
AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle,
                                       struct CUstream_st *stream, const AttentionShape *shape,
                                       const AttentionOptions *options, Error *err);
void attention_cudnn_destroy(AttentionCudnn *a); // NULL is fine

// Points *list at the configurations; lives as long as the object.
int attention_cudnn_configs(const AttentionCudnn *a, AttentionDirection direction,
                            const AttentionConfig **list);

// The choice for one direction; it lives as long as the object.
const AttentionChoice *attention_cudnn_choice(const AttentionCudnn *a,
                                              AttentionDirection direction);

// Device memory that a call needs, 256-byte aligned. Its contents are free between calls, so that
// all layers share it.
size_t attention_cudnn_workspace(const AttentionCudnn *a, AttentionDirection direction);

// The tensors that a call reads and writes, all 16-byte aligned; the forward uses only the first
// three and the workspace.
typedef struct AttentionTensors {
  const void *qkv; // bf16 [B, T, R]
  void *o;         // bf16 [B, T, H, d], written by the forward
  float *lse;      // fp32 [B, H, T], likewise; of documents [rows, H]
  const void *do_; // bf16 [B, T, H, d]
  void *dqkv;      // bf16 [B, T, R], written by the backward
  void *workspace;
  AttentionDocuments documents; // of a shape with `rows`
} AttentionTensors;
int attention_cudnn_run(const AttentionCudnn *a, AttentionDirection direction,
                        const AttentionTensors *tensors, Error *err);
