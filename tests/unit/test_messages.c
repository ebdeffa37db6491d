// What is wrong in an input is said in one sentence with the words of tests/fixtures/messages.txt,
// which describes its rows.
#include "data/chat/render.h"
#include "data/mixture.h"
#include "data/prepare/corpus.h"
#include "data/safetensors.h"
#include "data/tasks/tasks.h"
#include "model/run/checkpoint/checkpoint.h"
#include "tests/support/config_test.h"
#include "tests/support/test.h"

// What stands in for other functions needs few of their arguments.
#pragma GCC diagnostic ignored "-Wunused-parameter"

// Each reads text[bytes], with a NUL behind it, which it may spoil. name: its own. -1: a sentence.
typedef int InputReader(const char *name, char *text, size_t bytes, Error *err);

static int read_jsonl(const char *name, char *text, size_t bytes, Error *err) {
  Span document;
  return jsonl_text(text, bytes, "a.b", &document, err);
}

static int read_mixture(const char *name, char *text, size_t bytes, Error *err) {
  Mixture m;
  const int status = mixture_parse(&m, text, err);
  if (status != 0) assert_int_equal(m.count, 0);
  mixture_free(&m);
  return status;
}

static int read_tokenizer(const char *name, char *text, size_t bytes, Error *err) {
  Tokenizer *t = tokenizer_parse("some.json", text, bytes, err);
  tokenizer_close(t);
  return t ? 0 : -1;
}

static int read_conversation(const char *name, char *text, size_t bytes, Error *err) {
  Conversation c = {0};
  const int status = conversation_parse(&c, text, bytes, err);
  conversation_free(&c);
  return status;
}

// A conversation, which is written by the template of this name.
static int render(const char *name, char *text, size_t bytes, Error *err) {
  const bool llama = name[0] == 'L';
  Tokenizer *t =
      tokenizer_open(llama ? "tests/fixtures/chat/llama3" : "tests/fixtures/chat/chatml", err);
  int i = 0;
  while (strcmp(template_at(i)->source, name) != 0) i++;
  Conversation c = {0};
  TokenIds ids = {0};
  Text mask = {0};
  Renderer *r = t ? renderer_open(t, template_at(i), err) : NULL;
  if (!r || conversation_parse(&c, text, bytes, err) != 0) fail_msg("%s", err->text);
  const int status = renderer_append(r, &c, false, &ids, &mask, err);
  assert_true(status == 0 || (ids.count == 0 && mask.bytes == 0));
  renderer_close(r);
  conversation_free(&c);
  free(ids.ids);
  free(mask.data);
  tokenizer_close(t);
  return status;
}

static int read_config(const char *name, char *text, size_t bytes, Error *err) {
  Config config;
  const int status = config_parse(&config, "c.json", text, 0, NULL, err);
  if (status != 0) assert_says(err, "c.json");
  return status;
}

static int read_override(const char *name, char *text, size_t bytes, Error *err) {
  Config config;
  const int status = config_parse(&config, "c.json", MINIMAL, 1, &text, err);
  if (status != 0 && !strstr(err->text, "c.json with the overrides: ")) assert_says(err, text);
  return status;
}

// Hugging Face's config.json, which has no section of ours.
static int read_model(const char *name, char *text, size_t bytes, Error *err) {
  ModelConfig model;
  const int status = model_config_parse(&model, "config.json", text, err);
  if (status != 0) assert_says(err, "config.json: ");
  assert_null(strstr(err->text, "model."));
  return status;
}

static int read_state(const char *name, char *text, size_t bytes, Error *err) {
  TrainState state;
  const char *const folder = temporary_folder();
  put_file(path_text("%s/" STATE_FILE, folder).text, text);
  const int status = checkpoint_read_state(folder, &state, err);
  if (status != 0) assert_says(err, STATE_FILE);
  return status;
}

// A header, and behind it as many bytes of data as the name says.
static int read_safetensors(const char *name, char *text, size_t bytes, Error *err) {
  const size_t data = strtoul(name + strcspn(name, "0123456789"), NULL, 10);
  const uint64_t header = bytes;
  unsigned char *file = held(xcalloc(8 + bytes + data, 1));
  const PathText path = path_text("%s/x.safetensors", temporary_folder());
  SafeFile tensors;
  memcpy(file, &header, 8);
  memcpy(file + 8, text, bytes);
  must(file_write(path.text, file, 8 + bytes + data, err), err);
  const int status = safetensors_open(&tensors, path.text, err);
  if (status != 0) assert_says(err, "x.safetensors");
  if (status != 0) assert_null(tensors.tensors);
  safetensors_close(&tensors);
  return status;
}

// Of the task that the name ends with, in a file.
static int read_task(const char *name, char *text, size_t bytes, Error *err) {
  const PathText path = path_text("%s/task.jsonl", temporary_folder());
  QuestionSet set;
  put_file(path.text, text);
  const int status = questions_read(&set, name + strlen("task "), path.text, NULL, err);
  questions_free(&set);
  return status;
}

// name: what that of a section begins with.
static const struct {
  const char *name;
  InputReader *read;
} readers[] = {{"jsonl", read_jsonl},
               {"mixture", read_mixture},
               {"tokenizer", read_tokenizer},
               {"conversation", read_conversation},
               {"config", read_config},
               {"override", read_override},
               {"model", read_model},
               {"state", read_state},
               {"safetensors", read_safetensors},
               {"task ", read_task},
               {"ChatML", render},
               {"Llama 3", render}};

// The reader and the text around the inputs that a line in brackets names.
typedef struct Section {
  InputReader *read;
  char *name, *before, *after;
} Section;

// Cuts the line at the colon, at the hole, and in front of the closing bracket.
static Section read_section(char *line) {
  Section s = {.name = line + 1};
  char *colon = strchr(line, ':'), *hole = strchr(line, '%');
  if (!colon || !hole) fail_msg("neither a section nor a row: %s", line);
  line[strlen(line) - 1] = '\0';
  *colon = *hole = '\0';
  s.before = colon + 2;
  s.after = hole + 1;
  for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
    if (strncmp(s.name, readers[i].name, strlen(readers[i].name)) == 0) s.read = readers[i].read;
  if (!s.read) fail_msg("no reader: %s", s.name);
  return s;
}

// A pilcrow becomes a newline.
static void put_newlines(char *text) {
  for (char *at; (at = strstr(text, "\xc2\xb6"));) {
    *at = '\n';
    memmove(at + 1, at + 2, strlen(at + 2) + 1);
  }
}

static void check_row(const Section *s, const char *line) {
  const char *arrow = strncmp(line, "-> ", 3) == 0 ? line - 1 : strstr(line, " -> ");
  if (!arrow || !s->read) fail_msg("neither a row nor a section: %s", line);
  const char *words = arrow + 4;
  const int input_bytes = arrow < line ? 0 : (int)(arrow - line);
  char *text = held_text("%s%.*s%s", s->before, input_bytes, line, s->after);
  Error err = {""};
  put_newlines(text);
  const int status = s->read(s->name, text, strlen(text), &err);
  if (strcmp(words, "ok") == 0 && status != 0) fail_msg("%s: %s", line, err.text);
  if (strcmp(words, "ok") != 0 && (status == 0 || !strstr(err.text, words)))
    fail_msg("%s: '%s'", line, err.text);
  assert_null(strchr(err.text, '\n'));
}

TEST(each_fault_has_its_sentence) {
  char *rows = file_text("tests/fixtures/messages.txt", NULL);
  Section section = {0};
  int count = 0;
  for (char *line = rows, *end; *line; line = end + 1) {
    assert_non_null(end = strchr(line, '\n'));
    *end = '\0';
    if (*line == '#' || !*line) continue;
    if (*line == '[' && end[-1] == ']' && strchr(line, '%'))
      section = read_section(line);
    else
      check_row(&section, line), count++;
  }
  printf("# %d rows\n", count);
  assert_true(count > 320);
}
