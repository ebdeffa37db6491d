#include "tests/gpu/attention_problem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/support/bf16.h"
#include "tests/support/shapes.h"

float *widened(const uint16_t *from, size_t n) {
  float *to = xmalloc(n * sizeof *to);
  for (size_t i = 0; i < n; i++) to[i] = from_bf16(from[i]);
  return to;
}

static Sizes sizes_of(const AttentionShape *s) {
  const size_t rows = (size_t)attention_rows(s);
  return (Sizes){rows, rows * (size_t)attention_row(s), rows * (size_t)(s->H * s->d),
                 rows * (size_t)s->H};
}

static Results results_new(Sizes n) {
  return (Results){xcalloc(n.o, sizeof(float)), xcalloc(n.lse, sizeof(float)),
                   xcalloc(n.qkv, sizeof(float))};
}
static void results_free(Results *r) {
  free(r->o), free(r->lse), free(r->dqkv);
}

static void reference_run(const Problem *p, Results *r) {
  const AttentionShape *s = &p->s;
  const Spec config = {SPEC_SHAPE(s->H * s->d, 8, s->H, s->KV, s->d, 8, attention_rows(s), s->T),
                       .usual_documents = p->documents, .longest_document = s->T,
                       .rms_norm_eps = 1e-5f};
  Backend *cpu = backend_cpu_create(&config);
  act_t *qkv = (act_t *)p->qkv_f, *o = (act_t *)r->o, *d_o = (act_t *)p->d_o_f;
  stat_t *lse = (stat_t *)r->lse;
  cpu->services.set_documents(cpu, p->lengths, p->documents);
  cpu->attention(cpu, s->B, s->T, qkv, operand_of(o), lse);
  cpu->attention_backward(cpu, s->B, s->T, qkv, o, lse, d_o, (act_t *)r->dqkv);
  cpu->services.destroy(cpu);
}

static float dot(const float *x, const float *y, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}
static void add_scaled(float *to, float factor, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] += factor * x[i];
}

// Query row t of a head; q, k, v point at the head's columns of position 0 (stride R).
static void twin_forward_row(const AttentionShape *s, int64_t t, const float *q, const float *k,
                             const float *v, float *p, float *o, float *lse) {
  const int64_t R = attention_row(s);
  const float scale = (float)(1 / sqrt((double)s->d));
  float largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j <= t; j++) {
    p[j] = scale * dot(q + t * R, k + j * R, s->d);
    largest = fmaxf(largest, p[j]);
  }
  for (int64_t j = 0; j <= t; j++) {
    p[j] = expf(p[j] - largest);
    sum += p[j];
    add_scaled(o, rounded(p[j]), v + j * R, s->d);
  }
  for (int64_t e = 0; e < s->d; e++) o[e] = rounded(o[e] / sum);
  *lse = largest + logf(sum);
}

// Adds the row's share to this query head's dk and dv [T, d]; dq has its final value.
static void twin_backward_row(const AttentionShape *s, int64_t t, const float *q, const float *k,
                              const float *v, const float *o, float lse, const float *d_o,
                              float *dq, float *dk, float *dv) {
  const int64_t R = attention_row(s);
  const float scale = (float)(1 / sqrt((double)s->d)), row_sum = dot(d_o, o, s->d);
  for (int64_t j = 0; j <= t; j++) {
    const float probability = expf(scale * dot(q + t * R, k + j * R, s->d) - lse);
    const float ds = rounded(scale * (probability * (dot(d_o, v + j * R, s->d) - row_sum)));
    add_scaled(dv + j * s->d, rounded(probability), d_o, s->d);
    add_scaled(dk + j * s->d, ds, q + t * R, s->d);
    add_scaled(dq, ds, k + j * R, s->d);
  }
  for (int64_t e = 0; e < s->d; e++) dq[e] = rounded(dq[e]);
}

// Of the T rows from `first` on.
static void twin_head(const Problem *problem, Results *r, int64_t first, int64_t T, int64_t h) {
  const AttentionShape *s = &problem->s;
  const int64_t d = s->d, R = attention_row(s), group = s->H / s->KV;
  const int64_t k_column = (s->H + h / group) * d, v_column = k_column + s->KV * d;
  const float *row = problem->qkv_f + first * R, *q = row + h * d;
  const float *k = row + k_column, *v = row + v_column;
  float *drow = r->dqkv + first * R, *p = xcalloc((size_t)T, sizeof *p);
  float *dk = xcalloc((size_t)(T * d), sizeof *dk), *dv = xcalloc((size_t)(T * d), sizeof *dv);
  for (int64_t t = 0; t < T; t++) {
    const int64_t at = ((first + t) * s->H + h) * d;
    float *lse = r->lse + first * s->H + h * T + t;
    twin_forward_row(s, t, q, k, v, p, r->o + at, lse);
    twin_backward_row(s, t, q, k, v, r->o + at, *lse, problem->d_o_f + at, drow + t * R + h * d, dk,
                      dv);
  }
  for (int64_t t = 0; t < T; t++) // each head's share is rounded, then the group is added up
    for (int64_t e = 0; e < d; e++) {
      drow[t * R + k_column + e] += rounded(dk[t * d + e]);
      drow[t * R + v_column + e] += rounded(dv[t * d + e]);
    }
  free(p), free(dk), free(dv);
}

static void twin_run(const Problem *p, Results *r) {
  const AttentionShape *s = &p->s;
  const int64_t count = p->lengths ? p->documents : s->B;
  int64_t *ends = xcalloc((size_t)count, sizeof *ends);
  for (int64_t b = 0; b < count; b++)
    ends[b] = (b > 0 ? ends[b - 1] : 0) + (p->lengths ? p->lengths[b] : s->T);
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < count; b++)
    for (int64_t g = 0; g < s->KV; g++)
      for (int64_t h = g * (s->H / s->KV); h < (g + 1) * (s->H / s->KV); h++) {
        const int64_t first = b > 0 ? ends[b - 1] : 0;
        twin_head(p, r, first, ends[b] - first, h);
      }
  free(ends);
  for (size_t i = 0; i < p->n.qkv; i++) r->dqkv[i] = rounded(r->dqkv[i]);
}

// [H, rows] of each document becomes [rows, H], or [B, H, T] of whole windows.
static void lse_of_gpu(const Problem *p, float *lse) {
  const int64_t H = p->s.H, T = p->s.T;
  float *to = xmalloc(p->n.lse * sizeof *to);
  int64_t first = 0;
  for (int64_t i = 0; i < p->documents; first += p->lengths[i++])
    for (int64_t h = 0; h < H; h++)
      for (int64_t t = 0; t < p->lengths[i]; t++) {
        const int64_t row = first + t;
        to[p->s.rows > 0 ? row * H + h : (row / T * H + h) * T + row % T] =
            lse[first * H + h * p->lengths[i] + t];
      }
  assert(first == attention_rows(&p->s));
  memcpy(lse, to, p->n.lse * sizeof *lse);
  free(to);
}

Problem problem_new(AttentionShape s) {
  return problem_of_documents(s, NULL, 0);
}

Problem problem_of_documents(AttentionShape s, const int32_t *lengths, int64_t count) {
  Problem p = {.s = s, .n = sizes_of(&s), .documents = count};
  if (lengths)
    p.lengths =
        memcpy(xmalloc((size_t)count * sizeof *lengths), lengths, (size_t)count * sizeof *lengths);
  p.qkv = xmalloc(p.n.qkv * sizeof *p.qkv);
  p.d_o = xmalloc(p.n.o * sizeof *p.d_o);
  for (size_t i = 0; i < p.n.qkv; i++) p.qkv[i] = to_bf16((float)rng_normal(1, i));
  for (size_t i = 0; i < p.n.o; i++) p.d_o[i] = to_bf16((float)rng_normal(2, i));
  p.qkv_f = widened(p.qkv, p.n.qkv);
  p.d_o_f = widened(p.d_o, p.n.o);
  p.reference = results_new(p.n);
  p.twin = results_new(p.n);
  reference_run(&p, &p.reference);
  twin_run(&p, &p.twin);
  if (lengths) lse_of_gpu(&p, p.reference.lse);
  return p;
}
void problem_free(Problem *p) {
  free(p->qkv), free(p->d_o), free(p->qkv_f), free(p->d_o_f), free(p->lengths);
  results_free(&p->reference), results_free(&p->twin);
}
