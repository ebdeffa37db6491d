#include "data/chat/messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"

Message message_of(const char *role, const char *text, size_t bytes) {
  return (Message){
      .role = span_of(role), .text = {text, bytes}, .counts = strcmp(role, ROLE_ASSISTANT) == 0};
}

void conversation_free(Conversation *c) {
  free(c->messages);
  free(c->copy.data);
  *c = (Conversation){0};
}

void conversation_add(Conversation *c, Message message) {
  LIST_ROOM(c->messages, c->count, c->capacity);
  c->messages[c->count++] = message;
}

// ---- A line of JSON

// Joins the texts of a list of text parts. Leaves m->text empty where the content is anything else.
// Works on a copy, since unescaping spoils the JSON.
static void join_parts(Conversation *c, Message *m) {
  static const char *const names[] = {"type", "text"};
  char *const joined =
      memcpy(text_room(&c->copy, m->content.bytes), m->content.text, m->content.bytes);
  JsonScan s = {.at = joined, .end = joined + m->content.bytes, .halves = true, .nuls = true};
  JsonMember part[2];
  size_t bytes = 0;
  if (!json_take(&s, '[')) return;
  for (bool begun = false; json_next(&s, ']', &begun, NULL);) {
    if (!json_members(&s, names, 2, part)) return;
    const Span type = part[0].string, text = part[1].string;
    if (!span_is(type, "text") || !text.text) return;
    memmove(joined + bytes, text.text, text.bytes);
    bytes += text.bytes;
  }
  m->text = (Span){joined, bytes};
  c->copy.bytes += bytes;
}

// 0 or 1, as OpenAI's files have it.
static int read_weight(const JsonScan *weight, size_t number, bool *counts, Error *err) {
  char *end;
  const double value = weight->at ? strtod(weight->at, &end) : 1;
  *counts = value == 1;
  if (!weight->at || (end == weight->end && (value == 0 || value == 1))) return 0;
  return error_set(err, "the \"weight\" of message %zu is %.*s; it may be 0 or 1", number,
                   (int)min_i64(weight->end - weight->at, 31), weight->at);
}

static Span json_of(const JsonScan *value) {
  return (Span){value->at, value->at ? (size_t)(value->end - value->at) : 0};
}

// Where it fails without a sentence, the scan has the problem.
static int read_message(Conversation *c, JsonScan *s, Error *err) {
  static const char *const names[] = {"role", "content", "tool_calls", "weight"};
  enum { ROLE, CONTENT, CALLS, WEIGHT, NAMES };
  const size_t number = c->count + 1;
  JsonMember v[NAMES];
  Message m = {0};
  bool weight;
  if (!json_take(s, '{')) return error_set(err, "message %zu is not an object", number);
  s->at--;
  if (!json_members(s, names, NAMES, v)) return -1;
  for (int i = 0; i < NAMES; i++)
    if (v[i].value.at && *v[i].value.at == 'n') v[i].value.at = NULL; // null
  if (!v[ROLE].value.at) return error_set(err, "message %zu has no \"role\"", number);
  if (!v[ROLE].string.text)
    return error_set(err, "the \"role\" of message %zu is not a string", number);
  if (read_weight(&v[WEIGHT].value, number, &weight, err) != 0) return -1;
  m.role = v[ROLE].string;
  m.counts = weight && span_is(m.role, ROLE_ASSISTANT);
  m.calls = json_of(&v[CALLS].value);
  m.text = v[CONTENT].string;
  if (!m.text.text) m.content = json_of(&v[CONTENT].value);
  if (m.content.text) join_parts(c, &m);
  conversation_add(c, m);
  return 0;
}

static int read_messages(Conversation *c, JsonScan *list, Error *err) {
  if (!json_take(list, '[')) return error_set(err, "its \"messages\" is not a list");
  for (bool begun = false; json_next(list, ']', &begun, NULL);)
    if (read_message(c, list, err) != 0) return -1;
  return 0;
}

int conversation_parse(Conversation *c, char *line, size_t bytes, Error *err) {
  static const char *const name[] = {"messages"};
  JsonScan s = {.at = line, .end = line + bytes, .halves = true, .nuls = true};
  JsonMember list;
  c->count = c->copy.bytes = 0;
  text_room(&c->copy, bytes); // for all contents, so that none of them moves
  if (!json_members(&s, name, 1, &list) || !json_take_end(&s))
    return json_line_error(&s, line, err);
  if (list.value.at && read_messages(c, &list.value, err) != 0)
    return list.value.problem ? json_line_error(&list.value, line, err) : -1;
  bool answered = false, counts = false;
  for (size_t i = 0; i < c->count; i++) {
    answered |= span_is(c->messages[i].role, ROLE_ASSISTANT);
    counts |= c->messages[i].counts;
  }
  if (counts) return 0;
  if (answered) return error_set(err, "every message of the assistant has weight 0");
  if (c->count > 0) return error_set(err, "it has no message of the assistant");
  return error_set(err, "it has no messages: each line must be an object such as {\"messages\": "
                        "[{\"role\": \"user\", \"content\": \"...\"}, ...]}");
}
