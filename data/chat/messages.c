#include "data/chat/messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

static const char *const names[] = {"system", "user", "assistant"};
enum { ROLES = sizeof names / sizeof *names };

const char *role_name(Role role) {
  return names[role];
}

void conversation_free(Conversation *c) {
  free(c->messages);
  *c = (Conversation){0};
}

int conversation_add(Conversation *c, Message message, Error *err) {
  const Role before = c->count > 0 ? c->messages[c->count - 1].role : ROLE_SYSTEM;
  const Role wanted = before == ROLE_USER ? ROLE_ASSISTANT : ROLE_USER;
  const bool first_system = c->count == 0 && message.role == ROLE_SYSTEM;
  if (message.role != wanted && !first_system)
    return error_set(err,
                     "message %zu is of the %s, and must be of the %s: a conversation may begin "
                     "with a system message; then user and assistant take turns",
                     c->count + 1, names[message.role], names[wanted]);
  if (c->count == c->capacity) {
    c->capacity = 2 * c->capacity + 8;
    c->messages = xrealloc(c->messages, c->capacity * sizeof *c->messages);
  }
  c->messages[c->count++] = message;
  return 0;
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

static bool is(const char *name, const char *text, size_t bytes) {
  return strlen(name) == bytes && memcmp(name, text, bytes) == 0;
}

// The value of a key that must come once and be a string.
static bool read_string(Line *l, const char *key, char **text, size_t *bytes) {
  const size_t number = l->conversation->count + 1;
  if (*text) {
    error_set(l->err, "message %zu has \"%s\" twice; keep one of them", number, key);
    return refuse(l);
  }
  if (!json_take(&l->scan, '"')) {
    if (!json_skip(&l->scan)) return false;
    error_set(l->err, "the \"%s\" of message %zu is no string", key, number);
    return refuse(l);
  }
  l->scan.at--;
  return json_take_string(&l->scan, text, bytes);
}

// The parts of a message as the JSON has them; NULL where one is missing.
typedef struct Parts {
  char *role, *content;
  size_t role_bytes, content_bytes;
} Parts;

// Behind the key.
static bool read_part(Line *l, const char *key, size_t bytes, Parts *p) {
  if (is("role", key, bytes)) return read_string(l, "role", &p->role, &p->role_bytes);
  if (is("content", key, bytes)) return read_string(l, "content", &p->content, &p->content_bytes);
  error_set(l->err, "message %zu has the key \"%.*s\"; a message has a role and a content alone",
            l->conversation->count + 1, bytes < 100 ? (int)bytes : 100, key);
  return refuse(l);
}

static bool add_message(Line *l, const Parts *p) {
  const size_t number = l->conversation->count + 1;
  int role = 0;
  if (!p->role || !p->content) {
    error_set(l->err, "message %zu has no \"%s\"", number, p->role ? "content" : "role");
    return refuse(l);
  }
  while (role < ROLES && !is(names[role], p->role, p->role_bytes)) role++;
  if (role == ROLES) {
    error_set(l->err, "message %zu has the role \"%.*s\"; the roles are system, user and assistant",
              number, p->role_bytes < 100 ? (int)p->role_bytes : 100, p->role);
    return refuse(l);
  }
  const Message message = {(Role)role, p->content, p->content_bytes};
  return conversation_add(l->conversation, message, l->err) == 0 || refuse(l);
}

static bool read_message(Line *l) {
  Parts parts = {0};
  JsonScan *s = &l->scan;
  if (!json_take(s, '{')) {
    if (!json_skip(s)) return false;
    error_set(l->err, "message %zu is no object", l->conversation->count + 1);
    return refuse(l);
  }
  if (json_take(s, '}')) return add_message(l, &parts);
  do {
    char *key;
    size_t bytes;
    if (!json_take_key(s, &key, &bytes) || !read_part(l, key, bytes, &parts)) return false;
  } while (json_take(s, ','));
  return json_take(s, '}') ? add_message(l, &parts) : json_wrong(s, "a comma or } is missing");
}

static bool read_messages(Line *l) {
  JsonScan *s = &l->scan;
  if (!json_take(s, '[')) {
    if (!json_skip(s)) return false;
    error_set(l->err, "\"messages\" is no list");
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
    const bool here = is("messages", key, bytes);
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
  c->count = 0;
  if (!read_line(&l))
    return l.refused ? -1
                     : error_set(err, "it is not JSON: it goes wrong at column %zu: %s",
                                 (size_t)(l.scan.at - line) + 1, l.scan.problem);
  bool answered = false;
  for (size_t i = 0; i < c->count; i++) answered |= c->messages[i].role == ROLE_ASSISTANT;
  if (answered) return 0;
  if (c->count > 0)
    return error_set(err, "no message is of the assistant, so there is nothing to learn");
  return error_set(err, "it has no messages: each line must be an object such as {\"messages\": "
                        "[{\"role\": \"user\", \"content\": \"...\"}, ...]}");
}
