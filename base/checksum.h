// The checksum of a file: XXH3-64 of the XXH3-64s of its pieces, so that several threads can make
// one. Each piece but the last has CHECKSUM_PIECE bytes; an empty file has none.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Saved checkpoints were made with this number: with another one all of them would be refused.
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

// The same in two steps: a checksum for each piece, then [pieces] of them. `seen` (or NULL) gets
// each portion of a piece while it is in the processor's cache.
uint64_t checksum_piece(const void *data, size_t bytes,
                        void (*seen)(void *context, const void *portion, size_t bytes),
                        void *context);
uint64_t checksum_of_pieces(const uint64_t *checksums, size_t pieces);

// The XXH3_state_t of no bytes yet, for checksums of other kinds; XXH3_freeState frees it.
void *checksum_state(void);
