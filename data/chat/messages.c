#include "data/chat/messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

bool span_is(Span span, const char *text) {
  return span.text && span.bytes == strlen(text) && memcmp(span.text, text, span.bytes) == 0;
}

Message message_of(const char *role, const char *text, size_t bytes) {
  return (Message){.role = {role, strlen(role)},
                   .text = {text, bytes},
                   .counts = strcmp(role, ROLE_ASSISTANT) == 0};
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

typedef struct Line {
  JsonScan scan;
  Conversation *conversation;
  Error *err;
  bool refused; // err says why; else where it is not JSON, the scan does
} Line;

static bool refuse(Line *l) {
  l->refused = true;
  return false;
}

// Skips a value and leaves it as it is. value: none where it is null.
static bool skip_value(Line *l, Span *value) {
  value->text = l->scan.at;
  if (!json_skip(&l->scan)) return false;
  while (strchr(" \t\r\n", *value->text)) value->text++;
  value->bytes = (size_t)(l->scan.at - value->text);
  if (span_is(*value, "null")) *value = (Span){0};
  return true;
}

// True if the next value is a string.
static bool string_next(JsonScan *s) {
  const bool is = json_take(s, '"');
  s->at -= is;
  return is;
}

static bool take_string(JsonScan *s, Span *text) {
  char *string;
  if (!json_take_string(s, &string, &text->bytes)) return false;
  text->text = string;
  return true;
}

static bool read_role(Line *l, Span *role) {
  if (string_next(&l->scan)) return take_string(&l->scan, role);
  if (!skip_value(l, role)) return false;
  if (!role->text) return true;
  error_set(l->err, "the \"role\" of message %zu is not a string", l->conversation->count + 1);
  return refuse(l);
}

// 0 or 1, as OpenAI's files have it.
static bool read_weight(Line *l, bool *counts) {
  Span weight;
  if (!skip_value(l, &weight)) return false;
  if (!weight.text) return true;
  char text[32] = "", *end;
  memcpy(text, weight.text, weight.bytes < sizeof text ? weight.bytes : sizeof text - 1);
  const double value = strtod(text, &end);
  *counts = value == 1;
  if (end > text && !*end && (value == 0 || value == 1)) return true;
  error_set(l->err, "the \"weight\" of message %zu is %s; it may be 0 or 1",
            l->conversation->count + 1, text);
  return refuse(l);
}

// ---- Contents

// A part's type and text, where they are strings.
static bool read_part(JsonScan *s, Span *type, Span *text) {
  *type = *text = (Span){0};
  if (!json_take(s, '{')) return false;
  do {
    Span key;
    char *name;
    if (!json_take_key(s, &name, &key.bytes)) return false;
    key.text = name;
    Span *wanted = span_is(key, "type") ? type : span_is(key, "text") ? text : NULL;
    if (!(wanted && string_next(s) ? take_string(s, wanted) : json_skip(s))) return false;
  } while (json_take(s, ','));
  return json_take(s, '}');
}

// Joins the texts of the content's parts. Leaves m->text empty if the content is not a list of text
// parts. Works on a copy, because unescaping spoils the JSON.
static void join_parts(Line *l, Message *m) {
  Text *copy = &l->conversation->copy;
  // Room for the rest of the line, so that texts that were joined earlier never move.
  char *const joined = text_room(copy, (size_t)(l->scan.end - m->content.text));
  JsonScan s = {.at = joined, .end = joined + m->content.bytes, .halves = true, .nuls = true};
  size_t bytes = 0;
  memcpy(joined, m->content.text, m->content.bytes);
  if (!json_take(&s, '[')) return;
  for (bool more = !json_take(&s, ']'); more; more = json_take(&s, ',')) {
    Span type, text;
    if (!read_part(&s, &type, &text) || !span_is(type, "text") || !text.text) return;
    memmove(joined + bytes, text.text, text.bytes);
    bytes += text.bytes;
  }
  m->text = (Span){joined, bytes};
  copy->bytes += bytes;
}

static bool read_content(Line *l, Message *m) {
  if (string_next(&l->scan)) return take_string(&l->scan, &m->text);
  if (!skip_value(l, &m->content)) return false;
  if (m->content.text) join_parts(l, m);
  return true;
}

// ---- Messages

// Reads the value of a key. seen: a bit for each key that came. weight: false if it is 0.
static bool read_member(Line *l, Span key, Message *m, unsigned *seen, bool *weight) {
  static const char *const keys[] = {"role", "content", "tool_calls", "weight"};
  int k = 0;
  while (k < 4 && !span_is(key, keys[k])) k++;
  if (k < 4 && *seen >> k & 1) {
    error_set(l->err, "message %zu has \"%s\" twice; keep one of them", l->conversation->count + 1,
              keys[k]);
    return refuse(l);
  }
  *seen |= 1u << k;
  return k == 0   ? read_role(l, &m->role)
         : k == 1 ? read_content(l, m)
         : k == 2 ? skip_value(l, &m->calls)
         : k == 3 ? read_weight(l, weight)
                  : json_skip(&l->scan);
}

static bool add_message(Line *l, Message *m, bool weight) {
  Conversation *c = l->conversation;
  if (!m->role.text) {
    error_set(l->err, "message %zu has no \"role\"", c->count + 1);
    return refuse(l);
  }
  m->counts = weight && span_is(m->role, ROLE_ASSISTANT);
  conversation_add(c, *m);
  return true;
}

static bool read_message(Line *l) {
  Message message = {0};
  unsigned seen = 0;
  bool weight = true;
  JsonScan *s = &l->scan;
  if (!json_take(s, '{')) {
    if (!json_skip(s)) return false;
    error_set(l->err, "message %zu is not an object", l->conversation->count + 1);
    return refuse(l);
  }
  if (json_take(s, '}')) return add_message(l, &message, weight);
  do {
    char *key;
    size_t bytes;
    if (!json_take_key(s, &key, &bytes) ||
        !read_member(l, (Span){key, bytes}, &message, &seen, &weight))
      return false;
  } while (json_take(s, ','));
  return json_take(s, '}') ? add_message(l, &message, weight)
                           : json_wrong(s, "a comma or } is missing");
}

static bool read_messages(Line *l) {
  JsonScan *s = &l->scan;
  if (!json_take(s, '[')) {
    if (!json_skip(s)) return false;
    error_set(l->err, "\"messages\" is not a list");
    return refuse(l);
  }
  if (json_take(s, ']')) return true;
  do {
    if (!read_message(l)) return false;
  } while (json_take(s, ','));
  return json_take(s, ']') || json_wrong(s, "a comma or ] is missing");
}

static bool read_line(Line *l) {
  JsonScan *s = &l->scan;
  bool seen = false;
  if (!json_take(s, '{')) return json_skip(s) && json_take_end(s);
  if (json_take(s, '}')) return json_take_end(s);
  do {
    char *key;
    size_t bytes;
    if (!json_take_key(s, &key, &bytes)) return false;
    const bool here = span_is((Span){key, bytes}, "messages");
    if (here && seen) {
      error_set(l->err, "it has \"messages\" twice; keep one of them");
      return refuse(l);
    }
    seen |= here;
    if (here ? !read_messages(l) : !json_skip(s)) return false;
  } while (json_take(s, ','));
  if (!json_take(s, '}')) return json_wrong(s, "a comma or } is missing");
  return json_take_end(s);
}

int conversation_parse(Conversation *c, char *line, size_t bytes, Error *err) {
  Line l = {.scan = {.at = line, .end = line + bytes, .halves = true, .nuls = true},
            .conversation = c,
            .err = err};
  c->count = c->copy.bytes = 0;
  if (!read_line(&l))
    return l.refused ? -1
                     : error_set(err, "it is not JSON: it goes wrong at column %zu: %s",
                                 (size_t)(l.scan.at - line) + 1, l.scan.problem);
  bool answered = false, counts = false;
  for (size_t i = 0; i < c->count; i++) {
    answered |= span_is(c->messages[i].role, ROLE_ASSISTANT);
    counts |= c->messages[i].counts;
  }
  if (counts) return 0;
  if (answered)
    return error_set(err, "every message of the assistant has weight 0, so there is nothing to "
                          "learn");
  if (c->count > 0)
    return error_set(err, "it has no message of the assistant, so there is nothing to learn");
  return error_set(err, "it has no messages: each line must be an object such as {\"messages\": "
                        "[{\"role\": \"user\", \"content\": \"...\"}, ...]}");
}
