#include "model/run/write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "model/checkpoint/checkpoint.h"
#include "model/run/backend.h"
#include "model/run/text.h"

int write_parse(WriteArgs *args, int argc, char *const *argv, Error *err) {
  double tokens = 400, temperature = 0.8, top_k = 0, top_p = 1, seed = 1337;
  if (argc < 1) return error_set(err, "--generate needs the folder of a run or checkpoint");
  *args = (WriteArgs){.dir = argv[0]};
  const Option options[] = {{.name = "--prompt", .needs = "a text", .text = &args->prompt},
                            {.name = "--tokens", .low = 1, .high = 1e9, .number = &tokens},
                            {.name = "--temperature", .high = 100, .number = &temperature},
                            {.name = "--top-k", .high = 1e9, .number = &top_k},
                            {.name = "--top-p", .high = 1, .number = &top_p},
                            {.name = "--seed", .high = 9e15, .number = &seed}};
  for (int i = 1; i < argc; i++)
    if (option_read(options, sizeof options / sizeof *options, "--generate", argc, argv, &i, err))
      return -1;
  args->options = (SampleOptions){.temperature = temperature,
                                  .top_k = (int64_t)top_k,
                                  .top_p = top_p,
                                  .seed = (uint64_t)seed,
                                  .max_tokens = (int64_t)tokens};
  return 0;
}

static char *read_stdin(void) {
  size_t used = 0, room = 4096;
  char *text = xmalloc(room);
  for (size_t n; (n = fread(text + used, 1, room - used - 1, stdin)) > 0;) {
    used += n;
    if (used + 1 == room) text = xrealloc(text, room *= 2);
  }
  text[used] = '\0';
  return text;
}

// Token ids separated by white space, for models without a tokenizer.
static int parse_ids(const char *text, TokenIds *ids, Error *err) {
  for (const char *at = text; *(at += strspn(at, " \t\n")) != '\0';) {
    char *end;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\n", *end)))
      return error_set(err,
                       "this model comes without a tokenizer, so the prompt must be token ids "
                       "separated by spaces, and '%.20s' is none",
                       at);
    token_ids_push(ids, (int32_t)id);
    at = end;
  }
  return 0;
}

static int print(void *context, const char *text, size_t bytes, Error *err) {
  (void)context;
  if (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return 0;
  return error_set(err, "cannot write to standard output: %s", strerror(errno));
}

static int write_prompt(Llama *llama, int64_t context, const WriteArgs *args, const char *prompt,
                        const volatile sig_atomic_t *stop, Error *err) {
  const bool bytes = llama->config.vocab_size == BYTE_VOCAB;
  Tokenizer *tokenizer = bytes ? tokenizer_open(BYTES_NAME, err) : NULL;
  Writing w = {.tokenizer = tokenizer, .options = args->options, .stop = stop, .show = print};
  if (bytes) sample_options_end(&w.options, TOKEN_END);
  TokenIds ids = {0};
  int status = bytes ? prompt_ids(tokenizer, prompt, strlen(prompt), &ids, err)
                     : parse_ids(prompt, &ids, err);
  w.generator = status == 0 ? generator_create(llama, context, err) : NULL;
  if (w.generator) status = text_write(&w, prompt, strlen(prompt), &ids, err);
  if (w.generator && status == 0) putchar('\n');
  status = w.generator ? status : -1;
  generator_destroy(w.generator);
  free(ids.ids);
  tokenizer_close(tokenizer);
  return status;
}

// The context a checkpoint of ours was trained with; for other folders what the model allows,
// within reason.
static int64_t context_of(const char *path, const ModelConfig *model) {
  enum { FOREIGN_CONTEXT = 2048 };
  Config config;
  Error ignored; // a foreign folder has no run.json
  if (checkpoint_read_config(path, &config, &ignored) == 0) return config.train.sequence_length;
  return model->max_position_embeddings < FOREIGN_CONTEXT ? model->max_position_embeddings
                                                          : FOREIGN_CONTEXT;
}

static int read_model(ModelConfig *model, const char *folder, Error *err) {
  enum { MAX_CONFIG_BYTES = 1 << 20 };
  const PathText path = path_text("%s/config.json", folder);
  char *json;
  size_t bytes;
  if (file_read(path.text, MAX_CONFIG_BYTES, &json, &bytes, err) != 0) return -1;
  const int status = model_config_parse(model, path.text, json, err);
  free(json);
  return status;
}

int write_run(const WriteArgs *args, const volatile sig_atomic_t *stop, Error *err) {
  enum { ROWS = 64 };
  char path[PATH_CHARS];
  Config config = {.backend = {.device = DEVICE_AUTO, .kernels = KERNELS_AUTO, .graphs = true}};
  if (checkpoint_find(args->dir, args->dir, path, err) != 0) return -1;
  if (read_model(&config.model, path, err) != 0) return -1;
  const int64_t context = context_of(path, &config.model);
  RunShape shape = {.batch = 1, .seq = ROWS, .loss_chunks = 1, .context = context};
  Llama llama = {0};
  Backend *be = backend_create(&config, &shape, context > ROWS ? context : ROWS, err);
  if (!be) return -1;
  int status = llama_create(&llama, &config.model, &shape, be, err);
  if (status == 0) status = checkpoint_load(path, &llama, false, err);
  if (status == 0) {
    char *prompt = args->prompt ? xstrdup(args->prompt) : read_stdin();
    status = write_prompt(&llama, context, args, prompt, stop, err);
    free(prompt);
  }
  llama_destroy(&llama);
  be->destroy(be);
  return status;
}
