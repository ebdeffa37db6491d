// A bf16 matrix as FP8 copies.
#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/cuda.h"

template <bool STOCHASTIC_> struct Cast {
  static constexpr bool STORES = false, STOCHASTIC = STOCHASTIC_;
  struct Row {
    float q, dither;
    uint32_t key;
  };
  using Column = int;
  using Raw = uint32_t;
  const bf16_bits *x;
  int N;
  RowScale previous;
  float *q;

  __device__ Row row(int64_t m) const {
    const uint32_t key = noise_mix((uint32_t)m);
    const float dither = fp8_dither(key) * 0x1p-8f;
    if (!q) return {1, dither, key};
    if (previous.sumsq.data) q[m] = power_of_two_below(row_rstd(previous, m));
    return {q[m], dither, key};
  }
  __device__ Column column(int c) const {
    return c;
  }
  __device__ void skip(int64_t m) {
    x += m * N;
  }
  __device__ Raw load(unsigned row, Column c) const {
    return *reinterpret_cast<const uint32_t *>(x + (row * (unsigned)N + (unsigned)c));
  }
  __device__ float2 pair(Row row, Column, Raw raw, float *squares) const {
    const float a = bf16_low(raw), b = bf16_high(raw);
    *squares = fmaf(a, a, fmaf(b, b, *squares));
    return {a * row.q, b * row.q};
  }
};

template <bool STOCHASTIC>
static void cast_rows(Cuda *c, int64_t M, int64_t N, Operand x, RowStat previous, RowStat *sumsq) {
  const Cast<STOCHASTIC> source = {bits(x.data), (int)N, row_scale(c, previous),
                                   (float *)x.row_scale};
  Copies to = copies_of(M, N, x, c->scalings + x.scaling);
  if (sumsq) to.sums = one_part(sumsq);
  for (int pass = 0; cuda_launch_again(c, pass, x); pass++)
    launch_copies(source, to, c->gpu.stream);
}

void cuda_cast_rows(Cuda *c, int64_t M, int64_t N, Operand x, RowStat previous, RowStat *sumsq) {
  cast_rows<false>(c, M, N, x, previous, sumsq);
}

void cuda_cast(Backend *be, int64_t M, int64_t N, Operand x) {
  cuda_cast_rows(cuda_of(be), M, N, x, (RowStat){}, nullptr);
}

static __global__ void dlogits_scale_kernel(Scaling *scaling, float scale) {
  scaling->scale = scale;
  scaling->inverse = 1 / scale;
}

void cuda_cast_dlogits(Cuda *c, int64_t M, Operand dlogits, act_t *from, stat_t *factors,
                       double grad_scale) {
  dlogits_scale_kernel<<<1, 1, 0, c->gpu.stream>>>(c->scalings + dlogits.scaling,
                                                   fp8_dlogits_scale(FP8_E4M3, grad_scale));
  LAUNCHED();
  dlogits.data = from;
  dlogits.row_scale = factors;
  cast_rows<true>(c, M, padded_vocab(&c->config), dlogits, (RowStat){}, nullptr);
}
