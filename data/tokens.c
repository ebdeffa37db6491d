#include "data/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files are little-endian and are read as they are");

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

// bytes: a header's, of a file of `size` bytes.
static int parse_header(TokenFile *file, const char *name, const void *bytes, size_t size,
                        Error *err) {
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
  *file = (TokenFile){.fd = -1,
                      .count = h.count,
                      .token_bytes = token_bytes,
                      .tokenizer = h.mark == TOKENS_MARK ? h.tokenizer : 0,
                      .checksum = h.mark == TOKENS_MARK ? h.checksum : 0};
  return 0;
}

static int check_length(const char *name, const void *bytes, size_t size, Error *err) {
  if (file_refuse_packed(name, bytes, size, err) != 0) return -1;
  if (size >= TOKENS_HEADER_BYTES) return 0;
  return error_set(err,
                   "'%s' is not a token file: it has %zu bytes, less than the header's %d; "
                   "./prepare makes token files",
                   name, size, TOKENS_HEADER_BYTES);
}

int tokens_parse(TokenFile *file, const char *name, const unsigned char *bytes, size_t size,
                 Error *err) {
  *file = (TokenFile){.fd = -1};
  if (check_length(name, bytes, size, err) != 0 || parse_header(file, name, bytes, size, err) != 0)
    return -1;
  file->memory = bytes + TOKENS_HEADER_BYTES;
  file->path = xstrdup(name);
  return 0;
}

// Reads the header of the open file.
static int read_header(TokenFile *file, int fd, const char *path, size_t size, Error *err) {
  char header[TOKENS_HEADER_BYTES];
  const size_t there = size < sizeof header ? size : sizeof header;
  if (file_read_at(fd, path, 0, header, there, err) != 0 ||
      check_length(path, header, there, err) != 0)
    return -1;
  return parse_header(file, path, header, size, err);
}

int tokens_open(TokenFile *file, const char *path, Error *err) {
  *file = (TokenFile){.fd = -1};
  size_t size;
  const int fd = file_open(path, &size, err);
  if (fd < 0) return -1;
  int status = read_header(file, fd, path, size, err);
  file->fd = fd;
  file->path = xstrdup(path);
  if (status == 0)
    status = documents_open(&file->documents, path, file->count, file->checksum, err);
  if (status != 0) tokens_close(file);
  return status;
}

void tokens_close(TokenFile *file) {
  if (file->path && file->fd >= 0) close(file->fd);
  free(file->path);
  documents_close(&file->documents);
  *file = (TokenFile){.fd = -1};
}

static bool names(const char *path, int fd) {
  struct stat named, opened;
  return stat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

bool tokens_named(const TokenFile *file) {
  const Documents *d = &file->documents;
  return names(file->path, file->fd) && (!d->path || names(d->path, d->fd));
}

// ---- Reading

static int read_bytes(const TokenFile *file, int64_t first, int64_t count, void *to, Error *err) {
  const size_t width = (size_t)file->token_bytes;
  const Blocks blocks = {.fd = file->fd,
                         .memory = file->memory,
                         .path = file->path,
                         .base = TOKENS_HEADER_BYTES,
                         .bytes = (size_t)file->count * width,
                         .block = BLOCK_TOKENS * width,
                         .sums = file->documents.token_sums};
  return blocks_read(&blocks, (size_t)first * width, (size_t)count * width, to, err);
}

// Tokens of two bytes, widened.
static int read_narrow(const TokenFile *file, int64_t first, int64_t count, int32_t *tokens,
                       Error *err) {
  enum { AT_ONCE = 8192 };
  uint16_t narrow[AT_ONCE];
  for (int64_t done = 0, n; done < count; done += n) {
    n = count - done < AT_ONCE ? count - done : AT_ONCE;
    if (read_bytes(file, first + done, n, narrow, err) != 0) return -1;
    for (int64_t i = 0; i < n; i++) tokens[done + i] = narrow[i];
  }
  return 0;
}

static uint32_t largest_of(const int32_t *tokens, int64_t count) {
  uint32_t largest = 0; // of uint32 tokens the upper half is negative as int32
  for (int64_t i = 0; i < count; i++)
    largest = (uint32_t)tokens[i] > largest ? (uint32_t)tokens[i] : largest;
  return largest;
}

int tokens_read(const TokenFile *file, int64_t first, int64_t count, int64_t vocab_size,
                int32_t *tokens, Error *err) {
  assert(first >= 0 && count >= 0 && first <= file->count - count);
  if ((file->token_bytes == 2 ? read_narrow(file, first, count, tokens, err)
                              : read_bytes(file, first, count, tokens, err)) != 0)
    return -1;
  const uint32_t largest = largest_of(tokens, count);
  if (vocab_size == 0 || count == 0 || (int64_t)largest < vocab_size) return 0;
  return error_set(err,
                   "'%s' has the token id %" PRIu32 " between tokens %" PRId64 " and %" PRId64
                   ", but the vocabulary has %" PRId64 " ids",
                   file->path, largest, first, first + count, vocab_size);
}

// ---- Checking

bool tokens_unchecked(const TokenFile *file) {
  return !file->documents.token_sums;
}

static uint32_t largest_narrow(const unsigned char *bytes, int64_t count) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < count; i++) {
    uint16_t id;
    memcpy(&id, bytes + 2 * i, sizeof id);
    largest = id > largest ? id : largest;
  }
  return largest;
}

// Reads the file once: each byte counts in the sums and in the facts.
static int make_sums(const TokenFile *file, BlockSums *sums, TokenFacts *facts, Error *err) {
  enum { AT_ONCE = 16 * BLOCK_TOKENS };
  const size_t width = (size_t)file->token_bytes;
  unsigned char *bytes = xmalloc(AT_ONCE * width);
  int status = 0;
  for (int64_t at = 0, n; at < file->count && status == 0; at += n) {
    n = file->count - at < AT_ONCE ? file->count - at : AT_ONCE;
    status = read_bytes(file, at, n, bytes, err);
    if (status != 0) break;
    block_sums_add(sums, bytes, (size_t)n * width);
    const uint32_t largest =
        width == 2 ? largest_narrow(bytes, n) : largest_of((const int32_t *)(const void *)bytes, n);
    if (largest > facts->largest) facts->largest = largest;
  }
  free(bytes);
  return status;
}

static int read_whole(TokenFile *file, TokenFacts *facts, Error *err) {
  BlockSums sums;
  block_sums_begin(&sums, BLOCK_TOKENS * (size_t)file->token_bytes);
  *facts = (TokenFacts){0};
  int status = make_sums(file, &sums, facts, err);
  block_sums_end(&sums);
  facts->checksum = sums.whole;
  if (status == 0 && file->tokenizer != 0 && sums.whole != file->checksum)
    status = error_set(err,
                       "'%s' is damaged: its tokens are not those that its checksum was made of; "
                       "make or copy it again",
                       file->path);
  if (status == 0)
    file->documents.token_sums = sums.sums;
  else
    block_sums_free(&sums);
  return status;
}

int tokens_check(TokenFile *file, TokenFacts *facts, Error *err) {
  const Documents *d = &file->documents;
  *facts = (TokenFacts){.largest = d->largest, .checksum = d->tokens_checksum};
  if (!d->token_sums && read_whole(file, facts, err) != 0) return -1;
  if (facts->largest < TOKENS_MOST_IDS) return 0;
  return error_set(err,
                   "'%s' has the token id %" PRIu32
                   ", which no tokenizer has: the file is damaged; make or copy it again",
                   file->path, facts->largest);
}

int tokens_fingerprint(const TokenFile *file, uint64_t *fingerprint, Error *err) {
  enum { SAMPLES = 3, SAMPLE_BYTES = 1 << 16 };
  const int64_t most = SAMPLE_BYTES / file->token_bytes;
  const int64_t count = file->count < most ? file->count : most;
  uint64_t facts[4 + SAMPLES] = {(uint64_t)file->count, (uint64_t)file->token_bytes,
                                 file->tokenizer, file->checksum};
  const size_t bytes = (size_t)count * (size_t)file->token_bytes;
  unsigned char *sample = xmalloc(bytes + 1);
  int status = 0;
  for (int i = 0; i < SAMPLES && file->tokenizer == 0 && status == 0; i++) {
    status = read_bytes(file, (file->count - count) / (SAMPLES - 1) * i, count, sample, err);
    if (status == 0) facts[4 + i] = XXH3_64bits(sample, bytes);
  }
  free(sample);
  *fingerprint = XXH3_64bits(facts, sizeof facts);
  return status;
}

// ---- Writing

int token_writer_open(TokenWriter *w, const char *path, int64_t vocab_size, uint64_t tokenizer,
                      Error *err) {
  assert(vocab_size > 0);
  *w = (TokenWriter){.token_bytes = vocab_size <= 65536 ? 2 : 4, .tokenizer = tokenizer};
  const char header[TOKENS_HEADER_BYTES] = {0};
  block_sums_begin(&w->sums, BLOCK_TOKENS * (size_t)w->token_bytes);
  if (writer_open(&w->file, path, err) == 0 &&
      writer_append(&w->file, header, sizeof header, err) == 0)
    return 0;
  token_writer_close(w);
  return -1;
}

static int append_bytes(TokenWriter *w, const void *tokens, size_t bytes, Error *err) {
  if (bytes == 0) return 0;
  block_sums_add(&w->sums, tokens, bytes);
  return writer_append(&w->file, tokens, bytes, err);
}

int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err) {
  if (count > TOKENS_MAX_COUNT - w->count)
    return error_set(
        err, "'%s' would hold more than the %" PRId32 " tokens a token file can: use several files",
        w->file.path ? w->file.path : "?", TOKENS_MAX_COUNT);
  w->count += count;
  const uint32_t largest = largest_of(tokens, count);
  if (largest > w->largest) w->largest = largest;
  if (w->token_bytes == 4) return append_bytes(w, tokens, (size_t)count * 4, err);
  assert(w->largest <= UINT16_MAX);
  uint16_t *narrow = xmalloc((size_t)count * sizeof *narrow);
  for (int64_t i = 0; i < count; i++) narrow[i] = (uint16_t)tokens[i];
  const int status = append_bytes(w, narrow, (size_t)count * sizeof *narrow, err);
  free(narrow);
  return status;
}

int token_writer_finish(TokenWriter *w, Error *err) {
  const int32_t magic = w->token_bytes == 2 ? MAGIC_UINT16 : MAGIC_UINT32;
  Header h = {.magic = magic, .version = version_of(magic), .count = (int32_t)w->count};
  block_sums_end(&w->sums);
  if (w->tokenizer != 0) {
    h.mark = TOKENS_MARK;
    h.tokenizer = w->tokenizer;
    h.checksum = w->sums.whole;
  }
  if (writer_patch(&w->file, 0, &h, sizeof h, err) != 0) return -1;
  return writer_finish(&w->file, err);
}

void token_writer_close(TokenWriter *w) {
  writer_abandon(&w->file);
  block_sums_free(&w->sums);
}
