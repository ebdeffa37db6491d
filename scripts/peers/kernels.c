// Our operations and our training step as a library. scripts/peers/kernels.py loads it into
// PyTorch's process, so that both run by turns. Operations work on PyTorch's memory, in our layouts
// (kernels/ops.h). A failure inside of one ends the process with a sentence.
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "model/llama.h"
#include "model/optimizer.h"
#include "model/run/backend.h"
#if __has_include(<cuda_runtime_api.h>)
#include "kernels/cuda/cuda.h"
#endif

// ---- Operations

// Of one layer. Rows are B sequences of T.
typedef struct Sizes {
  int64_t D, F, H, KV, d, V, B, T, loss_chunks;
} Sizes;

// kernels: "cpu", "fused" or "unfused". theta: RoPE's, or 0: it turns nothing. NULL: err says why.
Backend *ours_open(const char *kernels, const Sizes *s, double theta, double eps, Error *err) {
  Spec spec = {.L = 1, .D = s->D, .F = s->F, .H = s->H, .KV = s->KV, .d = s->d, .V = s->V};
  spec.rms_norm_eps = eps;
  spec.batch = s->B, spec.seq = spec.max_positions = s->T;
  spec.max_tokens = s->B * s->T;
  spec.loss_chunks = s->loss_chunks;
  spec.train = true;
  spec.kernels = *kernels == 'f' ? KERNELS_FUSED : KERNELS_UNFUSED;
  for (int64_t j = 0; j < s->d / 2 && theta > 0; j++)
    spec.inv_freq[j] = pow(theta, -2 * (double)j / (double)s->d);
  if (*kernels == 'c') return backend_cpu_create(&spec);
  Gpu gpu;
  return gpu_find(&gpu, err) == 0 ? backend_gpu_create(&spec, &gpu, err) : NULL;
}
void ours_close(Backend *be) {
  be->services.destroy(be);
}
// A cudaStream_t; NULL on a CPU.
void *ours_stream(Backend *be) {
#if __has_include(<cuda_runtime_api.h>)
  if (be->kinds[OP_qkv] != KERNEL_CPU) return cuda_of(be)->gpu.stream;
#endif
  return NULL;
}
const char *ours_description(const Backend *be) {
  return be->description;
}
// The most parts of a row statistic: sums of squares, and the backward's sums.
int64_t ours_most_parts(const Backend *be, bool backward) {
  return backward ? be->spec.most_parts.s : be->spec.most_parts.sumsq;
}
bool ours_folds_softmax(const Backend *be) {
  return be->spec.folds_softmax;
}

void ours_qkv(Backend *be, act_t *x, const RowStat *sumsq, act_t *W, act_t *qkv) {
  be->qkv(be, batch_rows(&be->spec), be->spec.seq, 0, operand_of(x), *sumsq, operand_of(W), qkv);
}
void ours_attention(Backend *be, const act_t *qkv, act_t *o, stat_t *lse) {
  be->attention(be, be->spec.batch, be->spec.seq, qkv, operand_of(o), lse);
}
void ours_residual(Backend *be, int64_t K, act_t *a, act_t *W, const act_t *x,
                   const RowStat *x_sumsq, act_t *out, RowStat *sumsq) {
  ResidualOp *const run = K == be->spec.F ? be->down : be->out;
  run(be, batch_rows(&be->spec), K, operand_of(a), operand_of(W), x, *x_sumsq, operand_of(out),
      sumsq);
}
void ours_gate_up(Backend *be, act_t *x, const RowStat *sumsq, act_t *W, act_t *z, act_t *y) {
  be->gate_up(be, batch_rows(&be->spec), operand_of(x), *sumsq, operand_of(W), z, operand_of(y));
}
void ours_wgrad(Backend *be, int64_t N, int64_t K, act_t *dz, act_t *x, grad_t *dW) {
  be->down_wgrad(be, batch_rows(&be->spec), N, K, operand_of(dz), operand_of(x), dW, false);
}
void ours_down_dgrad(Backend *be, act_t *dx, act_t *W, const act_t *z, act_t *x,
                     const RowStat *sumsq, act_t *dz, RowStat *s) {
  be->down_dgrad(be, batch_rows(&be->spec), operand_of(dx), operand_of(W), z, operand_of(x), *sumsq,
                 operand_of(dz), s);
}
void ours_norm_dgrad(Backend *be, int64_t N, act_t *dz, act_t *W, act_t *x, const RowStat *sumsq,
                     const RowStat *s, const act_t *residual, act_t *dx) {
  NormDgradOp *const run = N == 2 * be->spec.F ? be->gate_up_dgrad : be->qkv_dgrad;
  run(be, batch_rows(&be->spec), N, operand_of(dz), operand_of(W), operand_of(x), *sumsq, *s,
      residual, operand_of(dx));
}
void ours_out_dgrad(Backend *be, act_t *dy, act_t *W, act_t *da) {
  be->out_dgrad(be, batch_rows(&be->spec), query_width(&be->spec), operand_of(dy), operand_of(W),
                da);
}
void ours_attention_backward(Backend *be, const act_t *qkv, const act_t *o, const stat_t *lse,
                             const act_t *do_, act_t *dqkv) {
  be->attention_backward(be, be->spec.batch, be->spec.seq, qkv, o, lse, do_, dqkv);
}
// dqkv in and out.
void ours_rope_backward(Backend *be, act_t *dqkv, const act_t *qkv, act_t *x, const RowStat *sumsq,
                        RowStat *s) {
  be->rope_backward(be, batch_rows(&be->spec), be->spec.seq, dqkv, qkv, operand_of(x), *sumsq,
                    operand_of(dqkv), s);
}

// The head of M rows; those of logits have padded_vocab elements. u [M] and ux [M, D] where
// ours_folds_softmax, else NULL.
typedef struct Head {
  int64_t M;
  act_t *x, *W;
  RowStat sumsq;
  const int32_t *targets;
  act_t *logits, *ux;
  stat_t *u;
  RowStat s;
  grad_t *dW;
  act_t *dx;
} Head;

static HeadGradient gradient_of(const Backend *be, const Head *h) {
  HeadGradient g = {
      .p = operand_of(h->logits), .ux = operand_of(h->ux ? h->ux : h->x), .u = h->u, .s = h->s};
  g.p.row_stride = padded_vocab(&be->spec);
  return g;
}
// The loss' gradient in the logits: p in `logits`, times u.
void ours_head_loss(Backend *be, Head *h) {
  HeadGradient g = gradient_of(be, h);
  be->head_loss(be, h->M, operand_of(h->x), h->sumsq, operand_of(h->W), h->targets, h->logits,
                1 / (double)h->M, &g);
  h->s = g.s;
}
// After it: dW and dx.
void ours_head_backward(Backend *be, const Head *h) {
  const HeadGradient g = gradient_of(be, h);
  be->lm_head_wgrad(be, h->M, be->spec.V, be->spec.D, g.p, g.ux, NULL, false, h->dW);
  be->lm_head_dgrad(be, h->M, &g, operand_of(h->W), operand_of(h->x), h->sumsq, operand_of(h->dx));
}
// The mean loss of a validation.
double ours_loss(Backend *be, const Head *h) {
  be->services.step_begin(be);
  be->validation_loss(be, h->M, operand_of(h->x), h->sumsq, operand_of(h->W), h->targets, h->logits,
                      1 / (double)h->M, NULL);
  be->services.step_end(be);
  return be->services.step_result(be).loss;
}

// ---- Training steps

typedef struct Training {
  Config config;
  Backend *be;
  Llama llama;
  int64_t step;
  int unread;
} Training;

void ours_training_close(Training *t) {
  llama_destroy(&t->llama);
  if (t->be) t->be->services.destroy(t->be);
  free(t);
}
// As ./train CONFIG section.key=value ..., with random weights and without samples. NULL: err says
// why.
Training *ours_training_open(const char *config, int count, char *const *overrides, Error *err) {
  Training *t = xcalloc(1, sizeof *t);
  Hardware hardware;
  if (config_load(&t->config, config, count, overrides, err) == 0 &&
      hardware_find(&hardware, &t->config, err) == 0) {
    Spec asked = run_spec(&t->config);
    asked.context = 0;
    const Spec spec = spec_resolve(&t->config, asked, &hardware);
    t->be = backend_open(&t->config, &spec, &hardware, err);
  }
  if (t->be && llama_create(&t->llama, &t->config.model, t->be, err) == 0) {
    llama_init_weights(&t->llama, t->config.train.seed);
    return t;
  }
  ours_training_close(t);
  return NULL;
}
Backend *ours_training_backend(const Training *t) {
  return t->be;
}
// Forward and backward of a micro-batch.   tokens [2, B, T] on the host: tokens, and their targets
void ours_passes(Training *t, int32_t *tokens) {
  const int64_t M = batch_rows(&t->llama.spec);
  llama_load_batch(&t->llama, &(Batch){.tokens = tokens, .targets = tokens + M, .counted = M});
  llama_forward(&t->llama);
  llama_backward(&t->llama, 1, false);
}
// A step, or with tokens NULL none: then it waits for the last. The loss of the step whose result
// was read last, NAN where none was.
double ours_step(Training *t, int32_t *tokens) {
  double loss = NAN;
  if (tokens) {
    const AdamW hyper = adamw_at(&t->config.optimizer, t->step, t->config.train.steps);
    ours_passes(t, tokens);
    llama_update(&t->llama, &hyper);
    t->step++, t->unread++;
  }
  for (; t->unread > (tokens ? t->be->steps_ahead : 0); t->unread--)
    loss = t->be->services.step_result(t->be).loss;
  return loss;
}
