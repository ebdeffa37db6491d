// The problems of bench_fused.c: operands of a program in a shape, and its unfused twin.
#pragma once
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/gemm.h"
#include "kernels/fused/kernels.h"
#include "kernels/unfused/unfused.h"
#include "tests/bench/gpu_timer.h"
#include "tests/gpu/program_list.h"
#include "tests/gpu/random_fill.h"

enum { PATTERN = 1 << 22, MAX_MEMORY = 20 };
static const int64_t sequence = 4096;

// A model's sizes.
typedef struct Width {
  const char *name;
  int64_t D, F, H, KV, d, V;
  int rounds;
} Width;

typedef struct Bench {
  Gpu gpu;
  Gemm gemm;
  GpuTimer timer;
  uint16_t *normal, *weights; // patterns of values: of deviation 1, and as weights start
  uint8_t *normal_fp8[2];     // of deviation 32, for each Fp8Format
  bool sustain;
} Bench;

typedef struct Problem Problem;

// A program, and what the unfused backend does after (or with) its product
// (kernels/unfused/forward_unfused.c, backward_unfused.c).
typedef enum Kind { ANY, FORWARD, BACKWARD, IN_FP8 } Kind; // as the summary counts it
typedef struct Subject {
  const Program *program;
  ProgramName name; // PROGRAMS: not of train's table
  Kind kind;
  bool adds; // the twin's product adds to a matrix
  void (*prepare)(Problem *p);
  void (*twin)(const Problem *p); // NULL: none
} Subject;

// One timed problem.
struct Problem {
  Bench *bench;
  const Subject *subject;
  const Width *width;
  const char *name; // what the model calls it
  GemmProblem product;
  // Filled by problem_open
  OpenProgram open;
  ProgramCall call;
  RowScale r; // the twin's
  RopeShape rope;
  CrossEntropy loss;
  void *out, *scratch;
  void *memory[MAX_MEMORY];
  int allocations;
};

static inline void end_with(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(EXIT_FAILURE);
}

// ---- Memory

static inline void *take(Problem *p, size_t bytes) {
  if (p->allocations == MAX_MEMORY) end_with("bench_fused: MAX_MEMORY is too small");
  void **memory = &p->memory[p->allocations++];
  CUDA_CHECK(cudaMalloc(memory, bytes));
  return *memory;
}

static inline void *take_copy(Problem *p, const void *from, size_t bytes) {
  void *memory = take(p, bytes);
  CUDA_CHECK(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
  return memory;
}

static inline void *take_random(Problem *p, const uint16_t *pattern, int64_t count) {
  const size_t bytes = (size_t)count * 2;
  void *memory = take(p, bytes);
  fill_with_copies(memory, bytes, pattern, PATTERN * sizeof *pattern);
  return memory;
}

static inline void *take_random_fp8(Problem *p, Fp8Format format, int64_t count) {
  void *memory = take(p, (size_t)count);
  fill_with_copies(memory, (size_t)count, p->bench->normal_fp8[format], PATTERN);
  return memory;
}

static inline const Scaling *take_scaling(Problem *p, float scale) {
  return take_copy(p, &(Scaling){.scale = scale, .inverse = 1 / scale}, sizeof(Scaling));
}

static inline void *take_filled(Problem *p, int64_t count, float value) {
  float *values = xmalloc((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = value;
  void *memory = take_copy(p, values, (size_t)count * sizeof *values);
  free(values);
  return memory;
}

static inline uint16_t *normal_pattern(double deviation) {
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
#pragma omp parallel for
  for (int64_t i = 0; i < PATTERN; i++) {
    const float value = (float)(deviation * rng_normal(7, (uint64_t)i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  return pattern;
}

static inline uint8_t *fp8_pattern(Fp8Format format) {
  uint8_t *pattern = xmalloc(PATTERN);
#pragma omp parallel for
  for (int64_t i = 0; i < PATTERN; i++)
    pattern[i] = fp8_bits(format, (float)(32 * rng_normal(7, (uint64_t)i)));
  return pattern;
}

// ---- What single programs need beside matrices and statistics of rows

static inline void prepare_rope(Problem *p) {
  const Width *w = p->width;
  const int64_t rotated = (w->H + w->KV) * w->d;
  double *inv_freq = xmalloc((size_t)w->d / 2 * sizeof *inv_freq);
  for (int64_t j = 0; j < w->d / 2; j++) inv_freq[j] = pow(500000, -2 * (double)j / (double)w->d);
  float *angles = xmalloc((size_t)(sequence * w->d) * sizeof *angles);
  for (int64_t i = 0; i < sequence * w->d; i += 2) {
    const double angle = (double)(i / w->d) * inv_freq[i % w->d / 2];
    angles[i] = (float)cos(angle);
    angles[i + 1] = (float)sin(angle);
  }
  const RopeTable table = rope_table(0, 0, sequence, w->d, inv_freq);
  p->call.loads[0] = (Matrix){take_copy(p, table.values, (size_t)(table.rows * table.cols) * 2),
                              table.rows, table.cols};
  p->call.args.params[ROPE_PERIOD].i = (int32_t)sequence;
  p->call.args.params[ROPE_HEAD_DIM].i = (int32_t)w->d;
  p->call.args.params[ROPE_ROTATED].i = (int32_t)rotated;
  p->rope = (RopeShape){.rotated = rotated,
                        .R = p->product.N,
                        .d = w->d,
                        .T = sequence,
                        .table = take_copy(p, angles, (size_t)(sequence * w->d) * 4)};
  free(inv_freq), free(angles), free(table.values);
}

static inline void prepare_loss(Problem *p) {
  const int64_t M = p->product.M, V = p->product.N;
  int32_t *targets = xmalloc((size_t)M * sizeof *targets);
  for (int64_t m = 0; m < M; m++) targets[m] = (int32_t)(rng_u64(11, (uint64_t)m) % (uint64_t)V);
  p->loss = (CrossEntropy){.M = M,
                           .V = V,
                           .stride = V,
                           .logits = p->out,
                           .targets = take_copy(p, targets, (size_t)M * sizeof *targets),
                           .r = p->r,
                           .clusters = p->bench->gpu.compiled_for >= 90,
                           .multiprocessors = p->bench->gpu.sm_count,
                           .grad_scale = 1,
                           .row_loss = take(p, (size_t)M * 4)};
  free(targets);
}

// The twin's pass leaves the gradient, too.
static inline void prepare_probabilities(Problem *p) {
  const int64_t M = p->product.M;
  prepare_loss(p);
  p->loss.s = take(p, (size_t)M * 4);
  float *aim = xmalloc((size_t)(AIM_PARTS * M) * sizeof *aim);
  for (int64_t m = 0; m < M; m++) {
    aim[AIM_EXPONENT * M + m] = HEAD_AIM;
    aim[AIM_TARGET * M + m] = (float)(rng_u64(11, (uint64_t)m) % (uint64_t)p->product.N);
  }
  p->call.args.in[1] = (RowStat){take_copy(p, aim, (size_t)(AIM_PARTS * M) * sizeof *aim), M, 2};
  free(aim);
}

// Parts of a log-sum-exp for CappedDlogits, and a z-loss of 0.
static inline void prepare_lse(Problem *p) {
  const int64_t M = p->product.M;
  p->call.args.in[1] = (RowStat){(stat_t *)take_filled(p, 2 * M, 1), M, 1};
}

static inline void prepare_column_sums(Problem *p) {
  const int64_t parts = (p->product.M + 15) / 16, N = p->product.N;
  p->call.args.out[0] = (RowStat){.data = take(p, (size_t)(parts * N) * 4), .stride = N};
}

// ---- The twins

static inline void run_product(const Problem *p, bool add, const void *C, void *to) {
  GemmProblem product = p->product;
  product.add = add;
  if (product.formats != GEMM_BF16) {
    gemm_run_fp8(&p->bench->gemm, product, p->call.A, &p->call.args.a->inverse, p->call.B,
                 &p->call.args.b->inverse, C, to);
    return;
  }
  gemm_run(&p->bench->gemm, product, p->call.A, p->call.B, C, to);
}

static inline act_t *stored(const Problem *p, int i) {
  return (act_t *)(uintptr_t)p->call.stores[i].data;
}

static inline void twin_residual(const Problem *p) {
  RowStat sums = p->call.args.out[0];
  run_product(p, true, p->call.loads[0].data, p->out);
  launch_row_sumsq(p->product.M, p->product.N, stored(p, 0), &sums, p->bench->gpu.stream);
}
static inline void twin_rope(const Problem *p) {
  run_product(p, false, NULL, p->out);
  launch_rope(p->product.M, p->rope, p->r, stored(p, 0), p->bench->gpu.stream);
}
static inline void twin_swiglu(const Problem *p) {
  run_product(p, false, NULL, p->out);
  launch_swiglu(p->product.M, p->product.N / 2, p->r, stored(p, 0), stored(p, 1),
                p->bench->gpu.stream);
}
static inline void twin_probabilities(const Problem *p) {
  run_product(p, false, NULL, p->out);
  launch_cross_entropy(&p->loss, p->bench->gpu.stream);
}
static inline void twin_swiglu_backward(const Problem *p) {
  RowStat sums = p->call.args.out[0];
  run_product(p, false, NULL, p->scratch);
  launch_swiglu_backward(p->product.M, p->product.N, p->r, p->call.loads[0].data, p->scratch,
                         stored(p, 0), &sums, p->bench->gpu.stream);
}
static inline void twin_norm_dgrad(const Problem *p) {
  RowStat s = p->call.args.in[1];
  s.parts = 1;
  run_product(p, p->subject->adds, p->call.loads[1].data, p->scratch);
  launch_norm_backward(p->product.M, p->r, p->call.loads[0].data, s, NULL, p->scratch, stored(p, 0),
                       p->bench->gpu.stream);
}

static const Subject subjects[] = {
    {&fused_program_residual, PROGRAM_RESIDUAL, FORWARD, true, NULL, twin_residual},
    {&fused_program_rope, PROGRAM_ROPE, FORWARD, false, prepare_rope, twin_rope},
    {&fused_program_swiglu, PROGRAM_SWIGLU, FORWARD, false, NULL, twin_swiglu},
    {&fused_program_probabilities, PROGRAM_PROBABILITIES, FORWARD, false, prepare_probabilities,
     twin_probabilities},
    {&fused_program_swiglu_backward, PROGRAM_SWIGLU_BACKWARD, BACKWARD, false, NULL,
     twin_swiglu_backward},
    {&fused_program_norm_dgrad, PROGRAM_NORM_DGRAD, BACKWARD, false, NULL, twin_norm_dgrad},
    {&fused_program_norm_dgrad_residual, PROGRAM_NORM_DGRAD_RESIDUAL, BACKWARD, true, NULL,
     twin_norm_dgrad},
    {&fused_program_residual_fp8, PROGRAM_RESIDUAL_FP8, IN_FP8, false, NULL, NULL},
    {&fused_program_residual_promoted_fp8, PROGRAM_RESIDUAL_PROMOTED_FP8, IN_FP8, false, NULL,
     NULL},
    {&fused_program_rope_fp8, PROGRAM_ROPE_FP8, IN_FP8, false, prepare_rope, NULL},
    {&fused_program_swiglu_fp8, PROGRAM_SWIGLU_FP8, IN_FP8, false, NULL, NULL},
    {&fused_program_probabilities_fp8, PROGRAM_PROBABILITIES_FP8, IN_FP8, false,
     prepare_probabilities, NULL},
    {&fused_program_swiglu_backward_fp8, PROGRAM_SWIGLU_BACKWARD_FP8, IN_FP8, false, NULL, NULL},
    {&fused_program_norm_dgrad_fp8, PROGRAM_NORM_DGRAD_FP8, IN_FP8, false, NULL, NULL},
    {&fused_program_norm_dgrad_residual_fp8, PROGRAM_NORM_DGRAD_RESIDUAL_FP8, IN_FP8, false, NULL,
     NULL},
    {&fused_program_norm_dgrad_residual_promoted_fp8, PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8,
     IN_FP8, false, NULL, NULL},
    // Tests' programs
    {&fused_program_bias_gelu_backward, PROGRAMS, ANY, false, prepare_column_sums, NULL},
    {&fused_program_gated_residual_backward, PROGRAMS, ANY, false, prepare_column_sums, NULL},
    {&fused_program_capped_dlogits, PROGRAMS, ANY, false, prepare_lse, NULL},
    {&fused_program_capped_dlogits_fp8, PROGRAMS, ANY, false, prepare_lse, NULL},
    {&fused_program_head_norm_rope_64, PROGRAMS, ANY, false, prepare_rope, NULL},
    {&fused_program_head_norm_rope_128, PROGRAMS, ANY, false, prepare_rope, NULL},
    {&fused_program_head_norm_rope_64_fp8, PROGRAMS, ANY, false, prepare_rope, NULL},
    {&fused_program_head_norm_rope_128_fp8, PROGRAMS, ANY, false, prepare_rope, NULL},
};

// Of a program without a row there, the product and the tile shapes are timed. Then its params are
// 0, its statistics of rows are sums, and what lies beside them is filled with random values.
static inline Subject subject_of(const Program *program) {
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
    if (subjects[i].program == program) return subjects[i];
  return (Subject){.program = program, .name = PROGRAMS};
}

// ---- Operands

// Row scales: the sums of squares come in as many parts as a residual of D columns leaves, K
// columns long as the MLP's; the twin's come in one. RMSNorm's s: the MLP's comes in as many parts
// as its backward leaves, the others' in one.
static inline void add_statistics(Problem *p) {
  const Width *w = p->width;
  const int64_t M = p->product.M;
  const int32_t parts =
                    tile_parts(tile_choose(MAINLOOP_AUTO, PROGRAM_RESIDUAL, M, w->D, w->F), w->D),
                of_mlp = tile_parts(
                    tile_choose(MAINLOOP_AUTO, PROGRAM_SWIGLU_BACKWARD, M, w->F, w->D), w->F),
                parts_s = p->product.K == 2 * w->F ? of_mlp : 1;
  ProgramArgs *args = &p->call.args;
  args->in[0] =
      (RowStat){(stat_t *)take_filled(p, parts * M, (float)w->D / (float)parts), M, parts};
  args->in[1] = (RowStat){(stat_t *)take_filled(p, parts_s * M, 1), M, parts_s};
  args->inverse_D = 1 / (float)w->D;
  args->eps = 1e-5f;
  const RowStat one_part = {(stat_t *)take_filled(p, M, (float)w->D), M, 1};
  p->r = (RowScale){.sumsq = one_part, .D = w->D, .eps = args->eps};
  // As many as the smallest tiles leave, of four numbers; each launch says how many it means.
  for (int i = 0; i < 2; i++)
    args->out[i] = (RowStat){
        .data = take(p, (size_t)(tile_parts(TILE_64x64, p->product.N) * M) * 4 * sizeof(float)),
        .stride = M};
}

// Operands of deviation 1 and 0.02, and copies.
static inline void add_fp8(Problem *p) {
  const int64_t M = p->product.M, N = p->product.N, K = p->product.K;
  const Program *program = p->subject->program;
  ProgramCall *call = &p->call;
  call->A = take_random_fp8(p, FP8_E4M3, M * K);
  call->B = take_random_fp8(p, FP8_E4M3, N * K);
  call->args.a = take_scaling(p, 32);
  call->args.b = take_scaling(p, 2048);
  call->args.copies = (Scaling *)(uintptr_t)take_scaling(p, 8);
  call->args.row_scale = take_filled(p, M, 1);
  call->args.row_scale_out = take(p, (size_t)M * sizeof(float));
  const int64_t copied = operand_cols(program, program->copy_cols, N);
  if (!copied) return;
  call->copies[0] = (Matrix){take(p, (size_t)(M * copied)), M, copied};
  call->copies[1] = (Matrix){take(p, (size_t)(M * copied)), copied, M};
}

// What is stored lies beside what is loaded, which thus stays what it is.
static inline void problem_open(Problem *p) {
  const int64_t M = p->product.M, N = p->product.N, K = p->product.K;
  const Program *program = p->subject->program;
  Error err;
  if (fused_program_open(&p->open, program, MAINLOOP_AUTO, &p->bench->gpu, &err))
    end_with(err.text);
  p->call = (ProgramCall){.M = M, .N = N, .K = K};
  if (program->formats == GEMM_BF16) {
    p->call.A = take_random(p, p->bench->normal, M * K);
    p->call.B = take_random(p, p->bench->weights, N * K);
  } else {
    add_fp8(p);
  }
  for (int i = 0; i < MAX_TILES; i++) {
    const int64_t in = operand_cols(program, program->load_cols[i], N),
                  out = operand_cols(program, program->store_cols[i], N);
    if (in) p->call.loads[i] = (Matrix){take_random(p, p->bench->normal, M * in), M, in};
    if (out) p->call.stores[i] = (Matrix){take(p, (size_t)(M * out) * 2), M, out};
  }
  p->scratch = take(p, (size_t)(M * N) * 2);
  p->out = program->store_cols[0] ? (void *)(uintptr_t)p->call.stores[0].data : p->scratch;
  for (int i = 0; i < 2; i++) p->call.args.columns[i] = take_filled(p, N, 1);
  add_statistics(p);
  if (p->subject->prepare) p->subject->prepare(p);
  CUDA_CHECK(cudaDeviceSynchronize()); // the copies above are of another stream
}

static inline void problem_close(Problem *p) {
  for (int i = 0; i < p->allocations; i++) CUDA_CHECK(cudaFree(p->memory[i]));
}
