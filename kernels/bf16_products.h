// Products whose operands are rounded to bf16 and whose sums are fp32, by oneDNN: what a GPU's
// tensor cores do. A CPU with AMX makes them 2 to 4 times as fast as fp32's, another one slower.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/error.h"
#include "kernels/math.h"
#include "kernels/operations.h"

// Whether this program and this CPU have them; -1: err says in a clause why not.
int bf16_products_usable(Error *err);
// Whether they are usable, and faster than fp32's.
bool bf16_products_pay(void);
// "oneDNN 2.6.3", NUL-terminated.
typedef struct ProductsText {
  char text[32];
} ProductsText;
ProductsText bf16_products_library(void);

// The rounded operands of one product, and what oneDNN has made for each shape so far. One thread
// calls at a time; the product itself runs on OpenMP's threads.
typedef struct Bf16Products Bf16Products;

// What operands may need: elements of the largest B, and of the largest A. Of A no more than
// BF16_PIECE are rounded at a time, or one of its rows.
enum { BF16_PIECE = 1 << 24 };
typedef struct Bf16Room {
  size_t A, B;
} Bf16Room;
static inline size_t bf16_products_bytes(Bf16Room room) {
  return (room.A + room.B) * 2;
}
// Only where they are usable. Memory failure exits.
Bf16Products *bf16_products_open(Bf16Room room);
void bf16_products_close(Bf16Products *products); // NULL is fine

// C = A B, or C + A B; C [M, N], A and B as the form says, with row strides lda, ldb and ldc in
// elements. -1: oneDNN has none of this shape, and C is not written.
int bf16_product(Bf16Products *products, GemmForm form, int64_t M, int64_t N, int64_t K,
                 const real *A, int64_t lda, const real *B, int64_t ldb, bool add, real *C,
                 int64_t ldc);
