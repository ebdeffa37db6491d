// Functions that kernels share: the storage classes as arrays, packs of bf16 values, rows that
// lanes process together, sums over warps and blocks.
#pragma once
#include <stdint.h>
#include <type_traits>
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/math.h"

#define LAUNCHED() CUDA_CHECK(cudaGetLastError())

// Threads that a multiprocessor holds at once, on every GPU that this code is assembled for: 8.0
// has 2048, but what is compiled for it is assembled for 8.6, too (kernels.mk).
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define THREADS_AN_SM 2048
#else
#define THREADS_AN_SM 1536
#endif

// The classes of kernels/ops.h, as they lie in a GPU's memory.
static inline bf16_bits *bits(act_t *x) {
  return reinterpret_cast<bf16_bits *>(x);
}
static inline const bf16_bits *bits(const act_t *x) {
  return reinterpret_cast<const bf16_bits *>(x);
}
// A statistic that its producer writes whole, in one part.
static inline float *one_part(RowStat *s) {
  s->parts = 1;
  return reinterpret_cast<float *>(s->data);
}

static inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return (unsigned)((items + per_block - 1) / per_block);
}

// N neighbours, in one access of up to 16 bytes: 8 or 4 where rows start at such boundaries, or 1.
template <int N> struct Pack { float v[N]; };

static __device__ __forceinline__ Pack<4> widen(uint2 u) {
  return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y)};
}
static __device__ __forceinline__ Pack<8> widen(uint4 u) {
  return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y),
          bf16_low(u.z), bf16_high(u.z), bf16_low(u.w), bf16_high(u.w)};
}
static __device__ __forceinline__ uint2 narrow(const Pack<4> &p) {
  return {bf16_two(p.v[0], p.v[1]), bf16_two(p.v[2], p.v[3])};
}
static __device__ __forceinline__ uint4 narrow(const Pack<8> &p) {
  return {bf16_two(p.v[0], p.v[1]), bf16_two(p.v[2], p.v[3]), bf16_two(p.v[4], p.v[5]),
          bf16_two(p.v[6], p.v[7])};
}
template <int N> using Bits = std::conditional_t<N == 8, uint4, uint2>; // of a Pack as bf16

template <int N> static __device__ __forceinline__ Pack<N> load_pack(const bf16_bits *from) {
  if constexpr (N == 1)
    return {bf16_to_float(*from)};
  else
    return widen(*reinterpret_cast<const Bits<N> *>(from));
}

// Stores the rounded values, and writes them back into `p`.
template <int N> static __device__ __forceinline__ void store_pack(bf16_bits *to, Pack<N> &p) {
  if constexpr (N == 1) {
    *to = bf16_from_float(p.v[0]);
    p.v[0] = bf16_to_float(*to);
  } else {
    const Bits<N> b = narrow(p);
    *reinterpret_cast<Bits<N> *>(to) = b;
    p = widen(b);
  }
}

// The same of fp32; 8 are two accesses.
static __device__ __forceinline__ Pack<4> four(float4 f) {
  return {f.x, f.y, f.z, f.w};
}
template <int N> static __device__ __forceinline__ Pack<N> load_pack(const float *from) {
  const float4 *fours = reinterpret_cast<const float4 *>(from);
  if constexpr (N == 1)
    return {*from};
  else if constexpr (N == 4)
    return four(*fours);
  else
    return {fours[0].x, fours[0].y, fours[0].z, fours[0].w,
            fours[1].x, fours[1].y, fours[1].z, fours[1].w};
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<1> &p) {
  *to = p.v[0];
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<4> &p) {
  *reinterpret_cast<float4 *>(to) = {p.v[0], p.v[1], p.v[2], p.v[3]};
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<8> &p) {
  store_pack(to, Pack<4>{p.v[0], p.v[1], p.v[2], p.v[3]});
  store_pack(to + 4, Pack<4>{p.v[4], p.v[5], p.v[6], p.v[7]});
}

// Accesses of data that is read or written once a step: they bypass the caches.
template <int N> static __device__ __forceinline__ Pack<N> load_once(const float *from) {
  if constexpr (N == 1)
    return {__ldcs(from)};
  else
    return four(__ldcs(reinterpret_cast<const float4 *>(from)));
}
template <int N> static __device__ __forceinline__ Pack<N> load_once(const bf16_bits *from) {
  if constexpr (N == 1)
    return {bf16_to_float(__ldcs(from))};
  else
    return widen(__ldcs(reinterpret_cast<const Bits<N> *>(from)));
}
template <int N>
static __device__ __forceinline__ void store_once(bf16_bits *to, const Pack<N> &p) {
  if constexpr (N == 1)
    __stcs(to, bf16_from_float(p.v[0]));
  else
    __stcs(reinterpret_cast<Bits<N> *>(to), narrow(p));
}
static __device__ __forceinline__ void store_once(float *to, const Pack<1> &p) {
  __stcs(to, p.v[0]);
}
static __device__ __forceinline__ void store_once(float *to, const Pack<4> &p) {
  __stcs(reinterpret_cast<float4 *>(to), {p.v[0], p.v[1], p.v[2], p.v[3]});
}

// Calls launch with a null pointer to the gradients' type.
template <class Launch> static void by_gradient(bool fp32, Launch launch) {
  if (fp32)
    launch((float *)nullptr);
  else
    launch((bf16_bits *)nullptr);
}

// ---- Rows of bf16 and of e4m3, unpacked for kernels that read either

// WIDTH values an access.
template <int N> struct Bf16 {
  static constexpr int WIDTH = N;
  using Element = bf16_bits;
  using Raw = std::conditional_t<N == 1, bf16_bits, Bits<N>>;
  static __device__ __forceinline__ Pack<N> values(Raw raw) {
    if constexpr (N == 1)
      return {bf16_to_float(raw)};
    else
      return widen(raw);
  }
  static __device__ __forceinline__ int column(int i) { // of value i
    return i;
  }
};

struct E4m3 {
  static constexpr int WIDTH = 16;
  using Element = uint8_t;
  using Raw = uint4;
  static __device__ __forceinline__ Pack<16> values(Raw raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    Pack<16> p;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint16_t two = (uint16_t)(words[i / 2] >> (i % 2 * 16));
      const float2 v = __half22float2(half2_of_e4m3(two));
      p.v[2 * i] = v.x;
      p.v[2 * i + 1] = v.y;
    }
    return p;
  }
  static __device__ __forceinline__ int column(int i) { // undoes fp8_column_place
    return i / 2 % 2 * 8 + i / 4 * 2 + i % 2;
  }
};

// ---- Sums in a fixed order
// The sum of values[count] by a block of 1024 threads; thread 0 gets it. UNROLL: loads in flight.
template <int UNROLL>
static __device__ __forceinline__ double sum_by_block(int64_t count, const float *values) {
  __shared__ double part[1024];
  double sum = 0;
#pragma unroll UNROLL
  for (int64_t i = threadIdx.x; i < count; i += 1024) sum += (double)values[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = 512; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  return part[0];
}

static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Over groups of `lanes` neighbours, a power of two.
static __device__ __forceinline__ float group_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum over a block of whole warps, at most 32; every thread gets it. Ends with all threads past
// their reads of `scratch` only after the caller's next barrier: use one scratch a call.
static __device__ __forceinline__ float block_sum(float value, float *scratch /* [32] */) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

template <int N> static __device__ __forceinline__ float square_sum(const Pack<N> &p) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; i++) sum += p.v[i] * p.v[i];
  return sum;
}

// ---- Row statistics
static __device__ __forceinline__ float stat_part(const RowStat &s, int part, int64_t m) {
  return reinterpret_cast<const float *>(s.data)[part * s.stride + m];
}
static __device__ __forceinline__ float row_sum(const RowStat &s, int64_t m) {
  float sum = stat_part(s, 0, m);
#pragma unroll 8 // their loads are in flight together
  for (int part = 1; part < s.parts; part++) sum += stat_part(s, part, m);
  return sum;
}
// r / q
static __device__ __forceinline__ float row_rstd(const RowScale &r, int64_t m) {
  const float rstd = rms_rstd(row_sum(r.sumsq, m), r.D, r.eps);
  return r.q ? rstd / r.q[m] : rstd;
}

// The same where `lanes` neighbours, a power of two, work on one row: each reads every lanes-th
// part, so that many parts take the time of one load and not the issue slots of all. All lanes of
// the warp call these, those whose row does not exist with `exists` false.
static __device__ __forceinline__ float row_share(const RowStat &s, int64_t m, bool exists,
                                                  int lane, int lanes) {
  float sum = 0;
  for (int part = exists ? lane : s.parts; part < s.parts; part += lanes)
    sum += stat_part(s, part, m);
  return sum;
}
static __device__ __forceinline__ float rstd_from_shares(const RowScale &r, float share,
                                                         int lanes) {
  return rms_rstd(group_sum(share, lanes), r.D, r.eps);
}

// ---- Kernels that process rows, each by a group of 4 to 32 lanes, so that few lanes are idle on
// narrow rows. Launch: row_blocks blocks of ROW_THREADS, a thread for each lane of each row.
enum { ROW_THREADS = 256 };

// The number of lanes that share a row of `packs` accesses: as many as possible with at most an
// eighth of them idle at its end, but no fewer than read 64 bytes at once.
static inline int lanes_a_row(int64_t packs) {
  int lanes = 32;
  while (lanes > 4 && (packs + lanes - 1) / lanes * lanes * 8 > packs * 9) lanes /= 2;
  return lanes;
}

static inline unsigned row_blocks(int64_t M, int lanes) {
  return blocks_for(M * lanes, ROW_THREADS);
}

// The lane's place: row m, and which of the row's lanes. Lanes of rows past the end stay for the
// sums of their warp.
struct Lane {
  int64_t m;
  int lane;
  bool exists;
};
static __device__ __forceinline__ Lane my_lane(int64_t M, int lanes) {
  const int64_t thread = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
  const int64_t m = thread >> (31 - __clz(lanes));
  return {m, (int)(threadIdx.x & (unsigned)(lanes - 1)), m < M};
}

// Calls launch(width, lanes): width is 8 values where rows are whole 16-byte accesses, else 1.
template <int N> using Width = std::integral_constant<int, N>;
template <class Launch> static void by_width(int64_t cols, Launch launch) {
  if (cols % 8 == 0)
    launch(Width<8>(), lanes_a_row(cols / 8));
  else
    launch(Width<1>(), 32);
  LAUNCHED();
}

// ---- Kernels of one token, each of which starts early

// Lets blocks of the next kernel start, and waits until the kernels before this one have ended and
// their writes are visible.
static __device__ __forceinline__ void take_turn() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches a kernel that calls take_turn, early where the GPU can, in clusters of so many blocks.
template <class... P, class... A>
static void launch_early(const Gpu *gpu, dim3 blocks, int threads, int cluster,
                         void (*kernel)(P...), A... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {(unsigned)cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3((unsigned)threads);
  config.stream = gpu->stream;
  config.attrs = attributes;
  config.numAttrs = gpu->compiled_for < 90 ? 0 : cluster > 1 ? 2 : 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

// ---- Clusters

// barrier.cluster.arrive, barrier.cluster.wait: all threads of the cluster
static __device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// mapa: where *mine, in shared memory, lies in the cluster's block `rank`
template <class T> static __device__ __forceinline__ T *in_block(T *mine, int rank) {
  T *there = mine;
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
#endif
  return there;
}
