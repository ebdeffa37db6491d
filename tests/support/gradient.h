// The gradient of the loss with respect to a parameter, as AdamW forms it.
#pragma once
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/ops.h"

// Gradients, or with `of` its master, in fresh memory: fp64 where the backend has them so.
static inline double *exact_values(Backend *be, const void *from, int64_t count,
                                   const ParamTensor *of) {
  double *values = xmalloc((size_t)count * sizeof *values);
  if (stat_bytes(&be->spec) == sizeof *values) {
    be->services.read(be, values, from, (size_t)count * sizeof *values);
    return values;
  }
  float *read = xmalloc((size_t)count * sizeof *read);
  if (of)
    be->services.read_master(be, read, of, 0, count);
  else
    be->services.read_grad(be, read, from, count);
  for (int64_t i = 0; i < count; i++) values[i] = (double)read[i];
  free(read);
  return values;
}

// dW of list[index] [rows, cols], in fresh memory. To be called between grads_finish and adamw.
static inline double *true_gradient(Backend *be, const ParamTensor *list, int index) {
  const ParamTensor *t = &list[index];
  const int64_t count = t->rows * t->cols;
  double *dW = t->grad ? exact_values(be, t->grad, count, NULL) : NULL;
  if (t->norm < 0) return dW;
  double *folded = exact_values(be, t->grad_folded, count, NULL),
         *wn = exact_values(be, list[t->norm].master, t->cols, &list[t->norm]);
  for (int64_t i = 0; i < count; i++) folded[i] = folded[i] * wn[i % t->cols] + (dW ? dW[i] : 0);
  free(wn);
  free(dW);
  return folded;
}
