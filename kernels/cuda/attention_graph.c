#include "kernels/cuda/attention.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

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
static TensorShape packed_heads(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, s->d}, {s->H * s->T * s->d, s->T * s->d, s->d, 1}};
}
static TensorShape scores(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, s->T}, {s->H * s->T * s->T, s->T * s->T, s->T, 1}};
}
// One number for each row of the scores.
static TensorShape column(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, 1}, {s->H * s->T, s->T, 1, 1}};
}
static TensorShape transposed(TensorShape t) {
  return (TensorShape){{t.size[0], t.size[1], t.size[3], t.size[2]},
                       {t.stride[0], t.stride[1], t.stride[3], t.stride[2]}};
}

// ---- Pieces of both graphs

typedef struct Builder {
  CudnnGraph *g;
  const AttentionShape *s;
} Builder;

// Virtual tensors.
static CudnnDescriptor new_scores(Builder b, int type) {
  return graph_virtual(b.g, type, scores(b.s));
}
static CudnnDescriptor new_column(Builder b) {
  return graph_virtual(b.g, DATA_FLOAT, column(b.s));
}
static CudnnDescriptor transpose_scores(Builder b, CudnnDescriptor x) {
  return graph_reshape(b.g, x, graph_virtual(b.g, DATA_BFLOAT16, transposed(scores(b.s))));
}

// x where key <= query, the mask's value elsewhere.
static CudnnDescriptor causal_mask(Builder b, CudnnDescriptor x) {
  CudnnDescriptor query = graph_index(b.g, 2, x, new_scores(b, DATA_INT32));
  CudnnDescriptor key = graph_index(b.g, 3, x, new_scores(b, DATA_INT32));
  CudnnDescriptor keep =
      graph_binary(b.g, POINTWISE_CMP_GE, query, key, new_scores(b, DATA_BOOLEAN));
  CudnnDescriptor otherwise = graph_scalar(b.g, ATTENTION_MASK_VALUE);
  return graph_select(b.g, x, otherwise, keep, new_scores(b, DATA_FLOAT));
}

// A real tensor: heads inside rows of `row` elements.
static CudnnDescriptor heads_tensor(Builder b, int64_t id, int64_t heads, int64_t row) {
  return graph_tensor(b.g, id, DATA_BFLOAT16, in_rows(b.s, heads, row));
}

// Real tensors that both graphs read.
typedef struct Inputs {
  CudnnDescriptor q, k_transposed, scale;
} Inputs;

static Inputs inputs(Builder b) {
  const int64_t R = attention_row(b.s);
  return (Inputs){
      heads_tensor(b, ATTENTION_Q, b.s->H, R),
      graph_tensor(b.g, ATTENTION_K, DATA_BFLOAT16, transposed(in_rows(b.s, b.s->KV, R))),
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
  CudnnDescriptor v = heads_tensor(b, ATTENTION_V, s->KV, attention_row(s));
  CudnnDescriptor o = heads_tensor(b, ATTENTION_O, s->H, s->H * s->d);
  CudnnDescriptor lse = graph_tensor(g, ATTENTION_LSE, DATA_FLOAT, column(s));

  CudnnDescriptor x = graph_matmul(g, in.q, in.k_transposed, new_scores(b, DATA_FLOAT));
  x = graph_binary(g, POINTWISE_MUL, x, in.scale, new_scores(b, DATA_FLOAT));
  x = causal_mask(b, x);
  CudnnDescriptor largest = graph_reduce(g, REDUCE_TENSOR_MAX, x, new_column(b));
  x = graph_binary(g, POINTWISE_SUB, x, largest, new_scores(b, DATA_FLOAT));
  CudnnDescriptor e = graph_unary(g, POINTWISE_EXP, x, new_scores(b, DATA_FLOAT));
  CudnnDescriptor sum = graph_reduce(g, REDUCE_TENSOR_ADD, e, new_column(b));
  CudnnDescriptor log_sum = graph_unary(g, POINTWISE_LOG, sum, new_column(b));
  graph_binary(g, POINTWISE_ADD, largest, log_sum, lse);
  // fp32 here matches no engine
  CudnnDescriptor p = graph_binary(g, POINTWISE_DIV, e, sum, new_scores(b, DATA_BFLOAT16));
  graph_matmul(g, p, v, o);
  return finish(g, handle, err);
}

// The gradient of k or v, id ATTENTION_DK or _DV: x^T y for each query head, then the sum over each
// group of heads, which is a reduction from H heads to KV.
static void head_gradient(Builder b, int64_t id, CudnnDescriptor x_transposed, CudnnDescriptor y) {
  const AttentionShape *s = b.s;
  CudnnDescriptor gradient = heads_tensor(b, id, s->KV, attention_row(s));
  if (s->H == s->KV) {
    graph_matmul(b.g, x_transposed, y, gradient);
    return;
  }
  CudnnDescriptor heads =
      graph_matmul(b.g, x_transposed, y, graph_virtual(b.g, DATA_BFLOAT16, packed_heads(s)));
  graph_reduce(b.g, REDUCE_TENSOR_ADD, heads, gradient);
}

// dq = ds k. A product in fp32, converted afterwards, asks for the sum in no fixed order; one in
// bf16 asks for the deterministic kernel. (The conversion cannot be left out: cuDNN then accepts
// the graph and fails when it runs.)
static void query_gradient(Builder b, bool deterministic, CudnnDescriptor ds, CudnnDescriptor k) {
  const AttentionShape *s = b.s;
  CudnnDescriptor dq = heads_tensor(b, ATTENTION_DQ, s->H, attention_row(s));
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
      graph_tensor(g, ATTENTION_V, DATA_BFLOAT16, transposed(in_rows(s, s->KV, R)));
  CudnnDescriptor o = heads_tensor(b, ATTENTION_O, s->H, o_row);
  CudnnDescriptor d_o = heads_tensor(b, ATTENTION_DO, s->H, o_row);
  CudnnDescriptor lse = graph_tensor(g, ATTENTION_LSE, DATA_FLOAT, column(s));
  CudnnDescriptor row_sum = graph_tensor(g, ATTENTION_ROW_SUM, DATA_FLOAT, column(s));

  // Row sums of do * o. Without the product with one they cost B H T^2 4 bytes of workspace.
  CudnnDescriptor x =
      graph_binary(g, POINTWISE_MUL, d_o, o, graph_virtual(g, DATA_FLOAT, packed_heads(s)));
  x = graph_reduce(g, REDUCE_TENSOR_ADD, x, new_column(b));
  graph_binary(g, POINTWISE_MUL, x, graph_scalar(g, ATTENTION_ONE), row_sum);

  // p = exp(scale q k^T - lse)
  x = graph_matmul(g, in.q, in.k_transposed, new_scores(b, DATA_FLOAT));
  x = graph_binary(g, POINTWISE_MUL, x, in.scale, new_scores(b, DATA_FLOAT));
  x = graph_binary(g, POINTWISE_SUB, x, lse, new_scores(b, DATA_FLOAT));
  x = causal_mask(b, x);
  CudnnDescriptor p = graph_unary(g, POINTWISE_EXP, x, new_scores(b, DATA_FLOAT));
  head_gradient(b, ATTENTION_DV, transpose_scores(b, p), d_o);

  // ds = scale p (do v^T - row sum)
  x = graph_matmul(g, d_o, v_transposed, new_scores(b, DATA_FLOAT));
  x = graph_binary(g, POINTWISE_SUB, x, row_sum, new_scores(b, DATA_FLOAT));
  x = graph_binary(g, POINTWISE_MUL, x, p, new_scores(b, DATA_FLOAT));
  CudnnDescriptor ds = graph_binary(g, POINTWISE_MUL, x, in.scale, new_scores(b, DATA_FLOAT));
  head_gradient(b, ATTENTION_DK, transpose_scores(b, ds), in.q);

  CudnnDescriptor k =
      graph_reshape(g, in.k_transposed, graph_virtual(g, DATA_BFLOAT16, in_rows(s, s->KV, R)));
  query_gradient(b, deterministic, ds, k);
  return finish(g, handle, err);
}

// ---- Choices

// True for a choice that was timed and answers its question: its form may be chosen, and it is the
// first configuration where that was asked for.
static bool answers(const AttentionQuestion *q, const AttentionChoice *c) {
  return isfinite(c->milliseconds) && c->milliseconds > 0 && isfinite(c->other_form) &&
         c->other_form >= 0 && c->number >= 0 && (!q->first || c->number == 0) &&
         (c->deterministic == q->deterministic || (q->both_forms && c->deterministic));
}

typedef struct QuestionText {
  char text[160];
} QuestionText;

// B T H KV d direction deterministic both first
static QuestionText text_of(const AttentionQuestion *q) {
  const AttentionShape *s = &q->shape;
  QuestionText t;
  snprintf(t.text, sizeof t.text,
           "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d", s->B, s->T,
           s->H, s->KV, s->d, (int)q->direction, q->deterministic, q->both_forms, q->first);
  return t;
}

// The answer: number engine kernel form and two times.
bool attention_choice_find(const Choices *all, const AttentionQuestion *question,
                           AttentionChoice *c) {
  const char *answer = choices_find(all, text_of(question).text);
  int form, used = 0;
  if (!answer ||
      sscanf(answer, "%d %" SCNd64 " %" SCNd64 " %d %lf %lf%n", &c->number, &c->engine, &c->kernel,
             &form, &c->milliseconds, &c->other_form, &used) != 6 ||
      answer[used] != '\n')
    return false;
  c->deterministic = form != 0;
  return answers(question, c);
}

void attention_choice_keep(Choices *all, const AttentionQuestion *question,
                           const AttentionChoice *c) {
  char answer[160];
  if (!answers(question, c)) return;
  snprintf(answer, sizeof answer, "%d %" PRId64 " %" PRId64 " %d %.9g %.9g", c->number, c->engine,
           c->kernel, c->deterministic, c->milliseconds, c->other_form);
  choices_keep(all, text_of(question).text, answer);
}
