#include "data/prepare/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/command.h"
#include "base/rng.h"
#include "base/os.h"
#include "data/model_folder.h"
#include "data/prepare/corpus.h"
#include "data/prepare/dataset.h"
#include "data/prepare/encoding.h"
#include "data/tokenizer/cut.h"

// From this many documents on, whole ones are kept for validation.
enum { MANY_DOCUMENTS = 100, BATCH_BYTES = 1 << 20 };

typedef struct Part {
  Shards shards;
  int64_t documents, bytes;
  int64_t counted; // tokens of the loss; in text all, and not counted here
  bool open;       // a document of it has begun and not ended, as far as it is read
} Part;

typedef struct Job {
  const PrepareOptions *options;
  Tokenizer *tokenizer;
  const TokenizerFacts *facts;
  const ChatTemplate *chat; // NULL: the corpus is text
  Corpus corpus;
  Spool spool;
  Folder out;
  CorpusReader reader;
  Encoding *encoding;
  int status;
  Error *err;
  int64_t documents;             // as many as the corpus has, or MANY_DOCUMENTS
  int64_t sizes[MANY_DOCUMENTS]; // of those documents, in bytes
  Part train, val;
  int64_t read_documents;
  uint64_t written_bytes; // of text
  BadLines bad;
  int64_t spelled_begins, spelled_ends; // documents with BOS or EOS in their text
} Job;

// ---- Which bytes are for validation

// One of the first documents goes to validation and the next to training whatever the draws, so
// that neither is left empty.
static bool is_validation(const Job *job, int64_t document) {
  const uint64_t key = rng_key((uint64_t)job->options->seed, "prepare.split");
  const int64_t first = job->documents,
                kept = (int64_t)(rng_u64(key, UINT64_MAX) % (uint64_t)first);
  if (document == kept) return true;
  if (document == (kept + 1) % first) return false;
  return rng_uniform(key, (uint64_t)document) < job->options->val_fraction;
}

// Conversations are never cut.
static DatasetSplit split_of(const Job *job) {
  if (job->options->val_count > 0) return SPLIT_FILES;
  if (job->options->val_fraction == 0) return SPLIT_NONE;
  return job->chat || job->documents == MANY_DOCUMENTS ? SPLIT_DOCUMENTS : SPLIT_TAILS;
}

// How many bytes of the document, from its start, are for training.
static int64_t train_bytes(const Job *job, const CorpusBlock *block) {
  const DatasetSplit split = split_of(job);
  if (split == SPLIT_FILES) return block->val ? 0 : INT64_MAX;
  if (split == SPLIT_NONE) return INT64_MAX;
  if (split == SPLIT_DOCUMENTS) return is_validation(job, block->document) ? 0 : INT64_MAX;
  const int64_t n = job->sizes[block->document];
  // 1 - fraction is rounded: the slack keeps 10 bytes at 0.8 from being 1.9999999999999996 bytes.
  const int64_t cut = (int64_t)floor((double)n * (1 - job->options->val_fraction + 4e-16));
  return cut < n ? cut : n - 1;
}

// Bytes [from, to) of the block, which end its document's part if `last`.
static void add_part(Job *job, TextBatch *batch, const CorpusBlock *block, int64_t from, int64_t to,
                     bool last, bool val) {
  Part *part = val ? &job->val : &job->train;
  if (from == to && !(part->open && last)) return;
  const Segment segment = {
      .first = !part->open, .last = last, .val = val, .file = block->file, .line = block->line};
  text_batch_add(batch, block->text + from, (size_t)(to - from), segment);
  part->open = !last;
}

// A cut inside the block moves back to the beginning of a character.
static int add_block(Job *job, TextBatch *batch, const CorpusBlock *block, Error *err) {
  const bool many = job->documents == MANY_DOCUMENTS;
  const int64_t end = block->offset + block->bytes;
  const bool known =
      many || (block->document < job->documents && end <= job->sizes[block->document]);
  if (!known || (!many && block->last && end != job->sizes[block->document]))
    return error_set(err, "'%s' changed while it was read; prepare it again", block->file);
  const int64_t wanted = train_bytes(job, block) - block->offset;
  int64_t cut = wanted < 0 ? 0 : wanted > block->bytes ? block->bytes : wanted;
  if (cut > 0 && cut < block->bytes) cut = (int64_t)cut_character(block->text, (size_t)cut);
  const bool train_ends = wanted <= block->bytes || block->last;
  add_part(job, batch, block, 0, cut, train_ends, false);
  add_part(job, batch, block, cut, block->bytes, block->last, true);
  return 0;
}

// ---- Reading, encoding, writing

// 1 if there is something in the batch, 0 at the end, -1 on error.
static int fill_batch(Job *job, CorpusReader *reader, TextBatch *batch, Error *err) {
  CorpusBlock block;
  int status = 1;
  while (batch->text_bytes < BATCH_BYTES && (status = corpus_next(reader, &block, err)) > 0)
    if (add_block(job, batch, &block, err) != 0) return -1;
  job->read_documents = reader->documents;
  return status < 0 ? -1 : batch->count > 0;
}

static int write_batch(Job *job, const TextBatch *batch, Error *err) {
  if (batch->failed) {
    *err = batch->error;
    return -1;
  }
  for (size_t i = 0; i < batch->count; i++) {
    const Segment *s = &batch->segments[i];
    if (s->bad) continue;
    Part *part = s->val ? &job->val : &job->train;
    const int64_t end = i + 1 < batch->count ? s[1].ids : batch->ids.count;
    const uint8_t *mask = batch->mask.bytes > 0 ? (const uint8_t *)batch->mask.data + s->ids : NULL;
    if (shards_append(&part->shards, batch->ids.ids + s->ids, mask, end - s->ids, s->last, err) !=
        0)
      return -1;
    for (int64_t at = 0; mask && at < end - s->ids; at++) part->counted += mask[at];
    part->documents += s->first;
    part->bytes += (int64_t)s->bytes;
  }
  job->written_bytes += batch->text_bytes;
  job->spelled_begins += batch->spelled_begins;
  job->spelled_ends += batch->spelled_ends;
  if (job->bad.count == 0) job->bad.first = batch->bad.first;
  job->bad.count += batch->bad.count;
  return 0;
}

// Writes the batches that are done; with `all`, all batches. Waits for the oldest where no batch is
// free.
static int write_done(Job *job, Encoding *encoding, bool all, Error *err) {
  for (TextBatch *done; (done = encoding_take(encoding, all || !encoding_free_batch(encoding)));) {
    if (write_batch(job, done, err) != 0) return -1;
    encoding_return(encoding, done);
    if (signals_came()) return error_set(err, "interrupted: nothing was written");
  }
  return 0;
}

static int encode_corpus(Job *job, Error *err) {
  const PrepareOptions *o = job->options;
  job->encoding = encoding_open(job->tokenizer, job->chat, o->skip_bad, (int)o->threads, err);
  if (!job->encoding) return -1;
  Progress progress = progress_begin("MB", 1e6);
  corpus_open(&job->reader, &job->corpus);
  int status = 1;
  while (status > 0) {
    TextBatch *batch = encoding_free_batch(job->encoding);
    status = fill_batch(job, &job->reader, batch, err);
    if (status > 0) encoding_give(job->encoding, batch);
    if (status >= 0 && write_done(job, job->encoding, status == 0, err) != 0) status = -1;
    const uint64_t total = job->corpus.reads_stdin ? 0 : job->corpus.bytes;
    progress_show(&progress, corpus_position(&job->reader), total, job->written_bytes);
  }
  progress_end(&progress);
  if (job->reader.bad.count > 0) job->bad = job->reader.bad;
  return status;
}

// ---- The folder

static DatasetPart dataset_part(const Part *part) {
  return (DatasetPart){.files = part->shards.count,
                       .tokens = part->shards.tokens,
                       .documents = part->documents,
                       .bytes = part->bytes,
                       .checksums = part->shards.checksums};
}

// What a run reads here besides the token files, which have their own.
static int write_checksums(const Job *job, Error *err) {
  FileSums sums = {0};
  const int status = sums_write(&sums, job->out.temporary.text, err);
  sums_free(&sums);
  return status;
}

static int write_manifest(const Job *job, Error *err) {
  const Dataset dataset = {.tokenizer = job->facts->name,
                           .fingerprint = job->facts->fingerprint,
                           .vocab_size = job->facts->vocab_size,
                           .begin = job->facts->bos,
                           .end = job->facts->eos,
                           .train = dataset_part(&job->train),
                           .val = dataset_part(&job->val),
                           .split = split_of(job),
                           .val_fraction =
                               job->options->val_count > 0 ? 0 : job->options->val_fraction,
                           .seed = job->options->seed};
  return dataset_write(&dataset, job->out.temporary.text, err);
}

// Says so before hours of work when the disk cannot hold the tokens of the text files, or their
// number of shards has no end. The need of other tokenizers and other files is not known.
static int check_room(const Job *job, Error *err) {
  const uint64_t text_bytes = job->corpus.text_bytes;
  if (job->facts->vocab_size != BYTE_VOCAB) return 0;
  if (text_bytes / (uint64_t)job->options->shard_tokens > 2 * SHARDS_MAX)
    return error_set(err, "%s of text would make more than %d files: use a larger --shard-tokens",
                     size_text(text_bytes).text, SHARDS_MAX);
  struct statvfs fs;
  if (statvfs(job->out.temporary.text, &fs) != 0) return 0;
  const uint64_t needed = 2 * text_bytes, free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
  if (needed <= free_bytes) return 0;
  return error_set(err,
                   "the token files need %s, but '%s' has %s free: make room, or choose another "
                   "disk with --out",
                   size_text(needed).text, job->options->out, size_text(free_bytes).text);
}

// The spool has no name any more once it is open, so it goes with the process.
static int open_spool(Job *job, Error *err) {
  if (!job->corpus.reads_stdin) return 0;
  const PathText path = path_text("%s/%s", job->out.temporary.text, OUT_SPOOL);
  job->spool.fd = open(path.text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (job->spool.fd < 0)
    return error_set(err, "cannot create '%s': %s", path.text, strerror(errno));
  unlink(path.text);
  job->corpus.spool = &job->spool;
  return 0;
}

static int no_text(const Job *job, Error *err) {
  const SkippedText skipped = corpus_skipped(&job->corpus);
  const PrepareOptions *o = job->options;
  error_set(err, "there is no text in '%s'%s%s%s%s",
            file_is_stdin(o->paths[0]) ? "standard input" : o->paths[0],
            o->path_count > 1 ? " and the other paths" : "", *skipped.text ? " (skipped: " : "",
            skipped.text, *skipped.text ? ")" : "");
  if (job->bad.count == 0) return -1;
  return error_append(err, "; bad lines: %" PRId64 ", the first: %s", job->bad.count,
                      job->bad.first.text);
}

static int check_split(const Job *job, Error *err) {
  const DatasetSplit split = split_of(job);
  const bool train = job->train.shards.tokens > 0, val = job->val.shards.tokens > 0;
  if (train && (val || split == SPLIT_NONE)) return 0;
  if (split == SPLIT_FILES && train)
    return error_set(err, "there is no text in what --val names: '%s'", job->options->val_paths[0]);
  if (!train && (!val || split == SPLIT_FILES)) return no_text(job, err);
  return error_set(err,
                   "the input has %" PRIu64 " byte%s of text, too little to split into training "
                   "and validation: add text, or keep nothing with --val-fraction 0",
                   job->written_bytes, job->written_bytes == 1 ? "" : "s");
}

// How many documents there are decides how they are split.
static int measure(Job *job, Error *err) {
  job->documents = MANY_DOCUMENTS;
  if (job->options->val_count > 0 || job->options->val_fraction == 0) return 0;
  return corpus_measure(&job->corpus, MANY_DOCUMENTS, job->sizes, &job->documents, err);
}

static int write_folder(Job *job, Error *err) {
  const char *folder = job->out.temporary.text;
  job->train.shards.dir = job->val.shards.dir = folder;
  return open_spool(job, err) || measure(job, err) || check_room(job, err) ||
                 encode_corpus(job, err) || check_split(job, err) ||
                 shards_finish(&job->train.shards, err) || shards_finish(&job->val.shards, err) ||
                 tokenizer_save(job->tokenizer, folder, err) || write_manifest(job, err) ||
                 write_checksums(job, err) || folder_commit(&job->out, err)
             ? -1
             : 0;
}

// ---- The input and the report

static void print_part(const Job *job, const Part *part) {
  const Shards *s = &part->shards;
  if (s->tokens == 0) return;
  printf("%-10s %" PRId64 " tokens of %" PRId64
         " document%s, %.2f bytes a token, in %s/%s-00000.bin",
         s->name, s->tokens, part->documents, part->documents == 1 ? "" : "s",
         (double)part->bytes / (double)s->tokens, job->options->out, s->name);
  if (s->count > 1) printf(" to %s-%05d.bin", s->name, s->count - 1);
  if (job->chat) printf("; %" PRId64 " of them count", part->counted);
  printf("\n");
}

static void print_spelled(const Job *job, int64_t count, const char *verb, int32_t id) {
  const char *text = tokenizer_special_text(job->tokenizer, id);
  if (count > 0)
    printf("spelled    %" PRId64 " document%s %s with %s in the text: no second one is put there\n",
           count, count == 1 ? "" : "s", verb, text ? text : "that token");
}

void prepare_print_bad(const BadLines *bad) {
  if (bad->count > 0)
    printf("bad        %" PRId64 " line%s skipped, the first: %s\n", bad->count,
           bad->count == 1 ? "" : "s", bad->first.text);
}

static void print_report(const Job *job) {
  static const char *const splits[] = {[SPLIT_TAILS] = "the tail of each for validation",
                                       [SPLIT_DOCUMENTS] = "whole ones for validation",
                                       [SPLIT_FILES] = "those of --val for validation",
                                       [SPLIT_NONE] = "none for validation"};
  const char *out = job->options->out;
  const SkippedText skipped = corpus_skipped(&job->corpus);
  const DatasetSplit split = split_of(job);
  printf("tokenizer  %s, %" PRId64 " ids\n", job->facts->name, job->facts->vocab_size);
  printf("files      %s\n", corpus_files(&job->corpus).text);
  printf("documents  %" PRId64 " in %zu file%s, %s\n", job->read_documents, job->corpus.count,
         job->corpus.count == 1 ? "" : "s", splits[split]);
  if (job->chat) printf("template   %s\n", job->chat->source);
  printf("bytes      %" PRIu64 "\n", job->written_bytes);
  print_part(job, &job->train);
  print_part(job, &job->val);
  print_spelled(job, job->spelled_begins, "begin", job->facts->bos);
  print_spelled(job, job->spelled_ends, "end", job->facts->eos);
  prepare_print_bad(&job->bad);
  printf("skipped    %s\n", *skipped.text ? skipped.text : "nothing");
  printf("config     \"data\": {\"train\": \"%s/train-*.bin\"", out);
  if (split != SPLIT_NONE) printf(", \"val\": \"%s/val-*.bin\"", out);
  printf("}, and \"vocab_size\": %" PRId64 " in \"model\"\n", job->facts->vocab_size);
}

Corpus prepare_corpus(const PrepareOptions *o) {
  return (Corpus){.field = o->field,
                  .separator = o->separator,
                  .format = o->jsonl || o->chat ? FORMAT_LINES
                            : o->text           ? FORMAT_TEXT
                                                : FORMAT_TOLD,
                  .whole_lines = o->chat,
                  .skip_bad = o->skip_bad};
}

int prepare_gather(Corpus *c, const PrepareOptions *o, Error *err) {
  for (int i = 0; i < o->val_count; i++)
    if (corpus_add(c, o->val_paths[i], true, err) != 0) return -1;
  for (int i = 0; i < o->path_count; i++)
    if (corpus_add(c, o->paths[i], false, err) != 0) return -1;
  if (c->count > 0 && (o->field || o->skip_bad) && !corpus_has(c, true))
    return error_set(err, "%s is for JSON lines, but no file has any: --jsonl takes all for them",
                     o->field ? "--field" : "--skip-bad");
  if (c->count > 0 && o->separator && !corpus_has(c, false))
    return error_set(err, "--separator is for text files, but all have JSON lines: leave it out");
  return 0;
}

// What is written is not read: the folder, and what stands beside it while it is made.
static int gather(Job *job, Error *err) {
  job->corpus = prepare_corpus(job->options);
  job->corpus.joined = job->facts->joined;
  corpus_leave_out(&job->corpus, job->out.path.text);
  corpus_leave_out(&job->corpus, job->out.temporary.text);
  corpus_leave_out(&job->corpus, job->out.old.text);
  return prepare_gather(&job->corpus, job->options, err);
}

static int run_job(Job *job, Error *err) {
  const PrepareOptions *o = job->options;
  const Shards shards = {.limit = o->shard_tokens,
                         .vocab_size = job->facts->vocab_size,
                         .tokenizer = job->facts->fingerprint};
  job->train.shards = job->val.shards = shards;
  job->train.shards.name = "train";
  job->val.shards.name = "val";
  if (folder_look(&job->out, o->out, dataset_has, err) != 0 ||
      dataset_check(&job->out, o->out, job->tokenizer, o->force, err) != 0 || gather(job, err) != 0)
    return -1;
  signals_hold();
  if (folder_begin(&job->out, err) != 0 || write_folder(job, err) != 0) return -1;
  print_report(job);
  return 0;
}

// A template that was named is written beside the tokens, so that a run takes it.
static int choose_template(Job *job, Error *err) {
  const PrepareOptions *o = job->options;
  if (!o->chat) return 0;
  const char *fitting = template_fitting(job->tokenizer);
  char *advice = fitting ? xasprintf("name one with --template %s", fitting)
                         : xasprintf("it has no special tokens for one either; ./prepare "
                                     "--train-tokenizer N --template " TEMPLATE_NAMES
                                     " makes a tokenizer that has them");
  job->chat = template_choose(job->tokenizer, o->template, advice, err);
  free(advice);
  if (!job->chat) return -1;
  const char *own = job->facts->chat_template;
  if (!own || template_known(own) != job->chat)
    tokenizer_set_template(job->tokenizer, job->chat->text);
  return 0;
}

// In memory_try: the job knows all that has to be closed.
static void try_job(void *context) {
  Job *job = context;
  const PrepareOptions *o = job->options;
  job->tokenizer = tokenizer_open(o->tokenizer, job->err);
  if (!job->tokenizer) return;
  job->facts = tokenizer_facts(job->tokenizer);
  if (choose_template(job, job->err) == 0) job->status = run_job(job, job->err);
}

int prepare_run(const PrepareOptions *options, Error *err) {
  Job *job = xcalloc(1, sizeof *job);
  job->options = options;
  job->err = err;
  job->status = -1;
  job->spool.fd = job->out.lock = -1;
  if (!memory_try(try_job, job, err)) error_append(err, "; " LESS_MEMORY);
  const int status = job->status;
  corpus_close(&job->reader);
  encoding_close(job->encoding);
  shards_close(&job->train.shards);
  shards_close(&job->val.shards);
  if (job->spool.fd >= 0) close(job->spool.fd);
  folder_close(&job->out);
  corpus_free(&job->corpus);
  tokenizer_close(job->tokenizer);
  free(job);
  return status;
}
