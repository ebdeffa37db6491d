// --generate with --user, or on a terminal: speaking with a model.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/chat/render.h"
#include "model/run/commands.h"
#include "model/run/token_text.h"

// A conversation on a terminal has as many tokens at most, or as the model has positions.
enum { CONVERSATION_TOKENS = 8192 };

typedef struct Chat {
  LoadedModel *loaded;
  const GenerateArgs *args;
  Renderer *renderer;
  Conversation conversation;
  char **texts; // [conversation.count] owned, of the messages
  TextGeneration writer;
  int64_t context; // tokens of the conversation at most
  TokenIds ids;
  Text answer; // the last one
} Chat;

const ChatTemplate *chat_template(const LoadedModel *t, Error *err) {
  if (t->tokenizer && template_fitting(t->tokenizer))
    return template_choose(t->tokenizer, NULL,
                           "prepare conversations with ./prepare --chat --template " TEMPLATE_NAMES
                           " and fine-tune on them, or give a --prompt",
                           err);
  if (t->tokenizer)
    return template_choose(t->tokenizer, NULL,
                           "it has no special tokens for one either, so give a --prompt", err);
  error_set(err,
            "'%s' has no tokenizer.json, so nobody can speak with it: give token ids with "
            "--prompt",
            t->start.path);
  return NULL;
}

static void add(Chat *c, const char *role, const char *text, size_t bytes) {
  char *kept = xmalloc(bytes + 1);
  memcpy(kept, text, bytes);
  conversation_add(&c->conversation, message_of(role, kept, bytes));
  c->texts = xrealloc(c->texts, c->conversation.count * sizeof *c->texts);
  c->texts[c->conversation.count - 1] = kept;
}

static int render(Chat *c, Error *err) {
  c->ids.count = 0;
  return renderer_append(c->renderer, &c->conversation, true, &c->ids, NULL, err);
}

static int show(void *chat, const char *text, size_t bytes, Error *err) {
  Chat *c = chat;
  text_append(&c->answer, text, bytes);
  if (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return 0;
  return error_set(err, "cannot write to standard output: %s", strerror(errno));
}

static int full(const Chat *c, Error *err) {
  return error_set(err, "the context of %lld tokens is full: begin a new conversation, or say less",
                   (long long)c->context);
}

// Answers c->ids. The answer ends where the model ends its turn, after --tokens, or with the
// context.
static int answer(Chat *c, Error *err) {
  const int64_t room = c->context - c->ids.count, most = c->args->options.max_tokens;
  if (room < 1) return full(c, err);
  c->answer.bytes = 0;
  c->writer.options.max_tokens = room < most ? room : most;
  if (text_generate(&c->writer, "", 0, &c->ids, err) != 0 || show(c, "\n", 1, err) != 0) return -1;
  c->answer.bytes--;
  const bool cut = generator_written(c->writer.generator) == room && room < most;
  return cut ? full(c, err) : 0;
}

static int load(Chat *c, int64_t context, Error *err) {
  LoadedModel *t = c->loaded;
  const int64_t most = t->model.max_position_embeddings;
  c->context = context < most ? context : most;
  c->writer.generator = loaded_generator(t, c->context, err);
  for (int i = 0; i < t->end_count; i++) sample_options_end(&c->writer.options, t->ends[i]);
  return c->writer.generator ? 0 : -1;
}

static int answer_user(Chat *c, Error *err) {
  add(c, ROLE_USER, c->args->user, strlen(c->args->user));
  if (render(c, err) != 0) return -1;
  const int64_t wanted = c->ids.count + c->args->options.max_tokens;
  return load(c, wanted, err) != 0 ? -1 : answer(c, err);
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

static int converse(Chat *c, Error *err) {
  int status = load(c, CONVERSATION_TOKENS, err);
  size_t bytes;
  for (char *line; status == 0 && !*c->writer.stop && (line = read_line(&bytes)); free(line)) {
    if (bytes == 0) continue;
    add(c, ROLE_USER, line, bytes);
    status = render(c, err) || answer(c, err) ? -1 : 0;
    if (status == 0) add(c, ROLE_ASSISTANT, c->answer.data, c->answer.bytes);
  }
  return status == 0 ? show(c, "\n", 1, err) : -1;
}

static void close_chat(Chat *c) {
  generator_destroy(c->writer.generator);
  for (size_t i = 0; i < c->conversation.count; i++) free(c->texts[i]);
  free(c->texts);
  conversation_free(&c->conversation);
  renderer_close(c->renderer);
  free(c->ids.ids);
  free(c->answer.data);
}

int chat_run(LoadedModel *t, const GenerateArgs *args, const volatile sig_atomic_t *stop,
             Error *err) {
  Chat c = {.loaded = t, .args = args};
  c.writer = (TextGeneration){.tokenizer = t->tokenizer,
                              .options = args->options,
                              .stop = stop,
                              .show = show,
                              .context = &c};
  const ChatTemplate *template = chat_template(t, err);
  if (template) c.renderer = renderer_open(t->tokenizer, template, err);
  int status = c.renderer ? 0 : -1;
  if (status == 0) sample_options_end(&c.writer.options, template_end(t->tokenizer));
  if (status == 0 && args->system) add(&c, ROLE_SYSTEM, args->system, strlen(args->system));
  if (status == 0) status = args->user ? answer_user(&c, err) : converse(&c, err);
  close_chat(&c);
  return status;
}
