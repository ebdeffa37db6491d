// Files: reading whole ones, and writing in a way that survives a crash, a full disk and a SIGKILL.
// All writes go through write(2), fsync(2) and rename(2), so that tests can inject a fault at each.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

// A regular file to read from: its descriptor, or -1. A pipe or a device is refused, never waited
// for.
int file_open(const char *path, size_t *bytes, Error *err);
// Its bytes [offset, offset + bytes). A file that became shorter is an error.
int file_read_at(int fd, const char *path, uint64_t offset, void *data, size_t bytes, Error *err);
// Reads a whole file of at most max_bytes into fresh memory with a NUL appended (not counted in
// *bytes).
int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, Error *err);

// -1 if the bytes are git-lfs' pointer to a large file that it did not fetch.
int file_refuse_pointer(const char *path, const void *data, size_t bytes, Error *err);
// -1 also for a compressed file; the sentence names the command that unpacks it.
int file_refuse_packed(const char *path, const void *data, size_t bytes, Error *err);

// -1 if a file of these bytes is shorter or longer than its header promises.
int file_refuse_size(const char *path, size_t bytes, size_t promised, Error *err);
// -1: the bytes are not those that were written.
int file_damaged(const char *path, Error *err);

// Buffered writer: create (or truncate), append, then finish = flush + fsync + close. The first
// failure closes the writer and frees its memory: every later call but open fails with the same
// error, and the partial file stays for the caller.
typedef struct FileWriter {
  int fd;
  char *path; // owned
  unsigned char *buffer;
  size_t used;
  uint64_t total; // bytes accepted so far
  Error error;    // first failure; empty while all is well
} FileWriter;
int writer_open(FileWriter *w, const char *path, Error *err);
int writer_append(FileWriter *w, const void *data, size_t bytes, Error *err);
// Overwrites bytes accepted earlier: [offset, offset + bytes) lies below w->total.
int writer_patch(FileWriter *w, uint64_t offset, const void *data, size_t bytes, Error *err);
int writer_finish(FileWriter *w, Error *err);
void writer_abandon(FileWriter *w); // closes without syncing; safe after a failure and after finish

// Writes a small file whole and syncs it.
int file_write(const char *path, const void *data, size_t bytes, Error *err);
// Like file_write, but writes path.tmp and renames it when it is complete; syncs the folder, too.
int file_write_atomic(const char *path, const void *data, size_t bytes, Error *err);

// A path put together printf style. A path that is too long for the system is cut, but stays too
// long, so that every use of it fails.
typedef struct PathText {
  char text[4096 + 1]; // Linux takes 4095 bytes
} PathText;
PathText path_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
PathText path_parent(const char *path);  // "." or "/" at the end
const char *path_name(const char *path); // its last part, in `path`
int name_ends_with(const char *name, const char *ending);

int directory_create(const char *path, Error *err); // with parents; fine if it exists
int directory_sync(const char *path, Error *err);   // fsync of a directory's entries
int path_rename(const char *from, const char *to, Error *err);
// Bytes that this user may still write to the file system of `path`, or of the nearest folder above
// it that is there; UINT64_MAX where the system does not say.
uint64_t disk_free(const char *path);
int path_exists(const char *path); // 1 if anything is there, following links
int path_is_directory(const char *path);

// The checksum of a file: XXH3-64 of the XXH3-64s of its pieces, so that several threads can
// compute one. Each piece but the last has CHECKSUM_PIECE bytes; an empty file has none.
//
// Saved checkpoints have checksums with this number: with another one all of them would be refused.
enum { CHECKSUM_PIECE = 16 << 20 };

// Of bytes as they come, in any portions.
typedef struct Checksum {
  void *piece, *whole;
  size_t filled; // bytes in the piece
} Checksum;
void checksum_begin(Checksum *c);
void checksum_add(Checksum *c, const void *data, size_t bytes);
uint64_t checksum_end(Checksum *c);
void checksum_abandon(Checksum *c); // safe after the end; zeros are fine

// The same of the XXH3-64s of its [pieces].
uint64_t checksum_of_pieces(const uint64_t *checksums, size_t pieces);

// The XXH3_state_t of no bytes yet, for checksums of other kinds; XXH3_freeState frees it.
void *checksum_state(void);
