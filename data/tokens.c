#include "data/tokens.h"

#include <assert.h>
#include <errno.h>
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

// ---- Reading

static int read_bytes(const TokenFile *file, int64_t first, size_t bytes, void *to, Error *err) {
  const size_t at = (size_t)(first - file->memory_first) * (size_t)file->token_bytes;
  if (file->fd >= 0)
    return file_read_at(file->fd, file->path, TOKENS_HEADER_BYTES + at, to, bytes, err);
  if (bytes > 0) memcpy(to, file->memory + at, bytes);
  return 0;
}

// Tokens of two bytes, widened.
static int read_narrow(const TokenFile *file, int64_t first, int64_t count, int32_t *tokens,
                       Error *err) {
  enum { AT_ONCE = 8192 };
  uint16_t narrow[AT_ONCE];
  for (int64_t done = 0, n; done < count; done += n) {
    n = count - done < AT_ONCE ? count - done : AT_ONCE;
    if (read_bytes(file, first + done, (size_t)n * 2, narrow, err) != 0) return -1;
    for (int64_t i = 0; i < n; i++) tokens[done + i] = narrow[i];
  }
  return 0;
}

// The first of these ids that is not below vocab_size stands at `first` or behind it.
static int refuse_id(const TokenFile *file, int64_t first, const int32_t *tokens,
                     int64_t vocab_size, Error *err) {
  while ((int64_t)(uint32_t)*tokens < vocab_size) tokens++, first++;
  const uint32_t id = (uint32_t)*tokens; // of uint32 tokens the upper half is negative
  error_set(err, "'%s' has the token id %" PRIu32 " at position %" PRId64, file->path, id, first);
  if (id >= TOKENS_MOST_IDS)
    return error_append(err,
                        ", which no tokenizer has: the file is damaged; make or copy it again");
  return error_append(err,
                      ", but the model knows only 0 to %" PRId64
                      ": set model.vocab_size to at least %" PRIu32
                      " or use token files made with the model's tokenizer",
                      vocab_size - 1, id + 1);
}

int tokens_read(const TokenFile *file, int64_t first, int64_t count, int64_t vocab_size,
                int32_t *tokens, Error *err) {
  assert(first >= 0 && count >= 0 && first <= file->count - count);
  if ((file->token_bytes == 2 ? read_narrow(file, first, count, tokens, err)
                              : read_bytes(file, first, (size_t)count * 4, tokens, err)) != 0)
    return -1;
  uint32_t max = 0;
  for (int64_t i = 0; i < count; i++) max = (uint32_t)tokens[i] > max ? (uint32_t)tokens[i] : max;
  if (vocab_size == 0 || count == 0 || (int64_t)max < vocab_size) return 0;
  return refuse_id(file, first, tokens, vocab_size, err);
}

// ---- Checking

enum { PIECE_BYTES = 1 << 18 };

// In a file with a checksum a wrong id may be damage: its last token tells.
static int check_piece(const TokenFile *file, int64_t vocab_size, TokenCheck *check, Error *err) {
  const int64_t left = file->count - check->next, most = PIECE_BYTES / file->token_bytes;
  const int64_t count = left < most ? left : most;
  const size_t bytes = (size_t)(count * file->token_bytes);
  if (!check->hash) check->hash = checksum_state();
  if (check->next == 0) XXH3_64bits_reset(check->hash);
  if (!check->piece) check->piece = xmalloc(PIECE_BYTES);
  if (!check->ids) check->ids = xmalloc(PIECE_BYTES / 2 * sizeof *check->ids);
  if (read_bytes(file, check->next, bytes, check->piece, err) != 0) return -1;
  XXH3_64bits_update(check->hash, check->piece, bytes);
  TokenFile piece = *file;
  piece.fd = -1;
  piece.memory = check->piece;
  piece.memory_first = check->next;
  if (!check->id_found && tokens_read(&piece, check->next, count, vocab_size, check->ids, err)) {
    check->id_found = true;
    check->id_error = *err;
    if (file->tokenizer == 0) return -1;
  }
  check->next += count;
  return 0;
}

int tokens_check(const TokenFile *file, int64_t vocab_size, TokenCheck *check, Error *err) {
  int status = check_piece(file, vocab_size, check, err);
  if (status == 0 && check->next < file->count) return 1;
  if (status == 0) {
    check->checksum = XXH3_64bits_digest(check->hash);
    status = check->id_found ? -1 : 0;
    if (check->id_found) *err = check->id_error;
    if (file->tokenizer != 0 && check->checksum != file->checksum)
      status = error_set(err,
                         "'%s' is damaged: its tokens are not those that its checksum was made of; "
                         "make or copy it again",
                         file->path);
  }
  check->next = 0;
  check->id_found = false;
  return status;
}

void token_check_end(TokenCheck *check) {
  XXH3_freeState(check->hash);
  free(check->piece);
  free(check->ids);
  *check = (TokenCheck){0};
}

// ---- Changes while the file is in use

int tokens_check_header(const TokenFile *file, Error *err) {
  TokenFile now;
  struct stat st;
  if (file->fd < 0) return 0;
  if (fstat(file->fd, &st) != 0)
    return error_set(err, "cannot read '%s': %s", file->path, strerror(errno));
  if (read_header(&now, file->fd, file->path, (size_t)st.st_size, err) == 0 &&
      now.count == file->count && now.token_bytes == file->token_bytes &&
      now.tokenizer == file->tokenizer && now.checksum == file->checksum)
    return 0;
  return error_set(err,
                   "'%s' was changed while it was in use: its size or its header differs; make "
                   "or copy it again",
                   file->path);
}

bool tokens_replaced(const TokenFile *file) {
  const Documents *d = &file->documents;
  return (file->fd >= 0 && file_replaced(file->fd, file->path)) ||
         (d->path && d->fd >= 0 && file_replaced(d->fd, d->path));
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
  *w = (TokenWriter){.token_bytes = vocab_size <= 65536 ? 2 : 4, .tokenizer = tokenizer};
  if (writer_open(&w->file, path, err) != 0) return -1;
  w->hash = checksum_state();
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
