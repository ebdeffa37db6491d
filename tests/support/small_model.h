// A LLaMA that is wide enough for statistics like those of real ones, on the CPU backend, in fp32
// or FP8, and a language for it to learn. A failure of any function fails the test.
#pragma once
#include "model/llama.h"
#include "model/tensors.h"

// The CPU backend, and a model on it, whose weights are for the caller to draw. The test holds
// them.
Backend *cpu_backend(Spec spec);
Llama *cpu_llama(const ModelConfig *model, Spec asked);

enum { SMALL_TOKENS = 512, SMALL_VOCAB = 509 };

typedef struct SmallModel {
  Backend *be;
  Llama llama;
  const ScalingKind *kinds; // [scalings]
  int scalings;             // scaling_count in FP8, else 0
  int micro_batches;
} SmallModel;

// What may differ between two of them.
typedef struct SmallShape {
  bool fp8;
  Recompute recompute;
  int64_t recompute_layers; // as in Spec
  bool tied, zero_init;
  int loss_chunks, micro_batches; // 0: 1; micro-batches share SMALL_TOKENS
  bool bf16, grads_fp32;          // rounded as on a GPU (bf16_twin.h); but for the gradients
  bool bf16_products;             // by oneDNN
} SmallShape;

// hidden 128, ffn 256, 2 layers, heads 4 of 32, kv heads 2. Random weights, the same for all. The
// test holds it.
SmallModel *small_open(SmallShape shape);

// Loss and gradients of batch `number` of the language, times `scale`, before grads_finish.
void small_gradients(SmallModel *s, uint64_t number, double scale);
// The worst over all gradients, those of the norm weights included, of each: it calls grads_finish.
typedef struct Difference {
  double error, ratio; // |got - want| / |want|, |got| / |want|
} Difference;
Difference small_compare(const SmallModel *got, const SmallModel *want);
StepResult small_update(SmallModel *s);
// Steps first .. last - 1, on the batches of these numbers. Returns the last one's result.
StepResult small_train(SmallModel *s, uint64_t first, uint64_t last);
// The mean loss over batches that are never trained on; the scales are left as they are.
double small_validation_loss(SmallModel *s, int batches);

// Weights, moments, updates and scales of one become those of the other.
void small_copy(const SmallModel *from, SmallModel *to);
// Whether weights and scales are equal, bit for bit.
bool small_equal(const SmallModel *a, const SmallModel *b);
// [scalings], which the test holds.
ScalingState *small_scalings(const SmallModel *s);
