// Generation: products of one row, and attention of the last rows of one sequence.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

// ---- A product of one row, for generation. Its only cost is reading the weights once. Launch: two
// rows of W per warp, 8 warps per block. A lane reads every 32nd 16 bytes, and AHEAD loads of each
// row are in flight before the first is used.

enum { GEMV_WARPS = 8, OUTPUTS = 2, AHEAD = 4 };

// scaling_a, scaling_W: of copies, or NULL.
template <class Format>
static __global__ __launch_bounds__(GEMV_WARPS * 32) void gemv_kernel(
    int64_t rows, int K, const typename Format::Element *__restrict__ a, const Scaling *scaling_a,
    const typename Format::Element *__restrict__ W, const Scaling *scaling_W, const bf16_bits *add,
    const int32_t *row, bf16_bits *out) {
  using Raw = typename Format::Raw;
  const int64_t n = ((int64_t)blockIdx.x * GEMV_WARPS + threadIdx.x / 32) * OUTPUTS;
  const int lane = (int)threadIdx.x % 32, packs = K / Format::WIDTH;
  if (n >= rows) return;
  const int outputs = rows - n < OUTPUTS ? 1 : OUTPUTS;
  const Raw *of_a = reinterpret_cast<const Raw *>(a), *of_W[OUTPUTS];
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++)
    of_W[i] = reinterpret_cast<const Raw *>(W + (n + min(i, outputs - 1)) * K);
  float sum[OUTPUTS] = {};
  for (int k = lane; k < packs; k += 32 * AHEAD) {
    Raw w[OUTPUTS][AHEAD], x[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int at = min(k + 32 * j, packs - 1);
      x[j] = of_a[at];
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) w[i][j] = __ldcs(of_W[i] + at);
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      if (k + 32 * j >= packs) break;
      const auto p = Format::values(x[j]);
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) {
        const auto q = Format::values(w[i][j]);
#pragma unroll
        for (int e = 0; e < Format::WIDTH; e++) sum[i] += p.v[e] * q.v[e];
      }
    }
  }
  const float inverse = scaling_a ? scaling_a->inverse * scaling_W->inverse : 1;
  if (row) out += *row * rows;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const float total = warp_sum(sum[i]) * inverse;
    if (lane == 0 && i < outputs)
      out[n + i] = bf16_from_float(total + (add ? bf16_to_float(add[n + i]) : 0.0f));
  }
}

static unsigned gemv_blocks(int64_t N) {
  return blocks_for(N, GEMV_WARPS * OUTPUTS);
}

void launch_gemv(int64_t N, int64_t K, const act_t *a, const act_t *W, const act_t *add,
                 const int32_t *row, act_t *out, cudaStream_t stream) {
  by_width(K, [&](auto width, int) {
    gemv_kernel<Bf16<decltype(width)::value>><<<gemv_blocks(N), GEMV_WARPS * 32, 0, stream>>>(
        N, (int)K, bits(a), nullptr, bits(W), nullptr, bits(add), row, bits(out));
  });
}

void launch_gemv_fp8(int64_t N, int64_t K, const fp8_t *a, const Scaling *scaling_a, const fp8_t *W,
                     const Scaling *scaling_W, const act_t *add, const int32_t *row, act_t *out,
                     cudaStream_t stream) {
  gemv_kernel<E4m3><<<gemv_blocks(N), GEMV_WARPS * 32, 0, stream>>>(
      N, (int)K, reinterpret_cast<const uint8_t *>(a), scaling_a,
      reinterpret_cast<const uint8_t *>(W), scaling_W, bits(add), row, bits(out));
  LAUNCHED();
}

// ---- Attention of generation: the queries of one sequence's last rows attend to the whole cache.
// softmax(q k^T / sqrt(d)) v, causal, grouped queries; the softmax is computed online, in fp32.
// Launch: a block has one row and up to HEADS query heads of a key/value head, and reads one of
// `splits` parts of the keys. LANES neighbours share a key, 8 of its columns each (d <= 256, a
// multiple of 8), so that it is read once for all of those heads, 16 bytes a lane. Softmaxes are
// joined in a fixed order: lanes of a warp, warps of a block, and, by a second kernel, the parts.

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

// Joins to `a` the softmaxes of a thread's keys.
template <int LANES>
static __device__ __forceinline__ void walk_keys(const DecodeArgs &s, const Place &p,
                                                 const Pack<PER_LANE> (&of_q)[HEADS],
                                                 Softmax (&a)[HEADS]) {
  const int64_t R = (int64_t)(s.H + 2 * s.KV) * s.d;
  const bool inside = p.column < s.d;
  const bf16_bits *k = s.qkv + (int64_t)(s.H + p.group) * s.d + p.column,
                  *v = k + (int64_t)s.KV * s.d;
  const float scale = rsqrtf((float)s.d);
  // All lanes of a warp loop as long as any of them has a key.
  constexpr int SLOTS = WARPS * 32 / LANES;
  for (int64_t t = p.begin + p.slot; __any_sync(0xffffffffu, t < p.end); t += SLOTS) {
    Pack<PER_LANE> key = {}, value = {};
    if (inside && t < p.end) {
      key = load_pack<PER_LANE>(k + t * R);
      value = load_pack<PER_LANE>(v + t * R);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) score += of_q[h].v[i] * key.v[i];
      score = group_sum(score, LANES) * scale;
      if (t < p.end) softmax_join(a[h], score, 1, value.v);
    }
  }
}

// Joins the softmaxes of a warp's slots, then of the warps; the first slot's threads get the
// result.
template <int LANES>
static __device__ __forceinline__ void join_block(const Place &p, Softmax (&a)[HEADS]) {
  __shared__ Softmax of_warp[WARPS][HEADS][LANES];
  const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / 32;
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
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
  if (p.slot > 0) return;
#pragma unroll
  for (int h = 0; h < HEADS; h++)
    for (int w = 1; w < WARPS; w++) {
      const Softmax &other = of_warp[w][h][lane];
      softmax_join(a[h], other.largest, other.sum, other.o);
    }
}

static __device__ __forceinline__ void empty(Softmax (&a)[HEADS]) {
#pragma unroll
  for (int h = 0; h < HEADS; h++) a[h] = {-1e30f, 0, {}};
}

// o of row p.row, by the threads that have columns of the whole softmax.
static __device__ __forceinline__ void store_row(const DecodeArgs &s, const Place &p,
                                                 const Softmax (&a)[HEADS]) {
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (h >= p.heads) break;
    Pack<PER_LANE> o;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) o.v[i] = a[h].o[i] / a[h].sum;
    store_pack(s.o + (p.row * s.H + p.head + h) * s.d + p.column, o);
  }
}

template <int LANES>
static __global__ __launch_bounds__(WARPS * 32) void decode_kernel(DecodeArgs s) {
  const Place p = place<LANES>(s);
  Pack<PER_LANE> of_q[HEADS];
  Softmax a[HEADS];
  empty(a);
  load_queries(s, p, p.keys - 1, of_q);
  walk_keys<LANES>(s, p, of_q, a);
  join_block<LANES>(p, a);
  if (p.slot > 0 || p.column >= s.d) return;
  if (s.splits == 1) store_row(s, p, a);
#pragma unroll
  for (int h = 0; h < HEADS && s.splits > 1; h++) {
    if (h >= p.heads) break;
    float *part = s.parts + ((int64_t)p.split * s.H + p.head + h) * (s.d + 2);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) part[p.column + i] = a[h].o[i];
    if (p.column > 0) continue;
    part[s.d] = a[h].largest;
    part[s.d + 1] = a[h].sum;
  }
}

// Computes o of a row from its parts. Launch: a block per head, a thread per column.
static __global__ void join_parts_kernel(DecodeArgs s) {
  const int head = (int)blockIdx.x, column = (int)threadIdx.x;
  float largest = -1e30f, sum = 0, o = 0;
  for (int i = 0; i < s.splits; i++) {
    const float *part = s.parts + ((int64_t)i * s.H + head) * (s.d + 2);
    const float to = fmaxf(largest, part[s.d]);
    const float x = __expf(largest - to), y = __expf(part[s.d] - to);
    o = o * x + part[column] * y;
    sum = sum * x + part[s.d + 1] * y;
    largest = to;
  }
  s.o[head * s.d + column] = bf16_from_float(o / sum);
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
static __global__ __launch_bounds__(WARPS * 32) void branches_kernel(BranchArgs s) {
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
    empty(a);
    p.row = b.first + i;
    load_queries(s.all, p, p.row, of_q);
    p.begin = b.first;
    p.end = p.row + 1;
    walk_keys<LANES>(s.all, p, of_q, a);
    rotate_back(s, p, b.first - b.prefix - b.prefix_rows, of_q);
    p.begin = b.prefix;
    p.end = b.prefix + b.prefix_rows;
    walk_keys<LANES>(s.all, p, of_q, a);
    __syncthreads(); // the join before has been read
    join_block<LANES>(p, a);
    if (p.slot == 0 && p.column < s.all.d) store_row(s.all, p, a);
  }
}

void cuda_attention_branches(Backend *be, int64_t M, int64_t count, const Branch *branches,
                             const act_t *qkv, Operand o) {
  enum { STRIPES = 8 };
  const Cuda *c = cuda_of(be);
  const int H = (int)c->base.spec.H, KV = (int)c->base.spec.KV, d = (int)c->base.spec.d;
  const BranchArgs args = {
      {H, KV, d, 1, nullptr, bits(qkv), bits(o.data), nullptr}, branches, c->rope, STRIPES};
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

template <int LANES> static void launch_decode(int64_t rows, const DecodeArgs &s, cudaStream_t to) {
  const dim3 grid((unsigned)(rows * s.KV * s.splits), blocks_for(s.H / s.KV, HEADS));
  decode_kernel<LANES><<<grid, WARPS * 32, 0, to>>>(s);
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
                           c->decode_parts};
  if (d <= 64)
    launch_decode<8>(rows, args, c->gpu.stream);
  else if (d <= 128)
    launch_decode<16>(rows, args, c->gpu.stream);
  else
    launch_decode<32>(rows, args, c->gpu.stream);
  LAUNCHED();
  if (args.splits > 1) join_parts_kernel<<<(unsigned)H, (unsigned)d, 0, c->gpu.stream>>>(args);
  LAUNCHED();
  if (o.by_row) cuda_requantize(be, rows, H * d, o);
}
