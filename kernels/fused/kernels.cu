// RoPE's table, and the row kernels around programs/probabilities.cu.
#include <cuda_fp16.h>
#include "kernels/cuda/common.cuh"
#include "kernels/fused/kernels.h"

static __global__ void rope_table_kernel(int64_t count, int d, int cols, int64_t period,
                                         const float *from, __half *to) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / cols;
  to[i] = __float2half_rn(from[row % period * d + (int)(i - row * cols) % d]);
}

void launch_rope_table(int64_t rows, int64_t d, int64_t period, const float *from, uint16_t *to,
                       cudaStream_t stream) {
  const int64_t cols = rope_table_cols(d), count = rows * cols;
  rope_table_kernel<<<(unsigned)((count + 255) / 256), 256, 0, stream>>>(
      count, (int)d, (int)cols, period, from, (__half *)to);
  LAUNCHED();
}

// ---- Before programs/probabilities.cu: the aims of rows. Launch: see my_lane; the lanes of a row
// share its dot product.
constexpr float NO_AIM = 0x1p120f; // of a row without a target: all of its P are 0

template <class Format>
static __global__ void
head_aim_kernel(int64_t M, int lanes, RowScale r, const typename Format::Element *__restrict__ x,
                const typename Format::Element *__restrict__ W, const Scaling *scaling_x,
                const Scaling *scaling_W, const int32_t *__restrict__ targets, RowStat aim) {
  using Raw = typename Format::Raw;
  const Lane l = my_lane(M, lanes);
  const float of_r = row_share(r.sumsq, l.m, l.exists, l.lane, lanes);
  const int target = l.exists ? targets[l.m] : -1;
  const Raw *of_x = reinterpret_cast<const Raw *>(x + l.m * r.D),
            *of_W = reinterpret_cast<const Raw *>(W + target * r.D);
  float dot = 0;
#pragma unroll 4
  for (int k = l.lane; target >= 0 && k < r.D / Format::WIDTH; k += lanes) {
    const auto a = Format::values(of_x[k]), b = Format::values(of_W[k]);
#pragma unroll
    for (int i = 0; i < Format::WIDTH; i++) dot = fmaf(a.v[i], b.v[i], dot);
  }
  const float product = group_sum(dot, lanes), rstd = rstd_from_shares(r, of_r, lanes);
  if (l.lane > 0 || !l.exists) return;
  const float inverse = scaling_x ? scaling_x->inverse * scaling_W->inverse : 1,
              z = product * inverse * (r.q ? rstd / r.q[l.m] : rstd);
  float *to = reinterpret_cast<float *>(aim.data) + l.m;
  to[AIM_EXPONENT * aim.stride] = target < 0 ? NO_AIM : fmaf(z, LOG2_E, HEAD_AIM);
  to[AIM_TARGET * aim.stride] = (float)target;
}

void launch_head_aim(int64_t M, RowScale r, Operand x, Operand W, const Scaling *scalings,
                     const int32_t *targets, RowStat aim, cudaStream_t stream) {
  if (x.by_row && W.by_row) {
    const int lanes = lanes_a_row(r.D / E4m3::WIDTH);
    head_aim_kernel<E4m3><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(
        M, lanes, r, reinterpret_cast<const uint8_t *>(x.by_row),
        reinterpret_cast<const uint8_t *>(W.by_row), scalings + x.scaling, scalings + W.scaling,
        targets, aim);
  } else {
    const int lanes = lanes_a_row(r.D / 8);
    head_aim_kernel<Bf16<8>><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(
        M, lanes, r, bits(x.data), bits(W.data), nullptr, nullptr, targets, aim);
  }
  LAUNCHED();
}

// ---- After it: loss, row scales, the target's element, and u x. Launch: ROWS rows per block.
// First a lane has one of them and the warps divide the parts of its sums among them; then all
// process x.
enum { ROWS = 32, WARPS = ROW_THREADS / 32 };

// Sums of every WARPS-th part.
static __device__ __forceinline__ float part_share(const RowStat &s, int64_t m, int warp) {
  float sum = 0;
#pragma unroll 8
  for (int part = warp; part < s.parts; part += WARPS) sum += stat_part(s, part, m);
  return sum;
}

// Row m's, from its sum of P and of P log2(P). A row without a target has no loss, whatever it
// holds. Returns u.
static __device__ float finish_row(const HeadFinish &args, int64_t m, float sum, float entropy) {
  const int target = args.targets[m];
  const float r = row_rstd(args.r, m);
  const float u = target < 0 ? 0 : r * args.scale / (sum + exp2f(-HEAD_AIM));
  const float loss = sum < 1 ? log1pf(ldexpf(sum, HEAD_AIM)) : HEAD_AIM * LN_2 + logf(sum);
  args.row_loss[m] = target < 0 ? 0 : sum < exp2f(HEAD_MOST) ? loss : NAN;
  const HeadGradient &g = args.gradient;
  if (!g.u) return u;
  reinterpret_cast<float *>(g.u)[m] = u;
  reinterpret_cast<float *>(g.s.data)[m] =
      target < 0 ? 0 : u * LN_2 * fmaf(HEAD_AIM, sum, entropy);
  if (target >= 0)
    reinterpret_cast<bf16_bits *>(g.p.data)[m * g.p.row_stride + target] = bf16_from_float(-sum);
  return u;
}

static __global__ __launch_bounds__(ROW_THREADS) void head_finish_kernel(HeadFinish args) {
  __shared__ float sums[WARPS][ROWS], entropies[WARPS][ROWS], scales[ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = (int64_t)blockIdx.x * ROWS, m = first + lane;
  const int rows = (int)min((int64_t)ROWS, args.M - first);
  if (lane < rows) {
    sums[warp][lane] = part_share(args.sum, m, warp);
    entropies[warp][lane] = part_share(args.entropy, m, warp);
  }
  __syncthreads();
  if (warp == 0 && lane < rows) {
    float sum = 0, entropy = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][lane], entropy += entropies[w][lane];
    scales[lane] = finish_row(args, m, sum, entropy);
  }
  if (!args.gradient.ux.data) return;
  __syncthreads();
  const int packs = (int)(args.r.D / 8);
  const bf16_bits *x = reinterpret_cast<const bf16_bits *>(args.x) + first * args.r.D;
  bf16_bits *ux = reinterpret_cast<bf16_bits *>(args.gradient.ux.data) + first * args.r.D;
#pragma unroll 4
  for (int i = (int)threadIdx.x; i < rows * packs; i += ROW_THREADS) {
    Pack<8> p = load_pack<8>(x + (int64_t)i * 8);
    const float u = scales[i / packs];
#pragma unroll
    for (int j = 0; j < 8; j++) p.v[j] *= u;
    store_pack(ux + (int64_t)i * 8, p);
  }
}

void launch_head_finish(const HeadFinish *args, cudaStream_t stream) {
  head_finish_kernel<<<blocks_for(args->M, ROWS), ROW_THREADS, 0, stream>>>(*args);
  LAUNCHED();
}
