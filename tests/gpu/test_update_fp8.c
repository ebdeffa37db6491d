// The FP8 copies of weights that the update writes: both, bit for bit as kernels/formats.h says,
// with scales that follow from largest values; and the update itself, equal to that beside bf16
// copies.
#include "tests/gpu/fp8_here.h"
#include "tests/gpu/params_rig.h"
#include "tests/support/shapes.h"

// A norm weight with the matrix that it is folded into, another with a tied embedding, and a matrix
// used plain.
enum { NORM, FOLDED, TIED_NORM, TIED, PLAIN, TENSORS };
// An activation's scaling, behind those of the tensors.
enum { ACTIVATION = TENSORS, SCALINGS };
enum { PADDING = 0xff }; // what buffers begin with

typedef struct Rig {
  int64_t D, rows, V;
  MomentType moments;
  MasterType masters;
  bool grads_fp32, muon;
  Start start[TENSORS];
  Side fp8, bf16;
} Rig;

// No clipping: the norm's last bit depends on the order of tensors. Steps are large, so that scales
// change.
static const AdamW hyper = {.learning_rate = 0.5, USUAL_ADAMW};

static bool is_norm(int i) {
  return i == NORM || i == TIED_NORM;
}

static void side_open(Rig *r, Side *s, bool fp8) {
  ScalingKind kinds[SCALINGS] = {{FP8_E4M3, 0}};
  Spec spec = params_spec(r->D, r->V, r->moments, r->masters);
  spec.fp8 = fp8;
  spec.scalings = kinds;
  spec.scaling_count = fp8 ? SCALINGS : 0;
  spec.weight_scalings = TENSORS;
  spec.grads_fp32 = r->grads_fp32;
  s->be = gpu_backend(spec);
  const ParamTensor shapes[TENSORS] = {{.rows = 1, .cols = r->D, .norm = -1, .vector = true},
                                       {.rows = r->rows, .cols = r->D, .norm = NORM},
                                       {.rows = 1, .cols = r->D, .norm = -1, .vector = true},
                                       {.rows = r->V, .cols = r->D, .norm = TIED_NORM},
                                       {.rows = r->D, .cols = r->rows, .norm = -1}};
  memcpy(s->list, shapes, sizeof shapes);
  if (r->muon) { // FOLDED as gate and up
    ParamTensor *folded = &s->list[FOLDED], *plain = &s->list[PLAIN];
    folded->part_count = 2, plain->part_count = 1;
    for (int k = 0; k < 2; k++) folded->parts[k] = (MatrixPart){k, 2, folded->rows / 2};
    plain->parts[0] = (MatrixPart){0, 1, plain->rows};
  }
  params_new(s, TENSORS, TIED, r->start, fp8);
}

// rows: a multiple of FP8_GROUP, as D.
static void rig_open(Rig *r, int64_t D, int64_t rows, int64_t V, MomentType moments,
                     MasterType masters, bool grads_fp32, bool muon) {
  *r = (Rig){.D = D,
             .rows = rows,
             .V = V,
             .moments = moments,
             .masters = masters,
             .grads_fp32 = grads_fp32,
             .muon = muon};
  const int64_t counts[TENSORS] = {D, rows * D, D, V * D, rows * D};
  for (int i = 0; i < TENSORS; i++) {
    float *zeros = xcalloc((size_t)counts[i], sizeof *zeros);
    r->start[i] = (Start){.master = named(counts[i], 0.3 * (i + 1), "W", i),
                          .m = zeros,
                          .v = zeros,
                          .grad = named(counts[i], 0.1, "g", i),
                          .grad_folded = named(counts[i], 0.1, "f", i)};
  }
}

static void rig_close(Rig *r) {
  Side *const sides[] = {&r->fp8, &r->bf16};
  for (int i = 0; i < 2; i++) {
    bench_free(&sides[i]->bench);
    sides[i]->be->services.destroy(sides[i]->be);
  }
  for (int i = 0; i < TENSORS; i++) {
    const Start *s = &r->start[i];
    free(s->master), free(s->m), free(s->grad), free(s->grad_folded);
  }
}

static StepResult step(Side *s) {
  Backend *be = s->be;
  be->services.step_begin(be);
  be->grads_finish(be, s->list, TENSORS);
  if (s->list[PLAIN].part_count > 0) be->muon(be, s->list, TENSORS);
  be->adamw(be, s->list, TENSORS);
  be->services.step_end(be);
  return be->services.step_result(be);
}

// Copies without scales yet, and so many steps.
static StepResult run(Side *s, int steps) {
  Backend *be = s->be;
  const ScalingState none[SCALINGS] = {{0}};
  StepResult result = {0};
  if (s->list[PLAIN].compute.fp8) be->services.scalings_write(be, none);
  be->services.set_updates(be, 0);
  be->services.set_hyper(be, &hyper);
  be->services.refresh(be, s->list, TENSORS);
  for (int i = 0; i < steps; i++) result = step(s);
  return result;
}

static uint8_t *read_bytes(Backend *be, const fp8_t *from, int64_t count) {
  uint8_t *to = xmalloc((size_t)count);
  be->services.read(be, to, from, (size_t)count);
  return to;
}

static void expect_byte(const char *what, int64_t row, int64_t column, uint8_t got, uint8_t want) {
  if (got != want)
    fail_msg("%s of row %lld, column %lld is %02x, not %02x", what, (long long)row,
             (long long)column, got, want);
}

// W [rows, cols], or W wn, as it is now: against its copies and the largest value.
static float check_copies(Side *s, int i, float scale) {
  const ParamTensor *t = &s->list[i];
  const Operand *x = t->folded.fp8 ? &t->folded : &t->compute;
  float *W = bench_read(&s->bench, t->master);
  float *wn = t->norm >= 0 ? bench_read(&s->bench, s->list[t->norm].master) : NULL;
  uint8_t *by_row = read_bytes(s->be, x->by_row, elements(t)),
          *by_col = read_bytes(s->be, x->by_col, t->cols * x->stride);
  float largest = 0;
  for (int64_t k = 0; k < t->cols; k++)
    for (int64_t n = 0; n < x->stride; n++) {
      const bool there = n < t->rows;
      const float value = !there ? 0 : wn ? W[n * t->cols + k] * wn[k] : W[n * t->cols + k];
      const uint8_t expected = fp8_bits(FP8_E4M3, value * scale);
      largest = fmaxf(largest, fabsf(value));
      uint8_t got = by_col[k * x->stride + fp8_column_place(n)];
      if (!there && got == 0x80) got = 0; // of a norm weight below 0, zero has a sign
      expect_byte("by_col", n, k, got, n < fp8_padded(t->rows) ? expected : PADDING);
      if (there) expect_byte("by_row", n, k, by_row[n * t->cols + fp8_column_place(k)], expected);
    }
  Scaling on_device;
  s->be->services.read(s->be, &on_device, &cuda_of(s->be)->scalings[i], sizeof on_device);
  uint32_t found = 0;
  for (int j = 0; j < MAXIMA; j++)
    if (on_device.maxima[j] > found) found = on_device.maxima[j];
  assert_memory_equal(&found, &largest, sizeof found);
  free(W), free(wn), free(by_row), free(by_col);
  return largest;
}

// Each side chose algorithms for Newton-Schulz' products.
static void check_near(Side *a, Side *b, int i) {
  float *got = bench_read(&a->bench, a->list[i].master),
        *expected = bench_read(&b->bench, b->list[i].master);
  const Deviation d = deviation(got, expected, elements(&a->list[i]));
  printf("# weights of tensor %d by Muon: L2 %.2e (bound 2e-2)\n", i, d.l2);
  assert_true(d.l2 <= 2e-2);
  free(got), free(expected);
}

// Masters and moments are those of the side with bf16 copies, bit for bit. With bf16 gradients each
// side has dwn of its copies: then matrices of the first step are.
static void check_same_update(Rig *r, int steps) {
  for (int i = 0; i < TENSORS; i++) {
    if (!r->grads_fp32 && (is_norm(i) || steps > 1)) continue;
    const ParamTensor *a = &r->fp8.list[i], *b = &r->bf16.list[i];
    if (a->part_count > 0) {
      check_near(&r->fp8, &r->bf16, i);
      continue;
    }
    const void *const arrays[][2] = {{a->master, b->master}, {a->m, b->m}, {a->v, b->v}};
    for (int j = 0; j < 3; j++) {
      float *got = bench_read(&r->fp8.bench, arrays[j][0]),
            *expected = bench_read(&r->bf16.bench, arrays[j][1]);
      expect_same("the update", got, expected, elements(a));
      free(got), free(expected);
    }
  }
  if (!r->grads_fp32 && steps > 1) return;
  float *got = bench_read(&r->fp8.bench, r->fp8.list[TIED].compute.data),
        *expected = bench_read(&r->bf16.bench, r->bf16.list[TIED].compute.data);
  expect_same("the bf16 copy", got, expected, elements(&r->fp8.list[TIED]));
  free(got), free(expected);
}

static void check_all(int64_t D, int64_t rows, int64_t V, MomentType moments, MasterType masters,
                      bool grads_fp32, bool muon, bool zeros) {
  static const int tensors[] = {FOLDED, TIED, PLAIN};
  Rig r;
  rig_open(&r, D, rows, V, moments, masters, grads_fp32, muon);
  if (zeros) memset(r.start[PLAIN].master, 0, (size_t)(D * rows) * sizeof(float));
  side_open(&r, &r.fp8, true);
  side_open(&r, &r.bf16, false);
  float top[TENSORS] = {0}, last[TENSORS] = {0}, scales[TENSORS] = {0};
  for (int steps = 0; steps <= 3; steps++) {
    StepResult result;
    RUN_TWICE(&r.fp8.bench, result = run(&r.fp8, steps));
    bench_reset(&r.bf16.bench);
    run(&r.bf16, steps);
    check_same_update(&r, steps);
    int saturated = 0;
    for (int j = 0; j < 3; j++) {
      const int i = tensors[j];
      saturated += steps > 0 && last[i] * scales[i] > fp8_largest(FP8_E4M3);
      // The first step's scale is that of refresh, whose largest value is the first in the history.
      const float reach = fp8_weight_reach(top[i], hyper.learning_rate);
      if (steps > 0) scales[i] = fp8_scale(FP8_E4M3, reach);
      ScalingState states[SCALINGS];
      r.fp8.be->services.scalings_read(r.fp8.be, states);
      if (steps > 0) assert_true(states[i].scale == scales[i]);
      scales[i] = states[i].scale;
      last[i] = check_copies(&r.fp8, i, scales[i]);
      if (steps == 0) assert_true(scales[i] == fp8_scale(FP8_E4M3, last[i]));
      top[i] = fmaxf(top[i], last[i]);
    }
    printf("# D %lld, %d steps: scales %g %g %g, largest %g %g %g, saturated before %d\n",
           (long long)D, steps, (double)scales[FOLDED], (double)scales[TIED], (double)scales[PLAIN],
           (double)last[FOLDED], (double)last[TIED], (double)last[PLAIN], result.saturated);
    if (steps > 0) assert_int_equal(result.saturated, saturated);
  }
  rig_close(&r);
}

static void check(int64_t D, int64_t rows, int64_t V, MomentType moments, MasterType masters,
                  bool grads_fp32, bool muon) {
  check_all(D, rows, V, moments, masters, grads_fp32, muon, false);
}

TEST(weights_that_begin_as_zeros_have_a_scale) {
  check_all(128, 256, 130, MOMENTS_FP32, MASTERS_FP32, false, false, true);
  check_all(208, 336, 1003, MOMENTS_BF16, MASTERS_BF16, true, false, true);
  check_all(128, 256, 130, MOMENTS_FP32, MASTERS_FP32, true, true, true);
}

TEST(both_copies_and_scales_follow_the_update) {
  for (MomentType moments = MOMENTS_FP32; moments <= MOMENTS_BF16; moments++)
    for (MasterType masters = MASTERS_FP32; masters <= MASTERS_BF16; masters++) {
      check(16, 16, 2, moments, masters, true, false);
      check(128, 256, 130, moments, masters, false, false);
      check(208, 336, 1003, moments, masters, true, false);
    }
}

TEST(both_copies_follow_muons_update) {
  for (MasterType masters = MASTERS_FP32; masters <= MASTERS_BF16; masters++) {
    check(16, 16, 2, MOMENTS_FP32, masters, true, true);
    check(128, 256, 130, MOMENTS_BF16, masters, false, true);
    check(208, 336, 1003, MOMENTS_FP32, masters, true, true);
  }
}

// dwn of the matrix i from what its sums read, in double: the copy, or the master where `lost`.
static double norm_gradient(const Side *s, int i, const float *const *of, const uint8_t *by_row,
                            float scale, int64_t k, bool lost) {
  const ParamTensor *t = &s->list[i];
  const float *W = of[0], *wn = of[1], *dW = of[2];
  double sum = 0;
  for (int64_t n = 0; n < t->rows; n++) {
    const double copy = (double)fp8_value(FP8_E4M3, by_row[n * t->cols + fp8_column_place(k)]) /
                        (double)scale / (double)wn[k];
    sum += (double)dW[n * t->cols + k] * (lost ? (double)W[n * t->cols + k] : copy);
  }
  return sum;
}

// Where gradients are bf16; a norm weight next to nothing leaves nothing of W in the copy.
static void check_norm_gradients(MasterType masters) {
  Rig r;
  rig_open(&r, 208, 336, 1003, MOMENTS_FP32, masters, false, false);
  r.start[NORM].master[5] = r.start[TIED_NORM].master[77] = 1e-5f;
  r.start[NORM].master[6] = 0;
  side_open(&r, &r.fp8, true);
  side_open(&r, &r.bf16, false);
  Side *s = &r.fp8;
  bench_reset(&s->bench);
  run(s, 0);
  s->be->services.step_begin(s->be);
  s->be->grads_finish(s->be, s->list, TENSORS);
  ScalingState states[SCALINGS];
  s->be->services.scalings_read(s->be, states);
  for (int i = FOLDED; i <= TIED; i += TIED - FOLDED) {
    const ParamTensor *t = &s->list[i], *norm = &s->list[t->norm];
    const float *of[] = {bench_read(&s->bench, t->master), bench_read(&s->bench, norm->master),
                         bench_read(&s->bench, t->grad_folded)};
    float *got = bench_read(&s->bench, norm->grad);
    uint8_t *by_row = read_bytes(s->be, t->folded.by_row, elements(t));
    int64_t lost_columns = 0;
    double worst = 0;
    for (int64_t k = 0; k < t->cols; k++) {
      const bool lost = fabsf(of[1][k]) * states[i].scale < 1;
      const double expected = norm_gradient(s, i, of, by_row, states[i].scale, k, lost);
      worst = fmax(worst, fabs((double)got[k] - expected) / fmax(fabs(expected), 0.01));
      lost_columns += lost;
    }
    printf("# dwn of tensor %d: %.2e off (bound 5e-3), %lld columns by masters\n", i, worst,
           (long long)lost_columns);
    assert_true(worst <= 5e-3 && lost_columns > 0 && lost_columns < t->cols / 4);
    for (int j = 0; j < 3; j++) free((void *)(uintptr_t)of[j]);
    free(got), free(by_row);
  }
  rig_close(&r);
}

TEST(norm_gradients_are_of_the_copies) {
  check_norm_gradients(MASTERS_FP32);
  check_norm_gradients(MASTERS_BF16);
}

// As a step leaves it: a scale, and the largest value.
static void set_activation(Side *s, float scale, float largest) {
  Scaling *all = cuda_of(s->be)->scalings;
  const float inverse = 1 / scale;
  s->be->services.write(s->be, &all[ACTIVATION].scale, &scale, sizeof scale);
  s->be->services.write(s->be, &all[ACTIVATION].inverse, &inverse, sizeof inverse);
  s->be->services.write(s->be, &all[ACTIVATION].maxima[5], &largest, sizeof largest);
}

static void check_left_out(MasterType masters) {
  Rig r;
  rig_open(&r, 144, 48, 77, MOMENTS_FP32, masters, false, false);
  r.start[PLAIN].grad[17] = NAN;
  side_open(&r, &r.fp8, true);
  side_open(&r, &r.bf16, false);
  bench_reset(&r.fp8.bench);
  run(&r.fp8, 0);
  set_activation(&r.fp8, 4, 1e20f);
  ScalingState before[SCALINGS], states[SCALINGS];
  r.fp8.be->services.scalings_read(r.fp8.be, before);
  const StepResult skipped = step(&r.fp8);
  assert_true(!skipped.applied && skipped.saturated == 1 && skipped.saturated_first == ACTIVATION);
  assert_true(!step(&r.fp8).applied);
  r.fp8.be->services.scalings_read(r.fp8.be, states);
  assert_memory_equal(before, states, sizeof before);
  Scaling activation;
  r.fp8.be->services.read(r.fp8.be, &activation, &cuda_of(r.fp8.be)->scalings[ACTIVATION],
                          sizeof activation);
  for (int i = 0; i < MAXIMA; i++) assert_int_equal(activation.maxima[i], 0);
  for (int i = 0; i < TENSORS; i++) {
    float *W = bench_read(&r.fp8.bench, r.fp8.list[i].master);
    expect_same("master", W, r.start[i].master, elements(&r.fp8.list[i]));
    free(W);
    if (!is_norm(i)) check_copies(&r.fp8, i, states[i].scale);
  }
  rig_close(&r);
}

TEST(an_update_that_is_left_out_keeps_copies_and_scales_together) {
  check_left_out(MASTERS_FP32);
  check_left_out(MASTERS_BF16);
}

// A largest value that is not finite lowers the scale, step by step, until one is.
TEST(a_largest_value_that_is_not_finite_lowers_its_scale) {
  Rig r;
  rig_open(&r, 144, 48, 77, MOMENTS_FP32, MASTERS_FP32, false, false);
  side_open(&r, &r.fp8, true);
  side_open(&r, &r.bf16, false);
  bench_reset(&r.fp8.bench);
  run(&r.fp8, 0);
  float scale = 4;
  const float not_finite[] = {INFINITY, NAN, INFINITY};
  for (int i = 0; i < 3; i++, scale /= 16) {
    ScalingState states[SCALINGS];
    set_activation(&r.fp8, scale, not_finite[i]);
    const StepResult result = step(&r.fp8);
    assert_true(result.applied && result.saturated > 0);
    r.fp8.be->services.scalings_read(r.fp8.be, states);
    assert_true(states[ACTIVATION].scale == scale / 16);
    assert_true(states[ACTIVATION].history[0] == 16 * 448 / scale);
  }
  rig_close(&r);
}

TEST_GROUP(needs_fp8, NULL);
