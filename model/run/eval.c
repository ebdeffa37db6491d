// --eval: how well a trained model predicts a text.
#include "model/run/commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/command.h"
#include "base/text.h"
#include "data/loader.h"
#include "model/run/run.h"

typedef struct Evaluation {
  const char *data; // token files: a glob that ends in .bin, or a folder with val-*.bin; a text
  const char *documents; // "mask", "join" (data.documents); NULL: as the run's, or mask
  const char *weights;   // as loaded_weights takes them
  double length, batch;  // of a window, and windows at a time; 0: not given
  const volatile sig_atomic_t *stop;
  LoadedModel loaded;
  TokenIds ids;   // of a text
  TokenFile text; // over them; path NULL: the data are token files
  Loader *loader;
  WindowsPass pass;
  ValMean mean;
  Progress progress;
} Evaluation;

// The arguments behind the folder.
static int parse(Evaluation *e, int argc, char *const *argv, Error *err) {
  const Option options[] = {{.name = "--data", .needs = "token files or a text", .text = &e->data},
                            {.name = "--documents", .needs = "mask or join", .text = &e->documents},
                            {.name = "--weights", .needs = WEIGHTS, .text = &e->weights},
                            {.name = "--length", .low = 1, .high = 1e9, .number = &e->length},
                            {.name = "--batch", .low = 1, .high = 1e6, .number = &e->batch}};
  for (int i = 1; i < argc; i++)
    if (option_read(options, sizeof options / sizeof *options, "--eval", argc, argv, &i, err))
      return -1;
  const char *documents = e->documents;
  if (documents && strcmp(documents, "mask") != 0 && strcmp(documents, "join") != 0)
    return error_set(err, "--documents is '%s', but must be mask or join", documents);
  if (e->data) return 0;
  return error_set(err, "--eval needs --data FILES: token files, their folder, or a text");
}

// ---- The data

// A whole text is one document. A byte order mark is no text.
static int encode_text(Evaluation *e, const char *path, const char *text, size_t bytes,
                       Error *err) {
  const Tokenizer *tokenizer = e->loaded.tokenizer;
  const int32_t end = tokenizer_facts(tokenizer)->eos;
  const size_t mark = strlen(UTF8_MARK);
  TokenIds *ids = &e->ids;
  if (bytes >= mark && memcmp(text, UTF8_MARK, mark) == 0) text += mark, bytes -= mark;
  if (bytes == 0) return error_set(err, "'%s' is empty: there is no token to judge", path);
  if (file_refuse_pointer(path, text, bytes, err) != 0) return -1;
  if ((bytes >= 4 && memcmp(text, "PAR1", 4) == 0) || json_begins(text, bytes) ||
      file_refuse_packed(path, text, bytes, err) != 0)
    return error_set(
        err, "'%s' is no token file (*.bin) and no plain text: make one with ./prepare", path);
  if (prompt_ids(tokenizer, text, bytes, ids, err) != 0) return -1;
  if (end != NO_TOKEN && ids->ids[ids->count - 1] != end) token_ids_push(ids, end);
  e->text = (TokenFile){.fd = -1,
                        .memory = ids->ids,
                        .path = xstrdup(path),
                        .count = ids->count,
                        .token_bytes = sizeof *ids->ids};
  return 0;
}

static int open_text(Evaluation *e, const char *path, Error *err) {
  enum { MOST_BYTES = 1 << 30 };
  char *text;
  size_t bytes;
  if (!e->loaded.tokenizer) {
    error_set(err, "'%s' is a text, but '%s' has no tokenizer.json: give token files", path,
              e->loaded.start.path);
    return tokenizer_advise(e->loaded.start.path, err);
  }
  if (file_read(path, MOST_BYTES, &text, &bytes, err) != 0) return -1;
  const int status = encode_text(e, path, text, bytes, err);
  free(text);
  return status;
}

// As the run's data.documents, where the folder is one of a run's, and with its attention.
static int choose_documents(Evaluation *e, DocumentsMode *documents, Error *err) {
  const char *folder = e->loaded.start.path, *named = e->documents;
  Config config;
  *documents = named && strcmp(named, "join") == 0 ? DOCUMENTS_JOIN : DOCUMENTS_MASK;
  if (named || !has_file(folder, STATE_FILE)) return 0;
  if (!has_file(folder, RUN_CONFIG_FILE))
    return error_set(
        err, "'%s' has no " RUN_CONFIG_FILE ", so give --documents mask or --documents join",
        folder);
  if (checkpoint_read_config(folder, &config, err) != 0) return -1;
  *documents = config.data.documents;
  e->loaded.document_attention = config.backend.document_attention;
  return 0;
}

static int open_loader(Evaluation *e, Error *err) {
  enum { DEFAULT_LENGTH = 4096 };
  const int64_t length = (int64_t)e->length, positions = e->loaded.model.max_position_embeddings;
  if (length > positions)
    return error_set(err, "--length %lld is beyond the model's max_position_embeddings of %lld",
                     (long long)length, (long long)positions);
  LoaderConfig config = {.pattern = e->data,
                         .split = "val",
                         .text = e->text.path ? &e->text : NULL,
                         .batch = 1,
                         .seq = min_i64(length > 0 ? length : DEFAULT_LENGTH, positions),
                         .whole = true};
  config.alone =
      !hardware_attends_documents(&e->loaded.hardware, e->loaded.model.head_dim, config.seq);
  if (choose_documents(e, &config.documents, err) != 0) return -1;
  e->loader = loader_open(&config, err);
  if (!e->loader) return error_prefix(err, "--data");
  return 0;
}

static int open_data(Evaluation *e, Error *err) {
  const char *data = e->data;
  const bool tokens = path_is_directory(data) || name_ends_with(data, ".bin");
  if (!tokens && open_text(e, data, err) != 0) return error_prefix(err, "--data");
  if (open_loader(e, err) != 0) return -1;
  if (e->loaded.tokenizer && check_token_files(e->loader, e->loaded.tokenizer, err) != 0) return -1;
  const int status = loader_check(e->loader, e->loaded.model.vocab_size, err);
  if (status == 1) error_append(err, ": make token files with the model's own tokenizer");
  return status == 0 ? 0 : -1;
}

// ---- The model

static int open_model(Evaluation *e, Error *err) {
  enum { DEFAULT_TOKENS = 8192, MOST_LOGITS = 1 << 26 };
  const int64_t V = e->loaded.model.vocab_size, T = e->loader->config.seq,
                fill = T < DEFAULT_TOKENS ? DEFAULT_TOKENS / T : 1,
                split = e->loader->epoch.windows,
                B = min_i64(e->batch > 0 ? (int64_t)e->batch : fill, split), tokens = B * T,
                rows = min_i64(tokens, V < MOST_LOGITS ? MOST_LOGITS / V : 1);
  Spec asked = {.batch = B, .seq = T, .loss_chunks = (tokens + rows - 1) / rows};
  if (loaded_weights(&e->loaded, e->weights, &asked, err) != 0) return -1;
  spec_documents(&asked, e->loader);
  e->pass = (WindowsPass){.windows = val_windows(split, B, 0),
                          .loader = e->loader,
                          .llama = &e->loaded.llama,
                          .batch = batch_alloc(tokens)};
  text_bytes_open(&e->pass.text, e->loaded.tokenizer);
  return loaded_load(&e->loaded, asked, "take a smaller --batch or --length", err);
}

// ---- Windows

static int evaluate_batch(Evaluation *e, int64_t i, Error *err) {
  const ValWindows *w = &e->pass.windows;
  const long long T = e->loader->config.seq, all = w->split * T,
                  done = min_i64((i + 1) * w->batch, w->split) * T;
  double nats;
  if (windows_losses(&e->pass, i, &nats, err) != 0) return -1;
  val_mean_add(&e->mean, nats, (double)e->pass.batch.counted);
  progress_show(&e->progress, (uint64_t)done, (uint64_t)all, (uint64_t)done);
  if (*e->stop) return error_set(err, "stopped after %lld of %lld tokens", done, all);
  if (isfinite(nats)) return 0;
  const WindowPiece piece =
      loader_piece(e->loader, e->loader->sources, (uint64_t)(i * w->batch), 0);
  return error_set(
      err, "the loss of the batch at token %lld of '%s' is not finite: the model has diverged",
      (long long)piece.first, e->loader->files[piece.file].path);
}

static void report(const Evaluation *e) {
  const Loader *loader = e->loader;
  const double loss = val_mean(&e->mean), bytes = (double)e->pass.text.count;
  printf("data           %.0f tokens with a loss, of %d file%s, in windows of %lld", e->mean.tokens,
         loader->file_count, loader->file_count == 1 ? "" : "s", (long long)loader->config.seq);
  if (loader->apart)
    printf(", %lld document%s apart", (long long)loader->epoch.documents,
           loader->epoch.documents == 1 ? "" : "s");
  printf("\nloss           %.6f nats a token\nperplexity     %.6g\n", loss, exp(loss));
  if (bytes > 0)
    printf("bits per byte  %.6f, at %.4f bytes a token\n",
           bits_per_byte(e->mean.nats, e->pass.text.count), bytes / e->mean.tokens);
  else
    printf("bits per byte  not known: %s\n", e->loaded.tokenizer
                                                 ? "these tokens are no text"
                                                 : "the model comes without a tokenizer");
}

static int evaluate(Evaluation *e, const char *dir, Error *err) {
  if (loaded_open(&e->loaded, dir, err) || open_data(e, err) || open_model(e, err)) return -1;
  e->progress = progress_begin("tokens", 1);
  int status = 0;
  for (int64_t i = 0; i < e->pass.windows.batches && status == 0; i++)
    status = evaluate_batch(e, i, err);
  progress_end(&e->progress);
  if (status == 0) report(e);
  return status;
}

int eval_command(int argc, char **argv, Error *err) {
  Evaluation e = {.stop = NULL};
  if (argc < 1) return error_set(err, "--eval needs the folder of a run or checkpoint");
  if (parse(&e, argc, argv, err) != 0) return -1;
  e.stop = process_catch_signals();
  const int status = evaluate(&e, argv[0], err);
  loader_close(e.loader);
  tokens_close(&e.text);
  text_bytes_close(&e.pass.text);
  loaded_close(&e.loaded);
  free(e.ids.ids);
  batch_free(&e.pass.batch);
  return status;
}
