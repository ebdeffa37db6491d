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

// Fails the test unless status is 0; or unless something was made, which it returns.
void must(int status, const Error *err);
void *must_make(void *made, const Error *err);
// Fails the test unless the sentence has these words; and unless status is -1, or nothing was made.
void assert_says(const Error *err, const char *words);
void expect_error(int status, const Error *err, const char *words);
void expect_none(const void *made, const Error *err, const char *words);

// ---- What a test holds until it ends, or the set-up of a group until its last test has ended.
// Then it is released, the newest first.

// Memory or a handle, nothing of the stack. Returns it.
void *hold(void *what, void (*release)(void *));
// Memory that free() releases.
void *held(void *memory);
// Releases it now.
void let_go(void *what);
// For test.c: releases what was held since keep_held, which is what a test held; and all.
void release_held(void);
void keep_held(void);
void release_all(void);

// A text as of printf.
char *held_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
// What a file holds, with a NUL behind it; bytes: NULL, or their number. A failure fails the test.
char *file_text(const char *path, size_t *bytes);
// What is written to a descriptor from here until caught, which returns it.
typedef struct Caught {
  int fd, before;
  FILE *file;
} Caught;
Caught catch_output(int fd);
char *caught(Caught c);
// A fresh folder under $TMPDIR or /tmp.
char *temporary_folder(void);

// Writes a whole file. A failure fails the test.
void put_file(const char *path, const char *text);

// ---- Tests

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
    release_held();                                                                                \
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

// Removes a folder and all that is in it, but nothing behind a link. Fine if it is not there.
int directory_remove(const char *path, Error *err);

// TEST_FILTER=PATTERN runs the tests with such names alone: of `*` and `?`, as cmocka has it.

// The whole test is the second tier's.
#define SECOND_TIER_ONLY()                                                                         \
  do {                                                                                             \
    if (first_tier()) {                                                                            \
      print_message("# the second tier has this test\n");                                          \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)
