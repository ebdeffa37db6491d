// Runs a Case in every tile shape, twice for equal bits, with poison in and around what is written,
// and compares what it left with the formula.
#pragma once
#include "tests/gpu/program_case.h"

// ---- Comparing

typedef struct Label {
  char text[80];
} Label;

static inline Label label(const Rig *r, TileShape tile, const char *what) {
  const ProgramKernel *k = &r->c->program->kernels[tile];
  Label l;
  snprintf(l.text, sizeof l.text, "%s%s %dx%d, %lldx%lldx%lld", r->c->program->name, what,
           (int)k->rows, (int)k->cols, (long long)r->s.M, (long long)r->s.N, (long long)r->s.K);
  return l;
}

static inline void expect_unwritten(const char *what, const float *values, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    if (bits != 0xffffffffu) fail_msg("%s: element %lld was written", what, (long long)i);
  }
}

// Columns first to end - 1 of [M, cols], in fresh memory.
static inline float *columns_of(const float *x, int64_t M, int64_t cols, int64_t first,
                                int64_t end) {
  float *part = floats(M * (end - first));
  for (int64_t m = 0; m < M; m++)
    memcpy(part + m * (end - first), x + m * cols + first, (size_t)(end - first) * sizeof *part);
  return part;
}

static inline void expect_store(const Rig *r, TileShape tile, int i, const float *got) {
  const int64_t M = r->s.M, cols = r->store_cols[i], split = i == 0 && r->split ? r->split : cols;
  const int64_t ends[] = {0, split, cols};
  for (int range = 0; range < 2; range++) {
    const int64_t first = ends[range], end = ends[range + 1];
    if (first == end) continue;
    float *x = columns_of(got, M, cols, first, end),
          *twin = columns_of(r->twin[i], M, cols, first, end),
          *reference = columns_of(r->reference[i], M, cols, first, end);
    expect_near(label(r, tile,
                      range         ? " right"
                      : i == COPIED ? " copies"
                      : i           ? " second"
                                    : "")
                    .text,
                x, twin, reference, M * (end - first), 1e-6);
    free(x), free(twin), free(reference);
  }
}

// Parts of sums or maxima, against the terms of the tile's columns.
static inline void expect_parts(const Rig *r, TileShape tile, int which, const float *got) {
  const RowStat *p = &r->call.args.out[which];
  const int64_t M = r->s.M, N = r->s.N, cols = r->c->program->kernels[tile].cols;
  const int64_t tiles = (N + cols - 1) / cols;
  const bool max = r->c->out[which] == ROW_MAX;
  const float neutral = max ? -INFINITY : 0;
  float *expected = floats(tiles * M), *parts = floats(tiles * M), *beyond = floats(M);
#pragma omp parallel for
  for (int64_t m = 0; m < M; m++)
    for (int64_t t = 0; t < tiles; t++) {
      double all = (double)neutral;
      for (int64_t n = t * cols; n < N && n < (t + 1) * cols; n++) {
        const double term = (double)r->terms[which][m * N + n];
        all = max ? fmax(all, term) : all + term;
      }
      expected[t * M + m] = (float)all;
      parts[t * M + m] = got[t * p->stride + m];
    }
  const Label what = label(r, tile, which ? " second statistic" : " statistic");
  if (max)
    expect_same(what.text, parts, expected, tiles * M);
  else
    expect_near(what.text, parts, expected, expected, tiles * M,
                r->c->out_floor ? r->c->out_floor : 1e-6);
  for (int64_t m = 0; m < M; m++) beyond[m] = neutral;
  for (int64_t t = tiles; t < p->parts; t++)
    expect_same("part beyond the tiles", got + t * p->stride, beyond, M);
  for (int64_t t = 0; t < p->parts; t++)
    expect_unwritten("between parts", got + t * p->stride + M, p->stride - M);
  expect_unwritten("beyond the parts", got + p->parts * p->stride,
                   r->out_elements - p->parts * p->stride);
  free(expected), free(parts), free(beyond);
}

// Each part against the terms of the tile's columns, and all of a row's against its log-sum-exp.
static inline void expect_softmax(const Rig *r, TileShape tile, const float *got) {
  const int64_t M = r->s.M, N = r->s.N, cols = r->c->program->kernels[tile].cols;
  const int64_t tiles = (N + cols - 1) / cols, stride = r->call.args.out[0].stride;
  const MaxSum *parts = (const MaxSum *)(const void *)got;
  float *max = floats(tiles * M), *got_max = floats(tiles * M), *sum = floats(tiles * M),
        *got_sum = floats(tiles * M), *lse = floats(M), *got_lse = floats(M);
#pragma omp parallel for
  for (int64_t m = 0; m < M; m++) {
    const float *row = r->terms[0] + m * N;
    double top = -INFINITY, whole = 0, combined = 0;
    for (int64_t n = 0; n < N; n++) top = fmax(top, (double)row[n]);
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t i = t * M + m, end = (t + 1) * cols < N ? (t + 1) * cols : N;
      const MaxSum part = parts[t * stride + m];
      double tile_sum = 0;
      max[i] = -INFINITY;
      for (int64_t n = t * cols; n < end; n++) max[i] = fmaxf(max[i], row[n]);
      for (int64_t n = t * cols; n < end; n++) tile_sum += exp((double)row[n] - (double)max[i]);
      sum[i] = (float)tile_sum;
      got_max[i] = part.max;
      got_sum[i] = part.sum;
      whole += tile_sum * exp((double)max[i] - top);
      combined += (double)part.sum * exp((double)part.max - top);
    }
    lse[m] = (float)(top + log(whole));
    got_lse[m] = (float)(top + log(combined));
  }
  expect_same(label(r, tile, " max").text, got_max, max, tiles * M);
  expect_near(label(r, tile, " sum").text, got_sum, sum, sum, tiles * M, 1e-6);
  expect_near(label(r, tile, " lse").text, got_lse, lse, lse, M, 1e-6);
  for (int64_t t = 0; t < tiles; t++)
    expect_unwritten("between parts", &parts[t * stride + M].max, 2 * (stride - M));
  expect_unwritten("beyond the parts", &parts[tiles * stride].max,
                   r->out_elements - 2 * tiles * stride);
  free(max), free(got_max), free(sum), free(got_sum), free(lse), free(got_lse);
}

// ---- FP8 copies

// Their values by rows [M, cols]; those by columns have the same bits, and zeros past M.
static inline float *copies_read(const Rig *r) {
  const Matrix by_row = r->call.copies[0], by_col = r->call.copies[1];
  const int64_t M = by_row.rows, cols = by_row.cols, stride = r->call.by_col_stride;
  uint8_t *rows = xmalloc((size_t)(M * cols)), *columns = xmalloc((size_t)(cols * stride));
  memory_read(r->b.be, rows, by_row.data, (size_t)(M * cols));
  memory_read(r->b.be, columns, by_col.data, (size_t)(cols * stride));
  float *values = floats(M * cols);
  for (int64_t n = 0; n < cols; n++)
    for (int64_t m = 0; m < stride; m++) {
      const uint8_t across = columns[n * stride + (m < by_col.cols ? fp8_row_place(m) : m)],
                    bits = m < M             ? rows[m * cols + fp8_column_place(n)]
                           : m < by_col.cols ? across & 0x80 // a zero of either sign
                                             : 0xff;
      if (across != bits)
        fail_msg("element %lld, %lld: %02x by columns, %02x by rows", (long long)m, (long long)n,
                 across, bits);
      if (m < M) values[m * cols + n] = fp8_value(FP8_E4M3, bits) / copy_scale_of(r->c);
    }
  free(rows), free(columns);
  return values;
}

// Of the Scaling nothing but maxima changes, and the largest of them is the tensor's.
static inline void expect_largest(const Rig *r) {
  Scaling s;
  memory_read(r->b.be, &s, r->call.args.copies, sizeof s);
  float got = 0, expected = 0;
  for (int i = 0; i < MAXIMA; i++) {
    float value;
    memcpy(&value, &s.maxima[i], sizeof value);
    got = fmaxf(got, value);
  }
  for (int64_t m = 0; m < r->s.M; m++) expected = fmaxf(expected, r->largest[m]);
  const double error = fabs((double)(got - expected)) / (double)expected,
               bound = r->c->copies_of_store ? 0 : r->c->largest_error;
  printf("#   the largest value: %.2e off (bound %.2e)\n", error, bound);
  if (!(error <= bound)) fail_msg("it is %.9g, not %.9g", (double)got, (double)expected);
  assert_true(s.scale == copy_scale_of(r->c) && s.format == FP8_E4M3);
}

// q of the rows that were stored, which the formula takes from now on.
static inline void row_scales_read(Rig *r) {
  memory_read(r->b.be, r->q, r->call.args.row_scale_out, (size_t)r->s.M * sizeof *r->q);
  for (int64_t m = 0; m < r->s.M; m++) {
    const double rstd = 1 / sqrt(r->in[0][m] / (double)r->s.K + (double)eps), q = (double)r->q[m];
    if ((double)power_of_two_below(r->q[m]) != q || rstd / q < 1 - 1e-6 || rstd / q > 2 + 1e-6)
      fail_msg("row %lld: q is %g where r is %g", (long long)m, q, rstd);
  }
}

// ---- Running

static inline void launch(const Rig *r, TileShape tile) {
  fused_launch(&r->open, tile, &r->call, r->stream);
  CUDA_CHECK(cudaStreamSynchronize(r->stream));
}

// stores[0] in memory of its own: the same tiles, and the load left alone.
static inline void expect_same_apart(Rig *r, TileShape tile, const float *got) {
  const int load = r->c->in_place_of - 1;
  const Matrix in_place = r->call.stores[0];
  Bench other = {.be = r->b.be};
  r->call.stores[0] = matrix_out(&other, r->s.M, r->store_cols[0]);
  bench_reset(&r->b);
  RUN_TWICE(&other, launch(r, tile));
  float *apart = bench_read(&other, r->call.stores[0].data),
        *after = bench_read(&r->b, r->call.loads[load].data);
  expect_same("tiles apart", apart, got, r->s.M * r->store_cols[0]);
  expect_same("what was loaded", after, r->loads[load], r->s.M * r->load_cols[load]);
  free(apart), free(after);
  bench_free(&other);
  r->call.stores[0] = in_place;
}

// Without the copy by columns, and without both: the other, and the tiles, as they were.
static inline void expect_same_without_copies(Rig *r, TileShape tile, const float *got) {
  const Matrix copies[2] = {r->call.copies[0], r->call.copies[1]};
  Scaling *scaling = r->call.args.copies;
  float *row_scale_out = r->call.args.row_scale_out;
  const size_t bytes = (size_t)(copies[0].rows * copies[0].cols);
  uint8_t *before = xmalloc(bytes), *after = xmalloc(bytes);
  memory_read(r->b.be, before, copies[0].data, bytes);
  for (int left_out = 1; left_out >= 0; left_out--) {
    r->call.copies[left_out].data = NULL;
    if (left_out == 0) r->call.args.copies = NULL, r->call.args.row_scale_out = NULL;
    RUN_TWICE(&r->b, launch(r, tile));
    memory_read(r->b.be, after, copies[0].data, bytes);
    if (left_out == 0) memset(before, 0xff, bytes);
    assert_memory_equal(before, after, bytes);
    if (!r->store_cols[0]) continue;
    float *alone = bench_read(&r->b, r->call.stores[0].data);
    expect_same("tiles without copies", alone, got, r->s.M * r->store_cols[0]);
    free(alone);
  }
  r->call.copies[0] = copies[0], r->call.copies[1] = copies[1];
  r->call.args.copies = scaling, r->call.args.row_scale_out = row_scale_out;
  free(before), free(after);
}

static inline void check_tile(Rig *r, TileShape tile) {
  float *got[STORES] = {NULL}, *copies = NULL;
  for (int i = 0; i < 2; i++) // as many parts as tiles, one and two more
    r->call.args.out[i].parts = tile_parts(tile, r->s.N) + (int32_t)tile;
  RUN_TWICE(&r->b, launch(r, tile));
  for (int i = 0; i < MAX_TILES; i++) {
    if (r->store_cols[i] == 0) continue;
    got[i] = bench_read(&r->b, r->call.stores[i].data);
    expect_store(r, tile, i, got[i]);
  }
  if (r->store_cols[COPIED]) {
    copies = copies_read(r);
    expect_store(r, tile, COPIED, copies);
    got[COPIED] = floats(r->s.M * r->store_cols[COPIED]);
  }
  if (r->c->row_scale_out) row_scales_read(r);
  run_formula(r, STORED, got);
  if (copies) expect_largest(r);
  if (r->c->copies_of_store)
    expect_same("copies", copies, got[COPIED], r->s.M * r->store_cols[COPIED]);
  for (int i = 0; i < 2; i++) {
    if (r->c->out[i] == NO_STATISTIC) continue;
    float *parts = bench_read(&r->b, r->call.args.out[i].data);
    if (r->c->out[i] == ROW_SOFTMAX)
      expect_softmax(r, tile, parts);
    else
      expect_parts(r, tile, i, parts);
    free(parts);
  }
  if (copies && r->s.M * r->s.N < 1 << 20) expect_same_without_copies(r, tile, got[0]);
  if (r->c->in_place_of) expect_same_apart(r, tile, got[0]);
  for (int i = 0; i < STORES; i++) free(got[i]);
  free(copies);
}

// A case in one shape, in every tile shape. `user` is for its formula.
static inline void check_case(Machine *m, const Case *c, Shape s, const void *user) {
  Rig r;
  rig_open(&r, m, c, s, user);
  for (int tile = 0; tile < TILE_SHAPES; tile++)
    if (fused_runs_in(&r.open, tile)) check_tile(&r, (TileShape)tile);
  rig_close(&r);
}
