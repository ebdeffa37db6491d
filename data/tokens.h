// Token files in llm.c's format: a header of 256 int32 (little-endian), then the tokens. The header
// begins with 20240520, 1 where tokens are uint16, with 20240801, 7 where they are uint32; then
// comes the number of tokens. Source of the format: karpathy/llm.c, dev/data/data_common.py and
// llmc/dataloader.h, which leave the rest of the header zero. Ours says there who made the tokens:
// TOKENS_MARK, then two uint64 in two int32 each: the tokenizer's fingerprint
// (data/tokenizer/tokenizer.h) and the XXH3-64 of the tokens' bytes.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/file.h"

typedef struct TokenFile {
  MappedFile map;              // empty over a caller's memory
  const unsigned char *tokens; // the first one, perhaps unaligned
  char *path;                  // owned
  int64_t count;               // tokens
  int token_bytes;             // 2 or 4
  uint64_t tokenizer;          // fingerprint; 0: the file does not say
  uint64_t checksum;           // of the tokens, where tokenizer is not 0
} TokenFile;

// Maps and validates header and size. The tokens themselves are checked by tokens_check.
int tokens_open(TokenFile *file, const char *path, Error *err);
// The same over memory the caller keeps (for fuzzing).
int tokens_parse(TokenFile *file, const char *name, const unsigned char *bytes, size_t size,
                 Error *err);
void tokens_close(TokenFile *file);
// Tokens [first, first + count) as int32. The range must lie inside the file.
void tokens_read(const TokenFile *file, int64_t first, int64_t count, int32_t *tokens);
// Every token id < vocab_size? The sentence names file, position and id of the first that is not. A
// checksum that the file has must be that of its tokens.
int tokens_check(const TokenFile *file, int64_t vocab_size, Error *err);

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
