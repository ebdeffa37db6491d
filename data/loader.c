#include "data/loader.h"

#include <assert.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "base/rng.h"

// ---- The order of windows

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

// The file f with first_window[f] <= window < first_window[f + 1], by bisection.
static int file_of_window(const Source *s, int64_t window) {
  int low = 0, high = s->file_count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (s->first_window[middle] <= window)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// How far the windows of file f are shifted in this epoch, in [0, T) as far as the file allows.
static int64_t file_offset(const LoaderConfig *c, const Source *s, int f, uint64_t epoch) {
  if (!c->shuffle) return 0;
  const int64_t windows = s->first_window[f + 1] - s->first_window[f];
  const int64_t slack = s->files[f].count - 1 - windows * c->seq;
  const int64_t most = min_i64(slack, c->seq - 1);
  const uint64_t key = rng_key(c->seed, "data.offset");
  const uint64_t draw = rng_u64(rng_u64(key, epoch), (uint64_t)f);
  return (int64_t)(draw % ((uint64_t)most + 1));
}

// Where windows are read in pieces, piece i at this position is one of another window: position
// becomes that window's, and i 0. Returns which of its pieces that is. Behind the last piece nothing
// changes.
static uint64_t take_piece(const Loader *loader, const Source *s, uint64_t *position, int64_t *i) {
  if (loader->pieces == 1 || *i >= loader->pieces) return 0;
  const double share = loader->weights[s - loader->sources];
  const uint64_t n = (uint64_t)loader->pieces,
                 block = 1 + (uint64_t)(share * (double)(loader->piece_block - 1));
  const uint64_t piece = *position * n + (uint64_t)*i, within = piece % (block * n);
  *position = piece / (block * n) * block + within % block;
  *i = 0;
  return within / block;
}

WindowPiece loader_piece(const Loader *loader, const Source *s, uint64_t position, int64_t i) {
  const LoaderConfig *c = &loader->config;
  const uint64_t part = take_piece(loader, s, &position, &i);
  const uint64_t windows = (uint64_t)s->windows, epoch = position / windows;
  const Packing *p = &s->packing;
  uint64_t window = position % windows;
  if (c->shuffle) window = permute(window, windows, rng_u64(rng_key(c->seed, "data.order"), epoch));
  if (loader->kind == WINDOWS_PACKED) {
    const uint32_t *begin = p->begin + window;
    return i < begin[1] - begin[0] ? p->pieces[p->list[begin[0] + i]] : (WindowPiece){0};
  }
  if (i > 0) return (WindowPiece){0};
  if (loader->kind == WINDOWS_ALONE) return p->pieces[window];
  const int f = file_of_window(s, (int64_t)window);
  const int64_t rows = c->seq / loader->pieces,
                first = file_offset(c, s, f, epoch) +
                        ((int64_t)window - s->first_window[f]) * c->seq + (int64_t)part * rows;
  return (WindowPiece){(uint32_t)f, (uint32_t)first, (uint32_t)rows};
}

// ---- Reading windows

bool loader_packs(const Loader *loader) {
  return loader->kind == WINDOWS_PACKED;
}

void loader_pad(const Loader *loader, Batch *batch, int64_t at, int64_t rows) {
  batch_pad(batch, at, rows, loader_packs(loader) ? loader->epoch.longest : 0);
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
  for (uint32_t i = 0; i < piece.rows && file->documents.mask; i++) {
    if (documents_counts(&file->documents, (int64_t)piece.first + 1 + i)) continue;
    targets[i] = NO_TARGET;
    batch->counted--;
  }
  return 0;
}

static int read_window(const Loader *loader, const Source *source, uint64_t drawn, int64_t row,
                       Batch *batch, Error *err) {
  const int64_t end = (row + 1) * loader->config.seq;
  int64_t at = row * loader->config.seq, i = 0;
  for (WindowPiece p; (p = loader_piece(loader, source, drawn, i)).rows > 0; i++, at += p.rows) {
    if (read_piece(loader, source, p, at, batch, err) != 0) return -1;
    if (loader_packs(loader)) batch->lengths[batch->documents++] = (int32_t)p.rows;
  }
  loader_pad(loader, batch, at, end - at);
  return 0;
}

int loader_window(const Loader *loader, uint64_t drawn, int64_t row, Batch *batch, Error *err) {
  assert(loader->source_count == 1);
  return read_window(loader, loader->sources, drawn, row, batch, err);
}

int loader_next(Loader *loader, Batch *batch, Error *err) {
  Draws *drawn = &loader->drawn;
  batch_clear(batch);
  for (int64_t row = 0; row < loader->config.batch; row++) {
    const int i = mixture_next(loader->weights, loader->source_count, drawn->since);
    if (read_window(loader, &loader->sources[i], drawn->of[i], row, batch, err) != 0) return -1;
    drawn->windows++;
    drawn->of[i]++;
    drawn->since[i]++;
  }
  return 0;
}

// ---- Finding and opening files

// A glob that matches this path alone.
static PathText glob_literal(const char *path) {
  PathText escaped = {""};
  size_t n = 0;
  for (; *path && n + 2 < sizeof escaped.text; path++) {
    if (strchr("*?[]\\", *path)) escaped.text[n++] = '\\';
    escaped.text[n++] = *path;
  }
  escaped.text[n] = '\0';
  return escaped;
}

static int refuse_pattern(const char *pattern, Error *err) {
  char here[4096];
  const bool relative = pattern[0] != '/' && getcwd(here, sizeof here);
  error_set(err, "no file matches '%s'", pattern);
  if (relative) error_append(err, " in the current folder, '%s'", here);
  return error_append(err, ": check the path, or make token files with ./prepare --out FOLDER "
                           "TEXT...");
}

static int find_files(const char *path, const char *split, glob_t *found, Error *err) {
  const PathText literal = glob_literal(path);
  const bool folder = path_is_directory(path);
  const PathText in_folder = path_text("%s/%s-*.bin", literal.text, split);
  const char *pattern = folder ? in_folder.text : path_exists(path) ? literal.text : path;
  const int status = glob(pattern, 0, NULL, found);
  if (status == 0) return 0;
  if (status == GLOB_NOMATCH)
    return refuse_pattern(folder ? path_text("%s/%s-*.bin", path, split).text : path, err);
  return error_set(err, "cannot list the files that match '%s': %s", path,
                   status == GLOB_NOSPACE ? "there are too many" : "a folder cannot be read");
}

// Each file stays open, so that its name can be given to another while the run reads it; at first
// many systems allow 1024.
static void allow_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Opens the files of a path, behind those of the paths before it.
static int open_path(Loader *loader, const char *path, Error *err) {
  glob_t found = {0};
  int status = find_files(path, loader->config.split, &found, err);
  const size_t count = (size_t)loader->file_count + (status == 0 ? found.gl_pathc : 0);
  loader->files = xrealloc(loader->files, count * sizeof *loader->files);
  for (size_t i = 0; status == 0 && i < found.gl_pathc; i++) {
    TokenFile *file = &loader->files[loader->file_count];
    status = tokens_open(file, found.gl_pathv[i], err);
    if (status != 0) break;
    loader->file_count++;
    loader->epoch.tokens += file->count;
  }
  globfree(&found);
  return status;
}

static int open_files(Loader *loader, const Mixture *m, Error *err) {
  allow_open_files();
  for (int i = 0; i < m->count; i++) {
    const MixtureSource *from = &m->sources[i];
    Source *s = &loader->sources[loader->source_count++];
    const int before = loader->file_count;
    s->name = from->count == 1 ? xstrdup(from->paths[0])
                               : xasprintf("%s and %d more", from->paths[0], from->count - 1);
    s->share = from->weight;
    for (int p = 0; p < from->count; p++)
      if (open_path(loader, from->paths[p], err) != 0) return -1;
    s->file_count = loader->file_count - before;
  }
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    if (!tokens_named(f))
      return error_set(err, "'%s' was replaced while it was opened: try again", f->path);
  return 0;
}

// Documents are apart where that is asked for and any file has their ends. Of `whole` files a
// window need not be longer than the longest.
static void choose_windows(Loader *loader) {
  LoaderConfig *c = &loader->config;
  bool ends = false, masked = false;
  int64_t longest = 1;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++) {
    ends |= f->documents.count > 0;
    masked |= f->documents.mask != NULL;
    longest = max_i64(longest, f->count - 1);
  }
  loader->apart = ends && c->documents == DOCUMENTS_MASK;
  loader->kind = loader->apart && !c->alone            ? WINDOWS_PACKED
                 : loader->apart || masked || c->whole ? WINDOWS_ALONE
                                                       : WINDOWS_JOINED;
  if (c->whole) c->seq = min_i64(c->seq, longest);
}

// Windows are drawn by their number, but shares are of tokens: a source whose windows have fewer
// tokens that count gives more windows.
static void weigh_windows(Loader *loader) {
  double sum = 0;
  bool alike = true;
  const double T = (double)loader->config.seq;
  for (int i = 0; i < loader->source_count; i++) {
    const Source *s = &loader->sources[i];
    const double a_window = s->windows > 0 ? (double)s->counted / (double)s->windows : T;
    alike &= a_window == T;
    sum += loader->weights[i] = s->share / a_window;
  }
  for (int i = 0; i < loader->source_count; i++)
    loader->weights[i] = alike ? loader->sources[i].share : loader->weights[i] / sum;
}

// Of windows that are pieces. weight: the source's share of the windows.
static void add_packing(Epoch *e, const Source *s, double T, double weight) {
  const Packing *p = &s->packing;
  const double windows = (double)(s->windows > 0 ? s->windows : 1);
  e->most_documents = max_i64(e->most_documents, p->most + (p->padded > 0));
  e->mean_documents += weight * (double)(p->count + p->padded) / windows;
  e->documents += p->documents;
  e->cut += p->cut;
  e->padding += weight * ((double)s->windows * T - (double)p->rows) / (windows * T);
}

static void describe_epoch(Loader *loader) {
  Epoch *e = &loader->epoch;
  weigh_windows(loader);
  for (int i = 0; i < loader->source_count; i++) {
    const Source *s = &loader->sources[i];
    e->windows += s->windows;
    e->targets += s->targets;
    e->counted += s->counted;
    loader->fingerprint =
        loader->source_count == 1 ? s->fingerprint : rng_u64(loader->fingerprint, s->fingerprint);
    if (loader->kind != WINDOWS_JOINED)
      add_packing(e, s, (double)loader->config.seq, loader->weights[i]);
  }
  if (!loader_packs(loader)) e->mean_documents = (double)(e->most_documents = 1);
}

static int read_fingerprint(const Loader *loader, Source *s, Error *err) {
  for (const TokenFile *f = s->files; f < s->files + s->file_count; f++) {
    uint64_t content;
    if (tokens_fingerprint(f, &content, err) != 0) return -1;
    s->fingerprint = rng_u64(s->fingerprint, content);
    // Joined windows without a mask are those of files whose ends are not known.
    if (f->documents.path && (loader->kind != WINDOWS_JOINED || f->documents.mask))
      s->fingerprint = rng_u64(s->fingerprint, f->documents.content);
  }
  return 0;
}

static void count_joined(Source *s, int64_t T, bool shuffle) {
  s->first_window = xcalloc((size_t)s->file_count + 1, sizeof *s->first_window);
  for (int f = 0; f < s->file_count; f++) {
    // One window fewer than fit leaves T tokens or more for the offset that shuffling adds.
    const int64_t count = s->files[f].count, fit = count > 0 ? (count - 1) / T : 0;
    s->windows += shuffle && fit >= 2 ? fit - 1 : fit;
    s->first_window[f + 1] = s->windows;
  }
  s->targets = s->counted = s->windows * T;
}

static int open_source(const Loader *loader, Source *s, Error *err) {
  const int64_t T = loader->config.seq;
  for (int f = 0; f < s->file_count; f++) s->tokens += s->files[f].count;
  if (read_fingerprint(loader, s, err) != 0) return -1;
  if (loader->kind == WINDOWS_JOINED) {
    count_joined(s, T, loader->config.shuffle);
    return 0;
  }
  if (pack(&s->packing, s->files, s->file_count, T, !loader->apart, loader->kind == WINDOWS_ALONE,
           err) != 0)
    return -1;
  s->windows = s->packing.windows;
  s->targets = s->packing.rows + s->packing.left_out;
  s->counted = s->packing.counted;
  return 0;
}

static int open_sources(Loader *loader, Error *err) {
  LoaderConfig *c = &loader->config;
  int64_t *longest = &loader->epoch.longest;
  const TokenFile *file = loader->files;
  choose_windows(loader);
  for (Source *s = loader->sources; s < loader->sources + loader->source_count; s++) {
    s->files = file;
    file += s->file_count;
    if (open_source(loader, s, err) != 0) return -1;
    *longest = max_i64(*longest, s->packing.longest);
  }
  if (loader->kind == WINDOWS_JOINED) *longest = c->seq;
  if (c->whole && loader->kind == WINDOWS_ALONE && *longest > 0) c->seq = *longest;
  describe_epoch(loader);
  return 0;
}

// ---- The check of all tokens

// A line says so before the first of a GB of files that are read whole, or once that took a second.
static int check_files(Loader *loader, Error *err) {
  enum { MUCH = 1 << 30 };
  const double start = now_ms();
  size_t bytes = 0; // of files that are read whole; 0: the line was printed
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    if (!f->documents.facts.sums) bytes += (size_t)(f->count * f->token_bytes);
  for (TokenFile *f = loader->files; f < loader->files + loader->file_count; f++) {
    const bool whole = !f->documents.facts.sums && bytes > 0;
    if (whole && (bytes > MUCH || now_ms() - start > 1000)) {
      fprintf(stderr,
              "each start reads %s of token files whole, such as '%s': they have no checksums of "
              "their blocks; the datasets of ./prepare --out FOLDER have them\n",
              size_text(bytes).text, f->path);
      bytes = 0;
    }
    if (tokens_check(f, err) != 0) return -1;
    if (f->tokenizer == 0)
      loader->checksum = rng_u64(loader->checksum, f->documents.facts.checksum);
  }
  return 0;
}

int loader_check(Loader *loader, int64_t vocab_size, Error *err) {
  assert(vocab_size > 0);
  loader->config.vocab_size = vocab_size;
  if (check_files(loader, err) != 0) return -1;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++) {
    const uint32_t id = f->documents.facts.largest;
    if ((int64_t)id < vocab_size) continue;
    error_set(err, "'%s' has the token id %" PRIu32 ", but the model knows only 0 to %" PRId64,
              f->path, id, vocab_size - 1);
    return 1;
  }
  return 0;
}

uint32_t loader_largest(const Loader *loader) {
  uint32_t largest = 0;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    if (f->documents.facts.largest > largest) largest = f->documents.facts.largest;
  return largest;
}

const TokenFile *loader_common(const Loader *loader, const Loader *other) {
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++)
    for (const TokenFile *g = other->files; g < other->files + other->file_count; g++)
      if (f->count > 0 && f->count == g->count &&
          f->documents.facts.checksum == g->documents.facts.checksum)
        return f;
  return NULL;
}

static int check_source(const Loader *loader, const Source *s, Error *err) {
  if (s->windows > 0) return 0;
  if (s->targets > 0)
    return error_set(err,
                     "'%s' has no token that counts as a target: its mask leaves out all %" PRId64
                     " tokens; leave it out, or make it again with text that is to be learned",
                     s->name, s->tokens);
  if (loader->kind != WINDOWS_JOINED)
    return error_set(err, "'%s' has no token to predict: a document needs two tokens or more",
                     s->name);
  if (loader->source_count == 1) return 0;
  return error_set(err,
                   "'%s' has no sequence of %" PRId64 " tokens: leave it out, or lower "
                   "train.sequence_length",
                   s->name, loader->config.seq);
}

static int check_size(const Loader *loader, Error *err) {
  const Epoch *e = &loader->epoch;
  const int64_t B = loader->config.batch, T = loader->config.seq;
  for (const Source *s = loader->sources; s < loader->sources + loader->source_count; s++)
    if (check_source(loader, s, err) != 0) return -1;
  if (e->windows >= B) return 0;
  error_set(err,
            "'%s' has %" PRId64 " tokens, which make %" PRId64 " of the %" PRId64
            " sequences of %" PRId64 " that a batch needs",
            loader->config.pattern, e->tokens, e->windows, B, T);
  if (loader->kind == WINDOWS_JOINED) // the smallest file with enough windows
    error_append(err, ", at least %" PRId64 " tokens in one file",
                 (loader->config.shuffle && B >= 2 ? B + 1 : B) * T + 1);
  return error_append(err, ": add text, or lower %strain.sequence_length",
                      B > 1 ? "train.batch_size or " : "");
}

static void close_sources(Loader *loader) {
  for (int f = 0; f < loader->file_count; f++) tokens_close(&loader->files[f]);
  for (Source *s = loader->sources; s < loader->sources + loader->source_count; s++) {
    packing_free(&s->packing);
    free(s->first_window);
    free(s->name);
    *s = (Source){0};
  }
  free(loader->files);
  loader->files = NULL;
  loader->epoch.tokens = loader->file_count = loader->source_count = 0;
}

// Another dataset may take the name of the folder meanwhile (./prepare --force), so that some files
// are those of one, and some of the other. The next try finds all of one.
static int open_paths(Loader *loader, Error *err) {
  enum { TRIES = 3 };
  Mixture mixture;
  if (mixture_parse(&mixture, loader->config.pattern, err) != 0) return -1;
  loader->sources = xcalloc((size_t)mixture.count, sizeof *loader->sources);
  int status = -1;
  for (int i = 0; i < TRIES && status != 0; i++) {
    close_sources(loader);
    status = open_files(loader, &mixture, err);
  }
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
  loader->epoch.tokens = text->count;
}

Loader *loader_open(const LoaderConfig *config, Error *err) {
  assert(config->batch > 0 && config->seq > 0 && config->vocab_size >= 0);
  Loader *loader = xcalloc(1, sizeof *loader);
  loader->config = *config;
  loader->pieces = 1;
  loader->window = xcalloc((size_t)config->seq + 1, sizeof *loader->window);
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
  close_sources(loader);
  free(loader->sources);
  free(loader->window);
  free(loader);
}
