// The figures that follow from a bench's measurements, and its table.
#include "model/run/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/run/log.h"

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

static double rate(double work, double ms, double unit) {
  return work > 0 ? work / ms * unit : NAN;
}

// Attention is the same in both kinds: the smaller figure is the one with less of the noise.
static double floor_of(const BenchOp *op, double copy_rate) {
  const double moved = op->work.floor_bytes > 0 ? op->work.floor_bytes / copy_rate : 0;
  if (op->work.kind == CLASS_GEMM) return op->bare.median + moved;
  if (op->work.kind != CLASS_ATTENTION) return moved;
  return fmin(op->time[BENCH_FUSED].median, op->time[BENCH_UNFUSED].median);
}

void bench_derive(BenchResult *r) {
  double alike[BENCH_KINDS] = {0};
  r->peak = NAN;
  for (BenchOp *op = r->ops; op < r->ops + OPERATION_COUNT; op++) {
    if (op->calls == 0) continue;
    const double calls = (double)op->calls, floor = op->floor = floor_of(op, r->copy_rate);
    for (int column = 0; column < BENCH_COLUMNS; column++) {
      const double ms = calls * (column == BENCH_FLOOR ? floor : op->time[column].median);
      r->sum[column] += ms;
      if (op->work.kind == CLASS_ATTENTION) r->attention[column] += ms;
      if (op->runs == KERNEL_UNFUSED && column < BENCH_KINDS) alike[column] += ms;
    }
    if (op->in_forward > 0) r->layer_floor[PASS_FORWARD] += op->in_forward * floor;
    if (op->in_backward > 0) r->layer_floor[PASS_BACKWARD] += op->in_backward * floor;
    if (op->work.kind != CLASS_GEMM) continue;
    r->products += calls * op->bare.median;
    r->peak = fmax(r->peak, rate(op->work.flops, op->bare.median, 1e-9));
  }
  r->layer_floor[PASS_BOTH] = r->layer_floor[PASS_FORWARD] + r->layer_floor[PASS_BACKWARD];
  r->alike = alike[BENCH_FUSED] > 0 ? alike[BENCH_FUSED] / alike[BENCH_UNFUSED] : NAN;
}

OpRates op_rates(const BenchResult *r, const BenchOp *op) {
  const double fused = op->time[BENCH_FUSED].median;
  const double flops = rate(op->work.flops, fused, 1e-9), bytes = rate(op->work.bytes, fused, 1e-6);
  return (OpRates){.over_bare = fused / op->bare.median,
                   .unfused_over = op->time[BENCH_UNFUSED].median / fused,
                   .tflops = flops,
                   .of_peak = flops / r->peak,
                   .gigabytes_per_second = bytes,
                   .of_copy = bytes / (r->copy_rate * 1e-6)};
}

static double percent(double part) {
  return 100 * part;
}

// ---- The table

// A number, or a dash where it is not known.
#define cell(format, value) (isfinite(value) ? short_text(format, value) : short_text("-"))

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
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    const BenchOp *op = &r->ops[i];
    const OpRates rates = op_rates(r, op);
    if (op->calls == 0 || !(r->whole || i == r->only)) continue;
    printf("%-19s %-8s %-26s %5lld %8.4f %8s %8s %7s %8s %8s %6s %6s %6s\n", operation_name(i),
           kernel_name(op), op->shape, (long long)op->calls, op->time[BENCH_FUSED].median,
           cell("%.4f", op->time[BENCH_UNFUSED].median).text, cell("%.4f", op->bare.median).text,
           cell("%.3f", rates.over_bare).text, cell("%.3f", rates.unfused_over).text,
           cell(rates.tflops < 10 ? "%.3f" : "%.1f", rates.tflops).text,
           cell("%.1f", percent(rates.of_peak)).text, cell("%.0f", rates.gigabytes_per_second).text,
           cell("%.1f", percent(rates.of_copy)).text);
  }
}

static void print_pass(const char *name, const Spread *times, double least) {
  const double fused = times[BENCH_FUSED].median, unfused = times[BENCH_UNFUSED].median;
  ShortText ranges[BENCH_KINDS] = {{""}, {""}};
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (isfinite(times[kind].median))
      ranges[kind] = short_text("(%.3f to %.3f)", times[kind].tenth, times[kind].ninetieth);
  printf("%-16s %10.3f %-22s %10s %-22s %10.3f %9.3f %9s\n", name, fused, ranges[BENCH_FUSED].text,
         cell("%.3f", unfused).text, ranges[BENCH_UNFUSED].text, least, fused / least,
         cell("%.3f", unfused / fused).text);
}

// A step's bare products, its attention, and the rest of its time.
static void print_split(const BenchResult *r, BenchKind kind) {
  const double all = kind == BENCH_FLOOR ? r->sum[kind] : r->step[kind].median,
               parts[] = {r->products, r->attention[kind], all - r->products - r->attention[kind]};
  printf("  %-14s", bench_kind_name(r, kind));
  for (int i = 0; i < 3; i++) printf(" %10.3f (%.1f %%)", parts[i], percent(parts[i] / all));
  printf("\n");
}

static void print_whole(const BenchResult *r) {
  static const char *const names[BENCH_PASSES] = {"layer, forward", "layer, backward",
                                                  "layer, both"};
  const bool both = r->kinds == BENCH_KINDS;
  const char *first = bench_kind_name(r, BENCH_FUSED), *second = bench_kind_name(r, BENCH_UNFUSED);
  printf("\nLayer and step, ms. floor: bare products, attention, and the bytes that must move "
         "(embedding, loss, update) at a copy's rate\n");
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", first, "(10 to 90 %)", second,
         both ? "(10 to 90 %)" : "", "floor", first, second);
  printf("%-16s %10s %-22s %10s %-22s %10s %9s %9s\n", "", "", "", "", "", "", "/ floor",
         both ? "/ fused" : "");
  for (int pass = 0; pass < BENCH_PASSES; pass++)
    print_pass(names[pass], r->layer[pass], r->layer_floor[pass]);
  print_pass("step", r->step, r->sum[BENCH_FLOOR]);
  printf("\nThe step in parts, ms: bare products, attention, the rest\n");
  print_split(r, BENCH_FUSED);
  if (both) print_split(r, BENCH_UNFUSED);
  print_split(r, BENCH_FLOOR);
}

static void print_method(const BenchResult *r) {
  const bool both = r->kinds == BENCH_KINDS;
  printf("\nHow it was measured\n");
  printf("  %d rounds after %d to warm up, %.1f s. A round%s: %ssteps that note the time before "
         "and after each operation, each product%s. Random tokens; medians.\n",
         r->rounds, r->warm_up_rounds, r->seconds,
         !both      ? ""
         : r->apart ? ", all of fused kernels first"
                    : ", fused and unfused kernels alternately",
         r->whole ? "whole steps, " : "", r->whole ? " and each layer" : "");
  printf("  peaks: %s TFLOP/s, the fastest of the bare products; a copy, read and written, %s "
         "GB/s\n",
         cell(r->peak < 10 ? "%.3f" : "%.1f", r->peak).text,
         cell("%.0f", r->copy_rate * 1e-6).text);
  for (int kind = BENCH_FUSED; r->whole && kind < r->kinds; kind++) {
    const Spread *step = &r->step[kind];
    printf("  %s: operations add up to %.3f ms, the step takes %.3f ms: %.3f of it; steps spread "
           "by %.1f %%\n",
           bench_kind_name(r, (BenchKind)kind), r->sum[kind], step->median,
           r->sum[kind] / step->median, percent((step->ninetieth - step->tenth) / step->median));
  }
  if (both && r->whole)
    printf("  what both run with the same kernels takes %s times as long in the fused kind\n",
           cell("%.3f", r->alike).text);
}

// Where both kinds fit into memory together, a round has both, and a gain; else each has rounds of
// its own.
PathText bench_quote(const BenchResult *r) {
  const double fused = r->step[BENCH_FUSED].median, unfused = r->step[BENCH_UNFUSED].median,
               speed = (double)r->tokens / fused * 1e3;
  const bool rounds = isfinite(r->gain.median);
  if (r->kinds < BENCH_KINDS)
    return path_text("%s trains %s parameters at %s tokens/s", r->card.text, r->model.text,
                     count_text(speed).text);
  const ShortText spread = rounds ? short_text("%.3f to %.3f", r->gain.tenth, r->gain.ninetieth)
                                  : short_text("measured one after the other");
  return path_text("On %s a training step of %s parameters takes %.4g ms with fused kernels and "
                   "%.4g ms with unfused ones: fused is %.3f times as fast (%s), %s tokens/s",
                   r->card.text, r->model.text, fused, unfused,
                   rounds ? r->gain.median : unfused / fused, spread.text, count_text(speed).text);
}

void bench_print(const BenchResult *r) {
  print_ops(r);
  if (r->whole) print_whole(r);
  print_method(r);
  if (r->whole) printf("\n%s\n", bench_quote(r).text);
  fflush(stdout);
}
