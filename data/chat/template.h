// The chat templates that are known exactly: how a conversation becomes text with markers. There is
// no Jinja here: a model's template is compared with the texts of the known ones.
#pragma once
#include <stdbool.h>
#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

#define TEMPLATE_NAMES "llama3 or chatml" // for sentences and help

// A message is: open, role, middle, glue, content, close, tail. Markers are special tokens.
typedef struct ChatTemplate {
  const char *name;   // NULL: it is known by a model's folder alone
  const char *source; // whose it is, for sentences
  const char *text;   // the Jinja; NULL: known by its hash alone
  uint64_t hash;      // XXH3-64 of the Jinja in template_known's form, where text is NULL
  const char *open, *middle, *close; // markers; middle may be NULL
  const char *glue, *tail;           // text
  bool bos;                          // in front of a conversation
  bool trims;                 // strips white space around a content; a missing content is empty
  const char *system_start;   // in front of the content of a system message that is the first one
  const char *system_default; // for a conversation that begins with no system message, or NULL
  bool tools;                 // tool_calls, and contents of tools, are written as JSON
} ChatTemplate;

// The templates one by one; NULL behind the last.
const ChatTemplate *template_at(int index);

// NULL: there is none of this name.
const ChatTemplate *template_named(const char *name);
// Of the Jinja text; NULL: it is not known. As to Jinja, one newline at the end does not count, and
// \r\n and \r are newlines; \n in a string is one, too.
const ChatTemplate *template_known(const char *text);

// The names of those whose special tokens the tokenizer has, for sentences; NULL: none.
const char *template_fitting(const Tokenizer *tokenizer);

// The tokenizer's own. A sentence where it is not known, and `advice` behind it.
const ChatTemplate *template_choose(const Tokenizer *tokenizer, const char *advice, Error *err);
