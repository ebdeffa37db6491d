// How long a step may take, by count.
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/ops.h"
#include "model/run/backend.h"

// What a step's parts cost, fitted on one H200 to steps of 15M, 110M, 350M and 1B (d223b7fb: bf16
// 8.2, 47.0, 154.7 and 468.5 ms, FP8 7.75, 34.2, 112 and 313), which they give to within 3 %.
// Cards before and after Hopper multiply far fewer numbers for each byte, so their products come
// nearer to the data sheet: for them it is an assumption.
typedef struct Costs {
  double products[2]; // bf16, FP8: times the data sheet's
  double attention;   // likewise, in bf16
  double moved[2];    // bytes through memory for each number of an activation
} Costs;
static const Costs hopper = {{1.36, 1.18}, 2.7, {9.6, 14.1}}, other = {{1.2, 1.2}, 2, {9.6, 14.1}};
static const double of_bandwidth = 0.85, bus = 20e9; // the update's; bytes/s each way, to the host

static double muon_flops(const Config *c, const Spec *s) {
  if (!s->muon) return 0;
  const int count = params_count(&c->model);
  ParamTensor *list = xcalloc((size_t)count, sizeof *list);
  params_table(&c->model, true, list);
  const double flops = operation_work(s, list, count, OP_muon).flops;
  free(list);
  return flops;
}

// The passes over layers' matrices that a backward repeats.
static double recomputed_flops(const Spec *s, double tokens) {
  const double D = (double)s->D, gate_up = 2 * D * (double)s->F,
               layer = gate_up * 1.5 + D * (double)(packed_width(s) + query_width(s)),
               again = s->recompute == RECOMPUTE_LAYER ? layer : gate_up;
  return 2 * tokens * again * (double)recomputed_layers(s);
}

double step_estimate_ms(const Config *c, const Spec *s, const Gpu *gpu, size_t host_bytes) {
  const Costs *costs = gpu->major == 9 ? &hopper : &other;
  const double tokens = (double)tokens_per_step(c),
               rate = s->fp8 ? gpu->rates.fp8 : gpu->rates.bf16, memory = gpu->rates.memory;
  if (!(rate > 0)) return NAN;
  const double products = model_step_flops(&c->model, tokens, 0),
               // the backward multiplies five times where the model's FLOPs count four
      attention = (flops_per_step(c) - products) * 7 / 6,
               width = (double)s->L * (double)(6 * s->D + 3 * s->F) + (double)s->V,
               states =
                   (double)(2 * wide_or_bf16(s, s->masters == MASTERS_BF16) +
                            (s->muon ? 2 : 4) * moment_bytes(s) + 2 * grad_bytes(s) + act_bytes(s));
  const double seconds =
      costs->products[0] * muon_flops(c, s) / gpu->rates.bf16 +
      costs->products[s->fp8] * (products + recomputed_flops(s, tokens)) / rate +
      costs->attention * attention / gpu->rates.bf16 +
      costs->moved[s->fp8] * tokens * width / memory +
      states * (double)model_parameters(&c->model, true) / (of_bandwidth * memory) +
      (double)host_bytes / bus;
  return 1e3 * seconds;
}
