// Attention that stops at documents' ends: a packed batch has the loss and the gradients of its
// documents one by one. In fp64: in fp32 they differ by 1e-6 already where a batch is split.
#include "model/llama.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

#include <math.h>

#include "base/memory.h"
#include "base/rng.h"

enum { B = 2, T = 48, M = B * T, V = 61 };

static const ModelConfig model = {MODEL_SHAPE(32, 48, 2, 4, 2, 8, V, T), .initializer_range = 0.2};

typedef struct Trained {
  Backend *be;
  Llama *llama;
  double loss;
} Trained;

static Trained open_model(void) {
  const Spec asked = {TRAINS(B, T, 1), .usual_documents = M, .longest_document = T, .threads = 2};
  Llama *llama = cpu_llama(&model, asked);
  llama_init_weights(llama, 3);
  return (Trained){.be = llama->be, .llama = llama};
}

// Gradients of a batch of `rows` rows of the B T, and its part of their mean loss.
static void add_batch(Trained *t, Batch batch, int64_t sequences, int64_t rows, bool accumulate) {
  t->llama->spec.batch = sequences;
  t->llama->spec.seq = rows;
  llama_load_batch(t->llama, &batch);
  llama_forward(t->llama);
  llama_backward(t->llama, (double)(sequences * rows) / M, accumulate);
}

static void finish(Trained *t) {
  const AdamW none = {0};
  t->be->grads_finish(t->be, t->llama->tensors, t->llama->param_count);
  t->be->services.set_hyper(t->be, &none);
  t->be->services.step_end(t->be);
  t->loss = t->be->services.step_result(t->be).loss;
}

static double largest_difference(const Trained *got, const Trained *want) {
  double worst = 0;
  for (int i = 0; i < got->llama->param_count; i++) {
    const ParamTensor *a = &got->llama->tensors[i], *b = &want->llama->tensors[i];
    const size_t count = (size_t)(a->rows * a->cols);
    const grad_t *const arrays[][2] = {{a->grad, b->grad}, {a->grad_folded, b->grad_folded}};
    for (int j = 0; j < 2; j++) {
      if (!arrays[j][0]) continue;
      float *x = held(xmalloc(count * sizeof *x)), *y = held(xmalloc(count * sizeof *y));
      got->be->services.read_grad(got->be, x, arrays[j][0], (int64_t)count);
      want->be->services.read_grad(want->be, y, arrays[j][1], (int64_t)count);
      double difference = 0, norm = 0;
      for (size_t k = 0; k < count; k++) {
        difference += pow((double)x[k] - (double)y[k], 2);
        norm += pow((double)y[k], 2);
      }
      worst = fmax(worst, sqrt(difference / norm));
    }
  }
  return worst;
}

static void check(int32_t *lengths, int64_t count) {
  int32_t tokens[M], targets[M];
  for (int i = 0; i < M; i++) {
    tokens[i] = (int32_t)(rng_u64(1, (uint64_t)i) % V);
    targets[i] = (int32_t)(rng_u64(2, (uint64_t)i) % V);
  }
  Trained packed = open_model(), apart = open_model(), joined = open_model();
  const Batch all = {.tokens = tokens, .targets = targets, .lengths = lengths, .documents = count};
  add_batch(&packed, all, B, T, false);
  finish(&packed);
  add_batch(&joined, (Batch){.tokens = tokens, .targets = targets}, B, T, false);
  finish(&joined);
  int64_t first = 0;
  for (int64_t i = 0; i < count; first += lengths[i++])
    add_batch(&apart, (Batch){.tokens = tokens + first, .targets = targets + first}, 1, lengths[i],
              i > 0);
  assert_int_equal(first, M);
  finish(&apart);
  const double loss = fabs(packed.loss - apart.loss),
               gradients = largest_difference(&packed, &apart),
               of_joined = largest_difference(&joined, &apart);
  printf(
      "# %lld documents, the first %d: loss %.1e off, gradients %.1e (bounds 1e-7); joined %.1e\n",
      (long long)count, lengths[0], loss, gradients, of_joined);
  assert_true(loss <= 1e-7 && gradients <= 1e-7);
  assert_true(count == B || of_joined > 1e-3); // the ends matter
}

// Its end at every row of a window.
TEST(a_packed_batch_equals_its_documents) {
  for (int32_t end = 1; end < T; end++) {
    int32_t lengths[] = {end, T - end, T};
    check(lengths, 3);
  }
}

TEST(documents_of_any_length_equal_themselves_alone) {
  int32_t ones[M], whole[] = {T, T}, many[] = {1, 1, 20, 1, 24, 1, 2, 3, 42, 1};
  for (int i = 0; i < M; i++) ones[i] = 1;
  check(ones, M);
  check(whole, B);
  check(many, sizeof many / sizeof *many);
}

// Of two batches the second one's ends count, and without any there are none.
TEST(ends_are_those_of_the_latest_batch) {
  int32_t ones[M], tokens[M], whole[] = {T, T};
  for (int i = 0; i < M; i++) {
    ones[i] = 1;
    tokens[i] = (int32_t)(rng_u64(1, (uint64_t)i) % V);
  }
  Trained once = open_model(), again = open_model();
  Batch batch = {.tokens = tokens, .targets = tokens};
  add_batch(&once, batch, B, T, false);
  finish(&once);
  for (int with = 0; with < 2; with++) {
    add_batch(&again, (Batch){tokens, tokens, ones, M, M}, B, T, false);
    finish(&again);
    add_batch(&again, with ? (Batch){tokens, tokens, whole, B, M} : batch, B, T, false);
    finish(&again);
    assert_true(largest_difference(&once, &again) == 0);
  }
}
