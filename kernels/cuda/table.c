// The tables of the parameters on the device, built from the model's list once, and the memory of
// Muon's matrices.
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/spread.h"

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool is_norm_of_another(const ParamTensor *list, int count, int i) {
  for (int j = 0; j < count; j++)
    if (list[j].norm == i) return true;
  return false;
}

// ---- Building the tables

// Gives a tensor the next `more` blocks of a launch, which has *blocks so far; returns the first.
static int64_t own(int64_t *blocks, int64_t more) {
  *blocks += more;
  return *blocks - more;
}

const Operand *cuda_fp8_use(const ParamTensor *p) {
  return p->folded.fp8 ? &p->folded : p->compute.fp8 ? &p->compute : NULL;
}

// The order of tensors in the update: folded copies read the updated norm weights. Vectors are norm
// weights, and their masters are fp32 (master_bytes_of).
enum { VECTORS, PLAIN, TILED, CLASSES };
static int class_of(const ParamTensor *p) {
  return p->vector ? VECTORS : cuda_fp8_use(p) ? TILED : PLAIN;
}

static int64_t update_blocks(const ParamTensor *p) {
  return cuda_fp8_use(p) ? ceil_div(p->rows, WEIGHT_TILE) * ceil_div(p->cols, WEIGHT_TILE)
                         : ceil_div(p->rows * p->cols, UPDATE_BLOCK);
}

static int64_t gradient_blocks(const ParamTensor *p, bool is_norm) {
  if (is_norm) return 0;
  return p->norm >= 0 ? ceil_div(p->rows, TILE_ROWS) * ceil_div(p->cols, TILE_COLS)
                      : ceil_div(p->rows * p->cols, TILE_ELEMENTS);
}

static int64_t momentum_blocks(const ParamTensor *p) {
  return p->part_count > 0 ? ceil_div(p->rows * p->cols, UPDATE_BLOCK) : 0;
}

// What the tables point to besides the list's own memory; NULL, except for muon, where blocks are
// only counted.
typedef struct Elsewhere {
  float *partials; // of columns, and copies of norms
  const DevicePart *parts;
  Scaling *scalings;
  Muon *muon;
} Elsewhere;

static float muon_rate(int64_t rows, int64_t cols) {
  return (float)(MUON_SCALE * sqrt((double)(rows > cols ? rows : cols)));
}

static int32_t shift_of(int64_t step) {
  int32_t shift = 0;
  while ((int64_t)1 << shift < step) shift++;
  assert((int64_t)1 << shift == step);
  return shift;
}

// Gives the tensor's parts their places in the groups, and the tensor its blocks of the momentum.
// table->parts: NULL where they are only counted.
static void describe_parts(ParamTable *table, const Elsewhere *at_gpu, const ParamTensor *p,
                           DeviceTensor *t) {
  const int64_t blocks = momentum_blocks(p);
  t->part_count = p->part_count;
  t->parts = at_gpu->parts ? at_gpu->parts + table->part_count : NULL;
  t->first_momentum = own(&table->momentum_blocks, blocks);
  for (int k = 0; k < p->part_count; k++) {
    const MatrixPart *part = &p->parts[k];
    const MuonPlace place = muon_place(at_gpu->muon, part->rows, p->cols);
    if (table->parts)
      table->parts[table->part_count] = (DevicePart){.first = part->first,
                                                     .rows = part->rows,
                                                     .shift = shift_of(part->step),
                                                     .slot = k,
                                                     .slots = p->part_count,
                                                     .rate = muon_rate(part->rows, p->cols),
                                                     .direction = place.X,
                                                     .factor = place.factor,
                                                     .first_block = t->first_momentum,
                                                     .blocks = blocks};
    table->part_count++;
  }
}

static void describe_copies(DeviceTensor *t, const ParamTensor *p, Scaling *scalings) {
  const Operand *fp8 = cuda_fp8_use(p);
  const bool own = (const void *)p->compute.data != (const void *)p->master;
  t->compute = own ? (bf16_bits *)p->compute.data : NULL;
  t->folded = (bf16_bits *)p->folded.data;
  if (!fp8 || !scalings) return;
  t->by_row = (uint8_t *)fp8->by_row;
  t->by_col = (uint8_t *)fp8->by_col;
  t->stride = fp8->stride;
  t->scaling = &scalings[fp8->scaling];
}

// Describes the list's tensors by class. Counts the blocks, and fills the table where it has
// memory, except for the orders of blocks. Returns the floats of all column partials and copies of
// norms.
static int64_t describe(ParamTable *table, const ParamTensor *list, int count,
                        const Elsewhere *at_gpu) {
  float *const partials = at_gpu->partials;
  int64_t used = 0, *ends[CLASSES] = {&table->vector_blocks, &table->plain_blocks, NULL};
  int32_t at = 0;
  table->update_blocks = table->tiles = table->columns = 0;
  table->momentum_blocks = table->part_count = 0;
  muon_places_reset(at_gpu->muon);
  for (int class = 0; class < CLASSES; class ++) {
    for (int i = 0; i < count; i++) {
      const ParamTensor *p = &list[i], *norm = p->norm >= 0 ? &list[p->norm] : NULL;
      const bool is_norm = is_norm_of_another(list, count, i);
      if (class_of(p) != class) continue;
      const int64_t row_tiles = ceil_div(p->rows, TILE_ROWS),
                    columns = norm ? ceil_div(p->cols, COLUMN_BLOCK) : 0;
      DeviceTensor t = {.rows = p->rows,
                        .cols = p->cols,
                        .master = p->master,
                        .m = p->m,
                        .v = p->v,
                        .grad = p->grad,
                        .grad_folded = p->grad_folded,
                        .norm = norm ? (const float *)norm->master : NULL,
                        .norm_grad = norm ? norm->grad : NULL,
                        .norm_before = norm && partials ? partials + used : NULL,
                        .column_partials = norm && partials ? partials + used + p->cols : NULL,
                        .first_update = own(&table->update_blocks, update_blocks(p)),
                        .first_tile = own(&table->tiles, gradient_blocks(p, is_norm)),
                        .first_column = own(&table->columns, columns),
                        .decay = !p->vector,
                        .index = i};
      describe_copies(&t, p, at_gpu->scalings);
      describe_parts(table, at_gpu, p, &t);
      if (norm) used += (1 + row_tiles) * p->cols;
      if (table->tensors) table->tensors[at] = t;
      for (int64_t k = 0; table->column_owner && k < columns; k++)
        table->column_owner[t.first_column + k] = at;
      at++;
    }
    if (ends[class]) *ends[class] = table->update_blocks;
  }
  return used;
}

// ---- The order of blocks in a launch

// A tensor's blocks of a launch, and whether they read or write over the bus.
typedef struct Share {
  int64_t first, blocks;
  bool bus;
} Share;

// Spreads the blocks that use the bus among the others of their launch, so that the bus and the
// GPU's memory are busy at the same time.
static void order_launch(const Share *shares, int count, LaunchBlock *order) {
  int64_t counts[2] = {0}, given[2] = {0}; // of blocks that do not use the bus, and that do
  for (int32_t at = 0; at < count; at++) counts[shares[at].bus] += shares[at].blocks;
  for (int32_t at = 0; at < count; at++) {
    const Share s = shares[at];
    for (int64_t i = 0; i < s.blocks; i++)
      order[spread_place(s.bus, given[s.bus]++, counts[s.bus], counts[0] + counts[1])] =
          (LaunchBlock){at, (int32_t)(s.first + i)};
  }
}

// Of a tensor with parts the update's kernels read no moments.
static Share share_of_update(const DeviceTensor *t, const ParamTensor *p, int class) {
  const Offload reads = p->part_count > 0 ? OFFLOAD_MASTERS : OFFLOAD_MOMENTS;
  return (Share){t->first_update, class_of(p) == class ? update_blocks(p) : 0,
                 p->offloaded >= reads};
}

// The kernel reads the gradients, and of a folded matrix the master or its bf16 copy (optimizer.cu:
// of_copy).
static Share share_of_gradients(const DeviceTensor *t, const ParamTensor *p, bool is_norm,
                                bool reads_copies) {
  const bool master = t->norm && !(reads_copies && t->folded);
  return (Share){t->first_tile, gradient_blocks(p, is_norm),
                 p->offloaded >= (master ? OFFLOAD_MASTERS : OFFLOAD_GRADIENTS)};
}

static Share share_of_momentum(const DeviceTensor *t, const ParamTensor *p) {
  return (Share){t->first_momentum, momentum_blocks(p), p->offloaded >= OFFLOAD_MOMENTS};
}

static void order_all(ParamTable *table, const ParamTensor *list, int count, bool reads_copies) {
  const int64_t first[CLASSES] = {0, table->vector_blocks, table->plain_blocks};
  Share *shares = xcalloc((size_t)count, sizeof *shares);
  for (int class = 0; class < CLASSES; class ++) {
    for (int at = 0; at < count; at++) {
      const DeviceTensor *t = &table->tensors[at];
      shares[at] = share_of_update(t, &list[t->index], class);
    }
    order_launch(shares, count, table->update_order + first[class]);
  }
  for (int at = 0; at < count; at++) {
    const DeviceTensor *t = &table->tensors[at];
    const bool is_norm = is_norm_of_another(list, count, t->index);
    shares[at] = share_of_gradients(t, &list[t->index], is_norm, reads_copies);
  }
  order_launch(shares, count, table->gradient_order);
  for (int at = 0; at < count; at++) {
    const DeviceTensor *t = &table->tensors[at];
    shares[at] = share_of_momentum(t, &list[t->index]);
  }
  order_launch(shares, count, table->momentum_order);
  free(shares);
}

// ---- Memory

// All tables in one block, sized where memory is NULL; returns the block's size. The host fills in
// what is before sumsq.
static size_t place(ParamTable *table, int count, int64_t partials, char *memory,
                    float **column_partials) {
  Arena arena = {.block = memory};
  table->tensors = arena_take(&arena, (size_t)count * sizeof(DeviceTensor));
  table->parts = arena_take(&arena, (size_t)table->part_count * sizeof(DevicePart));
  table->update_order = arena_take(&arena, (size_t)table->update_blocks * sizeof(LaunchBlock));
  table->gradient_order = arena_take(&arena, (size_t)table->tiles * sizeof(LaunchBlock));
  table->column_owner = arena_take(&arena, (size_t)table->columns * 4);
  table->momentum_order = arena_take(&arena, (size_t)table->momentum_blocks * sizeof(LaunchBlock));
  table->sumsq = arena_take(&arena, (size_t)(table->tiles + table->columns) * 4);
  table->momentum_sums = arena_take(&arena, (size_t)(table->momentum_blocks * MOST_PARTS) * 4);
  *column_partials = arena_take(&arena, (size_t)partials * 4);
  return arena.used;
}

size_t cuda_list_bytes(const ParamTensor *list, int count) {
  ParamTable table = {0};
  float *column_partials;
  Muon muon = muon_plan(list, count);
  const int64_t partials = describe(&table, list, count, &(Elsewhere){.muon = &muon});
  const size_t bytes = place(&table, count, partials, NULL, &column_partials) + muon.bytes;
  muon_free(&muon);
  return bytes;
}

// Memory that is not there ends the process with a sentence: the plan counted it.
static void open_muon(Cuda *c, const ParamTensor *list, int count) {
  Muon *muon = &c->muon;
  *muon = muon_plan(list, count);
  if (muon->bytes == 0) return;
  muon->memory = gpu_alloc(muon->bytes);
  if (!muon->memory) CUDA_CHECK(cudaErrorMemoryAllocation);
  // As cuda_take says; and a first update that is skipped multiplies what lies here.
  CUDA_CHECK(cudaMemsetAsync(muon->memory, 0, muon->bytes, c->gpu.stream));
  muon_lay_out(muon, muon->memory);
}

void cuda_table_free(Cuda *c) {
  if (c->table_memory) CUDA_CHECK(cudaFree(c->table_memory));
  free(c->table_list);
  if (c->muon.memory) CUDA_CHECK(cudaFree(c->muon.memory));
  muon_free(&c->muon);
  c->table_memory = NULL;
  c->table_list = NULL;
}

static void build_table(Cuda *c, const ParamTensor *list, int count) {
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  cuda_table_free(c);
  c->table_list = xmalloc((size_t)count * sizeof *list);
  memcpy(c->table_list, list, (size_t)count * sizeof *list);
  c->table_count = count;
  open_muon(c, list, count);

  c->table = (ParamTable){.grads_fp32 = c->options.grads_fp32};
  float *column_partials, *unused;
  const int64_t partials = describe(&c->table, list, count, &(Elsewhere){.muon = &c->muon});
  ParamTable on_host = c->table;
  const size_t bytes = place(&c->table, count, partials, NULL, &unused);
  c->table_memory = gpu_alloc(bytes); // the plan counts it
  if (!c->table_memory) CUDA_CHECK(cudaErrorMemoryAllocation);
  place(&c->table, count, partials, c->table_memory, &column_partials);
  char *block = xmalloc(bytes);
  place(&on_host, count, partials, block, &unused);
  describe(&on_host, list, count,
           &(Elsewhere){column_partials, c->table.parts, c->scalings, &c->muon});
  order_all(&on_host, list, count, !c->options.grads_fp32 && c->config.masters == MASTERS_FP32);
  const size_t made_here = (size_t)((char *)on_host.sumsq - block);
  c->base.services.write(&c->base, c->table_memory, block, made_here);
  free(block);
}

static bool same_operand(const Operand *a, const Operand *b) {
  return a->data == b->data && a->by_row == b->by_row && a->by_col == b->by_col &&
         a->stride == b->stride && a->scaling == b->scaling;
}

static bool same_tensor(const ParamTensor *a, const ParamTensor *b) {
  return a->rows == b->rows && a->cols == b->cols && a->master == b->master && a->m == b->m &&
         a->v == b->v && a->grad == b->grad && a->grad_folded == b->grad_folded &&
         same_operand(&a->compute, &b->compute) && same_operand(&a->folded, &b->folded) &&
         a->norm == b->norm && a->vector == b->vector && a->part_count == b->part_count &&
         memcmp(a->parts, b->parts, (size_t)a->part_count * sizeof *a->parts) == 0;
}

const ParamTable *cuda_table(Cuda *c, const ParamTensor *list, int count) {
  bool same = c->table_list && c->table_count == count;
  for (int i = 0; i < count && same; i++) same = same_tensor(&list[i], &c->table_list[i]);
  if (!same) build_table(c, list, count);
  return &c->table;
}
