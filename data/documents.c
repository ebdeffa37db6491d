#include "data/documents.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct Header {
  uint32_t magic, version;
  uint64_t tokens, tokens_checksum, documents;
  uint32_t masked, largest;
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

// Sections of the file, as a header says. Offsets are from its end.
typedef struct Layout {
  size_t mask, blocks, end; // where they begin, and where the file ends
} Layout;

static Layout layout_of(const Header *h) {
  Layout l = {.mask = (size_t)h->documents * sizeof(uint32_t)};
  l.blocks = l.mask + (h->masked ? mask_size(h->tokens) : 0);
  l.end = l.blocks;
  if (h->version > 1) l.end += (size_t)token_blocks((int64_t)h->tokens) * sizeof(uint64_t);
  return l;
}

typedef struct Part {
  const void *data;
  size_t bytes;
} Part;

// Of the header but for its own checksum, and of what comes behind it.
static uint64_t checksum_of(const Header *h, const Part *parts, int count) {
  XXH3_state_t *hash = checksum_state();
  XXH3_64bits_update(hash, h, offsetof(Header, checksum));
  for (int i = 0; i < count; i++) XXH3_64bits_update(hash, parts[i].data, parts[i].bytes);
  const uint64_t checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return checksum;
}

// ---- Reading

static int check_header(const char *path, const Header *h, size_t size, Error *err) {
  if (h->magic != DOCUMENTS_MAGIC || h->version < 1 || h->version > DOCUMENTS_VERSION)
    return error_set(err,
                     "'%s' does not hold the ends of documents: it begins with %" PRIu32
                     ", %" PRIu32
                     ", not %d, 1 or 2; remove it, and the file beside it counts as one document",
                     path, h->magic, h->version, DOCUMENTS_MAGIC);
  if (h->tokens > INT32_MAX || h->documents > h->tokens || h->masked > 1 ||
      (h->documents == 0 && h->tokens > 0))
    return error_set(err,
                     "'%s' has a damaged header: %" PRIu64 " documents in %" PRIu64
                     " tokens; make or copy it again",
                     path, h->documents, h->tokens);
  return file_refuse_size(path, size, sizeof *h + layout_of(h).end, err);
}

static int check_ends(const char *path, const Header *h, const uint32_t *ends, Error *err) {
  uint32_t last = 0;
  for (uint64_t i = 0; i < h->documents; last = ends[i++]) {
    const char *where = ends[i] <= last       ? "not behind the end of the one before"
                        : ends[i] > h->tokens ? "beyond the last"
                        : i + 1 == h->documents && ends[i] < h->tokens ? "before the last"
                                                                       : NULL;
    if (where)
      return error_set(err,
                       "'%s' says that document %" PRIu64 " of %" PRIu64 " ends at token %" PRIu32
                       " of %" PRIu64 ", %s; make it again",
                       path, i + 1, h->documents, ends[i], h->tokens, where);
  }
  return 0;
}

// Reads and accepts the open file of `size` bytes. A wrong end may only be damage, so the checksum
// comes first.
static int read_all(Documents *d, size_t size, int64_t tokens, uint64_t checksum, Error *err) {
  Header h;
  if (size < sizeof h)
    return error_set(err,
                     "'%s' does not hold the ends of documents: it has %zu bytes, less than the "
                     "header's %zu; make or copy it again",
                     d->path, size, sizeof h);
  if (file_read_at(d->fd, d->path, 0, &h, sizeof h, err) != 0 ||
      check_header(d->path, &h, size, err) != 0)
    return -1;
  const Layout l = layout_of(&h);
  const char *rest = d->bytes = xmalloc(l.end);
  if (file_read_at(d->fd, d->path, sizeof h, d->bytes, l.end, err) != 0) return -1;
  if (checksum_of(&h, &(Part){rest, l.end}, 1) != h.checksum) return file_damaged(d->path, err);
  d->ends = (const uint32_t *)(const void *)rest;
  if (check_ends(d->path, &h, d->ends, err) != 0) return -1;
  if ((int64_t)h.tokens != tokens || (checksum != 0 && h.tokens_checksum != checksum))
    return error_set(err,
                     "'%s' belongs to other tokens than those in the file beside it: copy both "
                     "files of one dataset, or make it again",
                     d->path);
  d->count = (int64_t)h.documents;
  if (h.masked) d->mask = (const uint8_t *)rest + l.mask;
  d->facts = (TokenFacts){.checksum = h.tokens_checksum, .largest = h.largest};
  if (h.version > 1) {
    d->facts.sums = xmalloc(l.end - l.blocks);
    memcpy(d->facts.sums, rest + l.blocks, l.end - l.blocks);
  }
  // A header of version 1, so that a run resumes on either.
  h.version = 1;
  h.largest = 0;
  d->content = checksum_of(&h, &(Part){rest, l.blocks}, 1);
  return 0;
}

int documents_open(Documents *d, const char *token_path, int64_t tokens, uint64_t checksum,
                   Error *err) {
  const PathText path = documents_path(token_path);
  size_t size;
  *d = (Documents){0};
  if (!path_exists(path.text)) return 0;
  d->fd = file_open(path.text, &size, err);
  if (d->fd < 0) return -1;
  d->path = xstrdup(path.text);
  const int status = read_all(d, size, tokens, checksum, err);
  if (status != 0) documents_close(d);
  return status;
}

void documents_close(Documents *d) {
  if (d->path) close(d->fd);
  free(d->path);
  free(d->bytes);
  free(d->facts.sums);
  *d = (Documents){0};
}

// ---- Writing

static void end_document(DocumentsWriter *w) {
  LIST_ROOM(w->ends, w->count, w->capacity);
  w->ends[w->count++] = (uint32_t)w->tokens;
}

// Makes room for the mask of `tokens` tokens. Tokens that were never masked count.
static void grow_mask(DocumentsWriter *w, int64_t tokens) {
  const int64_t needed = (int64_t)mask_size((uint64_t)tokens), had = w->mask_bytes;
  if (needed <= had) return;
  w->mask_bytes = 2 * needed;
  w->mask = xrealloc(w->mask, (size_t)w->mask_bytes);
  memset(w->mask + had, 0xff, (size_t)(w->mask_bytes - had));
}

void documents_add(DocumentsWriter *w, int64_t tokens, const uint8_t *mask, bool last) {
  const int64_t first = w->tokens;
  assert(tokens <= INT32_MAX - first);
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

int documents_write(DocumentsWriter *w, const char *token_path, const TokenFacts *facts,
                    Error *err) {
  documents_add(w, 0, NULL, true);
  close_mask(w);
  Header h = {.magic = DOCUMENTS_MAGIC,
              .version = DOCUMENTS_VERSION,
              .tokens = (uint64_t)w->tokens,
              .tokens_checksum = facts->checksum,
              .documents = (uint64_t)w->count,
              .masked = w->mask != NULL,
              .largest = facts->largest};
  const Layout l = layout_of(&h);
  const Part parts[] = {
      {w->ends, l.mask}, {w->mask, l.blocks - l.mask}, {facts->sums, l.end - l.blocks}};
  h.checksum = checksum_of(&h, parts, 3);
  FileWriter file;
  int status = writer_open(&file, documents_path(token_path).text, err);
  if (status == 0) status = writer_append(&file, &h, sizeof h, err);
  for (int i = 0; i < 3 && status == 0; i++)
    if (parts[i].bytes > 0) status = writer_append(&file, parts[i].data, parts[i].bytes, err);
  return status == 0 ? writer_finish(&file, err) : -1;
}

void documents_writer_free(DocumentsWriter *w) {
  free(w->ends);
  free(w->mask);
  *w = (DocumentsWriter){0};
}
