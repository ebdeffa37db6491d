#include "data/chat/template.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/text.h"

// As Meta-Llama-3-8B-Instruct has it.
#define LLAMA3_TEXT                                                                                \
  "{% set loop_messages = messages %}{% for message in loop_messages %}"                           \
  "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"             \
  "+ message['content'] | trim + '<|eot_id|>' %}"                                                  \
  "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"                    \
  "{{ content }}{% endfor %}"                                                                      \
  "{% if add_generation_prompt %}"                                                                 \
  "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"

// As SmolLM-135M-Instruct has it; SmolLM2's has a line in front of a message.
#define SMOLLM2_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define CHATML_TEXT(first)                                                                         \
  "{% for message in messages %}" first                                                            \
  "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"         \
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define SMOLLM2_FIRST                                                                              \
  "{% if loop.first and messages[0]['role'] != 'system' %}"                                        \
  "{{ '<|im_start|>system\n" SMOLLM2_SYSTEM "<|im_end|>\n' }}{% endif %}"

static const ChatTemplate templates[] = {
    {.name = "llama3",
     .source = "Llama 3",
     .text = LLAMA3_TEXT,
     .open = "<|start_header_id|>",
     .middle = "<|end_header_id|>",
     .close = "<|eot_id|>",
     .glue = "\n\n",
     .tail = "",
     .bos = true,
     .trims = true,
     .system_start = ""},
    {.name = "chatml",
     .source = "ChatML",
     .text = CHATML_TEXT(""),
     .open = "<|im_start|>",
     .close = "<|im_end|>",
     .glue = "\n",
     .tail = "\n",
     .system_start = ""},
    {.source = "SmolLM2",
     .text = CHATML_TEXT(SMOLLM2_FIRST),
     .open = "<|im_start|>",
     .close = "<|im_end|>",
     .glue = "\n",
     .tail = "\n",
     .system_start = "",
     .system_default = SMOLLM2_SYSTEM},
    // Llama 3.2's has the day's date in place of this one, so that its ids change from day to day.
    {.source = "Llama 3.1",
     .hash = 0xda8ae4616203881a,
     .open = "<|start_header_id|>",
     .middle = "<|end_header_id|>",
     .close = "<|eot_id|>",
     .glue = "\n\n",
     .tail = "",
     .bos = true,
     .trims = true,
     .system_start = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .system_default = "",
     .tools = true},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

const ChatTemplate *template_at(int index) {
  return index < TEMPLATES ? &templates[index] : NULL;
}

const ChatTemplate *template_named(const char *name) {
  for (int i = 0; i < TEMPLATES; i++)
    if (templates[i].name && strcmp(templates[i].name, name) == 0) return &templates[i];
  return NULL;
}

// A newline in a Jinja string may be spelled \n, and no known template has one outside of a string.
static Text with_newlines(const char *text) {
  Text out = {0};
  size_t bytes = strlen(text);
  text_room(&out, bytes);
  if (bytes > 0 && text[bytes - 1] == '\n') bytes--;
  if (bytes > 0 && text[bytes - 1] == '\r') bytes--;
  for (const char *at = text; at < text + bytes; at++) {
    const bool two = (at[0] == '\\' && at[1] == 'n') || (at[0] == '\r' && at[1] == '\n');
    out.data[out.bytes++] = two || *at == '\r' ? '\n' : *at;
    at += two;
  }
  return out;
}

const ChatTemplate *template_known(const char *text) {
  Text plain = with_newlines(text);
  const uint64_t hash = XXH3_64bits(plain.data, plain.bytes);
  const ChatTemplate *found = NULL;
  for (int i = 0; i < TEMPLATES && !found; i++) {
    const ChatTemplate *t = &templates[i];
    const bool same =
        t->text ? strlen(t->text) == plain.bytes && memcmp(t->text, plain.data, plain.bytes) == 0
                : t->hash == hash;
    if (same) found = t;
  }
  free(plain.data);
  return found;
}

static bool fits(const ChatTemplate *t, const Tokenizer *tokenizer) {
  const char *const markers[] = {t->open, t->middle, t->close};
  for (int i = 0; i < 3; i++)
    if (markers[i] && tokenizer_special(tokenizer, markers[i]) == NO_TOKEN) return false;
  return true;
}

const char *template_fitting(const Tokenizer *tokenizer) {
  const bool llama3 = fits(template_named("llama3"), tokenizer);
  const bool chatml = fits(template_named("chatml"), tokenizer);
  return llama3 && chatml ? TEMPLATE_NAMES : llama3 ? "llama3" : chatml ? "chatml" : NULL;
}

const ChatTemplate *template_choose(const Tokenizer *tokenizer, const char *advice, Error *err) {
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  const ChatTemplate *t = facts->chat_template ? template_known(facts->chat_template) : NULL;
  if (!facts->chat_template)
    error_set(err, "the tokenizer '%s' has no chat template: %s", facts->name, advice);
  else if (!t)
    error_set(err,
              "the chat template of '%s' is none of those that are known here (Llama 3, Llama 3.1, "
              "ChatML, SmolLM2): %s",
              facts->name, advice);
  return t;
}
