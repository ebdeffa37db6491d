// The update: tables of the parameters on the device, built from the model's list once, and the
// launches over them.
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool is_norm_of_another(const ParamTensor *list, int count, int i) {
  for (int j = 0; j < count; j++)
    if (list[j].norm == i) return true;
  return false;
}

// ---- Building the tables

// Gives the tensor the next `more` blocks of a launch, which has *blocks so far; returns its first.
// owner: NULL where blocks are only counted.
static int64_t own(int32_t *owner, int64_t *blocks, int64_t more, int32_t tensor) {
  const int64_t first = *blocks;
  *blocks += more;
  for (int64_t i = first; owner && i < *blocks; i++) owner[i] = tensor;
  return first;
}

// Describes the list's tensors, norm weights first: their blocks come first in the update, since
// folded copies read the updated norm weights. Counts the blocks, and fills the table where it has
// memory; returns the floats of all column partials and copies of norms, which lie at `partials`.
static int64_t describe(ParamTable *table, const ParamTensor *list, int count, float *partials) {
  int64_t used = 0;
  int32_t at = 0;
  table->update_blocks = table->tiles = table->columns = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < count; i++) {
      const ParamTensor *p = &list[i], *norm = p->norm >= 0 ? &list[p->norm] : NULL;
      const bool is_norm = is_norm_of_another(list, count, i);
      if (is_norm != (pass == 0)) continue;
      const int64_t elements = p->rows * p->cols, row_tiles = ceil_div(p->rows, TILE_ROWS),
                    tiles = norm ? row_tiles * ceil_div(p->cols, TILE_COLS)
                                 : ceil_div(elements, TILE_ELEMENTS);
      const DeviceTensor t = {
          .rows = p->rows,
          .cols = p->cols,
          .master = (float *)p->master,
          .m = p->m,
          .v = p->v,
          .grad = p->grad,
          .grad_folded = p->grad_folded,
          .compute = (bf16_bits *)p->compute.data,
          .folded = (bf16_bits *)p->folded.data,
          .norm = norm ? (const float *)norm->master : NULL,
          .norm_grad = norm ? norm->grad : NULL,
          .norm_before = norm && partials ? partials + used : NULL,
          .column_partials = norm && partials ? partials + used + p->cols : NULL,
          .first_update =
              own(table->update_owner, &table->update_blocks, ceil_div(elements, UPDATE_BLOCK), at),
          .first_tile = own(table->tile_owner, &table->tiles, is_norm ? 0 : tiles, at),
          .first_column = own(table->column_owner, &table->columns,
                              norm ? ceil_div(p->cols, COLUMN_BLOCK) : 0, at),
          .decay = p->decay,
          .index = i};
      if (is_norm) table->norm_blocks = table->update_blocks;
      if (norm) used += (1 + row_tiles) * p->cols;
      if (table->tensors) table->tensors[at] = t;
      at++;
    }
  return used;
}

// All tables in one block, sized where memory is NULL; returns the block's size. The host fills in
// what is before sumsq.
static size_t place(ParamTable *table, int count, int64_t partials, char *memory,
                    float **column_partials) {
  Arena arena = {.block = memory};
  table->tensors = arena_take(&arena, (size_t)count * sizeof(DeviceTensor));
  table->update_owner = arena_take(&arena, (size_t)table->update_blocks * 4);
  table->tile_owner = arena_take(&arena, (size_t)table->tiles * 4);
  table->column_owner = arena_take(&arena, (size_t)table->columns * 4);
  table->sumsq = arena_take(&arena, (size_t)(table->tiles + table->columns) * 4);
  *column_partials = arena_take(&arena, (size_t)partials * 4);
  return arena.used;
}

static size_t list_bytes(const ParamTensor *list, int count) {
  ParamTable table = {0};
  float *column_partials;
  const int64_t partials = describe(&table, list, count, NULL);
  return place(&table, count, partials, NULL, &column_partials);
}

void cuda_table_free(Cuda *c) {
  if (c->table_memory) CUDA_CHECK(cudaFree(c->table_memory));
  free(c->table_list);
  c->table_memory = NULL;
  c->table_list = NULL;
}

static void build_table(Cuda *c, const ParamTensor *list, int count) {
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  cuda_table_free(c);
  const size_t bytes = list_bytes(list, count);
  CUDA_CHECK(cudaMalloc((void **)&c->table_memory, bytes));
  c->table_list = xmalloc((size_t)count * sizeof *list);
  memcpy(c->table_list, list, (size_t)count * sizeof *list);
  c->table_count = count;

  c->table = (ParamTable){.grads_fp32 = c->options.grads_fp32};
  float *column_partials, *unused;
  const int64_t partials = describe(&c->table, list, count, NULL);
  ParamTable on_host = c->table;
  place(&c->table, count, partials, c->table_memory, &column_partials);
  char *block = xmalloc(bytes);
  place(&on_host, count, partials, block, &unused);
  describe(&on_host, list, count, column_partials);
  const size_t made_here = (size_t)((char *)on_host.sumsq - block);
  c->base.write(&c->base, c->table_memory, block, made_here);
  free(block);
}

static bool same_tensor(const ParamTensor *a, const ParamTensor *b) {
  return a->rows == b->rows && a->cols == b->cols && a->master == b->master && a->m == b->m &&
         a->v == b->v && a->grad == b->grad && a->grad_folded == b->grad_folded &&
         a->compute.data == b->compute.data && a->folded.data == b->folded.data &&
         a->norm == b->norm && a->decay == b->decay;
}

const ParamTable *cuda_table(Cuda *c, const ParamTensor *list, int count) {
  bool same = c->table_list && c->table_count == count;
  for (int i = 0; i < count && same; i++) same = same_tensor(&list[i], &c->table_list[i]);
  if (!same) build_table(c, list, count);
  return &c->table;
}

// ---- The operations

static void op_step_begin(Backend *be) {
  be->zero(be, cuda_of(be)->state, offsetof(StepState, updates));
}

// Not in a recording, which would freeze the values.
static void op_set_hyper(Backend *be, const AdamW *hyper) {
  be->write(be, &cuda_of(be)->state->hyper, hyper, sizeof *hyper);
}

static void op_step_end(Backend *be) {
  Cuda *c = cuda_of(be);
  assert(c->published - c->taken < MAX_RESULTS);
  const int slot = (int)(c->published++ % MAX_RESULTS);
  CUDA_CHECK(cudaMemcpyAsync(&c->pinned->results[slot], c->state, sizeof *c->state,
                             cudaMemcpyDeviceToHost, c->gpu.stream));
  CUDA_CHECK(cudaEventRecord(c->result_ready[slot], c->gpu.stream));
}

static StepResult op_step_result(Backend *be) {
  Cuda *c = cuda_of(be);
  assert(c->taken < c->published);
  const int slot = (int)(c->taken++ % MAX_RESULTS);
  CUDA_CHECK(cudaEventSynchronize(c->result_ready[slot]));
  const StepState *s = &c->pinned->results[slot];
  return (StepResult){.loss = s->loss,
                      .grad_norm = s->grad_norm,
                      .applied = s->applied != 0,
                      .updates = s->updates,
                      .saturated = s->saturated,
                      .saturated_first = s->saturated > 0 ? s->saturated_first : -1};
}

static void op_set_updates(Backend *be, int64_t updates) {
  be->write(be, &cuda_of(be)->state->updates, &updates, sizeof updates);
}

void cuda_set_update(Cuda *c) {
  Backend *be = &c->base;
  be->list_bytes = list_bytes;
  be->step_begin = op_step_begin;
  be->grads_finish = cuda_grads_finish;
  be->set_hyper = op_set_hyper;
  be->adamw = cuda_adamw;
  be->step_end = op_step_end;
  be->step_result = op_step_result;
  be->refresh = cuda_refresh;
  be->set_updates = op_set_updates;
}
