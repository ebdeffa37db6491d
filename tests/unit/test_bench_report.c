// What follows from a bench's measurements: floors, sums, ratios, parts of a step, the verdict on
// the machine's noise, and that the JSON says the same.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka_all.h"

#include "model/bench/report.h"

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
  BenchResult r = {.config = "a.json",
                   .gpu = "a \"GPU\"",
                   .op_count = 5,
                   .whole = true,
                   .peak = at(1),
                   .peak_flops = 600e9,
                   .copy = at(2),
                   .copy_bytes = 2e9,
                   .rounds = 4};
  r.ops[0] = (BenchOp){.call = {.operation = OP_GATE_UP, .class = CLASS_GEMM, .flops = 900e9},
                       .runs = KERNEL_FUSED,
                       .calls = 3,
                       .in_forward = 1,
                       .time = {at(2.2), at(3)},
                       .bare = at(2),
                       .alone = 2};
  r.ops[1] = (BenchOp){.call = {.operation = OP_HEAD_LOSS,
                                .class = CLASS_GEMM,
                                .flops = 300e9,
                                .floor_bytes = 0.5e9},
                       .runs = KERNEL_UNFUSED,
                       .calls = 1,
                       .time = {at(1.8), at(1.7)},
                       .bare = at(1),
                       .alone = 1};
  r.ops[2] = (BenchOp){.call = {.operation = OP_ATTENTION, .class = CLASS_ATTENTION},
                       .runs = KERNEL_UNFUSED,
                       .alike = true,
                       .calls = 3,
                       .in_forward = 1,
                       .time = {at(1.01), at(1)},
                       .bare = spread_of(NULL, 0)};
  r.ops[3] = (BenchOp){
      .call = {.operation = OP_ADAMW, .class = CLASS_MEMORY, .bytes = 0.6e9, .floor_bytes = 0.6e9},
      .runs = KERNEL_UNFUSED,
      .alike = true,
      .calls = 1,
      .time = {at(0.97), at(1)},
      .bare = spread_of(NULL, 0)};
  r.ops[4] =
      (BenchOp){.call = {.operation = OP_ROPE_BACKWARD, .class = CLASS_MEMORY, .bytes = 0.1e9},
                .runs = KERNEL_UNFUSED,
                .calls = 3,
                .in_backward = 1,
                .time = {at(0.2), at(0.2)},
                .bare = spread_of(NULL, 0)};
  for (int i = 0; i < r.op_count; i++) r.ops[i].differences = (Differences){1e-3, 2e-3, NAN};
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    for (int kind = 0; kind < BENCH_KINDS; kind++) r.layer[pass][kind] = at(4 + kind);
  r.step[BENCH_FUSED] = at(13.2);
  r.step[BENCH_UNFUSED] = at(15.84);
  r.gain = (Spread){.count = 4, .median = 1.2, .tenth = 1.19, .ninetieth = 1.21};
  return r;
}

static void a_spread_is_median_and_percentiles(void **state) {
  (void)state;
  double samples[] = {5, 1, 4, 2, 3, 9, 8, 7, 6, 10, 11};
  const Spread s = spread_of(samples, 11);
  near(s.median, 6);
  near(s.tenth, 2);
  near(s.ninetieth, 10);
  near(spread_width(&s), 8.0 / 6);
  double two[] = {4, 2};
  near(spread_of(two, 2).median, 3);
  assert_true(isnan(spread_of(NULL, 0).median));
}

static void a_floor_is_products_attention_and_bytes(void **state) {
  (void)state;
  const BenchResult r = example();
  near(op_ms(&r, &r.ops[0], BENCH_FLOOR), 2);
  near(op_ms(&r, &r.ops[1], BENCH_FLOOR), 1 + 0.5);
  near(op_ms(&r, &r.ops[2], BENCH_FLOOR), 1); // the smaller of the two
  near(op_ms(&r, &r.ops[3], BENCH_FLOOR), 0.6);
  near(step_ms(&r, BENCH_FLOOR), 3 * 2 + 1.5 + 3 + 0.6);
  near(layer_floor(&r, PASS_FORWARD), 3);
  BenchResult other = r;
  other.ops[1].in_backward = 2;
  near(layer_floor(&other, PASS_BACKWARD), 3); // 2 x 1.5; a pass outside the floor adds nothing
  near(layer_floor(&other, PASS_BOTH), 6);
}

static void operations_add_up_by_their_calls(void **state) {
  (void)state;
  const BenchResult r = example();
  near(ops_sums(&r).all[BENCH_FUSED], 3 * 2.2 + 1.8 + 3 * 1.01 + 0.97 + 0.6);
  near(ops_sums(&r).all[BENCH_UNFUSED], 9 + 1.7 + 3 + 1 + 0.6);
  near(same_kernels_ratio(&r), (3 * 1.01 + 0.97) / 4);
}

static void the_parts_of_a_step_are_all_of_it(void **state) {
  (void)state;
  const BenchResult r = example();
  const StepSplit fused = step_split(&r, BENCH_FUSED), least = step_split(&r, BENCH_FLOOR);
  near(fused.products, 7);
  near(fused.attention, 3.03);
  near(fused.products + fused.attention + fused.rest, 13.2);
  near(least.products + least.attention + least.rest, step_ms(&r, BENCH_FLOOR));
  near(least.rest, 0.5 + 0.6);
}

static void the_peak_is_that_of_the_fastest_product(void **state) {
  (void)state;
  BenchResult r = example();
  near(bench_peak(&r), 600);
  r.ops[0].call.flops = 1400e9; // in 2 ms
  near(bench_peak(&r), 700);
}

static void conclusion(const BenchResult *r, Conclusion expected, const char *words) {
  const Verdict v = bench_verdict(r);
  if (v.conclusion != expected || !strstr(v.text, words)) fail_msg("%d: %s", v.conclusion, v.text);
}

static void noise_and_disagreement_are_said(void **state) {
  (void)state;
  BenchResult r = example();
  conclusion(&r, CONCLUSIVE, "quiet enough");
  r.step[BENCH_UNFUSED].ninetieth *= 1.05;
  conclusion(&r, TOO_NOISY, "too noisy to conclude");
  r = example();
  r.ops[2].time[BENCH_FUSED].median *= 1.05; // the same kernels, another time
  conclusion(&r, TOO_NOISY, "too noisy to conclude");
  r = example();
  r.gain.tenth = 0.99;
  conclusion(&r, UNDECIDED, "no conclusion");
  r.step[BENCH_FUSED].ninetieth = NAN;
  conclusion(&r, TOO_NOISY, "too noisy");
  r = example();
  r.whole = false;
  r.op_count = 1;
  conclusion(&r, CONCLUSIVE, "quiet enough");
  r.ops[0].time[BENCH_UNFUSED].tenth *= 0.9;
  conclusion(&r, TOO_NOISY, "too noisy");
}

static double get(const cJSON *object, const char *a, const char *b, const char *c) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, a);
  if (b) item = cJSON_GetObjectItemCaseSensitive(item, b);
  if (c) item = cJSON_GetObjectItemCaseSensitive(item, c);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void the_json_says_the_same(void **state) {
  (void)state;
  const BenchResult r = example();
  char *text = bench_json(&r);
  cJSON *j = cJSON_Parse(text);
  assert_non_null(j);
  near(get(j, "step", "floor", NULL), 11.1);
  near(get(j, "step", "fused_over_floor", NULL), 13.2 / 11.1);
  near(get(j, "step", "unfused_over_fused", NULL), 1.2);
  near(get(j, "step_parts", "fused", "attention"), 3.03);
  near(get(j, "sum_of_operations", "fused", "of_step"), ops_sums(&r).all[BENCH_FUSED] / 13.2);
  near(get(j, "layer", "both", "floor"), 3);
  const cJSON *ops = cJSON_GetObjectItemCaseSensitive(j, "operations");
  assert_int_equal(cJSON_GetArraySize(ops), 5);
  const cJSON *gate_up = cJSON_GetArrayItem(ops, 0);
  assert_string_equal(cJSON_GetObjectItemCaseSensitive(gate_up, "name")->valuestring, "gate_up");
  near(get(gate_up, "fused_over_bare", NULL, NULL), 1.1);
  near(get(gate_up, "tflops", NULL, NULL), 900 / 2.2);
  near(get(gate_up, "largest_difference", "fused_unfused", NULL), 1e-3);
  const cJSON *adamw = cJSON_GetArrayItem(ops, 3); // what it has not is null
  assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(adamw, "tflops")));
  near(get(adamw, "of_copy", NULL, NULL), 0.6 / 0.97);
  cJSON_Delete(j);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_spread_is_median_and_percentiles),
      cmocka_unit_test(a_floor_is_products_attention_and_bytes),
      cmocka_unit_test(operations_add_up_by_their_calls),
      cmocka_unit_test(the_parts_of_a_step_are_all_of_it),
      cmocka_unit_test(the_peak_is_that_of_the_fastest_product),
      cmocka_unit_test(noise_and_disagreement_are_said),
      cmocka_unit_test(the_json_says_the_same),
  };
  return cmocka_run_group_tests_name("test_bench_report", tests, NULL, NULL);
}
