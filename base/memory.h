// Host memory. These do not return when the system has no memory left, so callers never test for
// NULL; sizes are products of counts that are checked for overflow.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *old, size_t bytes);
char *xstrdup(const char *text);
// Makes room for items[count] in a list that grows to twice its capacity.
#define LIST_ROOM(items, count, capacity)                                                          \
  do {                                                                                             \
    if ((count) < (capacity)) break;                                                               \
    (capacity) = 2 * (capacity) + 64;                                                              \
    (items) = xrealloc((items), (size_t)(capacity) * sizeof *(items));                             \
  } while (0)
// printf into fresh memory; the caller frees it.
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

// For memory that another library refused. printf style: the memory that was refused, and the
// advice. Ends the process with the sentence "PROGRAM: out of memory: ..." and status 1, at once,
// without waiting for other threads; inside memory_try it returns from that.
void out_of_memory(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Calls work(context). False where this thread ran out of memory in it: err says so, without
// advice, and all memory and files of `work` by then are lost, unless *context knows them. Threads
// that OpenMP starts in `work` are not covered.
bool memory_try(void (*work)(void *context), void *context, Error *err);

// A short text by value, printf style. What does not fit is cut off.
typedef struct ShortText {
  char text[400];
} ShortText;
ShortText short_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
void short_append(ShortText *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

// "1.50 GiB", "312.00 MiB", "17 B": bytes for people.
ShortText size_text(size_t bytes);

// Bytes that the system can still give without swapping: free memory and the part of the disk cache
// that can be released, within the limits of this process (its control group and `ulimit -v`).
// SIZE_MAX where the system does not say.
size_t memory_available(void);

// For tests alone: CODA_MEMORY_LIMIT=24GB (or MB, GiB, MiB) lets the device's memory be used up to
// that, all programs' together, so that a plan and a run do without the rest of it. It is a limit:
// such a card may be slower, and keeps another part for itself. *bytes is SIZE_MAX where it is not
// set; any other text is an error.
int memory_limit(size_t *bytes, Error *err);

// The limits of this process' control group (cgroups, version 1 or 2): containers and batch
// systems limit programs by it. root: "" for the system's files; a test has others below a folder.
// The CPUs' worth of time that the quotas of the group, and of the groups around it, allow, such as
// 1.5. INFINITY: no quota.
double control_group_cpus(const char *root);

// Pieces of one block of memory, each aligned to 256 bytes, which suits a GPU's vector loads and
// copy engine. Laid out twice: without a block to learn its size, then in it.
typedef struct Arena {
  char *block; // NULL: the pieces are only counted
  size_t used; // bytes so far, aligned for the next piece
} Arena;

// The next piece, or NULL where there is no block. The block must be as large as the count said.
static inline void *arena_take(Arena *a, size_t bytes) {
  enum { ALIGNMENT = 256 };
  void *piece = a->block ? a->block + a->used : NULL;
  a->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return piece;
}

#ifdef __cplusplus
}
#endif
