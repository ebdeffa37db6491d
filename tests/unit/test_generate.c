// Generation: the cached, token-by-token pass against the training forward, and the sampler.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka_all.h"

#include "base/rng.h"
#include "model/generate.h"
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
  llama_load_batch(&run->llama, tokens, targets);
  llama_forward(&run->llama);
  const Acts *a = &run->llama.acts;
  run->be->lm_head(run->be, 8, a->x_final, a->final_sumsq,
                   run->llama.tensors[param_index(&run->llama.config, PARAM_LM_HEAD, -1)].folded,
                   a->logits);
  float logits[8 * 11];
  run->be->read_act(run->be, logits, run->llama.acts.logits, 8 * 11);
  const float *row = logits + (count - 1) * 11;
  int32_t best = 0;
  for (int32_t v = 1; v < 11; v++)
    if (row[v] > row[best]) best = v;
  *lead = INFINITY;
  for (int32_t v = 0; v < 11; v++)
    if (v != best && row[best] - row[v] < *lead) *lead = row[best] - row[v];
  return best;
}

static void cached_generation_agrees_with_the_training_forward(void **state) {
  (void)state;
  TinyRun run;
  Error err;
  tiny_run_open(&run, "\"initializer_range\": 0.4");
  int checked = 0;
  for (uint64_t seed = 0; seed < 20; seed++) {
    llama_init_weights(&run.llama, seed);
    Generator *g = generator_create(&run.llama, 8, &err);
    assert_non_null(g);
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
      const int32_t first = next_by_training_forward(&run, ids, prompt, &lead);
      if (lead > 1e-4f) assert_int_equal(w.ids[0], first), checked++;
      longer[prompt] = w.ids[0];
      const int32_t second = next_by_training_forward(&run, longer, prompt + 1, &lead);
      if (lead > 1e-4f) assert_int_equal(w.ids[1], second), checked++;
    }
    generator_destroy(g);
  }
  printf("# %d of 280 tokens compared (the rest had no clear winner)\n", checked);
  assert_true(checked > 250);
  tiny_run_close(&run);
}

static void a_full_context_moves_on_from_its_newer_half(void **state) {
  (void)state;
  TinyRun run;
  Error err;
  tiny_run_open(&run, "\"initializer_range\": 0.4");
  llama_init_weights(&run.llama, 2);
  Generator *g = generator_create(&run.llama, 8, &err);
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
  const int32_t expected = next_by_training_forward(&run, window, 5, &lead);
  assert_true(lead > 1e-4f);
  assert_int_equal(w.ids[8], expected);
  generator_destroy(g);
  tiny_run_close(&run);
}

static void the_same_seed_writes_the_same_text_and_can_be_stopped(void **state) {
  (void)state;
  TinyRun run;
  Error err;
  tiny_run_open(&run, "\"initializer_range\": 0.4");
  llama_init_weights(&run.llama, 2);
  Generator *g = generator_create(&run.llama, 8, &err);
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
  generator_destroy(g);
  tiny_run_close(&run);
}

static void *(*real_alloc)(Backend *be, size_t bytes);
static size_t allocated;

static void *counting_alloc(Backend *be, size_t bytes) {
  allocated += bytes;
  return real_alloc(be, bytes);
}

static void the_memory_plan_books_the_generator(void **state) {
  (void)state;
  TinyRun run;
  Error err;
  tiny_run_open(&run, "");
  MemoryPlan without, with;
  RunShape shape = run.llama.shape;
  memory_plan(&without, &run.llama.config, &shape, run.be);
  shape.context = 8;
  memory_plan(&with, &run.llama.config, &shape, run.be);
  size_t sum = 0;
  for (int i = 0; i < with.count; i++) sum += with.items[i].bytes;
  assert_int_equal(sum, with.total_bytes);

  real_alloc = run.be->alloc;
  run.be->alloc = counting_alloc;
  allocated = 0;
  Generator *g = generator_create(&run.llama, 8, &err);
  assert_non_null(g);
  assert_true(allocated > 0);
  assert_int_equal(with.total_bytes - without.total_bytes, allocated);
  generator_destroy(g);
  tiny_run_close(&run);
}

static void prompts_that_do_not_fit_the_vocabulary_are_refused(void **state) {
  (void)state;
  TinyRun run;
  Error err;
  tiny_run_open(&run, "");
  llama_init_weights(&run.llama, 2);
  Generator *g = generator_create(&run.llama, 8, &err);
  const int32_t prompt[] = {1, 11};
  Written w = {.count = 0};
  assert_int_equal(generate(g, prompt, 2, &greedy, &w, &err), -1);
  assert_non_null(strstr(err.text, "11"));
  assert_int_equal(generate(g, prompt, 0, &greedy, &w, &err), -1);
  assert_int_equal(w.count, 0);
  generator_destroy(g);
  tiny_run_close(&run);
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

static void samples_follow_the_distribution(void **state) {
  (void)state;
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

static void ties_go_to_the_lower_id(void **state) {
  (void)state;
  float logits[] = {1, 3, 3, 2};
  assert_int_equal(sample_token(logits, 4, &greedy, 0.9), 1);
  assert_int_equal(
      sample_token(logits, 4, &(SampleOptions){.temperature = 1, .top_k = 1, .top_p = 1}, 0.9), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cached_generation_agrees_with_the_training_forward),
      cmocka_unit_test(a_full_context_moves_on_from_its_newer_half),
      cmocka_unit_test(the_same_seed_writes_the_same_text_and_can_be_stopped),
      cmocka_unit_test(the_memory_plan_books_the_generator),
      cmocka_unit_test(prompts_that_do_not_fit_the_vocabulary_are_refused),
      cmocka_unit_test(samples_follow_the_distribution),
      cmocka_unit_test(ties_go_to_the_lower_id),
  };
  return cmocka_run_group_tests_name("test_generate", tests, NULL, NULL);
}
