// Conversations: their lines, the templates, and ids and mask against the Python package
// transformers' (scripts/check_chat.py --fixtures made them).
#include "base/json.h"
#include "data/chat/dumps.h"
#include "data/chat/render.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define FIXTURES "tests/fixtures/chat/"

// The conversation is in a copy that the test holds.
static int parse(const char *line, Conversation *c, Error *err) {
  return conversation_parse(c, held_text("%s", line), strlen(line), err);
}

static void close_renderer(void *renderer) {
  renderer_close(renderer);
}

static Renderer *open_renderer(const Tokenizer *t, const ChatTemplate *template) {
  Error err;
  return hold(must_make(renderer_open(t, template, &err), &err), close_renderer);
}

// ---- Lines

#define USER "{\"role\":\"user\",\"content\":\"a\"}"
#define ANSWER "{\"role\":\"assistant\",\"content\":\"b\"}"
#define SYSTEM "{\"role\":\"system\",\"content\":\"s\"}"
#define LINE(messages) "{\"messages\":[" messages "]}"

TEST(a_conversation_is_read_in_place) {
  Conversation c = {0};
  const char *line = "{\"id\":[{}],\"messages\":[" SYSTEM ",{\"content\":\"\\u00e9\\n\",\"role\":"
                     "\"user\"}," ANSWER "," USER "],\"x\":1}\r\n";
  must(parse(line, &c, &err), &err);
  assert_int_equal(c.count, 4);
  assert_true(span_is(c.messages[1].role, "user"));
  assert_true(span_is(c.messages[1].text, "\xc3\xa9\n"));
  assert_true(span_is(c.messages[2].role, "assistant"));
  assert_true(c.messages[2].counts && !c.messages[1].counts);
  conversation_free(&c);
}

TEST(other_keys_null_and_parts_are_read) {
  Conversation c = {0};
  const char *line = LINE(
      "{\"role\":\"tool\",\"content\":[ {\"type\":\"text\",\"text\":\"a\\n\",\"image\":null},"
      "{\"text\":\"b\",\"type\":\"text\"} ],\"weight\":null},"
      "{\"role\":\"tool\",\"content\":{\"a\":1} ,\"tool_calls\":[ ]},"
      "{\"role\":\"user\",\"content\":[],\"tool_calls\":null},"
      "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"text\":\"b\"}]},"
      "{\"role\":\"user\",\"content\":null,\"name\":{}},"
      "{\"role\":\"assistant\",\"content\":\"c\",\"weight\":0.0},"
      "{\"role\":\"assistant\",\"weight\":1,\"content\":[{\"type\":\"text\",\"text\":\"d\"}]}");
  must(parse(line, &c, &err), &err);
  assert_int_equal(c.count, 7);
  const Message *m = c.messages;
  assert_true(span_is(m[0].text, "a\nb") && m[0].content.text[0] == '[');
  assert_int_equal(m[0].content.text[m[0].content.bytes - 1], ']');
  assert_true(!m[1].text.text && span_is(m[1].content, "{\"a\":1}") && span_is(m[1].calls, "[ ]"));
  assert_true(m[2].text.text && m[2].text.bytes == 0 && !m[2].calls.text);
  assert_true(!m[3].text.text && m[3].content.text);
  assert_true(!m[4].text.text && !m[4].content.text);
  assert_true(!m[5].counts && m[6].counts && span_is(m[6].text, "d"));
  conversation_free(&c);
}

TEST(json_is_written_as_python_writes_it) {
  static const struct {
    const char *json, *written;
  } cases[] = {
      {" [ ] ", "[]"},
      {"{\"a\":[1,-0,2.50,1E2,-0.0,123456789012345678901234567890],\"b\":{}}",
       "{\"a\": [1, 0, 2.5, 100.0, -0.0, 123456789012345678901234567890], \"b\": {}}"},
      {"[1e15,1e16,0.0001,0.00001,1e22,5e-324,0.1,1e400,-1e400,9007199254740993.0]",
       "[1000000000000000.0, 1e+16, 0.0001, 1e-05, 1e+22, 5e-324, 0.1, Infinity, -Infinity, "
       "9007199254740992.0]"},
      {"\"\\u00e9\\/\\\"\\\\\\b\\f\\n\\r\\t\\u000b\\u001f\\u007f\"",
       "\"\xc3\xa9/\\\"\\\\\\b\\f\\n\\r\\t\\u000b\\u001f\x7f\""},
      {"[true,false,null]", "[true, false, null]"},
      {"{\"a\":1,\"\\u0061\":2}", NULL},
      {"[{\"a\":1},{\"a\":{\"a\":1}}]", "[{\"a\": 1}, {\"a\": {\"a\": 1}}]"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Text out = {0};
    char *json = held(xstrdup(cases[i].json));
    const bool unique = dumps_json(&out, json, strlen(json));
    assert_int_equal(unique, cases[i].written != NULL);
    if (unique && !span_is((Span){out.data, out.bytes}, cases[i].written))
      fail_msg("'%.*s' instead of '%s'", (int)out.bytes, out.data, cases[i].written);
    free(out.data);
  }
}

// ---- Templates

TEST(templates_are_known_by_their_exact_text_alone) {
  assert_null(template_named("llama2"));
  const ChatTemplate *llama3 = template_named("llama3"), *chatml = template_named("chatml");
  assert_ptr_equal(template_known(llama3->text), llama3);
  assert_ptr_equal(template_known(chatml->text), chatml);
  char *changed = held(xstrdup(chatml->text));
  for (size_t i = 0; changed[i]; i++) {
    changed[i] ^= 1;
    assert_null(template_known(changed));
    changed[i] ^= 1;
  }
  assert_null(template_known(""));
  // A newline may be spelled in Jinja's own way.
  Text spelled = {0};
  for (const char *c = chatml->text; *c; c++)
    text_append(&spelled, *c == '\n' ? "\\n" : c, *c == '\n' ? 2 : 1);
  text_append(&spelled, "", 1);
  assert_ptr_equal(template_known(spelled.data), chatml);
  free(spelled.data);
}

// As Jinja has it, which leaves out one newline at the end.
TEST(a_newline_at_the_end_makes_no_other_template) {
  static const struct {
    const char *end;
    bool known;
  } ends[] = {{"\n", true}, {"\r\n", true}, {"\r", true},   {"\n\n", false},
              {" ", false}, {"\\n", false}, {"\n ", false}, {"\r\r\n", false}};
  for (int i = 0; i < 2; i++) {
    const ChatTemplate *t = template_named(i ? "chatml" : "llama3");
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
      char *text = held_text("%s%s", t->text, ends[k].end);
      assert_ptr_equal(template_known(text), ends[k].known ? t : NULL);
    }
  }
}

TEST(a_template_that_is_not_known_is_refused) {
  Tokenizer *bytes = open_tokenizer(BYTES_NAME), *t = open_tokenizer(FIXTURES "chatml");
  expect_none(template_choose(bytes, "do this", &err), &err,
              "'bytes' has no chat template: do this");
  assert_string_equal(template_choose(t, "", &err)->name, "chatml");
  tokenizer_set_template(t, "{{ x }}");
  expect_none(template_choose(t, "do this", &err), &err,
              "is none of those that are known here (Llama 3, Llama 3.1, ChatML, SmolLM2): "
              "do this");
  assert_int_equal(template_end(t), NO_TOKEN);
  expect_none(renderer_open(bytes, template_named("llama3"), &err), &err,
              "'bytes' has no special token <|start_header_id|>, which the chat template of "
              "Llama 3 needs; ./prepare --train-tokenizer N --template llama3 makes one");
  assert_null(template_fitting(bytes));
  assert_string_equal(template_fitting(t), "chatml");
}

// transformers looks for such a marker in the normalized text, and may not find it.
TEST(a_marker_behind_a_normalizer_is_refused) {
  cJSON *json = hold_json(json_read(FIXTURES "chatml/tokenizer.json", 1 << 20, &err), &err);
  cJSON *added = cJSON_GetObjectItem(json, "added_tokens");
  for (cJSON *token = added->child; token; token = token->next)
    cJSON_ReplaceItemInObject(token, "normalized", cJSON_CreateBool(true));
  for (int i = 0; i < 2; i++) {
    cJSON_ReplaceItemInObject(json, "normalizer",
                              i ? cJSON_Parse("{\"type\":\"NFC\"}") : cJSON_CreateNull());
    Tokenizer *t = parse_tokenizer(held(cJSON_PrintUnformatted(json)));
    if (i == 0)
      open_renderer(t, template_named("chatml"));
    else
      expect_none(renderer_open(t, template_named("chatml"), &err), &err,
                  "the tokenizer 'some.json' does not find <|im_start|> in every text");
  }
}

// ---- Ids and mask

static void check_case(Renderer *r, const cJSON *expected, const char *name, int number) {
  const cJSON *id = cJSON_GetObjectItem(expected, "ids")->child;
  const cJSON *theirs = cJSON_GetObjectItem(expected, "mask")->child;
  Error err;
  TokenIds ids = {0};
  Text mask = {0};
  Conversation c = {0};
  if (parse(cJSON_GetObjectItem(expected, "line")->valuestring, &c, &err) != 0 ||
      renderer_append(r, &c, false, &ids, &mask, &err) != 0)
    fail_msg("%s, case %d: %s", name, number, err.text);
  assert_int_equal(mask.bytes, ids.count);
  for (int64_t i = 0; i < ids.count; i++, id = id->next, theirs = theirs->next) {
    if (!id || ids.ids[i] != id->valueint)
      fail_msg("%s, case %d: id %lld is %d instead of %d", name, number, (long long)i, ids.ids[i],
               id ? id->valueint : -1);
    if (mask.data[i] != theirs->valueint)
      fail_msg("%s, case %d: token %lld has mask %d", name, number, (long long)i, mask.data[i]);
  }
  assert_null(id);
  conversation_free(&c);
  free(ids.ids);
  free(mask.data);
}

static const ChatTemplate *template_of(const char *source) {
  int i = 0;
  while (strcmp(template_at(i)->source, source) != 0) i++;
  return template_at(i);
}

// source: of the template; NULL: the tokenizer's.
static void check_fixture(const char *name, const char *file, const char *source) {
  Tokenizer *t = open_tokenizer(path_text(FIXTURES "%s", name).text);
  Error err;
  cJSON *cases =
      hold_json(json_read(path_text(FIXTURES "%s/%s", name, file).text, 1 << 20, &err), &err);
  const ChatTemplate *template = source ? template_of(source) : template_choose(t, "", &err);
  if (!template) fail_msg("%s", err.text);
  Renderer *r = open_renderer(t, template);
  int number = 0;
  for (const cJSON *c = cases->child; c; c = c->next) check_case(r, c, file, number++);
  assert_int_equal(number, 24);
}

TEST(ids_and_mask_are_those_of_transformers) {
  check_fixture("llama3", "expected.json", NULL);
  check_fixture("chatml", "expected.json", NULL);
  check_fixture("smollm2", "expected.json", NULL);
}

TEST(tool_calls_are_those_of_llama_3_1) {
  check_fixture("llama3", "expected_llama3.1.json", "Llama 3.1");
}

// ByteLevel with add_prefix_space.
TEST(a_space_in_front_of_words_is_no_part_of_an_answer) {
  check_fixture("prefix-chatml", "expected.json", NULL);
}

// With lstrip and rstrip, and other added tokens around them that have them, too.
TEST(markers_take_the_white_space_around_them) {
  check_fixture("both-llama3", "expected.json", NULL);
}

TEST(the_answer_begins_behind_the_conversation) {
  Tokenizer *t = open_tokenizer(FIXTURES "chatml");
  Renderer *r = open_renderer(t, template_named("chatml"));
  Conversation c = {0};
  TokenIds ids = {0}, whole = {0};
  conversation_add(&c, message_of(ROLE_USER, "a", 1));
  must(renderer_append(r, &c, true, &ids, NULL, &err), &err);
  conversation_add(&c, message_of(ROLE_ASSISTANT, "b", 1));
  must(renderer_append(r, &c, false, &whole, NULL, &err), &err);
  assert_true(ids.count < whole.count);
  assert_memory_equal(ids.ids, whole.ids, (size_t)ids.count * sizeof *ids.ids);
  assert_int_equal(whole.ids[whole.count - 2], template_end(t));
  conversation_free(&c);
  free(ids.ids);
  free(whole.ids);
}

TEST(a_long_content_gives_the_ids_of_its_lines) {
  enum { LINES = 400000 };
  static const char line[] = "a line of text\n";
  Tokenizer *t = open_tokenizer(FIXTURES "llama3");
  Renderer *r = open_renderer(t, template_named("llama3"));
  Conversation c = {0};
  Text text = {0}, mask = {0};
  TokenIds ids = {0}, one = {0};
  for (int i = 0; i < LINES; i++) text_append(&text, line, sizeof line - 1);
  text_append(&text, "end", 3);
  conversation_add(&c, message_of(ROLE_USER, "a", 1));
  conversation_add(&c, message_of(ROLE_ASSISTANT, text.data, text.bytes));
  must(renderer_append(r, &c, false, &ids, &mask, &err), &err);
  Encoder *encoder = open_encoder(t);
  must(encoder_append(encoder, line, sizeof line - 1, false, &one, &err), &err);
  int64_t counted = 0;
  for (size_t i = 0; i < mask.bytes; i++) counted += mask.data[i];
  const int64_t first = ids.count - counted;
  for (int64_t i = 0; i < LINES * one.count; i++)
    if (ids.ids[first + i] != one.ids[i % one.count]) fail_msg("id %lld", (long long)i);
  assert_true(ids.ids[ids.count - 1] == template_end(t) && mask.data[mask.bytes - 1] == 1);
  conversation_free(&c);
  free(text.data);
  free(mask.data);
  free(ids.ids);
  free(one.ids);
}
