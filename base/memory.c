#define _GNU_SOURCE // vasprintf, program_invocation_short_name
#include "base/memory.h"

#include <errno.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/control_group.h"

typedef struct Attempt {
  jmp_buf start;
  Error *err;
} Attempt;

// A mutable global, one a thread: xmalloc has no argument that could name the attempt. NULL: none.
static _Thread_local Attempt *attempt;

bool memory_try(void (*work)(void *context), void *context, Error *err) {
  Attempt here = {.err = err}, *const outer = attempt;
  const int ran_out = setjmp(here.start);
  attempt = ran_out ? outer : &here;
  if (ran_out) return false;
  work(context);
  attempt = outer;
  return true;
}

void out_of_memory(const char *format, ...) {
  Error why;
  va_list args;
  va_start(args, format);
  vsnprintf(why.text, sizeof why.text, format, args);
  va_end(args);
  if (attempt && omp_get_level() == 0) { // a jump out of a parallel region would break its team
    error_set(attempt->err, "out of memory: %.2000s", why.text);
    longjmp(attempt->start, 1);
  }
  fflush(stdout);
  flockfile(stderr); // never unlocked, so that of several threads one speaks
  fprintf(stderr, "%s: out of memory: %s\n", program_invocation_short_name, why.text);
  _exit(1); // exit would run destructors under the feet of other threads
}

static void *checked(void *memory, size_t bytes) {
  if (!memory)
    out_of_memory("the system refused %s; use a smaller model, batch or file",
                  size_text(bytes).text);
  return memory;
}

void *xmalloc(size_t bytes) {
  return checked(malloc(bytes ? bytes : 1), bytes);
}

void *xcalloc(size_t count, size_t size) {
  return checked(calloc(count ? count : 1, size ? size : 1), count * size);
}

void *xrealloc(void *old, size_t bytes) {
  return checked(realloc(old, bytes ? bytes : 1), bytes);
}

char *xstrdup(const char *text) {
  const size_t bytes = strlen(text) + 1;
  return memcpy(xmalloc(bytes), text, bytes);
}

char *xasprintf(const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  const int length = vasprintf(&text, format, args);
  va_end(args);
  return checked(length < 0 ? NULL : text, strlen(format));
}

SizeText size_text(size_t bytes) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  int u = 0;
  while (value >= 1024 && u < 6) value /= 1024, u++;
  SizeText s;
  snprintf(s.text, sizeof s.text, "%.*f %s", u > 0 ? 2 : 0, value, unit[u]);
  return s;
}

// The number behind the first line of FOLDER/FILE that begins with `key`; `none` where there is no
// file, no line or no number.
static size_t read_number(const char *folder, const char *file, const char *key, size_t none) {
  char *path = xasprintf("%s/%s", folder, file), line[256];
  size_t value = none;
  FILE *in = fopen(path, "r");
  while (in && value == none && fgets(line, sizeof line, in))
    if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%zu", &value) != 1)
      break;
  if (in) fclose(in);
  free(path);
  return value;
}

static size_t left_in_group(void) {
  char *folder = control_group_folder("", "");
  if (!folder) return SIZE_MAX;
  const size_t most = read_number(folder, "memory.max", "", SIZE_MAX),
               used = read_number(folder, "memory.current", "", 0),
               cache = read_number(folder, "memory.stat", "inactive_file ", 0) +
                       read_number(folder, "memory.stat", "active_file ", 0);
  free(folder);
  const size_t kept = used > cache ? used - cache : 0;
  return most > kept ? (most == SIZE_MAX ? most : most - kept) : 0;
}

static size_t left_of_address_space(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const size_t used = read_number("/proc/self", "statm", "", 0) * (size_t)sysconf(_SC_PAGESIZE);
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

size_t memory_available(void) {
  const size_t kib = read_number("/proc", "meminfo", "MemAvailable:", SIZE_MAX / 1024),
               of_group = left_in_group(), of_process = left_of_address_space(),
               least = of_group < of_process ? of_group : of_process;
  return kib * 1024 < least ? kib * 1024 : least;
}
