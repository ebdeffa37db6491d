// A bench's result as JSON: scripts/plot.py bench draws it.
#include <math.h>

#include "model/bench/report.h"
#include "model/ranges.h"

// Numbers that are not known become null.
static void number(cJSON *to, const char *name, double value) {
  cJSON_AddNumberToObject(to, name, value);
}
static void text(cJSON *to, const char *name, const char *value) {
  cJSON_AddStringToObject(to, name, value);
}

static void spread(cJSON *to, const char *name, const Spread *s) {
  cJSON *object = cJSON_AddObjectToObject(to, name);
  number(object, "median", s->median);
  number(object, "tenth", s->tenth);
  number(object, "ninetieth", s->ninetieth);
  number(object, "count", s->count);
}

static const char *const kind_names[BENCH_KINDS] = {"fused", "unfused"};
static const char *const class_names[] = {"product", "attention", "memory"};
static const char *const kernel_names[] = {"cpu", "unfused", "fused"};

static double rate(double work, double ms, double unit) {
  return work > 0 ? work / ms * unit : NAN;
}

static cJSON *op_json(const BenchResult *r, const BenchOp *op) {
  cJSON *o = cJSON_CreateObject();
  text(o, "name", operation_name(op->call.operation));
  text(o, "class", class_names[op->call.class]);
  text(o, "runs", kernel_names[op->runs]);
  text(o, "shape", op->call.shape);
  number(o, "calls", (double)op->calls);
  for (int kind = 0; kind < BENCH_KINDS; kind++) spread(o, kind_names[kind], &op->time[kind]);
  spread(o, "bare", &op->bare);
  const double fused = op->time[BENCH_FUSED].median, unfused = op->time[BENCH_UNFUSED].median;
  number(o, "fused_over_bare", fused / op->bare.median);
  number(o, "unfused_over_fused", unfused / fused);
  number(o, "floor", op_floor(r, op));
  number(o, "bare_back_to_back", op->alone > 0 ? op->alone : NAN);
  const double flops = rate(op->call.flops, fused, 1e-9), bytes = rate(op->call.bytes, fused, 1e-6);
  number(o, "tflops", flops);
  number(o, "of_peak", flops / bench_peak(r));
  number(o, "gigabytes_per_s", bytes);
  number(o, "of_copy", bytes / rate(r->copy_bytes, r->copy.median, 1e-6));
  cJSON *d = cJSON_AddObjectToObject(o, "largest_difference");
  number(d, "fused_unfused", op->differences.fused_unfused);
  number(d, "fused_reference", op->differences.fused_reference);
  number(d, "unfused_reference", op->differences.unfused_reference);
  return o;
}

static void timed(cJSON *to, const char *name, const Spread *times, double least) {
  cJSON *o = cJSON_AddObjectToObject(to, name);
  for (int kind = 0; kind < BENCH_KINDS; kind++) spread(o, kind_names[kind], &times[kind]);
  number(o, "floor", least);
  number(o, "fused_over_floor", times[BENCH_FUSED].median / least);
  number(o, "unfused_over_fused", times[BENCH_UNFUSED].median / times[BENCH_FUSED].median);
}

static void split(cJSON *to, const char *name, StepSplit s) {
  cJSON *o = cJSON_AddObjectToObject(to, name);
  number(o, "products", s.products);
  number(o, "attention", s.attention);
  number(o, "rest", s.rest);
}

static void add_whole(cJSON *root, const BenchResult *r) {
  static const char *const passes[BENCH_PASSES] = {"forward", "backward", "both"};
  cJSON *layer = cJSON_AddObjectToObject(root, "layer");
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    timed(layer, passes[pass], r->layer[pass], layer_floor(r, (BenchPass)pass));
  timed(root, "step", r->step, step_floor(r));
  cJSON *parts = cJSON_AddObjectToObject(root, "step_parts");
  split(parts, "fused", step_split(r, BENCH_FUSED));
  split(parts, "unfused", step_split(r, BENCH_UNFUSED));
  split(parts, "floor", floor_split(r));
  cJSON *sums = cJSON_AddObjectToObject(root, "sum_of_operations");
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    cJSON *o = cJSON_AddObjectToObject(sums, kind_names[kind]);
    number(o, "ms", ops_sum(r, (BenchKind)kind));
    number(o, "of_step", ops_sum(r, (BenchKind)kind) / r->step[kind].median);
  }
  spread(root, "gain_by_rounds", &r->gain);
}

static void add_busy(cJSON *to, const char *name, const Busy *b) {
  cJSON *o = cJSON_AddObjectToObject(to, name);
  number(o, "clock_mhz", b->sum.clock_mhz / b->count); // null where nothing was read
  number(o, "watts", b->sum.watts / b->count);
  number(o, "celsius", b->sum.celsius / b->count);
  number(o, "readings", b->count);
}

static void add_method(cJSON *root, const BenchResult *r) {
  static const char *const conclusions[] = {"conclusive", "undecided", "too noisy"};
  cJSON *m = cJSON_AddObjectToObject(root, "measured");
  text(m, "gpu", r->gpu);
  text(m, "driver", r->facts.driver);
  number(m, "most_clock_mhz", r->facts.most_clock_mhz);
  number(m, "power_limit_watts", r->facts.limit_watts);
  number(m, "l2_bytes", (double)r->facts.l2_bytes);
  number(m, "rounds", r->rounds);
  number(m, "warm_up_rounds", r->warm_up_rounds);
  number(m, "seconds", r->seconds);
  number(m, "compared_rows", r->compared_rows);
  number(m, "peak_tflops", bench_peak(r));
  number(m, "tflops_of_8192", rate(r->peak_flops, r->peak.median, 1e-9));
  number(m, "copy_gigabytes_per_s", rate(r->copy_bytes, r->copy.median, 1e-6));
  number(m, "same_kernels_ratio", same_kernels_ratio(r));
  cJSON *busy = cJSON_AddObjectToObject(m, "busy_with");
  if (r->whole) {
    add_busy(busy, "fused_steps", &r->busy[BUSY_FUSED]);
    add_busy(busy, "unfused_steps", &r->busy[BUSY_UNFUSED]);
  }
  add_busy(busy, "operations", &r->busy[BUSY_OPS]);
  const Verdict verdict = bench_verdict(r);
  text(m, "verdict", conclusions[verdict.conclusion]);
  text(m, "verdict_text", verdict.text);
}

cJSON *bench_json(const BenchResult *r) {
  cJSON *root = cJSON_CreateObject();
  text(root, "kind", "bench");
  number(root, "version", 1);
  text(root, "config", r->config);
  text(root, "model", r->model);
  text(root, "step_shape", r->step_shape);
  text(root, "unit", "ms");
  cJSON *ops = cJSON_AddArrayToObject(root, "operations");
  for (int i = 0; i < r->op_count; i++) cJSON_AddItemToArray(ops, op_json(r, &r->ops[i]));
  if (r->whole) add_whole(root, r);
  add_method(root, r);
  return root;
}
