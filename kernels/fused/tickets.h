// Tickets: clusters take tiles as they get done, so that none waits for a slower one at the end.
// Work (mainloop.cuh) is the code, tests/unit/test_tickets.c tries what is claimed here.
//
// The first tile of a cluster has the cluster's number. Each time that the operands' warp of block
// 0 begins a tile, it takes a ticket, an atomic count. In a ring in both blocks it then publishes
// where the next tile lies, a word of 8 bytes for each tile:
//     x  the tile's column
//     y  its row of clusters' tiles, or that there is none; and as the highest bit the parity of
//        the round, by which a reader knows that the word is there
// No reader says that it has read: the ring is longer than the slowest one can be behind. The
// operands' warp, at tile j, is at most STAGES tiles (if K is short) ahead of the products of both
// blocks, so tile j - 6 is multiplied; in turns the epilogue before that is of j - 8 or j - 9; and
// what stores is at most 4 steps behind that, 2 of its consumer's tiles where a tile has 2 steps
// (which has no turns), else 1: it has read up to j - 11. At the end j + 1 and j + 2 are written.
// That counts generously: in the test's model rings of 9 words hold, and those of 8 do not.
#pragma once

enum {
  TICKETS = 16,       // words of the ring, a power of two
  TICKET = 8,         // bytes
  LEAST_TICKETS = 14, // by the count above
};
