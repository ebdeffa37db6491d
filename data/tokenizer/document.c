#include "data/tokenizer/document.h"

#include <limits.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/sentencepiece.h"

// What is not vocabulary or merges; real ones stay far below 1 MB.
enum { MAX_TREE_BYTES = 4 << 20 };

// ---- Finding the two parts

// Behind the string that begins at text[at], or the end.
static size_t skip_string(const char *text, size_t bytes, size_t at) {
  for (at++; at < bytes && text[at] != '"'; at++)
    if (text[at] == '\\') at++;
  return at < bytes ? at + 1 : bytes;
}

static size_t skip_space(const char *text, size_t bytes, size_t at) {
  while (at < bytes && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'))) at++;
  return at;
}

// Behind the object or list that begins at text[at], or the end. Only brackets are looked at.
static size_t skip_brackets(const char *text, size_t bytes, size_t at) {
  size_t depth = 0;
  while (at < bytes) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, bytes, at);
      continue;
    }
    at++;
    if (c == '{' || c == '[') depth++;
    if ((c == '}' || c == ']') && --depth == 0) break;
  }
  return at;
}

static bool is_key(const char *key, size_t bytes, const char *name) {
  return bytes == strlen(name) + 2 && memcmp(key + 1, name, bytes - 2) == 0;
}

// Copies the text into `rest`, with null for the two parts.
static void take_apart(Document *d, Text *rest) {
  const char *const text = d->text;
  const char *key = text;
  size_t key_bytes = 0, copied = 0, depth = 0;
  bool in_model = false;
  for (size_t at = 0; at < d->bytes;) {
    const char c = text[at];
    if (c == '"') {
      const size_t end = skip_string(text, d->bytes, at);
      key = text + at, key_bytes = end - at, at = end;
      continue;
    }
    if (c == '{' && depth == 1) in_model = is_key(key, key_bytes, "model");
    if (c == '{' || c == '[') depth++;
    if ((c == '}' || c == ']') && depth > 0) depth--;
    at++;
    if (c != ':' || depth != 2 || !in_model) continue;
    const bool vocab = is_key(key, key_bytes, "vocab");
    const size_t value = skip_space(text, d->bytes, at);
    if ((!vocab && !is_key(key, key_bytes, "merges")) || value == d->bytes ||
        text[value] != (vocab ? '{' : '['))
      continue;
    *(vocab ? &d->vocab_at : &d->merges_at) = value;
    text_append(rest, text + copied, value - copied);
    text_append(rest, "null", 4);
    at = copied = skip_brackets(text, d->bytes, value);
    for (size_t i = value; i < at; i++) // so that sentences name the right line
      if (text[i] == '\n') text_append(rest, "\n", 1);
  }
  text_append(rest, text + copied, d->bytes - copied);
  text_append(rest, "", 1);
}

int document_open(Document *d, const char *name, const char *text, size_t bytes, Error *err) {
  *d = (Document){.name = name, .text = text, .bytes = bytes};
  if (file_refuse_packed(name, text, bytes, err) != 0 ||
      sentencepiece_refuse(name, text, bytes, err) != 0)
    return -1;
  const size_t valid = utf8_valid(text, bytes);
  if (valid < bytes) return json_syntax_error(name, text, bytes, valid, "this is not UTF-8", err);
  Text rest = {0};
  take_apart(d, &rest);
  if (rest.bytes > MAX_TREE_BYTES)
    error_set(err, "%s has %s beside its vocabulary and merges, more than the %s allowed here",
              name, size_text(rest.bytes).text, size_text(MAX_TREE_BYTES).text);
  else
    d->tree = json_parse(name, rest.data, rest.bytes - 1, err);
  free(rest.data);
  return d->tree ? 0 : -1;
}

void document_close(Document *d) {
  cJSON_Delete(d->tree);
}

// ---- Reading them

typedef struct Reader {
  const Document *document;
  size_t at;
  Text string;         // what the last string with escapes means
  Text raw;            // the same as bytes
  const char *problem; // what is wrong at `at`; NULL while all is well
} Reader;

static char peek(Reader *r) {
  const Document *d = r->document;
  r->at = skip_space(d->text, d->bytes, r->at);
  return r->at < d->bytes ? d->text[r->at] : '\0';
}

static bool take(Reader *r, char c) {
  if (peek(r) != c) return false;
  r->at++;
  return true;
}

static int fail(Reader *r, const char *problem) {
  r->problem = problem;
  return -1;
}

// The four digits behind \u, or -1.
static int read_hex(const char *text) {
  int value = 0;
  for (int i = 0; i < 4; i++) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

static void append_character(Text *text, uint32_t c) {
  char out[4];
  size_t bytes = 0;
  if (c < 0x80) {
    out[bytes++] = (char)c;
  } else {
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[bytes++] = (char)(lead[more] | c >> 6 * more);
    for (int i = more - 1; i >= 0; i--) out[bytes++] = (char)(0x80 | (c >> 6 * i & 0x3f));
  }
  text_append(text, out, bytes);
}

// The escape at text[at], a backslash. Strings end by a quote, and the text by a NUL, so that to
// read a few bytes ahead is safe as long as each is looked at before the next.
static int read_escape(Reader *r) {
  const char *const p = r->document->text + r->at;
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  const char *found = p[1] ? strchr(names, p[1]) : NULL;
  if (found) {
    text_append(&r->string, &values[found - names], 1);
    r->at += 2;
    return 0;
  }
  int c = p[1] == 'u' ? read_hex(p + 2) : -1;
  if (c < 0) return fail(r, "this escape is wrong");
  r->at += 6;
  if (c >= 0xd800 && c < 0xe000) { // one half of a pair
    const int low = c < 0xdc00 && p[6] == '\\' && p[7] == 'u' ? read_hex(p + 8) : -1;
    if (low < 0xdc00 || low >= 0xe000) return fail(r, "half of a surrogate pair");
    c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    r->at += 6;
  }
  append_character(&r->string, (uint32_t)c);
  return 0;
}

// A string: its text is in the document where it has no escapes, else in r->string.
static int read_string(Reader *r, const char **text, size_t *bytes) {
  if (!take(r, '"')) return fail(r, "a string should begin here");
  const Document *d = r->document;
  const char *const start = d->text + r->at;
  size_t n = 0, rest = d->bytes - r->at;
  while (n < rest && start[n] != '"' && start[n] != '\\' && (unsigned char)start[n] >= ' ') n++;
  *text = start, *bytes = n;
  r->at += n;
  if (n < rest && start[n] == '\\') {
    r->string.bytes = 0;
    text_append(&r->string, start, n);
    while (r->at < d->bytes && d->text[r->at] != '"' && (unsigned char)d->text[r->at] >= ' ') {
      if (d->text[r->at] != '\\')
        text_append(&r->string, d->text + r->at++, 1);
      else if (read_escape(r) != 0)
        return -1;
    }
    *text = r->string.data, *bytes = r->string.bytes;
  }
  if (r->at == d->bytes || d->text[r->at] != '"') return fail(r, "this string does not end");
  r->at++;
  return 0;
}

static int read_integer(Reader *r, int64_t *value) {
  const bool negative = take(r, '-');
  const size_t start = r->at;
  *value = 0;
  for (; r->at < r->document->bytes; r->at++) {
    const char c = r->document->text[r->at];
    if (c < '0' || c > '9') break;
    if (*value < INT64_MAX / 16) *value = 10 * *value + (c - '0');
  }
  if (negative) *value = -*value;
  const char after = peek(r);
  const bool whole = r->at > start && after != '.' && after != 'e' && after != 'E';
  return whole ? 0 : fail(r, "an id should be a whole number");
}

// The text, or the bytes that it stands for.
static bool to_raw(Reader *r, bool byte_level, const char **text, size_t *bytes) {
  if (!byte_level) return false;
  r->raw.bytes = 0;
  const ptrdiff_t n = byte_level_decode(*text, *bytes, text_room(&r->raw, *bytes + 1));
  if (n < 0) return false;
  *text = r->raw.data;
  *bytes = (size_t)n;
  return true;
}

// What went wrong, at its place in the file.
static int reader_close(Reader *r, int result, Error *err) {
  const Document *d = r->document;
  free(r->string.data);
  free(r->raw.data);
  if (result == 0) return 0;
  if (r->problem) return json_syntax_error(d->name, d->text, d->bytes, r->at, r->problem, err);
  return error_prefix(err, "%s", d->name);
}

static int read_tokens(Reader *r, bool byte_level, Vocabulary *v, Error *err) {
  take(r, '{');
  if (take(r, '}')) return 0;
  do {
    const char *text;
    size_t bytes;
    int64_t id;
    if (read_string(r, &text, &bytes) != 0) return -1;
    if (!take(r, ':')) return fail(r, "a colon is missing");
    if (read_integer(r, &id) != 0) return -1;
    const bool raw = to_raw(r, byte_level, &text, &bytes);
    if (vocabulary_add(v, text, bytes, raw, id, err) != 0) return -1;
  } while (take(r, ','));
  return take(r, '}') ? 0 : fail(r, "a comma or bracket is wrong");
}

int document_read_vocabulary(const Document *d, bool byte_level, Vocabulary *v, Error *err) {
  if (d->vocab_at == 0)
    return error_set(err, "%s: model.vocab is not there, or no object", d->name);
  Reader r = {.document = d, .at = d->vocab_at};
  return reader_close(&r, read_tokens(&r, byte_level, v, err), err);
}

static int32_t find_token(Reader *r, bool byte_level, const Vocabulary *v, const Text *token,
                          size_t merge, Error *err) {
  const char *text = token->data;
  size_t bytes = token->bytes;
  const bool raw = to_raw(r, byte_level, &text, &bytes);
  const int32_t id = vocabulary_find(v, text, bytes, raw);
  if (id < 0)
    error_set(err, "merge %zu names '%.*s', which the vocabulary does not have", merge,
              token->bytes < 100 ? (int)token->bytes : 100, token->data);
  return id;
}

static int add_merge(Reader *r, bool byte_level, const Vocabulary *v, const Text sides[2],
                     Merges *m, Text *joined, Error *err) {
  joined->bytes = 0;
  for (int i = 0; i < 2; i++) text_append(joined, sides[i].data, sides[i].bytes);
  const Text *const tokens[3] = {&sides[0], &sides[1], joined};
  int32_t ids[3];
  for (int i = 0; i < 3; i++) {
    ids[i] = find_token(r, byte_level, v, tokens[i], m->count + 1, err);
    if (ids[i] < 0) return -1;
  }
  merges_add(m, ids[0], ids[1], ids[2]);
  return 0;
}

// "a b" or ["a", "b"]. Of the first the two sides lie in the string, of the second the first side
// is kept in `left`.
static int read_merge(Reader *r, Text *left, Text sides[2]) {
  const char *text;
  size_t bytes;
  if (take(r, '[')) {
    if (read_string(r, &text, &bytes) != 0) return -1;
    left->bytes = 0;
    text_append(left, text, bytes);
    if (!take(r, ',')) return fail(r, "a merge should have two tokens");
    if (read_string(r, &text, &bytes) != 0) return -1;
    if (!take(r, ']')) return fail(r, "a merge should have two tokens");
    sides[0] = *left;
    sides[1] = (Text){.data = (char *)(uintptr_t)text, .bytes = bytes};
    return 0;
  }
  if (read_string(r, &text, &bytes) != 0) return -1;
  const char *space = memchr(text, ' ', bytes);
  const size_t first = space ? (size_t)(space - text) : bytes;
  if (!space || memchr(space + 1, ' ', bytes - first - 1))
    return fail(r, "a merge should be two tokens with a space between");
  sides[0] = (Text){.data = (char *)(uintptr_t)text, .bytes = first};
  sides[1] = (Text){.data = (char *)(uintptr_t)space + 1, .bytes = bytes - first - 1};
  return 0;
}

static int read_all_merges(Reader *r, bool byte_level, const Vocabulary *v, Merges *m, Text *left,
                           Text *joined, Error *err) {
  take(r, '[');
  if (take(r, ']')) return 0;
  do {
    Text sides[2];
    if (read_merge(r, left, sides) != 0) return -1;
    if (add_merge(r, byte_level, v, sides, m, joined, err) != 0) return -1;
  } while (take(r, ','));
  return take(r, ']') ? 0 : fail(r, "a comma or bracket is wrong");
}

int document_read_merges(const Document *d, bool byte_level, const Vocabulary *v, Merges *m,
                         Error *err) {
  if (d->merges_at == 0)
    return error_set(err, "%s: model.merges is not there, or no list", d->name);
  Reader r = {.document = d, .at = d->merges_at};
  Text left = {0}, joined = {0};
  const int result = read_all_merges(&r, byte_level, v, m, &left, &joined, err);
  free(left.data);
  free(joined.data);
  return reader_close(&r, result, err);
}
