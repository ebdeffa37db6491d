// Generation: products of one row, and attention of the last rows of one sequence.
//
// A token is a chain of small kernels that read the weights once. Their blocks start early, as soon
// as those of the kernel before have started and leave room. They load their first weights, or keys
// of earlier tokens, which nobody writes meanwhile, and then wait for that kernel's end. A block
// may be older than what it reads then, and so may its first-level cache. So activations, whose
// memory earlier layers used before, are read from the second-level cache; rows of the KV cache are
// written once.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

// ---- A product of one row. Its only cost is reading the weights once. Launch: a pair of rows of W
// per warp, or a slice of their columns, so that most warps load all of theirs at once: a lane
// every 32nd 16 bytes, AHEAD of each row. A pair is what RoPE rotates, or gate and up: a Finish
// gets both sums.

enum { GEMV_WARPS = 4, GEMV_THREADS = GEMV_WARPS * 32, PAIR = 2, AHEAD = 8 };
enum { SLICE = 32 * AHEAD }; // accesses of a warp to a row

// 16 bytes at such boundaries to shared memory, without registers.
static __device__ __forceinline__ void copy_unit(uint4 *to, const bf16_bits *from) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
      "l"(from)
      : "memory");
#else
  if ((uintptr_t)from % 16) __builtin_trap(); // as a GPU does
  memcpy(to, from, 16);
#endif
}
static __device__ __forceinline__ void copies_wait() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Of the `left` accesses to a row those of the lane; others stay.
template <class Raw>
static __device__ __forceinline__ void load_slice(Raw (&to)[AHEAD], const Raw *row, int left) {
#pragma unroll
  for (int j = 0; j < AHEAD; j++)
    if (32 * j < left) to[j] = __ldcs(row + 32 * j);
}

template <int N> static __device__ __forceinline__ Pack<N> load_staged(const bf16_bits *from) {
  constexpr int COUNT = N < 8 ? N : 8;
  Pack<N> p;
#pragma unroll
  for (int i = 0; i < N; i += COUNT) {
    const Pack<COUNT> part = load_pack<COUNT>(from + i);
#pragma unroll
    for (int j = 0; j < COUNT; j++) p.v[i + j] = part.v[j];
  }
  return p;
}

// On a multiprocessor, without spills.
template <class Format> constexpr int GEMV_BLOCKS = Format::WIDTH > 8 ? 4 : 5;

// NORM: x is an RMSNorm's input, and r its row scale; else r is 1. 2^shift warps have a pair.
// scaling: of W's copies, or NULL.
template <class Format, bool NORM, class Finish>
static __global__ __launch_bounds__(GEMV_THREADS, GEMV_BLOCKS<Format>) void gemv_kernel(
    int64_t rows, int K, int shift, float eps, const bf16_bits *x,
    const typename Format::Element *W, const Scaling *scaling, Finish finish) {
  using Raw = typename Format::Raw;
  constexpr int N = Format::WIDTH;
  __shared__ __align__(16) bf16_bits staged[GEMV_WARPS * SLICE * N];
  __shared__ float of_warp[GEMV_WARPS][PAIR + 1];
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  const int span = SLICE << shift, slice = warp & ((1 << shift) - 1), mine = slice * SLICE + lane;
  const int64_t n = ((int64_t)blockIdx.x * GEMV_WARPS + warp) >> shift << 1;
  const Raw *of_W[PAIR];
  Raw w[PAIR][AHEAD] = {};
#pragma unroll
  for (int i = 0; i < PAIR; i++) {
    of_W[i] = reinterpret_cast<const Raw *>(W + min(n + i, rows - 1) * K) + mine;
    load_slice(w[i], of_W[i], K / N - mine);
  }
  decltype(finish.load(n)) loaded;
  if (Finish::EARLY) loaded = finish.load(min(n, rows - 1));
  take_turn();
  if (!Finish::EARLY) loaded = finish.load(min(n, rows - 1));
  float sum[PAIR + 1] = {};
  for (int first = 0; first < K / N; first += span) {
#pragma unroll
    for (int i = 0; i < PAIR && first > 0; i++)
      load_slice(w[i], of_W[i] + first, K / N - mine - first);
    if (first > 0) __syncthreads();
    constexpr int UNIT = N < 8 ? 1 : 8; // columns: rows are whole units
#pragma unroll 1                        // for registers
    for (int i = (int)threadIdx.x * UNIT; i < span * N; i += GEMV_THREADS * UNIT) {
      const int column = first * N + i;
      uint4 *unit = reinterpret_cast<uint4 *>(staged + i);
      if constexpr (UNIT == 1)
        staged[i] = column < K ? __ldcg(x + column) : (bf16_bits)0;
      else if (column < K)
        copy_unit(unit, x + column);
      else
        *unit = {};
    }
    copies_wait();
    __syncthreads();
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      if (first + slice * SLICE + 32 * j >= K / N) break;
      const Pack<N> p = load_staged<N>(staged + (mine + 32 * j) * N);
      if (NORM) sum[PAIR] += square_sum(p);
#pragma unroll
      for (int i = 0; i < PAIR; i++) {
        const Pack<N> q = Format::values(w[i][j]);
#pragma unroll
        for (int e = 0; e < N; e++) sum[i] += p.v[Format::column(e)] * q.v[e];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < PAIR + NORM; i++) {
    sum[i] = warp_sum(sum[i]);
    of_warp[warp][i] = sum[i];
  }
  if (shift > 0) __syncthreads();
#pragma unroll
  for (int i = 0; i < PAIR + NORM; i++)
    for (int other = 1; other < 1 << shift && slice == 0; other++)
      sum[i] += of_warp[warp + other][i];
  if (lane > 0 || slice > 0 || n >= rows) return;
  const float inverse = scaling ? scaling->inverse : 1, r = NORM ? rms_rstd(sum[PAIR], K, eps) : 1;
  finish.store(n, sum[0] * inverse, sum[1] * inverse, r, loaded);
}

// The sums themselves (+ add, or NULL).
struct Plain {
  static constexpr bool EARLY = false; // what it loads, an earlier kernel writes
  int64_t rows;
  const bf16_bits *add;
  bf16_bits *out;

  __device__ float2 load(int64_t n) const {
    if (!add) return {0, 0};
    return {bf16_to_float(__ldcg(add + n)), n + 1 < rows ? bf16_to_float(__ldcg(add + n + 1)) : 0};
  }
  __device__ void store(int64_t n, float a, float b, float r, float2 before) const {
    out[n] = bf16_from_float(r * a + before.x);
    if (n + 1 < rows) out[n + 1] = bf16_from_float(r * b + before.y);
  }
};

// Heads of q and k are rotated, in row *position of the cache.
struct Rotated {
  static constexpr bool EARLY = true;
  int R, rotated, d; // (H + 2 KV) d, (H + KV) d
  const int32_t *position;
  const float *table; // [max_positions, d / 2, 2] cosine and sine
  bf16_bits *cache;   // [.., R]

  struct Loaded {
    int64_t position;
    float2 angle;
  };
  __device__ Loaded load(int64_t n) const {
    const int64_t at = *position;
    if (n >= rotated) return {at, {1, 0}};
    return {at, *reinterpret_cast<const float2 *>(table + at * d + (int)n % d)};
  }
  __device__ void store(int64_t n, float a, float b, float r, Loaded at) const {
    a *= r, b *= r;
    rope_rotate(&a, &b, at.angle.x, at.angle.y);
    *reinterpret_cast<uint32_t *>(cache + at.position * R + n) = bf16_two(a, b);
  }
};

// y = silu(gate) up. z stays the plain product.
struct Activated {
  static constexpr bool EARLY = true;
  int64_t F;
  bf16_bits *z, *y; // [2F], [F]

  __device__ int load(int64_t) const {
    return 0;
  }
  __device__ void store(int64_t n, float gate, float up, float r, int) const {
    *reinterpret_cast<uint32_t *>(z + n) = bf16_two(gate, up);
    y[feature_of_pair(n / 2, F)] = bf16_from_float(swiglu(r * gate, r * up));
  }
};

template <class Format, bool NORM, class Finish>
static void launch_gemv(const Cuda *c, int64_t rows, int64_t K, const act_t *x, const void *W,
                        const Scaling *scaling, Finish finish) {
  const int64_t packs = K / Format::WIDTH;
  const int shift = packs <= SLICE ? 0 : packs <= 2 * SLICE ? 1 : 2;
  launch_early(&c->gpu, blocks_for(rows << shift, GEMV_WARPS * PAIR), GEMV_THREADS, 1,
               gemv_kernel<Format, NORM, Finish>, rows, (int)K, shift,
               (float)c->base.spec.rms_norm_eps, bits(x),
               reinterpret_cast<const typename Format::Element *>(W), scaling, finish);
}

template <bool NORM, class Finish>
static void gemv(const Cuda *c, int64_t rows, int64_t K, const act_t *x, Operand W, Finish finish) {
  if (W.by_row)
    launch_gemv<E4m3, NORM>(c, rows, K, x, W.by_row, c->scalings + W.scaling, finish);
  else
    by_width(K, [&](auto width, int) {
      launch_gemv<Bf16<decltype(width)::value>, NORM>(c, rows, K, x, W.data, nullptr, finish);
    });
}

void cuda_gemv(Cuda *c, int64_t N, int64_t K, const act_t *a, Operand W, const act_t *add,
               act_t *out) {
  gemv<false>(c, N, K, a, W, Plain{N, bits(add), bits(out)});
}

void cuda_gate_up_row(Cuda *c, const act_t *x, Operand W, act_t *z, act_t *y) {
  const Spec *s = &c->base.spec;
  gemv<true>(c, 2 * s->F, s->D, x, W, Activated{s->F, bits(z), bits(y)});
}

void cuda_qkv_token(Backend *be, const int32_t *position, Operand x, RowStat, Operand W,
                    act_t *cache) {
  const Cuda *c = cuda_of(be);
  const Spec *s = &c->base.spec;
  const int64_t R = packed_width(s);
  gemv<true>(c, R, s->D, x.data, W,
             Rotated{(int)R, (int)(R - s->KV * s->d), (int)s->d, position, c->rope, bits(cache)});
}

void cuda_row_logits(Backend *be, Operand x, RowStat, Operand W, act_t *logits) {
  const Cuda *c = cuda_of(be);
  const Spec *s = &c->base.spec;
  gemv<true>(c, s->V, s->D, x.data, W, Plain{s->V, nullptr, bits(logits)});
}

// ---- e4m3 weights for the rows of a prompt, whose products multiply in bf16. Launch: a thread for
// 16 values.

static __global__ void widen_kernel(int64_t count, const uint4 *W, const Scaling *scaling,
                                    uint4 *to) {
  const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
  if (i >= count) return;
  const Pack<16> p = E4m3::values(W[i]);
  Pack<8> ordered[2];
#pragma unroll
  for (int e = 0; e < 16; e++)
    ordered[E4m3::column(e) / 8].v[E4m3::column(e) % 8] = p.v[e] * scaling->inverse;
  to[2 * i] = narrow(ordered[0]);
  to[2 * i + 1] = narrow(ordered[1]);
}

Operand cuda_widened(Cuda *c, int64_t N, int64_t K, Operand W) {
  const int64_t count = N * K / E4m3::WIDTH;
  widen_kernel<<<blocks_for(count, ROW_THREADS), ROW_THREADS, 0, c->gpu.stream>>>(
      count, reinterpret_cast<const uint4 *>(W.by_row), c->scalings + W.scaling,
      reinterpret_cast<uint4 *>(c->widened));
  LAUNCHED();
  return operand_of(c->widened);
}

// ---- Attention of generation: the queries of one sequence's last rows attend to the whole cache.
// softmax(q k^T / sqrt(d)) v, causal, grouped queries; the softmax is computed online, in fp32.
// Launch: a block has one row and up to HEADS query heads of a key/value head, and reads one of
// `splits` parts of the keys. LANES neighbours share a key, 8 of its columns each (d <= 256, a
// multiple of 8), so that it is read once for all of those heads, 16 bytes a lane. Softmaxes are
// joined in a fixed order: lanes of a warp, warps of a block, and, by the last block of these
// heads, the parts.

enum { WARPS = 8, HEADS = 4, PER_LANE = 8 };

struct Softmax {
  float largest, sum, o[PER_LANE];
};

static __device__ __forceinline__ void softmax_join(Softmax &a, float largest, float sum,
                                                    const float *o) {
  const float to = fmaxf(a.largest, largest);
  const float x = __expf(a.largest - to), y = __expf(largest - to);
  a.largest = to;
  a.sum = a.sum * x + sum * y;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) a.o[i] = a.o[i] * x + o[i] * y;
}

struct DecodeArgs {
  int H, KV, d, splits;
  const int32_t *position; // of the first row
  const bf16_bits *qkv;    // [.., R]
  bf16_bits *o;            // [rows, H d]
  float *parts;            // [splits, H, d + 2] o, largest and sum, with more than one split
  unsigned *done;          // [H] at their first head, blocks that have written parts; 0 afterwards
};

// The work of a thread. Slot and column differ between the threads of a block, the rest does not.
struct Place {
  int64_t row, keys, begin, end; // keys [begin, end) of the part
  int head, heads, group;        // query heads [head, head + heads)
  int split, slot, column;       // every WARPS * 32 / LANES-th key; first column
};

template <int LANES> static __device__ __forceinline__ Place place(const DecodeArgs &s) {
  const int of_group = s.H / s.KV;
  Place p;
  p.split = (int)(blockIdx.x % s.splits);
  p.group = (int)(blockIdx.x / s.splits % s.KV);
  p.row = blockIdx.x / s.splits / s.KV;
  p.head = p.group * of_group + (int)blockIdx.y * HEADS;
  p.heads = min(HEADS, of_group - (int)blockIdx.y * HEADS);
  p.keys = *s.position + p.row + 1;
  const int64_t part = (p.keys + s.splits - 1) / s.splits;
  p.begin = p.split * part;
  p.end = min(p.begin + part, p.keys);
  p.slot = (int)threadIdx.x / LANES;
  p.column = (int)threadIdx.x % LANES * PER_LANE;
  return p;
}

// The columns of the thread in the query heads of row m.
static __device__ __forceinline__ void load_queries(const DecodeArgs &s, const Place &p, int64_t m,
                                                    Pack<PER_LANE> (&of_q)[HEADS]) {
  const int64_t R = (int64_t)(s.H + 2 * s.KV) * s.d;
  const bf16_bits *q = s.qkv + m * R + (int64_t)p.head * s.d + p.column;
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    of_q[h] = {};
    if (p.column < s.d && h < p.heads) of_q[h] = load_pack<PER_LANE>(q + h * s.d);
  }
}

// A thread's columns of a key and its value.
struct Key {
  uint4 k, v;
};
static __device__ __forceinline__ Key load_key(const DecodeArgs &s, const Place &p, int64_t t) {
  const int64_t R = (int64_t)(s.H + 2 * s.KV) * s.d;
  const bf16_bits *k = s.qkv + t * R + (int64_t)(s.H + p.group) * s.d + p.column;
  if (t >= p.end || p.column >= s.d) return {};
  return {*reinterpret_cast<const uint4 *>(k),
          *reinterpret_cast<const uint4 *>(k + (int64_t)s.KV * s.d)};
}

// Joins to `a` the softmaxes of a thread's keys. next: the first of these.
template <int LANES>
static __device__ __forceinline__ void walk_keys(const DecodeArgs &s, const Place &p,
                                                 const Pack<PER_LANE> (&of_q)[HEADS], Key next,
                                                 Softmax (&a)[HEADS]) {
  const float scale = rsqrtf((float)s.d);
  // All lanes of a warp loop as long as any of them has a key.
  constexpr int SLOTS = WARPS * 32 / LANES;
  for (int64_t t = p.begin + p.slot; __any_sync(0xffffffffu, t < p.end); t += SLOTS) {
    const Pack<PER_LANE> key = widen(next.k), value = widen(next.v);
    next = load_key(s, p, t + SLOTS);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      if (h >= p.heads) break;
      float score = 0;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) score += of_q[h].v[i] * key.v[i];
      score = group_sum(score, LANES) * scale;
      if (t < p.end) softmax_join(a[h], score, 1, value.v);
    }
  }
}

static __device__ __forceinline__ Softmax empty() {
  return {-1e30f, 0, {}};
}

// Joins the softmaxes of a warp's slots, then of the warps. Slot h gets head h's.
template <int LANES>
static __device__ __forceinline__ Softmax join_block(const Place &p, Softmax (&a)[HEADS]) {
  __shared__ Softmax of_warp[WARPS][HEADS][LANES];
  const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / 32;
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (h >= p.heads) break;
#pragma unroll
    for (int to = LANES; to < 32; to *= 2) {
      Softmax other;
      other.largest = __shfl_xor_sync(0xffffffffu, a[h].largest, to);
      other.sum = __shfl_xor_sync(0xffffffffu, a[h].sum, to);
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) other.o[i] = __shfl_xor_sync(0xffffffffu, a[h].o[i], to);
      softmax_join(a[h], other.largest, other.sum, other.o);
    }
    if (threadIdx.x % 32 < LANES) of_warp[warp][h][lane] = a[h];
  }
  __syncthreads();
  Softmax joined = empty();
  if (p.slot >= p.heads) return joined;
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    joined.largest = fmaxf(joined.largest, of_warp[w][p.slot][lane].largest);
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const Softmax &other = of_warp[w][p.slot][lane];
    const float x = __expf(other.largest - joined.largest);
    joined.sum += other.sum * x;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) joined.o[i] += other.o[i] * x;
  }
  return joined;
}

// o of row p.row, by the slots that have a head.
static __device__ __forceinline__ void store_row(const DecodeArgs &s, const Place &p,
                                                 const Softmax &a) {
  if (p.slot >= p.heads || p.column >= s.d) return;
  Pack<PER_LANE> o;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) o.v[i] = a.o[i] / a.sum;
  store_pack(s.o + (p.row * s.H + p.head + p.slot) * s.d + p.column, o);
}
static __device__ __forceinline__ void store_part(const DecodeArgs &s, const Place &p,
                                                  const Softmax &a) {
  if (p.slot >= p.heads || p.column >= s.d) return;
  float *part = s.parts + ((int64_t)p.split * s.H + p.head + p.slot) * (s.d + 2);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) part[p.column + i] = a.o[i];
  if (p.column > 0) return;
  part[s.d] = a.largest;
  part[s.d + 1] = a.sum;
}

// True in the last of the blocks that have parts of the same heads.
static __device__ __forceinline__ bool all_parts_stored(const DecodeArgs &s, const Place &p) {
  const unsigned before = (unsigned)s.splits - 1;
  int last = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence(); // for the whole block
    last = atomicInc(s.done + p.head, before) == before;
    __threadfence();
  }
  return __syncthreads_or(last);
}

// Computes o of a block's heads from their parts, a thread per column.
static __device__ __forceinline__ void join_parts(const DecodeArgs &s, const Place &p) {
  for (int i = (int)threadIdx.x; i < p.heads * s.d; i += WARPS * 32) {
    const int head = p.head + i / s.d, column = i % s.d;
    float largest[DECODE_SPLITS], sum[DECODE_SPLITS], o[DECODE_SPLITS], most = -1e30f;
#pragma unroll
    for (int j = 0; j < DECODE_SPLITS; j++) {
      const float *part = s.parts + ((int64_t)j * s.H + head) * (s.d + 2);
      o[j] = __ldcg(part + column);
      largest[j] = __ldcg(part + s.d);
      sum[j] = __ldcg(part + s.d + 1);
      most = fmaxf(most, largest[j]);
    }
    float all = 0, of_all = 0;
#pragma unroll
    for (int j = 0; j < DECODE_SPLITS; j++) {
      const float x = __expf(largest[j] - most);
      all += sum[j] * x;
      of_all += o[j] * x;
    }
    s.o[head * s.d + column] = bf16_from_float(of_all / all);
  }
}

template <int LANES>
static __global__ __launch_bounds__(WARPS * 32) void decode_kernel(DecodeArgs s) {
  const Place p = place<LANES>(s); // the host has written the position
  const int64_t t = p.begin + p.slot, old = p.keys - 1 - p.row;
  Key first = {};
  if (t < old) first = load_key(s, p, t);
  take_turn();
  if (t >= old) first = load_key(s, p, t);
  Pack<PER_LANE> of_q[HEADS];
  load_queries(s, p, p.keys - 1, of_q);
  Softmax a[HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; h++) a[h] = empty();
  walk_keys<LANES>(s, p, of_q, first, a);
  const Softmax joined = join_block<LANES>(p, a);
  if (s.splits == 1) {
    store_row(s, p, joined);
  } else {
    store_part(s, p, joined);
    if (all_parts_stored(s, p)) join_parts(s, p);
  }
}

// ---- Attention of branches. Launch: blocks of the row kernels above, each of a branch, a group of
// query heads, and every `stripes`-th row of the branch.

struct BranchArgs {
  DecodeArgs all; // without position and parts
  const Branch *branches;
  const float *rope; // [max_positions, d / 2, 2]
  int stripes;
};

// By the angles of position `distance`, backwards.
static __device__ __forceinline__ void rotate_back(const BranchArgs &s, const Place &p,
                                                   int distance, Pack<PER_LANE> (&of_q)[HEADS]) {
  if (p.column >= s.all.d) return;
  const Pack<PER_LANE> angles =
      load_pack<PER_LANE>(s.rope + (int64_t)distance * s.all.d + p.column);
#pragma unroll
  for (int h = 0; h < HEADS; h++)
#pragma unroll
    for (int i = 0; i < PER_LANE; i += 2)
      rope_rotate(&of_q[h].v[i], &of_q[h].v[i + 1], angles.v[i], -angles.v[i + 1]);
}

template <int LANES>
static __global__ __launch_bounds__(WARPS * 32, 2) void branches_kernel(BranchArgs s) {
  const int groups = s.all.KV * s.stripes, of_group = s.all.H / s.all.KV;
  const Branch b = s.branches[blockIdx.x / groups];
  const int stripe = (int)(blockIdx.x % s.stripes);
  Place p = {};
  p.group = (int)(blockIdx.x % groups / s.stripes);
  p.head = p.group * of_group + (int)blockIdx.y * HEADS;
  p.heads = min(HEADS, of_group - (int)blockIdx.y * HEADS);
  p.slot = (int)threadIdx.x / LANES;
  p.column = (int)threadIdx.x % LANES * PER_LANE;
  for (int i = stripe; i < b.rows; i += s.stripes) {
    Pack<PER_LANE> of_q[HEADS];
    Softmax a[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) a[h] = empty();
    p.row = b.first + i;
    load_queries(s.all, p, p.row, of_q);
    p.begin = b.first;
    p.end = p.row + 1;
    walk_keys<LANES>(s.all, p, of_q, load_key(s.all, p, p.begin + p.slot), a);
    rotate_back(s, p, b.first - b.prefix - b.prefix_rows, of_q);
    p.begin = b.prefix;
    p.end = b.prefix + b.prefix_rows;
    walk_keys<LANES>(s.all, p, of_q, load_key(s.all, p, p.begin + p.slot), a);
    __syncthreads(); // the join before has been read
    store_row(s.all, p, join_block<LANES>(p, a));
  }
}

void cuda_attention_branches(Backend *be, int64_t M, int64_t count, const Branch *branches,
                             const act_t *qkv, Operand o) {
  enum { STRIPES = 8 };
  const Cuda *c = cuda_of(be);
  const int H = (int)c->base.spec.H, KV = (int)c->base.spec.KV, d = (int)c->base.spec.d;
  const BranchArgs args = {{H, KV, d, 1, nullptr, bits(qkv), bits(o.data), nullptr, nullptr},
                           branches,
                           c->rope,
                           STRIPES};
  const dim3 grid((unsigned)(count * KV * STRIPES), blocks_for(H / KV, HEADS));
  if (d <= 64)
    branches_kernel<8><<<grid, WARPS * 32, 0, c->gpu.stream>>>(args);
  else if (d <= 128)
    branches_kernel<16><<<grid, WARPS * 32, 0, c->gpu.stream>>>(args);
  else
    branches_kernel<32><<<grid, WARPS * 32, 0, c->gpu.stream>>>(args);
  LAUNCHED();
  if (o.by_row) cuda_requantize(be, M, H * d, o);
}

// ---- Generation

template <int LANES> static void launch_decode(const Cuda *c, int64_t rows, const DecodeArgs &s) {
  const dim3 grid((unsigned)(rows * s.KV * s.splits), blocks_for(s.H / s.KV, HEADS));
  launch_early(&c->gpu, grid, WARPS * 32, 1, decode_kernel<LANES>, s);
}

// Few rows do not fill the multiprocessors, so the keys of a single row are split over blocks. A
// key gets the fewest lanes that hold a head.
void cuda_attention_decode(Backend *be, const int32_t *position, int64_t rows, const act_t *cache,
                           Operand o) {
  const Cuda *c = cuda_of(be);
  const int H = (int)c->base.spec.H, d = (int)c->base.spec.d;
  const DecodeArgs args = {H,
                           (int)c->base.spec.KV,
                           d,
                           rows == 1 ? DECODE_SPLITS : 1,
                           position,
                           bits(cache),
                           bits(o.data),
                           c->decode_parts,
                           c->decode_done};
  if (d <= 64)
    launch_decode<8>(c, rows, args);
  else if (d <= 128)
    launch_decode<16>(c, rows, args);
  else
    launch_decode<32>(c, rows, args);
  if (o.by_row) cuda_requantize(be, rows, H * d, o);
}
