// Which files a corpus has: their kinds, by their first bytes, and those of folders.
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/prepare/corpus.h"
#include "data/prepare/dataset.h"

// A first line that is longer is not looked at.
#define PARQUET_MARK "PAR1" // at the start and at the end of a Parquet file
enum { PROBE_BYTES = 1 << 16, FIRST_LINE_MAX_BYTES = 1 << 24, MAX_FOREIGN_PERCENT = 10 };

bool file_is_stdin(const char *path) {
  return strcmp(path, STREAM_STDIN) == 0;
}

// ---- By its name

static bool has_suffix(const char *path, const char *suffix) {
  const size_t length = strlen(suffix);
  size_t end = strlen(path);
  if (end > 3 && strcasecmp(path + end - 3, ".gz") == 0) end -= 3;
  if (end > 4 && strncasecmp(path + end - 4, ".zst", 4) == 0) end -= 4;
  return end > length && strncasecmp(path + end - length, suffix, length) == 0;
}

// ---- By its first bytes

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

// Passes over a byte order mark and white space.
static const char *first_character(const char *start, const char *end) {
  if (begins(start, (size_t)(end - start), UTF8_MARK)) start += strlen(UTF8_MARK);
  while (start < end && strchr(" \t\r\n", *start)) start++;
  return start;
}

bool corpus_wants_more(const char *start, size_t bytes) {
  const char *end = start + bytes, *first = first_character(start, end);
  if (bytes < PROBE_BYTES) return true;
  return first < end && *first == '{' && bytes < FIRST_LINE_MAX_BYTES &&
         !memchr(first, '\n', (size_t)(end - first));
}

// Whether the first line is an object; *has_field: with the string `field`.
static bool first_line_is_object(const char *start, size_t bytes, const char *field,
                                 bool *has_field) {
  const char *end = start + bytes, *first = first_character(start, end);
  const char *newline = memchr(first, '\n', (size_t)(end - first));
  const size_t length = (size_t)((newline ? newline : end) - first);
  *has_field = false;
  if (length == 0 || *first != '{') return false;
  char *line = memcpy(xmalloc(length), first, length);
  Span text;
  Error ignored;
  *has_field = jsonl_text(line, length, field, &text, &ignored) == 0;
  memcpy(line, first, length); // it was unescaped in place
  JsonScan scan = {.at = line, .end = line + length, .halves = true, .nuls = true};
  const bool object = *has_field || (json_skip(&scan) && json_take_end(&scan));
  free(line);
  return object;
}

// JSON lines, text, or JSON that is neither; the sentence says what to do with that.
static FileKind format_of(const Corpus *c, const char *name, const char *start, size_t bytes,
                          Error *err) {
  const char *field = c->field ? c->field : "text";
  if (c->format != FORMAT_TOLD) return c->format == FORMAT_LINES ? FILE_LINES : FILE_TEXT;
  if (has_suffix(name, ".jsonl") || has_suffix(name, ".ndjson") || has_suffix(name, ".jsonlines"))
    return FILE_LINES;
  bool has_field;
  const bool object = first_line_is_object(start, bytes, field, &has_field);
  if (has_field) return FILE_LINES;
  const char *first = first_character(start, start + bytes);
  const bool bracket = first < start + bytes && (*first == '{' || *first == '[');
  if (!json_begins(start, bytes) && !(bracket && has_suffix(name, ".json"))) return FILE_TEXT;
  if (object)
    error_set(err,
              "'%s' is JSON, and its first line has no \"%s\" string: name another --field, or use "
              "--text",
              name, field);
  else
    error_set(err,
              "'%s' is JSON, but not a document in each line: use jq -c '.[]' on a list, or --text",
              name);
  return FILE_JSON;
}

FileKind corpus_kind(const Corpus *c, const char *name, const char *start, size_t bytes,
                     Error *err) {
  const size_t looked_at = bytes < PROBE_BYTES ? bytes : PROBE_BYTES;
  const int foreign = foreign_percent(start, looked_at);
  if (bytes == 0) return error_set(err, "'%s' is empty", name), FILE_EMPTY;
  if (file_refuse_pointer(name, start, bytes, err) != 0) return FILE_BROKEN;
  if (begins(start, bytes, PARQUET_MARK))
    return error_set(err, "'%s' is a Parquet file: %s", name,
                     c->format == FORMAT_TEXT ? "leave --text out"
                                              : "name it, uncompressed, instead of a pipe"),
           c->format == FORMAT_TEXT ? FILE_BINARY : FILE_PARQUET;
  if (file_refuse_packed(name, start, bytes, err) != 0) return FILE_BINARY;
  if (begins(start, bytes, "\xff\xfe") || begins(start, bytes, "\xfe\xff") ||
      memchr(start, 0, looked_at))
    return error_set(
               err, "'%s' is not text: it holds NUL bytes or UTF-16, which iconv converts to UTF-8",
               name),
           FILE_BINARY;
  if (foreign <= MAX_FOREIGN_PERCENT) return format_of(c, name, start, bytes, err);
  return error_set(err,
                   "'%s' is not text: %d %% of its start is not UTF-8, to which iconv converts",
                   name, foreign),
         FILE_BINARY;
}

// What opening the file tells.
typedef struct Probe {
  FileKind kind;
  bool packed, marked; // compressed; a byte order mark is in front
} Probe;

// A download that was cut short is found before hours of work.
static int check_parquet(const char *path, Error *err) {
  char end[4] = "";
  size_t bytes = 0;
  const int fd = file_open(path, &bytes, err);
  if (fd < 0) return -1;
  int status = 0;
  if (bytes >= sizeof end)
    status = file_read_at(fd, path, bytes - sizeof end, end, sizeof end, err);
  close(fd);
  if (status != 0 || memcmp(end, PARQUET_MARK, sizeof end) == 0) return status;
  return error_set(err, "'%s' has not the end of a Parquet file: copy or download it again", path);
}

// The sentence says why it is not text.
static Probe probe(const Corpus *c, const char *path, Error *err) {
  if (access(path, R_OK) != 0) {
    error_set(err, "cannot open '%s': %s", path, strerror(errno));
    return (Probe){.kind = FILE_UNREADABLE};
  }
  Stream *stream = stream_open(path, err);
  if (!stream) return (Probe){.kind = FILE_BROKEN};
  Text start = {0};
  ssize_t n = 1;
  while (n > 0 && corpus_wants_more(start.data, start.bytes)) {
    n = stream_read(stream, text_room(&start, PROBE_BYTES), PROBE_BYTES, err);
    if (n > 0) start.bytes += (size_t)n;
  }
  Probe p = {.kind = n < 0 ? FILE_BROKEN : corpus_kind(c, path, start.data, start.bytes, err),
             .packed = stream_is_packed(stream),
             .marked = begins(start.data, start.bytes, UTF8_MARK)};
  stream_close(stream);
  free(start.data);
  if (p.kind == FILE_PARQUET && p.packed) p.kind = FILE_BINARY;
  if (p.kind == FILE_PARQUET && check_parquet(path, err) != 0) p.kind = FILE_BROKEN;
  return p;
}

// ---- Finding the files

static FileId file_id(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 ? (FileId){st.st_dev, st.st_ino} : (FileId){0};
}

static bool is_left_out(const Corpus *c, FileId id) {
  for (size_t i = 0; i < c->left_out_count; i++)
    if (c->left_out[i].inode == id.inode && c->left_out[i].device == id.device)
      return id.inode != 0;
  return false;
}

void corpus_leave_out(Corpus *c, const char *path) {
  c->left_out = xrealloc(c->left_out, (c->left_out_count + 1) * sizeof *c->left_out);
  c->left_out[c->left_out_count++] = file_id(path);
}

static void add_file(Corpus *c, const char *path, uint64_t bytes, Probe p, bool val) {
  const bool text = p.kind == FILE_TEXT && !p.packed;
  const int64_t mark = p.marked ? (int64_t)strlen(UTF8_MARK) : 0;
  char *copy = xstrdup(path); // first: it may not return
  c->files = xrealloc(c->files, (c->count + 1) * sizeof *c->files);
  c->files[c->count++] = (CorpusFile){.path = copy,
                                      .size = text && !c->separator ? (int64_t)bytes - mark : -1,
                                      .kind = p.kind,
                                      .val = val};
  c->bytes += bytes;
  if (text) c->text_bytes += bytes;
  if (val) corpus_leave_out(c, path);
}

static int add_path(Corpus *c, const char *path, bool val, bool named, Error *err);

static int add_folder(Corpus *c, const char *path, bool val, Error *err) {
  struct dirent **entries;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return error_set(err, "cannot read the folder '%s': %s", path, strerror(errno));
  const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
  int status = 0;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    char *child = xasprintf("%s%s%s", path, slash, name);
    if (name[0] != '.')
      status = status == 0 ? add_path(c, child, val, false, err) : status;
    else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
      c->skipped[FILE_HIDDEN]++;
    free(child);
    free(entries[i]);
  }
  free(entries);
  return status;
}

static bool is_link(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

// named: by the caller, else it is inside a folder.
static int add_path(Corpus *c, const char *path, bool val, bool named, Error *err) {
  struct stat st;
  Probe p = {.kind = FILE_UNREADABLE};
  const bool there = stat(path, &st) == 0, folder = there && S_ISDIR(st.st_mode);
  if (!there || (folder && access(path, R_OK | X_OK) != 0))
    error_set(err, "cannot open '%s': %s", path, strerror(errno));
  else if (is_left_out(c, (FileId){st.st_dev, st.st_ino}) || (folder && dataset_or_run(path)))
    p.kind = FILE_LEFT_OUT;
  else if (S_ISREG(st.st_mode))
    p = probe(c, path, err);
  else if (folder && (named || !is_link(path)))
    return add_folder(c, path, val, err);
  else {
    error_set(err, "'%s' is not a regular file or a folder; standard input is read from '-'", path);
    p.kind = FILE_SPECIAL;
  }
  if (p.kind == FILE_BROKEN || (named && p.kind < FILE_LEFT_OUT)) return -1;
  if (p.kind >= FILE_TEXT)
    add_file(c, path, (uint64_t)st.st_size, p, val);
  else
    c->skipped[p.kind]++;
  return 0;
}

static int add_matching(Corpus *c, const char *pattern, bool val, Error *err) {
  glob_t found = {0};
  int status = glob(pattern, 0, NULL, &found);
  if (status != 0) return add_path(c, pattern, val, true, err); // it says what is wrong
  for (size_t i = 0; status == 0 && i < found.gl_pathc; i++)
    status = add_path(c, found.gl_pathv[i], val, true, err);
  globfree(&found);
  return status;
}

int corpus_add(Corpus *c, const char *path, bool val, Error *err) {
  if (!file_is_stdin(path))
    return path_exists(path) ? add_path(c, path, val, true, err) : add_matching(c, path, val, err);
  if (c->reads_stdin) return error_set(err, "'%s', standard input, can be read only once", path);
  c->reads_stdin = true;
  add_file(c, path, 0, (Probe){.kind = FILE_LINES}, val); // its kind is known when it is read
  return 0;
}

void corpus_free(Corpus *c) {
  for (size_t i = 0; i < c->count; i++) free(c->files[i].path);
  free(c->files);
  free(c->left_out);
  *c = (Corpus){0};
}

// ---- What was taken, in words

size_t corpus_count(const Corpus *c, FileKind kind) {
  size_t count = 0;
  for (size_t i = 0; i < c->count; i++)
    count += c->files[i].kind == kind && !file_is_stdin(c->files[i].path);
  return count;
}

ShortText corpus_skipped(const Corpus *c) {
  static const char *const reasons[FILE_TEXT] = {
      [FILE_HIDDEN] = "hidden",
      [FILE_BINARY] = "binary",
      [FILE_JSON] = "JSON without a document in each line (--text takes them as text)",
      [FILE_EMPTY] = "empty",
      [FILE_UNREADABLE] = "unreadable",
      [FILE_SPECIAL] = "links to folders or devices",
      [FILE_LEFT_OUT] = "in --out or --val, or in a folder of a dataset or a run"};
  ShortText s = {""};
  for (int i = 0; i < FILE_TEXT; i++)
    if (c->skipped[i] > 0)
      short_append(&s, "%s%" PRId64 " %s", s.text[0] ? ", " : "", c->skipped[i], reasons[i]);
  return s;
}
