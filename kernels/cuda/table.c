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
#include "kernels/cuda/interleave.h"

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool is_norm_of_another(const ParamTensor *list, int count, int i) {
  for (int j = 0; j < count; j++)
    if (list[j].norm == i) return true;
  return false;
}

// ---- Building the tables

const Operand *cuda_fp8_use(const ParamTensor *p) {
  return p->folded.fp8 ? &p->folded : p->compute.fp8 ? &p->compute : NULL;
}

// The order of tensors in the update: folded copies read the updated norm weights. Vectors are norm
// weights, and their masters are fp32 (master_bytes).
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

// What the tables point to.
typedef struct DevicePointers {
  float *partials; // of columns, and copies of norms
  const DevicePart *parts;
  Scaling *scalings;
  Muon *muon;
} DevicePointers;

static float muon_rate(int64_t rows, int64_t cols) {
  return (float)(MUON_SCALE * sqrt((double)(rows > cols ? rows : cols)));
}

static int32_t shift_of(int64_t step) {
  int32_t shift = 0;
  while ((int64_t)1 << shift < step) shift++;
  assert((int64_t)1 << shift == step);
  return shift;
}

// Gives the tensor's parts their places in the groups, in the order of this walk. next: the part of
// the tables that is theirs.
static void describe_parts(const ParamTensor *p, const DeviceTensor *t, Muon *muon,
                           DevicePart *next) {
  for (int k = 0; k < p->part_count; k++) {
    const MatrixPart *part = &p->parts[k];
    const MuonPlace place = muon_place(muon, part->rows, p->cols);
    next[k] = (DevicePart){.first = part->first,
                           .rows = part->rows,
                           .shift = shift_of(part->step),
                           .slot = k,
                           .slots = p->part_count,
                           .rate = muon_rate(part->rows, p->cols),
                           .direction = place.X,
                           .factor = place.factor,
                           .first_block = t->first_momentum,
                           .blocks = momentum_blocks(p)};
  }
}

static void describe_copies(DeviceTensor *t, const ParamTensor *p, Scaling *scalings) {
  const Operand *fp8 = cuda_fp8_use(p);
  const bool own = (const void *)p->compute.data != (const void *)p->master;
  t->compute = own ? (bf16_bits *)p->compute.data : NULL;
  t->folded = (bf16_bits *)p->folded.data;
  if (!fp8) return;
  t->by_row = (uint8_t *)fp8->by_row;
  t->by_col = (uint8_t *)fp8->by_col;
  t->stride = fp8->stride;
  t->scaling = &scalings[fp8->scaling];
}

static int64_t column_blocks(const ParamTensor *p) {
  return p->norm >= 0 ? ceil_div(p->cols, COLUMN_BLOCK) : 0;
}

// Floats of a folded matrix: a copy of its norm, and of each tile of rows a sum of each column.
static int64_t partials_of(const ParamTensor *p) {
  return p->norm >= 0 ? (1 + ceil_div(p->rows, TILE_ROWS)) * p->cols : 0;
}

// The numbers of all blocks and parts. Returns the floats of all tensors' partials.
static int64_t count_blocks(ParamTable *table, const ParamTensor *list, int count) {
  int64_t of_class[CLASSES] = {0}, partials = 0;
  for (int i = 0; i < count; i++) {
    const ParamTensor *p = &list[i];
    of_class[class_of(p)] += update_blocks(p);
    table->tiles += gradient_blocks(p, is_norm_of_another(list, count, i));
    table->columns += column_blocks(p);
    table->momentum_blocks += momentum_blocks(p);
    table->part_count += p->part_count;
    partials += partials_of(p);
  }
  table->vector_blocks = of_class[VECTORS];
  table->plain_blocks = table->vector_blocks + of_class[PLAIN];
  table->update_blocks = table->plain_blocks + of_class[TILED];
  return partials;
}

// How much of each launch and table the tensors before have.
typedef struct Given {
  int64_t updates, tiles, columns, momentum, parts, partials;
} Given;

// Gives a tensor the next `more`; returns the first.
static int64_t give(int64_t *given, int64_t more) {
  *given += more;
  return *given - more;
}

static DeviceTensor describe_tensor(const ParamTensor *list, int count, int i, Given *given,
                                    const DevicePointers *at) {
  const ParamTensor *p = &list[i], *norm = p->norm >= 0 ? &list[p->norm] : NULL;
  float *const partials = at->partials + give(&given->partials, partials_of(p));
  DeviceTensor t = {.rows = p->rows,
                    .cols = p->cols,
                    .master = p->master,
                    .m = p->m_near ? p->m_near : p->m,
                    .v = p->v_near ? p->v_near : p->v,
                    .grad = p->grad,
                    .grad_folded = p->grad_folded,
                    .norm = norm ? (const float *)norm->master : NULL,
                    .norm_grad = norm ? norm->grad : NULL,
                    .norm_before = norm ? partials : NULL,
                    .column_partials = norm ? partials + p->cols : NULL,
                    .first_update = give(&given->updates, update_blocks(p)),
                    .first_tile =
                        give(&given->tiles, gradient_blocks(p, is_norm_of_another(list, count, i))),
                    .first_column = give(&given->columns, column_blocks(p)),
                    .first_momentum = give(&given->momentum, momentum_blocks(p)),
                    .parts = at->parts + give(&given->parts, p->part_count),
                    .part_count = p->part_count,
                    .vector = p->vector,
                    .index = i};
  describe_copies(&t, p, at->scalings);
  return t;
}

// Fills the table, which has its memory, by class, except for the orders of blocks.
static void describe(ParamTable *table, const ParamTensor *list, int count,
                     const DevicePointers *at) {
  Given given = {0};
  int32_t n = 0;
  for (int class = 0; class < CLASSES; class ++)
    for (int i = 0; i < count; i++) {
      if (class_of(&list[i]) != class) continue;
      DevicePart *parts = table->parts + given.parts;
      table->tensors[n] = describe_tensor(list, count, i, &given, at);
      describe_parts(&list[i], &table->tensors[n], at->muon, parts);
      for (int64_t k = table->tensors[n].first_column; k < given.columns; k++)
        table->column_owner[k] = n;
      n++;
    }
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
      order[interleaved_place(s.bus, given[s.bus]++, counts[s.bus], counts[0] + counts[1])] =
          (LaunchBlock){at, (int32_t)(s.first + i)};
  }
}

// Of a tensor with parts the update's kernels read no moments, and those that are lent are near.
static Share share_of_update(const DeviceTensor *t, const ParamTensor *p, int class) {
  const Offload reads = p->part_count > 0 || p->m_near ? OFFLOAD_MASTERS : OFFLOAD_MOMENTS;
  return (Share){t->first_update, class_of(p) == class ? update_blocks(p) : 0,
                 p->offloaded >= reads};
}

// The kernel reads the gradients, and of a folded matrix the master or its FP8 or bf16 copy
// (optimizer.cu: of_copy).
static Share share_of_gradients(const DeviceTensor *t, const ParamTensor *p, bool is_norm,
                                const Spec *spec) {
  const bool copy = t->by_row || (t->folded && spec->masters == MASTERS_FP32),
             master = t->norm && !(copy && !spec->grads_fp32);
  return (Share){t->first_tile, gradient_blocks(p, is_norm),
                 p->offloaded >= (master ? OFFLOAD_MASTERS : OFFLOAD_GRADIENTS)};
}

static Share share_of_momentum(const DeviceTensor *t, const ParamTensor *p) {
  return (Share){t->first_momentum, momentum_blocks(p),
                 p->offloaded >= OFFLOAD_MOMENTS && !p->m_near};
}

static void order_all(ParamTable *table, const ParamTensor *list, int count, const Spec *spec) {
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
    shares[at] = share_of_gradients(t, &list[t->index], is_norm, spec);
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
  const int64_t partials = count_blocks(&table, list, count);
  return place(&table, count, partials, NULL, &column_partials) + muon_bytes(list, count);
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

  c->table = (ParamTable){.grads_fp32 = c->base.spec.grads_fp32};
  float *column_partials, *unused;
  const int64_t partials = count_blocks(&c->table, list, count);
  ParamTable on_host = c->table;
  const size_t bytes = place(&c->table, count, partials, NULL, &unused);
  c->table_memory = gpu_alloc(bytes); // the plan counts it
  if (!c->table_memory) CUDA_CHECK(cudaErrorMemoryAllocation);
  place(&c->table, count, partials, c->table_memory, &column_partials);
  char *block = xmalloc(bytes);
  place(&on_host, count, partials, block, &unused);
  describe(&on_host, list, count,
           &(DevicePointers){column_partials, c->table.parts, c->scalings, &c->muon});
  order_all(&on_host, list, count, &c->base.spec);
  const size_t made_here = (size_t)((char *)on_host.sumsq - block);
  c->base.services.write(&c->base, c->table_memory, block, made_here);
  free(block);
}

const ParamTable *cuda_table(Cuda *c, const ParamTensor *list, int count) {
  if (!c->table_list || c->table_count != count ||
      memcmp(list, c->table_list, (size_t)count * sizeof *list) != 0)
    build_table(c, list, count);
  return &c->table;
}
