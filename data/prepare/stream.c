#include "data/prepare/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/memory.h"
#include "base/os.h"

enum { INPUT_BYTES = 1 << 18, MAGIC_BYTES = 4 };

typedef enum Packing { PLAIN, GZIP, ZSTD } Packing;

struct Stream {
  char *path; // for sentences
  int fd;
  bool ended;
  uint64_t position;
  unsigned char *input; // bytes [start, end) wait
  size_t start, end;
  Packing packing;
  bool between; // members or frames: the file may end here
  z_stream gzip;
  ZSTD_DStream *zstd;
};

// ---- The file itself

int stream_interrupted(Error *err) {
  return signals_came() ? error_set(err, "interrupted: nothing was written") : 0;
}

ssize_t stream_wait(int fd, const char *path, void *buffer, size_t bytes, Error *err) {
  enum { WAIT_MS = 200 };
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  ssize_t n;
  do {
    while (poll(&ready, 1, WAIT_MS) == 0)
      if (stream_interrupted(err) != 0) return -1;
    n = read(fd, buffer, bytes);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return error_set(err, "cannot read '%s': %s", path, strerror(errno));
  return n;
}

// Reads more input. At the end of the file `ended` is set.
static int fill(Stream *s, Error *err) {
  memmove(s->input, s->input + s->start, s->end - s->start);
  s->end -= s->start;
  s->start = 0;
  const ssize_t n = stream_wait(s->fd, s->path, s->input + s->end, INPUT_BYTES - s->end, err);
  if (n < 0) return -1;
  s->ended = n == 0;
  s->end += (size_t)n;
  s->position += (uint64_t)n;
  return 0;
}

static bool starts(const Stream *s, const char *magic, size_t bytes) {
  return s->end - s->start >= bytes && memcmp(s->input + s->start, magic, bytes) == 0;
}

// zlib and zstd fail here for want of memory alone.
static int find_packing(Stream *s, Error *err) {
  while (s->end < MAGIC_BYTES && !s->ended)
    if (fill(s, err) != 0) return -1;
  const bool skippable = s->end >= MAGIC_BYTES && (s->input[0] & 0xf0) == 0x50 &&
                         memcmp(s->input + 1, "\x2a\x4d\x18", 3) == 0;
  s->between = true;
  if (starts(s, "\x1f\x8b", 2)) {
    s->packing = GZIP;
    if (inflateInit2(&s->gzip, 15 + 16) == Z_OK) return 0; // 15: the largest window; 16: gzip
    s->packing = PLAIN;
    return error_set(err, "cannot decompress '%s': out of memory", s->path);
  }
  if (!starts(s, "\x28\xb5\x2f\xfd", 4) && !skippable) return 0;
  s->packing = ZSTD;
  s->zstd = ZSTD_createDStream();
  // Files of `zstd --long=31` are read, too.
  if (s->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, 31))) return 0;
  return error_set(err, "cannot decompress '%s': out of memory", s->path);
}

Stream *stream_open(const char *path, Error *err) {
  Stream *s = xcalloc(1, sizeof *s);
  const bool standard = strcmp(path, STREAM_STDIN) == 0;
  s->path = xstrdup(standard ? "standard input" : path);
  s->input = xmalloc(INPUT_BYTES);
  s->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  if (s->fd < 0)
    error_set(err, "cannot open '%s': %s", path, strerror(errno));
  else if (find_packing(s, err) == 0)
    return s;
  stream_close(s);
  return NULL;
}

void stream_close(Stream *s) {
  if (!s) return;
  if (s->fd > STDIN_FILENO) close(s->fd);
  if (s->packing == GZIP) inflateEnd(&s->gzip);
  ZSTD_freeDStream(s->zstd);
  free(s->input);
  free(s->path);
  free(s);
}

int stream_is_packed(const Stream *s) {
  return s->packing != PLAIN;
}

uint64_t stream_position(const Stream *s) {
  return s->position;
}

// ---- Decompressing

static ssize_t read_plain(Stream *s, char *buffer, size_t bytes) {
  const size_t waiting = s->end - s->start, n = waiting < bytes ? waiting : bytes;
  memcpy(buffer, s->input + s->start, n);
  s->start += n;
  return (ssize_t)n;
}

static int damaged(const Stream *s, const char *why, Error *err) {
  return error_set(err,
                   "cannot decompress '%s' behind its byte %llu: %s; copy or download it again",
                   s->path, (unsigned long long)(s->position - (s->end - s->start)), why);
}

// Behind a member stands another, or zeros that fill a tape's block, as gzip(1) allows. Where there
// is no more input yet, s->between stays.
static int begin_member(Stream *s, Error *err) {
  while (s->start < s->end && s->input[s->start] == 0) s->start++;
  if (s->start == s->end) return 0;
  if (s->input[s->start] != 0x1f)
    return damaged(s, "what stands behind the end of the compressed text is not gzip", err);
  inflateReset(&s->gzip);
  s->between = false;
  return 0;
}

static ssize_t read_gzip(Stream *s, char *buffer, size_t bytes, Error *err) {
  if (s->between && begin_member(s, err) != 0) return -1;
  if (s->between) return 0;
  const uInt room = bytes < INT32_MAX ? (uInt)bytes : INT32_MAX;
  s->gzip.next_in = s->input + s->start;
  s->gzip.avail_in = (uInt)(s->end - s->start);
  s->gzip.next_out = (unsigned char *)buffer;
  s->gzip.avail_out = room;
  const int status = inflate(&s->gzip, Z_NO_FLUSH);
  s->start = s->end - s->gzip.avail_in;
  if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
    return damaged(s, s->gzip.msg ? s->gzip.msg : "it is no gzip", err);
  s->between = status == Z_STREAM_END;
  return (ssize_t)(room - s->gzip.avail_out);
}

static ssize_t read_zstd(Stream *s, char *buffer, size_t bytes, Error *err) {
  if (s->between && s->start == s->end) return 0;
  ZSTD_inBuffer in = {s->input, s->end, s->start};
  ZSTD_outBuffer out = {buffer, bytes, 0};
  const size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
  s->start = in.pos;
  if (ZSTD_isError(left)) return damaged(s, ZSTD_getErrorName(left), err);
  s->between = left == 0;
  return (ssize_t)out.pos;
}

// The decompressors may hold text back from input that they have taken, so they are asked before
// more is read.
ssize_t stream_read(Stream *s, char *buffer, size_t bytes, Error *err) {
  for (;;) {
    const ssize_t n = s->packing == GZIP   ? read_gzip(s, buffer, bytes, err)
                      : s->packing == ZSTD ? read_zstd(s, buffer, bytes, err)
                                           : read_plain(s, buffer, bytes);
    if (n != 0) return n;
    if (s->start < s->end) continue;
    if (s->ended) break;
    if (fill(s, err) != 0) return -1;
  }
  if (s->between) return 0;
  return damaged(s, "it is cut short", err);
}
