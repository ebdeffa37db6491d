#include "data/prepare/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/command.h"
#include "base/rng.h"
#include "base/os.h"
#include "data/model_folder.h"
#include "data/prepare/corpus.h"
#include "data/prepare/dataset.h"
#include "data/prepare/encoding.h"
#include "data/tokenizer/cut.h"

// From MANY_DOCUMENTS on, whole ones are kept for validation. At most AHEAD_BYTES are read to find
// out: if they hold fewer, these are long.
enum { MANY_DOCUMENTS = 100, AHEAD_BYTES = 64 << 20, BATCH_BYTES = 1 << 20 };

// What is for validation: the tail of each document, whole documents, files of its own, nothing.
typedef enum Split { UNKNOWN, TAILS, WHOLE, FILES, NONE } Split;

typedef struct Part {
  Shards shards;
  int64_t documents, bytes;
  int64_t counted; // tokens of the loss; in text all, and not counted here
  bool open;       // a document of it has begun and not ended, as far as it is read
} Part;

// A block that waits until it is known how much of it is for training.
typedef struct Waiting {
  struct Waiting *next;
  CorpusBlock block; // its text is the one here
  char text[];
} Waiting;

typedef struct Job {
  const PrepareOptions *options;
  Tokenizer *tokenizer;
  const TokenizerFacts *facts;
  const ChatTemplate *chat; // NULL: the corpus is text
  Corpus corpus;
  Folder out;
  CorpusReader reader;
  Encoding *encoding;
  int status;
  Error *err;
  Split split;
  int64_t documents; // that were known when the split was chosen, at most MANY_DOCUMENTS
  Waiting *oldest, *newest;
  int64_t waiting_bytes;
  bool ended; // all is read
  Part train, val;
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
static void choose_split(Job *job) {
  const PrepareOptions *o = job->options;
  const Corpus *c = &job->corpus;
  bool told = true; // each file is one document
  for (size_t i = 0; i < c->count; i++) told &= c->files[i].size >= 0;
  const int64_t seen =
      told || c->count > MANY_DOCUMENTS ? (int64_t)c->count : job->reader.documents;
  const bool enough = told || (job->waiting_bytes >= AHEAD_BYTES && (seen > 1 || !job->chat));
  job->documents = seen < MANY_DOCUMENTS ? seen : MANY_DOCUMENTS;
  if (o->val_count > 0)
    job->split = FILES;
  else if (o->val_fraction == 0)
    job->split = NONE;
  else if (job->documents == MANY_DOCUMENTS || job->ended || enough)
    job->split = job->chat || job->documents == MANY_DOCUMENTS ? WHOLE : TAILS;
}

// How many of a document's `size` bytes, from its start, are for training. 1 - fraction is rounded:
// the slack keeps 10 bytes at 0.8 from being 1.9999999999999996 bytes.
static int64_t tail_begin(const Job *job, int64_t size) {
  const int64_t cut = (int64_t)floor((double)size * (1 - job->options->val_fraction + 4e-16));
  return cut < size ? cut : size - 1;
}

// How many bytes of the block's document, from its start, are for training.
static int64_t train_bytes(const Job *job, const CorpusBlock *block) {
  if (job->split == FILES) return block->val ? 0 : INT64_MAX;
  if (job->split == WHOLE) return is_validation(job, block->document) ? 0 : INT64_MAX;
  return job->split == NONE || block->size < 0 ? INT64_MAX : tail_begin(job, block->size);
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
  const int64_t end = block->offset + block->bytes;
  if (job->split == TAILS && block->size >= 0 &&
      (end > block->size || (block->last && end < block->size)))
    return error_set(err, "'%s' changed while it was read; prepare it again", block->file);
  const int64_t wanted = train_bytes(job, block) - block->offset;
  int64_t cut = wanted < 0 ? 0 : wanted > block->bytes ? block->bytes : wanted;
  if (cut > 0 && cut < block->bytes) cut = (int64_t)cut_character(block->text, (size_t)cut);
  const bool train_ends = wanted <= block->bytes || block->last;
  add_part(job, batch, block, 0, cut, train_ends, false);
  add_part(job, batch, block, cut, block->bytes, block->last, true);
  return 0;
}

// ---- Waiting: until the split is known, and for the end of a document of unknown size

static void wait_for_split(Job *job, const CorpusBlock *block) {
  Waiting *w = xmalloc(sizeof *w + (size_t)block->bytes);
  w->next = NULL;
  w->block = *block;
  w->block.text = memcpy(w->text, block->text, (size_t)block->bytes);
  if (job->newest) job->newest->next = w;
  if (!job->oldest) job->oldest = w;
  job->newest = w;
  job->waiting_bytes += block->bytes;
  for (Waiting *at = block->size >= 0 ? job->oldest : w; at != w; at = at->next)
    if (at->block.document == block->document) at->block.size = block->size;
}

static void drop_oldest(Job *job) {
  Waiting *w = job->oldest;
  job->waiting_bytes -= w->block.bytes;
  job->oldest = w->next;
  if (!job->oldest) job->newest = NULL;
  free(w);
}

// A document without a size is the last that was read, so it has at least the newest block's bytes.
static bool oldest_is_ready(const Job *job) {
  if (!job->oldest || job->split == UNKNOWN) return false;
  const CorpusBlock *first = &job->oldest->block, *last = &job->newest->block;
  return job->split != TAILS || first->size >= 0 ||
         first->offset + first->bytes <= tail_begin(job, last->offset + last->bytes);
}

// 1 and the next block, the oldest; 0 at the end, -1 on error.
static int next_block(Job *job, Error *err) {
  while (!oldest_is_ready(job) && !job->ended) {
    CorpusBlock block;
    const int got = corpus_next(&job->reader, &block, err);
    if (got < 0) return -1;
    if (got > 0) wait_for_split(job, &block);
    job->ended = got == 0;
    if (job->split == UNKNOWN) choose_split(job);
    if (stream_interrupted(err) != 0) return -1;
  }
  return job->oldest != NULL;
}

// ---- Reading, encoding, writing

// 1 if there is something in the batch, 0 at the end, -1 on error.
static int fill_batch(Job *job, TextBatch *batch, Error *err) {
  int status = 1;
  while (batch->text.bytes < BATCH_BYTES && (status = next_block(job, err)) > 0) {
    if (add_block(job, batch, &job->oldest->block, err) != 0) return -1;
    drop_oldest(job);
  }
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
  job->written_bytes += batch->text.bytes;
  job->spelled_begins += batch->spelled_begins;
  job->spelled_ends += batch->spelled_ends;
  if (job->bad.count == 0) job->bad.first = batch->bad.first;
  job->bad.count += batch->bad.count;
  return 0;
}

// Writes the batches that are done; with `all`, all batches. Waits for the oldest where no batch is
// free.
static int write_done(Job *job, bool all, Error *err) {
  Encoding *const e = job->encoding;
  for (TextBatch *done; (done = encoding_take(e, all || !encoding_free_batch(e)));) {
    if (write_batch(job, done, err) != 0) return -1;
    encoding_return(e, done);
    if (stream_interrupted(err) != 0) return -1;
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
    status = fill_batch(job, batch, err);
    if (status > 0) encoding_give(job->encoding, batch);
    if (status >= 0 && write_done(job, status == 0, err) != 0) status = -1;
    const uint64_t total = job->corpus.reads_stdin ? 0 : job->corpus.bytes;
    progress_show(&progress, corpus_position(&job->reader), total, job->written_bytes);
  }
  progress_end(&progress);
  if (job->reader.bad.count > 0) job->bad = job->reader.bad;
  return status;
}

// ---- The folder

// Says so before hours of work when the disk cannot hold the tokens of the text files, or their
// number of shards has no end. The need of other tokenizers and other files is not known.
static int check_room(const Job *job, Error *err) {
  const uint64_t text_bytes = job->corpus.text_bytes;
  if (job->facts->vocab_size != BYTE_VOCAB) return 0;
  if (text_bytes / (uint64_t)job->options->shard_tokens > 2 * SHARDS_MAX)
    return error_set(err, "%s of text would make more than %d files: use a larger --shard-tokens",
                     size_text(text_bytes).text, SHARDS_MAX);
  const uint64_t needed = 2 * text_bytes, free_bytes = disk_free(job->out.temporary.text);
  if (needed <= free_bytes) return 0;
  return error_set(err, "the token files need %s, but '%s' has %s free", size_text(needed).text,
                   job->options->out, size_text(free_bytes).text);
}

static int no_text(const Job *job, Error *err) {
  const ShortText skipped = corpus_skipped(&job->corpus);
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
  const Split split = job->split;
  const bool train = job->train.shards.tokens > 0, val = job->val.shards.tokens > 0;
  if (train && (val || split == NONE)) return 0;
  if (split == FILES && train)
    return error_set(err, "there is no text in what --val names: '%s'", job->options->val_paths[0]);
  if (!train && (!val || split == FILES)) return no_text(job, err);
  return error_set(
      err, "%" PRIu64 " bytes of text are too little to split: add text, or use --val-fraction 0",
      job->written_bytes);
}

static int write_folder(Job *job, Error *err) {
  const char *folder = job->out.temporary.text;
  FileSums sums = {0}; // of what a run reads here besides the token files, which have their own
  job->train.shards.dir = job->val.shards.dir = folder;
  const int status = check_room(job, err) || encode_corpus(job, err) || check_split(job, err) ||
                     shards_finish(&job->train.shards, err) ||
                     shards_finish(&job->val.shards, err) ||
                     tokenizer_save(job->tokenizer, folder, err) ||
                     sums_write(&sums, folder, err) || folder_commit(&job->out, err);
  sums_free(&sums);
  return status ? -1 : 0;
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

void prepare_print_input(const Corpus *c, const BadLines *bad) {
  const size_t tables = corpus_count(c, FILE_PARQUET);
  printf("files      %zu of text, %zu of JSON lines", corpus_count(c, FILE_TEXT),
         corpus_count(c, FILE_LINES));
  if (tables > 0) printf(", %zu of Parquet", tables);
  printf("%s\n", c->reads_stdin ? ", standard input" : "");
  if (bad->count > 0)
    printf("bad        %" PRId64 " line%s skipped, the first: %s\n", bad->count,
           bad->count == 1 ? "" : "s", bad->first.text);
}

static void print_report(const Job *job) {
  static const char *const splits[] = {[TAILS] = "the tail of each for validation",
                                       [WHOLE] = "whole ones for validation",
                                       [FILES] = "those of --val for validation",
                                       [NONE] = "none for validation"};
  const char *out = job->options->out;
  const ShortText skipped = corpus_skipped(&job->corpus);
  printf("tokenizer  %s, %" PRId64 " ids\n", job->facts->name, job->facts->vocab_size);
  prepare_print_input(&job->corpus, &job->bad);
  printf("documents  %" PRId64 " in %zu file%s, %s\n", job->reader.documents, job->corpus.count,
         job->corpus.count == 1 ? "" : "s", splits[job->split]);
  if (job->chat) printf("template   %s\n", job->chat->source);
  printf("bytes      %" PRIu64 "\n", job->written_bytes);
  print_part(job, &job->train);
  print_part(job, &job->val);
  print_spelled(job, job->spelled_begins, "begin", job->facts->bos);
  print_spelled(job, job->spelled_ends, "end", job->facts->eos);
  printf("skipped    %s\n", *skipped.text ? skipped.text : "nothing");
  printf("config     \"data\": {\"train\": \"%s/train-*.bin\"", out);
  if (job->split != NONE) printf(", \"val\": \"%s/val-*.bin\"", out);
  printf("}, and \"vocab_size\": %" PRId64 " in \"model\"\n", job->facts->vocab_size);
}

int prepare_gather(Corpus *c, const PrepareOptions *o, Error *err) {
  c->field = o->chat ? "messages" : o->field;
  c->separator = o->separator;
  c->format = o->jsonl || o->chat ? FORMAT_LINES : o->text ? FORMAT_TEXT : FORMAT_TOLD;
  c->whole_lines = o->chat;
  c->skip_bad = o->skip_bad;
  for (int i = 0; i < o->val_count; i++)
    if (corpus_add(c, o->val_paths[i], true, err) != 0) return -1;
  for (int i = 0; i < o->path_count; i++)
    if (corpus_add(c, o->paths[i], false, err) != 0) return -1;
  const bool no_lines = corpus_count(c, FILE_LINES) + corpus_count(c, FILE_PARQUET) == 0;
  if (c->count > 0 && !c->reads_stdin && (o->field || o->skip_bad) && no_lines)
    return error_set(err, "%s is for JSON lines, but no file has any: --jsonl takes all for them",
                     o->field ? "--field" : "--skip-bad");
  if (c->count > 0 && !c->reads_stdin && o->separator && corpus_count(c, FILE_TEXT) == 0)
    return error_set(err, "--separator is for text files, but all have JSON lines: leave it out");
  return 0;
}

// What is written is not read: the folder, and what stands beside it while it is made.
static int gather(Job *job, Error *err) {
  job->corpus.joined = job->facts->joined;
  corpus_leave_out(&job->corpus, job->out.path.text);
  corpus_leave_out(&job->corpus, job->out.temporary.text);
  corpus_leave_out(&job->corpus, job->out.old.text);
  return prepare_gather(&job->corpus, job->options, err);
}

static int run_job(Job *job, Error *err) {
  const PrepareOptions *o = job->options;
  job->train.shards = (Shards){.name = "train",
                               .limit = o->shard_tokens,
                               .vocab_size = job->facts->vocab_size,
                               .tokenizer = job->facts->fingerprint};
  job->val.shards = job->train.shards;
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
  if (o->template) {
    job->chat = template_named(o->template);
  } else {
    const char *fitting = template_fitting(job->tokenizer);
    char *advice = fitting ? xasprintf("name one with --template %s", fitting)
                           : xasprintf("it has no special tokens for one either; ./prepare "
                                       "--train-tokenizer N --template " TEMPLATE_NAMES
                                       " makes a tokenizer that has them");
    job->chat = template_choose(job->tokenizer, advice, err);
    free(advice);
    if (!job->chat) return -1;
  }
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
  job->out.lock = -1;
  if (!memory_try(try_job, job, err)) error_append(err, "; " LESS_MEMORY);
  const int status = job->status;
  corpus_close(&job->reader);
  encoding_close(job->encoding);
  shards_close(&job->train.shards);
  shards_close(&job->val.shards);
  while (job->oldest) drop_oldest(job);
  folder_close(&job->out);
  corpus_free(&job->corpus);
  tokenizer_close(job->tokenizer);
  free(job);
  return status;
}
