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
#include "base/minmax.h"

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
  if ((h->magic != MAGIC_UINT16 && h->magic != MAGIC_UINT32) || h->version != version_of(h->magic))
    return error_set(err,
                     "'%s' is not a token file: it begins with %" PRId32 ", %" PRId32
                     ", not %d, 1 (uint16 tokens) or %d, 7 (uint32); ./prepare makes token files",
                     name, h->magic, h->version, MAGIC_UINT16, MAGIC_UINT32);
  if (h->count >= 0) return 0;
  return error_set(err, "'%s' has a damaged header: its number of tokens is %" PRId32, name,
                   h->count);
}

// Reads the header of the open file, whose size in bytes is `size`.
static int read_header(TokenFile *file, size_t size, Error *err) {
  union {
    Header fields;
    char bytes[TOKENS_HEADER_BYTES];
  } h = {.bytes = ""};
  const size_t there = size < sizeof h ? size : sizeof h;
  if (file_read_at(file->fd, file->path, 0, &h, there, err) != 0 ||
      file_refuse_packed(file->path, &h, there, err) != 0)
    return -1;
  if (size < sizeof h)
    return error_set(err,
                     "'%s' is not a token file: it has %zu bytes, less than the header's %zu; "
                     "./prepare makes token files",
                     file->path, size, sizeof h);
  if (check_header(file->path, &h.fields, err) != 0) return -1;
  const bool marked = h.fields.mark == TOKENS_MARK;
  file->count = h.fields.count;
  file->token_bytes = h.fields.magic == MAGIC_UINT16 ? 2 : 4;
  file->tokenizer = marked ? h.fields.tokenizer : 0;
  file->checksum = marked ? h.fields.checksum : 0;
  return file_refuse_size(file->path, size,
                          sizeof h + (size_t)file->count * (size_t)file->token_bytes, err);
}

int tokens_open(TokenFile *file, const char *path, Error *err) {
  size_t size;
  *file = (TokenFile){.fd = file_open(path, &size, err)};
  if (file->fd < 0) return -1;
  file->path = xstrdup(path);
  if (read_header(file, size, err) == 0 &&
      documents_open(&file->documents, path, file->count, file->checksum, err) == 0)
    return 0;
  tokens_close(file);
  return -1;
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

static int read_bytes(const TokenFile *file, int64_t first, size_t bytes, void *to, Error *err) {
  const size_t at = (size_t)first * (size_t)file->token_bytes;
  if (file->fd >= 0)
    return file_read_at(file->fd, file->path, TOKENS_HEADER_BYTES + at, to, bytes, err);
  memcpy(to, file->memory + first, bytes);
  return 0;
}

// The tokens of block i; -1 on error.
static int64_t read_block(const TokenFile *file, int64_t i, TokenBlock *block, Error *err) {
  const uint64_t *sums = file->documents.facts.sums;
  const int64_t first = i * BLOCK_TOKENS, count = min_i64(file->count - first, BLOCK_TOKENS);
  const size_t width = (size_t)file->token_bytes, bytes = (size_t)count * width;
  if (read_bytes(file, first, bytes, block, err) != 0) return -1;
  if (!sums || XXH3_64bits(block, bytes) == sums[i]) return count;
  const size_t begin = TOKENS_HEADER_BYTES + (size_t)first * width;
  return error_set(err,
                   "'%s' was changed while it was in use, or is damaged: bytes %zu to %zu do not "
                   "match their checksum; restore the file, or make it again",
                   file->path, begin, begin + bytes);
}

static void widen(const TokenFile *file, const TokenBlock *block, int64_t first, int64_t count,
                  int32_t *tokens) {
  if (file->token_bytes == 4) memcpy(tokens, block->wide + first, (size_t)count * sizeof *tokens);
  for (int64_t i = 0; i < count && file->token_bytes == 2; i++)
    tokens[i] = block->narrow[first + i];
}

// The largest of these ids and of `largest`.
static uint32_t largest_of(const int32_t *tokens, int64_t count, uint32_t largest) {
  // Of uint32 tokens the upper half is negative as int32.
  for (int64_t i = 0; i < count; i++)
    largest = (uint32_t)tokens[i] > largest ? (uint32_t)tokens[i] : largest;
  return largest;
}

int tokens_read(const TokenFile *file, int64_t first, int64_t count, int64_t vocab_size,
                int32_t *tokens, Error *err) {
  assert(first >= 0 && count >= 0 && first <= file->count - count);
  TokenBlock block;
  for (int64_t done = 0, n; done < count; done += n) {
    const int64_t at = first + done, skip = at % BLOCK_TOKENS,
                  held = read_block(file, at / BLOCK_TOKENS, &block, err);
    if (held < 0) return -1;
    n = min_i64(held - skip, count - done);
    widen(file, &block, skip, n, tokens + done);
  }
  const uint32_t largest = largest_of(tokens, count, 0);
  if (vocab_size == 0 || count == 0 || (int64_t)largest < vocab_size) return 0;
  return error_set(err,
                   "'%s' has the token id %" PRIu32 " between tokens %" PRId64 " and %" PRId64
                   ", but the vocabulary has %" PRId64 " ids",
                   file->path, largest, first, first + count, vocab_size);
}

// ---- Checking

// Makes the facts of all tokens.
static int read_whole(TokenFile *file, Error *err) {
  int32_t tokens[BLOCK_TOKENS];
  TokenBlock block;
  const int64_t blocks = token_blocks(file->count);
  TokenFacts facts = {.sums = xmalloc((size_t)blocks * sizeof *facts.sums)};
  XXH3_state_t *hash = checksum_state();
  int64_t held = 0;
  for (int64_t i = 0; i < blocks && held >= 0; i++) {
    held = read_block(file, i, &block, err);
    if (held < 0) break;
    widen(file, &block, 0, held, tokens);
    facts.largest = largest_of(tokens, held, facts.largest);
    facts.sums[i] = XXH3_64bits(&block, (size_t)held * (size_t)file->token_bytes);
    XXH3_64bits_update(hash, &block, (size_t)held * (size_t)file->token_bytes);
  }
  facts.checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  file->documents.facts = facts;
  if (held < 0) return -1;
  return file->tokenizer == 0 || facts.checksum == file->checksum ? 0
                                                                  : file_damaged(file->path, err);
}

int tokens_check(TokenFile *file, Error *err) {
  TokenFacts *facts = &file->documents.facts;
  if (!facts->sums && read_whole(file, err) != 0) {
    free(facts->sums);
    facts->sums = NULL;
    return -1;
  }
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
    status = read_bytes(file, (file->count - count) / (SAMPLES - 1) * i, bytes, sample, err);
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
  *w = (TokenWriter){
      .token_bytes = vocab_size <= 65536 ? 2 : 4, .tokenizer = tokenizer, .hash = checksum_state()};
  const char header[TOKENS_HEADER_BYTES] = {0};
  if (writer_open(&w->file, path, err) == 0 &&
      writer_append(&w->file, header, sizeof header, err) == 0)
    return 0;
  token_writer_close(w);
  return -1;
}

static int end_block(TokenWriter *w, int64_t tokens, Error *err) {
  const size_t bytes = (size_t)tokens * (size_t)w->token_bytes;
  LIST_ROOM(w->facts.sums, w->blocks, w->capacity);
  w->facts.sums[w->blocks++] = XXH3_64bits(&w->block, bytes);
  XXH3_64bits_update(w->hash, &w->block, bytes);
  return writer_append(&w->file, &w->block, bytes, err);
}

int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err) {
  if (count > TOKENS_MAX_COUNT - w->count)
    return error_set(
        err, "'%s' would hold more than the %" PRId32 " tokens a token file can: use several files",
        w->file.path ? w->file.path : "?", TOKENS_MAX_COUNT);
  w->facts.largest = largest_of(tokens, count, w->facts.largest);
  assert(w->token_bytes == 4 || w->facts.largest <= UINT16_MAX);
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = w->count++ % BLOCK_TOKENS;
    if (w->token_bytes == 4)
      w->block.wide[at] = tokens[i];
    else
      w->block.narrow[at] = (uint16_t)tokens[i];
    if (at == BLOCK_TOKENS - 1 && end_block(w, BLOCK_TOKENS, err) != 0) return -1;
  }
  return 0;
}

int token_writer_finish(TokenWriter *w, Error *err) {
  const int32_t magic = w->token_bytes == 2 ? MAGIC_UINT16 : MAGIC_UINT32;
  const int64_t rest = w->count % BLOCK_TOKENS;
  Header h = {.magic = magic, .version = version_of(magic), .count = (int32_t)w->count};
  if (rest > 0 && end_block(w, rest, err) != 0) return -1;
  w->facts.checksum = XXH3_64bits_digest(w->hash);
  if (w->tokenizer != 0) {
    h.mark = TOKENS_MARK;
    h.tokenizer = w->tokenizer;
    h.checksum = w->facts.checksum;
  }
  if (writer_patch(&w->file, 0, &h, sizeof h, err) != 0) return -1;
  return writer_finish(&w->file, err);
}

void token_writer_close(TokenWriter *w) {
  writer_abandon(&w->file);
  XXH3_freeState(w->hash);
  free(w->facts.sums);
  w->hash = w->facts.sums = NULL;
}
