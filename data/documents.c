#include "data/documents.h"

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

typedef struct Header {
  uint32_t magic, version;
  uint64_t tokens, tokens_checksum, documents;
  uint32_t masked, largest;
  uint64_t checksum;
} Header;

_Static_assert(sizeof(Header) == DOCUMENTS_HEADER_BYTES, "the header has no padding");

enum { DOCUMENTS_BLOCK = 8 << 10 };

static PathText documents_path(const char *token_file) {
  const int cut = name_ends_with(token_file, ".bin") ? 4 : 0;
  return path_text("%.*s" DOCUMENTS_ENDING, (int)strlen(token_file) - cut, token_file);
}

static size_t mask_size(uint64_t tokens) {
  return (size_t)((tokens + 7) / 8);
}

// ---- Reading

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

// Bytes behind the header. They are compared with the checksums of the blocks once those are there.
static int read_at(const Documents *d, size_t offset, void *to, size_t bytes, Error *err) {
  const Blocks blocks = {.fd = d->fd,
                         .memory = d->memory ? d->memory + sizeof(Header) : NULL,
                         .path = d->path,
                         .base = sizeof(Header),
                         .bytes = d->size - sizeof(Header),
                         .block = DOCUMENTS_BLOCK,
                         .sums = d->sums.sums};
  return blocks_read(&blocks, offset, bytes, to, err);
}

static int check_header(const Documents *d, const Header *h, Error *err) {
  if (h->magic != DOCUMENTS_MAGIC)
    return error_set(err,
                     "'%s' does not hold the ends of documents: its first number is %" PRIu32
                     ", not %d; remove it, and the file beside it counts as one document",
                     d->path, h->magic, DOCUMENTS_MAGIC);
  if (h->version < 1 || h->version > DOCUMENTS_VERSION)
    return error_set(err, "'%s' has the version %" PRIu32 ", but only 1 to %d are known", d->path,
                     h->version, DOCUMENTS_VERSION);
  if (h->tokens > INT32_MAX || h->documents > h->tokens || h->masked > 1 ||
      (h->documents == 0 && h->tokens > 0))
    return error_set(err,
                     "'%s' has a damaged header: %" PRIu64 " documents in %" PRIu64
                     " tokens; make or copy it again",
                     d->path, h->documents, h->tokens);
  const uint64_t expected = sizeof *h + layout_of(h).end;
  if (d->size == expected) return 0;
  return error_set(err,
                   "'%s' is %s: its header promises %" PRIu64
                   " bytes, but it has %zu; make or copy it again",
                   d->path, d->size < expected ? "cut short" : "too long", expected, d->size);
}

// The state of a pass over the whole file.
typedef struct Pass {
  BlockSums sums;           // of the file
  XXH3_state_t *content;    // of header, ends and mask, as version 1 has them
  unsigned char *of_tokens; // [blocks of tokens] to be filled
  uint32_t last;            // end
  int64_t document;         // that is not ascending or ends beyond the tokens; -1: none
  uint32_t end;             // of that one
} Pass;

static void check_ends(Pass *pass, int64_t first, const uint32_t *ends, int64_t count,
                       uint64_t tokens) {
  for (int64_t i = 0; i < count && pass->document < 0; i++) {
    if (ends[i] <= pass->last || ends[i] > tokens) {
      pass->document = first + i;
      pass->end = ends[i];
    } else {
      pass->last = ends[i];
    }
  }
}

// The hash of a header of version 1 but for its own checksum. Both versions of a file have it, so
// that a run resumes on either.
static void begin_content(XXH3_state_t *hash, const Header *h) {
  Header first = *h;
  first.version = 1;
  first.largest = 0;
  XXH3_64bits_update(hash, &first, offsetof(Header, checksum));
}

static void take_piece(Pass *pass, const Header *h, const Layout *l, size_t at, const void *piece,
                       size_t bytes) {
  block_sums_add(&pass->sums, piece, bytes);
  if (at < l->blocks) XXH3_64bits_update(pass->content, piece, bytes);
  if (at < l->mask)
    check_ends(pass, (int64_t)(at / sizeof(uint32_t)), piece, (int64_t)(bytes / sizeof(uint32_t)),
               h->tokens);
  else if (at >= l->blocks)
    memcpy(pass->of_tokens + (at - l->blocks), piece, bytes);
}

static int read_content(const Documents *d, const Header *h, Pass *pass, Error *err) {
  enum { PIECE = 1 << 12 };
  uint32_t piece[PIECE];
  const Layout l = layout_of(h);
  block_sums_begin(&pass->sums, DOCUMENTS_BLOCK);
  block_sums_head(&pass->sums, h, offsetof(Header, checksum));
  begin_content(pass->content, h);
  for (size_t at = 0, bytes; at < l.end; at += bytes) {
    const size_t end = at < l.mask ? l.mask : at < l.blocks ? l.blocks : l.end;
    bytes = end - at < sizeof piece ? end - at : sizeof piece;
    if (read_at(d, at, piece, bytes, err) != 0) return -1;
    take_piece(pass, h, &l, at, piece, bytes);
  }
  block_sums_end(&pass->sums);
  return 0;
}

// A wrong end may only be damage, so the checksum comes first.
static int judge_content(const Documents *d, const Header *h, const Pass *pass, Error *err) {
  if (pass->sums.whole != h->checksum)
    return error_set(err,
                     "'%s' is damaged: its bytes are not those that its checksum was made of; "
                     "make or copy it again",
                     d->path);
  if (pass->document < 0 && pass->last == h->tokens) return 0;
  const bool order = pass->document >= 0 && pass->end <= h->tokens;
  return error_set(err,
                   "'%s' says that document %" PRId64 " of %" PRIu64 " ends at token %" PRIu32
                   " of %" PRIu64 ", %s; make it again",
                   d->path, pass->document < 0 ? (int64_t)h->documents : pass->document + 1,
                   h->documents, pass->document < 0 ? pass->last : pass->end, h->tokens,
                   order                ? "not behind the end of the one before"
                   : pass->document < 0 ? "before the last"
                                        : "beyond the last");
}

static int read_header(const Documents *d, Header *h, Error *err) {
  if (d->size < sizeof *h)
    return error_set(err,
                     "'%s' does not hold the ends of documents: it has %zu bytes, less than the "
                     "header's %zu; make or copy it again",
                     d->path, d->size, sizeof *h);
  if (d->fd >= 0 && file_read_at(d->fd, d->path, 0, h, sizeof *h, err) != 0) return -1;
  if (d->fd < 0) memcpy(h, d->memory, sizeof *h);
  return check_header(d, h, err);
}

static int read_all(Documents *d, Error *err) {
  Header h;
  if (read_header(d, &h, err) != 0) return -1;
  const Layout l = layout_of(&h);
  Pass pass = {.content = checksum_state(), .document = -1};
  if (h.version > 1) d->token_sums = xmalloc(l.end - l.blocks + 1);
  pass.of_tokens = (unsigned char *)d->token_sums;
  int status = read_content(d, &h, &pass, err);
  if (status == 0) status = judge_content(d, &h, &pass, err);
  d->sums = pass.sums;
  d->content = XXH3_64bits_digest(pass.content);
  XXH3_freeState(pass.content);
  if (status != 0) return -1;
  d->count = (int64_t)h.documents;
  d->tokens = (int64_t)h.tokens;
  d->tokens_checksum = h.tokens_checksum;
  d->masked = h.masked;
  d->checksum = h.checksum;
  d->largest = h.largest;
  return 0;
}

static int read_for(Documents *d, int64_t tokens, uint64_t checksum, Error *err) {
  int status = read_all(d, err);
  if (status == 0 && (d->tokens != tokens || (checksum != 0 && d->tokens_checksum != checksum)))
    status = error_set(err,
                       "'%s' belongs to other tokens than those in the file beside it: copy both "
                       "files of one dataset, or make it again",
                       d->path);
  if (status != 0) documents_close(d);
  return status;
}

int documents_parse(Documents *d, const char *name, const unsigned char *bytes, size_t size,
                    int64_t tokens, uint64_t tokens_checksum, Error *err) {
  *d = (Documents){.fd = -1, .memory = bytes, .size = size, .path = xstrdup(name)};
  return read_for(d, tokens, tokens_checksum, err);
}

int documents_open(Documents *d, const char *token_path, int64_t tokens, uint64_t tokens_checksum,
                   Error *err) {
  const PathText path = documents_path(token_path);
  *d = (Documents){.fd = -1};
  if (!path_exists(path.text)) return 0;
  const int fd = file_open(path.text, &d->size, err);
  if (fd < 0) return -1;
  d->fd = fd;
  d->path = xstrdup(path.text);
  return read_for(d, tokens, tokens_checksum, err);
}

void documents_close(Documents *d) {
  if (d->path && d->fd >= 0) close(d->fd);
  free(d->path);
  free(d->token_sums);
  block_sums_free(&d->sums);
  *d = (Documents){.fd = -1};
}

int documents_ends(const Documents *d, int64_t first, int64_t count, uint32_t *ends, Error *err) {
  assert(first >= 0 && count >= 0 && first <= d->count - count);
  return read_at(d, (size_t)first * sizeof *ends, ends, (size_t)count * sizeof *ends, err);
}

int documents_mask(const Documents *d, int64_t first, int64_t count, bool *mask, Error *err) {
  enum { PIECE = 1 << 12 };
  uint8_t bits[PIECE];
  const size_t at = (size_t)d->count * sizeof(uint32_t);
  assert(first >= 0 && count >= 0 && first <= d->tokens - count);
  for (int64_t i = 0; i < count && !d->masked; i++) mask[i] = true;
  for (int64_t done = 0, n; d->masked && done < count; done += n) {
    const int64_t token = first + done, skip = token % 8;
    n = count - done < 8 * PIECE - skip ? count - done : 8 * PIECE - skip;
    if (read_at(d, at + (size_t)(token / 8), bits, mask_size((uint64_t)(skip + n)), err) != 0)
      return -1;
    for (int64_t i = 0; i < n; i++) mask[done + i] = bits[(skip + i) / 8] >> (skip + i) % 8 & 1;
  }
  return 0;
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

static uint64_t checksum_of(const Header *h, const DocumentsWriter *w, const BlockSums *tokens) {
  const Layout l = layout_of(h);
  XXH3_state_t *hash = checksum_state();
  XXH3_64bits_update(hash, h, offsetof(Header, checksum));
  XXH3_64bits_update(hash, w->ends, l.mask);
  XXH3_64bits_update(hash, w->mask, l.blocks - l.mask);
  XXH3_64bits_update(hash, tokens->sums, l.end - l.blocks);
  const uint64_t checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return checksum;
}

static int append(FileWriter *file, const void *data, size_t bytes, Error *err) {
  return bytes > 0 ? writer_append(file, data, bytes, err) : 0;
}

int documents_write(DocumentsWriter *w, const char *token_path, const BlockSums *tokens,
                    uint32_t largest, Error *err) {
  FileWriter file;
  assert(tokens->count == token_blocks(w->tokens));
  documents_add(w, 0, NULL, true);
  close_mask(w);
  Header h = {.magic = DOCUMENTS_MAGIC,
              .version = DOCUMENTS_VERSION,
              .tokens = (uint64_t)w->tokens,
              .tokens_checksum = tokens->whole,
              .documents = (uint64_t)w->count,
              .masked = w->mask != NULL,
              .largest = largest};
  const Layout l = layout_of(&h);
  h.checksum = checksum_of(&h, w, tokens);
  if (writer_open(&file, documents_path(token_path).text, err) == 0 &&
      append(&file, &h, sizeof h, err) == 0 && append(&file, w->ends, l.mask, err) == 0 &&
      append(&file, w->mask, l.blocks - l.mask, err) == 0 &&
      append(&file, tokens->sums, l.end - l.blocks, err) == 0 && writer_finish(&file, err) == 0)
    return 0;
  writer_abandon(&file);
  return -1;
}

void documents_writer_free(DocumentsWriter *w) {
  free(w->ends);
  free(w->mask);
  *w = (DocumentsWriter){0};
}
