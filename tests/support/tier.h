// `make test` sets TEST_TIER=1, and tests that take long do a part of their cases there. Called by
// hand, and in the second tier, they do all.
#pragma once
#include <stdbool.h>
#include <stdlib.h>

static inline bool first_tier(void) {
  return getenv("TEST_TIER") != NULL;
}

// The whole test is the second tier's. With cmocka.h included.
#define SECOND_TIER_ONLY()                                                                         \
  do {                                                                                             \
    if (first_tier()) {                                                                            \
      print_message("# the second tier has this test\n");                                          \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)
