#define _GNU_SOURCE // memmem
#include "data/prepare/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/os.h"
#include "data/tokenizer/cut.h"

enum { FILE_PROBE_BYTES = 1 << 16, BLOCK_BYTES = 1 << 20 };
// A line that is one piece is in memory several times, as text and as tokens.
enum { LINE_MAX_BYTES = 1 << 30, WHOLE_LINE_MAX_BYTES = 1 << 28 };

enum { MAX_FOREIGN_PERCENT = 10 };

// ---- The kind of a file

static bool ends_with(const char *name, size_t length, const char *ending) {
  const size_t n = strlen(ending);
  return length > n && memcmp(name + length - n, ending, n) == 0;
}

static bool file_is_stdin(const char *path) {
  return strcmp(path, STREAM_STDIN) == 0;
}

static bool file_is_jsonl(const Corpus *corpus, const char *path) {
  if (corpus->whole_lines) return true;
  if (file_is_stdin(path)) return corpus->stdin_jsonl;
  size_t length = strlen(path);
  if (ends_with(path, length, ".gz")) length -= 3;
  if (ends_with(path, length, ".zst")) length -= 4;
  return ends_with(path, length, ".jsonl");
}

// Percent of the bytes that are neither UTF-8 nor the control characters of text: tab to carriage
// return, backspace, and the escape of terminal colours.
static int foreign_percent(const char *text, size_t bytes) {
  size_t foreign = 0;
  for (size_t i = 0, length; i < bytes; i += length ? length : 1) {
    const unsigned char c = (unsigned char)text[i];
    length = utf8_length(text + i, bytes - i);
    foreign += length == 0 || c == 0x7f || (c < 0x20 && !(c >= 8 && c <= 13) && c != 27);
  }
  return bytes ? (int)(foreign * 100 / bytes) : 0;
}

static bool begins(const char *start, size_t bytes, const char *mark) {
  return bytes >= strlen(mark) && memcmp(start, mark, strlen(mark)) == 0;
}

// What begins with start[bytes], decompressed and at most FILE_PROBE_BYTES of it: empty, binary,
// parquet, a Git LFS pointer (FILE_BROKEN) or text. The sentence says why it is not text.
static FileKind file_kind(const char *name, const char *start, size_t bytes, Error *err) {
  const int foreign = foreign_percent(start, bytes);
  FileKind kind = FILE_BINARY;
  if (bytes == 0) {
    kind = FILE_EMPTY;
    error_set(err, "'%s' is empty", name);
  } else if (file_refuse_pointer(name, start, bytes, err) != 0) {
    kind = FILE_BROKEN;
  } else if (begins(start, bytes, "PAR1")) {
    kind = FILE_PARQUET;
    error_set(err,
              "'%s' is a parquet file: scripts/parquet_to_jsonl.py '%s' | ./prepare --jsonl "
              "--out FOLDER - (of conversations: --chat in both commands, in place of --jsonl)",
              name, name);
  } else if (file_refuse_packed(name, start, bytes, err) != 0) {
    kind = FILE_BINARY;
  } else if (begins(start, bytes, "\xff\xfe") || begins(start, bytes, "\xfe\xff") ||
             memchr(start, 0, bytes)) {
    error_set(err,
              "'%s' is not text: it holds NUL bytes or UTF-16; convert UTF-16 to UTF-8 with "
              "iconv",
              name);
  } else if (foreign > MAX_FOREIGN_PERCENT) {
    error_set(err,
              "'%s' is not text: %d %% of its first %zu bytes are not UTF-8; convert another "
              "encoding to UTF-8 with iconv",
              name, foreign, bytes);
  } else {
    kind = FILE_TEXT;
  }
  return kind;
}

// Opens the file to learn its kind; the sentence says why it is not text.
static FileKind probe(const char *path, bool *packed, Error *err) {
  if (access(path, R_OK) != 0) {
    error_set(err, "cannot open '%s': %s", path, strerror(errno));
    return FILE_UNREADABLE;
  }
  Stream *stream = stream_open(path, NULL, 0, err);
  if (!stream) return FILE_BROKEN;
  *packed = stream_is_packed(stream);
  char *start = xmalloc(FILE_PROBE_BYTES);
  size_t bytes = 0;
  ssize_t n = 1;
  while (n > 0 && bytes < FILE_PROBE_BYTES) {
    n = stream_read(stream, start + bytes, FILE_PROBE_BYTES - bytes, err);
    if (n > 0) bytes += (size_t)n;
  }
  const FileKind kind = n < 0 ? FILE_BROKEN : file_kind(path, start, bytes, err);
  stream_close(stream);
  free(start);
  return kind;
}

// ---- Finding the files

static void add_file(Corpus *c, const char *path, uint64_t bytes, bool packed) {
  const bool text = !packed && !file_is_stdin(path) && !file_is_jsonl(c, path);
  c->files = xrealloc(c->files, (c->count + 1) * sizeof *c->files);
  c->files[c->count++] =
      (CorpusFile){.path = xstrdup(path), .size = text && !c->separator ? (int64_t)bytes : -1};
  c->bytes += bytes;
  if (text) c->text_bytes += bytes;
}

static int add_folder(Corpus *c, const char *path, Error *err);

// A file or folder inside a folder.
static int add_entry(Corpus *c, const char *path, Error *err) {
  struct stat st, link;
  FileKind kind = FILE_SPECIAL;
  bool packed = false;
  if (stat(path, &st) != 0)
    kind = FILE_UNREADABLE;
  else if (S_ISREG(st.st_mode))
    kind = probe(path, &packed, err);
  else if (S_ISDIR(st.st_mode) && lstat(path, &link) == 0 && !S_ISLNK(link.st_mode) &&
           access(path, R_OK | X_OK) == 0)
    return add_folder(c, path, err);
  else if (S_ISDIR(st.st_mode) && access(path, R_OK | X_OK) != 0)
    kind = FILE_UNREADABLE;
  if (kind == FILE_BROKEN) return -1;
  if (kind == FILE_TEXT)
    add_file(c, path, (uint64_t)st.st_size, packed);
  else
    c->skipped[kind]++;
  return 0;
}

static int add_folder(Corpus *c, const char *path, Error *err) {
  struct dirent **entries;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return error_set(err, "cannot read the folder '%s': %s", path, strerror(errno));
  const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
  int status = 0;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    char *child = xasprintf("%s%s%s", path, slash, name);
    if (name[0] != '.')
      status = status == 0 ? add_entry(c, child, err) : status;
    else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
      c->skipped[FILE_HIDDEN]++;
    free(child);
    free(entries[i]);
  }
  free(entries);
  return status;
}

int corpus_add(Corpus *corpus, const char *path, Error *err) {
  struct stat st;
  if (file_is_stdin(path)) {
    if (corpus->reads_stdin)
      return error_set(err, "'%s', standard input, can be read only once", path);
    corpus->reads_stdin = true;
    add_file(corpus, path, 0, false);
    return 0;
  }
  if (stat(path, &st) != 0) return error_set(err, "cannot open '%s': %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return add_folder(corpus, path, err);
  if (!S_ISREG(st.st_mode))
    return error_set(err, "'%s' is not a regular file or a folder; standard input is read from '-'",
                     path);
  bool packed = false;
  if (probe(path, &packed, err) != FILE_TEXT) return -1;
  add_file(corpus, path, (uint64_t)st.st_size, packed);
  return 0;
}

void corpus_free(Corpus *corpus) {
  for (size_t i = 0; i < corpus->count; i++) free(corpus->files[i].path);
  free(corpus->files);
  *corpus = (Corpus){0};
}

// ---- Lines of .jsonl

typedef struct Line {
  JsonScan scan;
  bool found, twice; // the wanted field
  char *text;
  size_t bytes;
} Line;

static bool read_object(Line *l, const char *field);

// The value of a key that the field begins with; `rest` is the field behind it, or NULL.
static bool read_wanted(Line *l, const char *rest) {
  if (rest && json_take(&l->scan, '{')) return read_object(l, rest);
  if (rest || !json_take(&l->scan, '"')) return json_skip(&l->scan);
  l->scan.at--;
  l->found = json_take_string(&l->scan, &l->text, &l->bytes);
  return l->found;
}

// Behind the opening brace. field: the key to look for.
static bool read_object(Line *l, const char *field) {
  const char *dot = strchr(field, '.');
  const size_t wanted = dot ? (size_t)(dot - field) : strlen(field);
  JsonScan *s = &l->scan;
  bool seen = false;
  if (json_take(s, '}')) return true;
  do {
    char *key;
    size_t bytes;
    if (!json_take_key(s, &key, &bytes)) return false;
    const bool here = bytes == wanted && memcmp(key, field, bytes) == 0;
    if (here ? !read_wanted(l, dot ? dot + 1 : NULL) : !json_skip(s)) return false;
    l->twice |= here && seen;
    seen |= here;
  } while (json_take(s, ','));
  return json_take(s, '}') || json_wrong(s, "a comma or } is missing");
}

int jsonl_text(char *line, size_t bytes, const char *field, char **text, size_t *text_bytes,
               Error *err) {
  Line l = {.scan = {.at = line, .end = line + bytes, .halves = true, .nuls = true}};
  const bool object = json_take(&l.scan, '{');
  if (!(object ? read_object(&l, field) : json_skip(&l.scan)) || !json_take_end(&l.scan))
    return error_set(err, "is not JSON: it goes wrong at column %zu: %s",
                     (size_t)(l.scan.at - line) + 1, l.scan.problem);
  if (l.twice) return error_set(err, "has \"%s\" twice; keep one of them", field);
  *text = l.text;
  *text_bytes = l.bytes;
  if (l.found) return 0;
  return error_set(err,
                   "has no \"%s\" string: each line must be an object such as {\"%s\": \"...\"}; "
                   "--field names another field",
                   field, field);
}

// ---- Reading

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

// Reads a block into the buffer.
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

// The format of standard input is unknown: probe its first bytes.
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

static int begin_line(CorpusReader *r, Error *err) {
  const char *field = r->corpus->field ? r->corpus->field : "text";
  size_t bytes = 0;
  int got;
  while ((got = next_line(r, &bytes, err)) > 0) {
    char *line = r->buffer + r->start, *text = line;
    const size_t mark = r->line == 1 && bytes >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    size_t length = 0;
    const bool blank = is_blank(line + mark, bytes - mark);
    if (r->corpus->whole_lines && !blank) {
      text = line + mark;
      length = bytes - mark;
    } else if (!blank && jsonl_text(line + mark, bytes - mark, field, &text, &length, err) != 0) {
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
