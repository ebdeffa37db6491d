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
#include "data/documents.h"

enum { TOKENS_MOST_IDS = 1 << 24 }; // the largest model.vocab_size

typedef struct TokenFile {
  int fd;                // of the open file; -1 over a caller's memory
  const int32_t *memory; // there: [count]
  char *path;            // owned
  int64_t count;         // tokens
  int token_bytes;       // 2 or 4
  uint64_t tokenizer;    // fingerprint; 0: the file does not say
  uint64_t checksum;     // of the tokens, where tokenizer is not 0
  Documents documents;   // from its .docs file
} TokenFile;

// Validates header and size, and all of the file of its documents. The file is read, never mapped,
// so that one that is cut under a run gives an error and not SIGBUS.
int tokens_open(TokenFile *file, const char *path, Error *err);
void tokens_close(TokenFile *file);
// Whether the paths still name the files that are open.
bool tokens_named(const TokenFile *file);

// Comes before the first window is read: from then on file->documents.facts are known, and
// tokens_read gives out only tokens that were in the file now. NAME.docs of version 2 has the
// facts. Without them the whole file is read and they are made, and its own checksum, if it has
// one, is compared. An error also where the largest id is one that no tokenizer has.
int tokens_check(TokenFile *file, Error *err);
// Tokens [first, first + count), which lie inside the file, as int32. Blocks that they touch are
// compared with their checksums: a file may be overwritten at any moment, and neither its size nor
// its time has to change. An id that is not below vocab_size is an error; a vocab_size of 0 takes
// every id. Allocates nothing.
int tokens_read(const TokenFile *file, int64_t first, int64_t count, int64_t vocab_size,
                int32_t *tokens, Error *err);

// A hash of the file's content: of its header and, if that has no checksum, of 192 KiB of its
// tokens, at the start, in the middle and at the end.
int tokens_fingerprint(const TokenFile *file, uint64_t *fingerprint, Error *err);

// Writing: uint16 tokens where vocab_size allows, else uint32. Count and checksum are filled in at
// finish; the header's count is an int32, so a file holds at most TOKENS_MAX_COUNT tokens (one more
// is an error) and the caller opens the next shard. `tokenizer` is a fingerprint, or 0 for a file
// that does not say who made it. token_writer_close comes last, also after an error or an
// interruption; then the partial file is the caller's to remove.
enum { TOKENS_HEADER_BYTES = 1024, TOKENS_MARK = 0x61646f63 }; // "coda"
#define TOKENS_MAX_COUNT INT32_MAX
// A block of tokens as they lie in a file.
typedef union TokenBlock {
  uint16_t narrow[BLOCK_TOKENS];
  int32_t wide[BLOCK_TOKENS]; // uint32 tokens
} TokenBlock;

typedef struct TokenWriter {
  FileWriter file;
  int token_bytes;
  int64_t count;
  uint64_t tokenizer;
  TokenFacts facts; // complete after finish
  int64_t blocks, capacity;
  void *hash;       // of all tokens
  TokenBlock block; // the open one, of count % BLOCK_TOKENS tokens
} TokenWriter;
int token_writer_open(TokenWriter *w, const char *path, int64_t vocab_size, uint64_t tokenizer,
                      Error *err);
int token_writer_append(TokenWriter *w, const int32_t *tokens, int64_t count, Error *err);
int token_writer_finish(TokenWriter *w, Error *err);
void token_writer_close(TokenWriter *w);
