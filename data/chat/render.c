#include "data/chat/render.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "data/chat/dumps.h"
#include "data/tokenizer/cut.h"
#include "data/tokenizer/normalize.h"

struct Renderer {
  const Tokenizer *tokenizer;
  const ChatTemplate *template;
  int32_t bos, open, middle, close; // NO_TOKEN where the template has none
  Encoder *encoder;
  Text text;      // behind the last marker, and not encoded yet
  int64_t answer; // bytes of it in front of those that count, or NONE_COUNTS
  int32_t before; // the last marker
  TokenIds head;  // of the text in front of an answer
  Text json;      // a copy of a message's
  TokenIds *ids;
  Text *mask; // or NULL
};

// ---- Opening

static int find_marker(const Renderer *r, const char *name, int32_t *id, Error *err) {
  const char *const tokenizer = tokenizer_facts(r->tokenizer)->name;
  *id = name ? tokenizer_special(r->tokenizer, name) : NO_TOKEN;
  if (*id != NO_TOKEN && !tokenizer_always_finds(r->tokenizer, *id))
    return error_set(err, "the tokenizer '%s' does not find %s in every text: it is \"normalized\"",
                     tokenizer, name);
  if (!name || *id != NO_TOKEN) return 0;
  error_set(err, "the tokenizer '%s' has no special token %s, which the chat template of %s needs",
            tokenizer, name, r->template->source);
  if (!r->template->name) return -1;
  return error_append(err, "; ./prepare --train-tokenizer N --template %s makes one that has it",
                      r->template->name);
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
  return r;
}

void renderer_close(Renderer *r) {
  if (!r) return;
  encoder_close(r->encoder);
  free(r->text.data);
  free(r->head.ids);
  free(r->json.data);
  free(r);
}

int32_t template_end(const Tokenizer *tokenizer) {
  const char *text = tokenizer_facts(tokenizer)->chat_template;
  const ChatTemplate *t = text ? template_known(text) : NULL;
  return t ? tokenizer_special(tokenizer, t->close) : NO_TOKEN;
}

// ---- Ids and mask

enum { NONE_COUNTS = -1 };

// The ids behind those that the mask has already: the first `skipped` of them do not count, the
// others do if `counts`.
static void mark(Renderer *r, int64_t skipped, bool counts) {
  if (!r->mask) return;
  const size_t more = (size_t)r->ids->count - r->mask->bytes;
  char *bytes = text_room(r->mask, more);
  for (size_t i = 0; i < more; i++) bytes[i] = counts && (int64_t)i >= skipped;
  r->mask->bytes += more;
}

// Encodes r->text[bytes] in pieces of bounded size. behind: the token that follows.
static int encode(Renderer *r, size_t bytes, int32_t behind, TokenIds *ids, Error *err) {
  const ByteSet *joined = &tokenizer_facts(r->tokenizer)->joined;
  for (size_t at = 0, n; at < bytes; at += n) {
    size_t searched = 0;
    n = cut_piece(joined, r->text.data + at, bytes - at, true, &searched);
    const Between piece = {.text = r->text.data + at,
                           .bytes = n,
                           .before = at == 0 ? r->before : NO_TOKEN,
                           .behind = at + n == bytes ? behind : NO_TOKEN,
                           .continues = at > 0};
    if (encoder_append_between(r->encoder, &piece, ids, err) != 0) return -1;
  }
  return 0;
}

// The text ends in front of the token `behind`. What is in front of an answer does not count: the
// ids that it has without the answer, too. A token that reaches into the answer is none of them.
static int put_text(Renderer *r, int32_t behind, Error *err) {
  const bool counts = r->answer != NONE_COUNTS;
  const int64_t first = r->ids->count;
  int64_t skipped = 0;
  r->head.count = 0;
  if ((counts && encode(r, (size_t)r->answer, NO_TOKEN, &r->head, err) != 0) ||
      encode(r, r->text.bytes, behind, r->ids, err) != 0)
    return -1;
  const int64_t more = min_i64(r->head.count, r->ids->count - first);
  while (skipped < more && r->head.ids[skipped] == r->ids->ids[first + skipped]) skipped++;
  mark(r, skipped, counts);
  r->text.bytes = 0;
  r->answer = NONE_COUNTS;
  return 0;
}

static int put_marker(Renderer *r, int32_t id, bool counts, Error *err) {
  if (id == NO_TOKEN) return 0;
  if (put_text(r, id, err) != 0) return -1;
  token_ids_push(r->ids, id);
  mark(r, 0, counts);
  r->before = id;
  return 0;
}

static void add(Renderer *r, const char *text) {
  text_append(&r->text, text, strlen(text));
}

// A turn up to its content, of which the last part waits in r->text.
static int begin_turn(Renderer *r, Span role, Error *err) {
  const ChatTemplate *t = r->template;
  if (put_marker(r, r->open, false, err) != 0) return -1;
  text_append(&r->text, role.text, role.bytes);
  if (put_marker(r, r->middle, false, err) != 0) return -1;
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

static Span strip(Span text) {
  const size_t start = strip_at(text.text, text.bytes, false);
  text.text += start;
  text.bytes -= start;
  text.bytes -= strip_at(text.text, text.bytes, true);
  return text;
}

// A copy of JSON, whose use spoils it.
static char *copy_json(Renderer *r, Span json) {
  r->json.bytes = 0;
  text_append(&r->json, json.text, json.bytes);
  return r->json.data;
}

static int put_call(Renderer *r, const Message *m, size_t number, Error *err) {
  const char *problem = dumps_call(&r->text, copy_json(r, m->calls), m->calls.bytes);
  if (!problem) return 0;
  return error_set(err, "the \"tool_calls\" of message %zu %s", number, problem);
}

// The content of a tool.
static int put_json(Renderer *r, const Message *m, size_t number, Error *err) {
  const char *const json = m->content.text;
  if (json && *json != '{' && *json != '[')
    return error_set(err, "the \"content\" of message %zu is not a string, list or object", number);
  if (json && !dumps_json(&r->text, copy_json(r, m->content), m->content.bytes))
    return error_set(err, "the \"content\" of message %zu has a key twice", number);
  if (!json && !m->text.text) return error_set(err, "message %zu has no \"content\"", number);
  if (!json) dumps_string(&r->text, m->text);
  return 0;
}

static int put_content(Renderer *r, const Message *m, size_t number, Error *err) {
  const ChatTemplate *t = r->template;
  if (!m->text.text && m->content.text)
    return error_set(err, "the \"content\" of message %zu is neither a string nor a list of texts",
                     number);
  if (!m->text.text && !t->trims) return error_set(err, "message %zu has no \"content\"", number);
  const Span text = m->text.text && t->trims ? strip(m->text) : m->text;
  text_append(&r->text, text.text, text.bytes);
  return 0;
}

// number: from 1. first: a system message that the template has in front of the others.
static int put_message(Renderer *r, const Message *m, size_t number, bool first, Error *err) {
  const ChatTemplate *t = r->template;
  const bool calls = t->tools && !first && m->calls.text;
  const bool tool = t->tools && !calls && (span_is(m->role, "tool") || span_is(m->role, "ipython"));
  const Span role = calls ? span_of(ROLE_ASSISTANT) : tool ? span_of("ipython") : m->role;
  if (begin_turn(r, role, err) != 0) return -1;
  if (first) add(r, t->system_start);
  if (m->counts) r->answer = (int64_t)r->text.bytes;
  const int status = calls  ? put_call(r, m, number, err)
                     : tool ? put_json(r, m, number, err)
                            : put_content(r, m, number, err);
  if (status != 0 || put_marker(r, r->close, m->counts, err) != 0) return -1;
  add(r, t->tail);
  return 0;
}

static int put_all(Renderer *r, const Conversation *c, bool answer, Error *err) {
  const char *system = r->template->system_default;
  const bool own = c->count > 0 && span_is(c->messages[0].role, ROLE_SYSTEM);
  if (put_marker(r, r->bos, false, err) != 0) return -1;
  if (system && c->count > 0 && !own) {
    const Message message = message_of(ROLE_SYSTEM, system, strlen(system));
    if (put_message(r, &message, 0, true, err) != 0) return -1;
  }
  for (size_t i = 0; i < c->count; i++)
    if (put_message(r, &c->messages[i], i + 1, own && i == 0, err) != 0) return -1;
  if (answer && begin_turn(r, span_of(ROLE_ASSISTANT), err) != 0) return -1;
  return put_text(r, NO_TOKEN, err);
}

int renderer_append(Renderer *r, const Conversation *c, bool answer, TokenIds *ids, Text *mask,
                    Error *err) {
  const int64_t count = ids->count;
  const size_t marks = mask ? mask->bytes : 0;
  r->ids = ids;
  r->mask = mask;
  r->text.bytes = 0;
  r->answer = NONE_COUNTS;
  r->before = NO_TOKEN;
  if (put_all(r, c, answer, err) == 0) return 0;
  ids->count = count;
  if (mask) mask->bytes = marks;
  return -1;
}
