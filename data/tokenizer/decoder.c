#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/tokenizer/parts.h"

struct Decoder {
  const Tokenizer *tokenizer;
  Text out;         // the text that was returned last, then the text that waits
  size_t given;     // bytes of it
  Text token, next; // a token on its way through the steps
  bool started;     // a token has come
  int64_t *left;    // [steps] how often a Strip may still take its content
};

static void start(Decoder *d) {
  const Steps *steps = &d->tokenizer->decoder;
  d->started = false;
  for (int i = 0; i < steps->count; i++) d->left[i] = steps->list[i].left;
}

Decoder *decoder_open(const Tokenizer *tokenizer) {
  Decoder *d = xcalloc(1, sizeof *d);
  d->tokenizer = tokenizer;
  d->left = xcalloc((size_t)tokenizer->decoder.count, sizeof *d->left);
  start(d);
  return d;
}

void decoder_close(Decoder *decoder) {
  if (!decoder) return;
  free(decoder->out.data);
  free(decoder->token.data);
  free(decoder->next.data);
  free(decoder->left);
  free(decoder);
}

static void decode_byte_fallback(Text *token) {
  char *const t = token->data;
  if (token->bytes != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>') return;
  if (!isxdigit((unsigned char)t[3]) || !isxdigit((unsigned char)t[4])) return;
  t[0] = (char)strtol(t + 3, NULL, 16);
  token->bytes = 1;
}

// Takes `content` from the start at most *left times. At something else *left becomes 0.
static void strip(Text *token, const char *content, int64_t *left) {
  const size_t bytes = strlen(content);
  size_t begin = 0;
  if (token->bytes == 0) return; // then there may be no memory either
  while (*left > 0 && begin < token->bytes) {
    const bool is =
        token->bytes - begin >= bytes && memcmp(token->data + begin, content, bytes) == 0;
    *left = is ? *left - 1 : 0;
    begin += is ? bytes : 0;
  }
  token->bytes -= begin;
  memmove(token->data, token->data + begin, token->bytes);
}

// Each Replace may make a token longer, so that some in a row could take all memory: a token is cut
// off at this length.
enum { MOST_TOKEN_BYTES = 1 << 20 };

static void apply_step(Decoder *d, const Step *step, int64_t *left) {
  Text *const next = &d->next, token = d->token;
  ptrdiff_t n;
  next->bytes = 0;
  switch (step->kind) {
  case DECODE_BYTE_FALLBACK:
    decode_byte_fallback(&d->token);
    return;
  case DECODE_STRIP:
    strip(&d->token, step->from, left);
    return;
  case DECODE_BYTE_LEVEL: // the bytes that it stands for, if it is written in GPT-2's alphabet
    n = byte_level_decode(token.data, token.bytes, text_room(next, token.bytes));
    if (n < 0) return;
    next->bytes = (size_t)n;
    break;
  case DECODE_REPLACE:
    text_replace(&token, next, step->from, step->to, MOST_TOKEN_BYTES);
    if (next->bytes > MOST_TOKEN_BYTES) next->bytes = MOST_TOKEN_BYTES;
    text_room(next, 1); // so that it is never NULL
    break;
  }
  d->token = *next;
  *next = token;
}

// The token as the file spells it. false: it has no text.
static bool look_up(Decoder *d, int32_t id) {
  const Tokenizer *t = d->tokenizer;
  const Vocabulary *v = &t->bpe.vocabulary;
  if (!vocabulary_has(v, id)) return false;
  d->token.bytes = 0;
  text_room(&d->token, 1);
  const AddedToken *added = t->added[id];
  if (added) {
    const Text *seen = &added->pattern; // by which the Python package knows what is special
    if (added->special && strlen(added->content) == seen->bytes &&
        memcmp(added->content, seen->data, seen->bytes) == 0)
      return false;
    text_append(&d->token, seen->data, seen->bytes);
    return true;
  }
  const size_t bytes = v->tokens[id].length;
  const char *text = vocabulary_text(v, id);
  if (v->tokens[id].raw)
    d->token.bytes = byte_level_encode(text, bytes, text_room(&d->token, 2 * bytes));
  else
    text_append(&d->token, text, bytes);
  return true;
}

// Returns the first bytes of `out`; the rest waits.
static size_t give(Decoder *d, size_t bytes, const char **text) {
  *text = d->out.data;
  return d->given = bytes;
}

static void forget_given(Decoder *d) {
  text_room(&d->out, 1);
  d->out.bytes -= d->given;
  memmove(d->out.data, d->out.data + d->given, d->out.bytes);
  d->given = 0;
}

size_t decoder_next(Decoder *d, int32_t id, const char **text) {
  forget_given(d);
  if (!look_up(d, id)) return give(d, 0, text);
  if (d->tokenizer->decoder.missing && d->started) text_append(&d->out, " ", 1);
  const Steps *steps = &d->tokenizer->decoder;
  for (int i = 0; i < steps->count; i++) apply_step(d, &steps->list[i], &d->left[i]);
  d->started = true;
  text_append(&d->out, d->token.data, d->token.bytes);
  return give(d, d->out.bytes - utf8_begun(d->out.data, d->out.bytes), text);
}

size_t decoder_end(Decoder *d, const char **text) {
  forget_given(d);
  start(d);
  return give(d, d->out.bytes, text);
}
