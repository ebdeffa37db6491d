#include "data/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files are little-endian and are read in place");

enum { MAGIC_UINT16 = 20240520, VERSION_UINT16 = 1, MAGIC_UINT32 = 20240801, VERSION_UINT32 = 7 };

typedef struct Header {
  int32_t magic, version, count;
} Header;

static int check_header(const char *name, const Header *h, int *token_bytes, Error *err) {
  if (h->magic != MAGIC_UINT16 && h->magic != MAGIC_UINT32)
    return error_set(err,
                     "'%s' is not a token file: its first number is %" PRId32
                     ", not %d (uint16 tokens) or %d (uint32 tokens); ./prepare makes token files",
                     name, h->magic, MAGIC_UINT16, MAGIC_UINT32);
  *token_bytes = h->magic == MAGIC_UINT16 ? 2 : 4;
  const int32_t version = h->magic == MAGIC_UINT16 ? VERSION_UINT16 : VERSION_UINT32;
  if (h->version != version)
    return error_set(err,
                     "'%s' is a token file of version %" PRId32 ", but only version %" PRId32
                     " is known for its magic number %" PRId32,
                     name, h->version, version, h->magic);
  if (h->count < 0)
    return error_set(err, "'%s' has a damaged header: its number of tokens is %" PRId32, name,
                     h->count);
  return 0;
}

int tokens_parse(TokenFile *file, const char *name, const unsigned char *bytes, size_t size,
                 Error *err) {
  *file = (TokenFile){0};
  if (size < TOKENS_HEADER_BYTES)
    return error_set(err,
                     "'%s' is not a token file: it has %zu bytes, less than the header's %d; "
                     "./prepare makes token files",
                     name, size, TOKENS_HEADER_BYTES);
  Header h;
  memcpy(&h, bytes, sizeof h);
  int token_bytes = 0;
  if (check_header(name, &h, &token_bytes, err) != 0) return -1;
  const size_t expected = TOKENS_HEADER_BYTES + (size_t)h.count * (size_t)token_bytes;
  if (size != expected)
    return error_set(err,
                     "'%s' is %s: its header promises %" PRId32
                     " tokens, which make %zu bytes, but it has %zu; make or copy it again",
                     name, size < expected ? "cut short" : "too long", h.count, expected, size);
  file->map = (MappedFile){bytes, size};
  file->path = xstrdup(name);
  file->count = h.count;
  file->token_bytes = token_bytes;
  return 0;
}

int tokens_open(TokenFile *file, const char *path, Error *err) {
  *file = (TokenFile){0};
  MappedFile map;
  if (file_map(&map, path, err) != 0) return -1;
  if (tokens_parse(file, path, map.data, map.bytes, err) != 0) {
    file_unmap(&map);
    return -1;
  }
  file->mapped = true;
  return 0;
}

void tokens_close(TokenFile *file) {
  if (file->mapped) file_unmap(&file->map);
  free(file->path);
  *file = (TokenFile){0};
}

// The token at [first], unaligned when the file lies in a caller's memory.
static const unsigned char *token_address(const TokenFile *file, int64_t first) {
  return file->map.data + TOKENS_HEADER_BYTES + (size_t)first * (size_t)file->token_bytes;
}

static uint32_t token_at(const unsigned char *tokens, int token_bytes, size_t i) {
  if (token_bytes == 2) {
    uint16_t id;
    memcpy(&id, tokens + 2 * i, 2);
    return id;
  }
  uint32_t id;
  memcpy(&id, tokens + 4 * i, 4);
  return id;
}

void tokens_read(const TokenFile *file, int64_t first, int64_t count, int32_t *tokens) {
  assert(first >= 0 && count >= 0 && first <= file->count - count);
  const unsigned char *source = token_address(file, first);
  const int token_bytes = file->token_bytes;
  for (int64_t i = 0; i < count; i++) tokens[i] = (int32_t)token_at(source, token_bytes, (size_t)i);
}

// Two loops of one type each, without a branch on the width, so that the compiler vectorises them.
static uint32_t max_uint16(const unsigned char *tokens, size_t count) {
  uint16_t max = 0;
  for (size_t i = 0; i < count; i++) {
    uint16_t id;
    memcpy(&id, tokens + 2 * i, 2);
    max = id > max ? id : max;
  }
  return max;
}

static uint32_t max_uint32(const unsigned char *tokens, size_t count) {
  uint32_t max = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t id;
    memcpy(&id, tokens + 4 * i, 4);
    max = id > max ? id : max;
  }
  return max;
}

int tokens_check(const TokenFile *file, int64_t vocab_size, Error *err) {
  const size_t count = (size_t)file->count;
  const int token_bytes = file->token_bytes;
  const unsigned char *tokens = token_address(file, 0);
  const uint32_t max = token_bytes == 2 ? max_uint16(tokens, count) : max_uint32(tokens, count);
  if (count == 0 || (int64_t)max < vocab_size) return 0;
  size_t i = 0;
  while ((int64_t)token_at(tokens, token_bytes, i) < vocab_size) i++;
  const uint32_t first_bad = token_at(tokens, token_bytes, i);
  return error_set(err,
                   "'%s' has the token id %" PRIu32 " at position %zu, but the model knows only 0 "
                   "to %" PRId64 ": set model.vocab_size to at least %" PRIu64
                   " or use token files made with the model's tokenizer",
                   file->path, first_bad, i, vocab_size - 1, (uint64_t)max + 1);
}

int token_writer_open(TokenWriter *w, const char *path, int64_t vocab_size, Error *err) {
  assert(vocab_size > 0);
  *w = (TokenWriter){.token_bytes = vocab_size <= 65536 ? 2 : 4};
  if (writer_open(&w->file, path, err) != 0) return -1;
  const char header[TOKENS_HEADER_BYTES] = {0};
  return writer_append(&w->file, header, sizeof header, err);
}

int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err) {
  if (count > TOKENS_MAX_COUNT - w->count)
    return error_set(
        err, "'%s' would hold more than the %" PRId32 " tokens a token file can: use several files",
        w->file.path ? w->file.path : "?", TOKENS_MAX_COUNT);
  w->count += count;
  if (w->token_bytes == 4) return writer_append(&w->file, tokens, (size_t)count * 4, err);
  enum { CHUNK = 8192 };
  uint16_t narrow[CHUNK];
  while (count > 0) {
    const int64_t n = count < CHUNK ? count : CHUNK;
    int32_t bits = 0;
    for (int64_t i = 0; i < n; i++) {
      bits |= tokens[i];
      narrow[i] = (uint16_t)tokens[i];
    }
    assert((bits & ~0xffff) == 0);
    if (writer_append(&w->file, narrow, (size_t)n * 2, err) != 0) return -1;
    tokens += n;
    count -= n;
  }
  return 0;
}

int token_writer_finish(TokenWriter *w, Error *err) {
  const bool wide = w->token_bytes == 4;
  const Header h = {.magic = wide ? MAGIC_UINT32 : MAGIC_UINT16,
                    .version = wide ? VERSION_UINT32 : VERSION_UINT16,
                    .count = (int32_t)w->count};
  if (writer_patch(&w->file, 0, &h, sizeof h, err) == 0) return writer_finish(&w->file, err);
  token_writer_abandon(w);
  return -1;
}

void token_writer_abandon(TokenWriter *w) {
  writer_abandon(&w->file);
}
