// Every epilogue program in every tile shape, against the CPU from the same bf16 inputs widened to
// fp32. The bound of each error is twice the error of a twin: the CPU's result rounded to bf16
// wherever the program stores a bf16 value. Usage: test_programs [NAME [MxNxK]]: one test alone,
// which is named after its program, in its own shapes or in this one.

#include "kernels/fused/kernels.h"
#include "tests/gpu/program_rig.h"

// ---- Formulas, a row each, and what single programs need besides

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

static void capped_dlogits(const Row *row) {
  const double r = rstd_of(row) / row->q, lse = row->in[1];
  for (int64_t n = 0; n < row->N; n++) {
    const double logit = 30 * tanh(r * (double)row->product[n] / 30);
    row_store(row, 0, n, exp(logit - lse) * (1 + 2e-2 * lse) * (1 - logit * logit / 900));
  }
}

// Parts of the rows' log-sum-exp, which in[1] becomes.
static void capped_dlogits_prepare(Rig *r) {
  const int64_t M = r->s.M, stride = M + 5;
  const int32_t parts = 3;
  MaxSum *values = xmalloc((size_t)(parts * stride) * sizeof *values);
  memset(values, 0xff, (size_t)(parts * stride) * sizeof *values);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int32_t p = 0; p < parts; p++) {
      const MaxSum part = {10 + (float)((m + 5 * p) % 7), 1 + (float)p};
      values[p * stride + m] = part;
      sum += (double)part.sum * exp((double)part.max);
    }
    r->in[1][m] = log(sum);
  }
  r->call.args.in[1] =
      (RowStat){fp32_buffer(&r->b, 2 * parts * stride, (const float *)values), stride, parts};
  r->call.args.params[0].f = 1e-2f;
  free(values);
}

// A row's aim and its u are made up, so that they differ from the neighbours'. Some rows have no
// target.
static int64_t target_of(int64_t m, int64_t N) {
  return m % 5 == 4 ? -1 : m * 37 % N;
}
static float exponent_of(int64_t m) {
  return m % 5 == 4 ? 0x1p120f : 73 + (float)(m % 13);
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

static void silu_copies(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const double z =
        (double)row_store(row, 0, n, (double)row->product[n] / row->q + (double)row->columns[0][n]);
    row_store(row, COPIED, n, z / (1 + exp(-z)));
  }
}

static void gated_residual(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const float f = row_store(row, 1, n, (double)row->product[n]);
    row_store(row, 0, n, (double)row->loads[0][n] + tanh((double)row->columns[0][n]) * (double)f);
  }
}

static void gated_residual_backward(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const double t = tanh((double)row->columns[0][n]);
    const float dout = row_store(row, 0, n, (double)(row->product[n] + row->loads[0][n]));
    row_store(row, 1, n, t * (double)dout);
    row->terms[0][n] = (float)((1 - t * t) * (double)dout * (double)row->loads[1][n]);
  }
}

// ---- Experts, 64 a group

enum { EXPERTS = 64 };

static void router(const Row *row) {
  for (int64_t first = 0; first < row->N; first += EXPERTS) {
    const int64_t end = first + EXPERTS < row->N ? first + EXPERTS : row->N;
    double largest = -INFINITY, sum = 0;
    for (int64_t n = first; n < end; n++) largest = fmax(largest, (double)row->product[n]);
    for (int64_t n = first; n < end; n++) sum += exp((double)row->product[n] - largest);
    for (int64_t n = first; n < end; n++) {
      const double p = exp((double)row->product[n] - largest) / sum;
      row->terms[0][n] = (float)p;
      row_store(row, 0, n, p);
    }
  }
}

// Of equal P either may be the larger one: sums differ in their last bits.
static void expect_two_largest(const Rig *r, const float *got) {
  const int64_t M = r->s.M, N = r->s.N, stride = r->call.args.out[0].stride,
                groups = (N + EXPERTS - 1) / EXPERTS;
  double worst = 0;
  for (int64_t group = 0; group < groups; group++)
    for (int64_t m = 0; m < M; m++) {
      const float *two = got + 4 * (group * stride + m), *p = r->terms[0] + m * N;
      const int64_t first = EXPERTS * group, end = first + EXPERTS < N ? first + EXPERTS : N,
                    chosen[2] = {(int64_t)two[0], (int64_t)two[2]};
      float rest = 0;
      for (int64_t n = first; n < end; n++)
        if (n != chosen[0] && n != chosen[1]) rest = fmaxf(rest, p[n]);
      for (int i = 0; i < 2; i++) {
        if (!(chosen[i] >= first && chosen[i] < end) || chosen[0] == chosen[1])
          fail_msg("row %lld: columns %g and %g", (long long)m, (double)two[0], (double)two[2]);
        const double here = (double)p[chosen[i]], larger = (double)(i ? rest : p[chosen[1]]);
        worst = fmax(worst, fmax(fabs((double)two[2 * i + 1] - here), larger - here) / here);
      }
    }
  printf("# two largest: %.2e off (bound 1e-4)\n", worst);
  assert_true(worst <= 1e-4);
  for (int64_t group = 0; group < groups; group++)
    expect_unwritten("between groups", got + 4 * (group * stride + M), 4 * (stride - M));
  expect_unwritten("beyond the groups", got + 4 * groups * stride,
                   r->out_elements[0] - 4 * groups * stride);
}

static void absmax(const Row *row) {
  for (int64_t n = 0; n < row->N; n++)
    row->terms[0][n] = fabsf(row_store(row, 0, n, (double)row->product[n] / row->in[0]));
}

static void layer_norm(const Row *row) {
  const double mean = row->in[1] / row->D,
               r = 1 / sqrt(row->in[0] / row->D - mean * mean + (double)eps);
  for (int64_t n = 0; n < row->N; n++) {
    const double centred = (double)row->product[n] - mean * (double)row->columns[0][n];
    const float out = row_store(row, 0, n, r * centred + (double)row->columns[1][n]);
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
    float z[2]; // the twin's goes through memory in bf16
    for (int i = 0; i < 2; i++) {
      const double exact = r * (double)row->product[n + i];
      row_store(row, 0, n + i, exact);
      z[i] = row->is_twin ? rounded((float)exact) : (float)exact;
    }
    row_store(row, row->stores[1] ? 1 : COPIED, feature_of_pair(pair, F),
              (double)activation(z[0], z[1]));
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

static void bias_gelu(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const float z = row_store(row, 0, n, (double)(row->product[n] + row->columns[0][n]));
    row_store(row, 1, n, (double)geglu(z, 1));
  }
}

static void bias_gelu_backward(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    float dz, unused;
    geglu_gradient(row->loads[0][n], 1, row->product[n], &dz, &unused);
    row_store(row, 0, n, (double)dz);
    row->terms[0][n] = dz;
  }
}

static void swiglu_row(const Row *row) {
  gated(row, swiglu);
}
static void swiglu_backward_row(const Row *row) {
  gated_backward(row, swiglu_backward);
}
// gpt-oss's. The derivative is 0 beyond the clamps.
static float clamped_swiglu(float gate, float up) {
  const double g = fmin((double)gate, 7), u = fmax(-7, fmin((double)up, 7));
  return (float)((u + 1) * g / (1 + exp(-1.702 * g)));
}
static void clamped_swiglu_gradient(float gate, float up, float dy, float *dgate, float *dup) {
  const double g = fmin((double)gate, 7), u = fmax(-7, fmin((double)up, 7)),
               s = 1 / (1 + exp(-1.702 * g));
  *dgate = gate > 7 ? 0 : (float)((double)dy * (u + 1) * s * (1 + 1.702 * g * (1 - s)));
  *dup = fabsf(up) > 7 ? 0 : (float)((double)dy * g * s);
}
static void clamped_swiglu_row(const Row *row) {
  gated(row, clamped_swiglu);
}
static void clamped_swiglu_backward_row(const Row *row) {
  gated_backward(row, clamped_swiglu_gradient);
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
    {77, 64, 2, 1, 128, 5, 0, 0, 1},         // heads of two warps
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

// The same after RMSNorm of the q and k heads.
static void head_norm_rope(const Row *row) {
  const RopeCase *c = row->user;
  const int64_t rotated = (c->H + c->KV) * c->d;
  const double r = rstd_of(row) / row->q, position = (double)(c->base + c->first + row->m % c->T);
  for (int64_t head = 0; head < rotated; head += c->d) {
    double squares = 0;
    for (int64_t n = head; n < head + c->d; n++)
      squares += r * (double)row->product[n] * r * (double)row->product[n];
    const double norm = r / sqrt(squares / (double)c->d + (double)eps);
    for (int64_t j = 0; j < c->d / 2; j++) {
      const int64_t n = head + 2 * j;
      const double angle = position * frequency(c, j), cosine = cos(angle), sine = sin(angle),
                   x = norm * (double)row->product[n] * (double)row->columns[0][n],
                   y = norm * (double)row->product[n + 1] * (double)row->columns[0][n + 1];
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
  r->call.args.params[0].f = 0.01f;
}

// ---- The table: a program and its formula; what else it needs, where it needs more

static const Shape shapes[] = {
    {1, 8, 8},         // a corner of one tile
    {77, 136, 72},     // tails in all three
    {333, 200, 48},    // less of K than a stage
    {1000, 1096, 328}, // stages that are no multiple of the ring
    {2112, 1536, 512}, // the last cluster has rows for half a block
    {4104, 3080, 200}, // 17 rows of cluster tiles: two groups of 8, and one
    {8192, 2048, 256}, // several tiles a block, so that every ring wraps
};

static const Case cases[] = {
    {.program = &fused_program_plain_nt, .row = plain},
    {.program = &fused_program_plain_nn, .row = plain},
    {.program = &fused_program_plain_tn, .row = plain},
    {.program = &fused_program_residual, .row = residual, .out = {ROW_SUM}},
    {.program = &fused_program_rope, .row = rope, .heads_of = -1, .prepare = rope_prepare},
    {.program = &fused_program_swiglu,
     .row = swiglu_row,
     .scale = 1.5,
     .second_rounded_once = true},
    {.program = &fused_program_probabilities,
     .row = probabilities,
     .scale = 3,
     .scale_odd = 10, // logits up to some 100: 230 would leave fp32's range
     .out = {ROW_SUM, ROW_SUM},
     .out_floor = 6e-5, // observed: 2.8e-5, fp32 at logits of 100
     .any_N = true,
     .prepare = probabilities_prepare},
    {.program = &fused_program_swiglu_backward,
     .row = swiglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
    {.program = &fused_program_norm_dgrad, .row = head_dgrad, .prepare = head_dgrad_prepare},
    {.program = &fused_program_norm_dgrad_residual, .row = norm_dgrad, .in_place_of = 2},
    // FP8
    {.program = &fused_program_residual_fp8,
     .row = residual_fp8,
     .out = {ROW_SUM},
     .copy_scale = 1,
     .copies_of_store = true,
     .row_scale_out = true,
     .in_place_of = 1},
    {.program = &fused_program_residual_promoted_fp8,
     .row = residual_fp8,
     .out = {ROW_SUM},
     .copy_scale = 1,
     .copies_of_store = true,
     .row_scale_out = true,
     .in_place_of = 1},
    {.program = &fused_program_rope_fp8, .row = rope, .heads_of = -1, .prepare = rope_prepare},
    {.program = &fused_program_swiglu_fp8,
     .row = swiglu_row,
     .scale = 1.5,
     .copy_scale = 2,
     .has_small_z = true},
    {.program = &fused_program_probabilities_fp8,
     .row = probabilities,
     .out = {ROW_SUM, ROW_SUM},
     .out_floor = 1e-2, // observed: 2.1e-3 at logits of 30, whose sums have some 14 bits
     .any_N = true,
     .prepare = probabilities_prepare},
    {.program = &fused_program_swiglu_backward_fp8,
     .row = swiglu_backward_row,
     .has_small_z = true,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-3}, // observed: 7.1e-4, of fp16 arithmetic
    // Outliers: y beyond 2^17, dz beyond 2^31.
    {.name = "swiglu_backward_fp8_of_outliers",
     .program = &fused_program_swiglu_backward_fp8,
     .row = swiglu_backward_row,
     .has_small_z = true,
     .scale = 1e6,
     .load_scale = {150},
     .copy_scale = 0x1p-23f,
     .out = {ROW_SUM},
     .out_floor = 6e-3,        // observed: 2.8e-3, of a sum of 8 products that cancel
     .largest_error = 2.5e-3}, // observed: 7.6e-5; silu has fp16's 10 bits
    {.program = &fused_program_norm_dgrad_fp8, .row = norm_dgrad_fp8, .copies_of_store = true},
    {.program = &fused_program_norm_dgrad_residual_fp8,
     .row = norm_dgrad_fp8,
     .copies_of_store = true,
     .in_place_of = 2},
    {.program = &fused_program_norm_dgrad_residual_promoted_fp8,
     .row = norm_dgrad_fp8,
     .copies_of_store = true,
     .in_place_of = 2},
    // The examples of kernels/README.md
    {.program = &fused_program_absmax,
     .row = absmax,
     .in = {{ROW_MAX, 0.5, 4}},
     .out = {ROW_MAX},
     .prepare = absmax_prepare},
    {.program = &fused_program_layer_norm,
     .row = layer_norm,
     .in = {{0}, {ROW_SUM, -0.3, 0.3}},
     .out = {ROW_SUM, ROW_SUM}},
    // Logits of some 10, and such as are all at the cap.
    {.program = &fused_program_capped_logits,
     .row = capped_logits,
     .scale = 3,
     .scale_odd = 60,
     .out = {ROW_SOFTMAX}},
    {.program = &fused_program_capped_logits_fp8,
     .row = capped_logits,
     .scale = 3,
     // At 60 logits are 240, and FP8's sums of some 14 bits err by 0.2: beyond bf16's rounding of
     // 30.
     .scale_odd = 20,
     .out = {ROW_SOFTMAX}},
    {.program = &fused_program_capped_dlogits,
     .row = capped_dlogits,
     .scale = 3,
     .prepare = capped_dlogits_prepare},
    // FP8's sums have some 14 bits: at logits of 4 p errs by 3.7e-3, where its bf16 twin has
    // 1.4e-3.
    {.program = &fused_program_capped_dlogits_fp8,
     .row = capped_dlogits,
     .scale = 0.25,
     .prepare = capped_dlogits_prepare},
    {.program = &fused_program_bias_gelu, .row = bias_gelu},
    {.program = &fused_program_bias_gelu_backward,
     .row = bias_gelu_backward,
     .out = {COLUMN_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
    {.program = &fused_program_silu_copies_fp8, .row = silu_copies},
    {.program = &fused_program_gated_residual, .row = gated_residual, .in_place_of = 1},
    {.program = &fused_program_gated_residual_backward,
     .row = gated_residual_backward,
     .out = {COLUMN_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
    {.program = &fused_program_router,
     .row = router,
     .scale = 2,
     .out = {OF_ITS_OWN},
     .expect = expect_two_largest},
    {.program = &fused_program_clamped_swiglu,
     .row = clamped_swiglu_row,
     .scale = 5,
     .second_rounded_once = true},
    {.program = &fused_program_clamped_swiglu_fp8,
     .row = clamped_swiglu_row,
     .scale = 5,
     .copy_scale = 2,
     .has_small_z = true},
    {.program = &fused_program_clamped_swiglu_backward,
     .row = clamped_swiglu_backward_row,
     .load_scale = {5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
    {.program = &fused_program_clamped_swiglu_backward_fp8,
     .row = clamped_swiglu_backward_row,
     .has_small_z = true,
     .load_scale = {5},
     .out = {ROW_SUM},
     .out_floor = 6e-3}, // observed by the emulator: 5.7e-5; single terms cancel, as above
    {.program = &fused_program_head_norm_rope_64,
     .row = head_norm_rope,
     .heads_of = 64,
     .prepare = rope_prepare},
    {.program = &fused_program_head_norm_rope_128,
     .row = head_norm_rope,
     .heads_of = 128,
     .prepare = rope_prepare},
    {.program = &fused_program_head_norm_rope_64_fp8,
     .row = head_norm_rope,
     .heads_of = 64,
     .prepare = rope_prepare},
    {.program = &fused_program_head_norm_rope_128_fp8,
     .row = head_norm_rope,
     .heads_of = 128,
     .prepare = rope_prepare},
    {.program = &fused_program_geglu, .row = geglu_row, .scale = 1.5, .second_rounded_once = true},
    {.program = &fused_program_geglu_backward,
     .row = geglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *case_name(const Case *c) {
  return c->name ? c->name : c->program->name;
}

// ---- Tests

// What a test gets.
typedef struct Subject {
  Machine *machine;
  const Case *c;
  Shape only; // M 0: every shape
} Subject;

// The large shapes are there for the mainloop's rings. Programs on the CPU (tests/emulated), which
// has no mainloop, would take minutes for them, and a minute for those of a million elements.
static bool shape_pays(const Machine *m, Shape s) {
  return m->gpu.memory_bytes > 0 || s.M * s.N <= (first_tier() ? 1 << 17 : 4 << 20);
}

static Machine *machine_of(void **state) {
  return ((const Subject *)*state)->machine;
}

// FP8 programs need compute capability 8.9.
static bool runs_somewhere(const Machine *m, const Program *program) {
  const OpenProgram open = program_open(m, program);
  bool somewhere = false;
  for (int tile = 0; tile < TILE_SHAPES; tile++)
    somewhere = somewhere || fused_runs_in(&open, tile);
  return somewhere;
}

static void test_case(void **state) {
  const Subject *t = *state;
  Machine *m = machine_of(state);
  if (!runs_somewhere(m, t->c->program)) skip();
  if (t->c->heads_of) { // shapes of its own
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
      const RopeCase *c = &rope_cases[i];
      const Shape s = {c->M, (c->H + 2 * c->KV) * c->d, c->K};
      if (t->c->heads_of > 0 && t->c->heads_of != c->d) continue;
      if (shape_pays(m, s)) check_case(m, t->c, s, c);
    }
  } else if (t->only.M) {
    check_case(m, t->c, t->only, NULL);
  } else {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (shape_pays(m, shapes[i])) check_case(m, t->c, shapes[i], NULL);
  }
}

static void every_program_has_a_case(void **state) {
  (void)state;
  for (int name = 0; name < PROGRAMS; name++) {
    int i = 0;
    if (fused_program((ProgramName)name)->batched) continue; // test_batches.c
    while (i < CASES && cases[i].program != fused_program((ProgramName)name)) i++;
    if (i == CASES) fail_msg("%s has no case", fused_program((ProgramName)name)->name);
  }
}

// One NaN in a row makes the largest of its tile NaN, and of no other.
static void a_maximum_keeps_nan(void **state) {
  Machine *m = machine_of(state);
  const Shape s = {130, 392, 64};
  const int64_t column = 300;
  const Case c = {.program = &fused_program_absmax,
                  .row = absmax,
                  .in = {{ROW_MAX, 0.5, 4}},
                  .out = {ROW_MAX},
                  .prepare = absmax_prepare};
  Rig r;
  rig_open(&r, m, &c, s, NULL);
  bench_reset(&r.b);
  const uint16_t nan = 0x7fc0;
  memory_write(&m->memory, (uint16_t *)(uintptr_t)r.call.B + column * s.K, &nan, sizeof nan);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    if (!tile_runs(&r, tile)) continue;
    const int64_t cols = c.program->kernels[tile].cols;
    r.call.args.out[0].parts = tile_parts((TileShape)tile, s.N);
    launch(&r, (TileShape)tile);
    float *got = bench_read(&r.b, r.call.args.out[0].data);
    for (int64_t t = 0; t < r.call.args.out[0].parts; t++)
      for (int64_t row = 0; row < s.M; row++)
        assert_int_equal(isnan(got[t * r.call.args.out[0].stride + row]) != 0, t == column / cols);
    free(got);
  }
  rig_close(&r);
}

// So it does for the largest value of FP8 copies, in every program that writes them.
static void the_largest_copy_keeps_nan(void **state) {
  Machine *m = machine_of(state);
  for (int i = 0; i < CASES; i++) {
    Rig r;
    if (cases[i].program->copy_cols == 0) continue;
    rig_open(&r, m, &cases[i], (Shape){130, 384, 64}, NULL);
    bench_reset(&r.b);
    const uint8_t nan = 0x7f;
    memory_write(&m->memory, (void *)(uintptr_t)r.call.B, &nan, sizeof nan);
    for (int tile = 0; tile < TILE_SHAPES; tile++) {
      Scaling s;
      if (!tile_runs(&r, tile)) continue;
      for (int which = 0; which < 2; which++)
        r.call.args.out[which].parts = tile_parts((TileShape)tile, r.s.N);
      launch(&r, (TileShape)tile);
      memory_read(r.b.be, &s, r.call.args.copies, sizeof s);
      uint32_t largest = 0;
      for (int j = 0; j < MAXIMA; j++) largest = s.maxima[j] > largest ? s.maxima[j] : largest;
      if (largest <= 0x7f800000) fail_msg("%s: its bits are %08x", case_name(&cases[i]), largest);
    }
    rig_close(&r);
  }
}

// FP8's accumulators truncate: without promotion a sum of K = 32768 positive terms comes out 38 %
// short (kernels/cuda/gemm.h).
static void promoted_sums_of_one_sign_keep_their_size(void **state) {
  Machine *m = machine_of(state);
  if (!runs_somewhere(m, &fused_program_residual_promoted_fp8)) skip();
  const int64_t depths[] = {2048, 8192, 32768};
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    const Shape s = {256, 256, depths[i]};
    const Case c = {.program = &fused_program_residual_promoted_fp8,
                    .row = residual_fp8,
                    .scale = 1,
                    .one_sign = true,
                    .out = {ROW_SUM},
                    .copy_scale = 1,
                    .row_scale_out = true};
    Rig r;
    rig_open(&r, m, &c, s, NULL);
    for (int tile = 0; tile < TILE_SHAPES; tile++) {
      if (!tile_runs(&r, tile)) continue;
      r.call.args.out[0].parts = tile_parts((TileShape)tile, s.N);
      bench_reset(&r.b);
      launch(&r, (TileShape)tile);
      float *got = bench_read(&r.b, r.call.stores[0].data);
      double sum = 0, expected = 0;
      for (int64_t j = 0; j < s.M * s.N; j++)
        sum += (double)got[j], expected += (double)r.reference[0][j];
      free(got);
      print_message("# K %lld, %d columns: %.2e short (observed 5.6e-3, bound 6e-3)\n",
                    (long long)s.K, (int)c.program->kernels[tile].cols, 1 - sum / expected);
      assert_true(fabs(1 - sum / expected) < 6e-3);
    }
    rig_close(&r);
  }
}

// What tile_choose names can be launched.
static void chosen_tiles_have_kernels(void **state) {
  (void)state;
  for (int name = 0; name < PROGRAMS; name++)
    for (int64_t N = 16; N < 200000; N *= 3)
      for (int64_t M = 1; M < 100000; M *= 7)
        for (int64_t K = 64; K < 200000; K *= 9)
          assert_non_null(fused_program((ProgramName)name)
                              ->kernels[tile_choose(MAINLOOP_WGMMA, (ProgramName)name, M, N, K)]
                              .kernel);
}

// A recorded call is one kernel, and nothing beside it. The recording is not run.
static void expect_one_kernel(const Machine *m, const OpenProgram *open, TileShape tile,
                              const ProgramCall *call) {
  cudaGraph_t graph;
  size_t nodes = 0;
  CUDA_CHECK(cudaStreamBeginCapture(m->gpu.stream, cudaStreamCaptureModeThreadLocal));
  fused_launch(open, tile, call, m->gpu.stream);
  CUDA_CHECK(cudaStreamEndCapture(m->gpu.stream, &graph));
  CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 1);
  cudaGraphNode_t node;
  enum cudaGraphNodeType type;
  CUDA_CHECK(cudaGraphGetNodes(graph, &node, &nodes));
  CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  assert_int_equal(type, cudaGraphNodeTypeKernel);
  CUDA_CHECK(cudaGraphDestroy(graph));
}

static void a_call_is_one_kernel(void **state) {
  const Machine *m = machine_of(state);
  enum { SIDE = 1024 };
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, SIDE * SIDE * 2));
  const Matrix square = {memory, SIDE, SIDE};
  const RowStat parts = {.data = memory, .stride = SIDE, .parts = 1};
  const ProgramCall call = {
      .M = SIDE,
      .N = SIDE,
      .K = SIDE,
      .A = memory,
      .B = memory,
      .loads = {square, square},
      .stores = {square, square},
      .args = {.in = {parts, parts}, .out = {parts, parts}, .columns = {memory, memory}}};
  for (int i = 0; i < CASES; i++) {
    const OpenProgram open = program_open(m, cases[i].program);
    for (int tile = 0; tile < TILE_SHAPES; tile++)
      if (fused_runs_in(&open, tile)) expect_one_kernel(m, &open, (TileShape)tile, &call);
  }
  CUDA_CHECK(cudaFree(memory));
}

int main(int argc, char **argv) {
  static const struct CMUnitTest others[] = {
      cmocka_unit_test(every_program_has_a_case),
      cmocka_unit_test(a_maximum_keeps_nan),
      cmocka_unit_test(the_largest_copy_keeps_nan),
      cmocka_unit_test(promoted_sums_of_one_sign_keep_their_size),
      cmocka_unit_test(chosen_tiles_have_kernels),
      cmocka_unit_test(a_call_is_one_kernel)};
  Machine machine;
  Subject subjects[CASES + 1];
  enum { OTHERS = sizeof others / sizeof *others };
  struct CMUnitTest tests[CASES + OTHERS];
  Shape only = {0};
  bool known = argc < 2;
  for (int i = 0; i < CASES; i++) {
    subjects[i].c = &cases[i];
    tests[i] = (struct CMUnitTest){case_name(&cases[i]), test_case, NULL, NULL, &subjects[i]};
    known = known || strcmp(argv[1], case_name(&cases[i])) == 0;
  }
  if (argc > 3 || !known || (argc == 3 && !shape_read(argv[2], &only))) {
    fprintf(stderr, "usage: test_programs [NAME [MxNxK]]; N and K are multiples of 8. NAME:");
    for (int i = 0; i < CASES; i++) fprintf(stderr, " %s", case_name(&cases[i]));
    fprintf(stderr, "\n");
    return EXIT_FAILURE;
  }
  Error err;
  if (machine_open(&machine, &err)) {
    fprintf(stderr, "%s\n", err.text);
    return EXIT_FAILURE;
  }
  for (int i = 0; i <= CASES; i++) subjects[i].machine = &machine, subjects[i].only = only;
  for (int i = 0; i < OTHERS; i++) {
    tests[CASES + i] = others[i];
    tests[CASES + i].initial_state = &subjects[CASES];
  }
  cmocka_set_test_filter(argc > 1 ? argv[1] : getenv("TEST_FILTER"));
  const int failed = cmocka_run_group_tests_name("programs", tests, NULL, NULL);
  gpu_close(&machine.gpu);
  return failed;
}
