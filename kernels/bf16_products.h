// Products whose operands are rounded to bf16 and whose sums are fp32, by oneDNN: the arithmetic of
// a GPU's tensor cores. On a CPU with AMX they are 2 to 4 times as fast as fp32's, on another one
// slower.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"
#include "base/memory.h"
#include "kernels/math.h"
#include "kernels/operations.h"

// 0 if this build and this CPU have them; else -1, and err says in a clause why not.
int bf16_products_usable(Error *err);
// True where they are usable, and faster than fp32's.
bool bf16_products_pay(void);
// What multiplies, in fp32 too, and the instructions it uses for that: "oneDNN 2.6.3 (AVX2)".
ShortText products_library(void);

// The rounded operands of one product, and oneDNN's primitives of the shapes so far. One thread
// calls at a time; the product itself runs on OpenMP's threads.
typedef struct Bf16Products Bf16Products;

// The memory of rounded operands: elements of the largest B, and of the largest A. No more than
// BF16_PIECE elements of A are rounded at a time, or one of its rows.
enum { BF16_PIECE = 1 << 24 };
typedef struct Bf16Room {
  size_t A, B;
} Bf16Room;
static inline size_t bf16_products_bytes(Bf16Room room) {
  return (room.A + room.B) * 2;
}
// May be called only where they are usable. Memory failure exits.
Bf16Products *bf16_products_open(Bf16Room room);
void bf16_products_close(Bf16Products *products); // NULL is fine

// C = A B, or C + A B; C [M, N], A and B as the form says, with row strides lda, ldb and ldc in
// elements. Returns -1 where oneDNN has no primitive of this shape; then C is not written.
int bf16_product(Bf16Products *products, GemmForm form, int64_t M, int64_t N, int64_t K,
                 const float *A, int64_t lda, const float *B, int64_t ldb, bool add, float *C,
                 int64_t ldc);
