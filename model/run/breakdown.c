#include "model/run/breakdown.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static int by_beginning(const void *a_, const void *b_) {
  const Activity *a = a_, *b = b_;
  return (a->began > b->began) - (a->began < b->began);
}

static int by_time(const void *a_, const void *b_) {
  const BreakdownKernel *a = a_, *b = b_;
  return (b->part.ms > a->part.ms) - (b->part.ms < a->part.ms);
}

// The row of this activity's kernel, made where there is none yet.
static BreakdownKernel *row_of(Breakdown *b, const Activity *a) {
  const ActivityLabel label = activity_label(a);
  for (int i = 0; i < b->kernel_count; i++)
    if (strcmp(b->kernels[i].label.text, label.text) == 0) return &b->kernels[i];
  b->kernels = xrealloc(b->kernels, (size_t)(b->kernel_count + 1) * sizeof *b->kernels);
  BreakdownKernel *row = &b->kernels[b->kernel_count++];
  *row = (BreakdownKernel){.label = label, .group = activity_group(a)};
  return row;
}

void breakdown_make(Breakdown *b, const Activities *activities) {
  const int64_t count = activities->count;
  *b = (Breakdown){
      .step_ms = b->step_ms, .other_steps_ms = b->other_steps_ms, .lost = activities->lost};
  if (count == 0) return;
  Activity *sorted = xmalloc((size_t)count * sizeof *sorted);
  memcpy(sorted, activities->list, (size_t)count * sizeof *sorted);
  qsort(sorted, (size_t)count, sizeof *sorted, by_beginning);
  uint64_t done = sorted[0].began; // everything before it is counted
  uint64_t gaps = 0;
  for (int64_t i = 0; i < count; i++) {
    const Activity *a = &sorted[i];
    BreakdownKernel *row = row_of(b, a);
    BreakdownPart *group = &b->groups[row->group];
    row->part.count++;
    row->part.ms += (double)(a->ended - a->began) * 1e-6;
    group->count++;
    if (a->began > done) {
      gaps += a->began - done;
      done = a->began;
    }
    if (a->ended > done) {
      group->ms += (double)(a->ended - done) * 1e-6;
      done = a->ended;
    }
  }
  b->gpu_ms = (double)(done - sorted[0].began) * 1e-6;
  b->gaps_ms = (double)gaps * 1e-6;
  free(sorted);
  qsort(b->kernels, (size_t)b->kernel_count, sizeof *b->kernels, by_time);
}

void breakdown_free(Breakdown *b) {
  free(b->kernels);
  b->kernels = NULL;
  b->kernel_count = 0;
}

// One of the lines: a group or the gaps (count < 0), and the i-th kernel where there is one.
static void print_line(const Breakdown *b, const char *name, double ms, int64_t count, int i,
                       FILE *out) {
  char counted[32] = "";
  if (count >= 0) snprintf(counted, sizeof counted, "%lld", (long long)count);
  fprintf(out, "  %-18s %9.3f ms %5.1f %% %5s", name, ms, b->gpu_ms > 0 ? 100 * ms / b->gpu_ms : 0,
          counted);
  if (i < b->kernel_count) {
    const BreakdownKernel *k = &b->kernels[i];
    fprintf(out, "   |%9.3f ms = %4lld x %8.1f us  %.52s", k->part.ms, (long long)k->part.count,
            1e3 * k->part.ms / (double)k->part.count, k->label.text);
  }
  fputc('\n', out);
}

void breakdown_print(const Breakdown *b, int64_t step, int64_t steps, FILE *out) {
#define GROUP_NAME(enumerator, key, name) name,
  static const char *const names[] = {ACTIVITY_GROUPS(GROUP_NAME)};
#undef GROUP_NAME
  fprintf(out, "step %*lld/%lld | breakdown: %.3f ms on the GPU, in a step of %.2f ms",
          snprintf(NULL, 0, "%lld", (long long)steps), (long long)step, (long long)steps, b->gpu_ms,
          b->step_ms);
  if (isfinite(b->other_steps_ms)) fprintf(out, "; untraced steps take %.2f ms", b->other_steps_ms);
  if (b->lost > 0)
    fprintf(out, "; CUPTI lost %lld kernels or copies, which count as gaps", (long long)b->lost);
  fputc('\n', out);
  for (int i = 0; i < GROUP_COUNT; i++)
    print_line(b, names[i], b->groups[i].ms, b->groups[i].count, i, out);
  print_line(b, "gaps", b->gaps_ms, -1, GROUP_COUNT, out);
  fflush(out);
}
