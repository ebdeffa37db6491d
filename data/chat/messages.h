// A conversation: a system's message perhaps, then a user and an assistant by turns, the user
// first.
#pragma once
#include <stddef.h>
#include "base/error.h"

typedef enum Role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT } Role;
const char *role_name(Role role);

typedef struct Message {
  Role role;
  const char *text; // [bytes], the caller's
  size_t bytes;
} Message;

// Starts from zeros; conversation_free at the end.
typedef struct Conversation {
  Message *messages; // [count]
  size_t count, capacity;
} Conversation;

// -1 where it is not this role's turn.
int conversation_add(Conversation *conversation, Message message, Error *err);
void conversation_free(Conversation *conversation);

// line[bytes] must be one JSON object whose "messages" are a list of {"role", "content"}, both
// strings, with an assistant's among them; its other keys are passed over. Unescapes in place, so
// that the line is spoilt and the messages, which replace those of before, lie in it. In content
// "\u0000" is a NUL, and half of a surrogate pair becomes U+FFFD.
int conversation_parse(Conversation *conversation, char *line, size_t bytes, Error *err);
