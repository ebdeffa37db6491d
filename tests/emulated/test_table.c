// The orders of blocks that the tables of parameters have, with the host's memory in place of the
// GPU's: every block of a launch once, and those that use the bus spread among the others.
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "tests/support/test.h"

// ---- CUDA's part

void *gpu_alloc(size_t bytes) {
  return xcalloc(1, bytes);
}
cudaError_t cudaFree(void *memory) {
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
  (void)stream;
  memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}
static void write_here(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be;
  memcpy(to, from, bytes);
}

// ---- A list: a norm weight, a matrix folded with it that Muon updates, and matrices with AdamW

enum { NORM, FOLDED, HERE, OFFLOADED, TENSORS, BYTES = 1 << 20 };

typedef struct Rig {
  Cuda cuda;
  ParamTensor list[TENSORS];
  char *memory;
} Rig;

static Rig *rig_new(bool offload_folded) {
  Rig *r = xcalloc(1, sizeof *r);
  r->memory = xmalloc(BYTES);
  r->cuda.base.services.write = write_here;
  r->cuda.base.spec.grads_fp32 = true;
  const ParamTensor shapes[TENSORS] = {
      [NORM] = {.rows = 1, .cols = 512, .norm = -1, .vector = true},
      [FOLDED] = {.rows = 1024,
                  .cols = 512,
                  .norm = NORM,
                  .part_count = 2,
                  .parts = {{0, 2, 512}, {1, 2, 512}}},
      [HERE] = {.rows = 700, .cols = 512, .norm = -1, .part_count = 1, .parts = {{0, 1, 700}}},
      [OFFLOADED] = {.rows = 300, .cols = 512, .norm = -1}};
  for (int i = 0; i < TENSORS; i++) {
    ParamTensor *t = &r->list[i];
    *t = shapes[i];
    if (i == OFFLOADED || (i == FOLDED && offload_folded)) t->offloaded = OFFLOAD_MASTERS;
    char *state = r->memory + i * 4096;
    t->master = (master_t *)state;
    t->m = (moment_t *)(state + 1024);
    if (t->part_count == 0) t->v = (moment_t *)(state + 2048);
    grad_t *grad = (grad_t *)(state + 3072);
    if (i == FOLDED) t->grad_folded = grad;
    if (i != FOLDED) t->grad = grad;
  }
  return r;
}

static void rig_free(Rig *r) {
  cuda_table_free(&r->cuda);
  free(r->memory);
  free(r);
}

// The blocks [first, end) of a launch of `count`, in which those of tensors on the bus are at most
// as far apart as their number says.
static void check_order(const ParamTable *table, const LaunchBlock *order, int64_t first,
                        int64_t end, const bool *on_bus) {
  int *seen = xcalloc((size_t)(end - first) + 1, sizeof *seen);
  int64_t buses = 0, last = -1;
  for (int64_t i = 0; i < end - first; i++) {
    assert_true(order[i].block >= first && order[i].block < end);
    seen[order[i].block - first]++;
    buses += on_bus[table->tensors[order[i].tensor].index];
  }
  const int64_t most = buses > 0 ? (end - first + buses - 1) / buses : end - first + 1;
  for (int64_t i = 0; i < end - first; i++) {
    assert_int_equal(seen[i], 1);
    if (on_bus[table->tensors[order[i].tensor].index]) last = i;
    if (i - last > most) fail_msg("%lld blocks in a row without the bus", (long long)(i - last));
  }
  free(seen);
}

static void check(bool offload_folded) {
  Rig *r = rig_new(offload_folded);
  const ParamTable *t = cuda_table(&r->cuda, r->list, TENSORS);
  const bool state[TENSORS] = {[FOLDED] = offload_folded, [OFFLOADED] = true},
             folded[TENSORS] = {[FOLDED] = offload_folded};
  check_order(t, t->update_order, 0, t->vector_blocks, state);
  check_order(t, t->update_order + t->vector_blocks, t->vector_blocks, t->plain_blocks, state);
  check_order(t, t->gradient_order, 0, t->tiles, folded); // it reads masters of folded matrices
  check_order(t, t->momentum_order, 0, t->momentum_blocks, folded);
  assert_true(t->tiles >= 16 + 11 + 5 && t->momentum_blocks == 64 + 44);
  rig_free(r);
}

TEST(blocks_that_use_the_bus_are_spread) {
  check(false);
  check(true);
}
