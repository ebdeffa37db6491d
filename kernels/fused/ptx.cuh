// One function an instruction of sm_90a, named after it; the name of its section in NVIDIA's "PTX
// ISA" stands above it. Addresses in shared memory are 32-bit addresses of the shared window.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- mbarriers: "Parallel Synchronization and Communication Instructions: mbarrier"

// mbarrier.init
static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// mbarrier.arrive.expect_tx: one arrival, and `bytes` more that the copy engine is to bring.
static __device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// mbarrier.arrive
static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// mapa; mbarrier.arrive on the same barrier of block `rank` of the cluster. Without
// .release.cluster, which compiles to a MEMBAR.ALL.GPU of some 1400 cycles: what these arrivals
// order are wgmma's reads of shared memory, and those have ended once wgmma.wait_group has
// returned.
static __device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("{\n\t.reg .b32 there;\n\t"
               "mapa.shared::cluster.u32 there, %0, %1;\n\t"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
               "r"(rank)
               : "memory");
}
// mbarrier.try_wait until the phase of this parity has ended. A fresh barrier says so of parity 1
// at once.
static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n\t.reg .pred ended;\n\t"
               "again:\n\t"
               "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t"
               "@!ended bra again;\n\t}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}
// fence.mbarrier_init: other blocks of the cluster see the barriers initialised.
static __device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// barrier.cluster.arrive, barrier.cluster.wait: all threads of the cluster
static __device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// "Special Registers: %cluster_ctarank"
static __device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- The copy engine (TMA): "Data Movement and Conversion Instructions: Tensor Copy". Coordinates
// are in elements, `column` along the rows in memory. What lies outside of the tensor is read as
// zeros and not written.

// prefetch.tensormap
static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// cp.async.bulk.tensor, global to shared; signals the barrier with its bytes
static __device__ __forceinline__ void tensor_load(const CUtensorMap *map, uint32_t barrier,
                                                   uint32_t to, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
               "l"(map), "r"(barrier), "r"(column), "r"(row)
               : "memory");
}
// The same with .multicast::cluster: to the same place in every block whose bit in `ranks` is set,
// each of which has its own barrier signalled.
static __device__ __forceinline__ void tensor_load_multicast(const CUtensorMap *map,
                                                             uint32_t barrier, uint32_t to,
                                                             int column, int row, uint16_t ranks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
               "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(ranks)
               : "memory");
}
// cp.async.bulk.tensor, shared to global
static __device__ __forceinline__ void tensor_store(const CUtensorMap *map, uint32_t from,
                                                    int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}
// cp.async.bulk.commit_group: the stores of this thread so far are a group
static __device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// cp.async.bulk.wait_group.read: all but the newest GROUPS have read what they store
template <int GROUPS> __device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
// "membar, fence": fence.proxy.async: what this thread stored in shared memory is there for the
// copy engine
static __device__ __forceinline__ void fence_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Registers. setmaxnreg: gives registers back, or takes them; the whole warpgroup calls it.
template <int REGISTERS> __device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- 8x8 matrices of 16-bit elements: "Warp-level Matrix Instructions". Lanes 8i to 8i + 7 give
// the addresses of the 16-byte rows of matrix i; lane l holds elements 2 (l % 4) and the next of
// row l / 4 of each.

// stmatrix
static __device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b,
                                                      uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// ldmatrix
static __device__ __forceinline__ void load_matrices(uint32_t from, uint32_t &a, uint32_t &b,
                                                     uint32_t &c, uint32_t &d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
}
// ld.shared, st.shared
static __device__ __forceinline__ float shared_load(uint32_t from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
static __device__ __forceinline__ void shared_store(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
