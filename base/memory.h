// Host memory. These exit with a sentence when the system has no memory left, so callers never test
// for NULL; sizes are products of counts that are checked for overflow.
#pragma once
#include <stddef.h>

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *old, size_t bytes);
char *xstrdup(const char *text);
// printf into fresh memory; the caller frees it.
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

// "1.50 GiB", "312.0 MiB", "17 B": bytes for people. Returns buffer.
typedef struct SizeText {
  char text[32];
} SizeText;
SizeText size_text(size_t bytes);

// Bytes that the system can still give, without swapping: what is free, and what the disk's cache
// would give back, within the limit of this process' control group. SIZE_MAX where it does not say.
size_t memory_available(void);
