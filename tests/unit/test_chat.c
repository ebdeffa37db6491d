// Conversations: their lines, the templates, and ids and mask against the Python package
// transformers' (scripts/check_chat.py --fixtures made them).
#include "base/json.h"
#include "data/chat/render.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define FIXTURES "tests/fixtures/chat/"

static Tokenizer *open_it(const char *path) {
  Error err;
  Tokenizer *t = tokenizer_open(path, &err);
  if (!t) fail_msg("%s", err.text);
  return t;
}

static int parse(const char *line, Conversation *c, char **copy, Error *err) {
  *copy = xstrdup(line);
  return conversation_parse(c, *copy, strlen(line), err);
}

// ---- Lines

static void refused(const char *line, const char *words) {
  Error err = {""};
  Conversation c = {0};
  char *copy;
  if (parse(line, &c, &copy, &err) == 0) fail_msg("accepted: %s", line);
  assert_says(&err, words);
  conversation_free(&c);
  free(copy);
}

#define USER "{\"role\":\"user\",\"content\":\"a\"}"
#define ANSWER "{\"role\":\"assistant\",\"content\":\"b\"}"
#define SYSTEM "{\"role\":\"system\",\"content\":\"s\"}"
#define LINE(messages) "{\"messages\":[" messages "]}"

TEST(a_line_that_is_no_conversation_is_refused) {
  refused("", "is not JSON");
  refused("[]", "no messages");
  refused("{\"text\":\"a\"}", "no messages");
  refused("{\"messages\":[", "is not JSON");
  refused("{\"messages\":[]}x", "is not JSON");
  refused("{\"messages\":{}}", "\"messages\" is no list");
  refused("{\"messages\":[],\"messages\":[]}", "\"messages\" twice");
  refused(LINE(""), "no messages");
  refused(LINE(USER), "no message is of the assistant");
  refused(LINE("1"), "message 1 is no object");
  refused(LINE("{}"), "message 1 has no \"role\"");
  refused(LINE(USER ",{\"content\":\"a\"}"), "message 2 has no \"role\"");
  refused(LINE("{\"role\":\"user\"}"), "message 1 has no \"content\"");
  refused(LINE("{\"role\":\"user\",\"content\":null}"),
          "the \"content\" of message 1 is no string");
  refused(LINE("{\"role\":1,\"content\":\"\"}"), "the \"role\" of message 1 is no string");
  refused(LINE("{\"role\":\"user\",\"role\":\"user\",\"content\":\"\"}"), "\"role\" twice");
  refused(LINE("{\"role\":\"tool\",\"content\":\"\"}"), "message 1 has the role \"tool\"");
  refused(LINE("{\"role\":\"user\\u0000\",\"content\":\"\"}"), "message 1 has the role");
  refused(LINE("{\"role\":\"user\",\"content\":\"\",\"name\":\"x\"}"), "has the key \"name\"");
  refused(LINE(ANSWER), "message 1 is of the assistant, and must be of the user");
  refused(LINE(USER "," USER), "message 2 is of the user, and must be of the assistant");
  refused(LINE(USER "," ANSWER "," ANSWER), "message 3 is of the assistant");
  refused(LINE(SYSTEM "," SYSTEM), "message 2 is of the system");
  refused(LINE(SYSTEM "," ANSWER), "message 2 is of the assistant");
  refused(LINE(USER "," ANSWER "," SYSTEM), "message 3 is of the system");
}

TEST(a_conversation_is_read_in_place) {
  Conversation c = {0};
  char *copy;
  const char *line = "{\"id\":[{}],\"messages\":[" SYSTEM ",{\"content\":\"\\u00e9\\n\",\"role\":"
                     "\"user\"}," ANSWER "," USER "],\"x\":1}\r\n";
  assert_int_equal(parse(line, &c, &copy, &err), 0);
  assert_int_equal(c.count, 4);
  assert_int_equal(c.messages[1].role, ROLE_USER);
  assert_int_equal(c.messages[1].bytes, 3);
  assert_memory_equal(c.messages[1].text, "\xc3\xa9\n", 3);
  assert_int_equal(c.messages[2].role, ROLE_ASSISTANT);
  conversation_free(&c);
  free(copy);
}

// ---- Templates

TEST(templates_are_known_by_their_exact_text_alone) {
  assert_null(template_named("llama2"));
  const ChatTemplate *llama3 = template_named("llama3"), *chatml = template_named("chatml");
  assert_ptr_equal(template_known(llama3->text), llama3);
  assert_ptr_equal(template_known(chatml->text), chatml);
  char *changed = xstrdup(chatml->text);
  for (size_t i = 0; changed[i]; i++) {
    changed[i] ^= 1;
    assert_null(template_known(changed));
    changed[i] ^= 1;
  }
  free(changed);
  assert_null(template_known(""));
  // A newline may be spelled in Jinja's own way.
  Text spelled = {0};
  for (const char *c = chatml->text; *c; c++)
    text_append(&spelled, *c == '\n' ? "\\n" : c, *c == '\n' ? 2 : 1);
  text_append(&spelled, "", 1);
  assert_ptr_equal(template_known(spelled.data), chatml);
  free(spelled.data);
}

TEST(a_template_that_is_not_known_is_refused) {
  Tokenizer *bytes = open_it(BYTES_NAME), *t = open_it(FIXTURES "chatml");
  assert_null(template_choose(bytes, NULL, "do this", &err));
  assert_says(&err, "'bytes' has no chat template: do this");
  assert_null(template_choose(t, "alpaca", "do this", &err));
  assert_says(&err, "--template 'alpaca' is none");
  assert_string_equal(template_choose(t, NULL, "", &err)->name, "chatml");
  tokenizer_set_template(t, "{{ x }}");
  assert_null(template_choose(t, NULL, "do this", &err));
  assert_says(&err, "is none of those that are known here (Llama 3, Llama 3.1, ChatML, SmolLM2): "
                    "do this");
  assert_int_equal(template_end(t), NO_TOKEN);
  assert_null(renderer_open(bytes, template_named("llama3"), &err));
  assert_says(&err, "'bytes' has no special token <|start_header_id|>, which the chat template of "
                    "Llama 3 needs");
  tokenizer_close(t);
  tokenizer_close(bytes);
}

// ---- Ids and mask

static Conversation conversation_of(const cJSON *messages) {
  Conversation c = {0};
  Error err;
  for (const cJSON *m = messages->child; m; m = m->next) {
    const char *role = cJSON_GetObjectItem(m, "role")->valuestring,
               *text = cJSON_GetObjectItem(m, "content")->valuestring;
    int number = 0;
    while (strcmp(role_name((Role)number), role) != 0) number++;
    if (conversation_add(&c, (Message){(Role)number, text, strlen(text)}, &err) != 0)
      fail_msg("%s", err.text);
  }
  return c;
}

// Theirs counts a token that joins the template's newline with the first of the answer, too.
static int check_mask(const Text *mask, const cJSON *theirs, const char *name, int number) {
  int joined = 0;
  assert_int_equal(mask->bytes, cJSON_GetArraySize(theirs));
  int before = 0, i = 0;
  for (const cJSON *item = theirs->child; item; item = item->next, i++) {
    const bool joins = item->valueint && !before && !mask->data[i];
    if (mask->data[i] != item->valueint && !joins)
      fail_msg("%s, case %d: token %d has mask %d", name, number, i, mask->data[i]);
    joined += joins;
    before = item->valueint;
  }
  return joined;
}

static int check_case(Renderer *r, const cJSON *expected, const char *name, int number) {
  Conversation c = conversation_of(cJSON_GetObjectItem(expected, "messages"));
  const cJSON *list = cJSON_GetObjectItem(expected, "ids"), *id = list->child;
  const cJSON *theirs = cJSON_GetObjectItem(expected, "mask");
  Error err;
  TokenIds ids = {0};
  Text mask = {0};
  if (renderer_append(r, &c, false, &ids, &mask, &err) != 0) fail_msg("%s", err.text);
  assert_int_equal(mask.bytes, ids.count);
  if (ids.count != cJSON_GetArraySize(list))
    fail_msg("%s, case %d: %lld ids instead of %d", name, number, (long long)ids.count,
             cJSON_GetArraySize(list));
  for (int64_t i = 0; i < ids.count; i++, id = id->next)
    if (ids.ids[i] != id->valueint)
      fail_msg("%s, case %d: id %lld is %d instead of %d", name, number, (long long)i, ids.ids[i],
               id->valueint);
  const int joined = cJSON_IsArray(theirs) ? check_mask(&mask, theirs, name, number) : 0;
  conversation_free(&c);
  free(ids.ids);
  free(mask.data);
  return joined;
}

static int check_fixture(const char *name) {
  Tokenizer *t = open_it(path_text(FIXTURES "%s", name).text);
  Error err;
  cJSON *cases = json_read(path_text(FIXTURES "%s/expected.json", name).text, 1 << 20, &err);
  if (!cases) fail_msg("%s", err.text);
  const ChatTemplate *template = template_choose(t, NULL, "", &err);
  Renderer *r = template ? renderer_open(t, template, &err) : NULL;
  if (!r) fail_msg("%s", err.text);
  int number = 0, joined = 0;
  for (const cJSON *c = cases->child; c; c = c->next) joined += check_case(r, c, name, number++);
  assert_int_equal(number, 24);
  renderer_close(r);
  cJSON_Delete(cases);
  tokenizer_close(t);
  return joined;
}

TEST(ids_and_mask_are_those_of_transformers) {
  assert_int_equal(check_fixture("llama3"), 0);
  assert_true(check_fixture("chatml") > 0); // the case is there
  check_fixture("smollm2");
}

TEST(the_answer_begins_behind_the_conversation) {
  Tokenizer *t = open_it(FIXTURES "chatml");
  Renderer *r = renderer_open(t, template_named("chatml"), &err);
  Conversation c = {0};
  TokenIds ids = {0}, whole = {0};
  assert_int_equal(conversation_add(&c, (Message){ROLE_USER, "a", 1}, &err), 0);
  assert_int_equal(renderer_append(r, &c, true, &ids, NULL, &err), 0);
  assert_int_equal(conversation_add(&c, (Message){ROLE_ASSISTANT, "b", 1}, &err), 0);
  assert_int_equal(renderer_append(r, &c, false, &whole, NULL, &err), 0);
  assert_true(ids.count < whole.count);
  assert_memory_equal(ids.ids, whole.ids, (size_t)ids.count * sizeof *ids.ids);
  assert_int_equal(whole.ids[whole.count - 2], template_end(t));
  conversation_free(&c);
  free(ids.ids);
  free(whole.ids);
  renderer_close(r);
  tokenizer_close(t);
}

TEST(a_long_content_gives_the_ids_of_its_lines) {
  enum { LINES = 400000 };
  static const char line[] = "a line of text\n";
  Tokenizer *t = open_it(FIXTURES "llama3");
  Renderer *r = renderer_open(t, template_named("llama3"), &err);
  Conversation c = {0};
  Text text = {0}, mask = {0};
  TokenIds ids = {0}, one = {0};
  for (int i = 0; i < LINES; i++) text_append(&text, line, sizeof line - 1);
  text_append(&text, "end", 3);
  conversation_add(&c, (Message){ROLE_USER, "a", 1}, &err);
  conversation_add(&c, (Message){ROLE_ASSISTANT, text.data, text.bytes}, &err);
  assert_int_equal(renderer_append(r, &c, false, &ids, &mask, &err), 0);
  Encoder *encoder = encoder_open(t);
  assert_int_equal(encoder_append(encoder, line, sizeof line - 1, false, &one, &err), 0);
  int64_t counted = 0;
  for (size_t i = 0; i < mask.bytes; i++) counted += mask.data[i];
  const int64_t first = ids.count - counted;
  for (int64_t i = 0; i < LINES * one.count; i++)
    if (ids.ids[first + i] != one.ids[i % one.count]) fail_msg("id %lld", (long long)i);
  assert_true(ids.ids[ids.count - 1] == template_end(t) && mask.data[mask.bytes - 1] == 1);
  encoder_close(encoder);
  conversation_free(&c);
  free(text.data);
  free(mask.data);
  free(ids.ids);
  free(one.ids);
  renderer_close(r);
  tokenizer_close(t);
}
