// Any bytes as a line of messages: it is refused with a sentence, or the conversation has an answer
// that counts, and every template refuses it or gives as many ids as marks.
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/chat/render.h"

enum { KINDS = 4 };

typedef struct Kind {
  Tokenizer *tokenizer;
  Renderer *renderer;
  int32_t end;
} Kind;

static Kind *open_kinds(void) {
  static const char *const folders[KINDS] = {
      "tests/fixtures/chat/chatml", "tests/fixtures/chat/llama3", "tests/fixtures/chat/smollm2",
      "tests/fixtures/chat/llama3"};
  static Kind kinds[KINDS];
  for (int i = 0; i < KINDS && !kinds[i].renderer; i++) {
    Error err;
    Kind *k = &kinds[i];
    k->tokenizer = tokenizer_open(folders[i], &err);
    const ChatTemplate *t = k->tokenizer ? template_choose(k->tokenizer, "", &err) : NULL;
    for (int n = 0; i == 3 && template_at(n); n++) // that of Llama 3.1
      if (template_at(n)->tools) t = template_at(n);
    k->renderer = t ? renderer_open(k->tokenizer, t, &err) : NULL;
    if (!k->renderer) {
      fprintf(stderr,
              "fuzz_messages: %s; run it in the repository's root, whose fixtures it reads\n",
              err.text);
      _exit(1); // libFuzzer takes exit for a crash
    }
    k->end = template_end(k->tokenizer); // Llama 3.1's is Llama 3's
  }
  return kinds;
}

// Ends of turns stand where turns end, whatever the contents spell.
static void check_ids(const Kind *k, const Conversation *c) {
  Error err;
  TokenIds ids = {0};
  Text mask = {0};
  if (renderer_append(k->renderer, c, false, &ids, &mask, &err) == 0) {
    size_t ends = 0, counted = 0, answers = 0;
    assert((size_t)ids.count == mask.bytes);
    for (int64_t i = 0; i < ids.count; i++) {
      ends += ids.ids[i] == k->end;
      counted += ids.ids[i] == k->end && mask.data[i];
    }
    for (size_t i = 0; i < c->count; i++) answers += c->messages[i].counts;
    assert(ends == c->count || ends == c->count + 1); // with a system message of the template's
    assert(counted == answers);
  } else {
    assert(err.text[0] && ids.count == 0 && mask.bytes == 0);
  }
  free(ids.ids);
  free(mask.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  Error err = {""};
  Conversation c = {0};
  char *line = xmalloc(size);
  memcpy(line, bytes, size);
  if (conversation_parse(&c, line, size, &err) != 0) {
    assert(err.text[0]);
  } else {
    bool counts = false;
    for (size_t i = 0; i < c.count; i++) counts |= c.messages[i].counts;
    assert(counts);
    for (int i = 0; i < KINDS; i++) check_ids(&open_kinds()[i], &c);
  }
  conversation_free(&c);
  free(line);
  return 0;
}
