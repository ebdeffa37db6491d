// A conversation: messages of any roles in any order.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"
#include "base/text.h"

#define ROLE_SYSTEM "system"
#define ROLE_USER "user"
#define ROLE_ASSISTANT "assistant"

// Points into memory of the caller, or of the conversation's line.
typedef struct Message {
  Span role;
  Span text;    // the content: a string, or the joined texts of its parts
  Span content; // the content as JSON, unless it is a string
  Span calls;   // tool_calls as JSON
  bool counts;  // the model learns it: it is the assistant's and its weight is not 0
} Message;
// role: NUL-terminated.
Message message_of(const char *role, const char *text, size_t bytes);

// Starts from zeros; conversation_free at the end.
typedef struct Conversation {
  Message *messages; // [count]
  size_t count, capacity;
  Text copy; // the texts of contents that are lists of parts
} Conversation;

void conversation_add(Conversation *conversation, Message message);
void conversation_free(Conversation *conversation);

// line[bytes] must be a JSON object. Its "messages" must be a list of objects, of which at least
// one counts; the sentence is about the line. Reads a message's role, content, tool_calls and
// weight, and ignores all other keys, and keys whose value is null. Accepts any content: the
// template decides what it can write. Unescapes in place, so the line is spoilt. The messages
// replace the earlier ones, and are valid as long as the line, until the next call. In content
// "\u0000" is a NUL, and half of a surrogate pair becomes U+FFFD.
int conversation_parse(Conversation *conversation, char *line, size_t bytes, Error *err);
