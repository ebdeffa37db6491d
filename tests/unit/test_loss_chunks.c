// lm_head's gradient where the loss comes in chunks and gradients are bf16, as on a GPU: chunks add
// up in fp32 and are rounded once, so they cost no accuracy. The sum lies where other gradients
// come later, which may not show in those.
#include "tests/support/bf16.h"
#include "tests/support/gradient.h"
#include "tests/support/small_model.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"

// |got - want| / |want| of gradient `index`.
static double error_of(const SmallModel *got, const SmallModel *want, int index) {
  const ParamTensor *t = &got->llama.tensors[index];
  const double *a = held(true_gradient(got->be, got->llama.tensors, index)),
               *b = held(true_gradient(want->be, want->llama.tensors, index));
  double apart = 0, size = 0;
  for (int64_t i = 0; i < t->rows * t->cols; i++) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return sqrt(apart / size);
}

// How many values of lm_head's gradient in bf16 are not the fp32 ones, rounded once.
static int64_t not_rounded_once(const SmallModel *fp32, const SmallModel *bf16) {
  const ParamTensor *t = bf16->llama.lm_head;
  const float *want = (const float *)fp32->llama.lm_head->grad_folded,
              *got = (const float *)t->grad_folded;
  int64_t count = 0;
  for (int64_t i = 0; i < t->rows * t->cols; i++) count += got[i] != rounded(want[i]);
  return count;
}

typedef struct Errors {
  int64_t rounded_twice; // values of lm_head's, before they are unfolded
  double head, others;   // the worst
} Errors;

// Of gradients in bf16 against the same step in the same chunks with gradients in fp32. (One chunk
// adds up in another order, and what is rounded on the way would be rounded elsewhere.)
static Errors errors(bool tied, int chunks, int micro_batches) {
  SmallShape shape = {
      .bf16 = true, .tied = tied, .micro_batches = micro_batches, .loss_chunks = chunks};
  SmallModel *got = small_open(shape);
  shape.grads_fp32 = true;
  SmallModel *exact = small_open(shape);
  SmallModel *const both[] = {exact, got};
  for (int i = 0; i < 2; i++) {
    small_train(both[i], 0, 1); // so that memory has the gradients of a step before
    if (i == 1) small_copy(exact, got);
    small_gradients(both[i], 1, 1);
  }
  Errors e = {.rounded_twice = not_rounded_once(exact, got)};
  for (int i = 0; i < 2; i++)
    both[i]->be->grads_finish(both[i]->be, both[i]->llama.tensors, both[i]->llama.param_count);
  const int head = (int)(got->llama.lm_head - got->llama.tensors);
  e.head = error_of(got, exact, head);
  for (int i = 0; i < got->llama.param_count; i++) {
    const double other = i == head ? 0 : error_of(got, exact, i);
    if (!(other <= e.others)) e.others = other;
  }
  printf("# %s, %d chunks, %d micro-batches: lm_head %.5f, others at most %.5f\n",
         tied ? "tied" : "untied", chunks, micro_batches, e.head, e.others);
  return e;
}

static void check(bool tied) {
  const int chunks[] = {1, 8, 64};
  for (int i = 0; i < 3; i++) {
    const Errors e = errors(tied, chunks[i], 1);
    assert_int_equal(e.rounded_twice, 0);
    // What one rounding leaves: 0.0015 to 0.0017. Chunks that add up in bf16 leave 0.003 and 0.012.
    assert_true(e.head > 0.001 && e.head < 0.002);
    assert_true(e.others < 0.003); // 0.0023 to 0.0029, with one chunk, too
  }
}

TEST(chunks_cost_lm_heads_gradient_nothing) {
  check(false);
}

TEST(nor_that_of_a_tied_embedding) {
  check(true);
}

// There the gradients of the first are where the second would have its sum.
TEST(micro_batches_add_to_the_gradients_that_are_there) {
  const Errors e = errors(false, 4, 2);
  assert_true(e.head < 0.004 && e.others < 0.005); // 0.0029, 0.0035
}

// On a GPU: 4 bytes a sum, 2 a gradient.
TEST(the_plan_counts_only_what_the_other_gradients_memory_lacks) {
  const ModelConfig wide = {MODEL_SHAPE(256, 512, 4, 4, 4, 64, 1024, 8)};
  ModelConfig long_head = wide;
  long_head.vocab_size = 1 << 20;
  long_head.tie_word_embeddings = true; // whose plain gradient takes half of the sum's bytes
  ModelConfig tied = wide;              // the layers' gradients take more than the other half
  tied.tie_word_embeddings = true;
  const Spec chunks = {.batch = 1, .seq = 8, .loss_chunks = 8, .train = true},
             whole = {.batch = 1, .seq = 8, .loss_chunks = 1, .train = true};
  ParamTensor list[32];
  const ModelConfig *const models[] = {&wide, &long_head, &tied};
  for (int i = 0; i < 3; i++) {
    assert_in_range(params_count(models[i]), 1, 32);
    const ParamBlocks none = {0};
    const size_t with = params_layout(list, models[i], &chunks, none, NULL).grads,
                 without = params_layout(list, models[i], &whole, none, NULL).grads,
                 sum = (size_t)models[i]->vocab_size * 256 * 4;
    if (i != 1) assert_int_equal(with, without);
    if (i == 1) assert_in_range(with - without, sum / 4, sum / 2);
  }
}
