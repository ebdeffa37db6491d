#include "model/run/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/command.h"
#include "model/run/token_text.h"

int generate_parse(GenerateArgs *args, int argc, char *const *argv, Error *err) {
  double tokens = 400, temperature = 0.8, top_k = 0, top_p = 1;
  int64_t seed = 1337;
  if (argc < 1) return error_set(err, "--generate needs the folder of a run or checkpoint");
  *args = (GenerateArgs){.dir = argv[0]};
  const Option options[] = {{.name = "--prompt", .needs = "a text", .text = &args->prompt},
                            {.name = "--user", .needs = "a text", .text = &args->user},
                            {.name = "--system", .needs = "a text", .text = &args->system},
                            {.name = "--tokens", .low = 1, .high = 1e9, .number = &tokens},
                            {.name = "--temperature", .high = 100, .number = &temperature},
                            {.name = "--top-k", .high = 1e9, .number = &top_k},
                            {.name = "--top-p", .high = 1, .number = &top_p},
                            {.name = "--seed", .high = JSON_MAX_INTEGER, .whole = &seed}};
  for (int i = 1; i < argc; i++)
    if (option_read(options, sizeof options / sizeof *options, "--generate", argc, argv, &i, err))
      return -1;
  args->options = (SampleOptions){.temperature = temperature,
                                  .top_k = (int64_t)top_k,
                                  .top_p = top_p,
                                  .seed = (uint64_t)seed,
                                  .max_tokens = (int64_t)tokens};
  if (args->prompt && (args->user || args->system))
    return error_set(err, "--prompt is continued, and %s is answered: give one of them",
                     args->user ? "--user" : "--system");
  if (args->system && !args->user && !isatty(STDIN_FILENO))
    return error_set(err, "--system needs --user \"...\", or a terminal to speak on");
  return 0;
}

static char *read_stdin(size_t *bytes) {
  size_t room = 4096;
  char *text = xmalloc(room);
  *bytes = 0;
  for (size_t n; (n = fread(text + *bytes, 1, room - *bytes - 1, stdin)) > 0;) {
    *bytes += n;
    if (*bytes + 1 == room) text = xrealloc(text, room *= 2);
  }
  text[*bytes] = '\0';
  return text;
}

int generate_parse_ids(const char *text, TokenIds *ids, Error *err) {
  for (const char *at = text; *(at += strspn(at, " \t\n")) != '\0';) {
    char *end;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\n", *end)))
      return error_set(err,
                       "this model comes without a tokenizer.json, so the prompt must be token ids "
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

// The cache holds as many positions as are asked for, within the model's.
static int load_and_generate(LoadedModel *t, const GenerateArgs *args, const char *prompt,
                             size_t bytes, const TokenIds *ids, const volatile sig_atomic_t *stop,
                             Error *err) {
  const int64_t most = t->model.max_position_embeddings,
                asked = ids->count + args->options.max_tokens;
  TextGeneration w = {.generator = loaded_generator(t, asked < most ? asked : most, err),
                      .tokenizer = t->tokenizer,
                      .options = args->options,
                      .stop = stop,
                      .show = print};
  for (int i = 0; i < t->end_count; i++) sample_options_end(&w.options, t->ends[i]);
  int status = w.generator ? text_generate(&w, prompt, bytes, ids, err) : -1;
  if (status == 0) status = print(NULL, "\n", 1, err);
  generator_destroy(w.generator);
  return status;
}

static int continue_prompt(LoadedModel *t, const GenerateArgs *args,
                           const volatile sig_atomic_t *stop, Error *err) {
  size_t bytes = args->prompt ? strlen(args->prompt) : 0;
  char *prompt = args->prompt ? xstrdup(args->prompt) : read_stdin(&bytes);
  TokenIds ids = {0};
  int status = t->tokenizer ? prompt_ids(t->tokenizer, prompt, bytes, &ids, err)
                            : generate_parse_ids(prompt, &ids, err);
  if (status != 0 && !t->tokenizer) tokenizer_advise(t->start.path, err);
  if (status == 0) status = load_and_generate(t, args, prompt, bytes, &ids, stop, err);
  free(ids.ids);
  free(prompt);
  return status;
}

// On a terminal a model is spoken with if its template is known.
static bool is_conversation(const LoadedModel *t, const GenerateArgs *args) {
  Error ignored;
  if (args->user || args->system) return true;
  return !args->prompt && isatty(STDIN_FILENO) && chat_template(t, &ignored);
}

int generate_run(const GenerateArgs *args, const volatile sig_atomic_t *stop, Error *err) {
  LoadedModel t;
  int status = loaded_open(&t, args->dir, err);
  if (status == 0)
    status = is_conversation(&t, args) ? chat_run(&t, args, stop, err)
                                       : continue_prompt(&t, args, stop, err);
  loaded_close(&t);
  return status;
}
