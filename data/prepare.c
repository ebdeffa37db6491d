// ./prepare: text files, folders and .jsonl files -> token files for training and validation.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "data/shards.h"
#include "data/tokenizer.h"

static const char HELP[] =
    "usage: ./prepare [options] PATH...\n"
    "\n"
    "Turns text into token files for training and validation, a token a byte (vocab_size 258).\n"
    "A PATH is a text file (one document), a .jsonl file (each line an object whose \"text\" is a\n"
    "document) or a folder of both, with the folders in it.\n"
    "\n"
    "  --out FOLDER        where train-00000.bin, val-00000.bin, ... go (data/text)\n"
    "  --val-fraction F    part kept for validation, above 0 and below 1 (0.1)\n"
    "  --seed N            chooses the documents for validation (0)\n"
    "  --shard-tokens N    tokens in a file at most (1000000000)\n"
    "  --help              this text\n"
    "\n"
    "Of fewer than 100 documents the tail of each is kept for validation; of more, whole ones.\n";

// From this many documents on, whole ones are kept for validation.
enum { MANY_DOCUMENTS = 100 };

typedef struct Options {
  PathText out;
  double val_fraction;
  int64_t seed, shard_tokens;
  bool help;
  char **paths; // [path_count]
  int path_count;
} Options;

// ---- Options

static int parse_integer(const char *name, const char *text, int64_t min, int64_t max,
                         int64_t *value, Error *err) {
  char *end;
  errno = 0;
  *value = strtoll(text, &end, 10);
  if (end != text && !*end && errno == 0 && *value >= min && *value <= max) return 0;
  return error_set(err, "%s must be a whole number from %" PRId64 " to %" PRId64 ", not '%s'", name,
                   min, max, text);
}

static int set_option(Options *o, const char *name, const char *value, Error *err) {
  if (strcmp(name, "--seed") == 0) return parse_integer(name, value, 0, INT64_MAX, &o->seed, err);
  if (strcmp(name, "--shard-tokens") == 0)
    return parse_integer(name, value, 1, TOKENS_MAX_COUNT, &o->shard_tokens, err);
  if (strcmp(name, "--val-fraction") == 0) {
    char *end;
    o->val_fraction = strtod(value, &end);
    if (end != value && !*end && o->val_fraction > 0 && o->val_fraction < 1) return 0;
    return error_set(err, "%s must be a number above 0 and below 1, not '%s'", name, value);
  }
  size_t length = strlen(value);
  if (length == 0) return error_set(err, "--out needs a folder, not an empty name");
  while (length > 1 && value[length - 1] == '/') length--;
  o->out = path_text("%.*s", (int)length, value);
  return 0;
}

// argv[*i] is an option, alone, as --name=value, or with its value in the next argument.
static int parse_option(Options *o, int argc, char **argv, int *i, Error *err) {
  static const char *const names[] = {"--out", "--val-fraction", "--seed", "--shard-tokens",
                                      "--help"};
  char *name = argv[*i], *value = strchr(name, '=');
  if (value) *value++ = '\0';
  const char *near = nearest_name(name, names, sizeof names / sizeof *names);
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
    o->help = true;
    return 0;
  }
  if (!near || strcmp(name, near) != 0)
    return error_set(err, "unknown option '%s': %s%s", name,
                     near ? "did you mean " : "--help lists them", near ? near : "");
  if (!value && *i + 1 >= argc) return error_set(err, "%s needs a value: --help says more", name);
  return set_option(o, name, value ? value : argv[++*i], err);
}

// The paths move to the front of argv.
static int parse_options(Options *o, int argc, char **argv, Error *err) {
  *o = (Options){.out = path_text("data/text"),
                 .val_fraction = 0.1,
                 .shard_tokens = 1000000000,
                 .paths = argv};
  bool only_paths = false;
  for (int i = 1; i < argc; i++) {
    const bool option = !only_paths && argv[i][0] == '-' && argv[i][1];
    if (!option)
      o->paths[o->path_count++] = argv[i];
    else if (strcmp(argv[i], "--") == 0)
      only_paths = true;
    else if (parse_option(o, argc, argv, &i, err) != 0)
      return -1;
  }
  if (o->path_count > 0 || o->help) return 0;
  return error_set(err, "name the text files, folders or .jsonl files to prepare, as in "
                        "'./prepare my.txt': --help says more");
}

// ---- Progress, on standard error, once the work has taken a second

typedef struct Progress {
  double start, shown; // seconds; shown = 0 until the first line
  uint64_t total;      // bytes
  bool terminal;
} Progress;

static void progress_show(Progress *p, uint64_t done) {
  const double now = now_ms() / 1000, elapsed = now - p->start;
  if (elapsed < 1 || now - p->shown < (p->terminal ? 0.1 : 10)) return;
  p->shown = now;
  const double part = p->total > 0 && done < p->total ? (double)done / (double)p->total : 1;
  const double left = part > 0 ? elapsed * (1 - part) / part : 0;
  enum { WIDTH = 30 };
  char bar[WIDTH + 1];
  for (int i = 0; i < WIDTH; i++) bar[i] = i < (int)(part * WIDTH) ? '#' : '.';
  bar[WIDTH] = '\0';
  if (p->terminal) fprintf(stderr, "\r[%s] ", bar);
  fprintf(stderr, "%3.0f %%, %.0f MB/s, %.0f s left%s", 100 * part, (double)done / elapsed / 1e6,
          left, p->terminal ? "\033[K" : "\n");
}

static void progress_end(const Progress *p) {
  if (p->terminal && p->shown > 0) fputs("\r\033[K", stderr);
}

// ---- Signals are held back, and looked for between blocks, so that no half file is left

static void signals_hold(void) {
  static const int stopping[] = {SIGINT, SIGTERM, SIGHUP};
  sigset_t held;
  sigemptyset(&held);
  for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++) {
    struct sigaction action; // one that is ignored, as under nohup, stays so
    if (sigaction(stopping[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
      sigaddset(&held, stopping[i]);
  }
  sigprocmask(SIG_BLOCK, &held, NULL);
  signal(SIGXFSZ, SIG_IGN); // a limit on file sizes is then an error of write
}

static bool signals_came(void) {
  sigset_t pending;
  return sigpending(&pending) == 0 &&
         (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
          sigismember(&pending, SIGHUP) == 1);
}

// ---- The output folder

// How many folders of the path are not there.
static int count_missing(const char *path) {
  int missing = 0;
  for (PathText at = path_text("%s", path); !path_exists(at.text); missing++)
    at = path_parent(at.text);
  return missing;
}

// Removes those folders again, from the innermost out, as far as they are empty.
static void remove_created(const char *path, int missing) {
  PathText at = path_text("%s", path);
  for (; missing > 0 && rmdir(at.text) == 0; missing--) at = path_parent(at.text);
}

// Says so before hours of work when the disk cannot hold the tokens of the text files, or their
// number of shards has no end. What .jsonl files need is not known.
static int check_room(const Options *o, uint64_t text_bytes, Error *err) {
  if (text_bytes / (uint64_t)o->shard_tokens > 2 * SHARDS_MAX)
    return error_set(err, "%s of text would make more than %d files: use a larger --shard-tokens",
                     size_text(text_bytes).text, SHARDS_MAX);
  struct statvfs fs;
  if (statvfs(o->out.text, &fs) != 0) return 0;
  const uint64_t needed = 2 * text_bytes, free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
  if (needed <= free_bytes) return 0;
  return error_set(err,
                   "the token files need %s, but '%s' has %s free: make room, or choose another "
                   "disk with --out",
                   size_text(needed).text, o->out.text, size_text(free_bytes).text);
}

// ---- Splitting and writing

typedef struct Job {
  const Options *options;
  Shards train, val;
  bool many; // whole documents are kept for validation
  int64_t documents;
  uint64_t bytes; // of text
} Job;

// One of the first documents goes to validation and the next to training whatever the draws, so
// that neither is left empty.
static bool is_validation(const Options *o, int64_t document) {
  const uint64_t key = rng_key((uint64_t)o->seed, "prepare.split");
  const int64_t kept = (int64_t)(rng_u64(key, UINT64_MAX) % MANY_DOCUMENTS);
  if (document == kept) return true;
  if (document == (kept + 1) % MANY_DOCUMENTS) return false;
  return rng_uniform(key, (uint64_t)document) < o->val_fraction;
}

// How many of the document's bytes, from its start, are for training.
static int64_t train_bytes(const Job *job, const CorpusBlock *block) {
  const int64_t n = block->document_bytes;
  if (job->many) return is_validation(job->options, block->document) ? 0 : n;
  // 1 - fraction is rounded: the slack keeps 10 bytes at 0.8 from being 1.9999999999999996 bytes.
  const int64_t cut = (int64_t)floor((double)n * (1 - job->options->val_fraction + 4e-16));
  return cut < n ? cut : n - 1;
}

// Bytes [first, last) of the document, as far as the block has them, as a document of their own.
static int write_part(Shards *s, const CorpusBlock *block, int64_t first, int64_t last,
                      Error *err) {
  const int64_t begin = block->offset > first ? block->offset : first;
  const int64_t block_end = block->offset + block->bytes;
  const int64_t end = block_end < last ? block_end : last;
  enum { CHUNK = 16384 };
  int32_t tokens[CHUNK + 2];
  for (int64_t at = begin; at < end; at += CHUNK) {
    const int64_t n = end - at < CHUNK ? end - at : CHUNK;
    int64_t count = 0;
    if (at == first) {
      tokens[count++] = TOKEN_BEGIN;
      s->documents++;
    }
    bytes_encode(block->text + (at - block->offset), (size_t)n, tokens + count);
    count += n;
    if (at + n == last) tokens[count++] = TOKEN_END;
    if (shards_append(s, tokens, count, err) != 0) return -1;
  }
  return 0;
}

static int write_documents(Job *job, const Corpus *corpus, Error *err) {
  enum { CHECK_BYTES = 1 << 20 };
  Progress progress = {
      .start = now_ms() / 1000, .total = corpus->bytes, .terminal = isatty(STDERR_FILENO) == 1};
  uint64_t checked = 0;
  CorpusReader reader;
  CorpusBlock block;
  corpus_open(&reader, corpus);
  int status;
  while ((status = corpus_next(&reader, &block, err)) > 0) {
    const int64_t cut = train_bytes(job, &block);
    if (write_part(&job->train, &block, 0, cut, err) != 0 ||
        write_part(&job->val, &block, cut, block.document_bytes, err) != 0) {
      status = -1;
      break;
    }
    job->bytes += (uint64_t)block.bytes;
    if (reader.bytes_read - checked < CHECK_BYTES) continue;
    checked = reader.bytes_read;
    progress_show(&progress, checked);
    if (signals_came()) {
      status = error_set(err, "interrupted: nothing was written");
      break;
    }
  }
  job->documents = reader.documents;
  progress_end(&progress);
  corpus_close(&reader);
  return status;
}

static int check_split(const Job *job, Error *err) {
  if (job->train.tokens > 0 && job->val.tokens > 0) return 0;
  return error_set(err,
                   "the input has %" PRIu64 " byte%s of text, too little to split into training "
                   "and validation: add text",
                   job->bytes, job->bytes == 1 ? "" : "s");
}

static int write_all(Job *job, const Corpus *corpus, Error *err) {
  const char *out = job->options->out.text;
  const int missing = count_missing(out);
  const bool failed = directory_create(out, err) ||
                      check_room(job->options, corpus->text_bytes, err) ||
                      write_documents(job, corpus, err) || check_split(job, err) ||
                      shards_finish(&job->train, err) || shards_finish(&job->val, err) ||
                      shards_commit(&job->train, err) || shards_commit(&job->val, err);
  if (!failed) return 0;
  shards_discard(&job->train);
  shards_discard(&job->val);
  remove_created(out, missing);
  return -1;
}

// ---- The input and the report

// "3 hidden, 2 binary"; empty when nothing was passed over.
typedef struct SkippedText {
  char text[200];
} SkippedText;

static SkippedText skipped_text(const Corpus *c) {
  static const char *const reasons[FILE_TEXT] = {[FILE_HIDDEN] = "hidden",
                                                 [FILE_BINARY] = "binary",
                                                 [FILE_EMPTY] = "empty",
                                                 [FILE_UNREADABLE] = "unreadable",
                                                 [FILE_SPECIAL] = "links to folders or devices"};
  SkippedText s = {""};
  size_t used = 0;
  for (int i = 0; i < FILE_TEXT; i++)
    if (c->skipped[i] > 0)
      used += (size_t)snprintf(s.text + used, sizeof s.text - used, "%s%" PRId64 " %s",
                               used ? ", " : "", c->skipped[i], reasons[i]);
  return s;
}

static int gather(Corpus *corpus, const Options *o, int64_t *documents, Error *err) {
  for (int i = 0; i < o->path_count; i++)
    if (corpus_add(corpus, o->paths[i], err) != 0) return -1;
  if (corpus_count(corpus, MANY_DOCUMENTS, documents, err) != 0) return -1;
  if (*documents > 0) return 0;
  const SkippedText skipped = skipped_text(corpus);
  return error_set(err, "there is no text in '%s'%s%s%s%s", o->paths[0],
                   o->path_count > 1 ? " and the other paths" : "",
                   *skipped.text ? " (skipped: " : "", skipped.text, *skipped.text ? ")" : "");
}

static void print_set(const Shards *s) {
  printf("%-10s %" PRId64 " tokens of %" PRId64 " document%s in %s/%s-00000.bin", s->name,
         s->tokens, s->documents, s->documents == 1 ? "" : "s", s->dir, s->name);
  if (s->count > 1) printf(" to %s-%05d.bin", s->name, s->count - 1);
  printf("\n");
}

static void print_report(const Job *job, const Corpus *corpus) {
  const char *out = job->options->out.text;
  const SkippedText skipped = skipped_text(corpus);
  printf("documents  %" PRId64 " in %zu file%s, %s\n", job->documents, corpus->count,
         corpus->count == 1 ? "" : "s",
         job->many ? "whole ones for validation" : "the tail of each for validation");
  printf("bytes      %" PRIu64 "\n", job->bytes);
  print_set(&job->train);
  print_set(&job->val);
  printf("skipped    %s\n", *skipped.text ? skipped.text : "nothing");
  printf("config     \"data\": {\"train\": \"%s/train-*.bin\", \"val\": \"%s/val-*.bin\"}, and "
         "\"vocab_size\": %d in \"model\"\n",
         out, out, BYTE_VOCAB);
}

static int prepare(const Options *o, Error *err) {
  Corpus corpus = {0};
  int64_t documents = 0; // as many as the corpus has, or MANY_DOCUMENTS
  int status = gather(&corpus, o, &documents, err);
  if (status == 0) {
    signals_hold();
    const Shards set = {.dir = o->out.text, .limit = o->shard_tokens, .vocab_size = BYTE_VOCAB};
    Job job = {.options = o, .train = set, .val = set, .many = documents >= MANY_DOCUMENTS};
    job.train.name = "train";
    job.val.name = "val";
    status = write_all(&job, &corpus, err);
    if (status == 0) print_report(&job, &corpus);
  }
  corpus_free(&corpus);
  return status;
}

int main(int argc, char **argv) {
  Error err = {0};
  Options options;
  sigset_t before;
  sigprocmask(SIG_SETMASK, NULL, &before);
  int status = parse_options(&options, argc, argv, &err);
  if (status == 0 && options.help)
    fputs(HELP, stdout);
  else if (status == 0)
    status = prepare(&options, &err);
  if (status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
    status = error_set(&err, "cannot write to standard output: %s", strerror(errno));
  if (status != 0) fprintf(stderr, "prepare: %s\n", err.text);
  sigprocmask(SIG_SETMASK, &before, NULL); // a signal that was held back ends the program here
  return status == 0 ? 0 : 1;
}
