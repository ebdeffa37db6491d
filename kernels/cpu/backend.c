#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "kernels/formats.h"

// There is no device, and little to prepare: many arguments have no use here.
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void cpu_destroy(Backend *be) {
  Cpu *cpu = cpu_of(be);
  free(cpu->rope);
  free(cpu->scratch);
  free(cpu->dy);
  free(cpu->documents.ends);
  bf16_products_close(cpu->products);
  free(cpu->scalings);
  free(cpu->muon);
  free(cpu->marks);
  free(cpu);
}

static void *cpu_alloc(Backend *be, size_t bytes) {
  void *p = NULL;
  return posix_memalign(&p, 64, bytes ? bytes : 64) == 0 ? p : NULL;
}

static void cpu_release(Backend *be, void *memory) {
  free(memory);
}

static void cpu_zero(Backend *be, void *memory, size_t bytes) {
  memset(memory, 0, bytes);
}

static void cpu_copy(Backend *be, void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
}

// The values of bf16 masters and moments are rounded here; they have no type of their own.
static void write_reals(real *to, const float *from, int64_t count, bool bf16) {
  for (int64_t i = 0; i < count; i++)
    to[i] = (real)(bf16 ? moment_round(from[i], MOMENT_NEAREST) : from[i]);
}

static void cpu_write_master(Backend *be, const ParamTensor *t, int64_t first, const float *from,
                             int64_t count) {
  write_reals(reals(t->master) + first, from, count, cpu_rounds_master(cpu_of(be), t));
}

static void cpu_write_moments(Backend *be, moment_t *to, const float *from, int64_t count) {
  write_reals(reals(to), from, count, be->spec.moments == MOMENTS_BF16);
}

static void read_reals(float *to, const real *from, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = (float)from[i];
}

static void cpu_read_master(Backend *be, float *to, const ParamTensor *t, int64_t first,
                            int64_t count) {
  read_reals(to, reals(t->master) + first, count);
}

static void cpu_read_moments(Backend *be, float *to, const moment_t *from, int64_t count) {
  read_reals(to, reals(from), count);
}

static void cpu_read_act(Backend *be, float *to, const act_t *from, int64_t count) {
  read_reals(to, reals(from), count);
}

static void cpu_read_grad(Backend *be, float *to, const grad_t *from, int64_t count) {
  read_reals(to, reals(from), count);
}

static void cpu_profile(Backend *be, bool open) {}

// The CPU has no copy engine that works during a step, so the copy is made at once.
static int cpu_snapshot_open(Backend *be, Error *err) {
  return 0;
}

static void cpu_snapshot_begin(Backend *be, const SnapshotPiece *list, int count) {
  enum { BLOCK = 4 << 20 };
  for (int i = 0; i < count; i++) {
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < list[i].bytes; at += BLOCK) {
      const size_t left = list[i].bytes - at;
      memcpy((char *)list[i].to_host + at, (const char *)list[i].from + at,
             left < BLOCK ? left : BLOCK);
    }
  }
}

static double cpu_snapshot_wait(Backend *be) {
  return 0;
}

static void cpu_marks_open(Backend *be, int most) {
  Cpu *cpu = cpu_of(be);
  cpu->marks = xrealloc(cpu->marks, sizeof *cpu->marks + (size_t)most * sizeof(Mark));
  *cpu->marks = (CpuMarks){.most = most};
}

static void cpu_mark(Backend *be, int what) {
  mark_now(cpu_of(be), what);
}

static int cpu_marks_read(Backend *be, Mark *marks) {
  CpuMarks *m = cpu_of(be)->marks;
  const int count = m->count;
  for (int i = 0; i < count; i++) marks[i] = (Mark){m->list[i].what, m->list[i].ms - m->list[0].ms};
  m->count = 0;
  return count;
}

// There is nothing to record: every part of a step is issued.
static bool cpu_replay_begin(Backend *be, ReplaySlot slot) {
  return true;
}

static void cpu_replay_end(Backend *be, ReplaySlot slot) {}

static void cpu_token_send(Backend *be, uint64_t index) {}

static int32_t cpu_token_take(Backend *be, uint64_t index) {
  return cpu_of(be)->tokens[index % MAX_RESULTS];
}

static real *rope_table(const Spec *c) {
  real *table = xmalloc((size_t)(c->max_positions * c->d) * sizeof *table);
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < c->max_positions; t++)
    rope_row(t, c->d / 2, c->inv_freq, table + t * c->d);
  return table;
}

#define OP(name, type, function, ...) .name = cpu_##function,
#define GENERATION(name, type) .name = cpu_##name,
static const Backend cpu_functions = {
    .name = "cpu",
    .services.destroy = cpu_destroy,
    .services.alloc = cpu_alloc,
    .services.release = cpu_release,
    .services.zero = cpu_zero,
    .services.write = cpu_copy,
    .services.read = cpu_copy,
    .services.write_master = cpu_write_master,
    .services.read_master = cpu_read_master,
    .services.write_moments = cpu_write_moments,
    .services.read_moments = cpu_read_moments,
    .services.read_act = cpu_read_act,
    .services.read_grad = cpu_read_grad,
    .services.set_hyper = cpu_set_hyper,
    .services.clock_start = cpu_clock_start,
    .services.step_begin = cpu_step_begin,
    .services.step_end = cpu_step_end,
    .services.step_result = cpu_step_result,
    .services.refresh = cpu_refresh,
    .services.set_updates = cpu_set_updates,
    .services.set_documents = cpu_set_documents,
    .services.scalings_discard = cpu_scalings_discard,
    .services.scalings_read = cpu_scalings_read,
    .services.scalings_write = cpu_scalings_write,
    .services.snapshot_open = cpu_snapshot_open,
    .services.snapshot_begin = cpu_snapshot_begin,
    .services.snapshot_wait = cpu_snapshot_wait,
    .services.token_send = cpu_token_send,
    .services.token_take = cpu_token_take,
    .services.replay_begin = cpu_replay_begin,
    .services.replay_end = cpu_replay_end,
    .services.profile = cpu_profile,
    .services.marks_open = cpu_marks_open,
    .services.mark = cpu_mark,
    .services.marks_read = cpu_marks_read,
    .services.copy = cpu_copy,
#include "kernels/ops.def"
};
#undef OP
#undef GENERATION

static int threads_of(const Spec *s) {
  return s->threads > 0 ? s->threads : threads_asked("").count;
}

// A holds activations and gradients, B weights, or in a weight's gradient activations.
static Bf16Room products_room(const Spec *c) {
  const int64_t heads = c->H * c->d, M = c->max_tokens,
                widest = max_i64(c->V, max_i64(2 * c->F, packed_width(c))),
                all = M * max_i64(widest, c->D), row = max_i64(M, widest),
                input = max_i64(c->D, max_i64(c->F, heads));
  return (Bf16Room){.A = (size_t)max_i64(min_i64(all, BF16_PIECE), row),
                    .B = (size_t)max_i64(widest * c->D, M * input)};
}

void spec_estimate_cpu(Spec *s) {
  const size_t scratch = (size_t)threads_of(s) * cpu_attention_scratch(s->max_positions),
               others = (size_t)(s->max_tokens * s->F + s->max_positions * s->d);
  s->real_bytes = sizeof(real);
  s->grads_fp32 = true;
  s->most_parts.sumsq = s->most_parts.s = 1;
  s->folds_softmax = false;
  s->workspace_bytes = (scratch + others) * sizeof(real);
  if (s->bf16_products) s->workspace_bytes += bf16_products_bytes(products_room(s));
  s->list_bytes = muon_scratch;
  s->granule = 0;
}

Backend *backend_cpu_create(const Spec *spec) {
  Cpu *cpu = xcalloc(1, sizeof *cpu);
  cpu->threads = threads_of(spec);
  gemm_warm_up();
  omp_set_num_threads(cpu->threads); // oneDNN's, too
  thread_team(cpu->threads);
  cpu->base = cpu_functions;
  cpu->base.spec = *spec;
  spec_estimate_cpu(&cpu->base.spec);
  cpu->base.spec.memory_bytes = memory_available();
  cpu->rope = rope_table(spec);
  cpu->scratch_per_thread = cpu_attention_scratch(spec->max_positions);
  cpu->scratch = xmalloc((size_t)cpu->threads * cpu->scratch_per_thread * sizeof(real));
  cpu->dy = xmalloc((size_t)(spec->max_tokens * spec->F) * sizeof(real));
  if (spec->bf16_products) cpu->products = bf16_products_open(products_room(spec));
  scalings_open(cpu);

  Backend *be = &cpu->base;
  snprintf(be->description, sizeof be->description, "%d thread%s, %s, fp%d%s", cpu->threads,
           cpu->threads == 1 ? "" : "s", products_library().text, (int)sizeof(real) * 8,
           cpu->products ? ", products in bf16" : "");
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_CPU;
  return be;
}
