#define _GNU_SOURCE // memmem
#include "data/corpus/corpus.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/os.h"
#include "data/corpus/files.h"
#include "data/corpus/cut.h"
#include "data/corpus/jsonl.h"

enum { BLOCK_BYTES = 1 << 20, LINE_MAX_BYTES = 1 << 30 };

void corpus_open(CorpusReader *r, const Corpus *corpus) {
  *r = (CorpusReader){
      .corpus = corpus, .buffer = xmalloc(2 * BLOCK_BYTES), .capacity = 2 * BLOCK_BYTES};
}

void corpus_close(CorpusReader *r) {
  stream_close(r->stream);
  free(r->buffer);
  *r = (CorpusReader){0};
}

uint64_t corpus_position(const CorpusReader *r) {
  return r->bytes_read + (r->stream ? stream_position(r->stream) : 0);
}

static const char *open_name(const CorpusReader *r) {
  const char *path = r->corpus->files[r->next_file - 1].path;
  return file_is_stdin(path) ? "standard input" : path;
}

// Reads a block behind what waits.
static int fill(CorpusReader *r, Error *err) {
  memmove(r->buffer, r->buffer + r->start, r->end - r->start);
  r->end -= r->start;
  r->start = 0;
  if (r->capacity - r->end < BLOCK_BYTES) r->buffer = xrealloc(r->buffer, r->capacity *= 2);
  const ssize_t n = stream_read(r->stream, r->buffer + r->end, BLOCK_BYTES, err);
  if (n < 0) return -1;
  r->ended = n == 0;
  r->end += (size_t)n;
  return 0;
}

// Nobody has looked yet at what standard input is.
static int check_stdin(CorpusReader *r, Error *err) {
  while (r->end < FILE_PROBE_BYTES && !r->ended)
    if (fill(r, err) != 0) return -1;
  const size_t seen = r->end < FILE_PROBE_BYTES ? r->end : FILE_PROBE_BYTES;
  return file_kind(open_name(r), r->buffer, seen, err) == FILE_TEXT ? 0 : -1;
}

static int next_file(CorpusReader *r, Error *err) {
  const char *path = r->corpus->files[r->next_file++].path;
  r->stream = stream_open(path, r->corpus->spool, r->recording, err);
  if (!r->stream) return -1;
  r->jsonl = file_is_jsonl(r->corpus, path);
  r->ended = false;
  r->start = r->end = r->looked = 0;
  r->line = 0;
  return file_is_stdin(path) ? check_stdin(r, err) : 0;
}

static void close_file(CorpusReader *r) {
  r->bytes_read = corpus_position(r);
  stream_close(r->stream);
  r->stream = NULL;
}

// ---- Where a document begins. 1 if one waits in the buffer, 0 at the end of the file, -1 on error

// The next line of the file, with its end: it waits at `start`.
static int next_line(CorpusReader *r, size_t *bytes, Error *err) {
  for (;;) {
    const char *line = r->buffer + r->start;
    const size_t waiting = r->end - r->start;
    const char *newline = memchr(line + r->looked, '\n', waiting - r->looked);
    if (newline || r->ended) {
      *bytes = newline ? (size_t)(newline - line) + 1 : waiting;
      r->looked = 0;
      r->line++;
      return *bytes > 0;
    }
    r->looked = waiting;
    if (waiting >= LINE_MAX_BYTES)
      return error_set(err, "'%s' line %" PRId64 " is longer than %s: is it a .jsonl file?",
                       open_name(r), r->line + 1, size_text(LINE_MAX_BYTES).text);
    if (fill(r, err) != 0) return -1;
  }
}

static bool is_blank(const char *line, size_t bytes) {
  size_t i = 0;
  while (i < bytes && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r' || line[i] == '\n'))
    i++;
  return i == bytes;
}

static int begin_line(CorpusReader *r, Error *err) {
  const char *field = r->corpus->field ? r->corpus->field : "text";
  size_t bytes = 0;
  int got;
  while ((got = next_line(r, &bytes, err)) > 0) {
    char *line = r->buffer + r->start, *text = line;
    const size_t mark = r->line == 1 && bytes >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    size_t length = 0;
    if (!is_blank(line + mark, bytes - mark) &&
        jsonl_text(line + mark, bytes - mark, field, &text, &length, err) != 0) {
      const Error why = *err;
      return error_set(err, "'%s' line %" PRId64 " %.1500s", open_name(r), r->line, why.text);
    }
    const size_t before = length > 0 ? (size_t)(text - line) : bytes;
    r->start += before;
    if (length == 0) continue;
    r->known = length;
    r->behind = bytes - before - length;
    r->complete = true;
    return 1;
  }
  return got;
}

static bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

// How much of what waits is the document's: up to a separator, or to where one may begin.
static void look_for_end(CorpusReader *r) {
  const char *text = r->buffer + r->start, *separator = r->corpus->separator;
  const size_t waiting = r->end - r->start, length = separator ? strlen(separator) : 1;
  const char *found =
      separator ? memmem(text + r->looked, waiting - r->looked, separator, length) : NULL;
  r->complete = found || r->ended;
  r->known = found               ? (size_t)(found - text)
             : r->ended          ? waiting
             : waiting >= length ? waiting - (length - 1)
                                 : 0;
  r->looked = r->known;
  r->behind = 0;
  if (!found) return;
  r->behind = length;
  for (; r->known > 0 && is_newline(text[r->known - 1]); r->known--) r->behind++;
}

static int begin_text(CorpusReader *r, Error *err) {
  for (;;) {
    const bool skips = r->corpus->separator;
    while (skips && r->start < r->end && is_newline(r->buffer[r->start])) r->start++;
    look_for_end(r);
    if (r->known > 0) return 1;
    if (r->complete) {
      r->start += r->behind;
      r->looked = 0;
      if (r->start == r->end && r->ended) return 0;
    } else if (fill(r, err) != 0) {
      return -1;
    }
  }
}

// ---- Pieces

static int begin_document(CorpusReader *r, Error *err) {
  const int got = r->jsonl ? begin_line(r, err) : begin_text(r, err);
  if (got <= 0) return got;
  r->in_document = true;
  r->documents++;
  r->offset = 0;
  r->searched = 0;
  return 1;
}

static void give_piece(CorpusReader *r, size_t bytes, CorpusBlock *block) {
  const bool last = r->complete && bytes == r->known;
  *block = (CorpusBlock){.text = r->buffer + r->start,
                         .bytes = (int64_t)bytes,
                         .offset = r->offset,
                         .last = last,
                         .document = r->documents - 1,
                         .file = open_name(r),
                         .line = r->line};
  const size_t used = bytes + (last ? r->behind : 0);
  r->start += used;
  r->looked = r->looked > used ? r->looked - used : 0;
  r->known -= bytes;
  r->offset += (int64_t)bytes;
  r->searched = 0;
  r->in_document = !last;
}

int corpus_next(CorpusReader *r, CorpusBlock *block, Error *err) {
  for (;;) {
    if (!r->stream && r->next_file == r->corpus->count) return 0;
    if (!r->stream && next_file(r, err) != 0) return -1;
    if (!r->in_document) {
      const int got = begin_document(r, err);
      if (got < 0) return -1;
      if (got == 0) close_file(r);
      if (got == 0) continue;
    }
    const size_t bytes =
        cut_piece(&r->corpus->joined, r->buffer + r->start, r->known, r->complete, &r->searched);
    if (bytes > 0 || r->complete) {
      give_piece(r, bytes, block);
      return 1;
    }
    if (fill(r, err) != 0) return -1;
    look_for_end(r);
  }
}

// ---- Counting

static int measure_file(const Corpus *corpus, size_t index, int64_t limit, int64_t *sizes,
                        int64_t *documents, Error *err) {
  Corpus one = *corpus;
  one.files = &corpus->files[index];
  one.count = 1;
  CorpusReader reader;
  CorpusBlock block;
  corpus_open(&reader, &one);
  reader.recording = true;
  int status = 0;
  while (*documents < limit && (status = corpus_next(&reader, &block, err)) > 0) {
    sizes[*documents] = block.offset + block.bytes;
    *documents += block.last;
    if (signals_came()) {
      status = error_set(err, "interrupted: nothing was written");
      break;
    }
  }
  corpus_close(&reader);
  return status < 0 ? -1 : 0;
}

int corpus_measure(const Corpus *corpus, int64_t limit, int64_t *sizes, int64_t *documents,
                   Error *err) {
  *documents = 0;
  for (size_t i = 0; i < corpus->count && *documents < limit; i++) {
    if (corpus->files[i].size >= 0)
      sizes[(*documents)++] = corpus->files[i].size;
    else if (measure_file(corpus, i, limit, sizes, documents, err) != 0)
      return -1;
  }
  return 0;
}
