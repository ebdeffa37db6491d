// Two kinds of blocks in one launch (kernels/cuda/interleave.h), in all numbers of both up to MOST.
#include "kernels/cuda/interleave.h"
#include "tests/support/test.h"

enum { MOST = 40 };

// kinds[place] becomes the kind of the block there; -1 where there is none.
static void fill(int *kinds, const int64_t *counts) {
  const int64_t all = counts[0] + counts[1];
  for (int64_t i = 0; i < all; i++) kinds[i] = -1;
  for (int kind = 0; kind < 2; kind++) {
    int64_t before = -1;
    for (int64_t k = 0; k < counts[kind]; k++) {
      const int64_t place = interleaved_place(kind == 1, k, counts[kind], all);
      assert_true(before < place && place < all); // in order
      assert_int_equal(kinds[place], -1);         // and alone there
      kinds[place] = kind;
      before = place;
    }
  }
}

TEST(each_block_has_a_place_and_kinds_keep_their_order) {
  int kinds[2 * MOST];
  for (int64_t a = 0; a <= MOST; a++)
    for (int64_t b = 0; b <= MOST; b++) {
      fill(kinds, (int64_t[]){a, b});
      if (b > 0) assert_int_equal(kinds[0], 1);
    }
}

// After any number of blocks, each kind has had its share of them, to within one block.
TEST(kinds_are_spread_evenly) {
  int kinds[2 * MOST];
  for (int64_t a = 0; a <= MOST; a++)
    for (int64_t b = 0; b <= MOST; b++) {
      int64_t seen = 0;
      fill(kinds, (int64_t[]){a, b});
      for (int64_t i = 0; i < a + b; i++) {
        seen += kinds[i];
        assert_true(llabs(seen * (a + b) - (i + 1) * b) < a + b);
      }
    }
}

TEST(a_kind_alone_keeps_its_places) {
  for (int64_t k = 0; k < MOST; k++) {
    assert_int_equal(interleaved_place(true, k, MOST, MOST), k);
    assert_int_equal(interleaved_place(false, k, MOST, MOST), k);
  }
}

// 405 billion weights.
TEST(places_of_large_models_are_in_range) {
  const int64_t all = (int64_t)405e9 / 8192;
  assert_int_equal(interleaved_place(false, all - 2, all - 1, all), all - 1);
  assert_int_equal(interleaved_place(true, 0, 1, all), 0);
}
