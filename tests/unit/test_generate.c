// Generation: the cached, token-by-token pass against the training forward, and the sampler.
#include <float.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "model/generate.h"
#include "tests/support/fixtures.h"
#include "tests/support/safe_values.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const SampleOptions greedy = {.temperature = 0, .top_p = 1, .max_tokens = 1};

typedef struct Written {
  int32_t ids[64];
  int count, stop_after; // stop_after 0 = never
} Written;

// Returns how many tokens were written, -1 for an error.
static int generate(Generator *g, const int32_t *prompt, int64_t count,
                    const SampleOptions *options, Written *w, Error *err) {
  if (generator_start(g, prompt, count, options, err) != 0) return -1;
  while ((w->stop_after == 0 || w->count < w->stop_after) &&
         generator_next(g, &w->ids[w->count], err) == 1)
    w->count++;
  return w->count;
}

// The likeliest next token after ids[0 .. count) according to the training forward, and its lead
// over the second.
static int32_t next_by_training_forward(TinyRun *run, const int32_t *ids, int64_t count,
                                        float *lead) {
  int32_t tokens[8] = {0}, targets[8] = {0};
  memcpy(tokens, ids, (size_t)count * sizeof *ids);
  llama_load_batch(&run->llama, &(Batch){.tokens = tokens, .targets = targets});
  llama_forward(&run->llama);
  row_logits(&run->llama, count - 1);
  float row[11];
  run->be->services.read_act(run->be, row, run->llama.acts.logits, 11);
  int32_t best = 0;
  for (int32_t v = 1; v < 11; v++)
    if (row[v] > row[best]) best = v;
  *lead = INFINITY;
  for (int32_t v = 0; v < 11; v++)
    if (v != best && row[best] - row[v] < *lead) *lead = row[best] - row[v];
  return best;
}

TEST(cached_generation_agrees_with_the_training_forward) {
  TinyRun *run = tiny_run_open("\"initializer_range\": 0.4");
  int checked = 0;
  for (uint64_t seed = 0; seed < 20; seed++) {
    llama_init_weights(&run->llama, seed);
    Generator *g = tiny_generator(run);
    int32_t ids[8];
    for (int i = 0; i < 8; i++) ids[i] = (int32_t)(rng_u64(seed, (uint64_t)i) % 11);
    for (int64_t prompt = 1; prompt <= 7; prompt++) {
      // Two tokens: the second one comes from a single-row pass over the cache.
      SampleOptions two = greedy;
      two.max_tokens = 2;
      Written w = {.count = 0};
      assert_int_equal(generate(g, ids, prompt, &two, &w, &err), 2);
      float lead;
      int32_t longer[8];
      memcpy(longer, ids, sizeof longer);
      const int32_t first = next_by_training_forward(run, ids, prompt, &lead);
      if (lead > 1e-4f) assert_int_equal(w.ids[0], first), checked++;
      longer[prompt] = w.ids[0];
      const int32_t second = next_by_training_forward(run, longer, prompt + 1, &lead);
      if (lead > 1e-4f) assert_int_equal(w.ids[1], second), checked++;
    }
  }
  printf("# %d of 280 tokens compared (the rest had no clear winner)\n", checked);
  assert_true(checked > 250);
}

// The likeliest token after every beginning of every fixture's text, by transformers.
TEST(greedy_tokens_are_those_of_transformers) {
  for (int f = 0; f < FIXTURES; f++) {
    Rig rig;
    rig_open(&rig, fixtures[f], 1, 1, rig_cpu);
    if (rig.lengths) { // not one text
      rig_close(&rig);
      continue;
    }
    const int64_t V = rig.model.vocab_size, T = rig.llama.spec.seq;
    const SafeTensor *expected = rig_expected(&rig, "logits", "");
    Generator *g = generator_create(&rig.llama, T, &err);
    int close = 0;
    for (int64_t m = 0; m < rig.tokens_count; m++) {
      float row[256], second = -INFINITY;
      int32_t best = 0, id;
      assert_true(V <= 256);
      safe_floats(&rig.expected, expected, m * V, V, row);
      for (int32_t v = 1; v < V; v++)
        if (row[v] > row[best]) best = v;
      for (int32_t v = 0; v < V; v++)
        if (v != best && row[v] > second) second = row[v];
      must(generator_start(g, rig.input_ids + m / T * T, m % T + 1, &greedy, &err), &err);
      assert_int_equal(generator_next(g, &id, &err), 1);
      if (row[best] - second < 1e-4f)
        close++; // logits of ours differ by less than 1e-5
      else
        assert_int_equal(id, best);
    }
    printf("# %s: %d of %d had no clear winner\n", rig.fixture, close, (int)rig.tokens_count);
    assert_true(close < rig.tokens_count / 10);
    generator_destroy(g);
    rig_close(&rig);
  }
}

// Of e4m3 weights, and of a model whose weights have the copies' values.
TEST(e4m3_weights_write_what_their_values_write) {
  static const ModelConfig model = {MODEL_SHAPE(32, 48, 2, 4, 2, 8, 40, 64),
                                    .initializer_range = 0.3};
  enum { WRITTEN = 60 };
  const int32_t prompt[] = {3, 1, 4, 1, 5};
  const SampleOptions options = {.temperature = 1, .top_p = 1, .seed = 5, .max_tokens = WRITTEN};
  const Spec asked = {.batch = 1, .seq = 4, .loss_chunks = 1, .context = 64, .threads = 1};
  Spec with = asked;
  with.fp8_weights = true;
  Llama *copies = cpu_llama(&model, with), *values = cpu_llama(&model, asked),
        *exact = cpu_llama(&model, asked);
  llama_init_weights(copies, 2);
  llama_init_weights(values, 2);
  llama_init_weights(exact, 2);
  ScalingState *scales = held(xcalloc((size_t)scaling_count(&model), sizeof *scales));
  copies->be->services.scalings_read(copies->be, scales);
  for (int i = 0; i < copies->param_count; i++) {
    const ParamTensor *t = &copies->tensors[i];
    const Operand *W = t->folded.fp8 ? &t->folded : &t->compute;
    if (!W->fp8) continue;
    assert_null(W->data);
    assert_null(W->by_col);
    const int64_t count = t->rows * t->cols;
    float *of_copy = held(xmalloc((size_t)count * sizeof *of_copy));
    copies->be->services.read_act(copies->be, of_copy, (act_t *)W->by_row, count);
    for (int64_t k = 0; k < count; k++) of_copy[k] /= scales[W->scaling].scale;
    values->be->services.write_master(values->be, &values->tensors[i], 0, of_copy, count);
  }
  values->be->services.refresh(values->be, values->tensors, values->param_count);
  Llama *of[] = {copies, values, exact};
  Written w[3] = {{.count = 0}};
  for (int i = 0; i < 3; i++) {
    Generator *g = generator_create(of[i], 64, &err);
    assert_int_equal(generate(g, prompt, 5, &options, &w[i], &err), WRITTEN);
    generator_destroy(g);
  }
  assert_memory_equal(w[0].ids, w[1].ids, sizeof w[0].ids);
  assert_memory_not_equal(w[0].ids, w[2].ids, sizeof w[0].ids);
}

TEST(a_full_context_moves_on_from_its_newer_half) {
  TinyRun *run = tiny_run_drawn("\"initializer_range\": 0.4", 2);
  Generator *g = tiny_generator(run);
  const int32_t prompt[] = {3};
  SampleOptions many = greedy;
  many.max_tokens = 40;
  Written w = {.count = 0};
  assert_int_equal(generate(g, prompt, 1, &many, &w, &err), 40);
  // Token 9 was written after the cache (prompt + 7 tokens) was full: it follows the last 4 of
  // those and token 8.
  int32_t window[5];
  memcpy(window, w.ids + 3, sizeof window);
  float lead;
  const int32_t expected = next_by_training_forward(run, window, 5, &lead);
  assert_true(lead > 1e-4f);
  assert_int_equal(w.ids[8], expected);
}

TEST(the_same_seed_writes_the_same_text_and_can_be_stopped) {
  TinyRun *run = tiny_run_drawn("\"initializer_range\": 0.4", 2);
  Generator *g = tiny_generator(run);
  const int32_t prompt[] = {1, 2, 3};
  SampleOptions options = {.temperature = 1, .top_p = 1, .seed = 5, .max_tokens = 30};
  Written a = {.count = 0}, b = {.count = 0}, c = {.count = 0}, stopped = {.stop_after = 4};
  assert_int_equal(generate(g, prompt, 3, &options, &a, &err), 30);
  assert_int_equal(generate(g, prompt, 3, &options, &b, &err), 30);
  assert_memory_equal(a.ids, b.ids, sizeof a.ids);
  assert_int_equal(generate(g, prompt, 3, &options, &stopped, &err), 4);
  options.seed = 6;
  generate(g, prompt, 3, &options, &c, &err);
  assert_memory_not_equal(a.ids, c.ids, sizeof a.ids);
}

static void *(*real_alloc)(Backend *be, size_t bytes);
static size_t allocated;

static void *counting_alloc(Backend *be, size_t bytes) {
  allocated += bytes;
  return real_alloc(be, bytes);
}

TEST(the_memory_plan_books_the_generator) {
  TinyRun *run = tiny_run_open("");
  Spec spec = run->llama.spec;
  const MemoryPlan without = memory_plan(&run->llama.config, &spec);
  spec.context = 8;
  const MemoryPlan with = memory_plan(&run->llama.config, &spec);
  size_t sum = 0;
  for (int i = 0; i < with.count; i++) sum += with.items[i].bytes;
  assert_int_equal(sum, with.total_bytes);

  real_alloc = run->be->services.alloc;
  run->be->services.alloc = counting_alloc;
  allocated = 0;
  tiny_generator(run);
  assert_true(allocated > 0);
  assert_int_equal(with.total_bytes - without.total_bytes, allocated);
}

TEST(prompts_that_do_not_fit_the_vocabulary_are_refused) {
  TinyRun *run = tiny_run_drawn("", 2);
  Generator *g = tiny_generator(run);
  const int32_t prompt[] = {1, 11};
  Written w = {.count = 0};
  expect_error(generate(g, prompt, 2, &greedy, &w, &err), &err, "11");
  assert_int_equal(generate(g, prompt, 0, &greedy, &w, &err), -1);
  assert_int_equal(w.count, 0);
}

static int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u) {
  const Draw draw = sample_draw(options);
  return choose_token(logits, V, &draw, u);
}

// Counts over many draws of u, evenly spaced.
static void counts(const float *logits, int V, const SampleOptions *options, int draws,
                   int *count) {
  memset(count, 0, (size_t)V * sizeof *count);
  for (int i = 0; i < draws; i++) {
    float copy[8];
    memcpy(copy, logits, (size_t)V * sizeof *copy);
    count[sample_token(copy, V, options, ((double)i + 0.5) / draws)]++;
  }
}

TEST(samples_follow_the_distribution) {
  const float logits[] = {0, 2, 1, -1}; // probabilities 0.0871, 0.6439, 0.2369, 0.0321
  const double p[] = {0.087144, 0.643914, 0.236883, 0.032059};
  int count[4];
  counts(logits, 4, &(SampleOptions){.temperature = 1, .top_p = 1}, 10000, count);
  for (int v = 0; v < 4; v++)
    assert_in_range(count[v], (int)(10000 * p[v]) - 1, (int)(10000 * p[v]) + 2);
  counts(logits, 4, &(SampleOptions){.temperature = 1, .top_p = 1, .top_k = 2}, 10000, count);
  assert_int_equal(count[0] + count[3], 0);
  assert_in_range(count[1], 7309, 7312); // 0.6439 / (0.6439 + 0.2369) = 0.73106
  counts(logits, 4, &(SampleOptions){.temperature = 1, .top_p = 0.7}, 10000, count);
  assert_int_equal(count[0] + count[3], 0);
  counts(logits, 4, &(SampleOptions){.temperature = 1, .top_p = 0.6}, 100, count);
  assert_int_equal(count[1], 100);
  counts(logits, 4, &(SampleOptions){.temperature = 1, .top_p = 0}, 100, count);
  assert_int_equal(count[1], 100);
  counts(logits, 4, &(SampleOptions){.temperature = 0.01, .top_p = 1}, 100, count);
  assert_int_equal(count[1], 100);
}

enum { MANY = 1000 }; // tokens; no multiple of the sampler's blocks

typedef enum LogitKind { STEPS, SMOOTH, EQUAL, PEAKED, MASKED, LOGIT_KINDS } LogitKind;

static void random_logits(float *logits, LogitKind kind, uint64_t key) {
  for (int v = 0; v < MANY; v++) {
    const double x = rng_normal(key, (uint64_t)v);
    logits[v] = (float)floor(8 * 3 * x) / 8; // in steps, so that many are equal
    if (kind == SMOOTH) logits[v] = (float)(0.1 * x);
    if (kind == EQUAL) logits[v] = -2.5f;
    if (kind == PEAKED && v % 300 == 7) logits[v] = (float)(20 + x);
    if (kind == MASKED && v % 20 != 3) logits[v] = -INFINITY;
  }
}

static int by_falling_logit(const void *a_, const void *b_) {
  const float *const *a = a_, *const *b = b_;
  return **a != **b ? (**a > **b ? -1 : 1) : *a < *b ? -1 : 1;
}

// What sample_token does by its definition, with a sort of all tokens.
typedef struct Sorted {
  int32_t id;     // for u
  double margin;  // how far u is from the next token's share
  int32_t last;   // of the kept tokens, which it tells: they are a beginning of the order
  double share;   // of `last`
  bool last_sure; // no rounding moves `last`
} Sorted;

static Sorted sample_by_sorting(const float *logits, const SampleOptions *o, double u) {
  const float *order[MANY];
  double weight[MANY], sum = 0, margin = 1;
  for (int v = 0; v < MANY; v++) order[v] = logits + v;
  qsort(order, MANY, sizeof *order, by_falling_logit);
  const float largest = *order[0];
  int kept = o->top_k > 0 && o->top_k < MANY ? (int)o->top_k : MANY;
  if (kept == MANY && !(o->top_p < 1))
    for (int v = 0; v < MANY; v++) order[v] = logits + v; // in the order of ids
  for (int i = 0; i < kept; i++)
    sum += weight[i] = exp(((double)*order[i] - largest) / o->temperature);
  if (o->top_p < 1) {
    const double wanted = o->top_p * sum;
    int i = 0;
    for (sum = 0; i < kept && (i == 0 || sum < wanted); i++) sum += weight[i];
    kept = i;
    margin = fabs(sum - wanted) / sum;
    if (i > 1) margin = fmin(margin, fabs(sum - weight[i - 1] - wanted) / sum);
  }
  Sorted s = {.last = (int32_t)(order[kept - 1] - logits),
              .share = weight[kept - 1] / sum,
              .last_sure = margin > 1e-6};
  double reached = 0;
  int i = 0;
  while (i < kept - 1 && (reached += weight[i]) <= u * sum) i++;
  margin = fmin(margin, fabs(reached - u * sum) / sum);
  s.margin = fmin(margin, fabs(reached - weight[i] - u * sum) / sum);
  s.id = (int32_t)(order[i] - logits);
  return s;
}

static int32_t sample_copy(const float *logits, const SampleOptions *options, double u) {
  float copy[MANY];
  memcpy(copy, logits, sizeof copy);
  return sample_token(copy, MANY, options, u);
}

TEST(sampling_agrees_with_a_sort_of_all_tokens) {
  const SampleOptions options[] = {{.temperature = 1, .top_p = 1},
                                   {.temperature = 0.3, .top_p = 1},
                                   {.temperature = 1, .top_p = 0.9},
                                   {.temperature = 2, .top_p = 0.999},
                                   {.temperature = 1, .top_p = 0.5},
                                   {.temperature = 1, .top_p = 1e-9},
                                   {.temperature = 1, .top_p = 0},
                                   {.temperature = 1, .top_p = 1, .top_k = 1},
                                   {.temperature = 5, .top_p = 1, .top_k = 2},
                                   {.temperature = 9, .top_p = 1, .top_k = 16},
                                   {.temperature = 9, .top_p = 1, .top_k = 17},
                                   {.temperature = 9, .top_p = 1, .top_k = 70},
                                   {.temperature = 9, .top_p = 0.7, .top_k = 12},
                                   {.temperature = 1, .top_p = 0.8, .top_k = 999},
                                   {.temperature = 5, .top_p = 1, .top_k = 1000},
                                   {.temperature = 5, .top_p = 0.95, .top_k = 1001}};
  enum { CASES = sizeof options / sizeof *options, DRAWS = 100, ALL = LOGIT_KINDS * CASES * DRAWS };
  float logits[MANY];
  int close = 0, kept_sets = 0;
  for (int c = 0; c < CASES; c++)
    for (int n = 0; n < LOGIT_KINDS * DRAWS; n++) {
      const uint64_t draw = (uint64_t)(n / LOGIT_KINDS);
      const LogitKind kind = (LogitKind)(n % LOGIT_KINDS);
      const double u = rng_uniform(99, draw);
      random_logits(logits, kind, draw);
      const Sorted sorted = sample_by_sorting(logits, &options[c], u);
      const bool exact = kind == EQUAL; // all sums are of ones
      // Weights are of fp32: of 300000 draws none with a margin above 5e-8 differs.
      if (sorted.margin >= 1e-6 || exact)
        assert_int_equal(sample_copy(logits, &options[c], u), sorted.id);
      else
        close++;
      if ((sorted.last_sure || exact) && sorted.share > 1e-5) {
        assert_int_equal(sample_copy(logits, &options[c], 1 - sorted.share / 2), sorted.last);
        kept_sets++;
      }
    }
  printf("# %d of %d draws were too close to compare; %d sets of kept tokens are equal\n", close,
         ALL, kept_sets);
  assert_true(close < ALL / 100);
  assert_true(kept_sets > ALL / 2);
}

TEST(ties_go_to_the_lower_id) {
  const float logits[] = {1, 3, 3, 2};
  const SampleOptions one = {.temperature = 1, .top_k = 1, .top_p = 1};
  for (int i = 0; i < 2; i++) {
    float copy[4];
    memcpy(copy, logits, sizeof copy);
    assert_int_equal(sample_token(copy, 4, i ? &one : &greedy, 0.9), 1);
  }
  float zeros[] = {-1, -0.0f, 0, -0.0f};
  const SampleOptions two = {.temperature = 1, .top_k = 2, .top_p = 1};
  assert_int_equal(sample_token(zeros, 4, &two, 0.9), 2);
}

// Of some temperatures 1 / temperature is no float any more, or no double.
TEST(the_least_temperatures_take_the_likeliest) {
  const double temperatures[] = {1e-3, 1e-38, 1e-39, DBL_MIN, 5e-324};
  for (int i = 0; i < 5; i++)
    for (int draws = 0; draws < 30; draws++) {
      float logits[] = {1, 2.9f, 3, 2};
      const SampleOptions cold = {.temperature = temperatures[i],
                                  .top_k = draws % 3 == 1 ? 3 : 0,
                                  .top_p = draws % 3 == 2 ? 0.99 : 1};
      assert_int_equal(sample_token(logits, 4, &cold, (draws + 0.5) / 30), 2);
    }
}

TEST(logits_that_are_not_finite_are_refused) {
  const SampleOptions sampled = {.temperature = 1, .top_p = 1};
  for (int at = 0; at < MANY; at += 37)
    for (int i = 0; i < 4; i++) {
      float logits[MANY];
      random_logits(logits, STEPS, 1);
      logits[at] = i < 2 ? NAN : INFINITY;
      assert_int_equal(sample_token(logits, MANY, i % 2 ? &sampled : &greedy, 0.5), -1);
    }
  float none[] = {-INFINITY, -INFINITY}, one[] = {-INFINITY, 2};
  assert_int_equal(sample_token(none, 2, &greedy, 0.5), -1);
  for (int i = 0; i < 100; i++) {
    one[1] = 2;
    assert_int_equal(sample_token(one, 2, &sampled, (i + 0.5) / 100), 1);
  }
}

TEST(several_tokens_may_end_a_text) {
  TinyRun *run = tiny_run_drawn("\"initializer_range\": 0.4", 2);
  Generator *g = tiny_generator(run);
  const int32_t prompt[] = {3};
  SampleOptions options = {.temperature = 1, .top_p = 1, .seed = 5, .max_tokens = 30};
  Written all = {.count = 0}, some = {.count = 0};
  assert_int_equal(generate(g, prompt, 1, &options, &all, &err), 30);
  int64_t until = 0; // the first of two tokens
  while (all.ids[until] != all.ids[5] && all.ids[until] != all.ids[9]) until++;
  sample_options_end(&options, all.ids[9]);
  sample_options_end(&options, -1);
  sample_options_end(&options, all.ids[5]);
  assert_int_equal(options.end_count, 2);
  assert_int_equal(generate(g, prompt, 1, &options, &some, &err), until);
  assert_memory_equal(all.ids, some.ids, (size_t)until * sizeof *all.ids);
}

TEST(a_model_with_nan_ends_in_a_sentence) {
  TinyRun *run = tiny_run_drawn("", 2);
  const ParamTensor *norm =
      &run->llama.tensors[param_index(&run->llama.config, PARAM_FINAL_NORM, -1)];
  const float nan[16] = {[3] = NAN};
  run->be->services.write_master(run->be, norm, 0, nan, norm->cols);
  run->be->services.refresh(run->be, run->llama.tensors, run->llama.param_count);
  Generator *g = tiny_generator(run);
  const int32_t prompt[] = {3};
  int32_t id;
  must(generator_start(g, prompt, 1, &greedy, &err), &err);
  expect_error(generator_next(g, &id, &err), &err, "not finite");
}
