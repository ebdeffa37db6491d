#include "data/tokenizer/normalize.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/memory.h"

bool normalizer_keeps_lines(const Steps *n) {
  for (int i = 0; i < n->count; i++) {
    const Step *s = &n->list[i];
    if (s->kind == NORMALIZE_REPLACE && strchr(s->from, '\n')) return false;
  }
  return true;
}

bool normalizer_keeps_characters(const Steps *n) {
  for (int i = 0; i < n->count; i++) {
    const Step *s = &n->list[i];
    if (s->kind == NORMALIZE_FORM || (s->kind == NORMALIZE_REPLACE && s->from[0] != ' '))
      return false;
  }
  return true;
}

void normalizer_buffers_close(NormalizerBuffers *b) {
  free(b->now.data);
  free(b->next.data);
  free(b->characters);
}

// Unicode's White_Space at text[0], in bytes; 0 if there is none.
static size_t white_space(const char *text, size_t bytes) {
  utf8proc_int32_t c;
  const utf8proc_ssize_t n =
      utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &c);
  const utf8proc_category_t category = n > 0 ? utf8proc_category(c) : UTF8PROC_CATEGORY_CN;
  const bool is = category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
                  category == UTF8PROC_CATEGORY_ZP || c == 0x85 || (c >= '\t' && c <= '\r');
  return n > 0 && is ? (size_t)n : 0;
}

size_t white_space_at_start(const char *text, size_t bytes) {
  size_t at = 0, n = 1;
  while (at < bytes && n > 0) at += n = white_space(text + at, bytes - at);
  return at;
}

size_t white_space_at_end(const char *text, size_t bytes) {
  size_t end = bytes, n = 1;
  while (end > 0 && n > 0) {
    n = 0;
    for (size_t length = 1; length <= 3 && length <= end && n == 0; length++)
      if (white_space(text + end - length, length) == length) n = length;
    end -= n;
  }
  return bytes - end;
}

// ---- The steps: each makes b->next of b->now

static int class_of(int character) {
  return utf8proc_get_property(character)->combining_class;
}

// Sorts marks[count] by combining class and keeps the order of those of one class. A text may have
// a million marks in a row, for which utf8proc's own way takes hours. scratch: [count].
static void sort_marks(int *marks, size_t count, int *scratch) {
  size_t places[257] = {0};
  bool sorted = true;
  for (size_t i = 0; i < count; i++) {
    places[class_of(marks[i]) + 1]++;
    sorted &= i == 0 || class_of(marks[i - 1]) <= class_of(marks[i]);
  }
  if (sorted) return;
  for (int c = 0; c < 256; c++) places[c + 1] += places[c];
  for (size_t i = 0; i < count; i++) scratch[places[class_of(marks[i])]++] = marks[i];
  memcpy(marks, scratch, count * sizeof *marks);
}

static void order_characters(int *characters, size_t count, int *scratch) {
  for (size_t i = 0, marks; i < count; i += marks + 1) {
    for (marks = 0; i + marks < count && class_of(characters[i + marks]) > 0;) marks++;
    if (marks > 1) sort_marks(characters + i, marks, scratch);
  }
}

// One of the four forms of text[bytes], which is UTF-8.
static int append_form(NormalizerBuffers *b, int form, const char *text, size_t bytes, Error *err) {
  enum { LONGEST = 32 }; // a character becomes 18 at most
  const utf8proc_uint8_t *const at = (const utf8proc_uint8_t *)text;
  size_t count = 0;
  utf8proc_ssize_t n = 0;
  int unused = 0;
  for (size_t i = 0; i < bytes && n >= 0; i += (size_t)n) {
    if (b->capacity < 2 * (count + LONGEST)) { // half of it is for sorting
      b->capacity = 4 * (count + LONGEST);
      b->characters = xrealloc(b->characters, b->capacity * sizeof *b->characters);
    }
    utf8proc_int32_t character;
    n = utf8proc_iterate(at + i, (utf8proc_ssize_t)(bytes - i), &character);
    if (n < 0) break;
    const utf8proc_ssize_t more = utf8proc_decompose_char(character, b->characters + count, LONGEST,
                                                          (utf8proc_option_t)form, &unused);
    if (more < 0 || more > LONGEST) n = UTF8PROC_ERROR_OVERFLOW;
    count += (size_t)more;
  }
  if (n >= 0) {
    order_characters(b->characters, count, b->characters + b->capacity / 2);
    n = utf8proc_reencode(b->characters, (utf8proc_ssize_t)count, (utf8proc_option_t)form);
  }
  if (n < 0) return error_set(err, "the text cannot be normalized: %s", utf8proc_errmsg(n));
  text_append(&b->next, (const char *)b->characters, (size_t)n);
  return 0;
}

static size_t ascii_length(const char *text, size_t bytes) {
  size_t n = 0;
  while (n < bytes && (unsigned char)text[n] < 0x80) n++;
  return n;
}

// Bytes of the characters beyond ASCII at text[0].
static size_t wide_length(const char *text, size_t bytes) {
  size_t n = 0;
  while (n < bytes && (unsigned char)text[n] >= 0x80) {
    const size_t length = utf8_length(text + n, bytes - n);
    if (length == 0) break;
    n += length;
  }
  return n;
}

// ASCII stays as it is in every form, but for the last character of a run of it, to which marks
// may follow. Nothing in front of an ASCII character composes with it.
static int apply_form(NormalizerBuffers *b, int form, Error *err) {
  for (size_t at = 0; at < b->now.bytes;) {
    const char *const text = b->now.data + at;
    const size_t left = b->now.bytes - at, ascii = ascii_length(text, left);
    const size_t wide = wide_length(text + ascii, left - ascii);
    // Where no character follows, it is the end, or a byte that is none.
    const size_t plain = wide > 0 ? ascii - (ascii > 0) : ascii + (ascii < left);
    text_append(&b->next, text, plain);
    at += wide > 0 ? ascii + wide : plain;
    if (wide > 0 && append_form(b, form, text + plain, ascii - plain + wide, err) != 0) return -1;
  }
  return 0;
}

void text_replace(const Text *in, Text *out, const char *from, const char *to, size_t most) {
  const size_t from_bytes = strlen(from), to_bytes = strlen(to);
  const char *at = in->data, *const end = at + in->bytes;
  while (at < end && out->bytes <= most) {
    const char *found = memchr(at, from[0], (size_t)(end - at));
    if (!found || (size_t)(end - found) < from_bytes) break;
    const bool is = memcmp(found, from, from_bytes) == 0;
    text_append(out, at, (size_t)(found - at) + !is);
    if (is) text_append(out, to, to_bytes);
    at = found + (is ? from_bytes : 1);
  }
  text_append(out, at, (size_t)(end - at));
}

static int apply_step(const Step *step, NormalizerBuffers *b, bool continues, size_t most,
                      Error *err) {
  const Text *now = &b->now;
  switch (step->kind) {
  case NORMALIZE_FORM:
    return apply_form(b, step->form, err);
  case NORMALIZE_PREPEND:
    if (now->bytes > 0 && !continues) text_append(&b->next, step->to, strlen(step->to));
    text_append(&b->next, now->data, now->bytes);
    return 0;
  case NORMALIZE_REPLACE:
    text_replace(now, &b->next, step->from, step->to, most);
    return 0;
  }
  return 0;
}

int normalizer_apply(const Steps *n, NormalizerBuffers *b, const char *text, size_t bytes,
                     bool continues, Error *err) {
  const size_t most = NORMALIZER_GROWTH * bytes + NORMALIZER_MORE_BYTES;
  b->now.bytes = 0;
  text_append(&b->now, text, bytes);
  for (int i = 0; i < n->count; i++) {
    b->next.bytes = 0;
    text_room(&b->now, 1); // so that it is never NULL
    if (apply_step(&n->list[i], b, continues, most, err) != 0) return -1;
    if (b->next.bytes > most)
      return error_set(err, "the tokenizer's normalizer makes more than %s of %s of text",
                       size_text(most).text, size_text(bytes).text);
    const Text now = b->now;
    b->now = b->next;
    b->next = now;
  }
  return 0;
}
