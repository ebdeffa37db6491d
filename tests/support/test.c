#include "tests/support/test.h"

extern const RegisteredTest *const __start_registered_tests[], *const __stop_registered_tests[];

static int by_line(const void *a, const void *b) {
  return (*(const RegisteredTest *const *)a)->line - (*(const RegisteredTest *const *)b)->line;
}

// What a group's set-up holds is held until the group ends.
static int group_setup(void **state) {
  const int status = test_group.setup ? test_group.setup(state) : 0;
  keep_held();
  return status;
}

static int group_teardown(void **state) {
  const int status = test_group.teardown ? test_group.teardown(state) : 0;
  release_all();
  return status;
}

int main(void) {
  const size_t count = (size_t)(__stop_registered_tests - __start_registered_tests);
  const RegisteredTest **sorted = xmalloc(count * sizeof *sorted);
  struct CMUnitTest *tests = xcalloc(count, sizeof *tests);
  memcpy(sorted, __start_registered_tests, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, by_line);
  for (size_t i = 0; i < count; i++)
    tests[i] = (struct CMUnitTest){sorted[i]->name, sorted[i]->run, sorted[i]->setup,
                                   sorted[i]->teardown, NULL};
  const bool grouped = &test_group != NULL;
  cmocka_set_test_filter(getenv("TEST_FILTER"));
  const int failed = _cmocka_run_group_tests("tests", tests, count, grouped ? group_setup : NULL,
                                             grouped ? group_teardown : NULL);
  free(sorted), free(tests);
  return failed;
}
