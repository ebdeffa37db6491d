#include "data/documents.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct Header {
  uint32_t magic, version;
  uint64_t tokens, tokens_checksum, documents;
  uint32_t masked, zero;
  uint64_t checksum;
} Header;

_Static_assert(sizeof(Header) == DOCUMENTS_HEADER_BYTES, "the header has no padding");

static PathText documents_path(const char *token_file) {
  const int cut = name_ends_with(token_file, ".bin") ? 4 : 0;
  return path_text("%.*s" DOCUMENTS_ENDING, (int)strlen(token_file) - cut, token_file);
}

static size_t mask_size(uint64_t tokens) {
  return (size_t)((tokens + 7) / 8);
}

// ---- Writing

static void end_document(DocumentsWriter *w) {
  if (w->count == w->capacity) {
    w->capacity = w->capacity ? 2 * w->capacity : 1024;
    w->ends = xrealloc(w->ends, (size_t)w->capacity * sizeof *w->ends);
  }
  w->ends[w->count++] = (uint32_t)w->tokens;
}

// Makes room for the mask of so many tokens. Those that were never masked count.
static void grow_mask(DocumentsWriter *w, int64_t tokens) {
  const int64_t needed = (int64_t)mask_size((uint64_t)tokens), had = w->mask_bytes;
  if (needed <= had) return;
  w->mask_bytes = 2 * needed;
  w->mask = xrealloc(w->mask, (size_t)w->mask_bytes);
  memset(w->mask + had, 0xff, (size_t)(w->mask_bytes - had));
}

void documents_add(DocumentsWriter *w, int64_t tokens, const uint8_t *mask, bool last) {
  const int64_t first = w->tokens;
  assert(tokens <= TOKENS_MAX_COUNT - first);
  if (mask || w->mask) grow_mask(w, first + tokens);
  for (int64_t i = 0; mask && i < tokens; i++)
    if (!mask[i]) w->mask[(first + i) / 8] &= (uint8_t) ~(1u << (first + i) % 8);
  w->tokens += tokens;
  const int64_t ended = w->count > 0 ? w->ends[w->count - 1] : 0;
  if (last && w->tokens > ended) end_document(w);
}

// The bits behind the last token are 0.
static void close_mask(DocumentsWriter *w) {
  const int64_t rest = w->tokens % 8;
  if (w->mask && rest > 0) w->mask[w->tokens / 8] &= (uint8_t)((1u << rest) - 1);
}

static uint64_t checksum_of(const Header *h, const void *ends, const void *mask) {
  XXH3_state_t *hash = checksum_state();
  XXH3_64bits_update(hash, h, offsetof(Header, checksum));
  XXH3_64bits_update(hash, ends, (size_t)h->documents * sizeof(uint32_t));
  if (h->masked) XXH3_64bits_update(hash, mask, mask_size(h->tokens));
  const uint64_t checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return checksum;
}

int documents_write(DocumentsWriter *w, const char *path, const TokenWriter *tokens, Error *err) {
  assert(w->tokens == tokens->count);
  FileWriter file;
  documents_add(w, 0, NULL, true);
  close_mask(w);
  Header h = {.magic = DOCUMENTS_MAGIC,
              .version = DOCUMENTS_VERSION,
              .tokens = (uint64_t)w->tokens,
              .tokens_checksum = tokens->checksum,
              .documents = (uint64_t)w->count,
              .masked = w->mask != NULL};
  h.checksum = w->checksum = checksum_of(&h, w->ends, w->mask);
  if (writer_open(&file, documents_path(path).text, err) == 0 &&
      writer_append(&file, &h, sizeof h, err) == 0 &&
      writer_append(&file, w->ends, (size_t)w->count * sizeof *w->ends, err) == 0 &&
      (!w->mask || writer_append(&file, w->mask, mask_size(h.tokens), err) == 0) &&
      writer_finish(&file, err) == 0)
    return 0;
  writer_abandon(&file);
  return -1;
}

void documents_writer_free(DocumentsWriter *w) {
  free(w->ends);
  free(w->mask);
  *w = (DocumentsWriter){0};
}
