#define _GNU_SOURCE // vasprintf, program_invocation_short_name
#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
    out_of_memory("the system refused %s%s", size_text(bytes).text,
                  attempt ? "" : "; use a smaller model, batch or file, or fewer threads");
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

ShortText short_text(const char *format, ...) {
  ShortText t = {""};
  va_list args;
  va_start(args, format);
  vsnprintf(t.text, sizeof t.text, format, args);
  va_end(args);
  return t;
}

void short_append(ShortText *t, const char *format, ...) {
  const size_t used = strlen(t->text);
  va_list args;
  va_start(args, format);
  vsnprintf(t->text + used, sizeof t->text - used, format, args);
  va_end(args);
}

ShortText size_text(size_t bytes) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  int u = 0;
  while (value >= 1024 && u < 6) value /= 1024, u++;
  return short_text("%.*f %s", u > 0 ? 2 : 0, value, unit[u]);
}

// ---- The system's limits

// The folder of this process' group, the caller's to free: of a controller of version 1, such as
// "cpu", or for "" of version 2. NULL: there is none.
static char *control_group_folder(const char *root, const char *controller) {
  // A line of this file is NUMBER:CONTROLLERS:PATH. That of version 2 has no controllers.
  char *file = xasprintf("%s/proc/self/cgroup", root), line[4096], *folder = NULL;
  FILE *in = fopen(file, "r");
  free(file);
  while (in && !folder && fgets(line, sizeof line, in)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : 0;
    if (!path) continue;
    *path++ = '\0';
    char *words = xasprintf(",%s,", controllers + 1), *word = xasprintf(",%s,", controller);
    if (strstr(words, word))
      folder = xasprintf("%s/sys/fs/cgroup%s%s%s", root, *controller ? "/" : "", controller, path);
    free(words);
    free(word);
  }
  if (in) fclose(in);
  return folder;
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

int memory_limit(size_t *bytes, Error *err) {
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"MB", 1e6}, {"GB", 1e9}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  const char *text = getenv("CODA_MEMORY_LIMIT");
  char *unit;
  *bytes = SIZE_MAX;
  if (!text) return 0;
  const double number = strtod(text, &unit);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (strcmp(unit, units[i].name) == 0 && number > 0 && number * units[i].bytes < 0x1p50) {
      *bytes = (size_t)(number * units[i].bytes);
      return 0;
    }
  return error_set(
      err, "CODA_MEMORY_LIMIT is '%.80s', but it must be a size such as 24GB or 512MiB", text);
}

// The first two numbers of a file, which may have one in each of two files; `max` is none.
static double quota_of(const char *folder, const char *file, const char *period_file) {
  double numbers[2] = {0};
  int found = 0;
  const char *const names[] = {file, period_file};
  for (int i = 0; i < 2 && names[i]; i++) {
    char *path = xasprintf("%s/%s", folder, names[i]);
    FILE *in = fopen(path, "r");
    while (in && found < 2 && fscanf(in, "%lf", &numbers[found]) == 1) found++;
    if (in) fclose(in);
    free(path);
  }
  return found == 2 && numbers[0] > 0 && numbers[1] > 0 ? numbers[0] / numbers[1] : INFINITY;
}

// The least quota of the folder and of those around it, up to the mount. Inside a container the
// path may be the host's: folders that are not there set no limit. Takes folder over.
static double least_quota(char *folder, size_t mount_length, const char *file,
                          const char *period_file) {
  double least = INFINITY;
  while (folder && strlen(folder) >= mount_length) {
    least = fmin(least, quota_of(folder, file, period_file));
    char *end = strrchr(folder, '/');
    if (!end) break;
    *end = '\0';
  }
  free(folder);
  return least;
}

double control_group_cpus(const char *root) {
  const size_t mount = strlen(root) + strlen("/sys/fs/cgroup");
  return fmin(least_quota(control_group_folder(root, ""), mount, "cpu.max", NULL),
              least_quota(control_group_folder(root, "cpu"), mount, "cpu.cfs_quota_us",
                          "cpu.cfs_period_us"));
}
