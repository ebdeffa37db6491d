#include "data/loader.h"

#include <assert.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/os.h"
#include "base/rng.h"

// A Feistel network is a bijection for any round function (Luby & Rackoff, SIAM J. Comput. 1988).
// Its domain is the power of 4 at or above n; positions that land outside [0, n) are mapped again
// until they land inside (cycle walking: Black & Rogaway, CT-RSA 2002), fewer than 4 times on
// average.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
  assert(i < n);
  enum { ROUNDS = 8 };
  int half = 1; // bits
  while (half < 32 && (n - 1) >> (2 * half)) half++;
  const uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
      const uint64_t mixed = left ^ (rng_u64(key + round, right) & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

// GLOB_NOCHECK gives the pattern itself where nothing matches: a name with brackets, or nothing.
static int find_files(const LoaderConfig *c, glob_t *found, Error *err) {
  const PathText in_folder = path_text("%s/%s-*.bin", c->pattern, c->split);
  const char *pattern = path_is_directory(c->pattern) ? in_folder.text : c->pattern;
  const int status = glob(pattern, GLOB_NOCHECK, NULL, found);
  if (status != 0)
    return error_set(err, "cannot list the files that match '%s': %s", pattern,
                     status == GLOB_NOSPACE ? "there are too many" : "a folder cannot be read");
  if (found->gl_pathc > 1 || path_exists(found->gl_pathv[0])) return 0;
  globfree(found);
  char here[4096];
  const bool relative = pattern[0] != '/' && getcwd(here, sizeof here);
  error_set(err, "no file matches '%s'", pattern);
  if (relative) error_append(err, " in the current folder, '%s'", here);
  return error_append(err, ": check the path, or make token files with ./prepare --out FOLDER "
                           "TEXT...");
}

// Each file stays open, so that its name can be given to another while the run reads it; at first
// many systems allow 1024.
static void allow_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_files(Loader *loader, const glob_t *found, Error *err) {
  const LoaderConfig *c = &loader->config;
  const size_t count = found->gl_pathc;
  allow_open_files();
  loader->window = xcalloc((size_t)c->seq + 1, sizeof *loader->window);
  loader->files = xcalloc(count, sizeof *loader->files);
  loader->first_window = xcalloc(count + 1, sizeof *loader->first_window);
  for (int f = 0; f < (int)count; f++) {
    TokenFile *file = &loader->files[f];
    if (tokens_open(file, found->gl_pathv[f], err) != 0) return -1;
    loader->file_count = f + 1;
    uint64_t content;
    if (tokens_fingerprint(file, &content, err) != 0) return -1;
    loader->fingerprint = rng_u64(loader->fingerprint, content);
    loader->tokens += file->count;
    // One window fewer than fit leaves T tokens or more for the offset that shuffling adds.
    const int64_t fit = file->count > 0 ? (file->count - 1) / c->seq : 0;
    loader->windows += c->shuffle && fit >= 2 ? fit - 1 : fit;
    loader->first_window[f + 1] = loader->windows;
  }
  return 0;
}

// ---- The check of all tokens

enum { FIRST_LOOK_MS = 500, LOOK_MS = 1, LOOK_SHARE = 100, PAUSE_MS = 2000 };

typedef struct LoaderSeen {
  struct timespec time; // when the file was last written to, before it was read
  uint64_t checksum;    // of its tokens, where they were checked
  bool checked;
} LoaderSeen;

// All tokens of file `at` were read and are right. Are they those that were there before?
static int end_file(Loader *loader, Error *err) {
  LoaderWatch *w = &loader->watch;
  LoaderSeen *s = &w->seen[w->at];
  if (s->checked && s->checksum != w->check.checksum)
    return error_set(err,
                     "'%s' was changed while it was in use: its tokens differ; make or copy it "
                     "again",
                     loader->files[w->at].path);
  *s = (LoaderSeen){.time = w->time, .checksum = w->check.checksum, .checked = true};
  return 0;
}

// 0: all files are right, -1: one is not, 1: the time came.
static int check_files(Loader *loader, double until_ms, Error *err) {
  LoaderWatch *w = &loader->watch;
  for (; w->at < loader->file_count; w->at++) {
    TokenFile *file = &loader->files[w->at];
    const LoaderSeen *s = &w->seen[w->at];
    const struct timespec time = file_time(file->fd);
    if (documents_check(&file->documents, err) != 0) return -1;
    if (s->checked && time_equal(time, s->time)) continue;
    if (w->check.next == 0) w->time = time;
    if (tokens_check_header(file, err) != 0) return -1;
    int more;
    while ((more = tokens_check(file, loader->config.vocab_size, &w->check, err)) == 1)
      if (now_ms() > until_ms) return 1;
    if (more != 0 || end_file(loader, err) != 0) return -1;
  }
  w->at = 0;
  return 0;
}

static int look(Loader *loader, double ms, Error *err) {
  const double start = now_ms();
  const int status = check_files(loader, start + ms, err);
  const double end = now_ms();
  loader->watch.due_ms = end + (status == 0 ? PAUSE_MS : LOOK_SHARE * (end - start));
  return status < 0 ? -1 : 0;
}

int loader_check(Loader *loader, int64_t vocab_size, Error *err) {
  loader->config.vocab_size = vocab_size;
  loader->watch.seen = xcalloc((size_t)loader->file_count, sizeof *loader->watch.seen);
  const int status = look(loader, FIRST_LOOK_MS, err);
  loader->watch.due_ms = 0; // that long look is no reason to wait
  return status;
}

int loader_look(Loader *loader, Error *err) {
  const LoaderWatch *w = &loader->watch;
  return w->seen && now_ms() >= w->due_ms ? look(loader, LOOK_MS, err) : 0;
}

const char *loader_replaced(const Loader *loader) {
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    if (tokens_replaced(f)) return f->path;
  return NULL;
}

static int check_size(const Loader *loader, Error *err) {
  const int64_t windows = loader->windows, B = loader->config.batch, T = loader->config.seq;
  if (windows >= B) return 0;
  // The smallest file with so many windows.
  const int64_t needed = (loader->config.shuffle && B >= 2 ? B + 1 : B) * T + 1;
  error_set(
      err, "'%s' has %" PRId64 " token%s in %d file%s, %" PRId64 " sequence%s of %" PRId64 ", but ",
      loader->config.pattern, loader->tokens, loader->tokens == 1 ? "" : "s", loader->file_count,
      loader->file_count == 1 ? "" : "s", windows, windows == 1 ? "" : "s", T);
  if (B > 1)
    error_append(err, "a batch of %" PRId64, B);
  else
    error_append(err, "one");
  return error_append(
      err, " needs at least %" PRId64 " tokens in one file: add text, or lower %s", needed,
      B > 1 ? "train.batch_size or train.sequence_length" : "train.sequence_length");
}

Loader *loader_open(const LoaderConfig *config, Error *err) {
  assert(config->batch > 0 && config->seq > 0 && config->vocab_size >= 0);
  glob_t found;
  if (find_files(config, &found, err) != 0) return NULL;
  Loader *loader = xcalloc(1, sizeof *loader);
  loader->config = *config;
  if (open_files(loader, &found, err) != 0 ||
      (config->vocab_size > 0 && loader_check(loader, config->vocab_size, err) != 0) ||
      check_size(loader, err) != 0) {
    loader_close(loader);
    loader = NULL;
  }
  globfree(&found);
  return loader;
}

void loader_close(Loader *loader) {
  if (!loader) return;
  token_check_end(&loader->watch.check);
  free(loader->watch.seen);
  for (int f = 0; f < loader->file_count; f++) tokens_close(&loader->files[f]);
  free(loader->files);
  free(loader->first_window);
  free(loader->window);
  free(loader);
}

// The file f with first_window[f] <= window < first_window[f + 1], by bisection.
static int file_of_window(const Loader *loader, int64_t window) {
  int low = 0, high = loader->file_count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (loader->first_window[middle] <= window)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// How far the windows of file f are shifted in this epoch, in [0, T) as far as the file allows.
static int64_t file_offset(const Loader *loader, int f, uint64_t epoch) {
  const int64_t T = loader->config.seq;
  if (!loader->config.shuffle) return 0;
  const int64_t windows = loader->first_window[f + 1] - loader->first_window[f];
  const int64_t slack = loader->files[f].count - 1 - windows * T;
  const int64_t most = slack < T - 1 ? slack : T - 1;
  const uint64_t key = rng_key(loader->config.seed, "data.offset");
  const uint64_t draw = rng_u64(rng_u64(key, epoch), (uint64_t)f);
  return (int64_t)(draw % ((uint64_t)most + 1));
}

// The window of that cursor: its file, and its first token there.
static int window_file(const Loader *loader, uint64_t cursor, int64_t *first) {
  const LoaderConfig *c = &loader->config;
  const uint64_t windows = (uint64_t)loader->windows, epoch = cursor / windows;
  uint64_t window = cursor % windows;
  if (c->shuffle) window = permute(window, windows, rng_u64(rng_key(c->seed, "data.order"), epoch));
  const int f = file_of_window(loader, (int64_t)window);
  *first = file_offset(loader, f, epoch) + ((int64_t)window - loader->first_window[f]) * c->seq;
  return f;
}

LoaderPlace loader_place(const Loader *loader, uint64_t cursor) {
  int64_t first;
  const int f = window_file(loader, cursor, &first);
  return (LoaderPlace){loader->files[f].path, first};
}

int loader_window(const Loader *loader, uint64_t cursor, int64_t row, Batch *batch, Error *err) {
  int64_t first;
  const LoaderConfig *c = &loader->config;
  const TokenFile *file = &loader->files[window_file(loader, cursor, &first)];
  const size_t bytes = (size_t)c->seq * sizeof *loader->window;
  if (tokens_read(file, first, c->seq + 1, c->vocab_size, loader->window, err) != 0) return -1;
  memcpy(batch->tokens + row * c->seq, loader->window, bytes);
  memcpy(batch->targets + row * c->seq, loader->window + 1, bytes);
  batch->counted += c->seq;
  return 0;
}

int loader_next(Loader *loader, Batch *batch, Error *err) {
  batch_clear(batch);
  for (int64_t row = 0; row < loader->config.batch; row++)
    if (loader_window(loader, loader->cursor++, row, batch, err) != 0) return -1;
  return loader_look(loader, err);
}
