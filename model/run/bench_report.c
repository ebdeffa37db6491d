// The figures that follow from a bench's measurements, and its table.
#include "model/run/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *bench_kind_name(const BenchResult *r, BenchKind kind) {
  static const char *const of_gpu[] = {"fused", "unfused", "floor"};
  static const char *const of_cpu[] = {"CPU", "-", "floor"};
  return r->kinds == BENCH_KINDS ? of_gpu[kind] : of_cpu[kind];
}

// ---- Derived figures

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

static double rate(double work, double ms, double unit) {
  return work > 0 ? work / ms * unit : NAN;
}

double bench_peak(const BenchResult *r) {
  double most = NAN;
  for (int i = 0; i < r->op_count; i++)
    if (r->ops[i].work.kind == CLASS_GEMM)
      most = fmax(most, rate(r->ops[i].work.flops, r->ops[i].bare.median, 1e-9));
  return most;
}

// Attention is the same in both kinds: the smaller figure is the one with less of the noise.
static double op_floor(const BenchResult *r, const BenchOp *op) {
  const double moved = op->work.floor_bytes > 0 ? op->work.floor_bytes / r->copy_rate : 0;
  switch (op->work.kind) {
  case CLASS_GEMM:
    return op->bare.median + moved;
  case CLASS_ATTENTION:
    return fmin(op->time[BENCH_FUSED].median, op->time[BENCH_UNFUSED].median);
  default:
    return moved;
  }
}

double op_ms(const BenchResult *r, const BenchOp *op, BenchKind kind) {
  return kind == BENCH_FLOOR ? op_floor(r, op) : op->time[kind].median;
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

OpsSums ops_sums(const BenchResult *r) {
  OpsSums s = {.bare = 0};
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const double calls = (double)op->calls;
    for (BenchKind kind = BENCH_FUSED; kind <= BENCH_FLOOR; kind++) {
      const double ms = calls * op_ms(r, op, kind);
      s.all[kind] += ms;
      if (op->work.kind == CLASS_ATTENTION) s.attention[kind] += ms;
      if (op->runs == KERNEL_UNFUSED && kind < BENCH_KINDS) s.alike[kind] += ms;
    }
    if (op->work.kind == CLASS_GEMM) s.bare += calls * op->bare.median;
  }
  return s;
}

double step_ms(const BenchResult *r, BenchKind kind) {
  return kind == BENCH_FLOOR ? ops_sums(r).all[kind] : r->step[kind].median;
}

OpRates op_rates(const BenchResult *r, const BenchOp *op) {
  const double fused = op->time[BENCH_FUSED].median;
  const double flops = rate(op->work.flops, fused, 1e-9), bytes = rate(op->work.bytes, fused, 1e-6);
  return (OpRates){.over_bare = fused / op->bare.median,
                   .unfused_over = op->time[BENCH_UNFUSED].median / fused,
                   .tflops = flops,
                   .of_peak = flops / bench_peak(r),
                   .gigabytes_per_second = bytes,
                   .of_copy = bytes / (r->copy_rate * 1e-6)};
}

StepSplit step_split(const BenchResult *r, BenchKind kind) {
  const OpsSums s = ops_sums(r);
  return (StepSplit){s.bare, s.attention[kind], step_ms(r, kind) - s.bare - s.attention[kind]};
}

double same_kernels_ratio(const BenchResult *r) {
  const OpsSums s = ops_sums(r);
  return s.alike[BENCH_FUSED] > 0 ? s.alike[BENCH_FUSED] / s.alike[BENCH_UNFUSED] : NAN;
}

static double percent(double part) {
  return 100 * part;
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

static const char *kernel_name(const BenchOp *op) {
  static const char *const names[] = {
      [KERNEL_CPU] = "CPU", [KERNEL_UNFUSED] = "unfused", [KERNEL_FUSED] = "fused"};
  return op->runs != KERNEL_CPU && op->work.kind == CLASS_ATTENTION ? "cuDNN" : names[op->runs];
}

static void print_ops(const BenchResult *r) {
  const char *first = bench_kind_name(r, BENCH_FUSED), *second = bench_kind_name(r, BENCH_UNFUSED);
  printf("\nOperations, ms a call. bare: the product alone%s\n",
         r->kinds == BENCH_KINDS ? " in cuBLASLt" : "");
  printf("%-19s %-8s %-26s %5s %8s %8s %8s %7s %8s %8s %6s %6s %6s\n", "", "runs", "shape", "calls",
         first, second, "bare", first, second, "TFLOP/s", "% of", "GB/s", "% of");
  printf("%-19s %-8s %-26s %5s %8s %8s %8s %7s %8s %8s %6s %6s %6s\n", "", "", "", "", "", "", "",
         "/ bare", r->kinds == BENCH_KINDS ? "/ fused" : "", "", "peak", "", "copy");
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const OpRates rates = op_rates(r, op);
    if (r->only != OPERATION_COUNT && op->operation != r->only) continue;
    printf("%-19s %-8s %-26s %5lld %8.4f %8s %8s %7s %8s %8s %6s %6s %6s\n",
           operation_name(op->operation), kernel_name(op), op->shape, (long long)op->calls,
           op->time[BENCH_FUSED].median, cell("%.4f", op->time[BENCH_UNFUSED].median).text,
           cell("%.4f", op->bare.median).text, cell("%.3f", rates.over_bare).text,
           cell("%.3f", rates.unfused_over).text,
           cell(rates.tflops < 10 ? "%.3f" : "%.1f", rates.tflops).text,
           cell("%.1f", percent(rates.of_peak)).text, cell("%.0f", rates.gigabytes_per_second).text,
           cell("%.1f", percent(rates.of_copy)).text);
  }
}

static void print_pass(const char *name, const Spread *times, double least) {
  const Spread *fused = &times[BENCH_FUSED], *unfused = &times[BENCH_UNFUSED];
  char ranges[BENCH_KINDS][48] = {"", ""};
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (isfinite(times[kind].median))
      snprintf(ranges[kind], sizeof ranges[kind], "(%.3f to %.3f)", times[kind].tenth,
               times[kind].ninetieth);
  printf("%-16s %10.3f %-22s %10s %-22s %10.3f %9.3f %9s\n", name, fused->median,
         ranges[BENCH_FUSED], cell("%.3f", unfused->median).text, ranges[BENCH_UNFUSED], least,
         fused->median / least, cell("%.3f", unfused->median / fused->median).text);
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
  const char *first = bench_kind_name(r, BENCH_FUSED), *second = bench_kind_name(r, BENCH_UNFUSED);
  printf("\nLayer and step, ms. floor: bare products, attention, and the bytes that must move "
         "(embedding, loss, update) at a copy's rate\n");
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", first, "(10 to 90 %)", second,
         r->kinds == BENCH_KINDS ? "(10 to 90 %)" : "", "floor", first, second);
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", "", "", "", "", "", "/ floor",
         r->kinds == BENCH_KINDS ? "/ fused" : "");
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    print_pass(names[pass], r->layer[pass], layer_floor(r, (BenchPass)pass));
  print_pass("step", r->step, step_ms(r, BENCH_FLOOR));
  printf("\nThe step in parts, ms: bare products, attention, the rest\n");
  for (BenchKind kind = BENCH_FUSED; kind <= BENCH_FLOOR; kind++)
    if (kind < (BenchKind)r->kinds || kind == BENCH_FLOOR)
      print_split(bench_kind_name(r, kind), step_split(r, kind));
}

// Dashes where nothing was read.
static void print_busy(const char *what, const Busy *b) {
  printf("%s %s MHz, %s W, %s C (%d reading%s)", what,
         cell("%.0f", b->sum.clock_mhz / b->count).text, cell("%.0f", b->sum.watts / b->count).text,
         cell("%.0f", b->sum.celsius / b->count).text, b->count, b->count == 1 ? "" : "s");
}

static void print_gauges(const GpuGauges *g) {
  printf("  NVIDIA driver %s, clock at most %s MHz, power limit %s W\n",
         g->driver[0] ? g->driver : "of unknown version", cell("%.0f", g->most_clock_mhz).text,
         cell("%.0f", g->limit_watts).text);
}

static void print_method(const BenchResult *r) {
  const OpsSums s = ops_sums(r);
  printf("\nHow it was measured\n");
  if (r->kinds == BENCH_KINDS) print_gauges(&r->gauges);
  const char *order = r->kinds < BENCH_KINDS ? ""
                      : r->apart             ? ", all of fused kernels first"
                                             : ", fused and unfused kernels alternately";
  printf("  %d rounds after %d to warm up, %.1f s. A round%s: %ssteps that note the time before "
         "and after each operation, each product%s. Random tokens; medians.\n",
         r->rounds, r->warm_up_rounds, r->seconds, order, r->whole ? "whole steps, " : "",
         r->whole ? " and each layer" : "");
  if (r->kinds == BENCH_KINDS) {
    printf("  busy with ");
    print_busy("fused steps:", &r->busy[BENCH_FUSED]);
    print_busy("; unfused steps:", &r->busy[BENCH_UNFUSED]);
    printf("\n");
  }
  printf("  peaks: %s TFLOP/s, the fastest of the bare products; a copy, read and written, %s "
         "GB/s\n",
         cell(bench_peak(r) < 10 ? "%.3f" : "%.1f", bench_peak(r)).text,
         cell("%.0f", r->copy_rate * 1e-6).text);
  if (!r->whole) return;
  for (int kind = BENCH_FUSED; kind < r->kinds; kind++)
    printf("  %s: operations add up to %.3f ms, the step takes %.3f ms: %.3f of it; steps spread "
           "by %.1f %%\n",
           bench_kind_name(r, (BenchKind)kind), s.all[kind], r->step[kind].median,
           s.all[kind] / r->step[kind].median, percent(spread_width(&r->step[kind])));
  if (r->kinds < BENCH_KINDS) return;
  printf(
      "  unfused / fused by rounds: %s to %s; what both run with the same kernels takes %s times "
      "as long in the fused kind\n",
      cell("%.3f", r->gain.tenth).text, cell("%.3f", r->gain.ninetieth).text,
      cell("%.3f", same_kernels_ratio(r)).text);
}

void bench_print(const BenchResult *r) {
  print_ops(r);
  if (r->whole) print_whole(r);
  print_method(r);
  fflush(stdout);
}
