#include "tests/support/small_model.h"

#include "base/rng.h"
#include "tests/support/bf16_twin.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"

enum { SEQ = 64, BATCH = SMALL_TOKENS / SEQ, VALIDATION = 1000000 };

static const AdamW adamw = {
    .learning_rate = 1e-3, .weight_decay = 0.1, .clip_norm = 1, USUAL_ADAMW};

// Low numbers are frequent.
static int32_t zipf(uint64_t key, uint64_t index, int count) {
  return (int32_t)pow(count, rng_uniform(key, index)) - 1;
}

// After a word comes one of 16, some of them more often than others.
static void make_text(uint64_t number, int32_t *tokens, int count) {
  tokens[0] = zipf(71, number, SMALL_VOCAB);
  for (int i = 1; i < count; i++) {
    const uint64_t choice = (uint64_t)zipf(1000000 + number, (uint64_t)i, 16);
    tokens[i] = zipf(1000 + (uint64_t)tokens[i - 1], choice, SMALL_VOCAB);
  }
}

static void close_backend(void *what) {
  Backend *be = what;
  be->services.destroy(be);
}

Backend *cpu_backend(Spec spec) {
  return hold(backend_cpu_create(&spec), close_backend);
}

static void close_llama(void *llama) {
  llama_destroy(llama);
  free(llama);
}

Llama *cpu_llama(const ModelConfig *model, Spec asked) {
  Error err;
  Spec spec = model_spec(model, asked);
  if (has_fp8_weights(&spec)) scalings_declare(model, &spec);
  Backend *be = cpu_backend(spec);
  free((void *)spec.scalings);
  Llama *llama = hold(xcalloc(1, sizeof *llama), close_llama);
  must(llama_create(llama, model, be, &err), &err);
  return llama;
}

static void close_small(void *what) {
  SmallModel *s = what;
  llama_destroy(&s->llama);
  s->be->services.destroy(s->be);
  free((void *)s->kinds);
  free(s);
}

SmallModel *small_open(SmallShape shape) {
  Error err = {""};
  const ModelConfig model = {MODEL_SHAPE(128, 256, 2, 4, 2, 32, SMALL_VOCAB, SEQ),
                             .tie_word_embeddings = shape.tied, .zero_init = shape.zero_init,
                             .initializer_range = 0.05};
  SmallModel *s = xcalloc(1, sizeof *s);
  s->micro_batches = shape.micro_batches > 0 ? shape.micro_batches : 1;
  const Spec asked = {
      TRAINS(BATCH / s->micro_batches, SEQ, shape.loss_chunks > 0 ? shape.loss_chunks : 1),
      .recompute = shape.recompute,
      .recompute_layers = shape.recompute_layers,
      .fp8 = shape.fp8,
      .bf16_products = shape.bf16_products,
      .threads = 1};
  Spec spec = model_spec(&model, asked);
  if (shape.fp8) scalings_declare(&model, &spec);
  s->kinds = spec.scalings;
  s->scalings = spec.scaling_count;
  s->be = backend_cpu_create(&spec);
  if (shape.bf16) bf16_twin(s->be, shape.grads_fp32);
  must(llama_create(&s->llama, &model, s->be, &err), &err);
  llama_init_weights(&s->llama, 11);
  return hold(s, close_small);
}

static void load_batch(SmallModel *s, uint64_t number, int micro) {
  const int sequences = BATCH / s->micro_batches;
  int32_t tokens[SMALL_TOKENS], targets[SMALL_TOKENS], text[SEQ + 1];
  for (int b = 0; b < sequences; b++) {
    make_text(number * BATCH + (uint64_t)(micro * sequences + b), text, SEQ + 1);
    memcpy(tokens + b * SEQ, text, SEQ * sizeof *text);
    memcpy(targets + b * SEQ, text + 1, SEQ * sizeof *text);
  }
  llama_load_batch(&s->llama, &(Batch){.tokens = tokens, .targets = targets});
}

void small_gradients(SmallModel *s, uint64_t number, double scale) {
  s->be->services.step_begin(s->be);
  for (int i = 0; i < s->micro_batches; i++) {
    load_batch(s, number, i);
    llama_forward(&s->llama);
    llama_backward(&s->llama, scale / s->micro_batches, i > 0);
  }
}

static Difference difference(const float *got, const float *want, int64_t count) {
  double diff2 = 0, got2 = 0, want2 = 0;
  for (int64_t i = 0; i < count; i++) {
    const double g = (double)got[i], w = (double)want[i];
    diff2 += (g - w) * (g - w);
    got2 += g * g;
    want2 += w * w;
  }
  return (Difference){sqrt(diff2 / want2), sqrt(got2 / want2)};
}

Difference small_compare(const SmallModel *got, const SmallModel *want) {
  Difference worst = {0, 1};
  got->be->grads_finish(got->be, got->llama.tensors, got->llama.param_count);
  want->be->grads_finish(want->be, want->llama.tensors, want->llama.param_count);
  for (int i = 0; i < got->llama.param_count; i++) {
    const ParamTensor *a = &got->llama.tensors[i], *b = &want->llama.tensors[i];
    const grad_t *const arrays[][2] = {{a->grad, b->grad}, {a->grad_folded, b->grad_folded}};
    for (int j = 0; j < 2; j++) {
      if (!arrays[j][0] || (j == 1 && arrays[1][0] == arrays[0][0])) continue;
      const Difference d =
          difference((const float *)arrays[j][0], (const float *)arrays[j][1], a->rows * a->cols);
      if (!(d.error <= worst.error)) worst.error = d.error;
      if (!(fabs(d.ratio - 1) <= fabs(worst.ratio - 1))) worst.ratio = d.ratio;
    }
  }
  return worst;
}

StepResult small_update(SmallModel *s) {
  llama_update(&s->llama, &adamw);
  return s->be->services.step_result(s->be);
}

StepResult small_train(SmallModel *s, uint64_t first, uint64_t last) {
  StepResult result = {0};
  for (uint64_t i = first; i < last; i++) {
    small_gradients(s, i, 1);
    result = small_update(s);
  }
  return result;
}

double small_validation_loss(SmallModel *s, int batches) {
  s->be->services.step_begin(s->be);
  for (int i = 0; i < batches; i++)
    for (int micro = 0; micro < s->micro_batches; micro++) {
      load_batch(s, VALIDATION + (uint64_t)i, micro);
      llama_forward(&s->llama);
      llama_loss(&s->llama, 1.0 / batches / s->micro_batches);
    }
  s->be->services.step_end(s->be);
  s->be->services.scalings_discard(s->be);
  return s->be->services.step_result(s->be).loss;
}

ScalingState *small_scalings(const SmallModel *s) {
  ScalingState *states = held(xcalloc((size_t)s->scalings, sizeof *states));
  s->be->services.scalings_read(s->be, states);
  return states;
}

void small_copy(const SmallModel *from, SmallModel *to) {
  Backend *be = to->be;
  for (int i = 0; i < to->llama.param_count; i++) {
    const ParamTensor *a = &from->llama.tensors[i], *b = &to->llama.tensors[i];
    const size_t bytes = (size_t)(a->rows * a->cols) * master_bytes(&be->spec, a);
    be->services.write(be, b->master, a->master, bytes); // from one host array to another
    be->services.write(be, b->m, a->m, bytes);
    be->services.write(be, b->v, a->v, bytes);
  }
  from->be->services.step_begin(from->be);
  from->be->services.step_end(from->be);
  be->services.set_updates(be, from->be->services.step_result(from->be).updates);
  if (from->scalings > 0 && to->scalings > 0 && !from->be->calibrating) {
    ScalingState *states = small_scalings(from);
    be->services.scalings_write(be, states);
  }
  be->services.refresh(be, to->llama.tensors, to->llama.param_count);
}

bool small_equal(const SmallModel *a, const SmallModel *b) {
  bool equal = a->scalings == b->scalings;
  for (int i = 0; i < a->llama.param_count; i++) {
    const ParamTensor *p = &a->llama.tensors[i], *q = &b->llama.tensors[i];
    const size_t bytes = (size_t)(p->rows * p->cols) * master_bytes(&a->be->spec, p);
    equal = equal && memcmp(p->master, q->master, bytes) == 0;
  }
  if (!equal) return false;
  ScalingState *of_a = small_scalings(a), *of_b = small_scalings(b);
  equal = memcmp(of_a, of_b, (size_t)a->scalings * sizeof *of_a) == 0;
  return equal;
}
