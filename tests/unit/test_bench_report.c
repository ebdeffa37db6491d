// What follows from a bench's measurements: floors, sums, ratios, parts of a step.
#include "model/run/bench.h"
#include "tests/support/test.h"

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static Spread at(double median) {
  return (Spread){
      .count = 10, .median = median, .tenth = 0.99 * median, .ninetieth = 1.01 * median};
}

// Two products, one of them with a pass over memory besides, attention, and a pass alone, whose
// bytes the floor counts in part. A copy moves 1e9 bytes a ms.
static BenchResult example(void) {
  BenchResult r = {
      .kinds = BENCH_KINDS, .only = OPERATION_COUNT, .whole = true, .copy_rate = 1e9, .rounds = 4};
  r.ops[OP_gate_up] = (BenchOp){.work = {.kind = CLASS_GEMM, .flops = 900e9},
                                .runs = KERNEL_FUSED,
                                .calls = 3,
                                .in_forward = 1,
                                .time = {at(2.2), at(3)},
                                .bare = at(2)};
  r.ops[OP_head_loss] =
      (BenchOp){.work = {.kind = CLASS_GEMM, .flops = 600e9, .floor_bytes = 0.5e9},
                .runs = KERNEL_FUSED,
                .calls = 1,
                .time = {at(1.8), at(1.7)},
                .bare = at(1)};
  r.ops[OP_attention] = (BenchOp){.work = {.kind = CLASS_ATTENTION},
                                  .runs = KERNEL_UNFUSED,
                                  .calls = 3,
                                  .in_forward = 1,
                                  .time = {at(1.01), at(1)},
                                  .bare = spread_of(NULL, 0)};
  r.ops[OP_adamw] = (BenchOp){.work = {.kind = CLASS_MEMORY, .bytes = 0.6e9, .floor_bytes = 0.6e9},
                              .runs = KERNEL_UNFUSED,
                              .calls = 1,
                              .time = {at(0.97), at(1)},
                              .bare = spread_of(NULL, 0)};
  r.ops[OP_rope_backward] = (BenchOp){.work = {.kind = CLASS_MEMORY, .bytes = 0.1e9},
                                      .runs = KERNEL_UNFUSED,
                                      .calls = 3,
                                      .in_backward = 1,
                                      .time = {at(0.2), at(0.2)},
                                      .bare = spread_of(NULL, 0)};
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    for (int kind = 0; kind < BENCH_KINDS; kind++) r.layer[pass][kind] = at(4 + kind);
  r.step[BENCH_FUSED] = at(13.2);
  r.step[BENCH_UNFUSED] = at(15.84);
  r.gain = (Spread){.count = 4, .median = 1.2, .tenth = 1.19, .ninetieth = 1.21};
  return r;
}

TEST(a_spread_is_median_and_percentiles) {
  double samples[] = {5, 1, 4, 2, 3, 9, 8, 7, 6, 10, 11};
  const Spread s = spread_of(samples, 11);
  near(s.median, 6);
  near(s.tenth, 2);
  near(s.ninetieth, 10);
  double two[] = {4, 2};
  near(spread_of(two, 2).median, 3);
  assert_true(isnan(spread_of(NULL, 0).median));
}

TEST(a_floor_is_products_attention_and_bytes) {
  BenchResult r = example(), other = example();
  bench_derive(&r);
  near(r.ops[OP_gate_up].floor, 2);
  near(r.ops[OP_head_loss].floor, 1 + 0.5);
  near(r.ops[OP_attention].floor, 1); // the smaller of the two
  near(r.ops[OP_adamw].floor, 0.6);
  near(r.sum[BENCH_FLOOR], 3 * 2 + 1.5 + 3 + 0.6);
  near(r.layer_floor[PASS_FORWARD], 3);
  other.ops[OP_head_loss].in_backward = 2;
  bench_derive(&other);
  near(other.layer_floor[PASS_BACKWARD], 3); // 2 x 1.5; a pass outside the floor adds nothing
  near(other.layer_floor[PASS_BOTH], 6);
}

TEST(operations_add_up_by_their_calls) {
  BenchResult r = example();
  bench_derive(&r);
  near(r.sum[BENCH_FUSED], 3 * 2.2 + 1.8 + 3 * 1.01 + 0.97 + 0.6);
  near(r.sum[BENCH_UNFUSED], 9 + 1.7 + 3 + 1 + 0.6);
  near(r.alike, (3 * 1.01 + 0.97 + 0.6) / 4.6);
  near(r.products, 7);
  near(r.attention[BENCH_FUSED], 3.03);
  near(r.sum[BENCH_FLOOR] - r.products - r.attention[BENCH_FLOOR], 0.5 + 0.6);
}

TEST(the_peak_is_that_of_the_fastest_product) {
  for (int faster = 0; faster < 2; faster++) {
    BenchResult r = example();
    if (faster) r.ops[OP_gate_up].work.flops = 1400e9; // in 2 ms
    bench_derive(&r);
    near(r.peak, faster ? 700 : 600);
  }
}

TEST(rates_are_of_the_fused_kernel) {
  BenchResult r = example();
  bench_derive(&r);
  const OpRates gate_up = op_rates(&r, &r.ops[OP_gate_up]), adamw = op_rates(&r, &r.ops[OP_adamw]);
  near(gate_up.over_bare, 1.1);
  near(gate_up.unfused_over, 3 / 2.2);
  near(gate_up.tflops, 900 / 2.2);
  near(gate_up.of_peak, 900 / 2.2 / 600);
  near(adamw.of_copy, 0.6 / 0.97);
  assert_true(isnan(adamw.tflops) && isnan(adamw.over_bare) && isnan(gate_up.of_copy));
}

TEST(a_line_to_quote_says_what_fusing_gains) {
  BenchResult r = example();
  r.card = short_text("NVIDIA H200");
  r.model = short_text("1.24B");
  r.tokens = 32768;
  assert_string_equal(bench_quote(&r).text,
                      "On NVIDIA H200 a training step of 1.24B parameters takes 13.2 ms with fused "
                      "kernels and 15.84 ms with unfused ones: fused is 1.200 times as fast (1.190 "
                      "to 1.210), 2.48M tokens/s");
  r.gain.median = r.gain.tenth = r.gain.ninetieth = NAN;
  assert_string_equal(bench_quote(&r).text,
                      "On NVIDIA H200 a training step of 1.24B parameters takes 13.2 ms with fused "
                      "kernels and 15.84 ms with unfused ones: fused is 1.200 times as fast "
                      "(measured one after the other), 2.48M tokens/s");
  r.kinds = 1;
  r.card = short_text("This processor");
  assert_string_equal(bench_quote(&r).text,
                      "This processor trains 1.24B parameters at 2.48M tokens/s");
}
