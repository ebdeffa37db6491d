#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/fused/fused.h"
#include "kernels/fused/kernels.h"

enum {
  // hidden_size from which the epilogue of programs/probabilities.cu hides behind its product:
  // predicted, 2000 cycles against 12 for each of K
  LONG_HEAD = 192,
  MOST_COLUMNS = 1 << 24, // fp32 holds a target's column exactly
};

// ---- The kernels of each operation

// In bf16 and in FP8.
static const ProgramName programs[OPERATION_COUNT][2] = {
#define OP(name, type, function, program, fp8, ...)                                                \
  [OP_##name] = {PROGRAM_##program, PROGRAM_##fp8},
#include "kernels/ops.def"
#undef OP
};

static bool has_program(Operation operation) {
  return programs[operation][0] != PROGRAM_NONE;
}

// Of the check (model/run/check.c).
static bool is_left_out(const Spec *spec, Operation operation) {
  return ((spec->failed | spec->slow) & operations_with(operation)) != 0;
}

static bool occurs(const Cuda *c, Operation operation) {
  return c->base.spec.train || operation <= OP_validation_loss;
}

static bool pays(const Cuda *c, Operation operation, Mainloop mainloop) {
  const ProgramName *program = programs[operation];
  const OperationWork w = cuda_work(c, operation);
  if (program[0] == PROGRAM_PROBABILITIES && c->base.spec.D < LONG_HEAD) return false;
  return !occurs(c, operation) || tile_pays(mainloop, program[c->base.spec.fp8], w.M, w.N, w.K);
}

static void settle_kinds(Cuda *c, Mainloop mainloop) {
  Backend *be = &c->base;
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    const OperationWork w = cuda_work(c, i);
    const bool fused = has_program(i) && !is_left_out(&be->spec, i) && w.N < MOST_COLUMNS &&
                       w.K < MOST_COLUMNS &&
                       (c->base.spec.kernels == KERNELS_FUSED || pays(c, i, mainloop));
    be->kinds[i] = fused ? KERNEL_FUSED : KERNEL_UNFUSED;
  }
  be->kinds[OP_down_dgrad] = be->kinds[OP_gate_up]; // gate_up wrote z with or without r
  if (mainloop == MAINLOOP_WGMMA) be->kinds[OP_muon] = KERNEL_FUSED;
}

static void describe(Backend *be, const char *lead, OperationSet operations) {
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    if (!has_program(i) || be->kinds[i] == KERNEL_FUSED || !(operations >> i & 1)) continue;
    const size_t used = strlen(be->description);
    snprintf(be->description + used, sizeof be->description - used, "%s %s", lead,
             operation_name(i));
    lead = ",";
  }
}

// ---- Opening

static int check_model(const Spec *c, Error *err) {
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

static int take_parts(Cuda *u, RowStat *s, int32_t parts, int64_t rows, Error *err) {
  *s = (RowStat){cuda_take(u, (size_t)(parts * rows) * sizeof(float), err), rows, parts};
  return s->data ? 0 : -1;
}

static int make_workspace(Fused *f, Error *err) {
  Cuda *u = &f->unfused.cuda;
  const Spec *c = &u->base.spec;
  const size_t rope_row = (size_t)rope_table_cols(c->d) * sizeof(uint16_t);
  f->rope = cuda_take(u, (size_t)c->max_positions * rope_row, err);
  if (!f->rope) return -1;
  f->rope_periodic = cuda_take(u, (size_t)(c->max_positions + 63) * rope_row, err);
  if (!f->rope_periodic) return -1;
  launch_rope_table(c->max_positions, c->d, c->max_positions, u->rope, f->rope, u->gpu.stream);
  if (u->base.kinds[OP_validation_loss] != KERNEL_FUSED) return 0;
  const int64_t rows = chunk_rows(c);
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

static void set_operations(Backend *be, Mainloop mainloop) {
  Spec *c = &be->spec;
  const TileShape narrowest = mainloop == MAINLOOP_MMA_SYNC ? TILE_64x64 : TILE_128x128;
#define FUSE(name, function)                                                                       \
  if (be->kinds[OP_##name] == KERNEL_FUSED) be->name = fused_##function
  FUSE(qkv, qkv);
  FUSE(out, residual);
  FUSE(gate_up, gate_up);
  FUSE(down, residual);
  FUSE(validation_loss, head_loss);
  FUSE(head_loss, head_loss);
  FUSE(lm_head_dgrad, head_dgrad);
  FUSE(down_dgrad, down_dgrad);
  FUSE(gate_up_dgrad, norm_dgrad);
  FUSE(qkv_dgrad, norm_dgrad);
#undef FUSE
  if (be->kinds[OP_muon] == KERNEL_FUSED) cuda_of(be)->orthogonalize = fused_orthogonalize;
  // Beside those of the unfused kernels.
  const int64_t sumsq = tile_parts(narrowest, c->D), s = tile_parts(narrowest, c->F);
  if (c->most_parts.sumsq < sumsq) c->most_parts.sumsq = sumsq;
  if (c->most_parts.s < s) c->most_parts.s = s;
  c->folds_softmax = be->kinds[OP_head_loss] == KERNEL_FUSED;
}

// The description names the operations that run on the unfused kernels.
static Backend *fused_create(const Spec *spec, const Gpu *gpu, Error *err) {
  Mainloop mainloop;
  if (fused_mainloop(spec->mainloop, gpu, &mainloop, err) || check_model(spec, err)) return NULL;
  Fused *f = xcalloc(1, sizeof *f);
  Cuda *c = &f->unfused.cuda;
  c->base.spec = *spec;
  settle_kinds(c, mainloop);
  const bool unopened = unfused_open(&f->unfused, spec, gpu, err) ||
                        fused_kernels_open(&f->kernels, mainloop, &c->gpu, err);
  phase_end(&c->base.opening, "fused kernels");
  if (unopened || make_workspace(f, err) ||
      cuda_ready(c, mainloop == MAINLOOP_WGMMA ? "cuda, fused" : "cuda, fused by mma.sync", err)) {
    cuda_destroy(&c->base);
    return NULL;
  }
  set_operations(&c->base, mainloop);
  describe(&c->base, "; unfused, for their programs failed the check:", spec->failed);
  describe(&c->base, "; unfused, for that is faster here:", spec->slow & ~spec->failed);
  describe(&c->base, "; unfused, for their width:", ~(spec->failed | spec->slow));
  return &c->base;
}

int backend_fuse(Backend *be, OperationSet operations, Error *err) {
  Fused *f = fused_of(be);
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (has_program(i)) be->kinds[i] = operations >> i & 1 ? KERNEL_FUSED : KERNEL_UNFUSED;
  unfused_set_operations(be);
  set_operations(be, f->kernels.mainloop);
  return unfused_take_product(&f->unfused, err);
}

// ---- Either backend

int gpu_find(Gpu *gpu, Error *err) {
  CublasLt lt;
  CudnnApi cudnn;
  size_t all;
  if (gpu_probe(gpu, err) || gpu_memory(&gpu->free_bytes, &all, err) ||
      fused_mainloop(MAINLOOP_AUTO, gpu, &gpu->mainloop, err) ||
      cublaslt_open(&lt, CUBLASLT_LIBRARY, err))
    return -1;
  gpu->cublaslt = lt.GetVersion();
  return cudnn_open(&cudnn, err);
}

int backend_fused_supported(const Spec *spec, Error *err) {
  return check_model(spec, err);
}

Backend *backend_gpu_create(const Spec *spec, const Gpu *gpu, Error *err) {
  if (spec->kernels == KERNELS_UNFUSED) return backend_unfused_create(spec, gpu, err);
  Error why_not;
  if (spec->kernels == KERNELS_AUTO && !gpu_fuses(gpu)) {
    error_set(&why_not, "cuBLASLt's GEMMs are faster than mma.sync on this GPU");
  } else if (backend_fused_supported(spec, &why_not) == 0) {
    Backend *fused = fused_create(spec, gpu, &why_not);
    if (fused) return fused;
  }
  if (spec->kernels == KERNELS_FUSED) {
    *err = why_not;
    error_prefix(err, "backend.kernels is \"fused\"");
    return NULL;
  }
  Backend *be = backend_unfused_create(spec, gpu, err);
  if (!be) return NULL;
  const size_t used = strlen(be->description);
  snprintf(be->description + used, sizeof be->description - used, "; not fused, because %.300s",
           why_not.text);
  return be;
}
