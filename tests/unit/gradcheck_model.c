// Built in double precision: every parameter tensor's gradient against central differences of the
// loss, along random directions and single elements, for grouped queries, tied and untied
// embeddings, odd sizes and llama3 RoPE scaling.
#include "base/rng.h"
#include "kernels/math.h"
#include "model/llama.h"
#include "tests/support/gradient.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

enum { DIRECTIONS = 3, ELEMENTS = 8 };
static const double STEP = 1e-5;
static const double BOUND = 1e-6; // observed: below 7e-8, the differences' own error at this step

typedef struct Case {
  ModelConfig model;
  int64_t B, T, chunks;
  Recompute recompute;
} Case;

static void randomise(Llama *llama, uint64_t seed) {
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *p = &llama->tensors[i];
    real *w = (real *)p->master;
    for (int64_t k = 0; k < p->rows * p->cols; k++)
      w[k] = (p->vector ? 1.0 : 0.0) + 0.3 * rng_normal(seed + (uint64_t)i, (uint64_t)k);
  }
  llama->be->services.refresh(llama->be, llama->tensors, llama->param_count);
}

static double loss_of(Llama *llama) {
  Backend *be = llama->be;
  be->services.refresh(be, llama->tensors, llama->param_count);
  be->services.step_begin(be);
  llama_forward(llama);
  llama_loss(llama, 1);
  be->services.step_end(be);
  return be->services.step_result(be).loss;
}

// d loss / d h of master + h * direction, by the central difference.
static double difference(Llama *llama, const ParamTensor *p, const double *direction) {
  const int64_t n = p->rows * p->cols;
  real *w = (real *)p->master;
  real *saved = held(xmalloc((size_t)n * sizeof *saved));
  memcpy(saved, w, (size_t)n * sizeof *saved);
  double loss[2];
  for (int side = 0; side < 2; side++) {
    for (int64_t k = 0; k < n; k++) w[k] = saved[k] + (side ? STEP : -STEP) * direction[k];
    loss[side] = loss_of(llama);
  }
  memcpy(w, saved, (size_t)n * sizeof *saved);
  return (loss[1] - loss[0]) / (2 * STEP);
}

// Largest error over the probes, relative to the norm of the tensor's gradient g (a random +-1
// direction's derivative has that size).
static double tensor_error(Llama *llama, int index, const double *g) {
  const ParamTensor *p = &llama->tensors[index];
  const int64_t n = p->rows * p->cols;
  double norm = 0, worst = 0;
  for (int64_t k = 0; k < n; k++) norm += g[k] * g[k];
  norm = sqrt(norm);
  assert_true(norm > 1e-6); // a gradient that vanishes would prove nothing
  double *direction = held(xmalloc((size_t)n * sizeof *direction));
  for (int probe = 0; probe < DIRECTIONS + ELEMENTS; probe++) {
    double expected = 0;
    const int64_t single = (int64_t)(rng_u64(77, (uint64_t)probe) % (uint64_t)n);
    for (int64_t k = 0; k < n; k++) {
      const double sign = rng_u64(99 + (uint64_t)probe, (uint64_t)k) & 1 ? 1 : -1;
      direction[k] = probe < DIRECTIONS ? sign : k == single;
      expected += direction[k] * g[k];
    }
    const double error = fabs(difference(llama, p, direction) - expected) / norm;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

static void check_case(const Case *c) {
  const Spec asked = {TRAINS(c->B, c->T, c->chunks), .recompute = c->recompute, .threads = 2};
  Llama *llama = cpu_llama(&c->model, asked);
  Backend *be = llama->be;
  assert_int_equal(act_bytes(&be->spec), 8);
  randomise(llama, 5);
  const int64_t M = c->B * c->T;
  int32_t *tokens = held(xmalloc((size_t)M * 2 * sizeof *tokens)), *targets = tokens + M;
  for (int64_t m = 0; m < 2 * M; m++)
    tokens[m] = (int32_t)(rng_u64(3, (uint64_t)m) % (uint64_t)c->model.vocab_size);
  for (int64_t m = 1; m < M; m += 4) targets[m] = NO_TARGET;
  llama_load_batch(llama, &(Batch){.tokens = tokens, .targets = targets});

  // Two accumulated halves of the same batch make one whole, so that accumulation is under test,
  // too.
  be->services.step_begin(be);
  for (int half = 0; half < 2; half++) {
    llama_forward(llama);
    llama_backward(llama, 0.5, half > 0);
  }
  be->grads_finish(be, llama->tensors, llama->param_count);
  double worst = 0;
  for (int i = 0; i < llama->param_count; i++) {
    double *gradient = held(true_gradient(be, llama->tensors, i));
    const double error = tensor_error(llama, i, gradient);
    if (!(error <= BOUND)) printf("# parameter %d: %.2e\n", i, error);
    if (!(error <= worst)) worst = error;
  }
  printf("# %d tensors, worst relative error %.2e, bound %.0e\n", llama->param_count, worst, BOUND);
  assert_true(worst <= BOUND);
}

static ModelConfig small_model(void) {
  return (ModelConfig){MODEL_SHAPE(16, 24, 2, 4, 2, 4, 19, 128)};
}

TEST(grouped_queries_untied) {
  check_case(&(Case){small_model(), 2, 9, 1, RECOMPUTE_NONE});
}

TEST(one_kv_head_tied_in_three_loss_chunks_with_the_mlp_made_again) {
  ModelConfig m = small_model();
  m.num_key_value_heads = 1;
  m.tie_word_embeddings = true;
  check_case(&(Case){m, 3, 5, 3, RECOMPUTE_MLP});
}

TEST(whole_layers_made_again) {
  ModelConfig m = small_model();
  m.num_hidden_layers = 3;
  check_case(&(Case){m, 2, 6, 1, RECOMPUTE_LAYER});
}

TEST(odd_sizes) {
  ModelConfig m = small_model();
  m.hidden_size = 15, m.intermediate_size = 21, m.num_attention_heads = 3,
  m.num_key_value_heads = 3, m.head_dim = 6;
  m.vocab_size = 13, m.num_hidden_layers = 1;
  check_case(&(Case){m, 1, 7, 1, RECOMPUTE_NONE});
}

// Matrices of one row, which are no norm weights: out and down at a width of 1.
TEST(a_width_of_one) {
  ModelConfig m = small_model();
  m.hidden_size = m.intermediate_size = 1, m.rms_norm_eps = 0.5;
  check_case(&(Case){m, 2, 5, 1, RECOMPUTE_NONE});
}

TEST(llama3_scaling_over_several_attention_blocks) {
  ModelConfig m = small_model();
  m.num_hidden_layers = 1;
  m.rope_scaling.type = ROPE_LLAMA3;
  m.rope_scaling.factor = 8, m.rope_scaling.low_freq_factor = 1,
  m.rope_scaling.high_freq_factor = 4;
  m.rope_scaling.original_max_position_embeddings = 16;
  check_case(&(Case){m, 1, 131, 1, RECOMPUTE_NONE});
}
