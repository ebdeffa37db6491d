#include "model/llama.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

static void make_lists(Llama *llama, const ModelConfig *config, const Spec *spec) {
  const int64_t L = config->num_hidden_layers;
  *llama = (Llama){.config = *config, .spec = *spec, .param_count = params_count(config)};
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
}

// Sets the pointers of all tensors: into the blocks, or to NULL where there are none.
static void lay_out(Llama *llama) {
  const ParamBlocks blocks = {llama->params_block, llama->grads_block, llama->host_block};
  params_layout(llama->tensors, &llama->config, &llama->spec, blocks, NULL);
  acts_layout(&llama->acts, &llama->config, &llama->spec, llama->acts_block, NULL);
}

static void lend(Llama *llama) {
  Backend *be = llama->be;
  if (!llama->host_block || !be->services.lend) return;
  Loan *list = xcalloc(2 * (size_t)llama->param_count, sizeof *list);
  const int count = loans_layout(llama->tensors, &llama->acts, &llama->config, &llama->spec, list);
  be->services.lend(be, list, count);
  free(list);
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

int llama_create(Llama *llama, const ModelConfig *config, Backend *be, Error *err) {
  const Spec *spec = &be->spec;
  make_lists(llama, config, spec);
  llama->be = be;
  llama->plan = memory_plan(config, spec);
  const MemoryPlan *plan = &llama->plan;
  const bool fits = plan->total_bytes <= spec->memory_bytes;
  if (memory_check_host(plan, spec, err) != 0 ||
      (fits && take_host_block(llama, plan->host_bytes, err) != 0)) {
    llama_destroy(llama);
    return -1;
  }
  llama->params_block = fits ? be->services.alloc(be, plan->params_bytes) : NULL;
  llama->grads_block = fits ? be->services.alloc(be, plan->grads_bytes) : NULL;
  llama->acts_block = fits ? be->services.alloc(be, plan->acts_bytes) : NULL;
  if (!llama->params_block || !llama->grads_block || !llama->acts_block) {
    const size_t total = plan->total_bytes, acts = plan->acts_bytes;
    llama_destroy(llama);
    return error_set(
        err, "not enough memory: the run needs %s (activations %s) and this %s has %s free",
        size_text(total).text, size_text(acts).text, be->name, size_text(spec->memory_bytes).text);
  }
  lay_out(llama);
  lend(llama);
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
  const Spec *s = &llama->spec;
  const LayerActs *last = &llama->acts.layers[s->L];
  const int32_t *targets = llama->acts.targets;
  const int64_t rows = chunk_rows(s), row = chunk * rows, left = batch_rows(s) - row;
  return (HeadChunk){.M = left < rows ? left : rows,
                     .x = operand_from(be, last->x, row, s->D),
                     .sumsq = row_stat_from(be, last->x_sumsq, row),
                     .targets = targets ? targets + row : NULL,
                     .dx = operand_from(be, last->dx, row, s->D)};
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
  for (int i = 0; llama->spec.train && i < llama->param_count; i++)
    for (ParamState state = 0; state < PARAM_STATES; state++) {
      if (state == STATE_master || !state_saved_as(&llama->tensors[i], state)) continue;
      const StateMemory m = state_memory(&llama->spec, &llama->tensors[i], state);
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

void llama_load_batch(Llama *llama, const Batch *batch) {
  const size_t bytes = (size_t)(batch_rows(&llama->spec)) * sizeof(int32_t);
  llama->be->services.write(llama->be, llama->acts.tokens, batch->tokens, bytes);
  llama->be->services.write(llama->be, llama->acts.targets, batch->targets, bytes);
  llama->be->services.set_documents(llama->be, batch->lengths,
                                    llama->spec.usual_documents > 0 ? batch->documents : 0);
}
