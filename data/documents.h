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
#include <stdint.h>
#include "base/error.h"

#define DOCUMENTS_ENDING ".docs"
enum { DOCUMENTS_MAGIC = 0x73636f64, DOCUMENTS_VERSION = 2, DOCUMENTS_HEADER_BYTES = 48 }; // "docs"

// A window reads whole blocks: larger ones take time, smaller ones memory (data/README.md).
enum { BLOCK_TOKENS = 4096 };
static inline int64_t token_blocks(int64_t tokens) {
  return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

// What is known of all tokens of a file.
typedef struct TokenFacts {
  uint64_t *sums;    // owned: [token_blocks(tokens)] XXH3-64s; NULL: not known yet
  uint64_t checksum; // XXH3-64 of all tokens' bytes
  uint32_t largest;  // id
} TokenFacts;

// ---- Reading. A file is accepted as a whole: its checksum, its ends, and that it belongs to its
// token file. It is held in memory, so that nothing of it changes later

typedef struct Documents {
  char *path;           // owned; NULL: there is no such file
  int fd;               // of the open file, where there is one
  char *bytes;          // owned: all of the file behind its header
  int64_t count;        // documents; 0: their ends are not known
  const uint32_t *ends; // [count]
  const uint8_t *mask;  // see documents_counts; NULL: every token counts as a target
  uint64_t content;     // of ends and mask: equal for version 1 and 2
  TokenFacts facts; // version 1 has the checksum only; tokens_check makes the rest (data/tokens.h)
} Documents;

// Opens the .docs file of the token file `token_path`. tokens, checksum: the token file's count and
// XXH3-64; a checksum of 0 is not known. An absent .docs is no error: d->path is NULL.
int documents_open(Documents *d, const char *token_path, int64_t tokens, uint64_t checksum,
                   Error *err);
void documents_close(Documents *d); // zeros are fine
// Whether this token counts as a target.
static inline bool documents_counts(const Documents *d, int64_t token) {
  return !d->mask || (d->mask[token / 8] >> token % 8 & 1);
}

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
// Writes and syncs NAME.docs for the token file `token_path`, of whose tokens these are the facts.
// A document that has not ended ends with the tokens.
int documents_write(DocumentsWriter *w, const char *token_path, const TokenFacts *facts,
                    Error *err);
void documents_writer_free(DocumentsWriter *w); // zeros are fine
