// The plans of cuBLASLt products and the file that remembers them.
#include "tests/gpu/gpu_test.h"

#include <unistd.h>

#include "base/file.h"
#include "kernels/cuda/gemm_cache.h"

static const GemmProblem problems[] = {
    {.M = 333, .N = 264, .K = 520, .form = GEMM_NT, .alignment = 16},
    {.M = 264, .N = 520, .K = 333, .form = GEMM_TN, .out_fp32 = true, .add = true, .alignment = 16},
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

typedef struct Place {
  char directory[64], path[128];
  Gpu gpu;
} Place;

static int set_up(void **state) {
  Place *p = xcalloc(1, sizeof *p);
  Error err;
  snprintf(p->directory, sizeof p->directory, "/tmp/coda-gemm-XXXXXX");
  assert_non_null(mkdtemp(p->directory));
  snprintf(p->path, sizeof p->path, "%s/new/gemm.txt", p->directory);
  if (gpu_open(&p->gpu, &err)) fail_msg("%s", err.text);
  *state = p;
  return 0;
}

static int tear_down(void **state) {
  Place *p = *state;
  Error err;
  gpu_close(&p->gpu);
  assert_int_equal(directory_remove(p->directory, &err), 0);
  free(p);
  return 0;
}

// Prepares the problems; returns whether every choice is exactly the one in `expected` (or leaves
// the choices there).
static bool prepare(Place *p, Gpu *gpu, GemmPlan *choices, bool compare) {
  Gemm gemm;
  Error err;
  gemm_open(&gemm, gpu, p->path);
  if (gemm_prepare(&gemm, problems, PROBLEMS, &err)) fail_msg("%s", err.text);
  bool same = true;
  for (int i = 0; i < PROBLEMS; i++) {
    const GemmPlan *plan = gemm_find(&gemm, &problems[i]);
    assert_non_null(plan);
    assert_true(plan->microseconds > 0);
    // Two timings of a product are never equal to the last bit, so an equal time was remembered.
    if (compare) same = same && plan->microseconds == choices[i].microseconds;
    if (compare && same)
      assert_memory_equal(&plan->algorithm, &choices[i].algorithm, sizeof plan->algorithm);
    if (!compare) choices[i] = *plan;
  }
  gemm_close(&gemm);
  return same;
}

// The file's times have three decimals.
static void as_written(GemmPlan *plans) {
  for (int i = 0; i < PROBLEMS; i++) {
    char text[32];
    snprintf(text, sizeof text, "%.3f", (double)plans[i].microseconds);
    plans[i].microseconds = strtof(text, NULL);
  }
}

static void test_remembered(void **state) {
  Place *p = *state;
  GemmPlan choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  as_written(choices);
  assert_true(path_exists(p->path));
  assert_true(prepare(p, &p->gpu, choices, true));
}

static void spoil_and_expect_new(Place *p, const char *data, size_t bytes) {
  Error err;
  if (file_write_atomic(p->path, data, bytes, &err)) fail_msg("%s", err.text);
  int count;
  GemmPlan *read = gemm_cache_read(p->path, &p->gpu, &count);
  assert_int_equal(count, 0);
  free(read);
  GemmPlan choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  read = gemm_cache_read(p->path, &p->gpu, &count); // written anew
  assert_int_equal(count, PROBLEMS);
  free(read);
}

static void test_spoiled(void **state) {
  Place *p = *state;
  GemmPlan choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  char *text;
  size_t bytes;
  Error err;
  if (file_read(p->path, 1 << 20, &text, &bytes, &err)) fail_msg("%s", err.text);
  text[bytes / 2] ^= 1;
  spoil_and_expect_new(p, text, bytes);
  spoil_and_expect_new(p, text, bytes / 2);
  spoil_and_expect_new(p, "", 0);
  spoil_and_expect_new(p, "\0\0\0", 3);
  free(text);
}

static void test_of_another_gpu(void **state) {
  Place *p = *state;
  GemmPlan choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  Gpu other = p->gpu;
  other.driver++;
  int count;
  GemmPlan *read = gemm_cache_read(p->path, &other, &count);
  assert_int_equal(count, 0);
  free(read);
}

static void test_unwritable(void **state) {
  Place *p = *state;
  GemmPlan choices[PROBLEMS];
  snprintf(p->path, sizeof p->path, "/proc/nowhere/gemm.txt");
  prepare(p, &p->gpu, choices, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      {"choices_are_remembered", test_remembered, set_up, tear_down, NULL},
      {"a_spoiled_cache_is_ignored_and_rewritten", test_spoiled, set_up, tear_down, NULL},
      {"a_cache_of_another_driver_is_ignored", test_of_another_gpu, set_up, tear_down, NULL},
      {"a_cache_that_cannot_be_written_is_no_error", test_unwritable, set_up, tear_down, NULL},
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
