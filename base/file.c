#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/memory.h"

enum { WRITER_BUFFER_BYTES = 1 << 20 };

// Without O_NONBLOCK a pipe by name would wait for its writer; regular files know no difference.
int file_open(const char *path, size_t *bytes, Error *err) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return error_set(err, "cannot open '%s': %s", path, errno_text());
  struct stat st;
  const bool known = fstat(fd, &st) == 0;
  *bytes = known ? (size_t)st.st_size : 0;
  if (known && S_ISREG(st.st_mode)) return fd;
  error_set(err, "cannot read '%s': %s", path, known ? "it is not a regular file" : errno_text());
  close(fd);
  return -1;
}

int file_read_at(int fd, const char *path, uint64_t offset, void *data, size_t bytes, Error *err) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd, (char *)data + done, bytes - done, (off_t)(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error_set(err, "cannot read '%s': %s", path, errno_text());
    if (n == 0)
      return error_set(err,
                       "'%s' became shorter while it was in use: it has no byte %" PRIu64
                       " any more; make or copy it again",
                       path, offset + done);
    done += (size_t)n;
  }
  return 0;
}

int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, Error *err) {
  const int fd = file_open(path, bytes, err);
  if (fd < 0) return -1;
  if (*bytes > max_bytes) {
    close(fd);
    return error_set(err, "'%s' has %s, more than the %s allowed here", path,
                     size_text(*bytes).text, size_text(max_bytes).text);
  }
  *data = xcalloc(*bytes + 1, 1);
  const int status = file_read_at(fd, path, 0, *data, *bytes, err);
  if (status != 0) free(*data);
  close(fd);
  return status;
}

int file_refuse_pointer(const char *path, const void *data, size_t bytes, Error *err) {
  static const char first[] = "version https://git-lfs.github.com/spec/";
  if (bytes < sizeof first - 1 || memcmp(data, first, sizeof first - 1) != 0) return 0;
  return error_set(err,
                   "'%s' is a git-lfs pointer, not the file that it stands for: run git lfs pull "
                   "in its folder",
                   path);
}

int file_refuse_packed(const char *path, const void *data, size_t bytes, Error *err) {
  static const struct {
    const char *name, *command, *start;
  } kinds[] = {{"gzip", "gunzip", "\x1f\x8b\x08"},
               {"zstd", "unzstd", "\x28\xb5\x2f\xfd"},
               {"xz", "unxz",
                "\xfd"
                "7zXZ"},
               {"bzip2", "bunzip2", "BZh91AY&SY"},
               {"zip", "unzip", "PK\3\4"}};
  if (file_refuse_pointer(path, data, bytes, err) != 0) return -1;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (bytes >= strlen(kinds[i].start) &&
        memcmp(data, kinds[i].start, strlen(kinds[i].start)) == 0)
      return error_set(err,
                       "'%s' is compressed by %s, which is not read here: unpack it first (%s)",
                       path, kinds[i].name, kinds[i].command);
  return 0;
}

int file_refuse_size(const char *path, size_t bytes, size_t promised, Error *err) {
  if (bytes == promised) return 0;
  return error_set(
      err, "'%s' is %s: its header promises %zu bytes, but it has %zu; make or copy it again", path,
      bytes < promised ? "cut short" : "too long", promised, bytes);
}

int file_damaged(const char *path, Error *err) {
  return error_set(err, "'%s' is damaged: it does not match its checksum; make or copy it again",
                   path);
}

// ---- Writing

// The first failure closes the file and stays; after it there is no path.
static int writer_fail(FileWriter *w, const char *what, Error *err) {
  if (w->path) error_set(&w->error, "cannot %s '%s': %s", what, w->path, errno_text());
  *err = w->error;
  writer_abandon(w);
  return -1;
}

int writer_open(FileWriter *w, const char *path, Error *err) {
  *w = (FileWriter){.path = xstrdup(path), .buffer = xmalloc(WRITER_BUFFER_BYTES)};
  w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return w->fd < 0 ? writer_fail(w, "create", err) : 0;
}

static int write_all(FileWriter *w, const unsigned char *data, size_t bytes, Error *err) {
  if (w->fd < 0) return writer_fail(w, "write to", err);
  while (bytes > 0) {
    const ssize_t n = write(w->fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return writer_fail(w, "write to", err);
    }
    data += n;
    bytes -= (size_t)n;
  }
  return 0;
}

static int writer_flush(FileWriter *w, Error *err) {
  const size_t used = w->used;
  w->used = 0;
  return write_all(w, w->buffer, used, err);
}

int writer_append(FileWriter *w, const void *data, size_t bytes, Error *err) {
  w->total += bytes;
  if ((w->fd < 0 || w->used + bytes > WRITER_BUFFER_BYTES) && writer_flush(w, err) != 0) return -1;
  if (bytes >= WRITER_BUFFER_BYTES) return write_all(w, data, bytes, err);
  memcpy(w->buffer + w->used, data, bytes);
  w->used += bytes;
  return 0;
}

int writer_patch(FileWriter *w, uint64_t offset, const void *data, size_t bytes, Error *err) {
  if (writer_flush(w, err) != 0) return -1;
  if (lseek(w->fd, (off_t)offset, SEEK_SET) < 0) return writer_fail(w, "seek in", err);
  if (write_all(w, data, bytes, err) != 0) return -1;
  return lseek(w->fd, 0, SEEK_END) < 0 ? writer_fail(w, "seek in", err) : 0;
}

int writer_finish(FileWriter *w, Error *err) {
  if (writer_flush(w, err) != 0) return -1;
  if (fsync(w->fd) != 0) return writer_fail(w, "sync", err);
  const int fd = w->fd;
  w->fd = -1; // closed, even where close fails
  if (close(fd) != 0) return writer_fail(w, "close", err);
  writer_abandon(w);
  return 0;
}

void writer_abandon(FileWriter *w) {
  if (w->fd >= 0) close(w->fd);
  free(w->buffer);
  free(w->path);
  *w = (FileWriter){.fd = -1, .error = w->error};
}

int file_write(const char *path, const void *data, size_t bytes, Error *err) {
  FileWriter w;
  if (writer_open(&w, path, err) != 0 || writer_append(&w, data, bytes, err) != 0) return -1;
  return writer_finish(&w, err);
}

// ---- Paths and folders

PathText path_text(const char *format, ...) {
  PathText path;
  va_list args;
  va_start(args, format);
  vsnprintf(path.text, sizeof path.text, format, args);
  va_end(args);
  return path;
}

int name_ends_with(const char *name, const char *ending) {
  const size_t n = strlen(name), m = strlen(ending);
  return n >= m && strcmp(name + n - m, ending) == 0;
}

const char *path_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

PathText path_parent(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return path_text(".");
  return slash == path ? path_text("/") : path_text("%.*s", (int)(slash - path), path);
}

int file_write_atomic(const char *path, const void *data, size_t bytes, Error *err) {
  const PathText temporary = path_text("%s.tmp", path);
  if (file_write(temporary.text, data, bytes, err) == 0 &&
      path_rename(temporary.text, path, err) == 0)
    return directory_sync(path_parent(path).text, err);
  unlink(temporary.text);
  return -1;
}

int directory_create(const char *path, Error *err) {
  PathText partial = path_text("%s", path);
  for (char *p = partial.text + 1;; p++) {
    if (*p != '/' && *p != '\0') continue;
    const char end = *p;
    *p = '\0';
    if (mkdir(partial.text, 0755) != 0 && (errno != EEXIST || !path_is_directory(partial.text)))
      return error_set(err, "cannot create the folder '%s': %s", partial.text, errno_text());
    if (end == '\0') return 0;
    *p = end;
  }
}

int directory_sync(const char *path, Error *err) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return error_set(err, "cannot open the folder '%s': %s", path, errno_text());
  const int failed = fsync(fd);
  const int why = errno;
  close(fd);
  return failed ? error_set(err, "cannot sync the folder '%s': %s", path, strerror(why)) : 0;
}

int path_rename(const char *from, const char *to, Error *err) {
  if (rename(from, to) == 0) return 0;
  return error_set(err, "cannot rename '%s' to '%s': %s", from, to, errno_text());
}

uint64_t disk_free(const char *path) {
  struct statvfs s;
  PathText at = path_text("%s", path);
  while (statvfs(at.text, &s) != 0) {
    if (errno != ENOENT || strcmp(at.text, ".") == 0) return UINT64_MAX;
    at = path_parent(at.text);
  }
  return s.f_blocks > 0 ? (uint64_t)s.f_bavail * s.f_frsize : UINT64_MAX;
}

int path_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

int path_is_directory(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// ---- Checksums

void *checksum_state(void) {
  XXH3_state_t *hash = XXH3_createState();
  if (!hash || XXH3_64bits_reset(hash) != XXH_OK)
    out_of_memory("the system refused a checksum's state");
  return hash;
}

void checksum_begin(Checksum *c) {
  *c = (Checksum){.piece = checksum_state(), .whole = checksum_state()};
}

static void end_piece(Checksum *c) {
  const uint64_t hash = XXH3_64bits_digest(c->piece);
  XXH3_64bits_update(c->whole, &hash, sizeof hash);
  XXH3_64bits_reset(c->piece);
  c->filled = 0;
}

void checksum_add(Checksum *c, const void *data, size_t bytes) {
  for (const unsigned char *at = data; bytes > 0;) {
    const size_t room = CHECKSUM_PIECE - c->filled, n = bytes < room ? bytes : room;
    XXH3_64bits_update(c->piece, at, n);
    at += n;
    bytes -= n;
    c->filled += n;
    if (c->filled == CHECKSUM_PIECE) end_piece(c);
  }
}

uint64_t checksum_end(Checksum *c) {
  if (c->filled > 0) end_piece(c);
  const uint64_t hash = XXH3_64bits_digest(c->whole);
  checksum_abandon(c);
  return hash;
}

void checksum_abandon(Checksum *c) {
  XXH3_freeState(c->piece);
  XXH3_freeState(c->whole);
  *c = (Checksum){0};
}

uint64_t checksum_of_pieces(const uint64_t *checksums, size_t pieces) {
  return XXH3_64bits(checksums, pieces * sizeof *checksums);
}
