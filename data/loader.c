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

// Adds the files of a path to those found before. GLOB_NOCHECK gives the pattern itself where
// nothing matches: a name with brackets, or nothing.
static int find_files(const char *path, const char *split, glob_t *found, Error *err) {
  const PathText in_folder = path_text("%s/%s-*.bin", path, split);
  const char *pattern = path_is_directory(path) ? in_folder.text : path;
  const size_t before = found->gl_pathc;
  const int status = glob(pattern, GLOB_NOCHECK | (before ? GLOB_APPEND : 0), NULL, found);
  if (status != 0)
    return error_set(err, "cannot list the files that match '%s': %s", pattern,
                     status == GLOB_NOSPACE ? "there are too many" : "a folder cannot be read");
  if (found->gl_pathc > before + 1 || path_exists(found->gl_pathv[before])) return 0;
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

// The files of all sources; source i has so many of them.
static int find_sources(Loader *loader, const Mixture *m, glob_t *found, Error *err) {
  for (int i = 0; i < m->count; i++) {
    const MixtureSource *from = &m->sources[i];
    Source *s = &loader->sources[loader->source_count++];
    const size_t before = found->gl_pathc;
    for (int p = 0; p < from->count; p++)
      if (find_files(from->paths[p], loader->config.split, found, err) != 0) return -1;
    s->name = from->count == 1 ? xstrdup(from->paths[0])
                               : xasprintf("%s and %d more", from->paths[0], from->count - 1);
    s->share = from->weight;
    s->file_count = (int)(found->gl_pathc - before);
  }
  return 0;
}

static int open_files(Loader *loader, const glob_t *found, Error *err) {
  allow_open_files();
  loader->files = xcalloc(found->gl_pathc, sizeof *loader->files);
  for (size_t f = 0; f < found->gl_pathc; f++) {
    TokenFile *file = &loader->files[f];
    if (tokens_open(file, found->gl_pathv[f], err) != 0) return -1;
    loader->file_count++;
    loader->tokens += file->count;
  }
  return 0;
}

// Documents are apart where that is asked for and any file has their ends.
static bool are_apart(const Loader *loader) {
  bool ends = false;
  for (int f = 0; f < loader->file_count; f++) ends |= loader->files[f].documents.count > 0;
  return ends && loader->config.documents == DOCUMENTS_MASK;
}

static WindowKind choose_kind(const Loader *loader) {
  bool masked = false;
  for (int f = 0; f < loader->file_count; f++) masked |= loader->files[f].documents.masked;
  if (loader->apart) return loader->config.alone ? WINDOWS_ALONE : WINDOWS_PACKED;
  return masked || loader->config.whole ? WINDOWS_ALONE : WINDOWS_JOINED;
}

// A window need not be longer than the longest file.
static void shorten_windows(Loader *loader) {
  int64_t longest = 1;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    if (f->count - 1 > longest) longest = f->count - 1;
  if (longest < loader->config.seq) loader->config.seq = longest;
}

// Windows are drawn by their number, but shares are of tokens: a source whose windows have fewer
// tokens that count gives more windows.
static void weigh_windows(Loader *loader) {
  double sum = 0;
  bool alike = true;
  const double T = (double)loader->config.seq;
  for (Source *s = loader->sources; s < loader->sources + loader->source_count; s++) {
    const double a_window = s->windows > 0 ? (double)s->counted / (double)s->windows : T;
    alike &= a_window == T;
    sum += s->weight = s->share / a_window;
  }
  for (int i = 0; i < loader->source_count; i++) {
    Source *s = &loader->sources[i];
    s->weight = loader->weights[i] = alike ? s->share : s->weight / sum;
  }
}

// Of windows that are pieces.
static void add_packing(Loader *loader, const Source *s) {
  const Packing *p = &s->packing;
  const double windows = (double)(s->windows > 0 ? s->windows : 1), T = (double)loader->config.seq;
  const int64_t most = p->most + (p->padded > 0);
  if (most > loader->most_documents) loader->most_documents = most;
  loader->mean_documents += s->weight * (double)(p->count + p->padded) / windows;
  loader->documents += p->documents;
  loader->cut += p->cut;
  loader->padding += s->weight * ((double)s->windows * T - (double)p->rows) / (windows * T);
}

static void describe_windows(Loader *loader, WindowKind kind) {
  weigh_windows(loader);
  for (const Source *s = loader->sources; s < loader->sources + loader->source_count; s++) {
    loader->windows += s->windows;
    loader->targets += s->targets;
    loader->counted += s->counted;
    loader->fingerprint =
        loader->source_count == 1 ? s->fingerprint : rng_u64(loader->fingerprint, s->fingerprint);
    if (kind != WINDOWS_JOINED) add_packing(loader, s);
  }
  loader->packed = kind == WINDOWS_PACKED;
  if (!loader->packed) loader->most_documents = 1;
  if (!loader->packed) loader->mean_documents = 1;
}

static int open_sources(Loader *loader, Error *err) {
  LoaderConfig *c = &loader->config;
  const TokenFile *file = loader->files;
  loader->apart = are_apart(loader);
  const WindowKind kind = choose_kind(loader);
  if (c->whole) shorten_windows(loader);
  for (Source *s = loader->sources; s < loader->sources + loader->source_count; s++) {
    s->files = file;
    file += s->file_count;
    s->T = c->seq;
    s->seed = c->seed;
    s->shuffle = c->shuffle;
    s->kind = kind;
    if (source_open(s, !loader->apart, err) != 0) return -1;
    if (s->packing.longest > loader->longest) loader->longest = s->packing.longest;
  }
  if (kind == WINDOWS_JOINED) loader->longest = c->seq;
  if (c->whole && kind == WINDOWS_ALONE && loader->longest > 0) c->seq = loader->longest;
  describe_windows(loader, kind);
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

static int check_sources(const Loader *loader, Error *err) {
  for (const Source *s = loader->sources; s < loader->sources + loader->source_count; s++)
    if (s->windows == 0 && s->targets > 0)
      return error_set(err, "'%s' has no token that counts as a target: leave it out", s->name);
    else if (s->windows == 0)
      return error_set(err,
                       "'%s' has no sequence of %" PRId64 " tokens: leave it out, or lower "
                       "train.sequence_length",
                       s->name, loader->config.seq);
  return 0;
}

// Windows that are pieces.
static int too_few_pieces(const Loader *loader, Error *err) {
  const int64_t windows = loader->windows, B = loader->config.batch;
  const char *pattern = loader->config.pattern;
  if (loader->targets == 0)
    return error_set(err, "'%s' has no token to predict: a document needs two tokens or more",
                     pattern);
  if (windows == 0)
    return error_set(err,
                     "'%s' has no token that counts as a target: its mask leaves out all %" PRId64
                     " tokens; make it again with text that is to be learned",
                     pattern, loader->tokens);
  return error_set(err,
                   "'%s' fills %" PRId64 " sequence%s of %" PRId64
                   " tokens, but a batch needs %" PRId64
                   ": add text, or lower train.batch_size or train.sequence_length",
                   pattern, windows, windows == 1 ? "" : "s", loader->config.seq, B);
}

static int check_size(const Loader *loader, Error *err) {
  const int64_t windows = loader->windows, B = loader->config.batch, T = loader->config.seq;
  if (windows >= B) return loader->source_count > 1 ? check_sources(loader, err) : 0;
  if (loader->sources[0].kind != WINDOWS_JOINED) return too_few_pieces(loader, err);
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

static int open_paths(Loader *loader, Error *err) {
  Mixture mixture;
  glob_t found = {0};
  if (mixture_parse(&mixture, loader->config.pattern, err) != 0) return -1;
  loader->sources = xcalloc((size_t)mixture.count, sizeof *loader->sources);
  const int status =
      find_sources(loader, &mixture, &found, err) != 0 || open_files(loader, &found, err) != 0 ? -1
                                                                                               : 0;
  globfree(&found);
  mixture_free(&mixture);
  return status;
}

static void open_text(Loader *loader) {
  const TokenFile *text = loader->config.text;
  loader->sources = xcalloc(1, sizeof *loader->sources);
  loader->files = xmalloc(sizeof *loader->files);
  *loader->files = *text;
  loader->files->path = xstrdup(text->path);
  loader->sources[0] = (Source){.name = xstrdup(text->path), .share = 1, .file_count = 1};
  loader->source_count = loader->file_count = 1;
  loader->tokens = text->count;
}

Loader *loader_open(const LoaderConfig *config, Error *err) {
  assert(config->batch > 0 && config->seq > 0 && config->vocab_size >= 0);
  Loader *loader = xcalloc(1, sizeof *loader);
  loader->config = *config;
  loader->window = xcalloc((size_t)config->seq + 1, sizeof *loader->window);
  loader->mask = xcalloc((size_t)config->seq, sizeof *loader->mask);
  if (config->text) open_text(loader);
  if ((!config->text && open_paths(loader, err) != 0) || open_sources(loader, err) != 0 ||
      (config->vocab_size > 0 && loader_check(loader, config->vocab_size, err) != 0) ||
      check_size(loader, err) != 0) {
    loader_close(loader);
    return NULL;
  }
  return loader;
}

void loader_close(Loader *loader) {
  if (!loader) return;
  token_check_end(&loader->watch.check);
  free(loader->watch.seen);
  for (int f = 0; f < loader->file_count; f++) tokens_close(&loader->files[f]);
  for (int i = 0; i < loader->source_count; i++) source_close(&loader->sources[i]);
  free(loader->files);
  free(loader->sources);
  free(loader->window);
  free(loader->mask);
  free(loader);
}

// ---- Windows

static void draw(const Loader *loader, Draws *draws, LoaderPlace *place) {
  const int i = mixture_next(loader->weights, loader->source_count, draws);
  const Source *s = &loader->sources[i];
  *place = (LoaderPlace){s, s->began + draws->of[i]++};
  draws->total++;
}

// The draws of all windows before the cursor.
static Draws draws_before(const Loader *loader, uint64_t cursor) {
  const uint64_t total = cursor - loader->began;
  Draws draws = total >= loader->now.total ? loader->now : loader->first;
  LoaderPlace passed;
  assert(total >= draws.total);
  if (loader->source_count == 1) draws.of[0] = draws.total = total;
  while (draws.total < total) draw(loader, &draws, &passed);
  return draws;
}

LoaderPlace loader_place(const Loader *loader, uint64_t cursor) {
  Draws draws = draws_before(loader, cursor);
  LoaderPlace place;
  draw(loader, &draws, &place);
  return place;
}

uint64_t loader_drawn(const Loader *loader, int source, uint64_t cursor) {
  return loader->sources[source].began + draws_before(loader, cursor).of[source];
}

void loader_resume(Loader *loader, uint64_t cursor, const uint64_t *drawn, const uint64_t *since) {
  loader->cursor = loader->began = cursor;
  loader->first = (Draws){.total = 0};
  for (int i = 0; i < loader->source_count; i++) {
    loader->sources[i].began = drawn[i] - since[i];
    loader->first.of[i] = since[i];
    loader->first.total += since[i];
    loader->began -= since[i];
  }
  loader->now = loader->first;
}

// The rows of a piece, to row `at` of the batch.
static int read_piece(const Loader *loader, const Source *s, WindowPiece piece, int64_t at,
                      Batch *batch, Error *err) {
  const TokenFile *file = &s->files[piece.file];
  const size_t bytes = piece.rows * sizeof *loader->window;
  int32_t *targets = batch->targets + at;
  if (tokens_read(file, piece.first, (int64_t)piece.rows + 1, loader->config.vocab_size,
                  loader->window, err) != 0)
    return -1;
  memcpy(batch->tokens + at, loader->window, bytes);
  memcpy(targets, loader->window + 1, bytes);
  batch->counted += piece.rows;
  if (!file->documents.masked) return 0;
  if (documents_mask(&file->documents, (int64_t)piece.first + 1, piece.rows, loader->mask, err))
    return -1;
  for (uint32_t i = 0; i < piece.rows; i++) {
    if (loader->mask[i]) continue;
    targets[i] = NO_TARGET;
    batch->counted--;
  }
  return 0;
}

// A mask that has changed since the windows were chosen is found here.
static int read_window(const Loader *loader, LoaderPlace place, int64_t row, Batch *batch,
                       Error *err) {
  const int64_t end = (row + 1) * loader->config.seq, before = batch->counted;
  int64_t at = row * loader->config.seq, i = 0;
  for (WindowPiece p; (p = source_piece(place.source, place.position, i)).rows > 0;
       i++, at += p.rows) {
    if (read_piece(loader, place.source, p, at, batch, err) != 0) return -1;
    if (loader->packed) batch->lengths[batch->documents++] = (int32_t)p.rows;
  }
  batch_pad(batch, at, end - at, loader->packed ? loader->longest : 0);
  if (batch->counted > before) return 0;
  return error_set(err,
                   "'%s' was changed while it was in use: no token counts in a window that had "
                   "some; make or copy it again",
                   place.source->name);
}

int loader_window(const Loader *loader, uint64_t cursor, int64_t row, Batch *batch, Error *err) {
  return read_window(loader, loader_place(loader, cursor), row, batch, err);
}

int loader_next(Loader *loader, Batch *batch, Error *err) {
  batch_clear(batch);
  loader->now = draws_before(loader, loader->cursor);
  for (int64_t row = 0; row < loader->config.batch; row++, loader->cursor++) {
    LoaderPlace place;
    draw(loader, &loader->now, &place);
    if (read_window(loader, place, row, batch, err) != 0) return -1;
  }
  return loader_look(loader, err);
}
