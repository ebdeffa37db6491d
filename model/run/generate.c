// --generate: continues a prompt with a trained model, or speaks with it.
#include "model/run/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/command.h"
#include "base/json.h"
#include "base/minmax.h"
#include "data/chat/render.h"
#include "model/run/run.h"
#include "model/run/token_text.h"

// A conversation on a terminal has as many tokens at most, or as the model has positions.
enum { CONVERSATION_TOKENS = 8192 };

typedef struct Generation {
  const char *prompt;        // NULL: standard input
  const char *user, *system; // a message to be answered, and the one in front of it; NULL: none
  const char *weights;
  LoadedModel loaded;
  TextGeneration writer;
  TokenIds ids;    // the prompt, or the conversation so far
  int64_t context; // tokens of both and of the answer, at most
  Renderer *renderer;
  Conversation conversation; // its messages' texts are in memory of their own
  Text answer;               // the last one
} Generation;

// The arguments behind the folder.
static int parse(Generation *g, int argc, char *const *argv, Error *err) {
  double tokens = 400, temperature = 0.8, top_k = 0, top_p = 1;
  int64_t seed = 1337;
  const Option options[] = {{.name = "--prompt", .needs = "a text", .text = &g->prompt},
                            {.name = "--user", .needs = "a text", .text = &g->user},
                            {.name = "--system", .needs = "a text", .text = &g->system},
                            {.name = "--tokens", .low = 1, .high = 1e9, .number = &tokens},
                            {.name = "--temperature", .high = 100, .number = &temperature},
                            {.name = "--top-k", .high = 1e9, .number = &top_k},
                            {.name = "--top-p", .high = 1, .number = &top_p},
                            {.name = "--weights", .needs = WEIGHTS, .text = &g->weights},
                            {.name = "--seed", .high = JSON_MAX_INTEGER, .whole = &seed}};
  for (int i = 1; i < argc; i++)
    if (option_read(options, sizeof options / sizeof *options, "--generate", argc, argv, &i, err))
      return -1;
  g->writer.options = (SampleOptions){.temperature = temperature,
                                      .top_k = (int64_t)top_k,
                                      .top_p = top_p,
                                      .seed = (uint64_t)seed,
                                      .max_tokens = (int64_t)tokens};
  if (g->prompt && (g->user || g->system))
    return error_set(err, "--prompt is continued, and %s is answered: give one of them",
                     g->user ? "--user" : "--system");
  if (g->system && !g->user && !isatty(STDIN_FILENO))
    return error_set(err, "--system needs --user \"...\", or a terminal to speak on");
  return 0;
}

// The model, with a cache of as many positions as are asked for, within the model's.
static int load(Generation *g, int64_t context, Error *err) {
  LoadedModel *t = &g->loaded;
  g->context = min_i64(context, t->model.max_position_embeddings);
  const int64_t rows = min_i64(g->context, 256); // of a prompt at a time
  Spec asked = {.batch = 1, .seq = rows, .loss_chunks = (rows + 63) / 64, .context = g->context};
  if (loaded_weights(t, g->weights, &asked, err) != 0) return -1;
  if (loaded_load(t, asked, "ask for fewer --tokens", err) != 0) return -1;
  g->writer.generator = generator_create(&t->llama, g->context, err);
  for (int i = 0; i < t->end_count; i++) sample_options_end(&g->writer.options, t->ends[i]);
  return g->writer.generator ? 0 : -1;
}

// ---- A prompt

int generate_parse_ids(const char *text, TokenIds *ids, Error *err) {
  for (const char *at = text; *(at += strspn(at, " \t\n")) != '\0';) {
    char *end;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\n", *end)))
      return error_set(
          err, "without a tokenizer.json a prompt is token ids and spaces, and '%.20s' is none",
          at);
    token_ids_push(ids, (int32_t)id);
    at = end;
  }
  return 0;
}

static Text read_prompt(const char *prompt) {
  enum { PIECE = 4096 };
  Text t = {0};
  if (prompt) text_append(&t, prompt, strlen(prompt));
  for (size_t n; !prompt && (n = fread(text_room(&t, PIECE), 1, PIECE, stdin)) > 0;) t.bytes += n;
  *text_room(&t, 1) = '\0';
  return t;
}

static int continue_prompt(Generation *g, Error *err) {
  const Tokenizer *tokenizer = g->loaded.tokenizer;
  const Text prompt = read_prompt(g->prompt);
  int status = tokenizer ? prompt_ids(tokenizer, prompt.data, prompt.bytes, &g->ids, err)
                         : generate_parse_ids(prompt.data, &g->ids, err);
  if (status != 0 && !tokenizer) tokenizer_advise(g->loaded.start.path, err);
  g->writer.show = text_print;
  if (status == 0)
    status = load(g, g->ids.count + g->writer.options.max_tokens, err) ||
                     text_generate(&g->writer, prompt.data, prompt.bytes, &g->ids, err) ||
                     text_print(NULL, "\n", 1, err)
                 ? -1
                 : 0;
  free(prompt.data);
  return status;
}

// ---- A conversation

// The template of the model's tokenizer; NULL: it is not known, and the sentence says what to do.
static const ChatTemplate *find_template(const LoadedModel *t, Error *err) {
  if (t->tokenizer)
    return template_choose(
        t->tokenizer,
        template_fitting(t->tokenizer)
            ? "prepare conversations with ./prepare --chat --template " TEMPLATE_NAMES
              " and fine-tune on them, or give a --prompt"
            : "it has no special tokens for one either, so give a --prompt",
        err);
  error_set(err,
            "'%s' has no tokenizer.json, so nobody can speak with it: give token ids with --prompt",
            t->start.path);
  return NULL;
}

static void add(Generation *g, const char *role, const char *text, size_t bytes) {
  char *kept = xmalloc(bytes + 1);
  conversation_add(&g->conversation, message_of(role, memcpy(kept, text, bytes), bytes));
}

static int show_answer(void *generation, const char *text, size_t bytes, Error *err) {
  Generation *g = generation;
  text_append(&g->answer, text, bytes);
  return text_print(NULL, text, bytes, err);
}

// The conversation so far, and the beginning of the next answer.
static int render(Generation *g, Error *err) {
  g->ids.count = 0;
  return renderer_append(g->renderer, &g->conversation, true, &g->ids, NULL, err);
}

// Answers g->ids. The answer ends where the model ends its turn, after --tokens, or, which is an
// error, with the context.
static int answer(Generation *g, int64_t most, Error *err) {
  const int64_t room = g->context - g->ids.count;
  g->answer.bytes = 0;
  g->writer.options.max_tokens = min_i64(room, most);
  if (room > 0) {
    if (text_generate(&g->writer, "", 0, &g->ids, err) != 0 || show_answer(g, "\n", 1, err) != 0)
      return -1;
    g->answer.bytes--;
    if (room >= most || generator_written(g->writer.generator) < room) return 0;
  }
  return error_set(err, "the context of %lld tokens is full: begin a new conversation, or say less",
                   (long long)g->context);
}

// A line of the user without its end, in fresh memory; NULL at the end of the input, or where a
// signal came.
static char *read_line(size_t *bytes) {
  char *line = NULL;
  size_t capacity = 0;
  fputs("> ", stdout);
  fflush(stdout);
  ssize_t n = getline(&line, &capacity, stdin);
  while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
  *bytes = n > 0 ? (size_t)n : 0;
  if (n >= 0) return line;
  free(line);
  return NULL;
}

static int converse(Generation *g, int64_t most, Error *err) {
  int status = load(g, CONVERSATION_TOKENS, err);
  size_t bytes;
  for (char *line; status == 0 && !*g->writer.stop && (line = read_line(&bytes)); free(line)) {
    if (bytes == 0) continue;
    add(g, ROLE_USER, line, bytes);
    status = render(g, err) || answer(g, most, err) ? -1 : 0;
    if (status == 0) add(g, ROLE_ASSISTANT, g->answer.data, g->answer.bytes);
  }
  return status == 0 ? text_print(NULL, "\n", 1, err) : -1;
}

// Answers the user's message, or lines of standard input until its end, with all that was said
// before in view.
static int speak(Generation *g, Error *err) {
  const Tokenizer *tokenizer = g->loaded.tokenizer;
  const int64_t most = g->writer.options.max_tokens;
  const ChatTemplate *template = find_template(&g->loaded, err);
  if (!template || !(g->renderer = renderer_open(tokenizer, template, err))) return -1;
  g->writer.show = show_answer;
  sample_options_end(&g->writer.options, template_end(tokenizer));
  if (g->system) add(g, ROLE_SYSTEM, g->system, strlen(g->system));
  if (!g->user) return converse(g, most, err);
  add(g, ROLE_USER, g->user, strlen(g->user));
  return render(g, err) || load(g, g->ids.count + most, err) || answer(g, most, err) ? -1 : 0;
}

// ---- Both

// On a terminal a model is spoken with if its template is known.
static bool is_conversation(const Generation *g) {
  Error ignored;
  if (g->user || g->system) return true;
  return !g->prompt && isatty(STDIN_FILENO) && find_template(&g->loaded, &ignored);
}

int generate_command(int argc, char **argv, Error *err) {
  Generation g = {0};
  if (argc < 1) return error_set(err, "--generate needs the folder of a run or checkpoint");
  if (parse(&g, argc, argv, err) != 0) return -1;
  g.writer.stop = process_catch_signals();
  int status = loaded_open(&g.loaded, argv[0], err);
  g.writer.tokenizer = g.loaded.tokenizer;
  g.writer.context = &g;
  if (status == 0) status = is_conversation(&g) ? speak(&g, err) : continue_prompt(&g, err);
  generator_destroy(g.writer.generator);
  for (size_t i = 0; i < g.conversation.count; i++)
    free((void *)g.conversation.messages[i].text.text);
  conversation_free(&g.conversation);
  renderer_close(g.renderer);
  free(g.ids.ids);
  free(g.answer.data);
  loaded_close(&g.loaded);
  return status;
}
