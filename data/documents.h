// NAME.docs next to NAME.bin says where the documents of the token file end and which of its tokens
// count as targets, and has checksums of the tokens. All numbers are little-endian:
//
//   uint32  DOCUMENTS_MAGIC, DOCUMENTS_VERSION
//   uint64  tokens in the token file, XXH3-64 of their bytes, documents
//   uint32  1: there is a mask, else 0; the largest token id
//   uint64  XXH3-64 of all bytes of the file but these 8
//   uint32  [documents] where each ends: the token after its last one. They ascend, and the last is
//           the number of tokens
//   uint8   [tokens / 8, rounded up], the mask: bit i % 8 of byte i / 8 is 1 where token i counts
//   uint64  [tokens / BLOCK_TOKENS, rounded up] XXH3-64 of the bytes of each block of tokens
//
// Version 1 has 0 for the largest id, and no blocks. It is read, too.
//
// A document's BOS and EOS are parts of it. A document that continues in the next token file ends
// and begins there.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "data/blocks.h"

#define DOCUMENTS_ENDING ".docs"
enum { DOCUMENTS_MAGIC = 0x73636f64, DOCUMENTS_VERSION = 2, DOCUMENTS_HEADER_BYTES = 48 }; // "docs"

// A window reads whole blocks: larger ones take time, smaller ones memory (data/README.md).
enum { BLOCK_TOKENS = 4096 };
static inline int64_t token_blocks(int64_t tokens) {
  return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

// ---- Reading. A file is accepted as a whole: its checksum, its ends, and that it belongs to its
// token file. What is read later is compared with what was accepted

typedef struct Documents {
  int fd;                      // of the open file; -1 over a caller's memory, and of none
  const unsigned char *memory; // there: its bytes
  char *path;                  // owned; NULL: there is no such file
  int64_t count;               // documents; 0: their ends are not known
  int64_t tokens;
  uint64_t tokens_checksum;
  bool masked;
  uint64_t checksum; // of the file
  uint64_t content;  // of ends and mask: equal for version 1 and 2
  size_t size;       // of the file in bytes
  BlockSums sums;    // of its bytes after the header
  // Of version 2; of others tokens_check makes the sums (data/tokens.h):
  uint64_t *token_sums; // [token_blocks(tokens)], owned; NULL: none yet
  uint32_t largest;     // token id
} Documents;

// Opens the .docs file of the token file `token_path`. tokens, tokens_checksum: the token file's
// count and XXH3-64; a checksum of 0 is not known. An absent .docs is no error: d->path is NULL.
int documents_open(Documents *d, const char *token_path, int64_t tokens, uint64_t tokens_checksum,
                   Error *err);
// Like documents_open, over memory the caller keeps; `name` stands for the path in messages.
int documents_parse(Documents *d, const char *name, const unsigned char *bytes, size_t size,
                    int64_t tokens, uint64_t tokens_checksum, Error *err);
void documents_close(Documents *d); // zeros are fine
// The ends of documents [first, first + count), which are there.
int documents_ends(const Documents *d, int64_t first, int64_t count, uint32_t *ends, Error *err);
// mask[i] = whether token first + i counts as a target; all do where there is no mask.
int documents_mask(const Documents *d, int64_t first, int64_t count, bool *mask, Error *err);

// ---- Writing

// The ends and the mask of a token file that is being written. Starts from zeros.
typedef struct DocumentsWriter {
  uint32_t *ends; // [count]
  int64_t count, capacity;
  uint8_t *mask; // NULL while every token counts
  int64_t mask_bytes;
  int64_t tokens; // so far
} DocumentsWriter;

// The next tokens of a document. mask: [tokens] 0 or 1, 1 where a token counts as a target; NULL:
// all do. last: the document ends with them.
void documents_add(DocumentsWriter *w, int64_t tokens, const uint8_t *mask, bool last);
// Writes and syncs NAME.docs for the token file `token_path`, whose tokens have these checksums
// and this largest id. A document that has not ended ends with the tokens.
int documents_write(DocumentsWriter *w, const char *token_path, const BlockSums *tokens,
                    uint32_t largest, Error *err);
void documents_writer_free(DocumentsWriter *w); // zeros are fine
