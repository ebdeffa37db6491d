// A thread block on the CPU: its warps are 32 fibers in step each. And what device code calls of
// CUDA. The compiler is told to include it before everything else.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>

// Runs body(thread) for the threads of a block. Of warps that wait for nothing the last one runs
// first, as far as it comes, and in the next block the first one: whoever forgets a barrier reads
// what is not there yet. A barrier that some warps leave to the others is an error.
void block_run(int threads, const std::function<void(int)> &body);
// body(lane) for lanes 0 to 31.
static inline void warp_run(const std::function<void(int)> &body) {
  block_run(32, body);
}
// What the lanes of this thread's warp give, in their order, until they exchange once more but one.
// A lane that leaves it to the others is an error.
struct Given {
  uint32_t words[6];
};
const Given *warp_exchange(const Given &mine);
// __syncthreads.
void block_sync();
// The running thread in its block.
int block_thread();

static inline float __shfl_xor_sync(unsigned, float value, int mask) {
  Given mine = {};
  memcpy(mine.words, &value, sizeof value);
  memcpy(&value, warp_exchange(mine)[(block_thread() & 31) ^ mask].words, sizeof value);
  return value;
}
static inline uint64_t __shfl_up_sync(unsigned, uint64_t value, int by) {
  Given mine = {};
  memcpy(mine.words, &value, sizeof value);
  const Given *all = warp_exchange(mine);
  const int lane = block_thread() & 31;
  memcpy(&value, all[lane < by ? lane : lane - by].words, sizeof value);
  return value;
}
static inline void __syncwarp() {
  warp_exchange({});
}
static inline int __any_sync(unsigned, int mine) {
  const Given *all = warp_exchange({{mine != 0}});
  unsigned any = 0;
  for (int i = 0; i < 32; i++) any |= all[i].words[0];
  return any != 0;
}
#define __syncthreads block_sync
// True where it is for any thread of the block.
int __syncthreads_or(int mine);
static inline uint3 thread_index() {
  return {(unsigned)block_thread(), 0, 0};
}
#define threadIdx thread_index()
extern uint3 blockIdx;
extern dim3 blockDim, gridDim;

// Runs a grid's blocks one after the other.
void run_grid(dim3 grid, dim3 block, const std::function<void()> &thread);
// kernel<<<grid, block, ...>>>(args...), of which tests.mk makes kernel / on_grid(grid, block,
// ...)(args...).
template <class Call> struct Launched {
  dim3 grid, block;
  Call call;
};
template <class... P, class Call>
void operator/(void (*kernel)(P...), const Launched<Call> &launched) {
  run_grid(launched.grid, launched.block, [&] { launched.call(kernel); });
}
static inline auto on_grid(dim3 grid, dim3 block, size_t, void *) {
  return [=](auto... args) {
    const auto call = [=](auto *kernel) { kernel(args...); };
    return Launched<decltype(call)>{grid, block, call};
  };
}
// Clusters are not emulated.
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... args) {
  if (config->numAttrs > 0) return cudaErrorInvalidConfiguration;
  kernel / on_grid(config->gridDim, config->blockDim, 0, nullptr)(args...);
  return cudaSuccess;
}
// What tests.mk makes of __shared__ in kernels. Each block finds NaN there.
#define STATIC_SHARED static __attribute__((section("shared_memory")))
#undef __shared__
#define __shared__

template <class T> static inline T __ldg(const T *p) {
  return *p;
}
template <class T> static inline T __ldcs(const T *p) {
  return *p;
}
template <class T> static inline T __ldcg(const T *p) {
  return *p;
}
template <class T> static inline void __stcs(T *p, T value) {
  *p = value;
}
static inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline float rsqrtf(float x) {
  return 1 / sqrtf(x);
}
static inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline size_t __cvta_generic_to_shared(const void *) {
  return 0;
}
static inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
// Byte i of the result is the one of x, 0 to 3, or y, 4 to 7, that nibble i names.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned nibbles) {
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned from = nibbles >> 4 * i & 7;
    result |= ((from < 4 ? x : y) >> 8 * (from & 3) & 0xff) << 8 * i;
  }
  return result;
}
static inline unsigned __reduce_max_sync(unsigned, unsigned bits) {
  for (int mask = 1; mask < 32; mask *= 2) {
    const unsigned other = __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(bits), mask));
    if (other > bits) bits = other;
  }
  return bits;
}
static inline unsigned atomicMax(unsigned *to, unsigned value) {
  const unsigned old = *to;
  if (value > old) *to = value;
  return old;
}
static inline unsigned atomicAdd(unsigned *to, unsigned value) {
  const unsigned old = *to;
  *to = old + value;
  return old;
}
static inline unsigned atomicInc(unsigned *to, unsigned most) {
  const unsigned old = *to;
  *to = old >= most ? 0 : old + 1;
  return old;
}
static inline void __threadfence() {}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __floats2half2_rn(fmaf(__low2float(a), __low2float(b), __low2float(c)),
                           fmaf(__high2float(a), __high2float(b), __high2float(c)));
}
static inline int min(int a, int b) {
  return a < b ? a : b;
}
static inline int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
static inline int max(int a, int b) {
  return a > b ? a : b;
}
static inline unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}
#define __launch_bounds__(...)
#define __expf expf // glibc declares one of its own
#define __logf logf
