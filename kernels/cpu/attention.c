// Causal attention in blocks of query rows, so that the scores never exist at once and the masked
// half is mostly skipped.
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { QUERY_BLOCK = 64 };

// Two score blocks (P and dP) and the block's row sums of do * o.
size_t cpu_attention_scratch(int64_t T) {
  return (size_t)(2 * QUERY_BLOCK * T + QUERY_BLOCK);
}

static real *thread_scratch(const Cpu *cpu) {
  return cpu->scratch + (size_t)omp_get_thread_num() * cpu->scratch_per_thread;
}

// scores[i, j] = scale * q[i] . k[j] for i < rows, j < keys; q and k have row stride R.
static void block_scores(const Spec *c, int64_t rows, int64_t keys, const real *q, const real *k,
                         real *scores) {
  const real scale = 1 / real_sqrt((real)c->d);
  const int64_t R = packed_width(c);
  gemm_strided(GEMM_NT, rows, keys, c->d, scale, q, R, k, R, 0, scores, keys);
}

// scores [n] become their softmax; returns their log-sum-exp.
VECTORS static real softmax_row(int64_t n, real *scores) {
  const real largest = row_largest(n, scores);
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; j++) {
    scores[j] = real_exp(scores[j] - largest);
    sum += (double)scores[j];
  }
  scale_row(n, (real)(1 / sum), scores);
  return largest + (real)log(sum);
}

// scores [n] become p, and dp [n] the scores' gradient. delta: the row's sum of do * o.
VECTORS static void softmax_backward_row(int64_t n, real lse, real delta, real *scores, real *dp) {
  for (int64_t j = 0; j < n; j++) {
    scores[j] = real_exp(scores[j] - lse);
    dp[j] = scores[j] * (dp[j] - delta);
  }
}

// Queries [first, T) of one head. q, k, v point at the head's columns of row 0 (stride R); o at its
// columns of the row of query `first` (stride H d); lse [T] or NULL.
static void head_forward(const Cpu *cpu, int64_t T, int64_t first, const real *q, const real *k,
                         const real *v, real *o, real *lse) {
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), o_stride = c->H * c->d;
  real *p = thread_scratch(cpu);
  for (int64_t q0 = first; q0 < T; q0 += QUERY_BLOCK) {
    const int64_t rows = T - q0 < QUERY_BLOCK ? T - q0 : QUERY_BLOCK, keys = q0 + rows;
    block_scores(c, rows, keys, q + q0 * R, k, p);
    for (int64_t i = 0; i < rows; i++) {
      real *row = p + i * keys;
      const int64_t seen = q0 + i + 1;
      const real row_lse = softmax_row(seen, row);
      for (int64_t j = seen; j < keys; j++) row[j] = 0;
      if (lse) lse[q0 + i] = row_lse;
    }
    gemm_strided(GEMM_NN, rows, c->d, keys, 1, p, keys, v, R, 0, o + (q0 - first) * o_stride,
                 o_stride);
  }
}

// Sequences of T rows, or documents.
typedef struct Sequences {
  int64_t count, T;
  const int64_t *ends; // [count] of documents; else NULL
} Sequences;

typedef struct Sequence {
  int64_t first, rows; // of all rows
} Sequence;

static Sequence sequence(Sequences all, int64_t b) {
  if (!all.ends) return (Sequence){b * all.T, all.T};
  const int64_t first = b > 0 ? all.ends[b - 1] : 0;
  return (Sequence){first, all.ends[b] - first};
}

static Sequences sequences(const Cpu *cpu, int64_t B, int64_t T) {
  const int64_t documents = cpu->documents.count;
  return documents > 0 ? (Sequences){documents, T, cpu->documents.ends} : (Sequences){B, T, NULL};
}

void cpu_set_documents(Backend *be, const int32_t *lengths, int64_t count) {
  Cpu *cpu = cpu_of(be);
  assert(documents_fit(&cpu->base.spec, lengths, count));
  int64_t *ends = cpu->documents.ends = xrealloc(cpu->documents.ends, (size_t)count * sizeof *ends);
  cpu->documents.count = count;
  for (int64_t i = 0; i < count; i++) ends[i] = (i > 0 ? ends[i - 1] : 0) + lengths[i];
}

// Queries from `first` on of every head and sequence. lse: for each sequence [H, its rows]; or
// NULL.
static void attend(const Cpu *cpu, Sequences all, int64_t first, const real *qkv, real *o,
                   real *lse) {
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), group = c->H / c->KV;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < all.count; b++)
    for (int64_t h = 0; h < c->H; h++) {
      const Sequence s = sequence(all, b);
      const real *row = qkv + s.first * R;
      head_forward(cpu, s.rows, first, row + h * c->d, row + (c->H + h / group) * c->d,
                   row + (c->H + c->KV + h / group) * c->d, o + s.first * c->H * c->d + h * c->d,
                   lse ? lse + s.first * c->H + h * s.rows : NULL);
    }
}

void cpu_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o, stat_t *lse) {
  Cpu *cpu = cpu_of(be);
  attend(cpu, sequences(cpu, B, T), 0, reals(qkv), reals(o.data), reals(lse));
  quantize(cpu, B * T, cpu->base.spec.H * cpu->base.spec.d, o, reals(o.data));
}

void cpu_attention_decode(Backend *be, const int32_t *position, int64_t rows, const act_t *cache,
                          Operand o) {
  Cpu *cpu = cpu_of(be);
  attend(cpu, (Sequences){1, *position + rows, NULL}, *position, reals(cache), reals(o.data), NULL);
  quantize(cpu, rows, cpu->base.spec.H * cpu->base.spec.d, o, reals(o.data));
}

// A head of a branch. qkv and o point at its columns, k and v at the key/value head's, of row 0.
static void branch_forward(const Cpu *cpu, Branch b, const real *q, const real *k, const real *v,
                           real *o) {
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), d = c->d, o_stride = c->H * d, P = b.prefix_rows,
                keys = P + b.rows;
  const real scale = 1 / real_sqrt((real)d);
  const real *angles = cpu->rope + (b.first - b.prefix - P) * d;
  real *moved = xmalloc((size_t)b.rows * (size_t)(d + keys) * sizeof *moved);
  real *p = moved + b.rows * d; // [rows, keys]
  q += b.first * R, o += b.first * o_stride;
  for (int64_t i = 0; i < b.rows; i++) {
    memcpy(moved + i * d, q + i * R, (size_t)d * sizeof *moved);
    rotate_heads(d, d, angles, -1, moved + i * d);
  }
  if (P > 0) gemm_strided(GEMM_NT, b.rows, P, d, scale, moved, d, k + b.prefix * R, R, 0, p, keys);
  gemm_strided(GEMM_NT, b.rows, b.rows, d, scale, q, R, k + b.first * R, R, 0, p + P, keys);
  for (int64_t i = 0; i < b.rows; i++) {
    softmax_row(P + i + 1, p + i * keys);
    for (int64_t j = P + i + 1; j < keys; j++) p[i * keys + j] = 0;
  }
  gemm_strided(GEMM_NN, b.rows, d, b.rows, 1, p + P, keys, v + b.first * R, R, 0, o, o_stride);
  if (P > 0) gemm_strided(GEMM_NN, b.rows, d, P, 1, p, keys, v + b.prefix * R, R, 1, o, o_stride);
  free(moved);
}

void cpu_attention_branches(Backend *be, int64_t M, int64_t count, const Branch *branches,
                            const act_t *qkv, Operand o) {
  Cpu *cpu = cpu_of(be);
  const Spec *c = &be->spec;
  const int64_t group = c->H / c->KV, d = c->d;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t b = 0; b < count; b++)
    for (int64_t h = 0; h < c->H; h++)
      branch_forward(cpu, branches[b], reals(qkv) + h * d, reals(qkv) + (c->H + h / group) * d,
                     reals(qkv) + (c->H + c->KV + h / group) * d, reals(o.data) + h * d);
  quantize(cpu, M, c->H * d, o, reals(o.data));
}

void cpu_qkv_token(Backend *be, const int32_t *position, Operand x, RowStat sumsq, Operand W,
                   act_t *cache) {
  const int64_t R = packed_width(&be->spec);
  be->qkv(be, 1, 1, *position, x, sumsq, W, act_at(be, cache, *position * R));
}

// One query head's contribution; it is added to dk and dv.
static void head_backward(const Cpu *cpu, int64_t T, const real *q, const real *k, const real *v,
                          const real *o, const real *lse, const real *do_, real *dq, real *dk,
                          real *dv) {
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), o_stride = c->H * c->d, d = c->d;
  const real scale = 1 / real_sqrt((real)d);
  real *p = thread_scratch(cpu), *ds = p + QUERY_BLOCK * T, *delta = ds + QUERY_BLOCK * T;
  for (int64_t q0 = 0; q0 < T; q0 += QUERY_BLOCK) {
    const int64_t rows = T - q0 < QUERY_BLOCK ? T - q0 : QUERY_BLOCK, keys = q0 + rows;
    const real *do_block = do_ + q0 * o_stride, *o_block = o + q0 * o_stride;
    block_scores(c, rows, keys, q + q0 * R, k, p);
    gemm_strided(GEMM_NT, rows, keys, d, 1, do_block, o_stride, v, R, 0, ds, keys); // dP
    for (int64_t i = 0; i < rows; i++) {
      delta[i] = 0;
      for (int64_t e = 0; e < d; e++)
        delta[i] += do_block[i * o_stride + e] * o_block[i * o_stride + e];
      real *p_row = p + i * keys, *ds_row = ds + i * keys;
      const int64_t seen = q0 + i + 1;
      softmax_backward_row(seen, lse[q0 + i], delta[i], p_row, ds_row);
      for (int64_t j = seen; j < keys; j++) p_row[j] = ds_row[j] = 0;
    }
    gemm_strided(GEMM_TN, keys, d, rows, 1, p, keys, do_block, o_stride, 1, dv, R);
    gemm_strided(GEMM_TN, keys, d, rows, scale, ds, keys, q + q0 * R, R, 1, dk, R);
    gemm_strided(GEMM_NN, rows, d, keys, scale, ds, keys, k, R, 0, dq + q0 * R, R);
  }
}

void cpu_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv_, const act_t *o_,
                            const stat_t *lse_, const act_t *do_out, act_t *dqkv_) {
  const Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), group = c->H / c->KV, d = c->d;
  const Sequences all = sequences(cpu, B, T);
  const real *qkv = reals(qkv_), *o = reals(o_), *lse = reals(lse_), *do_ = reals(do_out);
  real *dqkv = reals(dqkv_);
  // A key/value head and its group of query heads belong to one thread, which adds up dk and dv in
  // head order.
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < all.count; b++)
    for (int64_t g = 0; g < c->KV; g++) {
      const Sequence s = sequence(all, b);
      const real *row = qkv + s.first * R;
      real *drow = dqkv + s.first * R;
      const int64_t k_column = (c->H + g) * d, v_column = (c->H + c->KV + g) * d;
      for (int64_t t = 0; t < s.rows; t++) {
        memset(drow + t * R + k_column, 0, (size_t)d * sizeof(real));
        memset(drow + t * R + v_column, 0, (size_t)d * sizeof(real));
      }
      for (int64_t h = g * group; h < (g + 1) * group; h++) {
        const int64_t o_at = s.first * c->H * d + h * d;
        head_backward(cpu, s.rows, row + h * d, row + k_column, row + v_column, o + o_at,
                      lse + s.first * c->H + h * s.rows, do_ + o_at, drow + h * d, drow + k_column,
                      drow + v_column);
      }
    }
}
