// A test of a program is a Case: the program and the formula of one row. Here are its operands, and
// what its twins compute; program_rig.h runs it.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/gpu.h"
#include "kernels/fused/program.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/program_fp8.h"
#include "tests/gpu/program_list.h"
#include "tests/support/tier.h"

static const float eps = 1e-5f;

// ---- What a case says

// What a formula stores: the tile operands, and what FP8 copies are made of.
enum { COPIED = MAX_TILES, STORES };

// A row of the product and of the operands, and where its formula leaves what it computes.
typedef struct Row {
  int64_t m, N;
  double D;                      // what inverse_D is the inverse of
  const float *product;          // [N]
  const float *loads[MAX_TILES]; // the row of each tile operand in
  const float *columns;          // [N] args.columns
  double in[2];                  // the row's statistics, their parts joined
  double q;                      // the row's scale in FP8, else 1
  const void *user;              // the case's
  float *terms[2]; // [N] out: what statistic i joins over the columns, one a column of the product
  // The rest is row_store's.
  float *stores[STORES];
  bool is_twin, is_stored;
  float copy_scale;
  float *largest; // |value| that is copied
} Row;

// The formula stores an element of tile operand i, and gets it back as later steps of the program
// see it: exact for the reference, rounded for the twin; and where a statistic is expected, what
// the program has stored. Nothing sees copies: that pass finds what they are to be.
static inline float row_store(const Row *row, int i, int64_t n, double value) {
  float *to = &row->stores[i][n];
  if (i == COPIED) {
    *row->largest = fmaxf(*row->largest, fabsf((float)value));
    return *to =
               row->is_twin || row->is_stored ? rounded_fp8(value, row->copy_scale) : (float)value;
  }
  if (row->is_stored) return *to;
  return *to = row->is_twin ? rounded((float)value) : (float)value;
}

static inline double rstd_of(const Row *row) {
  return 1 / sqrt(row->in[0] / row->D + (double)eps);
}
typedef enum StatisticKind { NO_STATISTIC, ROW_SUM, ROW_MAX, ROW_SOFTMAX } StatisticKind;

struct Rig;

typedef struct Case {
  const char *name; // NULL: the program's
  const Program *program;
  void (*row)(const Row *row);
  double scale;     // deviation of the product's elements; 0 = 1
  double scale_odd; // where N is no multiple of 16; 0 = the same
  double load_scale[MAX_TILES];
  // Statistics in: of sums, the total over D; of maxima, a part. Left out: a sum of squares, a sum.
  struct {
    StatisticKind joined;
    double lowest, highest;
  } in[2];
  StatisticKind out[2];
  double out_floor;     // of the error of sums; 0 = 1e-6
  bool any_N;           // N of any size; the columns up to a multiple of 16 are stored, too
  bool one_sign;        // no element of FP8 operands is negative
  float copy_scale;     // 0 = 8
  bool copies_of_store; // they are of stores[0] as stored: exact
  double largest_error; // of what the copies' Scaling is told, relative, where they are not
  bool row_scale_out;
  int in_place_of; // stores[0] may lie where load in_place_of - 1 does; 0 = nowhere
  void (*prepare)(struct Rig *rig); // params, and loads that are no random matrices
} Case;

// ---- The GPU

typedef struct Machine {
  Backend memory; // first; what the buffers of gpu_test.h call, and nothing else
  Gpu gpu;

} Machine;

static inline void *memory_alloc(Backend *be, size_t bytes) {
  (void)be;
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}
static inline void memory_release(Backend *be, void *memory) {
  (void)be;
  CUDA_CHECK(cudaFree(memory));
}
// On the stream of the programs, which waits for no other: a cudaMemcpy may return before it ends.
static inline void memory_write(Backend *be, void *to, const void *from, size_t bytes) {
  const cudaStream_t stream = ((const Machine *)be)->gpu.stream;
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
static inline void memory_read(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be;
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
static inline void memory_read_act(Backend *be, float *to, const act_t *from, int64_t count) {
  uint16_t *bits = xmalloc((size_t)count * sizeof *bits);
  memory_read(be, bits, from, (size_t)count * sizeof *bits);
#pragma omp parallel for
  for (int64_t i = 0; i < count; i++) to[i] = from_bf16(bits[i]);
  free(bits);
}

static inline int machine_open(Machine *m, Error *err) {
  *m = (Machine){.memory = {.alloc = memory_alloc,
                            .release = memory_release,
                            .write = memory_write,
                            .read = memory_read,
                            .read_act = memory_read_act}};
  if (gpu_open(&m->gpu, err)) return -1;
  printf("# %s\n", m->gpu.name);
  return 0;
}

static inline OpenProgram program_open(const Machine *m, const Program *program) {
  OpenProgram open;
  Error err;
  if (fused_program_open(&open, program, MAINLOOP_AUTO, &m->gpu, &err)) fail_msg("%s", err.text);
  return open;
}

// ---- Operands

// A program in one shape, with all that it reads and all that it should write.
typedef struct Rig {
  const Case *c;
  OpenProgram open;
  cudaStream_t stream;
  Shape s;
  const void *user;
  int64_t
      split; // columns of stores[0] below it are compared apart from those above; 0 = all as one
  Bench b;
  ProgramCall call;
  float *product, *columns; // [M, N], [N]
  float *loads[MAX_TILES];  // [M, load_cols]
  int64_t load_cols[MAX_TILES], store_cols[STORES];
  double *in[2];                           // [M]
  float *reference[STORES], *twin[STORES]; // [M, store_cols]
  float *q, *largest;                      // [M]
  float *terms[2];                         // [M, N]
  int64_t out_elements;                    // fp32 values of a statistic out
} Rig;

static inline float *floats(int64_t n) {
  return xcalloc((size_t)n, sizeof(float));
}

static inline float copy_scale_of(const Case *c) {
  return c->copy_scale ? c->copy_scale : 8;
}

static inline void fp8_product_new(Rig *r, double deviation) {
  const Shape s = r->s;
  ProgramCall *call = &r->call;
  const float scale_a = fp8_scale(FP8_E4M3, 6),
              scale_b = fp8_scale(FP8_E4M3, (float)(6 * deviation));
  call->stride_a = s.K + 16, call->stride_b = s.K + 32;
  float *A = random_fp8(&r->b, s.M, s.K, call->stride_a, FP8_E4M3, 1, scale_a, r->c->one_sign, "A",
                        &call->A),
        *B = random_fp8(&r->b, s.N, s.K, call->stride_b, FP8_E4M3, deviation, scale_b,
                        r->c->one_sign, "B", &call->B);
  gemm(GEMM_NT, s.M, s.N, s.K, A, B, 0, r->product);
  call->args.a = scaling_buffer(&r->b, FP8_E4M3, scale_a);
  call->args.b = scaling_buffer(&r->b, FP8_E4M3, scale_b);
  call->args.copies = scaling_buffer(&r->b, FP8_E4M3, copy_scale_of(r->c));
  for (int64_t m = 0; m < s.M; m++) r->q[m] = ldexpf(1, (int)(m % 4) - 1);
  call->args.row_scale = fp32_buffer(&r->b, s.M, r->q);
  if (r->c->row_scale_out) call->args.row_scale_out = fp32_buffer(&r->b, s.M, NULL);
  free(A), free(B);
}

static inline void product_new(Rig *r, double scale) {
  const Shape s = r->s;
  const GemmForm form = r->c->program->form;
  r->product = floats(s.M * s.N);
  if (r->c->program->formats != GEMM_BF16) {
    fp8_product_new(r, scale / sqrt((double)s.K));
    return;
  }
  float *A = random_bf16(s.M * s.K, 1, "A"),
        *B = random_bf16(s.N * s.K, scale / sqrt((double)s.K), "B");
  gemm(form, s.M, s.N, s.K, A, B, 0, r->product);
  r->call.A = bf16_buffer(&r->b, s.M * s.K, A);
  r->call.B = bf16_buffer(&r->b, s.N * s.K, B);
  free(A), free(B);
}

// Random parts of a statistic, with NaN beyond the rows, and what they come to. The numbers are
// made up, so that a row's differs from its neighbours'.
static inline void statistic_in(Rig *r, int which, int32_t parts, const char *name) {
  static const double lowest[] = {0.2, -1}, highest[] = {2.2, 1.5};
  const int64_t M = r->s.M, stride = M + 5;
  const bool given = r->c->in[which].joined, max = r->c->in[which].joined == ROW_MAX;
  const double from = given ? r->c->in[which].lowest : lowest[which],
               to = given ? r->c->in[which].highest : highest[which],
               unit = max ? 1 : (double)r->s.K / parts;
  float *values = xmalloc((size_t)(parts * stride) * sizeof *values);
  memset(values, 0xff, (size_t)(parts * stride) * sizeof *values);
  r->in[which] = xcalloc((size_t)M, sizeof(double));
  const uint64_t key = rng_key(42, name);
  for (int64_t i = 0; i < parts * M; i++) {
    const float value = (float)(unit * (from + (to - from) * rng_uniform(key, (uint64_t)i)));
    double *all = &r->in[which][i % M];
    values[i / M * stride + i % M] = value;
    *all = max ? fmax(*all, (double)value) : *all + (double)value;
  }
  r->call.args.in[which] = (RowStat){fp32_buffer(&r->b, parts * stride, values), stride, parts};
  free(values);
}

static inline void loads_new(Rig *r) {
  static const char *const names[MAX_TILES] = {"first load", "second load"};
  for (int i = 0; i < MAX_TILES; i++) {
    const int64_t M = r->s.M,
                  cols = operand_cols(r->c->program, r->c->program->load_cols[i], r->s.N);
    if (cols == 0 || r->call.loads[i].data) continue;
    r->load_cols[i] = cols;
    r->loads[i] = random_bf16(M * cols, r->c->load_scale[i] ? r->c->load_scale[i] : 1, names[i]);
    r->call.loads[i] = (Matrix){bf16_buffer(&r->b, M * cols, r->loads[i]), M, cols};
  }
}

static inline Matrix matrix_out(Bench *b, int64_t rows, int64_t cols) {
  return (Matrix){bf16_buffer(b, rows * cols, NULL), rows, cols};
}

typedef enum Pass { REFERENCE, TWIN, STORED } Pass;

// The formula over all rows; stores [M, store_cols] are written, or read where the pass is STORED.
static inline void run_formula(Rig *r, Pass pass, float *const stores[STORES]) {
#pragma omp parallel for
  for (int64_t m = 0; m < r->s.M; m++) {
    Row row = {.m = m,
               .N = r->s.N,
               .D = (double)r->s.K,
               .product = r->product + m * r->s.N,
               .columns = r->columns,
               .in = {r->in[0][m], r->in[1][m]},
               .q = (double)r->q[m],
               .user = r->user,
               .is_twin = pass == TWIN,
               .is_stored = pass == STORED,
               .copy_scale = copy_scale_of(r->c),
               .largest = &r->largest[m]};
    r->largest[m] = 0;
    for (int i = 0; i < MAX_TILES; i++)
      if (r->loads[i]) row.loads[i] = r->loads[i] + m * r->load_cols[i];
    for (int i = 0; i < STORES; i++)
      if (r->store_cols[i]) row.stores[i] = stores[i] + m * r->store_cols[i];
    for (int i = 0; i < 2; i++) row.terms[i] = r->terms[i] + m * r->s.N;
    r->c->row(&row);
  }
}

static inline void outputs_new(Rig *r) {
  const int64_t M = r->s.M, stride = M + 3;
  for (int i = 0; i < MAX_TILES; i++) {
    const int64_t N = r->c->any_N ? (r->s.N + 15) / 16 * 16 : r->s.N,
                  cols = operand_cols(r->c->program, r->c->program->store_cols[i], N);
    r->store_cols[i] = cols;
    if (cols == 0) continue;
    r->reference[i] = floats(M * cols), r->twin[i] = floats(M * cols);
    r->call.stores[i] = i == 0 && r->c->in_place_of ? r->call.loads[r->c->in_place_of - 1]
                                                    : matrix_out(&r->b, M, cols);
  }
  // More parts than tiles of columns, more stride than rows.
  r->out_elements = 2 * stride * (tile_parts(TILE_64x64, r->s.N) + TILE_SHAPES);
  for (int i = 0; i < 2; i++) {
    r->terms[i] = floats(M * r->s.N);
    if (r->c->out[i])
      r->call.args.out[i] = (RowStat){fp32_buffer(&r->b, r->out_elements, NULL), stride, 0};
  }
}

// By rows [M, n] and by columns [n, M], M in whole 16s, with room between the rows of the second.
static inline void copies_new(Rig *r) {
  const int64_t M = r->s.M, columns = whole_16(M), stride = columns + 16,
                cols = operand_cols(r->c->program, r->c->program->copy_cols, r->s.N);
  r->store_cols[COPIED] = cols;
  if (cols == 0) return;
  r->reference[COPIED] = floats(M * cols), r->twin[COPIED] = floats(M * cols);
  r->call.copies[0] = (Matrix){fp8_buffer(&r->b, M * cols, NULL), M, cols};
  r->call.copies[1] = (Matrix){fp8_buffer(&r->b, cols * stride, NULL), cols, columns};
  r->call.by_col_stride = stride;
}

// M and N as the program's operands allow them.
static inline Shape fitting_shape(const Program *p, Shape s) {
  if (p->form == GEMM_TN) s.M = (s.M + 7) / 8 * 8; // A's rows are M long
  const bool halves = p->columns == 64 && (p->load_cols[1] == 32 || p->store_cols[1] == 32);
  if (halves) s.N = whole_16(s.N); // and the rows of what is half as wide, whole 16 bytes
  if (p->formats != GEMM_BF16) s.K = whole_16(s.K);
  if (p->copy_cols) s.N = whole_16(s.N * p->copy_cols / p->columns) * p->columns / p->copy_cols;
  return s;
}

static inline void rig_open(Rig *r, Machine *m, const Case *c, Shape s, const void *user) {
  static const int32_t parts[] = {3, 2, 11, 5, 1};
  *r = (Rig){.c = c, .stream = m->gpu.stream, .user = user};
  r->open = program_open(m, c->program);
  r->s = s = fitting_shape(c->program, s);
  if (c->any_N) r->s.N = s.N -= s.M % 8;
  r->b.be = &m->memory;
  r->q = floats(s.M), r->largest = floats(s.M);
  for (int64_t i = 0; i < s.M; i++) r->q[i] = 1;
  r->call = (ProgramCall){.M = s.M, .N = s.N, .K = s.K};
  product_new(r, s.N % 16 != 0 && c->scale_odd ? c->scale_odd : c->scale ? c->scale : 1);
  statistic_in(r, 0, parts[s.M % 5], "squares");
  statistic_in(r, 1, parts[(s.M + 3) % 5], "sums");
  r->columns = random_bf16(s.N, 1, "columns");
  r->call.args.columns = fp32_buffer(&r->b, s.N, r->columns);
  r->call.args.inverse_D = 1 / (float)s.K;
  r->call.args.eps = eps;
  if (c->prepare) c->prepare(r);
  loads_new(r);
  outputs_new(r);
  copies_new(r);
  run_formula(r, REFERENCE, r->reference);
  run_formula(r, TWIN, r->twin);
}

static inline void rig_close(Rig *r) {
  for (int i = 0; i < MAX_TILES; i++) free(r->loads[i]);
  for (int i = 0; i < STORES; i++) free(r->reference[i]), free(r->twin[i]);
  for (int i = 0; i < 2; i++) free(r->in[i]), free(r->terms[i]);
  free(r->product), free(r->columns), free(r->q), free(r->largest);
  bench_free(&r->b);
}
