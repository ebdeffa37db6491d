// checksums.json of a checkpoint: the step, bytes and checksum (base/file.h) of every other
// file, and at its end the checksum of the text before that. A save writes it last. Older versions
// wrote none, or none of itself.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/json.h"

#define CHECKSUMS_FILE "checksums.json"
#define RUN_CONFIG_FILE "run.json" // these two a resumed run alone reads
#define STATE_FILE "state.json"
enum { NAME_BYTES = 255 }; // of a file, without folder

typedef struct FileSum {
  char name[NAME_BYTES + 1];
  uint64_t bytes;
  NumberText checksum; // hex_text
} FileSum;
typedef struct FileSums {
  int64_t step;
  int count; // 0: the folder has none
  FileSum *files;
} FileSums;
void sums_add(FileSums *sums, const char *name, uint64_t bytes, uint64_t checksum);
// Writes them, with those of the folder's files that are not in them yet.
int sums_write(FileSums *sums, const char *folder, Error *err);
// None where there is no checksums.json. sums_free afterwards, also after an error.
int sums_read(FileSums *sums, const char *folder, Error *err);
void sums_free(FileSums *sums); // zeros are fine
// NULL where they do not name the file.
const FileSum *sums_find(const FileSums *sums, const char *name);
// -1 unless a file of these bytes and this checksum is the one that was saved; path is for the
// sentence.
int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err);
// Reads and compares every file that they name, but for files of tensors. whole: also run.json and
// state.json.
int sums_check_small(const FileSums *sums, const char *folder, bool whole, Error *err);
