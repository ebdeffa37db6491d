// The collector of CUPTI's records against a stand-in for CUPTI, and its binary interface against
// the installed header.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka_all.h"

#include "kernels/cuda/cupti_api.h"
#include "kernels/cuda/trace.h"
#include "tests/support/tiny_run.h"

#if defined(__has_include)
#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#include <cupti.h>
#define HAVE_CUPTI_HEADER
#endif
#endif

static const char stub_path[] = "build/release/tests/cupti_stub.so";

typedef struct Stub {
  void (*emit)(int kind, uint64_t start, uint64_t end, const char *name);
  void (*answer)(int enable_status, int flush_status, uint32_t version);
  int (*enabled)(void);
} Stub;

static void *function(void *library, const char *name) {
  void *address = dlsym(library, name);
  if (!address) fail_msg("%s has no %s", stub_path, name);
  return address;
}

static Stub stub_of(void) {
  void *library = dlopen(stub_path, RTLD_NOW);
  if (!library) fail_msg("%s", dlerror());
  Stub s;
  *(void **)&s.emit = function(library, "stub_emit");
  *(void **)&s.answer = function(library, "stub_answer");
  *(void **)&s.enabled = function(library, "stub_enabled");
  s.answer(0, 0, 130000);
  return s;
}

static Trace *open_stub(void) {
  Error err = {""};
  Trace *t = trace_open(stub_path, 13, &err);
  if (!t) fail_msg("%s", err.text);
  return t;
}

static void the_records_are_those_of_the_installed_header(void **state) {
  (void)state;
#ifdef HAVE_CUPTI_HEADER
#define SAME(ours, theirs) assert_int_equal((long)(ours), (long)(theirs))
#define SAME_TIMES(type)                                                                           \
  SAME(offsetof(CuptiRecord, kind), offsetof(type, kind));                                         \
  SAME(offsetof(CuptiRecord, start), offsetof(type, start));                                       \
  SAME(offsetof(CuptiRecord, end), offsetof(type, end))
#define SAME_KERNEL(type)                                                                          \
  SAME_TIMES(type);                                                                                \
  SAME(offsetof(CuptiKernel, name), offsetof(type, name))
  SAME_KERNEL(CUpti_ActivityKernel8);
  SAME_KERNEL(CUpti_ActivityKernel9);
#if CUPTI_API_VERSION >= 130000
  SAME_KERNEL(CUpti_ActivityKernel10);
  SAME_TIMES(CUpti_ActivityMemcpy6);
#endif
  SAME_TIMES(CUpti_ActivityMemcpy5);
  SAME_TIMES(CUpti_ActivityMemset4);
  SAME(CUPTI_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY);
  SAME(CUPTI_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMSET);
  SAME(CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  SAME(CUPTI_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  SAME(CUPTI_MAX_LIMIT_REACHED, CUPTI_ERROR_MAX_LIMIT_REACHED);
  SAME(CUPTI_MULTIPLE_SUBSCRIBERS, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  SAME(CUPTI_OLD_PROFILER_API_INITIALIZED, CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED);
  printf("# compared with the header of CUPTI %d\n", CUPTI_API_VERSION);
#else
  printf("# skipped: cupti.h is not on the include path\n");
  skip();
#endif
}

static void a_trace_holds_what_happened_in_it(void **state) {
  (void)state;
  const Stub s = stub_of();
  Trace *t = open_stub();
  Error err;
  Activities a;
  assert_int_equal(s.enabled(), 0); // nothing is recorded before it begins
  for (int step = 0; step < 3; step++) {
    s.emit(CUPTI_KIND_CONCURRENT_KERNEL, 1, 2, "before");
    must(trace_begin(t, &err), &err);
    s.emit(CUPTI_KIND_MEMCPY, 100, 110, NULL);
    s.emit(CUPTI_KIND_CONCURRENT_KERNEL, 110, 150, "a_kernel");
    s.emit(CUPTI_KIND_MEMSET, 150, 160, NULL);
    s.emit(CUPTI_KIND_CONCURRENT_KERNEL, 0, 0, "without times");
    must(trace_end(t, &a, &err), &err);
    s.emit(CUPTI_KIND_CONCURRENT_KERNEL, 200, 210, "after");
    assert_int_equal(s.enabled(), 0);
    assert_int_equal(a.count, 3);
    assert_int_equal(a.lost, 1);
    assert_int_equal(a.list[0].kind, ACTIVITY_COPY);
    assert_int_equal(a.list[1].kind, ACTIVITY_KERNEL);
    assert_int_equal(a.list[1].began, 110);
    assert_int_equal(a.list[1].ended, 150);
    assert_string_equal(a.list[1].name, "a_kernel");
    assert_int_equal(a.list[2].kind, ACTIVITY_MEMSET);
    assert_null(a.list[2].name);
  }
  trace_close(t);
}

// More than all buffers hold at once, and then more than the list does.
static void many_records_are_kept_and_too_many_are_counted(void **state) {
  (void)state;
  enum { MANY = 100000, TOO_MANY = 140000, ROOM = 1 << 17 };
  const Stub s = stub_of();
  Trace *t = open_stub();
  Error err;
  Activities a;
  must(trace_begin(t, &err), &err);
  for (uint64_t i = 1; i <= MANY; i++) s.emit(CUPTI_KIND_CONCURRENT_KERNEL, i, i + 1, "k");
  must(trace_end(t, &a, &err), &err);
  assert_int_equal(a.count, MANY);
  assert_int_equal(a.lost, 0);
  assert_int_equal(a.list[MANY - 1].began, MANY);
  must(trace_begin(t, &err), &err);
  for (uint64_t i = 1; i <= TOO_MANY; i++) s.emit(CUPTI_KIND_CONCURRENT_KERNEL, i, i + 1, "k");
  must(trace_end(t, &a, &err), &err);
  assert_int_equal(a.count, ROOM);
  assert_int_equal(a.lost, TOO_MANY - ROOM);
  trace_close(t);
}

static void there_is_one_trace_at_a_time(void **state) {
  (void)state;
  stub_of();
  Error err = {""};
  Trace *first = open_stub();
  assert_null(trace_open(stub_path, 13, &err));
  assert_non_null(strstr(err.text, "in this process already"));
  trace_close(first);
  trace_close(open_stub());
  trace_close(NULL);
}

static void what_is_missing_is_said(void **state) {
  (void)state;
  Error err = {""};
  assert_null(trace_open("/nowhere/libcupti.so.13", 13, &err));
  assert_non_null(strstr(err.text, "CUPTI is missing (/nowhere/libcupti.so.13: "));
  assert_non_null(strstr(err.text, "apt install cuda-cupti-13-0"));
  assert_null(trace_open("libm.so.6", 13, &err));
  assert_non_null(strstr(err.text, "has no function cuptiGetVersion"));
  assert_null(trace_open(NULL, 7, &err)); // no CUDA 7 has ever been where this runs
  assert_non_null(strstr(err.text, "libcupti.so.7"));
  const Stub s = stub_of();
  s.answer(0, 0, 17);
  assert_null(trace_open(stub_path, 13, &err));
  assert_non_null(strstr(err.text, "version 17"));
}

static void another_profiler_is_named(void **state) {
  (void)state;
  Error err = {""};
  const Stub s = stub_of();
  s.answer(CUPTI_MULTIPLE_SUBSCRIBERS, 0, 130000);
  assert_null(trace_open(stub_path, 13, &err));
  assert_non_null(strstr(err.text, "another profiler"));
  s.answer(0, 0, 130000);
  setenv("NSYS_PROFILING_SESSION_ID", "1", 1);
  assert_null(trace_open(stub_path, 13, &err));
  assert_non_null(strstr(err.text, "as NSYS_PROFILING_SESSION_ID in its environment says"));
  unsetenv("NSYS_PROFILING_SESSION_ID");
  trace_close(open_stub()); // nothing of the failed one is left
}

static void a_failing_call_is_named_and_leaves_nothing_on(void **state) {
  (void)state;
  const Stub s = stub_of();
  Trace *t = open_stub();
  Error err = {""};
  Activities a;
  s.answer(7, 0, 130000);
  expect_error(trace_begin(t, &err), &err, "asking for the records of a step: STUB_STATUS (7)");
  s.answer(0, 999, 130000);
  must(trace_begin(t, &err), &err);
  expect_error(trace_end(t, &a, &err), &err, "collecting the records of a step");
  assert_int_equal(s.enabled(), 0);
  s.answer(0, 0, 130000);
  must(trace_begin(t, &err), &err);
  s.emit(CUPTI_KIND_MEMSET, 5, 6, NULL);
  must(trace_end(t, &a, &err), &err);
  assert_int_equal(a.count, 1);
  trace_close(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_records_are_those_of_the_installed_header),
      cmocka_unit_test(a_trace_holds_what_happened_in_it),
      cmocka_unit_test(many_records_are_kept_and_too_many_are_counted),
      cmocka_unit_test(there_is_one_trace_at_a_time),
      cmocka_unit_test(what_is_missing_is_said),
      cmocka_unit_test(another_profiler_is_named),
      cmocka_unit_test(a_failing_call_is_named_and_leaves_nothing_on),
  };
  return cmocka_run_group_tests_name("test_trace", tests, NULL, NULL);
}
