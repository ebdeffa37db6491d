// Attention of generation: the last `rows` positions of one sequence ask the whole cache. softmax(q
// k^T / sqrt(d)) v, causal, grouped queries; the softmax is taken online, in fp32. Launch: a block
// a (row, head); its 8 warps share out the keys, and a warp's lanes the head's columns, 8 at most
// each (d <= 256). A kernel for correctness: at generation's sizes the weights' reads are what
// costs.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { WARPS = 8, PER_LANE = 8, MAX_HEAD = 32 * PER_LANE };

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

static __device__ __forceinline__ void load_lane(float *to, const bf16_bits *from, int d) {
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int c = (int)threadIdx.x % 32 + 32 * i;
    to[i] = c < d ? bf16_to_float(from[c]) : 0.0f;
  }
}

static __global__ void decode_kernel(int64_t T, int64_t rows, int H, int KV, int d,
                                     const bf16_bits *qkv, bf16_bits *o) {
  __shared__ float part[WARPS][MAX_HEAD + 2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x / H, position = T - rows + row;
  const int head = (int)(blockIdx.x % H), group = head / (H / KV);
  const int64_t R = (int64_t)(H + 2 * KV) * d;
  const float scale = rsqrtf((float)d);
  const bf16_bits *k = qkv + (int64_t)(H + group) * d, *v = k + (int64_t)KV * d;
  float q[PER_LANE], key[PER_LANE], value[PER_LANE];
  load_lane(q, qkv + position * R + (int64_t)head * d, d);
  Softmax a = {-1e30f, 0, {}};
  for (int64_t t = warp; t <= position; t += WARPS) {
    load_lane(key, k + t * R, d);
    load_lane(value, v + t * R, d);
    float score = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) score += q[i] * key[i];
    softmax_join(a, warp_sum(score) * scale, 1, value);
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) part[warp][lane + 32 * i] = a.o[i];
  if (lane == 0) {
    part[warp][MAX_HEAD] = a.largest;
    part[warp][MAX_HEAD + 1] = a.sum;
  }
  __syncthreads();
  if (warp > 0) return;
  for (int w = 1; w < WARPS; w++) {
    float other[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) other[i] = part[w][lane + 32 * i];
    softmax_join(a, part[w][MAX_HEAD], part[w][MAX_HEAD + 1], other);
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; i++)
    if (lane + 32 * i < d)
      o[(row * H + head) * d + lane + 32 * i] = bf16_from_float(a.o[i] / a.sum);
}

void cuda_attention_decode(Backend *be, int64_t T, int64_t rows, const act_t *qkv, act_t *o) {
  const Cuda *c = cuda_of(be);
  const OpsConfig *s = &c->config;
  decode_kernel<<<(unsigned)(rows * s->H), WARPS * 32, 0, c->gpu.stream>>>(
      T, rows, (int)s->H, (int)s->KV, (int)s->d, bits(qkv), bits(o));
  LAUNCHED();
}
