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
                      range ? " right"
                      : i   ? " second"
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

// ---- Running

static inline void launch(const Rig *r, TileShape tile) {
  fused_launch(&r->open, tile, &r->call, r->stream);
  CUDA_CHECK(cudaStreamSynchronize(r->stream));
}

// Without statistics out: the same tiles.
static inline void expect_same_without_out(Rig *r, TileShape tile, const float *got) {
  const RowStat out = r->call.args.out[0];
  r->call.args.out[0] = (RowStat){.data = NULL};
  RUN_TWICE(&r->b, launch(r, tile));
  float *alone = bench_read(&r->b, r->call.stores[0].data);
  expect_same("tiles without the statistic", alone, got, r->s.M * r->store_cols[0]);
  free(alone);
  r->call.args.out[0] = out;
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

static inline void check_tile(Rig *r, TileShape tile) {
  float *got[MAX_TILES] = {NULL};
  for (int i = 0; i < 2; i++) // as many parts as tiles, one and two more
    r->call.args.out[i].parts = tile_parts(tile, r->s.N) + (int32_t)tile;
  RUN_TWICE(&r->b, launch(r, tile));
  for (int i = 0; i < MAX_TILES; i++) {
    if (r->store_cols[i] == 0) continue;
    got[i] = bench_read(&r->b, r->call.stores[i].data);
    expect_store(r, tile, i, got[i]);
  }
  run_formula(r, STORED, got);
  for (int i = 0; i < 2; i++) {
    if (r->c->out[i] == NO_STATISTIC) continue;
    float *parts = bench_read(&r->b, r->call.args.out[i].data);
    if (r->c->out[i] == ROW_SOFTMAX)
      expect_softmax(r, tile, parts);
    else
      expect_parts(r, tile, i, parts);
    free(parts);
  }
  if (r->c->without_out) expect_same_without_out(r, tile, got[0]);
  if (r->c->in_place_of) expect_same_apart(r, tile, got[0]);
  for (int i = 0; i < MAX_TILES; i++) free(got[i]);
}

// A case in one shape, in every tile shape. `user` is for its formula.
static inline void check_case(Machine *m, const Case *c, Shape s, const void *user) {
  Rig r;
  rig_open(&r, m, c, s, user);
  for (int tile = 0; tile < TILE_SHAPES; tile++) check_tile(&r, (TileShape)tile);
  rig_close(&r);
}
