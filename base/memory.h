// Host memory. These do not return when the system has no memory left, so callers never test for
// NULL; sizes are products of counts that are checked for overflow.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *old, size_t bytes);
char *xstrdup(const char *text);
// printf into fresh memory; the caller frees it.
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

// As if memory were refused here: for memory that comes from elsewhere. printf style: what could
// not be had, and what to do. Ends the process with the sentence "PROGRAM: out of memory: ..." and
// status 1, at once, whatever other threads do; in memory_try it returns to there.
void out_of_memory(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Calls work(context). False where this thread ran out of memory in it: err says so, and all that
// `work` had allocated or opened by then is lost, so that it should not be much. Threads that
// OpenMP starts in `work` are not covered.
bool memory_try(void (*work)(void *context), void *context, Error *err);

// "1.50 GiB", "312.0 MiB", "17 B": bytes for people. Returns buffer.
typedef struct SizeText {
  char text[32];
} SizeText;
SizeText size_text(size_t bytes);

// Bytes that the system can still give, without swapping: what is free, and what the disk's cache
// would give back, within the limits of this process (its control group's, and `ulimit -v`).
// SIZE_MAX where it does not say.
size_t memory_available(void);
