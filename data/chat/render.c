#include "data/chat/render.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/cut.h"
#include "data/tokenizer/steps.h"

struct Renderer {
  const Tokenizer *tokenizer;
  const ChatTemplate *template;
  int32_t bos, open, middle, close; // NO_TOKEN where the template has none
  Encoder *encoder;
  Decoder *decoder;
  Text text; // between two markers
  TokenIds *ids;
  Text *mask; // or NULL
};

// ---- Opening

static int find_marker(const Renderer *r, const char *name, int32_t *id, Error *err) {
  *id = name ? tokenizer_special(r->tokenizer, name) : NO_TOKEN;
  if (!name || *id != NO_TOKEN) return 0;
  return error_set(
      err, "the tokenizer '%s' has no special token %s, which the chat template of %s needs",
      tokenizer_facts(r->tokenizer)->name, name, r->template->source);
}

// BOS is the one that the tokenizer puts in front of texts.
static int find_markers(Renderer *r, Error *err) {
  const ChatTemplate *t = r->template;
  r->bos = t->bos ? tokenizer_facts(r->tokenizer)->bos : NO_TOKEN;
  if (t->bos && r->bos == NO_TOKEN && find_marker(r, "<|begin_of_text|>", &r->bos, err) != 0)
    return -1;
  return find_marker(r, t->open, &r->open, err) || find_marker(r, t->middle, &r->middle, err) ||
                 find_marker(r, t->close, &r->close, err)
             ? -1
             : 0;
}

Renderer *renderer_open(const Tokenizer *tokenizer, const ChatTemplate *t, Error *err) {
  Renderer *r = xcalloc(1, sizeof *r);
  r->tokenizer = tokenizer;
  r->template = t;
  if (find_markers(r, err) != 0) {
    renderer_close(r);
    return NULL;
  }
  r->encoder = encoder_open(tokenizer);
  r->decoder = decoder_open(tokenizer);
  return r;
}

void renderer_close(Renderer *r) {
  if (!r) return;
  encoder_close(r->encoder);
  decoder_close(r->decoder);
  free(r->text.data);
  free(r);
}

int32_t template_end(const Tokenizer *tokenizer) {
  const char *text = tokenizer_facts(tokenizer)->chat_template;
  const ChatTemplate *t = text ? template_known(text) : NULL;
  return t ? tokenizer_special(tokenizer, t->close) : NO_TOKEN;
}

// ---- Ids and mask

// The ids behind those that the mask has already: the first `skipped` of them do not count, the
// others do if `counts`.
static void mark(Renderer *r, int64_t skipped, bool counts) {
  if (!r->mask) return;
  const size_t more = (size_t)r->ids->count - r->mask->bytes;
  char *bytes = text_room(r->mask, more);
  for (size_t i = 0; i < more; i++) bytes[i] = counts && (int64_t)i >= skipped;
  r->mask->bytes += more;
}

static void put_marker(Renderer *r, int32_t id, bool counts) {
  if (id != NO_TOKEN) token_ids_push(r->ids, id);
  mark(r, 0, counts);
}

// How many of the ids from `first` on begin in the first bytes of their text, which are ASCII. A
// token that joins the end of these with the beginning of the content is one of them.
static int64_t ids_of(Renderer *r, int64_t first, size_t bytes) {
  const char *text;
  int64_t count = 0;
  for (size_t done = 0; done < bytes && first + count < r->ids->count; count++)
    done += decoder_next(r->decoder, r->ids->ids[first + count], &text);
  decoder_end(r->decoder, &text);
  return count;
}

// Encodes r->text, of which the first `skipped` bytes never count, in pieces of bounded size.
static int put_text(Renderer *r, size_t skipped, bool counts, Error *err) {
  const ByteSet *joined = &tokenizer_facts(r->tokenizer)->joined;
  const int64_t first = r->ids->count;
  for (size_t at = 0; at < r->text.bytes;) {
    size_t searched = 0;
    const size_t n = cut_piece(joined, r->text.data + at, r->text.bytes - at, true, &searched);
    if (encoder_append_plain(r->encoder, r->text.data + at, n, at > 0, r->ids, err) != 0) return -1;
    at += n;
  }
  mark(r, counts ? ids_of(r, first, skipped) : 0, counts);
  r->text.bytes = 0;
  return 0;
}

static void add(Renderer *r, const char *text) {
  text_append(&r->text, text, strlen(text));
}

// A turn up to its content, of which the last part waits in r->text.
static int begin_turn(Renderer *r, Role role, Error *err) {
  const ChatTemplate *t = r->template;
  put_marker(r, r->open, false);
  add(r, role_name(role));
  if (t->middle) {
    if (put_text(r, 0, false, err) != 0) return -1;
    put_marker(r, r->middle, false);
  }
  add(r, t->glue);
  return 0;
}

// Bytes of white space at the start as Python's str.strip takes them, or at the end.
static size_t strip_at(const char *text, size_t bytes, bool at_end) {
  size_t n = 0;
  for (size_t more = 1; more > 0; n += more) {
    const char *rest = at_end ? text : text + n;
    more = at_end ? white_space_at_end(rest, bytes - n) : white_space_at_start(rest, bytes - n);
    const char next = n == bytes ? '\0' : at_end ? text[bytes - n - 1] : text[n];
    if (more == 0 && next >= 0x1c && next <= 0x1f) more = 1;
  }
  return n;
}

static Message strip(Message m) {
  const size_t start = strip_at(m.text, m.bytes, false);
  m.text += start;
  m.bytes -= start;
  m.bytes -= strip_at(m.text, m.bytes, true);
  return m;
}

static int put_message(Renderer *r, Message m, Error *err) {
  const ChatTemplate *t = r->template;
  const bool counts = m.role == ROLE_ASSISTANT;
  if (begin_turn(r, m.role, err) != 0) return -1;
  if (m.role == ROLE_SYSTEM) add(r, t->system_start);
  const size_t skipped = r->text.bytes;
  if (t->trims) m = strip(m);
  text_append(&r->text, m.text, m.bytes);
  if (put_text(r, skipped, counts, err) != 0) return -1;
  put_marker(r, r->close, counts);
  add(r, t->tail);
  return put_text(r, 0, false, err);
}

static int put_all(Renderer *r, const Conversation *c, bool answer, Error *err) {
  const char *system = r->template->system_default;
  put_marker(r, r->bos, false);
  if (system && c->count > 0 && c->messages[0].role != ROLE_SYSTEM &&
      put_message(r, (Message){ROLE_SYSTEM, system, strlen(system)}, err) != 0)
    return -1;
  for (size_t i = 0; i < c->count; i++)
    if (put_message(r, c->messages[i], err) != 0) return -1;
  if (!answer) return 0;
  return begin_turn(r, ROLE_ASSISTANT, err) != 0 ? -1 : put_text(r, 0, false, err);
}

int renderer_append(Renderer *r, const Conversation *c, bool answer, TokenIds *ids, Text *mask,
                    Error *err) {
  const int64_t count = ids->count;
  const size_t marks = mask ? mask->bytes : 0;
  r->ids = ids;
  r->mask = mask;
  r->text.bytes = 0;
  if (put_all(r, c, answer, err) == 0) return 0;
  ids->count = count;
  if (mask) mask->bytes = marks;
  return -1;
}
