// Checksums of a file's blocks, so that what is used is what was checked.
//
// A file that a run reads may be overwritten at any moment, and neither its size nor its time has
// to change. So a read copies the whole blocks that it touches, compares the copies with checksums
// made before, and takes its bytes from the copies.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

enum { BLOCK_MOST = 16 << 10 }; // bytes in a block at most

// The XXH3-64 of each block of a stream, and of the whole stream.
typedef struct BlockSums {
  size_t block;   // bytes in a block; the last one may have fewer
  uint64_t *sums; // [count], owned; complete after block_sums_end
  int64_t count;
  uint64_t whole; // after block_sums_end
  int64_t capacity;
  size_t filled;     // bytes in the open block
  void *part, *hash; // of the open block, and of the whole; NULL before the begin and after the end
} BlockSums;

void block_sums_begin(BlockSums *s, size_t block);
// Bytes that come before the first block: they count in `whole` alone.
void block_sums_head(BlockSums *s, const void *bytes, size_t count);
void block_sums_add(BlockSums *s, const void *bytes, size_t count); // in any portions
void block_sums_end(BlockSums *s);
void block_sums_free(BlockSums *s); // at any time; zeros are fine

// Bytes to read: part of an open file, or of the caller's memory.
typedef struct Blocks {
  int fd;                      // -1: memory
  const unsigned char *memory; // there: the first block
  const char *path;            // for messages
  size_t base;                 // where the first block begins in the file
  size_t bytes;                // in all blocks
  size_t block;                // bytes in a block, at most BLOCK_MOST
  const uint64_t *sums;        // of each block; NULL: they are not compared
} Blocks;

// Bytes [first, first + count) of the blocks. An error if the file cannot be read, or if a block
// does not have its checksum. Allocates nothing.
int blocks_read(const Blocks *b, size_t first, size_t count, void *to, Error *err);
