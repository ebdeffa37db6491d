// The formulas of the programs, a row each, and what single programs need besides.
#pragma once
#include "kernels/fused/head.h"
#include "kernels/fused/rope.h"
#include "tests/gpu/fused_support.h"
#include "tests/gpu/program_rig.h"
#include "tests/gpu/programs/absmax.h"

static void plain(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) row_store(row, 0, n, (double)row->product[n]);
}

static void residual(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const float out = row_store(row, 0, n, (double)(row->product[n] + row->loads[0][n]));
    row->terms[0][n] = out * out;
  }
}

static void residual_fp8(const Row *row) {
  const double q = row->is_stored ? row->q : power_of_two_below(rstd_of(row));
  residual(row);
  for (int64_t n = 0; n < row->N; n++) row_store(row, COPIED, n, q * (double)row->stores[0][n]);
}

static void capped_logits(const Row *row) {
  const double r = rstd_of(row) / row->q;
  for (int64_t n = 0; n < row->N; n++)
    row->terms[0][n] = row_store(row, 0, n, 30 * tanh(r * (double)row->product[n] / 30));
}

// A row's aim and its u are made up, so that they differ from the neighbours'.
static int64_t target_of(int64_t m, int64_t N) {
  return m * 37 % N;
}
static float exponent_of(int64_t m) {
  return 73 + (float)(m % 13);
}
static float u_of(int64_t m) {
  return ldexpf(1 + (float)(m % 5) / 4, (int)(m % 7) - 3);
}

static void probabilities(const Row *row) {
  const double r = rstd_of(row) / row->q;
  for (int64_t n = 0; n < row->N; n++) {
    const double log2_p = r * (double)row->product[n] / log(2) - (double)exponent_of(row->m);
    const bool is_target = n == target_of(row->m, row->N);
    row_store(row, 0, n, is_target ? 0 : exp2(log2_p));
    row->terms[0][n] = is_target ? 0 : (float)exp2(log2_p);
    row->terms[1][n] = is_target ? 0 : (float)(exp2(log2_p) * log2_p);
  }
  for (int64_t n = row->N; n % 16 != 0; n++) row_store(row, 0, n, 0);
}

static void probabilities_prepare(Rig *r) {
  const int64_t M = r->s.M, stride = M + 5;
  float *aim = xmalloc((size_t)(AIM_PARTS * stride) * sizeof *aim);
  memset(aim, 0xff, (size_t)(AIM_PARTS * stride) * sizeof *aim);
  for (int64_t m = 0; m < M; m++) {
    aim[AIM_EXPONENT * stride + m] = exponent_of(m);
    aim[AIM_TARGET * stride + m] = (float)target_of(m, r->s.N);
  }
  r->call.args.in[1] = (RowStat){fp32_buffer(&r->b, AIM_PARTS * stride, aim), stride, AIM_PARTS};
  free(aim);
}

static void head_dgrad(const Row *row) {
  const double factor = rstd_of(row) / row->D * row->in[1];
  for (int64_t n = 0; n < row->N; n++)
    row_store(row, 0, n,
              (double)u_of(row->m) * (double)row->product[n] - factor * (double)row->loads[0][n]);
}

static void head_dgrad_prepare(Rig *r) {
  float *u = floats(r->s.M);
  for (int64_t m = 0; m < r->s.M; m++) u[m] = u_of(m);
  r->call.args.row_scale = fp32_buffer(&r->b, r->s.M, u);
  free(u);
}

static void norm_dgrad(const Row *row) {
  const double factor = rstd_of(row) / row->D * row->in[1];
  for (int64_t n = 0; n < row->N; n++)
    row_store(row, 0, n,
              (double)row->product[n] - factor * (double)row->loads[0][n] +
                  (double)row->loads[1][n]);
}

static void norm_dgrad_fp8(const Row *row) {
  const double factor = rstd_of(row) / row->D * row->in[1];
  for (int64_t n = 0; n < row->N; n++) {
    const double x = (double)row->loads[0][n],
                 residual = row->loads[1] ? (double)row->loads[1][n] : 0;
    const double dx = row->q * ((double)row->product[n] - factor * x) + residual;
    row_store(row, COPIED, n, (double)row_store(row, 0, n, dx));
  }
}

static void absmax(const Row *row) {
  for (int64_t n = 0; n < row->N; n++)
    row->terms[0][n] = fabsf(row_store(row, 0, n, (double)row->product[n] / row->in[0]));
}

static void layer_norm(const Row *row) {
  const double mean = row->in[1] / row->D,
               r = 1 / sqrt(row->in[0] / row->D - mean * mean + (double)eps);
  for (int64_t n = 0; n < row->N; n++) {
    const double centred = (double)row->product[n] - mean * (double)row->columns[n];
    const float out = row_store(row, 0, n, r * centred);
    row->terms[0][n] = out * out;
    row->terms[1][n] = out;
  }
}

// ---- Gated activations

static void gated(const Row *row, float (*activation)(float gate, float up)) {
  const double r = rstd_of(row) / row->q;
  const int64_t F = row->N / 2;
  for (int64_t pair = 0; pair < F; pair++) {
    const int64_t n = 2 * pair;
    const float gate = row_store(row, 0, n, r * (double)row->product[n]),
                up = row_store(row, 0, n + 1, r * (double)row->product[n + 1]);
    row_store(row, row->stores[1] ? 1 : COPIED, feature_of_pair(pair, F),
              (double)activation(gate, up));
  }
}

static void gated_backward(const Row *row, void (*gradient)(float gate, float up, float dy,
                                                            float *dgate, float *dup)) {
  const double r = rstd_of(row) / row->q;
  const int to = row->stores[0] ? 0 : COPIED;
  for (int64_t pair = 0; pair < row->N; pair++) {
    const int64_t feature = feature_of_pair(pair, row->N), n = 2 * pair;
    const float gate = row->loads[0][n], up = row->loads[0][n + 1];
    float dgate, dup;
    gradient(gate, up, (float)(r * (double)row->product[feature]), &dgate, &dup);
    row_store(row, to, n, (double)dgate);
    row_store(row, to, n + 1, (double)dup);
    row->terms[0][feature] = dgate * gate + dup * up;
  }
}

static float geglu(float gate, float up) {
  const double x = (double)gate, u = sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x);
  return (float)(x / 2 * (1 + tanh(u)) * (double)up);
}
static void geglu_gradient(float gate, float up, float dy, float *dgate, float *dup) {
  const double x = (double)gate, c = sqrt(2 / 3.141592653589793);
  const double t = tanh(c * (x + 0.044715 * x * x * x));
  const double slope = (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  *dgate = (float)((double)dy * (double)up * slope);
  *dup = (float)((double)dy * x / 2 * (1 + t));
}

static void swiglu_row(const Row *row) {
  gated(row, swiglu);
}
static void swiglu_backward_row(const Row *row) {
  gated_backward(row, swiglu_backward);
}
static void geglu_row(const Row *row) {
  gated(row, geglu);
}
static void geglu_backward_row(const Row *row) {
  gated_backward(row, geglu_gradient);
}

// ---- rope

typedef struct RopeCase {
  int64_t M, K;
  int32_t H, KV, d, T;
  int32_t first;  // of args
  int64_t base;   // position that the table's row 0 holds
  double divisor; // of the angles that turn less than once in 8192 positions, as llama 3.1 has it
} RopeCase;

static const RopeCase rope_cases[] = {
    {130, 72, 2, 1, 64, 1, 0, 0, 1},         // every row the same position
    {1, 64, 2, 1, 64, 1, 8191, 0, 1},        // generation
    {333, 48, 4, 1, 48, 7, 0, 0, 1},         // sequences shorter than a chunk; rotated 240
    {1000, 328, 5, 1, 80, 77, 5, 0, 1},      // heads that no chunk starts with; rotated 480
    {999, 128, 4, 2, 128, 333, 0, 90000, 8}, // far out
    {4500, 200, 6, 3, 48, 4096, 300, 20000, 32},
    {8192, 256, 16, 4, 80, 4096, 0, 0, 32},
    {8192, 64, 8, 2, 64, 4096, 8200, 0, 32},
    {2112, 512, 3, 1, 128, 1056, 0, 131072 - 1056, 8},
};

static double frequency(const RopeCase *c, int64_t j) {
  const double turns = pow(500000, -2 * (double)j / (double)c->d);
  return turns * 8192 < 2 * 3.141592653589793 ? turns / c->divisor : turns;
}

// Exact angles: the table's rounding to fp16 is part of the error.
static void rope(const Row *row) {
  const RopeCase *c = row->user;
  const int64_t rotated = (c->H + c->KV) * c->d;
  const double r = rstd_of(row) / row->q, position = (double)(c->base + c->first + row->m % c->T);
  for (int64_t j = 0; j < c->d / 2; j++) {
    const double angle = position * frequency(c, j), cosine = cos(angle), sine = sin(angle);
    for (int64_t n = 2 * j; n < rotated; n += c->d) {
      const double x = r * (double)row->product[n], y = r * (double)row->product[n + 1];
      row_store(row, 0, n, x * cosine - y * sine);
      row_store(row, 0, n + 1, y * cosine + x * sine);
    }
  }
  for (int64_t n = rotated; n < row->N; n++) row_store(row, 0, n, r * (double)row->product[n]);
}

static void rope_prepare(Rig *r) {
  const RopeCase *c = r->user;
  double *inv_freq = xmalloc((size_t)c->d / 2 * sizeof *inv_freq);
  for (int64_t j = 0; j < c->d / 2; j++) inv_freq[j] = frequency(c, j);
  RopeTable table = rope_table(c->base, c->first, c->T, c->d, inv_freq);
  r->call.loads[0] = (Matrix){buffer_new(&r->b, table.rows * table.cols, 2, table.values)->data,
                              table.rows, table.cols};
  r->split = (c->H + c->KV) * c->d; // q and k, and v
  r->call.args.params[ROPE_FIRST].i = c->first;
  r->call.args.params[ROPE_PERIOD].i = c->T;
  r->call.args.params[ROPE_HEAD_DIM].i = c->d;
  r->call.args.params[ROPE_ROTATED].i = (int32_t)r->split;
  printf("# heads %d + 2 x %d of %d, rows are positions %lld + m %% %d\n", (int)c->H, (int)c->KV,
         (int)c->d, (long long)(c->base + c->first), (int)c->T);
  free(inv_freq), free(table.values);
}

static void absmax_prepare(Rig *r) {
  r->call.args.params[ABSMAX_LEAST].f = 0.01f;
}
