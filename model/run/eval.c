#include "model/run/commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/command.h"
#include "data/loader.h"
#include "model/run/token_text.h"
#include "model/run/trained.h"

int eval_parse(EvalArgs *args, int argc, char *const *argv, Error *err) {
  double length = 0, batch = 0;
  if (argc < 1) return error_set(err, "--eval needs the folder of a run or checkpoint");
  *args = (EvalArgs){.dir = argv[0]};
  const Option options[] = {
      {.name = "--data", .needs = "token files or a text", .text = &args->data},
      {.name = "--length", .low = 1, .high = 1e9, .number = &length},
      {.name = "--batch", .low = 1, .high = 1e6, .number = &batch}};
  for (int i = 1; i < argc; i++)
    if (option_read(options, sizeof options / sizeof *options, "--eval", argc, argv, &i, err))
      return -1;
  args->length = (int64_t)length;
  args->batch = (int64_t)batch;
  if (args->data) return 0;
  return error_set(err, "--eval needs --data FILES: token files, their folder, or a text");
}

typedef struct Evaluation {
  const EvalArgs *args;
  const volatile sig_atomic_t *stop;
  Trained trained;
  Loader *loader;   // NULL: the one file is a text
  TokenIds ids;     // of the text
  TokenFile text;   // over them
  TokenFile *files; // [count]
  int count;
  int64_t T, B;          // of the one shape that all batches have
  int32_t *tokens;       // [B, T] inputs, then [B, T] targets
  int64_t targets, done; // tokens with a loss: all, so far
  TextBytes text_bytes;  // of those so far
  double nats;           // the sum of their losses
  Progress progress;
} Evaluation;

// ---- The data

static int open_token_files(Evaluation *e, const char *pattern, Error *err) {
  const LoaderConfig config = {.pattern = pattern, .split = "val", .batch = 1, .seq = 1};
  e->loader = loader_open(&config, err);
  if (!e->loader) return -1;
  e->files = e->loader->files;
  e->count = e->loader->file_count;
  return 0;
}

// A whole text is one document.
static int open_text(Evaluation *e, const char *path, Error *err) {
  enum { MOST_BYTES = 1 << 30 };
  static const char *const made_of[] = {".jsonl", ".json", ".gz", ".zst", ".parquet"};
  const Tokenizer *tokenizer = e->trained.tokenizer;
  char *text;
  size_t bytes;
  for (size_t i = 0; i < sizeof made_of / sizeof *made_of; i++)
    if (name_ends_with(path, made_of[i]))
      return error_set(err,
                       "'%s' is neither token files (*.bin) nor plain text: make token files "
                       "of it with ./prepare",
                       path);
  if (!tokenizer) {
    error_set(err, "'%s' is a text, but '%s' has no tokenizer.json: give token files", path,
              e->trained.start.path);
    return tokenizer_advise(e->trained.start.path, err);
  }
  if (file_read(path, MOST_BYTES, &text, &bytes, err) != 0) return -1;
  const int status = prompt_ids(tokenizer, text, bytes, &e->ids, err);
  free(text);
  if (status != 0) return -1;
  if (tokenizer_facts(tokenizer)->eos != NO_TOKEN)
    token_ids_push(&e->ids, tokenizer_facts(tokenizer)->eos);
  e->text = (TokenFile){.fd = -1,
                        .memory = (const unsigned char *)e->ids.ids,
                        .path = xstrdup(path),
                        .count = e->ids.count,
                        .token_bytes = sizeof *e->ids.ids};
  e->files = &e->text;
  e->count = 1;
  return 0;
}

static int check_file(const Evaluation *e, const TokenFile *file, Error *err) {
  const Tokenizer *tokenizer = e->trained.tokenizer;
  if (!tokenizer || file->tokenizer == 0 ||
      file->tokenizer == tokenizer_facts(tokenizer)->fingerprint)
    return 0;
  return error_set(err,
                   "'%s' was made with another tokenizer than the model's, '%s': make token files "
                   "with ./prepare --tokenizer '%s'",
                   file->path, tokenizer_facts(tokenizer)->name, e->trained.start.path);
}

static int open_data(Evaluation *e, Error *err) {
  const char *data = e->args->data;
  const bool tokens = path_is_directory(data) || name_ends_with(data, ".bin");
  if ((tokens ? open_token_files(e, data, err) : open_text(e, data, err)) != 0)
    return error_prefix(err, "--data");
  for (int f = 0; f < e->count; f++) {
    if (check_file(e, &e->files[f], err) != 0) return -1;
    if (e->files[f].count > 0) e->targets += e->files[f].count - 1;
  }
  if (e->loader && loader_check(e->loader, e->trained.model.vocab_size, err) != 0) return -1;
  if (e->targets > 0) return 0;
  return error_set(err, "'%s' has no token to predict: a file needs two tokens or more", data);
}

// ---- The model

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int open_model(Evaluation *e, Error *err) {
  enum { DEFAULT_LENGTH = 4096, DEFAULT_TOKENS = 8192, MOST_LOGITS = 1 << 26 };
  const ModelConfig *m = &e->trained.model;
  int64_t longest = 1;
  for (int f = 0; f < e->count; f++)
    if (e->files[f].count - 1 > longest) longest = e->files[f].count - 1;
  if (e->args->length > m->max_position_embeddings)
    return error_set(err, "--length %lld is beyond the model's max_position_embeddings of %lld",
                     (long long)e->args->length, (long long)m->max_position_embeddings);
  const int64_t asked = e->args->length > 0 ? e->args->length : DEFAULT_LENGTH;
  e->T = least(least(asked, m->max_position_embeddings), longest);
  const int64_t fill = e->T < DEFAULT_TOKENS ? DEFAULT_TOKENS / e->T : 1;
  e->B = least(e->args->batch > 0 ? e->args->batch : fill, (longest + e->T - 1) / e->T);
  const int64_t rows = e->B * e->T,
                fit = m->vocab_size < MOST_LOGITS ? MOST_LOGITS / m->vocab_size : 1;
  const RunShape shape = {.batch = e->B, .seq = e->T, .loss_chunks = (rows + fit - 1) / fit};
  e->tokens = xcalloc((size_t)(2 * e->B * e->T), sizeof *e->tokens);
  text_bytes_open(&e->text_bytes, e->trained.tokenizer);
  return trained_load(&e->trained, &shape, e->T, "take a smaller --batch or --length", err);
}

// ---- Windows

// The sum of the losses of all rows with a target: inputs [B, T], then the targets in e->tokens.
static double sum_of_losses(Evaluation *e) {
  Llama *llama = &e->trained.llama;
  Backend *be = llama->be;
  llama_load_batch(llama, &(Batch){.tokens = e->tokens, .targets = e->tokens + e->B * e->T});
  be->services.step_begin(be);
  llama_forward(llama);
  llama_loss(llama, 1);
  be->services.step_end(be);
  return be->services.step_result(be).loss * (double)(e->B * e->T);
}

// The `count` tokens after token `first` of the file, in windows of T, of which the last may end
// early: no token sees the rows after it, and they have no targets.
static int evaluate_batch(Evaluation *e, const TokenFile *file, int64_t first, int64_t count,
                          Error *err) {
  int32_t *targets = e->tokens + e->B * e->T;
  const int64_t V = e->trained.model.vocab_size;
  if (tokens_read(file, first, count, V, e->tokens, err) != 0 ||
      tokens_read(file, first + 1, count, V, targets, err) != 0 ||
      (e->loader && loader_look(e->loader, err) != 0))
    return -1;
  for (int64_t row = count; row < e->B * e->T; row++) {
    e->tokens[row] = 0;
    targets[row] = NO_TARGET;
  }
  text_bytes_add(&e->text_bytes, targets, count);
  e->nats += sum_of_losses(e);
  e->done += count;
  progress_show(&e->progress, (uint64_t)e->done, (uint64_t)e->targets, (uint64_t)e->done);
  if (*e->stop)
    return error_set(err, "stopped after %lld of %lld tokens", (long long)e->done,
                     (long long)e->targets);
  if (isfinite(e->nats)) return 0;
  return error_set(err,
                   "the loss is not finite in '%s' between tokens %lld and %lld: the model's "
                   "weights are damaged, or it has diverged in training",
                   file->path, (long long)first + 1, (long long)(first + count));
}

static int evaluate_file(Evaluation *e, const TokenFile *file, Error *err) {
  int32_t start;
  if (file->count == 0) return 0;
  if (tokens_read(file, 0, 1, e->trained.model.vocab_size, &start, err) != 0) return -1;
  text_bytes_begin(&e->text_bytes, start);
  for (int64_t first = 0, count; first < file->count - 1; first += count) {
    count = least(file->count - 1 - first, e->B * e->T);
    if (evaluate_batch(e, file, first, count, err) != 0) return -1;
  }
  text_bytes_end(&e->text_bytes);
  return 0;
}

// ---- All of it

static void report(const Evaluation *e) {
  const double loss = e->nats / (double)e->targets;
  printf("data           %lld tokens with a loss, of %d file%s, in windows of %lld\n",
         (long long)e->targets, e->count, e->count == 1 ? "" : "s", (long long)e->T);
  printf("loss           %.6f nats a token\n", loss);
  printf("perplexity     %.6g\n", exp(loss));
  if (e->text_bytes.count > 0)
    printf("bits per byte  %.6f, at %.4f bytes a token\n",
           bits_per_byte(e->nats, e->text_bytes.count),
           (double)e->text_bytes.count / (double)e->targets);
  else
    printf("bits per byte  not known: %s\n", e->trained.tokenizer
                                                 ? "these tokens are no text"
                                                 : "the model comes without a tokenizer");
}

static int evaluate(Evaluation *e, Error *err) {
  if (trained_open(&e->trained, e->args->dir, err) != 0 || open_data(e, err) != 0 ||
      open_model(e, err) != 0)
    return -1;
  e->progress = progress_begin("tokens", 1);
  int status = 0;
  for (int f = 0; f < e->count && status == 0; f++) status = evaluate_file(e, &e->files[f], err);
  progress_end(&e->progress);
  if (status == 0) report(e);
  return status;
}

int eval_run(const EvalArgs *args, const volatile sig_atomic_t *stop, Error *err) {
  Evaluation e = {.args = args, .stop = stop};
  const int status = evaluate(&e, err);
  loader_close(e.loader);
  if (!e.loader) tokens_close(&e.text);
  text_bytes_close(&e.text_bytes);
  trained_close(&e.trained);
  free(e.ids.ids);
  free(e.tokens);
  return status;
}
