// The work of operations, by the rows of kernels/ops.def.
#include "kernels/ops.h"

_Static_assert(OPERATION_COUNT <= 8 * sizeof(OperationSet), "a bit for each operation");

// Bytes of one element of an operand, in all its forms.
static double copies_bytes(const Spec *spec, const Operand *x) {
  return (double)((x->data ? act_bytes(spec) : 0) + (x->by_row ? fp8_bytes(spec) : 0) +
                  (x->by_col ? fp8_bytes(spec) : 0));
}

// Of Newton-Schulz on the parts of a tensor; of symmetric products one half.
static double newton_schulz_flops(const ParamTensor *t) {
  double sum = 0;
  for (int i = 0; i < t->part_count; i++) {
    const double rows = (double)t->parts[i].rows, cols = (double)t->cols,
                 n = rows < cols ? rows : cols, all = rows * cols;
    sum += MUON_STEPS * (n * all + n * n * n + 2 * n * all);
  }
  return sum;
}

// A compute weight that is the master itself is read and written as the master.
static double compute_bytes(const Spec *spec, const ParamTensor *t) {
  const bool own = (const void *)t->compute.data != (const void *)t->master;
  return own ? copies_bytes(spec, &t->compute) : 0;
}

// Bytes of an element of a parameter that a pass of the update reads and writes. Muon's: those
// around Newton-Schulz' products.
static double update_bytes(const Spec *spec, const ParamTensor *t, Operation pass) {
  const int gradients = (t->grad != NULL) + (t->grad_folded != NULL);
  const double grad = (double)grad_bytes(spec) * gradients, master = (double)master_bytes(spec, t),
               moments = (double)moment_bytes(spec) * ((t->m != NULL) + (t->v != NULL)),
               direction = (double)act_bytes(spec),
               copies = compute_bytes(spec, t) + copies_bytes(spec, &t->folded);
  const bool by_muon = t->part_count > 0;
  if (pass == OP_muon) return by_muon ? grad + 2 * moments + direction : 0;
  if (pass == OP_adamw) return 2 * master + copies + (by_muon ? direction : grad + 2 * moments);
  if (t->norm < 0) return grad;
  // W, or its folded copy where that is no coarser than the gradient
  return grad + (t->folded.data && act_bytes(spec) == grad_bytes(spec) ? direction : master);
}

static double sum_of_bytes(const Spec *spec, const ParamTensor *list, int count, Operation pass) {
  double sum = 0;
  for (const ParamTensor *t = list; t < list + count; t++)
    sum += (double)(t->rows * t->cols) * update_bytes(spec, t, pass);
  return sum;
}

static double sum_of_flops(const ParamTensor *list, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += newton_schulz_flops(&list[i]);
  return sum;
}

#define GEMM(of_form, m, n, k)                                                                     \
  .kind = CLASS_GEMM, .form = GEMM_##of_form, .M = (m), .N = (n), .K = (k),                        \
  .flops = 2 * (double)(m) * (double)(n) * (double)(k)
// Causal: half of the scores.
#define ATTENTION(gemms) .kind = CLASS_ATTENTION, .flops = (gemms) * (double)(M * Hd) * (double)T
#define PASS(m, n, moved) .kind = CLASS_MEMORY, .M = (m), .N = (n), .bytes = (double)(moved)
#define MEMORY(m, n, moved) PASS(m, n, moved), .floor_bytes = (double)(moved)

OperationWork operation_work(const Spec *o, const ParamTensor *list, int count,
                             Operation operation) {
  const int64_t M = o->max_tokens, D = o->D, F = o->F, V = o->V, Hd = query_width(o),
                R = packed_width(o), padded_V = padded_vocab(o), T = o->seq, rows = chunk_rows(o),
                act = (int64_t)act_bytes(o), grad = (int64_t)grad_bytes(o),
                fp8 = (int64_t)fp8_bytes(o);
  const double finish_bytes = sum_of_bytes(o, list, count, OP_grads_finish),
               muon_bytes = sum_of_bytes(o, list, count, OP_muon),
               adamw_bytes = sum_of_bytes(o, list, count, OP_adamw),
               muon_flops = sum_of_flops(list, count);
#define OP(name, type, function, program, fp8_program, ...) [OP_##name] = {__VA_ARGS__},
  const OperationWork all[OPERATION_COUNT] = {
#include "kernels/ops.def"
  };
#undef OP
  return all[operation];
}
