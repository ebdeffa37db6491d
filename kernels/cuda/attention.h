// Causal grouped-query attention on the GPU through cuDNN, for one shape.
#pragma once
#include <stdbool.h>
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cudnn.h"

// What keeps documents apart, beside the causal mask.
typedef enum AttentionMask {
  MASK_NONE,    // of documents: their lengths bound the products
  MASK_LENGTHS, // the same, and every graph masks what lies past a document's end
  MASK_BIAS,    // ATTENTION_BIAS is added to the scores of whole sequences
} AttentionMask;

// B sequences of T positions, H query heads, KV key/value heads, d columns a head. Rows of qkv are
// packed: H q heads, KV k heads, KV v heads; R = (H + 2 KV) d.
typedef struct AttentionShape {
  int64_t B, T, H, KV, d;
  // 0: all sequences are T long, B T rows. Otherwise documents have this many rows together: at
  // most B documents, each at most T long, with lengths in the GPU's memory (AttentionDocuments).
  int64_t rows;
  AttentionMask mask; // MASK_LENGTHS only with `rows`, MASK_BIAS only without
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
// CompositeSDPABackwardNode), reduced to bf16, causal, no dropout. Documents are its ragged layout,
// or windows with its bias, which keeps a window's documents apart.

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
  ATTENTION_DQ_SUM,     // fp32 [B, T, H, d] scratch; ATTENTION_BACKWARD only
  ATTENTION_ROW_SUM,    // fp32 scratch, like LSE
  ATTENTION_SCALE,      // host float, 1 / sqrt(d)
  ATTENTION_MASK_VALUE, // host float, -INFINITY
  ATTENTION_ONE,        // host float, 1; backward only
  // Documents only:
  ATTENTION_LENGTHS,     // int32 [B]: rows of each
  ATTENTION_QKV_OFFSETS, // int64 [B + 1]: elements before its first row in qkv and dqkv
  ATTENTION_O_OFFSETS,   // likewise in o, do, DQ_SUM, DK_HEADS and DV_HEADS
  ATTENTION_LSE_OFFSETS, // likewise in LSE and ROW_SUM
  ATTENTION_DK_HEADS,    // bf16 [rows, H, d] scratch where H > KV, dk of each query head
  ATTENTION_DV_HEADS,    // likewise
  // MASK_BIAS only:
  ATTENTION_BIAS, // bf16 [B, T, T], the same for every head
  ATTENTION_IDS
};

typedef enum AttentionGraph {
  ATTENTION_FORWARD,
  // dq is added up in fp32 in no fixed order, so its last bits may differ between runs. dk and dv
  // have the same bits in every run.
  ATTENTION_BACKWARD,
  // The backward in which no bit differs, at the cost of B H T^2 2 bytes of workspace.
  ATTENTION_DETERMINISTIC,
} AttentionGraph;

// 0 if cuDNN supports the shape on some GPU; else fails with the reason.
int attention_shape_check(const AttentionShape *s, Error *err);

// Builds the graph. handle as for graph_finish. On failure the graph is destroyed.
int attention_graph(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle, const AttentionShape *s,
                    AttentionGraph graph, Error *err);

// The documents of a shape with `rows`, in the GPU's memory: B lengths, and B + 1 offsets for each
// layout (see the tensor ids).
typedef struct AttentionDocuments {
  const int32_t *lengths;
  const int64_t *qkv_offsets, *o_offsets, *lse_offsets;
} AttentionDocuments;

// The bytes of a table of these for `calls` calls of B documents each. All arrays begin at 16-byte
// boundaries, as the graphs require, if the table does.
size_t attention_table_bytes(int64_t B, int64_t calls);
// Fills it in on the host for lengths[count], count <= calls B; the documents lie one after the
// other. Each call gets about the same number. Unused entries have length 0 and the end's offset.
void attention_table_fill(const AttentionShape *s, const int32_t *lengths, int64_t count,
                          int64_t calls, void *table);
// The documents of one call in the table at that address.
AttentionDocuments attention_table_at(const void *table, int64_t B, int64_t call);

// ---- Which plan a call gets, and how Choices remember it (attention_graph.c)

// What a plan is for: the key of a remembered choice.
typedef struct AttentionCall {
  AttentionShape shape;
  bool backward;
  // Every run computes the same bits: by the first configuration that compiles, not the fastest,
  // and by ATTENTION_DETERMINISTIC.
  bool deterministic;
  // The backward's other graph is compiled and timed, too: taken where it is faster and allowed,
  // else there for comparison.
  bool both_graphs;
} AttentionCall;

// A way to run a call, and the plan compiled from it.
typedef struct AttentionPlan {
  AttentionGraph graph;
  int number;          // of the configurations that cuDNN offers for the graph
  double milliseconds; // of one call; 0 = not timed, and then the plan is not remembered
  double other_graph;  // the fastest plan's of the backward's other graph; 0 = not timed
  size_t workspace;    // bytes, of cuDNN's own
  CudnnDescriptor plan;
} AttentionPlan;

// The graph that the call asks for. Documents whose heads need it get ATTENTION_DETERMINISTIC.
AttentionGraph attention_graph_of(const AttentionCall *call);
// The index of the fastest plan that the call allows; the first one's where none was timed, -1
// where none is allowed. Sets its other_graph.
int attention_choose(const AttentionCall *call, AttentionPlan *list, int count);
// The remembered graph, number and times. False where none is known. An answer that does not fit
// the call is ignored: where equal bits are asked for, the choice never comes from a file.
bool attention_plan_find(const Choices *all, const AttentionCall *call, AttentionPlan *plan);
// A plan that was not timed, or that does not fit the call, is not stored.
void attention_plan_keep(Choices *all, const AttentionCall *call, const AttentionPlan *plan);

// ---- attention_plan.c. Plans are made once, at creation; a call afterwards only launches, on the
// stream of the handle, and can be captured into a CUDA graph.

typedef struct AttentionCudnn AttentionCudnn;

// Plans the forward of the call's shape and, where it has one, its backward. All configurations are
// timed on scratch memory, which is freed again, and the fastest is kept; the first that compiles
// where the scratch cannot be allocated. choices: the known plans, to which new ones are added, or
// NULL. A known plan that cuDNN no longer offers, or that no longer compiles, counts as unknown.
//
// cuDNN's handle (cudnnCreate) with its stream set must outlive the object, as must api. NULL, and
// err says why, on failure. Waits for the device; may not be called during a capture.
AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle,
                                       struct CUstream_st *stream, const AttentionCall *call,
                                       Choices *choices, Error *err);
void attention_cudnn_destroy(AttentionCudnn *a); // NULL is fine

// The plan of one direction; it lives as long as the object.
const AttentionPlan *attention_cudnn_plan(const AttentionCudnn *a, bool backward);

// Device memory that both directions need, 256-byte aligned. Its contents are free between calls,
// so that all layers share it.
size_t attention_cudnn_workspace(const AttentionCudnn *a);

// The tensors that a call reads and writes, all 16-byte aligned; the forward uses only the first
// three and the workspace.
typedef struct AttentionTensors {
  const void *qkv; // bf16 [B, T, R]
  void *o;         // bf16 [B, T, H, d], written by the forward
  float *lse;      // fp32 [B, H, T], likewise; of documents [rows, H]
  const void *do_; // bf16 [B, T, H, d]
  void *dqkv;      // bf16 [B, T, R], written by the backward
  void *workspace;
  const void *bias;             // bf16 [B, T, T], for MASK_BIAS
  AttentionDocuments documents; // of a shape with `rows`
} AttentionTensors;
int attention_cudnn_run(const AttentionCudnn *a, bool backward, const AttentionTensors *tensors,
                        Error *err);
