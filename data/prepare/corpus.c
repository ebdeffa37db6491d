#define _GNU_SOURCE // memmem
#include "data/prepare/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer/cut.h"

enum { BLOCK_BYTES = 1 << 20 };
// A line that is one piece is in memory several times, as text and as tokens.
enum { LINE_MAX_BYTES = 1 << 30, WHOLE_LINE_MAX_BYTES = 1 << 28 };

// ---- Reading

void corpus_open(CorpusReader *r, const Corpus *corpus) {
  *r = (CorpusReader){
      .corpus = corpus, .buffer = xmalloc(2 * BLOCK_BYTES), .capacity = 2 * BLOCK_BYTES};
}

void corpus_close(CorpusReader *r) {
  stream_close(r->stream);
  parquet_close(r->parquet);
  free(r->tables);
  free(r->buffer);
  *r = (CorpusReader){0};
}

uint64_t corpus_position(const CorpusReader *r) {
  const uint64_t open = r->stream               ? stream_position(r->stream)
                        : r->file && r->parquet ? parquet_position(r->parquet)
                                                : 0;
  return r->bytes_read + open;
}

static const char *open_name(const CorpusReader *r) {
  return file_is_stdin(r->file->path) ? "standard input" : r->file->path;
}

// Reads a block into the buffer.
static int fill(CorpusReader *r, Error *err) {
  memmove(r->buffer, r->buffer + r->start, r->end - r->start);
  r->end -= r->start;
  r->start = 0;
  if (r->capacity - r->end < BLOCK_BYTES) r->buffer = xrealloc(r->buffer, r->capacity *= 2);
  char *const room = r->buffer + r->end;
  const ssize_t n = r->stream ? stream_read(r->stream, room, BLOCK_BYTES, err)
                              : parquet_read(r->parquet, room, BLOCK_BYTES, err);
  if (n < 0) return -1;
  r->ended = n == 0;
  r->end += (size_t)n;
  return 0;
}

// The format of standard input is unknown: probe its first bytes.
static int check_stdin(CorpusReader *r, Error *err) {
  while (!r->ended && corpus_wants_more(r->buffer, r->end))
    if (fill(r, err) != 0) return -1;
  const FileKind kind = corpus_kind(r->corpus, open_name(r), r->buffer, r->end, err);
  r->jsonl = kind == FILE_LINES || (r->corpus->field && kind == FILE_TEXT);
  return kind == FILE_LINES || kind == FILE_TEXT ? 0 : -1;
}

// A byte order mark is no text.
static int pass_mark(CorpusReader *r, Error *err) {
  const size_t length = strlen(UTF8_MARK);
  while (r->end < length && !r->ended)
    if (fill(r, err) != 0) return -1;
  if (r->end >= length && memcmp(r->buffer, UTF8_MARK, length) == 0) r->start = length;
  return 0;
}

// All files of Parquet are read by the same processes, which start with the first one.
static int start_parquet(CorpusReader *r, Error *err) {
  const Corpus *c = r->corpus;
  size_t count = 0;
  if (r->parquet) return 0;
  r->tables = xcalloc(c->count, sizeof *r->tables);
  for (size_t i = 0; i < c->count; i++)
    if (c->files[i].kind == FILE_PARQUET) r->tables[count++] = c->files[i].path;
  const char *column = c->field || c->whole_lines ? c->field : "text";
  r->parquet = parquet_open(r->tables, count, c->whole_lines, column, err);
  return r->parquet ? 0 : -1;
}

static int next_file(CorpusReader *r, Error *err) {
  const CorpusFile *file = r->file = &r->corpus->files[r->next_file++];
  r->jsonl = file->kind != FILE_TEXT;
  r->ended = false;
  r->start = r->end = r->looked = 0;
  r->line = 0;
  if (file->kind == FILE_PARQUET) return start_parquet(r, err);
  r->stream = stream_open(file->path, err);
  if (!r->stream) return -1;
  if (file_is_stdin(file->path) && check_stdin(r, err) != 0) return -1;
  return pass_mark(r, err);
}

static void close_file(CorpusReader *r) {
  r->bytes_read = corpus_position(r);
  stream_close(r->stream);
  r->stream = NULL;
  r->file = NULL;
}

// ---- Where a document begins. 1 if one waits in the buffer, 0 at the end of the file, -1 on error

// The next line of the file, with its end: it waits at `start`.
static int next_line(CorpusReader *r, size_t *bytes, Error *err) {
  const size_t most = r->corpus->whole_lines ? WHOLE_LINE_MAX_BYTES : LINE_MAX_BYTES;
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
    if (waiting >= most)
      return error_set(err, "'%s' line %" PRId64 " is longer than %s: is it a .jsonl file?",
                       open_name(r), r->line + 1, size_text(most).text);
    if (fill(r, err) != 0) return -1;
  }
}

static bool is_blank(const char *line, size_t bytes) {
  size_t i = 0;
  while (i < bytes && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r' || line[i] == '\n'))
    i++;
  return i == bytes;
}

void bad_line(BadLines *bad, const char *file, int64_t line, const Error *why) {
  if (bad->count++ == 0)
    error_set(&bad->first, "%.800s:%" PRId64 ": %.1000s", file, line, why->text);
}

// The document in the line at `start`. Empty where it is bad, and passed over.
static int read_line(CorpusReader *r, size_t bytes, Span *text, Error *err) {
  const Corpus *c = r->corpus;
  char *const line = r->buffer + r->start;
  *text = (Span){line, bytes};
  if (c->whole_lines || jsonl_text(line, bytes, c->field ? c->field : "text", text, err) == 0)
    return 0;
  const Error why = *err;
  bad_line(&r->bad, open_name(r), r->line, &why);
  text->bytes = 0;
  if (c->skip_bad) return 0;
  return error_set(err, "'%s' line %" PRId64 " %.1500s; --skip-bad passes over such lines",
                   open_name(r), r->line, why.text);
}

static int begin_line(CorpusReader *r, Error *err) {
  size_t bytes = 0;
  int got;
  while ((got = next_line(r, &bytes, err)) > 0) {
    const char *const line = r->buffer + r->start;
    Span text = {0};
    if (!is_blank(line, bytes) && read_line(r, bytes, &text, err) != 0) return -1;
    const size_t before = text.bytes > 0 ? (size_t)(text.text - line) : bytes;
    r->start += before;
    if (text.bytes == 0) continue;
    r->known = text.bytes;
    r->behind = bytes - before - text.bytes;
    r->complete = true;
    return 1;
  }
  return got;
}

static bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

// How much of the buffer is the document's: up to a separator, or to where one may begin.
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
  const CorpusFile *file = r->file;
  const int64_t waiting = r->complete ? r->offset + (int64_t)r->known : -1;
  const bool last = r->complete && bytes == r->known;
  *block = (CorpusBlock){.text = r->buffer + r->start,
                         .bytes = (int64_t)bytes,
                         .offset = r->offset,
                         .size = file->size >= 0 ? file->size : waiting,
                         .last = last,
                         .document = r->documents - 1,
                         .file = open_name(r),
                         .val = file->val,
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
    if (!r->file && r->next_file == r->corpus->count) return 0;
    if (!r->file && next_file(r, err) != 0) return -1;
    if (!r->in_document) {
      const int got = begin_document(r, err);
      if (got < 0) return -1;
      if (got == 0) close_file(r);
      if (got == 0) continue;
    }
    const size_t bytes = r->corpus->whole_lines
                             ? r->known
                             : cut_piece(&r->corpus->joined, r->buffer + r->start, r->known,
                                         r->complete, &r->searched);
    if (bytes > 0 || r->complete) {
      give_piece(r, bytes, block);
      return 1;
    }
    if (fill(r, err) != 0) return -1;
    look_for_end(r);
  }
}
