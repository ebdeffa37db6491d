// A conversation as token ids, and which of them count: the words of the assistant and the token
// that ends its turn. Both are made together, by the rules of a template.
#pragma once
#include <stdbool.h>
#include "data/chat/messages.h"
#include "data/chat/template.h"

typedef struct Renderer Renderer;
// NULL where the tokenizer lacks a special token of the template; the sentence names it. Not for
// two threads at once.
Renderer *renderer_open(const Tokenizer *tokenizer, const ChatTemplate *t, Error *err);
void renderer_close(Renderer *renderer); // NULL is fine

// Appends the conversation's ids, as transformers' apply_chat_template has them, but that special
// tokens in a content are text, and a content of text parts is their texts. mask (or NULL) has a
// byte for each of the ids, 1 where it counts, and gets more: as transformers' mask is with
// {% generation %} around the content of each message that counts and the end of its turn. answer:
// behind it comes the beginning of the assistant's turn. After an error, which says what of which
// message the template cannot write, both are as before.
int renderer_append(Renderer *renderer, const Conversation *conversation, bool answer,
                    TokenIds *ids, Text *mask, Error *err);

// The token that ends a turn, by the tokenizer's own template; NO_TOKEN where that is not known, or
// the tokenizer lacks it.
int32_t template_end(const Tokenizer *tokenizer);
