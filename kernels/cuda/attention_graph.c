#include "kernels/cuda/attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/spec.h"

int attention_shape_check(const AttentionShape *s, Error *err) {
  assert(s->B > 0 && s->T > 0 && s->KV > 0 && s->H % s->KV == 0); // as Config has it
  assert(s->mask != (s->rows > 0 ? MASK_BIAS : MASK_LENGTHS));
  if (s->d % 8 == 0 && s->d <= 256) return 0;
  return error_set(err,
                   "head_dim %lld: attention on the GPU takes multiples of 8 up to 256; choose "
                   "another hidden_size or num_attention_heads",
                   (long long)s->d);
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
// The same for each row of documents.
static TensorShape column_of_rows(const AttentionShape *s) {
  return (TensorShape){{s->B, s->H, s->T, 1}, {s->H * s->T, 1, s->H, 1}};
}
static TensorShape transposed(TensorShape t) {
  return (TensorShape){{t.size[0], t.size[1], t.size[3], t.size[2]},
                       {t.stride[0], t.stride[1], t.stride[3], t.stride[2]}};
}

// ---- Pieces of both graphs

typedef struct Builder {
  CudnnGraph *g;
  const AttentionShape *s;
  CudnnDescriptor lengths, qkv_offsets, o_offsets, lse_offsets; // of documents; else NULL
  CudnnDescriptor bias;                                         // NULL: there is none
  CudnnDescriptor q, k_transposed, scale;                       // what both graphs read
} Builder;

// Virtual tensors.
static CudnnDescriptor new_scores(Builder b, int type) {
  return graph_tensor(b.g, GRAPH_VIRTUAL, type, scores(b.s), NULL);
}
static CudnnDescriptor new_column(Builder b) {
  return graph_tensor(b.g, GRAPH_VIRTUAL, DATA_FLOAT, column(b.s), NULL);
}
static CudnnDescriptor new_heads(Builder b, int type) {
  return graph_tensor(b.g, GRAPH_VIRTUAL, type, packed_heads(b.s), NULL);
}
static CudnnDescriptor transpose_scores(Builder b, CudnnDescriptor x) {
  const TensorShape shape = transposed(scores(b.s));
  return graph_reshape(b.g, x, graph_tensor(b.g, GRAPH_VIRTUAL, DATA_BFLOAT16, shape, NULL));
}

// Real tensors: `heads` heads of the packed rows of qkv or dqkv; rows of H heads; and statistics of
// rows.
static CudnnDescriptor qkv_tensor(Builder b, int64_t id, int64_t heads) {
  return graph_tensor(b.g, id, DATA_BFLOAT16, in_rows(b.s, heads, attention_row(b.s)),
                      b.qkv_offsets);
}
static CudnnDescriptor qkv_transposed(Builder b, int64_t id) {
  return graph_tensor(b.g, id, DATA_BFLOAT16, transposed(in_rows(b.s, b.s->KV, attention_row(b.s))),
                      b.qkv_offsets);
}
static CudnnDescriptor heads_tensor(Builder b, int64_t id, int type) {
  return graph_tensor(b.g, id, type, in_rows(b.s, b.s->H, b.s->H * b.s->d), b.o_offsets);
}
// Scratch of documents: cuDNN takes the offsets of the gradient that it becomes, times `wider`, as
// it is that much wider, and ignores others.
static CudnnDescriptor scratch_tensor(Builder b, int64_t id, int type, int64_t wider) {
  return graph_tensor(b.g, id, type, in_rows(b.s, b.s->H, attention_row(b.s) * wider),
                      b.qkv_offsets);
}
static CudnnDescriptor statistic(Builder b, int64_t id) {
  return graph_tensor(b.g, id, DATA_FLOAT, b.lengths ? column_of_rows(b.s) : column(b.s),
                      b.lse_offsets);
}

// Products with as many queries or keys as the sequence has.
static CudnnDescriptor scores_of(Builder b, CudnnDescriptor x, CudnnDescriptor y_transposed) {
  const ProductSizes sizes = {.m = b.lengths, .n = b.lengths};
  return graph_matmul(b.g, sizes, x, y_transposed, new_scores(b, DATA_FLOAT));
}
static CudnnDescriptor scores_times(Builder b, CudnnDescriptor scores, CudnnDescriptor x,
                                    CudnnDescriptor out) {
  return graph_matmul(b.g, (ProductSizes){.m = b.lengths, .k = b.lengths}, scores, x, out);
}

// x where `keep`, the mask's value elsewhere.
static CudnnDescriptor mask(Builder b, CudnnDescriptor x, CudnnDescriptor keep) {
  return graph_select(b.g, x, graph_scalar(b.g, ATTENTION_MASK_VALUE), keep,
                      new_scores(b, DATA_FLOAT));
}

// The query, axis 2, or the key, axis 3, of each of the scores x.
static CudnnDescriptor index_of(Builder b, int axis, CudnnDescriptor x) {
  return graph_index(b.g, axis, x, new_scores(b, DATA_INT32));
}

static CudnnDescriptor compare(Builder b, int mode, CudnnDescriptor x, CudnnDescriptor y) {
  return graph_pointwise(b.g, mode, x, y, new_scores(b, DATA_BOOLEAN));
}

// x where both lie in the sequence. Products of its sizes and the causal mask leave out the others,
// too, and on Hopper cost 5 to 10 % less than this mask; but without it the deterministic backward
// matches no engine, and cudnn-frontend builds no graph of documents on other GPUs.
static CudnnDescriptor length_mask(Builder b, CudnnDescriptor x) {
  CudnnDescriptor query = index_of(b, 2, x), key = index_of(b, 3, x);
  query = compare(b, POINTWISE_CMP_LT, query, b.lengths);
  key = compare(b, POINTWISE_CMP_LT, key, b.lengths);
  return mask(b, x, compare(b, POINTWISE_LOGICAL_AND, query, key));
}

// x where key <= query.
static CudnnDescriptor causal_mask(Builder b, CudnnDescriptor x) {
  CudnnDescriptor query = index_of(b, 2, x), key = index_of(b, 3, x);
  return mask(b, x, compare(b, POINTWISE_CMP_GE, query, key));
}

// scale q k^T, plus the bias. padded: masked as length_mask says.
static CudnnDescriptor scaled_scores(Builder b, bool padded) {
  CudnnDescriptor x = scores_of(b, b.q, b.k_transposed);
  x = graph_pointwise(b.g, POINTWISE_MUL, x, b.scale, new_scores(b, DATA_FLOAT));
  if (b.bias) x = graph_pointwise(b.g, POINTWISE_ADD, x, b.bias, new_scores(b, DATA_FLOAT));
  return padded ? length_mask(b, x) : x;
}

// One number for each sequence, or one more.
static CudnnDescriptor of_sequences(Builder b, int64_t id, int type, int64_t count) {
  return graph_tensor(b.g, id, type, (TensorShape){{count, 1, 1, 1}, {1, 1, 1, 1}}, NULL);
}

static Builder builder(CudnnGraph *g, const AttentionShape *s) {
  Builder b = {.g = g, .s = s};
  if (s->rows > 0) {
    b.lengths = of_sequences(b, ATTENTION_LENGTHS, DATA_INT32, s->B);
    b.qkv_offsets = of_sequences(b, ATTENTION_QKV_OFFSETS, DATA_INT64, s->B + 1);
    b.o_offsets = of_sequences(b, ATTENTION_O_OFFSETS, DATA_INT64, s->B + 1);
    b.lse_offsets = of_sequences(b, ATTENTION_LSE_OFFSETS, DATA_INT64, s->B + 1);
  }
  if (s->mask == MASK_BIAS) {
    const int64_t window = s->T * s->T;
    const TensorShape shape = {{s->B, 1, s->T, s->T}, {window, window, s->T, 1}};
    b.bias = graph_tensor(g, ATTENTION_BIAS, DATA_BFLOAT16, shape, NULL);
  }
  b.q = qkv_tensor(b, ATTENTION_Q, s->H);
  b.k_transposed = qkv_transposed(b, ATTENTION_K);
  b.scale = graph_scalar(g, ATTENTION_SCALE);
  return b;
}

// ---- The graphs

static void forward(Builder b) {
  CudnnGraph *g = b.g;
  CudnnDescriptor v = qkv_tensor(b, ATTENTION_V, b.s->KV);
  CudnnDescriptor o = heads_tensor(b, ATTENTION_O, DATA_BFLOAT16);
  CudnnDescriptor lse = statistic(b, ATTENTION_LSE);

  CudnnDescriptor x = causal_mask(b, scaled_scores(b, b.s->mask == MASK_LENGTHS));
  CudnnDescriptor largest = graph_reduce(g, REDUCE_TENSOR_MAX, x, new_column(b));
  x = graph_pointwise(g, POINTWISE_SUB, x, largest, new_scores(b, DATA_FLOAT));
  CudnnDescriptor e = graph_pointwise(g, POINTWISE_EXP, x, NULL, new_scores(b, DATA_FLOAT));
  CudnnDescriptor sum = graph_reduce(g, REDUCE_TENSOR_ADD, e, new_column(b));
  CudnnDescriptor log_sum = graph_pointwise(g, POINTWISE_LOG, sum, NULL, new_column(b));
  graph_pointwise(g, POINTWISE_ADD, largest, log_sum, lse);
  // fp32 here matches no engine
  CudnnDescriptor p = graph_pointwise(g, POINTWISE_DIV, e, sum, new_scores(b, DATA_BFLOAT16));
  scores_times(b, p, v, o);
}

// The gradient of k or v, id ATTENTION_DK or _DV: x^T y for each query head, then the sum over each
// group of heads, which is a reduction from H heads to KV. The heads of documents are real: virtual
// ones would take B T rows, not the `rows` that there are.
static void head_gradient(Builder b, int64_t id, int64_t heads_id, CudnnDescriptor x_transposed,
                          CudnnDescriptor y) {
  const AttentionShape *s = b.s;
  CudnnDescriptor gradient = qkv_tensor(b, id, s->KV);
  if (s->H == s->KV) {
    scores_times(b, x_transposed, y, gradient);
    return;
  }
  CudnnDescriptor heads = b.lengths ? scratch_tensor(b, heads_id, DATA_BFLOAT16, s->H / s->KV)
                                    : new_heads(b, DATA_BFLOAT16);
  graph_reduce(b.g, REDUCE_TENSOR_ADD, scores_times(b, x_transposed, y, heads), gradient);
}

// dq = ds k. A product in fp32, converted afterwards, asks for the sum in no fixed order; one in
// bf16 asks for the deterministic kernel. (The conversion cannot be left out: cuDNN then accepts
// the graph and fails when it runs.)
static void query_gradient(Builder b, bool deterministic, CudnnDescriptor ds, CudnnDescriptor k) {
  CudnnDescriptor dq = qkv_tensor(b, ATTENTION_DQ, b.s->H);
  if (deterministic) {
    scores_times(b, ds, k, dq);
    return;
  }
  CudnnDescriptor sum = b.lengths ? scratch_tensor(b, ATTENTION_DQ_SUM, DATA_FLOAT, 1)
                                  : heads_tensor(b, ATTENTION_DQ_SUM, DATA_FLOAT);
  graph_pointwise(b.g, POINTWISE_IDENTITY, scores_times(b, ds, k, sum), NULL, dq);
}

static void backward(Builder b, bool deterministic) {
  CudnnGraph *g = b.g;
  const AttentionShape *s = b.s;
  CudnnDescriptor v_transposed = qkv_transposed(b, ATTENTION_V);
  CudnnDescriptor o = heads_tensor(b, ATTENTION_O, DATA_BFLOAT16);
  CudnnDescriptor d_o = heads_tensor(b, ATTENTION_DO, DATA_BFLOAT16);
  CudnnDescriptor lse = statistic(b, ATTENTION_LSE);
  CudnnDescriptor row_sum = statistic(b, ATTENTION_ROW_SUM);

  // Row sums of do * o. Without the product with one they cost B H T^2 4 bytes of workspace.
  CudnnDescriptor x = graph_pointwise(g, POINTWISE_MUL, d_o, o, new_heads(b, DATA_FLOAT));
  x = graph_reduce(g, REDUCE_TENSOR_ADD, x, new_column(b));
  graph_pointwise(g, POINTWISE_MUL, x, graph_scalar(g, ATTENTION_ONE), row_sum);

  // p = exp(scale q k^T - lse)
  x = scaled_scores(b, s->mask == MASK_LENGTHS || (b.lengths && deterministic));
  x = graph_pointwise(g, POINTWISE_SUB, x, lse, new_scores(b, DATA_FLOAT));
  x = causal_mask(b, x);
  CudnnDescriptor p = graph_pointwise(g, POINTWISE_EXP, x, NULL, new_scores(b, DATA_FLOAT));
  head_gradient(b, ATTENTION_DV, ATTENTION_DV_HEADS, transpose_scores(b, p), d_o);

  // ds = scale p (do v^T - row sum)
  x = scores_of(b, d_o, v_transposed);
  x = graph_pointwise(g, POINTWISE_SUB, x, row_sum, new_scores(b, DATA_FLOAT));
  x = graph_pointwise(g, POINTWISE_MUL, x, p, new_scores(b, DATA_FLOAT));
  CudnnDescriptor ds = graph_pointwise(g, POINTWISE_MUL, x, b.scale, new_scores(b, DATA_FLOAT));
  head_gradient(b, ATTENTION_DK, ATTENTION_DK_HEADS, transpose_scores(b, ds), b.q);

  CudnnDescriptor k = graph_reshape(g, b.k_transposed, qkv_tensor(b, GRAPH_VIRTUAL, s->KV));
  query_gradient(b, deterministic, ds, k);
}

int attention_graph(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle, const AttentionShape *s,
                    AttentionGraph graph, Error *err) {
  if (attention_shape_check(s, err)) return -1;
  graph_begin(g, api);
  const Builder b = builder(g, s);
  if (graph == ATTENTION_FORWARD)
    forward(b);
  else
    backward(b, graph == ATTENTION_DETERMINISTIC);
  if (graph_finish(g, handle, err) == 0) return 0;
  graph_destroy(g);
  return error_prefix(err, "building the attention graph");
}

// ---- Tables of documents

static size_t aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}
static size_t lengths_bytes(int64_t B) {
  return aligned((size_t)B * sizeof(int32_t));
}
static size_t offsets_bytes(int64_t B) {
  return aligned(((size_t)B + 1) * sizeof(int64_t));
}

size_t attention_table_bytes(int64_t B, int64_t calls) {
  return (size_t)calls * (lengths_bytes(B) + 3 * offsets_bytes(B));
}

AttentionDocuments attention_table_at(const void *table, int64_t B, int64_t call) {
  const char *lengths = (const char *)table + attention_table_bytes(B, call),
             *offsets = lengths + lengths_bytes(B);
  const size_t next = offsets_bytes(B);
  return (AttentionDocuments){(const int32_t *)(const void *)lengths,
                              (const int64_t *)(const void *)offsets,
                              (const int64_t *)(const void *)(offsets + next),
                              (const int64_t *)(const void *)(offsets + 2 * next)};
}

void attention_table_fill(const AttentionShape *s, const int32_t *lengths, int64_t count,
                          int64_t calls, void *table) {
  assert(count <= calls * s->B);
  memset(table, 0, attention_table_bytes(s->B, calls));
  for (int64_t call = 0, row = 0; call < calls; call++) {
    const AttentionDocuments at = attention_table_at(table, s->B, call);
    const int64_t first = count * call / calls, end = count * (call + 1) / calls;
    for (int64_t i = 0; i <= s->B; i++) {
      ((int64_t *)at.qkv_offsets)[i] = row * attention_row(s);
      ((int64_t *)at.o_offsets)[i] = row * s->H * s->d;
      ((int64_t *)at.lse_offsets)[i] = row * s->H;
      if (first + i >= end) continue;
      ((int32_t *)at.lengths)[i] = lengths[first + i];
      row += lengths[first + i];
    }
  }
}

// ---- Choices

AttentionGraph attention_graph_of(const AttentionCall *call) {
  const AttentionShape *s = &call->shape;
  if (!call->backward) return ATTENTION_FORWARD;
  return call->deterministic || (s->rows > 0 && documents_need_deterministic(s->d))
             ? ATTENTION_DETERMINISTIC
             : ATTENTION_BACKWARD;
}

static bool allows(const AttentionCall *call, AttentionGraph graph) {
  return graph == attention_graph_of(call) ||
         (call->backward && call->both_graphs && graph == ATTENTION_DETERMINISTIC);
}

int attention_choose(const AttentionCall *call, AttentionPlan *list, int count) {
  int best = -1;
  for (int i = 0; i < count; i++)
    if (allows(call, list[i].graph) && (best < 0 || list[i].milliseconds < list[best].milliseconds))
      best = i;
  if (best < 0) return -1;
  double *other = &list[best].other_graph;
  for (int i = 0; i < count; i++)
    if (list[i].graph != list[best].graph && (*other == 0 || list[i].milliseconds < *other))
      *other = list[i].milliseconds;
  return best;
}

// True for a plan that was timed and that the call allows. A call that asks for equal bits allows
// only the first configuration.
static bool fits(const AttentionCall *call, const AttentionPlan *p) {
  return isfinite(p->milliseconds) && p->milliseconds > 0 && isfinite(p->other_graph) &&
         p->other_graph >= 0 && p->number >= 0 && (!call->deterministic || p->number == 0) &&
         allows(call, p->graph);
}

// B T H KV d rows mask backward deterministic both_graphs
static ShortText question(const AttentionCall *call) {
  const AttentionShape *s = &call->shape;
  return short_text("%lld %lld %lld %lld %lld %lld %d %d %d %d", (long long)s->B, (long long)s->T,
                    (long long)s->H, (long long)s->KV, (long long)s->d, (long long)s->rows, s->mask,
                    call->backward, call->deterministic, call->both_graphs);
}

// The answer: graph, number and two times.
bool attention_plan_find(const Choices *all, const AttentionCall *call, AttentionPlan *p) {
  const char *answer = choices_find(all, question(call).text);
  int graph, used = 0;
  *p = (AttentionPlan){0};
  if (!answer ||
      sscanf(answer, "%d %d %lf %lf%n", &graph, &p->number, &p->milliseconds, &p->other_graph,
             &used) != 4 ||
      answer[used] != '\n')
    return false;
  p->graph = (AttentionGraph)graph;
  return fits(call, p);
}

void attention_plan_keep(Choices *all, const AttentionCall *call, const AttentionPlan *p) {
  if (!fits(call, p)) return;
  choices_keep(
      all, question(call).text,
      short_text("%d %d %.9g %.9g", (int)p->graph, p->number, p->milliseconds, p->other_graph)
          .text);
}
