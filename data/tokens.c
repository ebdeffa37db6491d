#include "data/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files are little-endian and are read in place");

// The magic numbers of files with tokens of 2 and of 4 bytes.
enum { MAGIC_UINT16 = 20240520, MAGIC_UINT32 = 20240801 };
static int32_t version_of(int32_t magic) {
  return magic == MAGIC_UINT16 ? 1 : 7;
}

typedef struct Header {
  int32_t magic, version, count, mark;
  uint64_t tokenizer, checksum;
} Header;

static int check_header(const char *name, const Header *h, Error *err) {
  if (h->magic != MAGIC_UINT16 && h->magic != MAGIC_UINT32)
    return error_set(err,
                     "'%s' is not a token file: its first number is %" PRId32
                     ", not %d (uint16 tokens) or %d (uint32 tokens); ./prepare makes token files",
                     name, h->magic, MAGIC_UINT16, MAGIC_UINT32);
  if (h->version != version_of(h->magic))
    return error_set(err,
                     "'%s' is a token file of version %" PRId32 ", but only version %" PRId32
                     " is known for its magic number %" PRId32,
                     name, h->version, version_of(h->magic), h->magic);
  if (h->count >= 0) return 0;
  return error_set(err, "'%s' has a damaged header: its number of tokens is %" PRId32, name,
                   h->count);
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
  if (check_header(name, &h, err) != 0) return -1;
  const int token_bytes = h.magic == MAGIC_UINT16 ? 2 : 4;
  const size_t expected = TOKENS_HEADER_BYTES + (size_t)h.count * (size_t)token_bytes;
  if (size != expected)
    return error_set(err,
                     "'%s' is %s: its header promises %" PRId32
                     " tokens, which make %zu bytes, but it has %zu; make or copy it again",
                     name, size < expected ? "cut short" : "too long", h.count, expected, size);
  *file = (TokenFile){.tokens = bytes + TOKENS_HEADER_BYTES,
                      .path = xstrdup(name),
                      .count = h.count,
                      .token_bytes = token_bytes,
                      .tokenizer = h.mark == TOKENS_MARK ? h.tokenizer : 0,
                      .checksum = h.mark == TOKENS_MARK ? h.checksum : 0};
  return 0;
}

int tokens_open(TokenFile *file, const char *path, Error *err) {
  *file = (TokenFile){0};
  MappedFile map;
  if (file_map(&map, path, err) != 0) return -1;
  const int status = tokens_parse(file, path, map.data, map.bytes, err);
  file->map = map;
  if (status != 0) tokens_close(file);
  return status;
}

void tokens_close(TokenFile *file) {
  file_unmap(&file->map);
  free(file->path);
  *file = (TokenFile){0};
}

void tokens_read(const TokenFile *file, int64_t first, int64_t count, int32_t *tokens) {
  assert(first >= 0 && count >= 0 && first <= file->count - count);
  const unsigned char *source = file->tokens + (size_t)first * (size_t)file->token_bytes;
  if (file->token_bytes == 4) {
    memcpy(tokens, source, (size_t)count * 4);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    uint16_t id;
    memcpy(&id, source + 2 * i, 2);
    tokens[i] = id;
  }
}

// Two loops of one type each, without a branch on the width, so that the compiler vectorises them.
static uint32_t largest_token(const unsigned char *tokens, size_t count, int token_bytes) {
  uint16_t max16 = 0;
  uint32_t max32 = 0;
  for (size_t i = 0; token_bytes == 2 && i < count; i++) {
    uint16_t id;
    memcpy(&id, tokens + 2 * i, 2);
    max16 = id > max16 ? id : max16;
  }
  for (size_t i = 0; token_bytes == 4 && i < count; i++) {
    uint32_t id;
    memcpy(&id, tokens + 4 * i, 4);
    max32 = id > max32 ? id : max32;
  }
  return max16 > max32 ? max16 : max32;
}

int tokens_check(const TokenFile *file, int64_t vocab_size, Error *err) {
  const uint32_t max = largest_token(file->tokens, (size_t)file->count, file->token_bytes);
  const size_t bytes = (size_t)file->count * (size_t)file->token_bytes;
  if (file->tokenizer != 0 && XXH3_64bits(file->tokens, bytes) != file->checksum)
    return error_set(err,
                     "'%s' is damaged: its tokens are not those that its checksum was made of; "
                     "make or copy it again",
                     file->path);
  if (file->count == 0 || (int64_t)max < vocab_size) return 0;
  int64_t at = 0;
  int32_t id; // of uint32 tokens the upper half is negative
  while (tokens_read(file, at, 1, &id), (int64_t)(uint32_t)id < vocab_size) at++;
  return error_set(err,
                   "'%s' has the token id %" PRIu32 " at position %" PRId64
                   ", but the model knows only 0 to %" PRId64
                   ": set model.vocab_size to at least %" PRIu64
                   " or use token files made with the model's tokenizer",
                   file->path, (uint32_t)id, at, vocab_size - 1, (uint64_t)max + 1);
}

int token_writer_open(TokenWriter *w, const char *path, int64_t vocab_size, uint64_t tokenizer,
                      Error *err) {
  assert(vocab_size > 0);
  *w = (TokenWriter){.token_bytes = vocab_size <= 65536 ? 2 : 4, .tokenizer = tokenizer};
  if (writer_open(&w->file, path, err) != 0) return -1;
  XXH3_state_t *hash = XXH3_createState();
  if (!hash || XXH3_64bits_reset(hash) != XXH_OK) {
    XXH3_freeState(hash);
    token_writer_abandon(w);
    return error_set(err, "out of memory for the checksum of '%s'", path);
  }
  w->hash = hash;
  const char header[TOKENS_HEADER_BYTES] = {0};
  return writer_append(&w->file, header, sizeof header, err);
}

static int append_bytes(TokenWriter *w, const void *tokens, size_t bytes, Error *err) {
  if (w->hash) XXH3_64bits_update(w->hash, tokens, bytes);
  return writer_append(&w->file, tokens, bytes, err);
}

int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err) {
  if (count > TOKENS_MAX_COUNT - w->count)
    return error_set(
        err, "'%s' would hold more than the %" PRId32 " tokens a token file can: use several files",
        w->file.path ? w->file.path : "?", TOKENS_MAX_COUNT);
  w->count += count;
  if (w->token_bytes == 4) return append_bytes(w, tokens, (size_t)count * 4, err);
  uint16_t *narrow = xmalloc((size_t)count * sizeof *narrow);
  int32_t bits = 0;
  for (int64_t i = 0; i < count; i++) {
    bits |= tokens[i];
    narrow[i] = (uint16_t)tokens[i];
  }
  assert((bits & ~0xffff) == 0);
  const int status = append_bytes(w, narrow, (size_t)count * sizeof *narrow, err);
  free(narrow);
  return status;
}

int token_writer_finish(TokenWriter *w, Error *err) {
  const int32_t magic = w->token_bytes == 2 ? MAGIC_UINT16 : MAGIC_UINT32;
  Header h = {.magic = magic, .version = version_of(magic), .count = (int32_t)w->count};
  if (w->hash) w->checksum = XXH3_64bits_digest(w->hash);
  if (w->tokenizer != 0) h.mark = TOKENS_MARK, h.tokenizer = w->tokenizer, h.checksum = w->checksum;
  const bool failed =
      writer_patch(&w->file, 0, &h, sizeof h, err) != 0 || writer_finish(&w->file, err) != 0;
  token_writer_abandon(w);
  return failed ? -1 : 0;
}

void token_writer_abandon(TokenWriter *w) {
  writer_abandon(&w->file);
  XXH3_freeState(w->hash);
  w->hash = NULL;
}
