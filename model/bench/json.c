// A bench's result as JSON: scripts/plot.py bench draws it.
#include <math.h>

#include "model/bench/report.h"
#include "model/ranges.h"

// Numbers that are not known become null.
static void number(JsonWriter *w, const char *name, double value) {
  json_number(w, name, value, JSON_EXACT);
}

// An object of numbers; NULL ends their names.
static void object(JsonWriter *w, const char *name, const char *const *names,
                   const double *values) {
  json_open(w, name, '{');
  for (; *names; names++, values++) number(w, *names, *values);
  json_close(w, '}');
}

static void spread(JsonWriter *w, const char *name, const Spread *s) {
  static const char *const names[] = {"median", "tenth", "ninetieth", "count", NULL};
  object(w, name, names, (double[]){s->median, s->tenth, s->ninetieth, s->count});
}

static void put_op(JsonWriter *w, const BenchResult *r, const BenchOp *op) {
  static const char *const classes[] = {"product", "attention", "memory"};
  static const char *const kernels[] = {"cpu", "unfused", "fused"};
  static const char *const differences[] = {"fused_unfused", "fused_reference", "unfused_reference",
                                            NULL};
  const OpRates rates = op_rates(r, op);
  const Differences *d = &op->differences;
  json_open(w, NULL, '{');
  json_string(w, "name", operation_name(op->call.operation));
  json_string(w, "class", classes[op->call.class]);
  json_string(w, "runs", kernels[op->runs]);
  json_string(w, "shape", op->call.shape);
  json_whole(w, "calls", op->calls);
  for (int kind = 0; kind < BENCH_KINDS; kind++) spread(w, bench_kind_names[kind], &op->time[kind]);
  spread(w, "bare", &op->bare);
  number(w, "fused_over_bare", rates.over_bare);
  number(w, "unfused_over_fused", rates.unfused_over);
  number(w, "floor", op_ms(r, op, BENCH_FLOOR));
  number(w, "bare_back_to_back", op->alone > 0 ? op->alone : NAN);
  number(w, "tflops", rates.tflops);
  number(w, "of_peak", rates.of_peak);
  number(w, "gigabytes_per_s", rates.gigabytes_per_second);
  number(w, "of_copy", rates.of_copy);
  object(w, "largest_difference", differences,
         (double[]){d->fused_unfused, d->fused_reference, d->unfused_reference});
  json_close(w, '}');
}

static void put_timed(JsonWriter *w, const char *name, const Spread *times, double least) {
  json_open(w, name, '{');
  for (int kind = 0; kind < BENCH_KINDS; kind++) spread(w, bench_kind_names[kind], &times[kind]);
  number(w, "floor", least);
  number(w, "fused_over_floor", times[BENCH_FUSED].median / least);
  number(w, "unfused_over_fused", times[BENCH_UNFUSED].median / times[BENCH_FUSED].median);
  json_close(w, '}');
}

static void put_whole(JsonWriter *w, const BenchResult *r) {
  static const char *const passes[BENCH_PASSES] = {"forward", "backward", "both"};
  static const char *const parts[] = {"products", "attention", "rest", NULL};
  static const char *const sums[] = {"ms", "of_step", NULL};
  json_open(w, "layer", '{');
  for (BenchPass pass = PASS_FORWARD; pass < BENCH_PASSES; pass++)
    put_timed(w, passes[pass], r->layer[pass], layer_floor(r, pass));
  json_close(w, '}');
  put_timed(w, "step", r->step, step_ms(r, BENCH_FLOOR));
  json_open(w, "step_parts", '{');
  for (BenchKind kind = BENCH_FUSED; kind <= BENCH_FLOOR; kind++) {
    const StepSplit s = step_split(r, kind);
    object(w, bench_kind_names[kind], parts, (double[]){s.products, s.attention, s.rest});
  }
  json_close(w, '}');
  json_open(w, "sum_of_operations", '{');
  for (BenchKind kind = BENCH_FUSED; kind < BENCH_KINDS; kind++) {
    const double ms = ops_sums(r).all[kind];
    object(w, bench_kind_names[kind], sums, (double[]){ms, ms / step_ms(r, kind)});
  }
  json_close(w, '}');
  spread(w, "gain_by_rounds", &r->gain);
}

static void put_busy(JsonWriter *w, const BenchResult *r) {
  static const char *const runs[BUSY_COUNT] = {"fused_steps", "unfused_steps", "operations"};
  static const char *const names[] = {"clock_mhz", "watts", "celsius", "readings", NULL};
  json_open(w, "busy_with", '{');
  for (BusyWith with = r->whole ? BUSY_FUSED : BUSY_OPS; with < BUSY_COUNT; with++) {
    const int count = r->busy[with].count; // 0: the means are null
    const GpuSample *sum = &r->busy[with].sum;
    object(w, runs[with], names,
           (double[]){sum->clock_mhz / count, sum->watts / count, sum->celsius / count, count});
  }
  json_close(w, '}');
}

static void put_method(JsonWriter *w, const BenchResult *r) {
  static const char *const conclusions[] = {"conclusive", "undecided", "too noisy"};
  const Verdict verdict = bench_verdict(r);
  json_open(w, "measured", '{');
  json_string(w, "gpu", r->gpu);
  json_string(w, "driver", r->facts.driver);
  number(w, "most_clock_mhz", r->facts.most_clock_mhz);
  number(w, "power_limit_watts", r->facts.limit_watts);
  number(w, "l2_bytes", (double)r->facts.l2_bytes);
  number(w, "rounds", r->rounds);
  number(w, "warm_up_rounds", r->warm_up_rounds);
  number(w, "seconds", r->seconds);
  number(w, "compared_rows", r->compared_rows);
  number(w, "peak_tflops", bench_peak(r));
  number(w, "tflops_of_8192", bench_square_rate(r));
  number(w, "copy_gigabytes_per_s", bench_copy_rate(r) * 1e-6);
  number(w, "same_kernels_ratio", same_kernels_ratio(r));
  put_busy(w, r);
  json_string(w, "verdict", conclusions[verdict.conclusion]);
  json_string(w, "verdict_text", verdict.text);
  json_close(w, '}');
}

char *bench_json(const BenchResult *r) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_string(&w, "kind", "bench");
  json_whole(&w, "version", 1);
  json_string(&w, "config", r->config);
  json_string(&w, "model", r->model.text);
  json_string(&w, "step_shape", r->step_shape);
  json_string(&w, "unit", "ms");
  json_open(&w, "operations", '[');
  for (int i = 0; i < r->op_count; i++) put_op(&w, r, &r->ops[i]);
  json_close(&w, ']');
  if (r->whole) put_whole(&w, r);
  put_method(&w, r);
  json_close(&w, '}');
  return w.text;
}
