#include "model/bench/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/ranges.h"

// From here on a machine is too noisy: between the 10th and the 90th percentile of a step, and
// between two measurements of the same kernels.
static const double most_spread = 0.05, most_apart = 0.02;

// ---- What follows

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

Spread spread_of(double *samples, int n) {
  if (n <= 0) return (Spread){0, NAN, NAN, NAN};
  qsort(samples, (size_t)n, sizeof *samples, by_value);
  return (Spread){.count = n,
                  .median = (samples[(n - 1) / 2] + samples[n / 2]) / 2,
                  .tenth = samples[n / 10],
                  .ninetieth = samples[n - 1 - n / 10]};
}

double spread_width(const Spread *s) {
  return (s->ninetieth - s->tenth) / s->median;
}

double bench_copy_rate(const BenchResult *r) {
  return r->copy_bytes / r->copy.median;
}

static double tflops(double flops, double ms) {
  return flops > 0 ? flops / ms * 1e-9 : NAN;
}

double bench_peak(const BenchResult *r) {
  double most = tflops(r->peak_flops, r->peak.median);
  for (int i = 0; i < r->op_count; i++)
    if (r->ops[i].call.class == CLASS_GEMM)
      most = fmax(most, tflops(r->ops[i].call.flops, r->ops[i].bare.median));
  return most;
}

// Attention is the same in both kinds: the smaller figure is the one with less of the noise.
double op_floor(const BenchResult *r, const BenchOp *op) {
  const double moved = op->call.floor_bytes > 0 ? op->call.floor_bytes / bench_copy_rate(r) : 0;
  switch (op->call.class) {
  case CLASS_GEMM:
    return op->bare.median + moved;
  case CLASS_ATTENTION:
    return fmin(op->time[BENCH_FUSED].median, op->time[BENCH_UNFUSED].median);
  default:
    return moved;
  }
}

double layer_floor(const BenchResult *r, BenchPass pass) {
  double sum = 0;
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const int calls =
        (pass != PASS_BACKWARD ? op->in_forward : 0) + (pass != PASS_FORWARD ? op->in_backward : 0);
    if (calls > 0) sum += calls * op_floor(r, op);
  }
  return sum;
}

double step_floor(const BenchResult *r) {
  double sum = 0;
  for (int i = 0; i < r->op_count; i++) sum += (double)r->ops[i].calls * op_floor(r, &r->ops[i]);
  return sum;
}

double ops_sum(const BenchResult *r, BenchKind kind) {
  double sum = 0;
  for (int i = 0; i < r->op_count; i++)
    sum += (double)r->ops[i].calls * r->ops[i].time[kind].median;
  return sum;
}

// What is left of `whole` besides GEMMs and attention; kind BENCH_KINDS: of the floor.
static StepSplit split(const BenchResult *r, BenchKind kind, double whole) {
  StepSplit split = {0};
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const double calls = (double)op->calls;
    if (op->call.class == CLASS_GEMM) split.products += calls * op->bare.median;
    if (op->call.class == CLASS_ATTENTION)
      split.attention += calls * (kind < BENCH_KINDS ? op->time[kind].median : op_floor(r, op));
  }
  split.rest = whole - split.products - split.attention;
  return split;
}

StepSplit step_split(const BenchResult *r, BenchKind kind) {
  return split(r, kind, r->step[kind].median);
}

StepSplit floor_split(const BenchResult *r) {
  return split(r, BENCH_KINDS, step_floor(r));
}

double same_kernels_ratio(const BenchResult *r) {
  double sums[BENCH_KINDS] = {0};
  for (int i = 0; i < r->op_count; i++)
    for (int kind = 0; kind < BENCH_KINDS; kind++)
      if (r->ops[i].alike) sums[kind] += (double)r->ops[i].calls * r->ops[i].time[kind].median;
  return sums[BENCH_FUSED] > 0 ? sums[BENCH_FUSED] / sums[BENCH_UNFUSED] : NAN;
}

static double percent(double part) {
  return 100 * part;
}

// Of a single operation there is no step: its own times say how quiet the machine was.
static Verdict op_verdict(const BenchResult *r) {
  const BenchOp *op = &r->ops[0];
  const double width =
      fmax(spread_width(&op->time[BENCH_FUSED]), spread_width(&op->time[BENCH_UNFUSED]));
  Verdict v = {.conclusion = width <= most_spread ? CONCLUSIVE : TOO_NOISY};
  snprintf(
      v.text, sizeof v.text,
      "%s: the operation's times spread by %.1f %% (10th to 90th percentile; %.0f %% is too much)",
      v.conclusion == CONCLUSIVE ? "quiet enough" : "too noisy to conclude", percent(width),
      percent(most_spread));
  return v;
}

Verdict bench_verdict(const BenchResult *r) {
  if (!r->whole) return op_verdict(r);
  const double width =
      fmax(spread_width(&r->step[BENCH_FUSED]), spread_width(&r->step[BENCH_UNFUSED]));
  const bool steady = spread_width(&r->step[BENCH_FUSED]) <= most_spread &&
                      spread_width(&r->step[BENCH_UNFUSED]) <= most_spread; // false of NAN
  const double apart = fabs(same_kernels_ratio(r) - 1); // NAN: no such operation, no objection
  Verdict v = {.conclusion = CONCLUSIVE};
  const char *lead = "quiet enough";
  if (!steady || apart > most_apart) {
    v.conclusion = TOO_NOISY;
    lead = "too noisy to conclude";
  } else if (!(r->gain.tenth > 1 || r->gain.ninetieth < 1)) {
    v.conclusion = UNDECIDED;
    lead = "no conclusion, the rounds do not agree on which is faster";
  }
  snprintf(v.text, sizeof v.text,
           "%s: steps spread by %.1f %% (10th to 90th percentile; %.0f %% is too much), what both "
           "kinds run with the same kernels differs by %.1f %% (%.0f %% is too much), unfused / "
           "fused by rounds %.3f to %.3f",
           lead, percent(width), percent(most_spread), percent(apart), percent(most_apart),
           r->gain.tenth, r->gain.ninetieth);
  return v;
}

// ---- The table

// A number, or a dash where it is not known.
typedef struct Cell {
  char text[24];
} Cell;

static Cell cell(const char *format, double value) __attribute__((format(printf, 1, 0)));
static Cell cell(const char *format, double value) {
  Cell c = {"-"};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  if (isfinite(value)) snprintf(c.text, sizeof c.text, format, value);
#pragma GCC diagnostic pop
  return c;
}

static double gigabytes(double bytes, double ms) {
  return bytes > 0 ? bytes / ms * 1e-6 : NAN;
}
static const char *kind_text(const BenchOp *op) {
  if (op->call.class == CLASS_ATTENTION) return "cuDNN";
  return op->runs == KERNEL_FUSED ? "fused" : "unfused";
}

static void print_ops(const BenchResult *r) {
  printf("\nOperations, ms a call. bare: the product alone in cuBLASLt. difference: the largest, "
         "as a part of the fp32 reference's largest value (%d rows)\n",
         r->compared_rows);
  printf("%-19s %-8s %-26s %5s %8s %8s %8s %7s %8s %8s %6s %6s %6s  %-26s\n", "", "runs", "shape",
         "calls", "fused", "unfused", "bare", "fused", "unfused", "TFLOP/s", "% of", "GB/s", "% of",
         "difference: fused, fused, unf.");
  printf("%-19s %-8s %-26s %5s %8s %8s %8s %7s %8s %8s %6s %6s %6s  %-26s\n", "", "", "", "", "",
         "", "", "/ bare", "/ fused", "", "peak", "", "copy", "- unf., - fp32, - fp32");
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const double fused = op->time[BENCH_FUSED].median, unfused = op->time[BENCH_UNFUSED].median;
    const double rate = tflops(op->call.flops, fused), moved = gigabytes(op->call.bytes, fused);
    const Differences *d = &op->differences;
    printf("%-19s %-8s %-26s %5lld %8.4f %8.4f %8s %7s %8.3f %8s %6s %6s %6s  %8s %8s %8s\n",
           operation_name(op->call.operation), kind_text(op), op->call.shape, (long long)op->calls,
           fused, unfused, cell("%.4f", op->bare.median).text,
           cell("%.3f", fused / op->bare.median).text, unfused / fused, cell("%.1f", rate).text,
           cell("%.1f", percent(rate / bench_peak(r))).text, cell("%.0f", moved).text,
           cell("%.1f",
                percent(op->call.bytes > 0 ? op->call.bytes / fused / bench_copy_rate(r) : NAN))
               .text,
           cell("%.1e", d->fused_unfused).text, cell("%.1e", d->fused_reference).text,
           cell("%.1e", d->unfused_reference).text);
  }
}

static void print_pass(const char *name, const Spread *times, double least) {
  const Spread *fused = &times[BENCH_FUSED], *unfused = &times[BENCH_UNFUSED];
  char ranges[BENCH_KINDS][48];
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    snprintf(ranges[kind], sizeof ranges[kind], "(%.3f to %.3f)", times[kind].tenth,
             times[kind].ninetieth);
  printf("%-16s %10.3f %-22s %10.3f %-22s %10.3f %9.3f %9.3f\n", name, fused->median,
         ranges[BENCH_FUSED], unfused->median, ranges[BENCH_UNFUSED], least, fused->median / least,
         unfused->median / fused->median);
}

static void print_split(const char *name, StepSplit s) {
  const double all = s.products + s.attention + s.rest;
  printf("  %-14s %10.3f (%.1f %%) %10.3f (%.1f %%) %10.3f (%.1f %%)\n", name, s.products,
         percent(s.products / all), s.attention, percent(s.attention / all), s.rest,
         percent(s.rest / all));
}

static void print_whole(const BenchResult *r) {
  static const char *const names[BENCH_PASSES] = {"layer, forward", "layer, backward",
                                                  "layer, both"};
  printf("\nLayer and step, ms. floor: bare products, attention, and the bytes that must move "
         "(embedding, loss, AdamW) at a copy's rate\n");
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", "fused", "(10 to 90 %)", "unfused",
         "(10 to 90 %)", "floor", "fused", "unfused");
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", "", "", "", "", "", "/ floor",
         "/ fused");
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    print_pass(names[pass], r->layer[pass], layer_floor(r, (BenchPass)pass));
  print_pass("step", r->step, step_floor(r));
  printf("\nThe step in parts, ms: bare products, attention, the rest\n");
  print_split("fused", step_split(r, BENCH_FUSED));
  print_split("unfused", step_split(r, BENCH_UNFUSED));
  print_split("floor", floor_split(r));
}

// Dashes where nothing was read.
static void print_busy(const char *what, const Busy *b) {
  printf("%s %s MHz, %s W, %s C (%d reading%s)", what,
         cell("%.0f", b->sum.clock_mhz / b->count).text, cell("%.0f", b->sum.watts / b->count).text,
         cell("%.0f", b->sum.celsius / b->count).text, b->count, b->count == 1 ? "" : "s");
}

// Bare products as the table has them, over the same called back to back.
static double alone_ratio(const BenchResult *r) {
  double bare = 0, alone = 0;
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    if (op->call.class != CLASS_GEMM) continue;
    bare += (double)op->calls * op->bare.median;
    alone += (double)op->calls * op->alone;
  }
  return bare / alone;
}

static void print_method(const BenchResult *r) {
  printf("\nHow it was measured\n  %s\n", r->gpu);
  printf("  NVIDIA driver %s, clock at most %s MHz, power limit %s W, second-level cache %.0f MB\n",
         r->facts.driver[0] ? r->facts.driver : "of unknown version",
         cell("%.0f", r->facts.most_clock_mhz).text, cell("%.0f", r->facts.limit_watts).text,
         (double)r->facts.l2_bytes * 1e-6);
  printf("  %d rounds after %d to warm up, %.1f s. A round: %severy operation in both kinds and "
         "its bare "
         "product, as often as a step calls it (2 to 8 times), in a new random order each round, "
         "each after a write that empties the second-level cache, nothing waited for in between. "
         "Random tokens and weights. CUDA events; medians.\n",
         r->rounds, r->warm_up_rounds, r->seconds,
         r->whole ? "steps of both kinds in turns, a layer's passes, " : "");
  printf("  busy with ");
  if (r->whole) {
    print_busy("fused steps:", &r->busy[BUSY_FUSED]);
    print_busy("; unfused steps:", &r->busy[BUSY_UNFUSED]);
    printf("; ");
  }
  print_busy("operations:", &r->busy[BUSY_OPS]);
  printf("\n  peaks: %.1f TFLOP/s, the fastest of the bare products (8192 x 8192 x 8192: %.1f); a "
         "copy, "
         "read and written, %.0f GB/s\n",
         bench_peak(r), tflops(r->peak_flops, r->peak.median), bench_copy_rate(r) * 1e-6);
  if (isfinite(alone_ratio(r)))
    printf("  bare products take %.3f times what cuBLASLt takes for them called back to back\n",
           alone_ratio(r));
  for (int kind = 0; r->whole && kind < BENCH_KINDS; kind++)
    printf("  %s: operations add up to %.3f ms, the step takes %.3f ms: %.3f of it\n",
           kind == BENCH_FUSED ? "fused" : "unfused", ops_sum(r, (BenchKind)kind),
           r->step[kind].median, ops_sum(r, (BenchKind)kind) / r->step[kind].median);
  printf("  %s\n", bench_verdict(r).text);
}

void bench_print(const BenchResult *r) {
  print_ops(r);
  if (r->whole) print_whole(r);
  print_method(r);
  fflush(stdout);
}
