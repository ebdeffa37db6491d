// When a step's activations have no values (kernels/services.h: Loan). What acts_read frees is
// poisoned, and the model has the same bits. What acts_needed was not asked for is still poisoned.
#include "tests/support/small_model.h"
#include "tests/support/test.h"

enum { LAYERS = 2, POISON = 0xff };

static const Llama *llama;
static bool poisoned[LAYERS];
static int reads, needs;

// Layer 0 lends nothing.
static unsigned char *begin_of(int64_t layer) {
  return (unsigned char *)llama->acts.layers[layer].x.data;
}

static void acts_read(Backend *be, int64_t layer) {
  assert_ptr_equal(be, llama->be);
  reads++;
  if (layer == 0) return;
  memset(begin_of(layer), POISON, (size_t)(begin_of(layer + 1) - begin_of(layer)));
  poisoned[layer] = true;
}

static void acts_needed(Backend *be, int64_t layer) {
  assert_ptr_equal(be, llama->be);
  needs++;
  for (int64_t l = 1; l < LAYERS; l++) {
    for (const unsigned char *p = begin_of(l); poisoned[l] && p < begin_of(l + 1); p++)
      assert_int_equal(*p, POISON);
    if (l <= layer) poisoned[l] = false;
  }
}

static void check(SmallShape shape) {
  enum { BATCHES = 2, VALIDATIONS = 2 };
  shape.micro_batches = 2;
  SmallModel *plain = small_open(shape), *lends = small_open(shape);
  llama = &lends->llama;
  memset(poisoned, 0, sizeof poisoned);
  reads = needs = 0;
  lends->be->services.acts_read = acts_read;
  lends->be->services.acts_needed = acts_needed;
  const double loss = small_train(plain, 0, BATCHES).loss;
  assert_true(loss == small_train(lends, 0, BATCHES).loss);
  assert_true(small_validation_loss(plain, VALIDATIONS) ==
              small_validation_loss(lends, VALIDATIONS));
  assert_true(small_train(plain, 2, 3).loss == small_train(lends, 2, 3).loss);
  assert_true(small_equal(plain, lends));
  assert_int_equal(reads, LAYERS * (BATCHES + 1) * 2);
  assert_true(needs >= reads + LAYERS * VALIDATIONS);
}

TEST(activations_are_free_from_a_backward_to_the_next_forward) {
  static const Recompute recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_MLP, RECOMPUTE_LAYER};
  for (int i = 0; i < 6; i++) {
    const SmallShape shape = {.recompute = recomputes[i % 3], .fp8 = i >= 3};
    check(shape);
    check((SmallShape){.recompute = shape.recompute, .fp8 = shape.fp8, .recompute_layers = 1});
  }
}
