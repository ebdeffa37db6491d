// Attention of another shape beside a recorded one: the recorded calls keep their scratch.
#include "tests/gpu/gpu_test.h"
#include "tests/support/shapes.h"

enum { H = 6, D_HEAD = 48, R = 3 * H * D_HEAD, B = 8, T = 256, LONGER = 1024 };

typedef struct Part {
  Backend *be;
  void *qkv, *o, *lse, *da, *dqkv;
} Part;

// Returns whether the calls were made, or a record of them launched.
static bool replay(const Part *p) {
  Backend *be = p->be;
  if (!be->services.replay_begin(be, REPLAY_FIRST_BACKWARD)) return false;
  be->attention(be, B, T, p->qkv, operand_of(p->o), p->lse);
  be->attention_backward(be, B, T, p->qkv, p->o, p->lse, p->da, p->dqkv);
  be->services.replay_end(be, REPLAY_FIRST_BACKWARD);
  return true;
}

TEST(a_recorded_step_outlives_a_larger_shape) {
  enum { ROWS = B * T, LONG_ROWS = B * LONGER, PIECES = 32, PIECE = 2 << 20 };
  const Spec spec = {SPEC_SHAPE(H * D_HEAD, 64, H, H, D_HEAD, 64, LONG_ROWS, LONGER),
                     .rms_norm_eps = 1e-5,
                     .kernels = KERNELS_UNFUSED,
                     .train = true,
                     .graphs = true,
                     .deterministic = true};
  Backend *be = gpu_backend(spec);
  float *qkv = random_bf16(LONG_ROWS * R, 1, "qkv"), *da = random_bf16(ROWS * H * D_HEAD, 1, "da");
  Bench b = {.be = be};
  Part p = {.be = be,
            .qkv = bf16_buffer(&b, LONG_ROWS * R, qkv),
            .o = bf16_buffer(&b, LONG_ROWS * H * D_HEAD, NULL),
            .lse = fp32_buffer(&b, LONG_ROWS * H, NULL),
            .da = bf16_buffer(&b, ROWS * H * D_HEAD, da),
            .dqkv = bf16_buffer(&b, ROWS * R, NULL)};
  bench_reset(&b);
  assert_true(replay(&p)); // launched, then recorded
  assert_true(replay(&p));
  float *first = bench_read(&b, p.dqkv);
  be->attention(be, B, LONGER, p.qkv, operand_of(p.o), p.lse); // needs more scratch

  // Whoever takes memory now, in the driver's pieces, takes none that the recorded calls write to.
  char *pieces[PIECES], *poison = xmalloc(PIECE), *found = xmalloc(PIECE);
  memset(poison, 0x5a, PIECE);
  for (int i = 0; i < PIECES; i++) {
    pieces[i] = be->services.alloc(be, PIECE);
    assert_non_null(pieces[i]);
    be->services.write(be, pieces[i], poison, PIECE);
  }
  assert_false(replay(&p));
  float *again = bench_read(&b, p.dqkv);
  expect_same("dqkv", again, first, ROWS * R);
  for (int i = 0; i < PIECES; i++) {
    be->services.read(be, found, pieces[i], PIECE);
    assert_memory_equal(found, poison, PIECE);
    be->services.release(be, pieces[i]);
  }
  free(poison), free(found), free(first), free(again), free(qkv), free(da);
  bench_free(&b);
  be->services.destroy(be);
}
