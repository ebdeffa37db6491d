// The bytes of a file or of standard input, decompressed: a .gz (also of several members) and a
// .zst (also of several frames) are known by their first bytes, not by their names.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"

#define STREAM_STDIN "-"

// The part of standard input that was read a first time, so that it can be read again.
typedef struct Spool {
  int fd; // of an empty file, open for reading and writing
  uint64_t bytes;
} Spool;

typedef struct Stream Stream;
// A path, or STREAM_STDIN, which continues after what `spool` holds and adds to it while
// `recording` (spool may be NULL). NULL on error.
Stream *stream_open(const char *path, Spool *spool, int recording, Error *err);
// Reads up to bytes > 0: how many there were, 0 at the end, -1 on error. A file that is cut short
// or damaged is an error.
ssize_t stream_read(Stream *stream, char *buffer, size_t bytes, Error *err);
uint64_t stream_position(const Stream *stream); // bytes of the file itself that were read
int stream_is_packed(const Stream *stream);     // 1 if it is compressed
void stream_close(Stream *stream);              // NULL is fine
