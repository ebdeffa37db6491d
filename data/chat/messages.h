// A conversation: messages of any roles in any order.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"
#include "base/text.h"

#define ROLE_SYSTEM "system"
#define ROLE_USER "user"
#define ROLE_ASSISTANT "assistant"

typedef struct Span {
  const char *text; // [bytes], not NUL-terminated; NULL: there is none
  size_t bytes;
} Span;
bool span_is(Span span, const char *text);

// Its memory is the caller's, or the conversation's line.
typedef struct Message {
  Span role;
  Span text;    // the content: a string, or the texts of its parts, one right behind the other
  Span content; // the content as JSON where it is no string
  Span calls;   // tool_calls as JSON
  bool counts;  // the model learns it: it is the assistant's, and has no "weight": 0
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

// line[bytes] must be one JSON object whose "messages" are a list of objects, with a message that
// counts among them. Of a message role, content, tool_calls and weight are read, of the object
// nothing else; a key whose value is null is as one that is missing. A content must not be a string:
// what can be written is up to the template. Unescapes in place, so that the line is spoilt; the
// messages replace those of before, and are valid as long as the line and until the next call. In
// content "\u0000" is a NUL, and half of a surrogate pair becomes U+FFFD.
int conversation_parse(Conversation *conversation, char *line, size_t bytes, Error *err);
