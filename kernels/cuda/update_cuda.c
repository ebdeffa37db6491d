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

// Everything of t; returns how many floats of column partials it takes, from `partials` on.
static int64_t describe(DeviceTensor *t, ParamTable *table, const ParamTensor *list, int i,
                        bool is_norm, float *partials) {
  const ParamTensor *p = &list[i];
  const ParamTensor *norm = p->norm >= 0 ? &list[p->norm] : NULL;
  *t = (DeviceTensor){.rows = p->rows,
                      .cols = p->cols,
                      .master = (float *)p->master,
                      .m = (float *)p->m,
                      .v = (float *)p->v,
                      .grad = p->grad,
                      .grad_folded = p->grad_folded,
                      .compute = (bf16_bits *)p->compute,
                      .folded = (bf16_bits *)p->folded,
                      .norm = norm ? (const float *)norm->master : NULL,
                      .norm_grad = norm ? norm->grad : NULL,
                      .column_partials = norm ? partials : NULL,
                      .first_update = table->update_blocks,
                      .first_tile = table->tiles,
                      .first_column = table->columns,
                      .decay = p->decay};
  table->update_blocks += ceil_div(p->rows * p->cols, UPDATE_BLOCK);
  if (is_norm) {
    table->norm_blocks = table->update_blocks;
    return 0;
  }
  if (!norm) {
    table->tiles += ceil_div(p->rows * p->cols, TILE_ELEMENTS);
    return 0;
  }
  table->tiles += ceil_div(p->rows, TILE_ROWS) * ceil_div(p->cols, TILE_COLS);
  table->columns += ceil_div(p->cols, COLUMN_BLOCK);
  return ceil_div(p->rows, TILE_ROWS) * p->cols;
}

// Describes the list's tensors, norm weights first: their blocks come first in the update, since
// folded copies read the updated norm weights. Counts the blocks; returns the floats of all column
// partials.
static int64_t describe_list(DeviceTensor *tensors, ParamTable *table, const ParamTensor *list,
                             int count, float *partials) {
  int64_t used = 0;
  table->update_blocks = table->tiles = table->columns = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < count; i++) {
      const bool is_norm = is_norm_of_another(list, count, i);
      if (is_norm == (pass == 0))
        used += describe(tensors++, table, list, i, is_norm, partials ? partials + used : NULL);
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
  DeviceTensor *tensors = xmalloc((size_t)count * sizeof *tensors);
  float *column_partials;
  const int64_t partials = describe_list(tensors, &table, list, count, NULL);
  free(tensors);
  return place(&table, count, partials, NULL, &column_partials);
}

static void own(int32_t *owner, int64_t from, int64_t to, int32_t tensor) {
  for (int64_t i = from; i < to; i++) owner[i] = tensor;
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

  ParamTable *table = &c->table;
  *table = (ParamTable){.grads_fp32 = c->options.grads_fp32};
  DeviceTensor *tensors = xmalloc((size_t)(count + 1) * sizeof *tensors);
  float *column_partials, *unused;
  const int64_t partials = describe_list(tensors, table, list, count, NULL);
  place(table, count, partials, c->table_memory, &column_partials);
  describe_list(tensors, table, list, count, column_partials);
  tensors[count] = (DeviceTensor){.first_update = table->update_blocks,
                                  .first_tile = table->tiles,
                                  .first_column = table->columns};

  ParamTable on_host = *table;
  char *block = xmalloc(bytes);
  place(&on_host, count, partials, block, &unused);
  memcpy(on_host.tensors, tensors, (size_t)count * sizeof *tensors);
  for (int i = 0; i < count; i++) {
    const DeviceTensor *t = &tensors[i], *next = t + 1;
    own(on_host.update_owner, t->first_update, next->first_update, i);
    own(on_host.tile_owner, t->first_tile, next->first_tile, i);
    own(on_host.column_owner, t->first_column, next->first_column, i);
  }
  const size_t made_here = (size_t)((char *)on_host.sumsq - block);
  c->base.write(&c->base, c->table_memory, block, made_here);
  free(block);
  free(tensors);
}

static bool same_tensor(const ParamTensor *a, const ParamTensor *b) {
  return a->rows == b->rows && a->cols == b->cols && a->master == b->master && a->m == b->m &&
         a->v == b->v && a->grad == b->grad && a->grad_folded == b->grad_folded &&
         a->compute == b->compute && a->folded == b->folded && a->norm == b->norm &&
         a->decay == b->decay;
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
  CUDA_CHECK(cudaMemcpyAsync(&c->results[slot], c->state, sizeof *c->state, cudaMemcpyDeviceToHost,
                             c->gpu.stream));
  CUDA_CHECK(cudaEventRecord(c->result_ready[slot], c->gpu.stream));
}

static StepResult op_step_result(Backend *be) {
  Cuda *c = cuda_of(be);
  assert(c->taken < c->published);
  const int slot = (int)(c->taken++ % MAX_RESULTS);
  CUDA_CHECK(cudaEventSynchronize(c->result_ready[slot]));
  const StepState *s = &c->results[slot];
  return (StepResult){.loss = s->loss,
                      .grad_norm = s->grad_norm,
                      .applied = s->applied != 0,
                      .updates = s->updates};
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
