// A test is TEST(its_name) { ... }, whose body has cmocka's `state` and an empty `err`. Those of a
// file run one after the other, in the order of their lines, from the main of test.c: nothing has
// to list them.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> // after setjmp.h, stdarg.h, stddef.h and stdint.h

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

typedef struct RegisteredTest {
  const char *name;
  CMUnitTestFunction run;
  CMFixtureFunction setup, teardown;
  int line;
} RegisteredTest;

// Pointers, which the linker puts side by side, in a section of their own.
#define TEST_WITH(name, setup, teardown)                                                           \
  static void name(void **state, Error err);                                                       \
  static void name##_run(void **state) {                                                           \
    name(state, (Error){""});                                                                      \
  }                                                                                                \
  static const RegisteredTest name##_test = {#name, name##_run, setup, teardown, __LINE__};        \
  static const RegisteredTest *const name##_registered                                             \
      __attribute__((section("registered_tests"), used)) = &name##_test;                           \
  static void name(void **state __attribute__((unused)), Error err __attribute__((unused)))
#define TEST(name) TEST_WITH(name, NULL, NULL)

// What goes before and after all tests of a file.
typedef struct TestGroup {
  CMFixtureFunction setup, teardown;
} TestGroup;
#define TEST_GROUP(setup, teardown) const TestGroup test_group = {setup, teardown}
extern const TestGroup test_group __attribute__((weak));

// `make test` sets TEST_TIER=1, and tests that take long do a part of their cases there. Called by
// hand, and in the second tier, they do all.
static inline bool first_tier(void) {
  return getenv("TEST_TIER") != NULL;
}

// TEST_FILTER=PATTERN runs the tests with such names alone: of `*` and `?`, as cmocka has it.

// The whole test is the second tier's.
#define SECOND_TIER_ONLY()                                                                         \
  do {                                                                                             \
    if (first_tier()) {                                                                            \
      print_message("# the second tier has this test\n");                                          \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)
