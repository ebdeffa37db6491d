// Rows without a target in a training step on the CPU backend: in fp32, rounded as on a GPU, and in
// FP8. They leave zeros, other rows do not see them, and the update divides by the rows that count.
#include "base/rng.h"
#include "data/batch.h"
#include "tests/support/gradient.h"
#include "tests/support/small_model.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"

enum { M = SMALL_TOKENS, V = SMALL_VOCAB, STRIDE = (V + 15) / 16 * 16 };

// Which rows have no target.
typedef enum Left { NO_ROW, FIRST, LAST, EVERY_THIRD, FIRST_HALF, ALL_ROWS, KINDS } Left;

static bool is_left(Left left, int m) {
  switch (left) {
  case FIRST:
    return m == 0;
  case LAST:
    return m == M - 1;
  case EVERY_THIRD:
    return m % 3 == 1;
  case FIRST_HALF:
    return m < M / 2; // whole chunks, and most of a window's beginning
  case ALL_ROWS:
    return true;
  default:
    return false;
  }
}

// The targets of the rows that are not left, or, where `others`, of those that are. Returns their
// number.
static int make_targets(Left left, bool others, int32_t *targets) {
  int counted = 0;
  for (int m = 0; m < M; m++) {
    const bool counts = is_left(left, m) == others;
    targets[m] = counts ? (int32_t)(rng_u64(5, (uint64_t)m) % V) : NO_TARGET;
    counted += counts;
  }
  return counted;
}

static void load(SmallModel *s, const int32_t *targets) {
  int32_t tokens[M], own[M];
  for (int m = 0; m < M; m++) tokens[m] = (int32_t)(rng_u64(4, (uint64_t)m) % V);
  memcpy(own, targets, sizeof own);
  llama_load_batch(&s->llama, &(Batch){.tokens = tokens, .targets = own});
}

static SmallModel *open_trained(SmallShape shape) {
  SmallModel *s = small_open(shape);
  small_train(s, 0, 2); // FP8 has scales, and memory a step's gradients
  return s;
}

static const struct {
  const char *name;
  SmallShape shape;
} precisions[] = {{"fp32", {.fp8 = false}}, {"bf16", {.bf16 = true}}, {"FP8", {.fp8 = true}}};
enum { PRECISIONS = 3 };

// ---- The head alone

// What head_loss leaves, chunk by chunk: p and its copy by row [M, STRIDE], by column [STRIDE, M],
// s [M]. Copies are NULL but in FP8.
typedef struct Head {
  double loss;
  float *p, *by_row, *by_col, *s;
} Head;

static void fill_nan(void *memory, int64_t count) {
  for (int64_t i = 0; memory && i < count; i++) ((float *)memory)[i] = NAN;
}

static float *zeros(size_t count) {
  return held(xcalloc(count, sizeof(float)));
}

static Head head_of(SmallModel *s, const int32_t *targets) {
  Backend *be = s->be;
  const Acts *acts = &s->llama.acts;
  HeadGradient g = {.p = acts->dlogits, .s = acts->s};
  Head head = {.p = zeros(M * STRIDE), .s = zeros(M)};
  if (g.p.by_row) head.by_row = zeros(M * STRIDE), head.by_col = zeros(M * STRIDE);
  be->services.step_begin(be);
  for (int64_t c = 0, row = 0; c < s->llama.spec.loss_chunks; c++) {
    const HeadChunk h = head_chunk(&s->llama, c);
    fill_nan(acts->logits, h.M * STRIDE);
    fill_nan(g.p.by_row, h.M * STRIDE);
    fill_nan(g.p.by_col, g.p.stride * STRIDE);
    fill_nan(g.s.data, h.M);
    be->head_loss(be, h.M, h.x, h.sumsq, s->llama.lm_head->folded, targets + row, acts->logits,
                  1.0 / M, &g);
    const size_t bytes = (size_t)h.M * STRIDE * sizeof(float);
    memcpy(head.p + row * STRIDE, acts->logits, bytes);
    memcpy(head.s + row, g.s.data, (size_t)h.M * sizeof(float));
    if (head.by_row) memcpy(head.by_row + row * STRIDE, g.p.by_row, bytes);
    for (int64_t v = 0; head.by_col && v < V; v++)
      memcpy(head.by_col + v * M + row, (const float *)g.p.by_col + v * g.p.stride,
             (size_t)h.M * sizeof(float));
    row += h.M;
  }
  be->services.step_end(be);
  head.loss = be->services.step_result(be).loss;
  return head;
}

static void check_row(const Head *got, const Head *all, int m, bool left) {
  const size_t at = (size_t)m * STRIDE, bytes = STRIDE * sizeof(float);
  if (!left) assert_memory_equal(got->p + at, all->p + at, bytes);
  assert_true(left ? got->s[m] == 0 : got->s[m] == all->s[m]);
  for (int v = 0; left && v < STRIDE; v++) assert_true(got->p[at + (size_t)v] == 0);
  for (int v = 0; got->by_row && v < V; v++) {
    const float row = got->by_row[at + (size_t)v], col = got->by_col[v * M + m];
    assert_true(left ? row == 0 && col == 0
                     : row == all->by_row[at + (size_t)v] && col == all->by_col[v * M + m]);
  }
}

static void check_head(SmallModel *s, const char *name) {
  int32_t targets[M];
  make_targets(NO_ROW, false, targets);
  load(s, targets);
  llama_forward(&s->llama);
  Head all = head_of(s, targets);
  for (Left left = NO_ROW; left < KINDS; left++) {
    double loss[2];
    for (int others = 0; others < 2; others++) {
      make_targets(left, others, targets);
      Head got = head_of(s, targets);
      loss[others] = got.loss;
      for (int m = 0; m < M; m++) check_row(&got, &all, m, targets[m] < 0);
    }
    const double error = fabs(loss[0] + loss[1] - all.loss) / all.loss;
    printf("# %s, %d chunks, kind %d: losses %.6f + %.6f, error %.1e, bound 1e-12\n", name,
           (int)s->llama.spec.loss_chunks, (int)left, loss[0], loss[1], error);
    assert_true(error < 1e-12); // observed: at most 3e-15
    if (left == ALL_ROWS) assert_true(loss[0] == 0);
  }
}

TEST(they_leave_zeros_and_other_rows_the_same_bits) {
  for (int i = 0; i < PRECISIONS; i++)
    for (int chunks = 1; chunks <= 8; chunks *= 8) {
      SmallShape shape = precisions[i].shape;
      shape.loss_chunks = chunks;
      SmallModel *s = open_trained(shape);
      check_head(s, precisions[i].name);
    }
}

// ---- The whole backward

typedef struct Gradients {
  double loss;
  double **of; // [param_count]
} Gradients;

static Gradients gradients_of(SmallModel *s, Left left, bool others) {
  Backend *be = s->be;
  Llama *llama = &s->llama;
  int32_t targets[M];
  make_targets(left, others, targets);
  load(s, targets);
  llama_forward(llama);
  llama_backward(llama, 1, false);
  be->grads_finish(be, llama->tensors, llama->param_count);
  be->services.step_end(be);
  Gradients g = {.loss = be->services.step_result(be).loss,
                 .of = held(xcalloc((size_t)llama->param_count, sizeof *g.of))};
  for (int i = 0; i < llama->param_count; i++) g.of[i] = held(true_gradient(be, llama->tensors, i));
  return g;
}

// The worst tensor's |a + b - all| / |all|.
static double apart(const SmallModel *s, const Gradients *a, const Gradients *b,
                    const Gradients *all) {
  double worst = 0;
  for (int i = 0; i < s->llama.param_count; i++) {
    const ParamTensor *t = &s->llama.tensors[i];
    double difference = 0, size = 0;
    for (int64_t k = 0; k < t->rows * t->cols; k++) {
      const double d = a->of[i][k] + b->of[i][k] - all->of[i][k];
      difference += d * d;
      size += all->of[i][k] * all->of[i][k];
    }
    const double error = sqrt(difference / size);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// Gradients are sums over rows: those of two halves of the rows add up to those of all.
TEST(gradients_are_those_of_the_other_rows) {
  for (int chunks = 1; chunks <= 64; chunks *= 8) {
    SmallModel *s = open_trained((SmallShape){.loss_chunks = chunks, .tied = chunks == 8});
    Gradients all = gradients_of(s, NO_ROW, false);
    for (Left left = FIRST; left < KINDS; left++) {
      Gradients counted = gradients_of(s, left, false), others = gradients_of(s, left, true);
      const double error = apart(s, &counted, &others, &all);
      printf("# %d chunks, kind %d: error %.1e, bound 2e-6\n", chunks, (int)left, error);
      assert_true(error < 2e-6); // observed: at most 6.7e-7
    }
  }
}

TEST(where_no_row_counts_all_gradients_are_0) {
  for (int i = 0; i < PRECISIONS; i++)
    for (int chunks = 1; chunks <= 8; chunks *= 8) {
      SmallShape shape = precisions[i].shape;
      shape.loss_chunks = chunks;
      SmallModel *s = open_trained(shape);
      Gradients none = gradients_of(s, ALL_ROWS, false);
      assert_true(none.loss == 0);
      for (int t = 0; t < s->llama.param_count; t++)
        for (int64_t k = 0; k < s->llama.tensors[t].rows * s->llama.tensors[t].cols; k++)
          assert_true(none.of[t][k] == 0);
    }
}

// ---- The update

static const AdamW hyper = {.learning_rate = 1e-3, .weight_decay = 0.1, USUAL_ADAMW};

static StepResult step(SmallModel *s, Left left, double scale, double clip_norm,
                       double gradient_scale) {
  AdamW a = hyper;
  int32_t targets[M];
  a.clip_norm = clip_norm;
  a.gradient_scale = gradient_scale;
  make_targets(left, false, targets);
  load(s, targets);
  llama_forward(&s->llama);
  llama_backward(&s->llama, scale, false);
  llama_update(&s->llama, &a);
  return s->be->services.step_result(s->be);
}

static double near(double got, double want) {
  return fabs(got / want - 1);
}

// The worst tensor's |got - want| / |want| of AdamW's first moment, which holds the gradient.
static double moments_apart(const SmallModel *got, const SmallModel *want) {
  double worst = 0;
  for (int i = 0; i < got->llama.param_count; i++) {
    const ParamTensor *a = &got->llama.tensors[i], *b = &want->llama.tensors[i];
    double difference = 0, size = 0;
    for (int64_t k = 0; k < a->rows * a->cols; k++) {
      const double x = (double)((const float *)a->m)[k], y = (double)((const float *)b->m)[k];
      difference += (x - y) * (x - y);
      size += y * y;
    }
    const double error = sqrt(difference / size);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// The scale of the update does what another weight of each row in the backward does, without
// clipping and with it.
TEST(the_update_divides_by_the_rows_that_count) {
  int32_t targets[M];
  const double all_by_counted = (double)M / make_targets(EVERY_THIRD, false, targets);
  for (int clips = 0; clips < 2; clips++) {
    SmallModel *scaled = small_open((SmallShape){0}), *weighted = small_open((SmallShape){0});
    const double clip = clips ? 0.5 : 0;
    const StepResult a = step(scaled, EVERY_THIRD, 1, clip, all_by_counted),
                     b = step(weighted, EVERY_THIRD, all_by_counted, clip, 1);
    const double moments = moments_apart(scaled, weighted);
    printf("# loss %.9f, norm %.6f; apart: loss %.1e, norm %.1e, moments %.1e; bounds 1e-6, 1e-6, "
           "2e-6\n",
           a.loss, a.grad_norm, near(a.loss, b.loss), near(a.grad_norm, b.grad_norm), moments);
    assert_true(a.grad_norm > 0.5 && a.applied && b.applied);
    assert_true(near(a.loss, b.loss) < 1e-6 && near(a.grad_norm, b.grad_norm) < 1e-6);
    assert_true(moments < 2e-6);
  }
}

// The update comes all the same, and without earlier moments it is decay alone.
TEST(a_step_in_which_no_row_counts_decays) {
  for (int i = 0; i < PRECISIONS; i++) {
    SmallModel *s = small_open(precisions[i].shape), *before = small_open(precisions[i].shape);
    const StepResult result = step(s, ALL_ROWS, 1, 1, 0);
    assert_true(result.loss == 0 && result.grad_norm == 0 && result.applied);
    assert_int_equal(result.updates, 1);
    for (int t = 0; t < s->llama.param_count; t++) {
      const ParamTensor *p = &s->llama.tensors[t];
      const float *was = (const float *)before->llama.tensors[t].master,
                  *is = (const float *)p->master,
                  keep = (float)(1 - hyper.learning_rate * (p->vector ? 0 : hyper.weight_decay));
      for (int64_t k = 0; k < p->rows * p->cols; k++) assert_true(is[k] == keep * was[k]);
    }
    const StepResult next = step(s, NO_ROW, 1, 1, 1);
    assert_true(isfinite(next.loss) && next.loss > 0 && next.grad_norm > 0 && next.applied);
  }
}
