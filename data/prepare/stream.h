// The bytes of a file or of standard input, decompressed: a .gz (also of several members) and a
// .zst (also of several frames) are known by their first bytes, not by their names.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"

#define STREAM_STDIN "-"

typedef struct Stream Stream;
// A path, or STREAM_STDIN. NULL on error.
Stream *stream_open(const char *path, Error *err);
// Reads up to bytes > 0: how many there were, 0 at the end, -1 on error. A file that is cut short
// or damaged is an error.
ssize_t stream_read(Stream *stream, char *buffer, size_t bytes, Error *err);
uint64_t stream_position(const Stream *stream); // bytes of the file itself that were read
int stream_is_packed(const Stream *stream);     // 1 if it is compressed
void stream_close(Stream *stream);              // NULL is fine
// read(2) of up to `bytes`, 0 at the end, -1 on error. A pipe may keep us waiting: a signal that is
// held back ends that. path: for sentences.
ssize_t stream_wait(int fd, const char *path, void *buffer, size_t bytes, Error *err);
// -1 and a sentence: a signal that is held back came.
int stream_interrupted(Error *err);
