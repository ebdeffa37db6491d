// Token files in llm.c's format: a header of 256 int32 (little-endian), then the tokens. The header
// begins with 20240520, 1 where tokens are uint16, with 20240801, 7 where they are uint32; then
// comes the number of tokens. Source of the format: karpathy/llm.c, dev/data/data_common.py and
// llmc/dataloader.h, which leave the rest of the header zero. Ours says there who made the tokens:
// TOKENS_MARK, then two uint64 in two int32 each: the tokenizer's fingerprint
// (data/tokenizer/tokenizer.h) and the XXH3-64 of the tokens' bytes.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include "base/error.h"
#include "base/file.h"
#include "data/documents.h"

enum { TOKENS_MOST_IDS = 1 << 24 }; // the largest model.vocab_size

typedef struct TokenFile {
  int fd;                      // of the open file; -1 over a caller's memory
  const unsigned char *memory; // there: token memory_first, perhaps unaligned
  int64_t memory_first;
  char *path;          // owned
  int64_t count;       // tokens
  int token_bytes;     // 2 or 4
  uint64_t tokenizer;  // fingerprint; 0: the file does not say
  uint64_t checksum;   // of the tokens, where tokenizer is not 0
  Documents documents; // from the file beside it
} TokenFile;

// Validates header and size, and all of the file of its documents. The tokens themselves are
// checked by tokens_read and tokens_check. The file is read, never mapped, so that one that is cut
// under a run gives an error and not SIGBUS.
int tokens_open(TokenFile *file, const char *path, Error *err);
// The same over memory the caller keeps.
int tokens_parse(TokenFile *file, const char *name, const unsigned char *bytes, size_t size,
                 Error *err);
void tokens_close(TokenFile *file);
// Tokens [first, first + count), which lie inside the file, as int32. An id that is not below
// vocab_size is an error that names file, position and id; a vocab_size of 0 takes every id.
int tokens_read(const TokenFile *file, int64_t first, int64_t count, int64_t vocab_size,
                int32_t *tokens, Error *err);

// A check of all tokens, a piece at a time: every id < vocab_size, and the checksum, where the file
// has one, that of its tokens. Starts from zeros.
typedef struct TokenCheck {
  int64_t next;      // the first token that was not looked at
  uint64_t checksum; // XXH3-64 of the tokens, once all were
  void *hash;
  unsigned char *piece; // as it lies in the file
  int32_t *ids;         // as they are
  bool id_found;        // beyond the vocabulary; what `id_error` says of the first
  Error id_error;
} TokenCheck;
// Checks the next 256 KiB. 1: there is more, 0: the whole file is right, -1: it is not. A file with
// a checksum is read to its end, as an id that is too large may only be damage. After 0 and -1 the
// next call begins with another file, or the same; token_check_end frees the memory, at any time.
int tokens_check(const TokenFile *file, int64_t vocab_size, TokenCheck *check, Error *err);
void token_check_end(TokenCheck *check);

// An error unless the open file still has the size and the header that it was opened with.
int tokens_check_header(const TokenFile *file, Error *err);
// True if its name, or that of its documents, belongs to another file now, or to none.
bool tokens_replaced(const TokenFile *file);
// A hash of the file's content: of its header and, if that has no checksum, of 192 KiB of its
// tokens, at the start, in the middle and at the end.
int tokens_fingerprint(const TokenFile *file, uint64_t *fingerprint, Error *err);

// Writing: uint16 tokens where vocab_size allows, else uint32. Count and checksum are filled in at
// finish; the header's count is an int32, so a file holds at most TOKENS_MAX_COUNT tokens (one more
// is an error) and the caller opens the next shard. `tokenizer` is a fingerprint, or 0 for a file
// that does not say who made it. After an error or an interruption: token_writer_abandon, and the
// partial file is the caller's to remove.
enum { TOKENS_HEADER_BYTES = 1024, TOKENS_MARK = 0x61646f63 }; // "coda"
#define TOKENS_MAX_COUNT INT32_MAX
typedef struct TokenWriter {
  FileWriter file;
  int token_bytes;
  int64_t count;
  uint64_t tokenizer, checksum; // the checksum is there after finish
  void *hash;                   // of the tokens so far
} TokenWriter;
int token_writer_open(TokenWriter *w, const char *path, int64_t vocab_size, uint64_t tokenizer,
                      Error *err);
int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err);
int token_writer_finish(TokenWriter *w, Error *err);
void token_writer_abandon(TokenWriter *w); // safe after a failure and after finish
