#include "data/corpus.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/utf8.h"

enum { BLOCK_BYTES = 1 << 18, PROBE_BYTES = 1 << 16, MAX_FOREIGN_PERCENT = 10 };

// ---- Finding the files

static bool is_jsonl(const char *path) {
  const size_t length = strlen(path);
  return length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
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

// Opens the file to learn what it is; the sentence says why it is not text.
static FileKind probe(const char *path, Error *err) {
  char *start = xmalloc(PROBE_BYTES);
  FILE *file = fopen(path, "rb");
  const size_t bytes = file ? fread(start, 1, PROBE_BYTES, file) : 0;
  const bool readable = file && !ferror(file);
  const int foreign = foreign_percent(start, bytes);
  const bool holds_nul = memchr(start, 0, bytes) != NULL;
  if (!readable)
    error_set(err, "cannot %s '%s': %s", file ? "read" : "open", path, strerror(errno));
  else if (bytes == 0)
    error_set(err, "'%s' is empty", path);
  else if (holds_nul)
    error_set(err, "'%s' is not text: it holds NUL bytes; convert UTF-16 to UTF-8 with iconv",
              path);
  else if (foreign > MAX_FOREIGN_PERCENT)
    error_set(err,
              "'%s' is not text: %d %% of its first %zu bytes are not UTF-8; convert another "
              "encoding to UTF-8 with iconv",
              path, foreign, bytes);
  if (file) fclose(file);
  free(start);
  return !readable                                    ? FILE_UNREADABLE
         : bytes == 0                                 ? FILE_EMPTY
         : holds_nul || foreign > MAX_FOREIGN_PERCENT ? FILE_BINARY
                                                      : FILE_TEXT;
}

static void add_file(Corpus *c, const char *path, uint64_t bytes) {
  c->files = xrealloc(c->files, (c->count + 1) * sizeof *c->files);
  c->files[c->count++] = xstrdup(path);
  c->bytes += bytes;
  if (!is_jsonl(path)) c->text_bytes += bytes;
}

static int add_folder(Corpus *c, const char *path);

// A file or folder inside a folder.
static void add_entry(Corpus *c, const char *path) {
  Error ignored;
  struct stat st, link;
  FileKind kind = FILE_SPECIAL;
  if (stat(path, &st) != 0)
    kind = FILE_UNREADABLE;
  else if (S_ISREG(st.st_mode))
    kind = probe(path, &ignored);
  else if (S_ISDIR(st.st_mode) && lstat(path, &link) == 0 && !S_ISLNK(link.st_mode))
    kind = add_folder(c, path) == 0 ? FILE_TEXT : FILE_UNREADABLE;
  if (kind != FILE_TEXT)
    c->skipped[kind]++;
  else if (S_ISREG(st.st_mode))
    add_file(c, path, (uint64_t)st.st_size);
}

// -1 and errno if the folder cannot be listed.
static int add_folder(Corpus *c, const char *path) {
  struct dirent **entries;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return -1;
  const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    char *child = xasprintf("%s%s%s", path, slash, name);
    if (name[0] != '.')
      add_entry(c, child);
    else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
      c->skipped[FILE_HIDDEN]++;
    free(child);
    free(entries[i]);
  }
  free(entries);
  return 0;
}

int corpus_add(Corpus *corpus, const char *path, Error *err) {
  struct stat st;
  if (stat(path, &st) != 0) return error_set(err, "cannot open '%s': %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode) && add_folder(corpus, path) != 0)
    return error_set(err, "cannot read the folder '%s': %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return 0;
  if (!S_ISREG(st.st_mode)) return error_set(err, "'%s' is not a regular file or a folder", path);
  if (probe(path, err) != FILE_TEXT) return -1;
  add_file(corpus, path, (uint64_t)st.st_size);
  return 0;
}

void corpus_free(Corpus *corpus) {
  for (size_t i = 0; i < corpus->count; i++) free(corpus->files[i]);
  free(corpus->files);
  *corpus = (Corpus){0};
}

// ---- Reading the documents

void corpus_open(CorpusReader *r, const Corpus *corpus) {
  *r =
      (CorpusReader){.corpus = corpus, .buffer = xmalloc(BLOCK_BYTES), .buffer_bytes = BLOCK_BYTES};
}

void corpus_close(CorpusReader *r) {
  if (r->file) fclose(r->file);
  free(r->buffer);
  cJSON_Delete(r->json);
  *r = (CorpusReader){0};
}

static const char *open_path(const CorpusReader *r) {
  return r->corpus->files[r->next_file - 1];
}

static int next_file(CorpusReader *r, Error *err) {
  const char *path = r->corpus->files[r->next_file++];
  r->file = fopen(path, "rb");
  if (!r->file) return error_set(err, "cannot open '%s': %s", path, strerror(errno));
  setvbuf(r->file, NULL, _IOFBF, BLOCK_BYTES);
  struct stat st;
  if (fstat(fileno(r->file), &st) != 0)
    return error_set(err, "cannot look at '%s': %s", path, strerror(errno));
  r->size = (int64_t)st.st_size;
  r->offset = 0;
  r->line = 0;
  return 0;
}

// The size is the one at the start, so that the end of the document is known before it is read.
static int next_text(CorpusReader *r, CorpusBlock *block, Error *err) {
  if (r->offset == r->size) return 0;
  const int64_t left = r->size - r->offset;
  const size_t wanted = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
  if (fread(r->buffer, 1, wanted, r->file) != wanted)
    return error_set(err, "cannot read '%s': %s", open_path(r),
                     ferror(r->file) ? strerror(errno) : "it became shorter");
  if (r->offset == 0) r->documents++;
  *block = (CorpusBlock){r->buffer, (int64_t)wanted, r->offset, r->size, r->documents - 1};
  r->offset += (int64_t)wanted;
  r->bytes_read += wanted;
  return 1;
}

// cJSON's strings end at a NUL, so an escaped one would cut the document short without a word. It
// becomes U+FFFD, the replacement character, whose escape is as long.
static void replace_escaped_nul(char *line) {
  for (char *p = strchr(line, '\\'); p; p = strchr(p, '\\')) {
    if (strncmp(p + 1, "u0000", 5) == 0) memcpy(p + 1, "ufffd", 5);
    p += p[1] ? 2 : 1; // past the escape, so that of "\\u0000" the second backslash is not one
  }
}

static int parse_line(CorpusReader *r, size_t bytes, const char **text, Error *err) {
  const char *path = open_path(r);
  if (memchr(r->buffer, 0, bytes))
    return error_set(err, "'%s' line %" PRId64 " is not JSON: it holds a NUL byte", path, r->line);
  replace_escaped_nul(r->buffer);
  const char *stop = r->buffer;
  r->json = cJSON_ParseWithLengthOpts(r->buffer, bytes + 1, &stop, true);
  if (!r->json)
    return error_set(err, "'%s' line %" PRId64 " is not JSON: it goes wrong at column %zu", path,
                     r->line, (size_t)(stop - r->buffer) + 1);
  *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(r->json, "text"));
  if (*text) return 0;
  return error_set(err,
                   "'%s' line %" PRId64 " has no \"text\" string: each line of a .jsonl file must "
                   "be an object such as {\"text\": \"...\"}",
                   path, r->line);
}

static int next_line(CorpusReader *r, CorpusBlock *block, Error *err) {
  for (;;) {
    cJSON_Delete(r->json);
    r->json = NULL;
    errno = 0;
    const ssize_t bytes = getline(&r->buffer, &r->buffer_bytes, r->file);
    if (bytes < 0 && !feof(r->file))
      return error_set(err, "cannot read '%s': %s", open_path(r), strerror(errno));
    if (bytes < 0) return 0;
    r->line++;
    r->bytes_read += (uint64_t)bytes;
    if (strspn(r->buffer, " \t\r\n") == (size_t)bytes) continue;
    const char *text = NULL;
    if (parse_line(r, (size_t)bytes, &text, err) != 0) return -1;
    const int64_t length = (int64_t)strlen(text);
    if (length == 0) continue;
    *block = (CorpusBlock){text, length, 0, length, r->documents++};
    return 1;
  }
}

int corpus_next(CorpusReader *r, CorpusBlock *block, Error *err) {
  for (;;) {
    if (r->file) {
      const int got = is_jsonl(open_path(r)) ? next_line(r, block, err) : next_text(r, block, err);
      if (got != 0) return got;
      fclose(r->file);
      r->file = NULL;
    }
    if (r->next_file == r->corpus->count) return 0;
    if (next_file(r, err) != 0) return -1;
  }
}

int corpus_count(const Corpus *corpus, int64_t limit, int64_t *documents, Error *err) {
  *documents = 0;
  int status = 0;
  for (size_t i = 0; status == 0 && i < corpus->count && *documents < limit; i++) {
    if (!is_jsonl(corpus->files[i])) {
      ++*documents;
      continue;
    }
    const Corpus one = {.files = &corpus->files[i], .count = 1};
    CorpusReader reader;
    CorpusBlock block;
    corpus_open(&reader, &one);
    while (*documents < limit && (status = corpus_next(&reader, &block, err)) > 0) ++*documents;
    if (status > 0) status = 0;
    corpus_close(&reader);
  }
  return status;
}
