#include "model/llama.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

// Shapes alone: all pointers to tensors are NULL.
static void outline(Llama *llama, const ModelConfig *config, const RunShape *shape, Backend *be) {
  const int64_t L = config->num_hidden_layers;
  *llama =
      (Llama){.config = *config, .shape = *shape, .be = be, .param_count = params_count(config)};
  ParamTensor *all = llama->tensors = xcalloc((size_t)llama->param_count, sizeof *all);
  llama->acts.layers = xcalloc((size_t)L + 1, sizeof *llama->acts.layers);
  llama->layers = xcalloc((size_t)L, sizeof *llama->layers);
  for (int64_t l = 0; l < L; l++)
    llama->layers[l] = (LayerParams){.qkv = all + param_index(config, PARAM_QKV, l),
                                     .out = all + param_index(config, PARAM_OUT, l),
                                     .gate_up = all + param_index(config, PARAM_GATE_UP, l),
                                     .down = all + param_index(config, PARAM_DOWN, l)};
  llama->embed = all + param_index(config, PARAM_EMBED, -1);
  llama->lm_head = all + param_index(config, PARAM_LM_HEAD, -1);
  params_layout(all, config, shape, be, NULL, NULL, NULL);
  grads_layout(all, config, shape, be, NULL, NULL, NULL);
  acts_layout(&llama->acts, config, shape, be, NULL, NULL);
}

static int take_host_block(Llama *llama, size_t bytes, Error *err) {
  if (bytes == 0) return 0;
  llama->host_block = llama->be->services.alloc_host(llama->be, bytes);
  if (llama->host_block) return 0;
  return error_set(err,
                   "not enough memory on the host: the system refused %s of pinned memory, which "
                   "backend.offload needs",
                   size_text(bytes).text);
}

int llama_create(Llama *llama, const ModelConfig *config, const RunShape *shape, Backend *be,
                 Error *err) {
  outline(llama, config, shape, be);
  MemoryPlan plan;
  memory_plan(&plan, config, shape, be);
  const bool fits = plan.total_bytes <= be->memory_bytes;
  if (memory_check_host(&plan, be, err) != 0 ||
      (fits && take_host_block(llama, plan.host_bytes, err) != 0)) {
    llama_destroy(llama);
    return -1;
  }
  llama->params_block = fits ? be->services.alloc(be, plan.params_bytes) : NULL;
  llama->grads_block = fits ? be->services.alloc(be, plan.grads_bytes) : NULL;
  llama->acts_block = fits ? be->services.alloc(be, plan.acts_bytes) : NULL;
  if (!llama->params_block || !llama->grads_block || !llama->acts_block) {
    llama_destroy(llama);
    return error_set(err,
                     "not enough memory: the run needs %s (activations %s) and this %s has %s free",
                     size_text(plan.total_bytes).text, size_text(plan.acts_bytes).text, be->name,
                     size_text(be->memory_bytes).text);
  }
  const ParamBytes params = params_layout(llama->tensors, config, shape, be, llama->params_block,
                                          llama->host_block, NULL);
  grads_layout(llama->tensors, config, shape, be, llama->grads_block,
               llama->host_block ? llama->host_block + params.host : NULL, NULL);
  acts_layout(&llama->acts, config, shape, be, llama->acts_block, NULL);
  return 0;
}

void llama_destroy(Llama *llama) {
  Backend *be = llama->be;
  if (llama->params_block) be->services.release(be, llama->params_block);
  if (llama->host_block) be->services.release_host(be, llama->host_block);
  if (llama->grads_block) be->services.release(be, llama->grads_block);
  if (llama->acts_block) be->services.release(be, llama->acts_block);
  free(llama->tensors);
  free(llama->layers);
  free(llama->acts.layers);
  *llama = (Llama){0};
}

HeadChunk head_chunk(const Llama *llama, int64_t chunk) {
  const Backend *be = llama->be;
  const Sizes n = llama_sizes(llama);
  const LayerActs *last = &llama->acts.layers[n.L];
  const int32_t *targets = llama->acts.targets;
  const int64_t row = chunk * n.head_rows, left = n.M - row;
  return (HeadChunk){.M = left < n.head_rows ? left : n.head_rows,
                     .x = operand_from(be, last->x, row, n.D),
                     .sumsq = row_stat_from(be, last->x_sumsq, row),
                     .targets = targets ? targets + row : NULL,
                     .dx = operand_from(be, last->dx, row, n.D)};
}

// The initial values of a parameter are those of its HF tensors, rows in our order: here on the
// host, [rows, cols] of the parameter.
static void init_packed(const ModelConfig *c, uint64_t seed, const HfTensor *t, float *packed) {
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < t->rows; n++)
    param_init(c, seed, t, n * t->cols, t->cols, packed + packed_row(c, t, n) * t->cols);
}

static void init_on_host(const Llama *llama, uint64_t seed, const HfTensor *list, int count,
                         int param) {
  const ParamTensor *p = &llama->tensors[param];
  const int64_t n = p->rows * p->cols;
  float *packed = xmalloc((size_t)n * sizeof *packed);
  for (int i = 0; i < count; i++)
    if (list[i].param == param) init_packed(&llama->config, seed, &list[i], packed);
  llama->be->services.write_master(llama->be, p, 0, packed, n);
  free(packed);
}

// Draws the same values directly in device memory.
static void draw(const Llama *llama, uint64_t seed, const HfTensor *t) {
  const ModelConfig *c = &llama->config;
  int32_t *places = xmalloc((size_t)t->rows * sizeof *places);
  for (int64_t n = 0; n < t->rows; n++) places[n] = (int32_t)packed_row(c, t, n);
  llama->be->services.draw_master(llama->be, &llama->tensors[t->param], places, t->rows,
                                  rng_key(seed, t->name), init_deviation(c, t));
  free(places);
}

void llama_zero_moments(Llama *llama) {
  Backend *be = llama->be;
  for (int i = 0; llama->shape.train && i < llama->param_count; i++)
    for (ParamState state = 0; state < PARAM_STATES; state++) {
      if (state == STATE_master || !state_saved_as(&llama->tensors[i], state)) continue;
      const StateMemory m = state_memory(be, &llama->tensors[i], state);
      be->services.zero(be, m.at, m.bytes);
    }
}

void llama_init_weights(Llama *llama, uint64_t seed) {
  Backend *be = llama->be;
  const ModelConfig *c = &llama->config;
  int count;
  HfTensor *list = hf_tensor_list(c, &count);
  for (int i = 0; i < llama->param_count; i++) // norms are all ones: nothing is drawn
    if (!be->services.draw_master || llama->tensors[i].vector)
      init_on_host(llama, seed, list, count, i);
  for (int i = 0; i < count && be->services.draw_master; i++)
    if (list[i].rank == 2) draw(llama, seed, &list[i]);
  free(list);
  llama_zero_moments(llama);
  be->services.refresh(be, llama->tensors, llama->param_count);
}

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

OpsConfig llama_ops_config(const ModelConfig *c, const RunShape *shape, int64_t max_positions,
                           int threads) {
  OpsConfig ops = {
      .D = c->hidden_size,
      .F = c->intermediate_size,
      .H = c->num_attention_heads,
      .KV = c->num_key_value_heads,
      .d = c->head_dim,
      .V = c->vocab_size,
      .max_tokens = shape->batch * shape->seq,
      .max_positions = max_positions,
      .usual_documents = shape->usual_documents,
      .longest_document = shape->longest_document,
      .whole_windows = shape->whole_windows,
      .rms_norm_eps = c->rms_norm_eps,
      .threads = threads,
  };
  assert(c->head_dim <= MAX_HEAD_DIM);
  for (int64_t j = 0; j < c->head_dim / 2; j++) ops.inv_freq[j] = rope_frequency(c, j);
  return ops;
}

void llama_load_batch(Llama *llama, const Batch *batch) {
  const size_t bytes = (size_t)(llama->shape.batch * llama->shape.seq) * sizeof(int32_t);
  llama->be->services.write(llama->be, llama->acts.tokens, batch->tokens, bytes);
  llama->be->services.write(llama->be, llama->acts.targets, batch->targets, bytes);
  llama->be->services.set_documents(llama->be, batch->lengths,
                                    llama->shape.usual_documents > 0 ? batch->documents : 0);
}
