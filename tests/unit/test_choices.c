// Attention's choices from one start to the next: what is found again, and what is not trusted.
#include "kernels/cuda/attention_choices.h"
#include "base/choices.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char first[] = "coda attention test\n";

static const AttentionChoice plain = {
    .question = {.shape = {8, 4096, 32, 8, 64}, .direction = ATTENTION_BACKWARD},
    .number = 2,
    .engine = 5,
    .kernel = -1,
    .milliseconds = 1.0 / 3};

typedef struct Place {
  char *dir, *path;
} Place;

static Place place_new(void) {
  Place p = {.dir = temporary_folder()};
  p.path = xasprintf("%s/not/there/yet.txt", p.dir);
  return p;
}

static void place_free(Place *p) {
  Error err;
  if (directory_remove(p->dir, &err)) fail_msg("%s", err.text);
  free(p->path);
  free(p->dir);
}

// Choices for the plain question and for all that differ from it in one thing; numbers tell them
// apart.
enum { QUESTIONS = 10 };
static AttentionChoice choice_of(int i) {
  AttentionChoice c = plain;
  AttentionQuestion *q = &c.question;
  if (i == 1) q->shape.B++;
  if (i == 2) q->shape.T++;
  if (i == 3) q->shape.H++;
  if (i == 4) q->shape.KV++;
  if (i == 5) q->shape.d++;
  if (i == 6) q->direction = ATTENTION_FORWARD;
  if (i == 7) q->deterministic = c.deterministic = true;
  if (i == 8) q->both_forms = true;
  q->first = i == 9;
  c.number = q->first ? 0 : i + 1;
  return c;
}

static void keep_all(const Place *p) {
  AttentionChoices all;
  attention_choices_open(&all, p->path, first);
  assert_int_equal(all.count, 0);
  for (int i = 0; i < QUESTIONS; i++) {
    const AttentionChoice c = choice_of(i);
    assert_null(attention_choices_find(&all, &c.question));
    attention_choices_keep(&all, &c);
  }
  attention_choices_save(&all);
  attention_choices_close(&all);
}

static int count_of(const char *path, const char *line) {
  AttentionChoices all;
  attention_choices_open(&all, path, line);
  const int count = all.count;
  attention_choices_close(&all);
  return count;
}

TEST(every_question_has_its_own_choice) {
  Place p = place_new();
  AttentionChoices all;
  keep_all(&p);
  attention_choices_open(&all, p.path, first);
  assert_int_equal(all.count, QUESTIONS);
  for (int i = 0; i < QUESTIONS; i++) {
    const AttentionChoice c = choice_of(i);
    const AttentionChoice *found = attention_choices_find(&all, &c.question);
    assert_non_null(found);
    assert_true(found->number == c.number && found->engine == 5 && found->kernel == -1 &&
                found->deterministic == c.deterministic && found->other_form == 0);
    assert_true(fabs(found->milliseconds - 1.0 / 3) < 1e-8);
  }
  attention_choices_close(&all);
  place_free(&p);
}

TEST(a_newer_choice_takes_the_place_of_the_older) {
  Place p = place_new();
  AttentionChoices all;
  keep_all(&p);
  attention_choices_open(&all, p.path, first);
  AttentionChoice newer = plain;
  newer.engine = 77;
  attention_choices_keep(&all, &newer);
  attention_choices_save(&all);
  attention_choices_close(&all);
  attention_choices_open(&all, p.path, first);
  assert_int_equal(all.count, QUESTIONS);
  assert_int_equal(attention_choices_find(&all, &plain.question)->engine, 77);
  attention_choices_close(&all);
  place_free(&p);
}

TEST(what_cannot_be_an_answer_is_not_kept) {
  AttentionChoice wrong[7];
  for (int i = 0; i < 7; i++) wrong[i] = plain;
  wrong[0].milliseconds = 0;
  wrong[1].milliseconds = NAN;
  wrong[2].number = -1;
  wrong[3].deterministic = true;          // was no choice
  wrong[4].question.deterministic = true; // would not have equal bits
  wrong[5].question.deterministic = wrong[5].question.both_forms = true; // likewise
  wrong[6].question.first = true;                                        // is the third
  AttentionChoices all;
  attention_choices_open(&all, NULL, first);
  for (int i = 0; i < 7; i++) attention_choices_keep(&all, &wrong[i]);
  assert_int_equal(all.count, 0);
  attention_choices_keep(&all, &plain);
  assert_int_equal(all.count, 1);
  attention_choices_save(&all); // nowhere
  attention_choices_close(&all);
}

TEST(a_file_that_is_damaged_or_of_another_library_is_empty) {
  Place p = place_new();
  Error err;
  char *text;
  size_t bytes;
  keep_all(&p);
  assert_int_equal(count_of(p.path, "coda attention other\n"), 0);
  assert_int_equal(count_of(p.dir, first), 0); // a folder
  if (file_read(p.path, 1 << 20, &text, &bytes, &err)) fail_msg("%s", err.text);
  for (size_t i = 0; i < bytes; i++) {
    text[i] ^= 1;
    if (file_write(p.path, text, bytes, &err)) fail_msg("%s", err.text);
    if (count_of(p.path, first) != 0) fail_msg("byte %zu of %zu may be wrong", i, bytes);
    text[i] ^= 1;
    if (file_write(p.path, text, i, &err)) fail_msg("%s", err.text);
    if (count_of(p.path, first) != 0) fail_msg("%zu of %zu bytes are enough", i, bytes);
  }
  if (file_write(p.path, text, bytes, &err)) fail_msg("%s", err.text);
  assert_int_equal(count_of(p.path, first), QUESTIONS);
  free(text);
  place_free(&p);
}

TEST(whole_lines_that_are_no_choices_are_not_trusted) {
  static const char good[] = "8 4096 32 8 64 1 0 0 0 2 5 -1 0 0.25 0\n";
  static const char *const bad[] = {
      "8 4096 32 8 64 1 0 0 0 2 5 -1 0 0.25\n",     // one number less,
      "8 4096 32 8 64 1 0 0 0 2 5 -1 0 0.25 0 1\n", // one more,
      "8 4096 32 8 64 2 0 0 0 2 5 -1 0 0.25 0\n",   // a third direction,
      "8 4096 32 8 64 1 1 0 0 2 5 -1 0 0.25 0\n",   // another form than was asked for,
      "8 4096 32 8 64 1 0 0 1 2 5 -1 0 0.25 0\n",   // the third as the first,
      "8 4096 32 8 64 1 0 0 0 2 5 -1 0 inf 0\n",    "x\n"};
  Place p = place_new();
  Error err;
  if (choices_write(p.path, first, good, &err)) fail_msg("%s", err.text);
  assert_int_equal(count_of(p.path, first), 1);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *lines = xasprintf("%s%s%s", good, bad[i], good);
    if (choices_write(p.path, first, lines, &err)) fail_msg("%s", err.text);
    if (count_of(p.path, first) != 0) fail_msg("%s was trusted", bad[i]);
    free(lines);
  }
  place_free(&p);
}

TEST(a_file_that_cannot_be_written_is_no_failure) {
  AttentionChoices all;
  attention_choices_open(&all, "/proc/nowhere/attention.txt", first);
  attention_choices_keep(&all, &plain);
  attention_choices_save(&all);
  assert_non_null(attention_choices_find(&all, &plain.question));
  attention_choices_close(&all);
}

static void expect_path(const char *cache, const char *home, const char *expected) {
  if (cache) assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
  if (!cache) assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
  if (home) assert_int_equal(setenv("HOME", home, 1), 0);
  if (!home) assert_int_equal(unsetenv("HOME"), 0);
  char *path = choices_path("attention", "NVIDIA H200/x", 13000, 91900);
  if (expected)
    assert_string_equal(path, expected);
  else
    assert_null(path);
  free(path);
}

TEST(the_file_lies_where_caches_do) {
  expect_path("/c", "/h", "/c/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path("", "/h", "/h/.cache/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path(NULL, "/h", "/h/.cache/coda/attention-NVIDIA-H200-x-13000-91900.txt");
  expect_path(NULL, NULL, NULL);
}
