// Attention's choices from one start to the next: what is found again, and what is not trusted.
#include "kernels/cuda/attention.h"
#include "tests/support/test.h"

static const char first[] = "coda attention test\n";

typedef struct Asked {
  AttentionCall call;
  AttentionPlan plan;
} Asked;

static const Asked plain = {
    {.shape = {8, 4096, 32, 8, 64}, .backward = true},
    {.graph = ATTENTION_BACKWARD, .number = 2, .milliseconds = 1.0 / 3},
};

// Where a file of choices is to be, in folders that are not there yet.
static char *new_place(void) {
  return held_text("%s/not/there/yet.txt", temporary_folder());
}

static void close_choices(void *choices) {
  choices_close(choices);
  free(choices);
}

// Those of the first line in a file, or of none.
static Choices *open_choices(const char *path) {
  Choices *c = xcalloc(1, sizeof *c);
  choices_open(c, path, first);
  return hold(c, close_choices);
}

// Plans for the plain call and for all that differ from it in one thing; numbers tell them apart.
enum { CALLS = 10 };
static Asked asked(int i) {
  Asked a = plain;
  AttentionCall *c = &a.call;
  if (i == 1) c->shape.B++;
  if (i == 2) c->shape.T++;
  if (i == 3) c->shape.H++;
  if (i == 4) c->shape.KV++;
  if (i == 5) c->shape.d++;
  if (i == 6) c->backward = false;
  if (i == 7) c->deterministic = true;
  if (i == 8) c->both_graphs = true;
  if (i == 9) c->shape.mask = MASK_BIAS;
  a.plan.graph = attention_graph_of(c);
  a.plan.number = c->deterministic ? 0 : i + 1;
  return a;
}

static int count_of(const char *lines) {
  int count = 0;
  for (const char *c = lines; *c; c++) count += *c == '\n';
  return count;
}

static int count_in(const char *path, const char *line) {
  Choices all;
  choices_open(&all, path, line);
  const int count = count_of(all.lines);
  choices_close(&all);
  return count;
}

static void keep_all(const char *path) {
  Choices *all = open_choices(path);
  assert_int_equal(count_of(all->lines), 0);
  for (int i = 0; i < CALLS; i++) {
    const Asked a = asked(i);
    AttentionPlan unknown;
    assert_false(attention_plan_find(all, &a.call, &unknown));
    attention_plan_keep(all, &a.call, &a.plan);
  }
  choices_save(all);
}

TEST(every_call_has_its_own_plan) {
  const char *const path = new_place();
  keep_all(path);
  Choices *all = open_choices(path);
  assert_int_equal(count_of(all->lines), CALLS);
  for (int i = 0; i < CALLS; i++) {
    const Asked a = asked(i);
    AttentionPlan found;
    assert_true(attention_plan_find(all, &a.call, &found));
    assert_true(found.number == a.plan.number && found.graph == a.plan.graph &&
                found.other_graph == 0);
    assert_true(fabs(found.milliseconds - 1.0 / 3) < 1e-8);
  }
}

TEST(a_newer_choice_takes_the_place_of_the_older) {
  const char *const path = new_place();
  keep_all(path);
  Choices *all = open_choices(path);
  AttentionPlan newer = plain.plan, found;
  newer.number = 77;
  attention_plan_keep(all, &plain.call, &newer);
  assert_true(attention_plan_find(all, &plain.call, &found) && found.number == 77);
  choices_save(all);
  all = open_choices(path);
  assert_int_equal(count_of(all->lines), CALLS);
  assert_true(attention_plan_find(all, &plain.call, &found) && found.number == 77);
}

TEST(processes_that_start_together_lose_nothing) {
  const char *const path = new_place();
  Choices *one = open_choices(path);
  Choices *two = open_choices(path);
  choices_keep(one, "1 2", "a");
  choices_keep(one, "1 3", "b");
  choices_keep(two, "1 2", "c");
  choices_keep(two, "4 5", "d");
  choices_save(one);
  choices_save(two);
  assert_string_equal(choices_find(two, "1 3"), "b\n1 2 = c\n4 5 = d\n");
  one = open_choices(path);
  assert_string_equal(one->lines, two->lines);
}

// As a GEMM's question is that of a batch without its end.
TEST(a_question_may_begin_another) {
  Choices *all = open_choices(NULL);
  choices_keep(all, "8 16 x 3", "batched");
  assert_null(choices_find(all, "8 16"));
  choices_keep(all, "8 16", "single");
  assert_string_equal(choices_find(all, "8 16"), "single\n");
  assert_string_equal(choices_find(all, "8 16 x 3"), "batched\n8 16 = single\n");
}

TEST(what_cannot_be_an_answer_is_not_kept) {
  Asked wrong[8];
  for (int i = 0; i < 8; i++) wrong[i] = plain;
  wrong[0].plan.milliseconds = 0;
  wrong[1].plan.milliseconds = NAN;
  wrong[2].plan.number = -1;
  wrong[3].plan.graph = ATTENTION_DETERMINISTIC;                  // was no choice
  wrong[4].call.deterministic = true;                             // would not have equal bits
  wrong[5].call.deterministic = wrong[5].call.both_graphs = true; // likewise
  wrong[6].call.deterministic = true;                             // is the third
  wrong[6].plan.graph = ATTENTION_DETERMINISTIC;
  wrong[7].call.backward = false;
  Choices *all = open_choices(NULL);
  for (int i = 0; i < 8; i++) attention_plan_keep(all, &wrong[i].call, &wrong[i].plan);
  assert_int_equal(count_of(all->kept), 0);
  attention_plan_keep(all, &plain.call, &plain.plan);
  assert_int_equal(count_of(all->kept), 1);
  choices_save(all); // nowhere
}

TEST(a_file_that_is_damaged_or_of_another_library_is_empty) {
  const char *const path = new_place();
  size_t bytes;
  keep_all(path);
  assert_int_equal(count_in(path, "coda attention other\n"), 0);
  assert_int_equal(count_in(path_parent(path).text, first), 0); // a folder
  char *text = file_text(path, &bytes);
  for (size_t i = 0; i < bytes; i++) {
    text[i] ^= 1;
    must(file_write(path, text, bytes, &err), &err);
    if (count_in(path, first) != 0) fail_msg("byte %zu of %zu may be wrong", i, bytes);
    text[i] ^= 1;
    must(file_write(path, text, i, &err), &err);
    if (count_in(path, first) != 0) fail_msg("%zu of %zu bytes are enough", i, bytes);
  }
  must(file_write(path, text, bytes, &err), &err);
  assert_int_equal(count_in(path, first), CALLS);
}

TEST(a_line_that_is_no_answer_is_not_trusted) {
  static const char *const bad[] = {"1 2 0.25",     // one number less,
                                    "1 2 0.25 0 1", // one more,
                                    "2 2 0.25 0",   // a graph that was no choice,
                                    "9 2 0.25 0",   // none at all
                                    "1 2 inf 0",    "x", ""};
  static const char question[] = "8 4096 32 8 64 0 0 1 0 0";
  AttentionPlan found;
  Choices *all = open_choices(NULL);
  choices_keep(all, question, "1 2 0.25 0");
  assert_true(attention_plan_find(all, &plain.call, &found));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    choices_keep(all, question, bad[i]);
    if (attention_plan_find(all, &plain.call, &found)) fail_msg("%s was trusted", bad[i]);
  }
}

TEST(a_file_that_cannot_be_written_is_no_failure) {
  AttentionPlan found;
  Choices *all = open_choices("/proc/nowhere/attention.txt");
  attention_plan_keep(all, &plain.call, &plain.plan);
  choices_save(all);
  assert_true(attention_plan_find(all, &plain.call, &found));
}

static void expect_path(const char *cache, const char *home, const char *expected) {
  if (cache) assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
  if (!cache) assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
  if (home) assert_int_equal(setenv("HOME", home, 1), 0);
  if (!home) assert_int_equal(unsetenv("HOME"), 0);
  char *path = held(choices_path("attention", "NVIDIA H200/x", 13000, 91900));
  if (expected)
    assert_string_equal(path, expected);
  else
    assert_null(path);
}

TEST(the_file_lies_where_caches_do) {
  expect_path("/c", "/h", "/c/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path("", "/h", "/h/.cache/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path(NULL, "/h", "/h/.cache/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path(NULL, NULL, NULL);
}
