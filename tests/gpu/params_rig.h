// Lists of parameters for the tests of the update: on any backend, each array as wide as it is
// there, and with what the arrays begin with.
#pragma once
#include "kernels/cuda/cuda.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/shapes.h"

enum { MOST_PARAMS = 10 };

// What a tensor's arrays begin with. The gradients of norm weights are written, not added to.
typedef struct Start {
  float *master, *m, *v, *grad, *grad_folded;
} Start;

typedef struct Side {
  Backend *be;
  Bench bench;
  ParamTensor list[MOST_PARAMS];
} Side;

static inline int64_t elements(const ParamTensor *t) {
  return t->rows * t->cols;
}

static inline float *named(int64_t n, double scale, const char *what, int tensor) {
  char name[32];
  snprintf(name, sizeof name, "%s %d", what, tensor);
  return random_bf16(n, scale, name);
}

static inline Spec params_spec(int64_t D, int64_t V, MomentType moments, MasterType masters) {
  return (Spec){SPEC_SHAPE(D, 16, 1, 1, 16, V, 64, 64),
                .rms_norm_eps = 1e-5f,
                .moments = moments,
                .masters = masters,
                .inv_freq = {1},
                .kernels = KERNELS_UNFUSED,
                .train = true};
}

// What products read of tensor i: in FP8 copies, whose scaling is i.
static inline Operand copies_of(Bench *b, const ParamTensor *t, int i, bool fp8) {
  if (!fp8) return operand_of(act_buffer(b, elements(t), NULL));
  const int64_t stride = fp8_padded(t->rows) + FP8_GROUP;
  return (Operand){.by_row = buffer_new(b, elements(t), 1, NULL)->data,
                   .by_col = buffer_new(b, t->cols * stride, 1, NULL)->data,
                   .stride = stride,
                   .scaling = i,
                   .fp8 = true};
}

// Of list[i] there are the sizes, norm, vector and parts; `tied` is used plain, too, in bf16 also
// beside copies.
static inline void params_new(Side *s, int count, int tied, const Start *start, bool fp8) {
  Bench *b = &s->bench;
  b->be = s->be;
  for (int i = 0; i < count; i++) {
    ParamTensor *t = &s->list[i];
    const int64_t n = elements(t);
    const bool folded = t->norm >= 0, plain = !t->vector && (!folded || i == tied);
    t->master = buffer_of(b, master_bytes(&s->be->spec, t), n, start[i].master);
    t->m = buffer_of(b, moment_bytes(&s->be->spec), n, start[i].m);
    if (t->part_count == 0) t->v = buffer_of(b, moment_bytes(&s->be->spec), n, start[i].v);
    if (t->vector || plain) t->grad = grad_buffer(b, n, t->vector ? NULL : start[i].grad);
    if (folded) t->grad_folded = grad_buffer(b, n, start[i].grad_folded);
    if (folded) t->folded = copies_of(b, t, i, fp8);
    if (plain && (!fp8 || i == tied) && computes_with_masters(&s->be->spec))
      t->compute = operand_of((act_t *)t->master);
    else if (plain)
      t->compute = copies_of(b, t, i, fp8 && i != tied);
  }
  bench_reset(b);
}
