// A run, resolved once: its sizes, its formats, and what it asks of its backend. The memory plan,
// the model and the backends read the same struct.
#pragma once
#include "kernels/operand.h"
#include "kernels/operations.h"

enum { MAX_HEAD_DIM = 1024 };

typedef struct Spec {
  // ---- The model: dimensions as in kernels/ops.h
  int64_t L; // layers
  int64_t D, F, H, KV, d, V;
  double rms_norm_eps;
  double inv_freq[MAX_HEAD_DIM / 2]; // RoPE: angle per position of each of the d/2 pairs

  // ---- A micro-batch, and what is kept of it
  int64_t batch, seq;       // B sequences of T tokens
  int halvings;             // attention also sees pieces of seq / 2, seq / 4, ..., so many lengths
  int64_t loss_chunks;      // pieces of its logits; 0: not chosen yet
  bool train;               // false: forward only, nothing is kept for a backward
  bool accumulates;         // gradients of several micro-batches add up
  bool muon;                // Muon updates the matrices of layers: they have no second moment
  Recompute recompute;      // activations that the backward recomputes
  int64_t recompute_layers; // for how many layers, from the first; 0: all
  int64_t context;          // positions of a generator; 0: there is none
  bool cache;               // a generator's own: its layers cache `context` positions
  bool scores;              // micro-batches are scored (llama_score), also or only
  int64_t max_tokens;       // the largest M of any call on the backend
  int64_t max_positions;    // RoPE positions 0 .. max_positions - 1 occur

  // ---- Documents that end inside of sequences (Services.set_documents)
  int64_t usual_documents;  // most micro-batches have at most this many; 0: there are none
  int64_t longest_document; // rows
  bool whole_windows;       // some forwards have no documents, such as a validation's
  bool biases_documents;    // GPU: a bias of the scores of whole windows keeps them apart

  // ---- Formats. Their bytes are below.
  size_t real_bytes;           // CPU: of every number; 0: the formats of a GPU
  bool fp8;                    // products multiply in FP8
  bool fp8_weights;            // forward only: weights are e4m3, and products multiply in bf16
  const ScalingKind *scalings; // [scaling_count], 0 without fp8. Read while the backend is created.
  int scaling_count;
  int weight_scalings; // the first so many are the parameters', in their list's order
  MomentType moments;  // bf16 is rounded as kernels/formats.h says, on the CPU, too
  MasterType masters;  // likewise, of matrices; norm weights stay fp32
  bool grads_fp32;     // gradients are as fine as sums: since micro-batches add up; on the
                       // CPU always
  bool bf16_products;  // CPU: round operands (kernels/bf16_products.h)

  // ---- The backend
  int threads;            // CPU; 0: all
  KernelChoice kernels;   // GPU, as all that follow
  OperationSet failed;    // of auto: their programs give wrong results on this GPU,
  OperationSet slow;      // or are slower there than unfused kernels
  Mainloop mainloop;      // auto: as wide as wgmma's, where memory is planned
  bool deterministic;     // attention's backward gives the same bits every time, at a cost
  bool graphs;            // replay_begin captures launches in CUDA graphs
  Offload offload;        // the part of a training run's state in the host's memory
  int64_t offload_layers; // for how many layers, from the first; 0: all matrices
  const char *gemm_cache; // as for gemm_open; NULL: the default path, beside attention's choices

  // ---- Memory: an estimate, until the backend is open
  struct {
    int64_t sumsq; // the most parts that a producer writes of a residual stream's row statistic
    int64_t s;     // and of the backward's row sums
  } most_parts;
  bool folds_softmax;     // head_loss writes u and ux where they have memory (HeadGradient)
  size_t workspace_bytes; // the backend's own memory, including its libraries' code
  // Bytes beyond these that the first update of this list takes. rows, cols, norm and parts are
  // set. NULL: none.
  size_t (*list_bytes)(const ParamTensor *list, int count);
  size_t granule;      // allocations are rounded up to multiples of this; 0: they are not
  size_t memory_bytes; // free on the device
  size_t host_bytes;   // free on the host, for what is offloaded
} Spec;

static inline bool has_fp8_weights(const Spec *s) {
  return s->fp8 || s->fp8_weights;
}

static inline bool runs_on_gpu(const Spec *s) {
  return s->real_bytes == 0;
}

// ---- Bytes of an element

enum { BF16_BYTES = 2, FP32_BYTES = 4 };

static inline size_t wide_or_bf16(const Spec *s, bool bf16) {
  return !runs_on_gpu(s) ? s->real_bytes : bf16 ? (size_t)BF16_BYTES : (size_t)FP32_BYTES;
}
static inline size_t act_bytes(const Spec *s) {
  return wide_or_bf16(s, true);
}
static inline size_t fp8_bytes(const Spec *s) {
  return runs_on_gpu(s) ? 1 : s->real_bytes;
}
static inline size_t stat_bytes(const Spec *s) {
  return wide_or_bf16(s, false);
}
static inline size_t grad_bytes(const Spec *s) {
  return wide_or_bf16(s, !s->grads_fp32);
}
static inline size_t moment_bytes(const Spec *s) {
  return wide_or_bf16(s, s->moments == MOMENTS_BF16);
}
// Of a master of this tensor. A norm weight's is as wide as statistics are, whatever the others
// are: bf16 has steps of 2^-8 and 2^-7 about 1, far more than an update.
static inline size_t master_bytes(const Spec *s, const ParamTensor *t) {
  return wide_or_bf16(s, s->masters == MASTERS_BF16 && !t->vector);
}

// Masters of matrices are bf16, the values that products read: an unfolded compute weight has no
// memory of its own, its data is the master.
static inline bool computes_with_masters(const Spec *s) {
  return s->masters == MASTERS_BF16;
}

// ---- Sizes that follow

// R: the columns of a packed row.
static inline int64_t packed_width(const Spec *s) {
  return (s->H + 2 * s->KV) * s->d;
}
// H d: those of q alone, and of attention's output.
static inline int64_t query_width(const Spec *s) {
  return s->H * s->d;
}
// Elements from one row of logits to the next. In the gradient the elements past V are zeros.
static inline int64_t padded_vocab(const Spec *s) {
  return fp8_padded(s->V);
}
// M: rows of a micro-batch.
static inline int64_t batch_rows(const Spec *s) {
  return s->batch * s->seq;
}
// Rows of logits that exist together, in the last chunk perhaps fewer.
static inline int64_t chunk_rows(const Spec *s) {
  const int64_t M = s->batch > 0 ? batch_rows(s) : s->max_tokens;
  return s->loss_chunks > 0 ? (M + s->loss_chunks - 1) / s->loss_chunks : M;
}
// How many layers recompute, from the first one on.
static inline int64_t recomputed_layers(const Spec *s) {
  if (s->recompute == RECOMPUTE_NONE) return 0;
  return s->recompute_layers > 0 ? s->recompute_layers : s->L;
}
// GPU: attention and GEMMs of the micro-batch's shape are planned and timed at the start; other
// shapes are planned when they first occur.
static inline bool plans_ahead(const Spec *s) {
  return s->train && s->batch > 0;
}

// ---- Documents

// Whether Services.set_documents accepts these documents.
static inline bool documents_fit(const Spec *s, const int32_t *lengths, int64_t count) {
  bool fit = count == 0 || s->usual_documents > 0;
  for (int64_t i = 0; i < count; i++) fit &= lengths[i] > 0 && lengths[i] <= s->longest_document;
  return fit;
}

// How a batch of usual_documents is cut into calls of attention. The deterministic backward's
// workspace holds the scores of a call: per_call H longest^2 bf16 numbers. A call takes at most as
// many documents as a batch has windows of the longest one's length, and so needs no more workspace
// than those windows would. With biases_documents one call takes the batch's windows.
typedef struct DocumentCalls {
  int64_t per_call; // documents in a call, or windows
  int64_t longest;  // rows of the longest, in whole tiles of 128: with 1 row cuDNN's dq is NaN
  int64_t usual;    // calls of a usual batch; 0: there are no documents
} DocumentCalls;
DocumentCalls document_calls(const Spec *spec);
// Bytes of the bias: bf16 [batch, seq, seq].
static inline size_t document_bias_bytes(const Spec *s) {
  return s->biases_documents ? (size_t)(batch_rows(s) * s->seq) * BF16_BYTES : 0;
}
// Whether documents with heads of d and lengths of their own need the deterministic backward in any
// case: cuDNN 9.14 and 9.19 give a wrong dq in the plain form.
static inline bool documents_need_deterministic(int64_t d) {
  return d % 16 != 0;
}

// ---- Estimates of "Memory" above, without a backend: memory_bytes and host_bytes stay.

void spec_estimate_cpu(Spec *spec); // exact
// Of the workspace only the parts that grow with the run.
void spec_estimate_gpu(Spec *spec);
