#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/fused/fused.h"
#include "kernels/fused/kernels.h"
#include "kernels/gpu_backends.h"
#include "kernels/record.h"

enum {
  // hidden_size from which the epilogue of programs/probabilities.cu hides behind its product:
  // predicted, 2000 cycles against 12 for each of K
  LONG_HEAD = 192,
  MOST_COLUMNS = 1 << 24, // fp32 holds a target's column exactly
};

// ---- The kernels of each operation

// The table of fused operations. The description names those that run on the unfused kernels in
// this order.
static const struct {
  Operation operation;
  ProgramName program, fp8;
  bool of_head; // its GEMM has a side of vocab_size
} fused_operations[] = {
    {OP_QKV, PROGRAM_ROPE, PROGRAM_ROPE_FP8, false},
    {OP_OUT, PROGRAM_RESIDUAL, PROGRAM_RESIDUAL_FP8, false},
    {OP_GATE_UP, PROGRAM_SWIGLU, PROGRAM_SWIGLU_FP8, false},
    {OP_DOWN, PROGRAM_RESIDUAL, PROGRAM_RESIDUAL_PROMOTED_FP8, false},
    {OP_QKV_DGRAD, PROGRAM_NORM_DGRAD_RESIDUAL, PROGRAM_NORM_DGRAD_RESIDUAL_FP8, false},
    {OP_GATE_UP_DGRAD, PROGRAM_NORM_DGRAD_RESIDUAL, PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8,
     false},
    {OP_DOWN_DGRAD, PROGRAM_SWIGLU_BACKWARD, PROGRAM_SWIGLU_BACKWARD_FP8, false},
    {OP_LM_HEAD_DGRAD, PROGRAM_NORM_DGRAD, PROGRAM_NORM_DGRAD_FP8, true},
    {OP_VALIDATION_LOSS, PROGRAM_PROBABILITIES, PROGRAM_PROBABILITIES_FP8, true},
    {OP_HEAD_LOSS, PROGRAM_PROBABILITIES, PROGRAM_PROBABILITIES_FP8, true},
};
enum { FUSED_OPERATIONS = sizeof fused_operations / sizeof *fused_operations };

static bool pays(Mainloop mainloop, const OpsConfig *c, int fused) {
  const Operation operation = fused_operations[fused].operation;
  if (fused_operations[fused].program == PROGRAM_PROBABILITIES && c->D < LONG_HEAD) return false;
  for (int i = 0; i < c->call_count; i++) {
    const OperationCall *call = &c->calls[i];
    const ProgramName program =
        call->fp8 ? fused_operations[fused].fp8 : fused_operations[fused].program;
    if (call->operation == operation && !tile_pays(mainloop, program, call->M, call->N, call->K))
      return false;
  }
  return true;
}

static void settle_kinds(Backend *be, const OpsConfig *c, KernelChoice choice, Mainloop mainloop) {
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_UNFUSED;
  for (int i = 0; i < FUSED_OPERATIONS; i++) {
    const Operation operation = fused_operations[i].operation;
    if ((!fused_operations[i].of_head || c->V < MOST_COLUMNS) &&
        (choice == KERNELS_FUSED || pays(mainloop, c, i)))
      be->kinds[operation] = KERNEL_FUSED;
  }
  be->kinds[OP_DOWN_DGRAD] = be->kinds[OP_GATE_UP]; // gate_up wrote z with or without r
  if (mainloop == MAINLOOP_WGMMA) be->kinds[OP_MUON] = KERNEL_FUSED;
  be->folds_softmax = be->kinds[OP_HEAD_LOSS] == KERNEL_FUSED;
}

static void describe(Backend *be) {
  const char *lead = "; unfused, for their width:";
  for (int i = 0; i < FUSED_OPERATIONS; i++) {
    const Operation operation = fused_operations[i].operation;
    if (be->kinds[operation] == KERNEL_FUSED) continue;
    const size_t used = strlen(be->description);
    snprintf(be->description + used, sizeof be->description - used, "%s %s", lead,
             operation_name(operation));
    lead = ",";
  }
}

// ---- Opening

static int check_model(const OpsConfig *c, Mainloop mainloop, Error *err) {
  if (c->scaling_count > 0 && mainloop != MAINLOOP_WGMMA)
    return error_set(err,
                     "fused kernels have FP8 only on GPUs of compute capability 9.0 (Hopper), with "
                     "backend.mainloop \"auto\" or \"wgmma\"; take backend.kernels \"unfused\" or "
                     "backend.precision \"bf16\"");
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"hidden_size", c->D}, {"intermediate_size", c->F}, {"head_dim", c->d}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value % 8 != 0)
      return error_set(err,
                       "model.%s is %lld, but fused kernels take multiples of 8; change it, or use "
                       "backend.kernels \"unfused\"",
                       sizes[i].name, (long long)sizes[i].value);
  return 0;
}

int backend_fused_supported(const OpsConfig *config, Error *err) {
  Gpu gpu;
  Mainloop mainloop;
  const bool runs =
      gpu_probe(&gpu, err) == 0 && fused_mainloop(MAINLOOP_AUTO, &gpu, &mainloop, err) == 0;
  return runs ? check_model(config, mainloop, err) : -1;
}

static int take_parts(Cuda *u, RowStat *s, int32_t parts, int64_t rows, Error *err) {
  *s = (RowStat){cuda_take(u, (size_t)(parts * rows) * sizeof(float), err), rows, parts};
  return s->data ? 0 : -1;
}

static int make_workspace(Fused *f, Error *err) {
  Cuda *u = &f->unfused.cuda;
  const OpsConfig *c = &u->config;
  const size_t rope_row = (size_t)rope_table_cols(c->d) * sizeof(uint16_t);
  f->rope = cuda_take(u, (size_t)c->max_positions * rope_row, err);
  if (!f->rope) return -1;
  f->rope_periodic = cuda_take(u, (size_t)(c->max_positions + 63) * rope_row, err);
  if (!f->rope_periodic) return -1;
  launch_rope_table(c->max_positions, c->d, c->max_positions, u->rope, f->rope, u->gpu.stream);
  if (u->base.kinds[OP_VALIDATION_LOSS] != KERNEL_FUSED) return 0;
  const int64_t rows = u->options.loss_tokens > 0 ? u->options.loss_tokens : c->max_tokens;
  const Mainloop loop = f->kernels.mainloop;
  const int32_t bf16 = tile_parts(tile_choose(loop, PROGRAM_PROBABILITIES, rows, c->V, c->D), c->V),
                fp8 = tile_parts(tile_choose(loop, PROGRAM_PROBABILITIES_FP8, rows, c->V, c->D),
                                 c->V),
                parts = bf16 > fp8 ? bf16 : fp8;
  f->head.u = cuda_take(u, (size_t)rows * sizeof(float), err);
  return !f->head.u || take_parts(u, &f->head.aim, AIM_PARTS, rows, err) ||
                 take_parts(u, &f->head.sum, parts, rows, err) ||
                 take_parts(u, &f->head.entropy, parts, rows, err)
             ? -1
             : 0;
}

static void set_operations(Backend *be, const OpsConfig *c, Mainloop mainloop) {
  const TileShape narrowest = mainloop == MAINLOOP_MMA_SYNC ? TILE_64x64 : TILE_128x128;
  const KernelKind *kinds = be->kinds;
  if (kinds[OP_QKV] == KERNEL_FUSED) be->qkv = fused_qkv;
  if (kinds[OP_GATE_UP] == KERNEL_FUSED) be->gate_up = fused_gate_up;
  if (kinds[OP_DOWN_DGRAD] == KERNEL_FUSED) be->down_dgrad = fused_down_dgrad;
  if (kinds[OP_VALIDATION_LOSS] == KERNEL_FUSED) be->head_loss = fused_head_loss;
  be->residual = fused_residual;
  be->head_dgrad = fused_head_dgrad;
  be->norm_dgrad = fused_norm_dgrad;
  if (kinds[OP_MUON] == KERNEL_FUSED) cuda_of(be)->orthogonalize = fused_orthogonalize;
  // Beside those of the unfused kernels.
  const int64_t sumsq = tile_parts(narrowest, c->D), s = tile_parts(narrowest, c->F);
  if (be->most_parts.sumsq < sumsq) be->most_parts.sumsq = sumsq;
  if (be->most_parts.s < s) be->most_parts.s = s;
}

Backend *backend_fused_create(const OpsConfig *config, const GpuOptions *options, Error *err) {
  Gpu gpu;
  Mainloop mainloop;
  if (gpu_probe(&gpu, err) || fused_mainloop(options->mainloop, &gpu, &mainloop, err) ||
      check_model(config, mainloop, err))
    return NULL;
  Fused *f = xcalloc(1, sizeof *f);
  Cuda *c = &f->unfused.cuda;
  settle_kinds(&c->base, config, options->kernels, mainloop);
  const bool failed = unfused_open(&f->unfused, config, options, err) ||
                      fused_kernels_open(&f->kernels, mainloop, &c->gpu, err);
  phase_end(&c->base.opening, "fused kernels");
  if (failed || make_workspace(f, err) ||
      cuda_ready(c, mainloop == MAINLOOP_WGMMA ? "cuda, fused" : "cuda, fused by mma.sync", err)) {
    cuda_destroy(&c->base);
    return NULL;
  }
  set_operations(&c->base, config, mainloop);
  describe(&c->base);
  return &c->base;
}
