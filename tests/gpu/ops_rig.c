#include "tests/gpu/ops_rig.h"

#include "tests/support/bf16_twin.h"
#include "tests/support/shapes.h"

// Tails everywhere: rows that start at any 2-byte boundary, clusters of 1, 2, 4 and 8 blocks a row
// of logits, and a row too long for all of them.
static const Shape shapes[] = {
    {"odd", 200, 136, 3, 1, 48, 1003, 2, 77},
    {"one token", 64, 100, 4, 4, 64, 256, 3, 1},
    {"unaligned", 36, 44, 2, 1, 32, 65, 5, 7},
    {"many tokens", 48, 40, 1, 1, 16, 70, 10, 300},
    {"wide heads", 512, 1408, 8, 2, 80, 50257, 1, 333},
    {"llama-3 vocabulary", 256, 768, 12, 4, 128, 128256, 1, 100},
    {"odd large vocabulary", 64, 64, 8, 1, 16, 151937, 1, 9},
    {"larger than a cluster", 16, 16, 1, 1, 16, 262155, 1, 5},
    {"widest heads", 64, 64, 6, 2, 256, 72, 1, 200},
    {"aligned", 768, 2048, 12, 4, 64, 32000, 3, 64},
};
// FP8: widths and rows that fill neither a strip of 256 columns nor a group of 16 rows, and several
// blocks of each.
static const Shape fp8_shapes[] = {
    {"tails", 272, 528, 3, 1, 48, 1008, 2, 77},
    {"least", 16, 16, 1, 1, 16, 16, 1, 1},
    {"blocks", 1040, 1296, 4, 2, 144, 528, 3, 48},
};

double inv_freq(const Shape *s, int64_t j) {
  return pow(500000, -2 * (double)j / (double)s->d);
}

// ---- Subjects

static Subject subject_new(Shape s, const KernelMode *mode, bool fp8) {
  static const ScalingKind kinds[SCALINGS] = {[FIXED] = {FP8_E4M3, 1}};
  Subject t = {.s = s,
               .M = s.B * s.T,
               .R = (s.H + 2 * s.KV) * s.d,
               .Hd = s.H * s.d,
               .fused = mode->kernels == KERNELS_FUSED,
               .fp8 = fp8};
  Spec spec = {SPEC_SHAPE(s.D, s.F, s.H, s.KV, s.d, s.V, t.M + (fp8 ? 0 : 3), s.T + 5),
               .rms_norm_eps = eps, .kernels = mode->kernels, .mainloop = mode->mainloop,
               .train = true};
  for (int64_t j = 0; j < s.d / 2; j++) spec.inv_freq[j] = inv_freq(&s, j);
  t.cpu = backend_cpu_create(&spec);
  t.twin = backend_cpu_create(&spec);
  bf16_twin(t.twin, true);
  if (fp8) spec.fp8 = true, spec.scalings = kinds, spec.scaling_count = SCALINGS;
  t.bf16 = gpu_backend(spec);
  spec.grads_fp32 = true;
  t.fp32 = gpu_backend(spec);
  if (fp8) return t;
  spec.train = spec.grads_fp32 = false;
  spec.graphs = true;
  t.writer = gpu_backend(spec);
  return t;
}

Subjects *subjects_open(const KernelMode *mode, bool fp8) {
  const Shape *list = fp8 ? fp8_shapes : shapes;
  const size_t count = fp8 ? sizeof fp8_shapes / sizeof *list : sizeof shapes / sizeof *list;
  Subjects *all = xcalloc(1, sizeof *all);
  assert_true(count <= sizeof all->list / sizeof *all->list);
  for (size_t i = 0; i < count; i++) {
    const Shape s = list[i];
    if (mode->kernels == KERNELS_FUSED && (s.D % 8 || s.F % 8 || s.d % 8)) continue;
    all->list[all->count++] = subject_new(s, mode, fp8);
  }
  printf("# %s: %s\n", all->list[0].bf16->name, all->list[0].bf16->description);
  return all;
}

void subjects_close(Subjects *all) {
  for (int i = 0; i < all->count; i++) {
    Subject *t = &all->list[i];
    Backend *const backends[] = {t->cpu, t->twin, t->bf16, t->fp32, t->writer};
    for (int k = 0; k < 5; k++)
      if (backends[k]) backends[k]->services.destroy(backends[k]);
  }
  free(all);
}

// ---- Parts of twins and tests

float *floats(int64_t n) {
  return xcalloc((size_t)n, sizeof(float));
}

float *copy_of(const float *x, int64_t n) {
  float *copy = xmalloc((size_t)n * sizeof *copy);
  memcpy(copy, x, (size_t)n * sizeof *copy);
  return copy;
}

float *row_squares(const float *x, int64_t M, int64_t n) {
  float *sumsq = floats(M);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += (double)x[m * n + k] * (double)x[m * n + k];
    sumsq[m] = (float)sum;
  }
  return sumsq;
}

int32_t *random_tokens(int64_t M, int64_t V, const char *name) {
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++)
    tokens[m] = (int32_t)(rng_u64(rng_key(7, name), (uint64_t)m) % (uint64_t)V);
  return tokens;
}

float *weight(int64_t N, int64_t K, const char *name) {
  return random_bf16(N * K, 1 / sqrt((double)K), name);
}

float *product_rounded(int64_t M, int64_t N, int64_t K, const float *x, const float *W) {
  float *z = floats(M * N);
  gemm(GEMM_NT, M, N, K, x, W, 0, z);
  round_all(z, M * N);
  return z;
}

void scale_rows(const Subject *t, const float *sumsq, int64_t n, float *x) {
  for (int64_t i = 0; i < t->M * n; i++) x[i] *= rms_rstd(sumsq[i / n], t->s.D, eps);
}

void rotate_rows(const Subject *t, int64_t rows, int64_t T, int64_t first, float *qkv) {
  for (int64_t m = 0; m < rows; m++)
    for (int64_t c = 0; c < (t->s.H + t->s.KV) * t->s.d; c += 2) {
      const double angle = (double)(first + m % T) * inv_freq(&t->s, c % t->s.d / 2);
      float *pair = qkv + m * t->R + c;
      rope_rotate(&pair[0], &pair[1], (float)cos(angle), (float)sin(angle));
    }
}

float row_scale_at(int64_t m) {
  return ldexpf(1, (int)(m * 7 % 5) - 2);
}

const char *label(const Subject *t, const char *what) {
  static char text[96];
  snprintf(text, sizeof text, "%s, %s", what, t->s.name);
  return text;
}

// ---- FP8

Operand copies_new(Bench *b, int64_t rows, int64_t cols, int scaling) {
  const int64_t stride = fp8_padded(rows) + FP8_GROUP;
  return (Operand){.by_row = buffer_new(b, rows * cols, 1, NULL)->data,
                   .by_col = buffer_new(b, cols * stride, 1, NULL)->data,
                   .stride = stride,
                   .scaling = scaling,
                   .fp8 = true};
}

void scalings_reset(Backend *be) {
  ScalingState states[SCALINGS] = {{0}};
  for (int i = 0; i < SCALINGS; i++) states[i].scale = scales[i];
  be->services.scalings_write(be, states);
}

StepState scalings_step(Backend *be) {
  Cuda *c = cuda_of(be);
  StepState state = {.applied = 1};
  be->services.write(be, &c->state->applied, &state.applied, sizeof state.applied);
  launch_scalings_update(c->scalings, 0, SCALINGS, c->state, c->gpu.stream);
  be->services.read(be, &state, c->state, sizeof state);
  return state;
}

uint8_t *bytes_of(Backend *be, const void *from, int64_t count) {
  uint8_t *bytes = xmalloc((size_t)count);
  be->services.read(be, bytes, from, (size_t)count);
  return bytes;
}

// Of one copy by the other, and of the rows past the matrix in by_col: zeros up to a whole group,
// then what the memory held.
static void expect_one_matrix(const char *what, Operand x, int64_t rows, int64_t cols,
                              const uint8_t *by_row, const uint8_t *by_col) {
  for (int64_t m = 0; m < rows; m++)
    for (int64_t n = 0; n < cols; n++)
      if (by_col[n * x.stride + fp8_row_place(m)] != by_row[m * cols + fp8_column_place(n)])
        fail_msg("%s: the copies differ at %lld, %lld", what, (long long)m, (long long)n);
  for (int64_t n = 0; n < cols; n++)
    for (int64_t at = 0; at < x.stride; at++) {
      const int64_t group = at - at % 16, m = group + at % 16 / 2 + at % 2 * 8;
      if (m >= rows) assert_int_equal(by_col[n * x.stride + at], group < rows ? 0 : 0xff);
    }
}

void expect_copies(Backend *be, const char *what, Operand x, int64_t rows, int64_t cols,
                   const float *values, double slack) {
  const float scale = scales[x.scaling];
  float largest = 0;
  for (int64_t i = 0; i < rows * cols; i++) largest = fmaxf(largest, fabsf(values[i]));
  uint8_t *by_row = bytes_of(be, x.by_row, rows * cols),
          *by_col = bytes_of(be, x.by_col, cols * x.stride);
  expect_one_matrix(what, x, rows, cols, by_row, by_col);
  int64_t others = 0;
  for (int64_t i = 0; i < rows * cols; i++) {
    const float v = scale * values[i];
    const uint8_t got = by_row[i / cols * cols + fp8_column_place(i % cols)],
                  nearest = fp8_bits(FP8_E4M3, v);
    if (got == nearest) continue;
    const double off = fabs((double)fp8_value(FP8_E4M3, got) - (double)v),
                 least = fabs((double)fp8_round(FP8_E4M3, v) - (double)v);
    if (!(off <= least + slack * (double)(scale * largest)))
      fail_msg("%s[%lld, %lld] is %02x for %.9g, not %02x", what, (long long)(i / cols),
               (long long)(i % cols), got, (double)v, nearest);
    others++;
  }
  ScalingState states[SCALINGS];
  scalings_step(be);
  be->services.scalings_read(be, states);
  const double found = (double)states[x.scaling].history[0];
  printf("# %-34s copies: %lld rounded the other way, largest off by %.1e\n", what,
         (long long)others, fabs(found / (double)largest - 1));
  assert_true(fabs(found - (double)largest) <= slack * (double)largest);
  free(by_row), free(by_col);
}

// ---- Tensors

static int64_t size_of(const Subject *t, char letter) {
  switch (letter) {
  case '1':
    return 1;
  case 'M':
    return t->M;
  case 'D':
    return t->s.D;
  case 'F':
    return t->s.F;
  case 'Z':
    return 2 * t->s.F;
  case 'R':
    return t->R;
  case 'H':
    return t->Hd;
  case 'V':
    return t->s.V;
  case 'T':
    return t->s.T;
  case 'Q':
    return t->s.T > 3 ? t->s.T - 2 : 1;
  default:
    fail_msg("no size %c", letter);
    return 0;
  }
}
static int64_t rows_of(const Subject *t, const Tensor *x) {
  return size_of(t, x->shape[0]);
}
static int64_t cols_of(const Subject *t, const Tensor *x) {
  return size_of(t, x->shape[1]);
}
static int64_t elements_of(const Subject *t, const Tensor *x) {
  return rows_of(t, x) * cols_of(t, x);
}

static int tensors_of(const Case *c) {
  int count = 0;
  while (count < MOST_TENSORS && c->tensors[count].use) count++;
  return count;
}
static bool is_output(const Tensor *x) {
  return x->use >= OUT;
}
static bool is_statistic(const Tensor *x) {
  return x->use == SQUARES || x->use == SUMS || x->use == ROW_SUMS || x->use == STORED_SQUARES;
}
static bool is_gradient(const Tensor *x) {
  return x->use == GRAD || x->use == GRAD_ADDED;
}
static bool is_floats(const Tensor *x) {
  return x->use == FLOATS || x->use == SCRATCH_FLOATS;
}
static bool is_compared(const Tensor *x) {
  return is_output(x) && x->use != COPIED && x->use != SCRATCH && x->use != SCRATCH_FLOATS;
}
static bool is_integers(const Tensor *x) {
  return x->use == TOKENS || x->use == TOKEN_RUNS || x->use == POSITION;
}

static float *tokens_new(const Subject *t, const Tensor *x) {
  int32_t *tokens = random_tokens(t->M, t->s.V, x->name);
  float *values = floats(t->M);
  tokens[t->M - 1] = (int32_t)t->s.V - 1;
  tokens[0] = t->M > 1 ? 0 : tokens[0];
  for (int64_t m = 0; m < t->M; m++) {
    const bool in_run = x->use == TOKEN_RUNS && m % 3 != 0;
    values[m] = (float)(in_run ? (m % 5 < 3 ? 1 : 2) : tokens[m]);
  }
  free(tokens);
  return values;
}

// What copies that an operation reads stand for.
static void round_to_copies(const Tensor *x, int64_t n, float *values) {
  const float scale = scales[x->scaling];
  for (int64_t i = 0; i < n; i++) values[i] = fp8_round(FP8_E4M3, scale * values[i]) / scale;
}

// NULL where the tensor is written only.
static float *values_new(const Subject *t, const Tensor *x, const Tensor *all, float *const *in) {
  const int64_t rows = rows_of(t, x), cols = cols_of(t, x);
  const double scale = x->scale != 0 ? x->scale : 1;
  float *values = NULL;
  if (x->use == TOKENS || x->use == TOKEN_RUNS) return tokens_new(t, x);
  if (x->use == SQUARES) return row_squares(in[x->of], rows, cols_of(t, &all[x->of]));
  if (x->use == POSITION) {
    values = floats(1);
    values[0] = (float)(t->s.T - size_of(t, 'Q'));
  }
  if (x->use == WEIGHT) values = random_bf16(rows * cols, scale / sqrt((double)cols), x->name);
  if (x->use == IN || x->use == INOUT || x->use == GRAD_ADDED || x->use == SUMS)
    values = random_bf16(rows * cols, scale, x->name);
  if (x->copies == COPIES_READ) round_to_copies(x, rows * cols, values);
  return values;
}

// ---- Sides

typedef struct Side {
  Bench b;
  Arg a[MOST_TENSORS];
} Side;

// On the device, by rows and by columns as kernels/formats.h says; there is no data beside them.
static void copies_in(Bench *b, const Tensor *t, int64_t rows, int64_t cols, const float *values,
                      Operand *x) {
  const int64_t all_rows = fp8_padded(rows);
  x->stride = all_rows + FP8_GROUP;
  uint8_t *by_row = xcalloc((size_t)(all_rows * cols), 1),
          *by_col = xcalloc((size_t)(cols * x->stride), 1);
  for (int64_t i = 0; i < rows * cols; i++) {
    const int64_t m = i / cols, n = i % cols,
                  place = t->use == WEIGHT ? fp8_column_place(m) : fp8_row_place(m);
    by_row[m * cols + fp8_column_place(n)] = by_col[n * x->stride + place] =
        fp8_bits(FP8_E4M3, scales[t->scaling] * values[i]);
  }
  *x = (Operand){.by_row = buffer_new(b, all_rows * cols, 1, by_row)->data,
                 .by_col = buffer_new(b, cols * x->stride, 1, by_col)->data,
                 .stride = x->stride,
                 .scaling = t->scaling,
                 .fp8 = true};
  free(by_row), free(by_col);
}

static void *integers(Bench *b, int64_t n, const float *values) {
  int32_t *whole_numbers = xmalloc((size_t)n * sizeof *whole_numbers);
  for (int64_t i = 0; i < n; i++) whole_numbers[i] = (int32_t)values[i];
  void *data = int32_buffer(b, n, whole_numbers);
  free(whole_numbers);
  return data;
}

// The CPU has one part of each statistic, and no copies here.
static bool on_gpu(const Backend *be) {
  return act_bytes(&be->spec) == 2;
}

static RowStat statistic(Bench *b, const Subject *t, const Tensor *x, const float *values) {
  const int64_t M = rows_of(t, x), sumsq = b->be->spec.most_parts.sumsq;
  if (x->use == ROW_SUMS) return stat_out(b, b->be->spec.most_parts.s);
  if (x->use == STORED_SQUARES) return stat_out(b, sumsq);
  if (x->use == SQUARES) return stat_in(b, on_gpu(b->be) && t->fp8 ? 3 : sumsq, M, values);
  return stat_in(b, !on_gpu(b->be) ? 1 : t->fp8 ? 2 : 3, M, values);
}

static Arg operand_new(Bench *b, const Subject *t, const Tensor *x, const float *values) {
  const int64_t rows = rows_of(t, x), cols = cols_of(t, x);
  const bool copies = x->copies && on_gpu(b->be);
  Operand o = {.data = NULL};
  if (copies && x->copies == COPIES_READ)
    copies_in(b, x, rows, cols, values, &o);
  else if (copies)
    o = copies_new(b, rows, cols, x->scaling);
  if (x->use != COPIED && !(copies && x->copies == COPIES_READ))
    o.data = act_buffer(b, x->use == LOGITS ? rows * fp8_padded(cols) : rows * cols, values);
  if (x->scaled_rows) {
    float *q = floats(rows);
    for (int64_t m = 0; m < rows; m++) q[m] = row_scale_at(m);
    o.row_scale = fp32_buffer(b, rows, q);
    free(q);
  }
  if (x->scaled_by && copies) o.row_scale = fp32_buffer(b, rows, NULL);
  return (Arg){.data = o.data, .x = o};
}

static void side_open(Side *s, Backend *be, const Case *c, const Subject *t, float *const *in) {
  *s = (Side){.b.be = be};
  if (t->fp8 && on_gpu(be)) scalings_reset(be);
  for (int i = 0; i < tensors_of(c); i++) {
    const Tensor *x = &c->tensors[i];
    Arg *a = &s->a[i];
    if (is_statistic(x))
      a->stat = statistic(&s->b, t, x, in[i]);
    else if (is_integers(x))
      a->data = integers(&s->b, elements_of(t, x), in[i]);
    else if (is_floats(x))
      a->data = fp32_buffer(&s->b, elements_of(t, x), NULL);
    else if (is_gradient(x))
      a->data = grad_buffer(&s->b, elements_of(t, x), in[i]);
    else
      *a = operand_new(&s->b, t, x, in[i]);
    if (x->use == COPIED && !on_gpu(be)) a->data = s->a[x->of].data;
  }
}

// What a call left in tensor i; NULL where it has copies alone.
static float *side_read(Side *s, const Subject *t, const Tensor *x, int i) {
  const Arg *a = &s->a[i];
  if (is_statistic(x)) return stat_read(&s->b, a->stat, rows_of(t, x));
  if (!a->data) return NULL;
  float *values = bench_read(&s->b, a->data);
  const int64_t rows = rows_of(t, x), cols = cols_of(t, x);
  for (int64_t m = 1; x->use == LOGITS && m < rows; m++)
    memmove(values + m * cols, values + m * fp8_padded(cols), (size_t)cols * sizeof *values);
  return values;
}

// ---- A case

// What a backend of the CPU leaves, in fresh memory.
static void results_of(const Case *c, const Subject *t, Backend *be, const Values *v,
                       float **results) {
  Side s;
  float *in[MOST_TENSORS];
  for (int i = 0; i < MOST_TENSORS; i++)
    in[i] = v->in[i] ? copy_of(v->in[i], elements_of(t, &c->tensors[i])) : NULL;
  if (c->cpu_inputs) c->cpu_inputs(t, in);
  side_open(&s, be, c, t, in);
  bench_reset(&s.b);
  c->call(be, t, s.a);
  for (int i = 0; i < tensors_of(c); i++)
    if (is_output(&c->tensors[i])) results[i] = side_read(&s, t, &c->tensors[i], i);
  for (int i = 0; i < MOST_TENSORS; i++) free(in[i]);
  bench_free(&s.b);
}

// What is stored in bf16 is rounded in any case.
static void expected_new(const Case *c, const Subject *t, const Backend *be, Values *v) {
  if (!c->formula) {
    results_of(c, t, t->cpu, v, v->reference);
    results_of(c, t, t->twin, v, v->twin);
  }
  for (int i = 0; i < tensors_of(c) && c->formula; i++)
    if (is_output(&c->tensors[i])) v->reference[i] = floats(elements_of(t, &c->tensors[i]));
  if (c->formula) c->formula(t, v);
  for (int i = 0; i < tensors_of(c); i++) {
    const Tensor *x = &c->tensors[i];
    const int64_t n = elements_of(t, x);
    if (c->formula && is_output(x)) v->twin[i] = copy_of(v->reference[i], n);
    if (is_compared(x) && !is_statistic(x) && !is_floats(x) &&
        (!is_gradient(x) || grad_bytes(&be->spec) == 2 || t->fp8))
      round_all(v->twin[i], n);
  }
}

static float *row_scales_of(Side *s, const Case *c, const Subject *t, const Values *v, int i) {
  const Tensor *x = &c->tensors[i];
  float *q = bench_read(&s->b, s->a[i].x.row_scale);
  if (!x->scaled_by) return q;
  const float *sums = v->got[x->scaled_by] ? v->got[x->scaled_by] : v->in[x->scaled_by];
  float *expected = floats(rows_of(t, x));
  for (int64_t m = 0; m < rows_of(t, x); m++)
    expected[m] = power_of_two_below(rms_rstd(sums[m], t->s.D, eps));
  expect_same("row scales", q, expected, rows_of(t, x));
  free(expected);
  return q;
}

// Copies are of the data where there is any, in rows times q; else of the reference.
static void check_copies(Side *s, const Case *c, const Subject *t, const Values *v, int i,
                         const char *what) {
  const Tensor *x = &c->tensors[i];
  const float *of = v->got[i] ? v->got[i] : v->in[i] ? v->in[i] : v->reference[i];
  float *values = copy_of(of, elements_of(t, x));
  if (s->a[i].x.row_scale) {
    float *q = row_scales_of(s, c, t, v, i);
    for (int64_t k = 0; k < elements_of(t, x); k++) values[k] *= q[k / cols_of(t, x)];
    free(q);
  }
  expect_copies(s->b.be, what, s->a[i].x, rows_of(t, x), cols_of(t, x), values,
                x->use == COPIED ? x->floor : 0);
  free(values);
}

static void check_tensor(Side *s, const Case *c, const Subject *t, const Values *v, int i) {
  const Tensor *x = &c->tensors[i];
  char what[64];
  snprintf(what, sizeof what, "%s %s", c->operation, x->name);
  const double floor = x->floor ? x->floor : 1e-6;
  if (x->use == STORED_SQUARES) {
    const Tensor *stored = &c->tensors[x->of];
    float *expected = row_squares(v->got[x->of], rows_of(t, stored), cols_of(t, stored));
    expect_near(label(t, what), v->got[i], expected, expected, rows_of(t, x), floor);
    free(expected);
  } else if (x->exact) {
    expect_same(label(t, what), v->got[i], v->reference[i], elements_of(t, x));
  } else if (is_compared(x)) {
    expect_near(label(t, what), v->got[i], v->twin[i], v->reference[i], elements_of(t, x), floor);
  }
  if (x->copies == COPIES_WRITTEN) check_copies(s, c, t, v, i, label(t, what));
}

void check_case(const Case *c, const Subject *t, Backend *be) {
  const int count = tensors_of(c);
  Values v = {.in = {NULL}};
  Side s;
  for (int i = 0; i < count; i++) v.in[i] = values_new(t, &c->tensors[i], c->tensors, v.in);
  expected_new(c, t, be, &v);
  side_open(&s, be, c, t, v.in);
  RUN_TWICE(&s.b, c->call(be, t, s.a));
  for (int i = 0; i < count; i++)
    if (is_output(&c->tensors[i])) v.got[i] = side_read(&s, t, &c->tensors[i], i);
  if (c->adjust) c->adjust(t, &v);
  for (int i = 0; i < count; i++) check_tensor(&s, c, t, &v, i);
  for (int i = 0; i < MOST_TENSORS; i++)
    free(v.in[i]), free(v.reference[i]), free(v.twin[i]), free(v.got[i]);
  bench_free(&s.b);
}
