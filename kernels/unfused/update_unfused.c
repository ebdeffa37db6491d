// The update: tables of the parameters on the device, built from the model's list once, and the
// launches over them.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/check.h"
#include "kernels/unfused/state.h"

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool is_norm_of_another(const ParamTensor *list, int count, int i) {
  for (int j = 0; j < count; j++)
    if (list[j].norm == i) return true;
  return false;
}

// ---- Building the tables. `order` holds the list's indices, norm weights first: their blocks come
// first in the update, since folded copies read the updated norm weights.

static int *update_order(const ParamTensor *list, int count) {
  int *order = xmalloc((size_t)count * sizeof *order), n = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < count; i++)
      if (is_norm_of_another(list, count, i) == (pass == 0)) order[n++] = i;
  return order;
}

// Everything of t but the place of its column partials; returns how many floats of those it needs.
static int64_t describe(DeviceTensor *t, ParamTable *table, const ParamTensor *list, int count,
                        int i) {
  const ParamTensor *p = &list[i];
  const ParamTensor *norm = p->norm >= 0 ? &list[p->norm] : NULL;
  const bool is_norm = is_norm_of_another(list, count, i);
  *t = (DeviceTensor){.rows = p->rows,
                      .cols = p->cols,
                      .master = p->master,
                      .m = p->m,
                      .v = p->v,
                      .grad = p->grad,
                      .grad_folded = p->grad_folded,
                      .compute = p->compute,
                      .folded = p->folded,
                      .norm = norm ? norm->master : NULL,
                      .norm_grad = norm ? norm->grad : NULL,
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

static void own(int32_t *owner, int64_t from, int64_t to, int32_t tensor) {
  for (int64_t i = from; i < to; i++) owner[i] = tensor;
}

// One block of memory for all tables: aligned pieces, first counted (base NULL), then placed.
static char *piece(char *base, size_t *used, size_t bytes) {
  char *p = base ? base + *used : NULL;
  *used += (bytes + 255) / 256 * 256;
  return p;
}

static size_t place(ParamTable *table, int count, int64_t partials, float **column_partials,
                    char *base) {
  size_t used = 0;
  table->tensors = (void *)piece(base, &used, (size_t)count * sizeof(DeviceTensor));
  table->update_owner = (void *)piece(base, &used, (size_t)table->update_blocks * 4);
  table->tile_owner = (void *)piece(base, &used, (size_t)table->tiles * 4);
  table->column_owner = (void *)piece(base, &used, (size_t)table->columns * 4);
  table->sumsq = (void *)piece(base, &used, (size_t)(table->tiles + table->columns) * 4);
  *column_partials = (void *)piece(base, &used, (size_t)partials * 4);
  return used;
}

static void upload(void *to, const void *from, int64_t bytes) {
  CUDA_CHECK(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice));
}

void unfused_table_free(Unfused *u) {
  CUDA_CHECK(cudaFree(u->table_memory));
  free(u->table_list);
  u->table_memory = NULL;
  u->table_list = NULL;
  u->table_count = 0;
}

// Describes the list's tensors, in the order of the update, and counts what they need. Fresh
// memory; partials [count + 1]: where each one's column partials begin.
static DeviceTensor *describe_list(ParamTable *table, const ParamTensor *list, int count,
                                   int64_t **partials) {
  DeviceTensor *tensors = xmalloc((size_t)count * sizeof *tensors);
  int *order = update_order(list, count);
  *partials = xcalloc((size_t)(count + 1), sizeof **partials);
  for (int i = 0; i < count; i++)
    (*partials)[i + 1] = (*partials)[i] + describe(&tensors[i], table, list, count, order[i]);
  free(order);
  return tensors;
}

size_t unfused_op_list_bytes(const ParamTensor *list, int count) {
  ParamTable table = {0};
  int64_t *partials;
  float *column_partials;
  free(describe_list(&table, list, count, &partials));
  const size_t bytes = place(&table, count, partials[count], &column_partials, NULL);
  free(partials);
  return bytes;
}

static void build_table(Unfused *u, const ParamTensor *list, int count) {
  CUDA_CHECK(cudaStreamSynchronize(u->gpu.stream));
  unfused_table_free(u);
  ParamTable *table = &u->table;
  *table = (ParamTable){.grads_fp32 = u->options.grads_fp32};
  int64_t *partials;
  DeviceTensor *tensors = describe_list(table, list, count, &partials);
  float *column_partials;
  const size_t bytes = place(table, count, partials[count], &column_partials, NULL);
  CUDA_CHECK(cudaMalloc((void **)&u->table_memory, bytes));
  place(table, count, partials[count], &column_partials, u->table_memory);
  int32_t *updates = xmalloc((size_t)table->update_blocks * 4),
          *tiles = xmalloc((size_t)(table->tiles + 1) * 4),
          *columns = xmalloc((size_t)(table->columns + 1) * 4);
  for (int i = 0; i < count; i++) {
    const bool last = i + 1 == count;
    own(updates, tensors[i].first_update, last ? table->update_blocks : tensors[i + 1].first_update,
        i);
    own(tiles, tensors[i].first_tile, last ? table->tiles : tensors[i + 1].first_tile, i);
    own(columns, tensors[i].first_column, last ? table->columns : tensors[i + 1].first_column, i);
    if (partials[i + 1] > partials[i]) tensors[i].column_partials = column_partials + partials[i];
  }
  upload(table->tensors, tensors, count * (int64_t)sizeof *tensors);
  upload(table->update_owner, updates, table->update_blocks * 4);
  upload(table->tile_owner, tiles, table->tiles * 4);
  upload(table->column_owner, columns, table->columns * 4);
  u->table_list = xmalloc((size_t)count * sizeof *list);
  memcpy(u->table_list, list, (size_t)count * sizeof *list);
  u->table_count = count;
  free(tensors);
  free(partials);
  free(updates);
  free(tiles);
  free(columns);
}

static bool same_tensor(const ParamTensor *a, const ParamTensor *b) {
  return a->rows == b->rows && a->cols == b->cols && a->master == b->master && a->m == b->m &&
         a->v == b->v && a->grad == b->grad && a->grad_folded == b->grad_folded &&
         a->compute == b->compute && a->folded == b->folded && a->norm == b->norm &&
         a->decay == b->decay;
}

static const ParamTable *table_of(Unfused *u, const ParamTensor *list, int count) {
  bool same = u->table_list && u->table_count == count;
  for (int i = 0; i < count && same; i++) same = same_tensor(&list[i], &u->table_list[i]);
  if (!same) build_table(u, list, count);
  return &u->table;
}

// ---- The operations

void unfused_op_step_begin(Backend *be) {
  const Unfused *u = unfused_of(be);
  unfused_step_begin(u->state, u->gpu.stream);
}

void unfused_op_grads_finish(Backend *be, const ParamTensor *list, int count) {
  Unfused *u = unfused_of(be);
  unfused_grads_finish(table_of(u, list, count), u->state, u->gpu.stream);
}

void unfused_op_set_hyper(Backend *be, const AdamW *hyper) {
  const Unfused *u = unfused_of(be);
  unfused_write_hyper(hyper, u->state, u->gpu.stream);
}

void unfused_op_adamw(Backend *be, const ParamTensor *list, int count) {
  Unfused *u = unfused_of(be);
  unfused_adamw(table_of(u, list, count), u->state, u->gpu.stream);
}

void unfused_op_step_end(Backend *be) {
  Unfused *u = unfused_of(be);
  assert(u->published - u->taken < MAX_RESULTS);
  const int slot = (int)(u->published++ % MAX_RESULTS);
  CUDA_CHECK(cudaMemcpyAsync(&u->results[slot], u->state, sizeof *u->state, cudaMemcpyDeviceToHost,
                             u->gpu.stream));
  CUDA_CHECK(cudaEventRecord(u->result_ready[slot], u->gpu.stream));
}

void unfused_op_refresh(Backend *be, const ParamTensor *list, int count) {
  Unfused *u = unfused_of(be);
  unfused_refresh(table_of(u, list, count), u->state, u->gpu.stream);
}

StepResult unfused_op_step_result(Backend *be) {
  Unfused *u = unfused_of(be);
  assert(u->taken < u->published);
  const int slot = (int)(u->taken++ % MAX_RESULTS);
  CUDA_CHECK(cudaEventSynchronize(u->result_ready[slot]));
  const StepState *s = &u->results[slot];
  return (StepResult){.loss = s->loss,
                      .grad_norm = s->grad_norm,
                      .applied = s->applied != 0,
                      .updates = s->updates};
}

void unfused_op_set_updates(Backend *be, int64_t updates) {
  const Unfused *u = unfused_of(be);
  unfused_set_updates(updates, u->state, u->gpu.stream);
}
