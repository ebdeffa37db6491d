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
  uint64_t hash;      // XXH3-64 of the Jinja, \n in it as newlines, where text is NULL
  const char *open, *middle, *close; // markers; middle may be NULL
  const char *glue, *tail;           // text
  bool bos;                          // in front of a conversation
  bool trims;                        // white space around a content is left out
  const char *system_start;   // in front of every system message, which there always is, or ""
  const char *system_default; // for a conversation without a system message, or NULL
} ChatTemplate;

// NULL: there is none of this name.
const ChatTemplate *template_named(const char *name);
// Of the Jinja text; NULL: it is not known.
const ChatTemplate *template_known(const char *text);

// The template of this name, or with NULL the tokenizer's own. A sentence where that is not known,
// and `advice` behind it.
const ChatTemplate *template_choose(const Tokenizer *tokenizer, const char *name,
                                    const char *advice, Error *err);
