#include "kernels/cuda/attention_graph.h"

int attention_shape_check(const AttentionShape *s, Error *err) {
  if (s->B < 1 || s->T < 1 || s->H < 1 || s->KV < 1 || s->d < 1)
    return error_set(err,
                     "attention of %lld x %lld tokens, %lld query and %lld key/value heads of "
                     "%lld: all must be at least 1",
                     (long long)s->B, (long long)s->T, (long long)s->H, (long long)s->KV,
                     (long long)s->d);
  if (s->H % s->KV != 0)
    return error_set(err, "%lld query heads are not a multiple of %lld key/value heads",
                     (long long)s->H, (long long)s->KV);
  if (s->d % 8 != 0 || s->d > 256)
    return error_set(err,
                     "head_dim %lld: attention on the GPU takes multiples of 8 up to 256; choose "
                     "another hidden_size or num_attention_heads",
                     (long long)s->d);
  return 0;
}

// ---- Layouts, as sizes and strides over (batch, head, row, column)

// Heads inside rows of `row` elements.
static TensorShape in_rows(const AttentionShape *s, int64_t heads, int64_t row) {
  return (TensorShape){{s->B, heads, s->T, s->d}, {s->T * row, s->d, row, 1}};
}
static TensorShape in_rows_transposed(const AttentionShape *s, int64_t heads, int64_t row) {
  return (TensorShape){{s->B, heads, s->d, s->T}, {s->T * row, s->d, 1, row}};
}
static TensorShape packed_heads(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, s->d}, {s->H * s->T * s->d, s->T * s->d, s->d, 1}};
}
static TensorShape scores(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, s->T}, {s->H * s->T * s->T, s->T * s->T, s->T, 1}};
}
static TensorShape scores_transposed(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, s->T}, {s->H * s->T * s->T, s->T * s->T, 1, s->T}};
}
// One number for each row of the scores.
static TensorShape column(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, 1}, {s->H * s->T, s->T, 1, 1}};
}

// ---- Pieces of both graphs. Each creates the virtual tensor it returns.

typedef struct Builder {
  CudnnGraph *g;
  const AttentionShape *s;
} Builder;

static CudnnDescriptor matmul_scores(Builder b, CudnnDescriptor x, CudnnDescriptor y) {
  CudnnDescriptor z = graph_virtual(b.g, DATA_FLOAT, scores(b.s));
  graph_matmul(b.g, x, y, z);
  return z;
}
static CudnnDescriptor binary_scores(Builder b, int mode, CudnnDescriptor x, CudnnDescriptor y) {
  CudnnDescriptor z = graph_virtual(b.g, DATA_FLOAT, scores(b.s));
  graph_binary(b.g, mode, x, y, z);
  return z;
}
static CudnnDescriptor exp_scores(Builder b, CudnnDescriptor x) {
  CudnnDescriptor z = graph_virtual(b.g, DATA_FLOAT, scores(b.s));
  graph_unary(b.g, POINTWISE_EXP, x, z);
  return z;
}
static CudnnDescriptor reduce_to_column(Builder b, int op, CudnnDescriptor x) {
  CudnnDescriptor z = graph_virtual(b.g, DATA_FLOAT, column(b.s));
  graph_reduce(b.g, op, x, z);
  return z;
}
static CudnnDescriptor transpose_scores(Builder b, CudnnDescriptor x) {
  CudnnDescriptor z = graph_virtual(b.g, DATA_BFLOAT16, scores_transposed(b.s));
  graph_reshape(b.g, x, z);
  return z;
}

// x where key <= query, the mask's value elsewhere.
static CudnnDescriptor causal_mask(Builder b, CudnnDescriptor x) {
  CudnnDescriptor query = graph_virtual(b.g, DATA_INT32, scores(b.s));
  CudnnDescriptor key = graph_virtual(b.g, DATA_INT32, scores(b.s));
  CudnnDescriptor keep = graph_virtual(b.g, DATA_BOOLEAN, scores(b.s));
  CudnnDescriptor masked = graph_virtual(b.g, DATA_FLOAT, scores(b.s));
  graph_index(b.g, 2, x, query);
  graph_index(b.g, 3, x, key);
  graph_binary(b.g, POINTWISE_CMP_GE, query, key, keep);
  graph_select(b.g, x, graph_scalar(b.g, ATTENTION_MASK_VALUE), keep, masked);
  return masked;
}

// Real tensors that both graphs read.
typedef struct Inputs {
  CudnnDescriptor q, k_transposed, scale;
} Inputs;

static Inputs inputs(Builder b) {
  const int64_t R = attention_row(b.s);
  return (Inputs){
      graph_tensor(b.g, ATTENTION_Q, DATA_BFLOAT16, in_rows(b.s, b.s->H, R)),
      graph_tensor(b.g, ATTENTION_K, DATA_BFLOAT16, in_rows_transposed(b.s, b.s->KV, R)),
      graph_scalar(b.g, ATTENTION_SCALE),
  };
}

static int finish(CudnnGraph *g, CudnnHandle handle, Error *err) {
  if (graph_finish(g, handle, err) == 0) return 0;
  graph_destroy(g);
  return error_prefix(err, "building the attention graph");
}

// ---- The graphs

int attention_graph_forward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                            const AttentionShape *s, Error *err) {
  if (attention_shape_check(s, err)) return -1;
  graph_begin(g, api);
  const Builder b = {g, s};
  const Inputs in = inputs(b);
  CudnnDescriptor v =
      graph_tensor(g, ATTENTION_V, DATA_BFLOAT16, in_rows(s, s->KV, attention_row(s)));
  CudnnDescriptor o = graph_tensor(g, ATTENTION_O, DATA_BFLOAT16, in_rows(s, s->H, s->H * s->d));
  CudnnDescriptor lse = graph_tensor(g, ATTENTION_LSE, DATA_FLOAT, column(s));

  CudnnDescriptor x = matmul_scores(b, in.q, in.k_transposed);
  x = causal_mask(b, binary_scores(b, POINTWISE_MUL, x, in.scale));
  CudnnDescriptor largest = reduce_to_column(b, REDUCE_TENSOR_MAX, x);
  CudnnDescriptor e = exp_scores(b, binary_scores(b, POINTWISE_SUB, x, largest));
  CudnnDescriptor sum = reduce_to_column(b, REDUCE_TENSOR_ADD, e);
  CudnnDescriptor log_sum = graph_virtual(g, DATA_FLOAT, column(s));
  graph_unary(g, POINTWISE_LOG, sum, log_sum);
  graph_binary(g, POINTWISE_ADD, largest, log_sum, lse);
  CudnnDescriptor p = graph_virtual(g, DATA_BFLOAT16, scores(s)); // fp32 here matches no engine
  graph_binary(g, POINTWISE_DIV, e, sum, p);
  graph_matmul(g, p, v, o);
  return finish(g, handle, err);
}

// The gradient of k or v, id ATTENTION_DK or _DV: x^T y for each query head, then the sum over each
// group of heads, which is a reduction from H heads to KV.
static void head_gradient(Builder b, int64_t id, CudnnDescriptor x_transposed, CudnnDescriptor y) {
  const AttentionShape *s = b.s;
  CudnnDescriptor gradient =
      graph_tensor(b.g, id, DATA_BFLOAT16, in_rows(s, s->KV, attention_row(s)));
  if (s->H == s->KV) {
    graph_matmul(b.g, x_transposed, y, gradient);
    return;
  }
  CudnnDescriptor heads = graph_virtual(b.g, DATA_BFLOAT16, packed_heads(s));
  graph_matmul(b.g, x_transposed, y, heads);
  graph_reduce(b.g, REDUCE_TENSOR_ADD, heads, gradient);
}

// dq = ds k. A product in fp32, converted afterwards, asks for the sum in no fixed order; one in
// bf16 asks for the deterministic kernel. (The conversion cannot be left out: cuDNN then accepts
// the graph and fails when it runs.)
static void query_gradient(Builder b, bool deterministic, CudnnDescriptor ds, CudnnDescriptor k) {
  const AttentionShape *s = b.s;
  CudnnDescriptor dq =
      graph_tensor(b.g, ATTENTION_DQ, DATA_BFLOAT16, in_rows(s, s->H, attention_row(s)));
  if (deterministic) {
    graph_matmul(b.g, ds, k, dq);
    return;
  }
  CudnnDescriptor sum =
      graph_tensor(b.g, ATTENTION_DQ_SUM, DATA_FLOAT, in_rows(s, s->H, s->H * s->d));
  graph_matmul(b.g, ds, k, sum);
  graph_unary(b.g, POINTWISE_IDENTITY, sum, dq);
}

int attention_graph_backward(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle,
                             const AttentionShape *s, bool deterministic, Error *err) {
  if (attention_shape_check(s, err)) return -1;
  graph_begin(g, api);
  const Builder b = {g, s};
  const Inputs in = inputs(b);
  const int64_t R = attention_row(s), o_row = s->H * s->d;
  CudnnDescriptor v_transposed =
      graph_tensor(g, ATTENTION_V, DATA_BFLOAT16, in_rows_transposed(s, s->KV, R));
  CudnnDescriptor o = graph_tensor(g, ATTENTION_O, DATA_BFLOAT16, in_rows(s, s->H, o_row));
  CudnnDescriptor d_o = graph_tensor(g, ATTENTION_DO, DATA_BFLOAT16, in_rows(s, s->H, o_row));
  CudnnDescriptor lse = graph_tensor(g, ATTENTION_LSE, DATA_FLOAT, column(s));
  CudnnDescriptor row_sum = graph_tensor(g, ATTENTION_ROW_SUM, DATA_FLOAT, column(s));

  // Row sums of do * o. Without the product with one they cost B H T^2 4 bytes of workspace.
  CudnnDescriptor product = graph_virtual(g, DATA_FLOAT, packed_heads(s));
  graph_binary(g, POINTWISE_MUL, d_o, o, product);
  graph_binary(g, POINTWISE_MUL, reduce_to_column(b, REDUCE_TENSOR_ADD, product),
               graph_scalar(g, ATTENTION_ONE), row_sum);

  // p = exp(scale q k^T - lse)
  CudnnDescriptor x = matmul_scores(b, in.q, in.k_transposed);
  x = binary_scores(b, POINTWISE_MUL, x, in.scale);
  x = causal_mask(b, binary_scores(b, POINTWISE_SUB, x, lse));
  CudnnDescriptor p = exp_scores(b, x);
  head_gradient(b, ATTENTION_DV, transpose_scores(b, p), d_o);

  // ds = scale p (do v^T - row sum)
  x = matmul_scores(b, d_o, v_transposed);
  x = binary_scores(b, POINTWISE_SUB, x, row_sum);
  x = binary_scores(b, POINTWISE_MUL, x, p);
  CudnnDescriptor ds = binary_scores(b, POINTWISE_MUL, x, in.scale);
  head_gradient(b, ATTENTION_DK, transpose_scores(b, ds), in.q);

  CudnnDescriptor k = graph_virtual(g, DATA_BFLOAT16, in_rows(s, s->KV, R));
  graph_reshape(g, in.k_transposed, k);
  query_gradient(b, deterministic, ds, k);
  return finish(g, handle, err);
}
