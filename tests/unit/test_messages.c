// What is wrong in an input is said in one sentence with the words of tests/fixtures/messages.txt,
// which describes its rows.
#include "data/chat/render.h"
#include "data/mixture.h"
#include "data/prepare/corpus.h"
#include "tests/support/test.h"

// Each reads text[bytes], with a NUL behind it, which it may spoil. name: its own. -1: a sentence.
typedef int InputReader(const char *name, char *text, size_t bytes, Error *err);

static int read_jsonl(const char *name, char *text, size_t bytes, Error *err) {
  (void)name;
  char *document;
  size_t document_bytes;
  return jsonl_text(text, bytes, "a.b", &document, &document_bytes, err);
}

static int read_mixture(const char *name, char *text, size_t bytes, Error *err) {
  (void)name, (void)bytes;
  Mixture m;
  const int status = mixture_parse(&m, text, err);
  if (status != 0) assert_int_equal(m.count, 0);
  mixture_free(&m);
  return status;
}

static int read_tokenizer(const char *name, char *text, size_t bytes, Error *err) {
  (void)name;
  Tokenizer *t = tokenizer_parse("some.json", text, bytes, err);
  tokenizer_close(t);
  return t ? 0 : -1;
}

static int read_conversation(const char *name, char *text, size_t bytes, Error *err) {
  (void)name;
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

static const struct {
  const char *name;
  InputReader *read;
} readers[] = {{"jsonl", read_jsonl},
               {"mixture", read_mixture},
               {"tokenizer", read_tokenizer},
               {"conversation", read_conversation},
               {"ChatML", render},
               {"Llama 3", render},
               {"Llama 3.1", render}};

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
    if (strcmp(readers[i].name, s.name) == 0) s.read = readers[i].read;
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
  char *text = xasprintf("%s%.*s%s", s->before, input_bytes, line, s->after);
  Error err = {""};
  put_newlines(text);
  const int status = s->read(s->name, text, strlen(text), &err);
  if (strcmp(words, "ok") == 0 && status != 0) fail_msg("%s: %s", line, err.text);
  if (strcmp(words, "ok") != 0 && (status == 0 || !strstr(err.text, words)))
    fail_msg("%s: '%s'", line, err.text);
  assert_null(strchr(err.text, '\n'));
  free(text);
}

TEST(each_fault_has_its_sentence) {
  char *rows;
  size_t bytes;
  if (file_read("tests/fixtures/messages.txt", 1 << 20, &rows, &bytes, &err) != 0)
    fail_msg("%s", err.text);
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
  assert_true(count > 140);
  free(rows);
}
