#include "model/spec.h"

#include <assert.h>
#include <math.h>

#include "base/minmax.h"
#include "kernels/bf16_products.h"
#include "model/tensors.h"

int64_t tokens_per_step(const Config *c) {
  return c->train.batch_size * c->train.sequence_length * c->train.gradient_accumulation;
}

double flops_per_step(const Config *c) {
  const double tokens = (double)tokens_per_step(c);
  return model_step_flops(&c->model, tokens, tokens * (double)c->train.sequence_length);
}

// The tokens that a sample feeds: the one that it starts from, and all that follow but the last.
static int64_t sample_context(const TrainConfig *t) {
  return t->sample_interval < 0 ? 0 : min_i64(t->sample_tokens, t->sequence_length);
}

int context_halvings(const TrainConfig *t) {
  int n = 0;
  int64_t context = t->sequence_length;
  for (; n < MOST_HALVINGS && context % 2 == 0 && context / 2 >= t->first_context; n++)
    context /= 2;
  return t->first_context > 0 ? n : 0;
}

int64_t context_steps(const TrainConfig *t) {
  const int64_t warmup = min_i64(t->context_warmup, t->steps / 4 * 3), n = context_halvings(t);
  return n > 0 ? warmup / n : 0;
}

int64_t context_at(const TrainConfig *t, int64_t step) {
  const int64_t n = context_halvings(t), each = context_steps(t);
  return t->sequence_length >> (each > 0 && step / each < n ? n - step / each : 0);
}

Spec run_spec(const Config *c) {
  return (Spec){.batch = c->train.batch_size,
                .seq = c->train.sequence_length,
                .halvings = context_halvings(&c->train),
                .loss_chunks = c->train.loss_chunks,
                .recompute = c->train.recompute,
                .recompute_layers = c->train.recompute_layers,
                .train = true,
                .scores = c->train.score[0] != '\0',
                .context = sample_context(&c->train),
                .fp8 = c->backend.precision == PRECISION_FP8,
                .muon = c->optimizer.kind == OPTIMIZER_MUON};
}

// ---- The model

// RoPE's angle per position of pair j, as HF transformers' modeling_rope_utils.py has it. linear
// divides all frequencies by factor. llama3, LLaMA-3.1's own, divides frequencies whose wavelength
// is longer than original / low_freq_factor, keeps frequencies whose wavelength is shorter than
// original / high_freq_factor, and blends between the two, linearly in original / wavelength.
static double rope_frequency(const ModelConfig *c, int64_t j) {
  const double frequency = pow(c->rope_theta, -2.0 * (double)j / (double)c->head_dim);
  if (c->rope_scaling.type == ROPE_DEFAULT) return frequency;
  if (c->rope_scaling.type == ROPE_LINEAR) return frequency / c->rope_scaling.factor;
  const double original = (double)c->rope_scaling.original_max_position_embeddings;
  const double low = c->rope_scaling.low_freq_factor, high = c->rope_scaling.high_freq_factor;
  const double wavelength = 2 * 3.14159265358979323846 / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / c->rope_scaling.factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / c->rope_scaling.factor + smooth * frequency;
}

Spec model_spec(const ModelConfig *c, Spec s) {
  s.L = c->num_hidden_layers;
  s.D = c->hidden_size;
  s.F = c->intermediate_size;
  s.H = c->num_attention_heads;
  s.KV = c->num_key_value_heads;
  s.d = c->head_dim;
  s.V = c->vocab_size;
  s.rms_norm_eps = c->rms_norm_eps;
  assert(c->head_dim <= MAX_HEAD_DIM);
  for (int64_t j = 0; j < c->head_dim / 2; j++) s.inv_freq[j] = rope_frequency(c, j);
  s.max_tokens = batch_rows(&s);
  s.max_positions = max_i64(s.seq, s.context);
  return s;
}

// ---- The run

Spec spec_again(const Config *c, Spec s) {
  const BackendConfig *b = &c->backend;
  const bool gpu = runs_on_gpu(&s), all_layers = b->offload_layers >= c->model.num_hidden_layers;
  s = model_spec(&c->model, s);
  s.moments = b->moments;
  s.masters = b->masters;
  s.accumulates = c->train.gradient_accumulation > 1;
  s.grads_fp32 = s.accumulates && b->gradients == GRADIENTS_AUTO;
  s.bf16_products = !gpu && (b->cpu_products == PRODUCTS_BF16 ||
                             (b->cpu_products == PRODUCTS_AUTO && bf16_products_pay()));
  s.threads = (int)b->threads;
  // A fused program multiplies two operands of one format.
  s.kernels = s.fp8_weights ? KERNELS_UNFUSED : b->kernels;
  if (b->mainloop != MAINLOOP_AUTO) s.mainloop = b->mainloop;
  s.deterministic = b->deterministic;
  // Ranges on a profiler's time line hold the kernels that are launched inside them, and a recorded
  // step is one launch.
  s.graphs = b->graphs && c->output.profile_steps == 0;
  s.offload = gpu && s.train ? b->offload : OFFLOAD_NONE;
  s.offload_layers = all_layers ? 0 : b->offload_layers;
  if (gpu)
    spec_estimate_gpu(&s);
  else
    spec_estimate_cpu(&s);
  enum { LIBRARIES = 256 << 20 }; // code and workspace of cuBLASLt and cuDNN, roughly
  if (gpu) s.workspace_bytes += LIBRARIES;
  return s;
}

// The fewest loss chunks with which the run fits into a GPU with this many bytes, all but 5 % and
// at least 1 GiB of them, which CUDA and a desktop take. Not what is free now: a resumed run must
// choose as before. Where none fits, the fewest that keep the logits below a tenth of it:
// llama_create then reports the missing memory.
static int64_t choose_loss_chunks(const Config *c, Spec s, size_t memory) {
  const int64_t M = batch_rows(&s), least = s.fp8 ? FP8_GROUP : 1;
  const double left = (double)memory - fmax(0.05 * (double)memory, 1 << 30);
  int64_t chunks = 1;
  for (int64_t next = 1; next <= 256 && M % (next * least) == 0; next *= 2) {
    s.loss_chunks = chunks = next;
    spec_estimate_gpu(&s);
    const MemoryPlan plan = memory_plan(&c->model, &s);
    if ((double)plan.total_bytes <= left) break;
    if ((double)(M / next * s.V) * 2 < 0.1 * (double)memory && next > 1) break;
  }
  return chunks;
}

Spec spec_resolve(const Config *c, Spec s, const Hardware *hw) {
  s.real_bytes = hw->gpu ? 0 : sizeof(float);
  s.mainloop = hw->card.mainloop;
  s.biases_documents =
      hw->gpu && c->data.documents == DOCUMENTS_MASK &&
      (c->backend.document_attention == DOCUMENT_ATTENTION_BIAS ||
       gpu_biases_documents(&hw->card, c->model.head_dim, c->backend.deterministic));
  s.memory_bytes = hw->memory_bytes;
  s.host_bytes = hw->gpu ? hw->host_bytes : 0;
  const bool choose = s.loss_chunks == 0;
  if (choose) s.loss_chunks = 1;
  s = spec_again(c, s);
  if (!choose || !hw->gpu) return s;
  s.loss_chunks = choose_loss_chunks(c, s, hw->card.memory_bytes);
  return spec_again(c, s);
}
