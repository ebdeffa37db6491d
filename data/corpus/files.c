#include "data/corpus/files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/file.h"
#include "base/text.h"

enum { MAX_FOREIGN_PERCENT = 10 };

// ---- What a file is

static bool ends_with(const char *name, size_t length, const char *ending) {
  const size_t n = strlen(ending);
  return length > n && memcmp(name + length - n, ending, n) == 0;
}

bool file_is_stdin(const char *path) {
  return strcmp(path, STREAM_STDIN) == 0;
}

bool file_is_jsonl(const Corpus *corpus, const char *path) {
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

FileKind file_kind(const char *name, const char *start, size_t bytes, Error *err) {
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
              "--out FOLDER -",
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

// Opens the file to learn what it is; the sentence says why it is not text.
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
