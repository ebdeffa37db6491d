#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "kernels/cpu/cpu.h"

static void cpu_destroy(Backend *be) {
  Cpu *cpu = cpu_of(be);
  free(cpu->rope);
  free(cpu->scratch);
  free(cpu->dy);
  free(cpu);
}

static void *cpu_alloc(Backend *be, size_t bytes) {
  (void)be;
  void *p = NULL;
  return posix_memalign(&p, 64, bytes ? bytes : 64) == 0 ? p : NULL;
}

static size_t cpu_memory_taken(Backend *be) {
  (void)be;
  return 0;
}

static void cpu_release(Backend *be, void *memory) {
  (void)be;
  free(memory);
}

static void cpu_zero(Backend *be, void *memory, size_t bytes) {
  (void)be;
  memset(memory, 0, bytes);
}

static void cpu_copy(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be;
  memcpy(to, from, bytes);
}

static void cpu_write_real(Backend *be, void *to_, const float *from, int64_t count) {
  (void)be;
  real *to = to_;
  for (int64_t i = 0; i < count; i++) to[i] = (real)from[i];
}

static void cpu_read_real(Backend *be, float *to, const void *from_, int64_t count) {
  (void)be;
  const real *from = from_;
  for (int64_t i = 0; i < count; i++) to[i] = (float)from[i];
}

static void cpu_profile(Backend *be, bool open) {
  (void)be;
  (void)open;
}

// cosine and sine of position * inv_freq, in double before rounding: exact at large positions too.
static real *rope_table(const OpsConfig *c) {
  const int64_t half = c->d / 2;
  real *table = xmalloc((size_t)(c->max_positions * half * 2) * sizeof *table);
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < c->max_positions; t++)
    for (int64_t j = 0; j < half; j++) {
      const double angle = (double)t * c->inv_freq[j];
      table[(t * half + j) * 2] = (real)cos(angle);
      table[(t * half + j) * 2 + 1] = (real)sin(angle);
    }
  return table;
}

Backend *backend_cpu_create(const OpsConfig *config) {
  Cpu *cpu = xcalloc(1, sizeof *cpu);
  cpu->config = *config;
  cpu->threads = config->threads > 0 ? config->threads : omp_get_num_procs();
  omp_set_num_threads(cpu->threads);
  openblas_set_num_threads(cpu->threads);
  cpu->rope = rope_table(config);
  cpu->scratch_per_thread = cpu_attention_scratch(config->max_positions);
  const size_t scratch_bytes = (size_t)cpu->threads * cpu->scratch_per_thread * sizeof(real);
  const size_t dy_bytes = (size_t)(config->max_tokens * config->F) * sizeof(real);
  cpu->scratch = xmalloc(scratch_bytes);
  cpu->dy = xmalloc(dy_bytes);
  cpu->config.inv_freq = NULL; // the caller's; the table has what is needed

  Backend *be = &cpu->base;
  be->name = "cpu";
  snprintf(be->description, sizeof be->description, "%d thread%s, OpenBLAS (%s), fp%d",
           cpu->threads, cpu->threads == 1 ? "" : "s", openblas_get_corename(),
           (int)sizeof(real) * 8);
  be->act_bytes = be->stat_bytes = be->grad_bytes = be->master_bytes = sizeof(real);
  be->parts.sumsq = be->parts.gate_up = be->parts.qkv = be->parts.logits = 1;
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_CPU;
  be->max_tokens = config->max_tokens;
  be->workspace_bytes =
      scratch_bytes + dy_bytes + (size_t)(config->max_positions * config->d) * sizeof(real);
  be->memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  be->destroy = cpu_destroy;
  be->alloc = cpu_alloc;
  be->memory_taken = cpu_memory_taken;
  be->release = cpu_release;
  be->zero = cpu_zero;
  be->write = cpu_copy;
  be->read = cpu_copy;
  be->write_master = cpu_write_real;
  be->read_master = be->read_act = be->read_grad = cpu_read_real;
  be->embed = cpu_embed;
  be->qkv = cpu_qkv;
  be->attention = cpu_attention;
  be->attention_decode = cpu_attention_decode;
  be->residual = cpu_residual;
  be->gate_up = cpu_gate_up;
  be->lm_head = cpu_lm_head;
  be->head_loss = cpu_head_loss;
  be->norm_dgrad = cpu_norm_dgrad;
  be->down_dgrad = cpu_down_dgrad;
  be->dgrad = cpu_dgrad;
  be->attention_backward = cpu_attention_backward;
  be->rope_backward = cpu_rope_backward;
  be->wgrad = cpu_wgrad;
  be->embed_backward = cpu_embed_backward;
  be->step_begin = cpu_step_begin;
  be->grads_finish = cpu_grads_finish;
  be->set_hyper = cpu_set_hyper;
  be->adamw = cpu_adamw;
  be->step_end = cpu_step_end;
  be->replay = cpu_replay;
  be->refresh = cpu_refresh;
  be->step_result = cpu_step_result;
  be->set_updates = cpu_set_updates;
  be->profile = cpu_profile;
  return be;
}
