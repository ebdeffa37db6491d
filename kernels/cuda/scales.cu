// The scales of FP8 copies: updated once a step, set at once while a run calibrates, and saved in
// checkpoints. Also the simplest copies, those of a bf16 matrix.
#include "base/memory.h"
#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/cuda.h"

static const unsigned WHOLE_WARP = 0xffffffffu;

// By a whole warp; every lane gets it.
static __device__ __forceinline__ float largest_of(const Scaling *s) {
  return __uint_as_float(__reduce_max_sync(WHOLE_WARP, s->maxima[threadIdx.x % 32]));
}

static __device__ __forceinline__ void set_scale(Scaling *s, float largest) {
  s->scale = fp8_scale((Fp8Format)s->format, largest);
  s->inverse = 1 / s->scale;
}

// Puts the running step's largest value in front of the history; returns the history's largest.
static __device__ __forceinline__ float push(Scaling *s, float largest) {
  const int lane = threadIdx.x % 32;
  float value = lane < SCALE_HISTORY ? s->history[lane] : 0;
  value = __shfl_up_sync(WHOLE_WARP, value, 1);
  if (lane == 0) value = largest;
  if (lane < SCALE_HISTORY) s->history[lane] = value;
  return __uint_as_float(
      __reduce_max_sync(WHOLE_WARP, lane < SCALE_HISTORY ? __float_as_uint(value) : 0));
}

// Launch: one block, its warps take scalings in turn.
static __global__ __launch_bounds__(1024) void scalings_kernel(Scaling *all, int parameters,
                                                               int count, StepState *state) {
  __shared__ int saturated[32], first[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int of_warp = 0, first_of_warp = count;
  for (int i = warp; i < count; i += 32) {
    Scaling *s = &all[i];
    const float largest = largest_of(s);
    __syncwarp();
    if (state->applied || i >= parameters) s->maxima[lane] = 0;
    if (!(largest * s->scale <= fp8_largest((Fp8Format)s->format))) { // or it is NaN
      of_warp++;
      first_of_warp = min(first_of_warp, i);
    }
    const bool weight = i < parameters && s->scale > 0;
    if ((largest == 0 && !weight) || !state->applied) continue;
    const float top = push(s, fp8_counted((Fp8Format)s->format, s->scale, largest));
    if (lane == 0 && !s->fixed)
      set_scale(s, weight ? fp8_weight_reach(top, state->hyper.learning_rate) : top);
  }
  if (lane == 0) {
    saturated[warp] = of_warp;
    first[warp] = first_of_warp;
  }
  __syncthreads();
  if (warp > 0) return;
  of_warp = __reduce_add_sync(WHOLE_WARP, saturated[lane]);
  first_of_warp = __reduce_min_sync(WHOLE_WARP, first[lane]);
  if (lane > 0) return;
  state->saturated = of_warp;
  state->saturated_first = of_warp > 0 ? first_of_warp : -1;
}

static __global__ void scaling_set_kernel(Scaling *s) {
  const float largest = largest_of(s);
  if (threadIdx.x == 0 && !s->fixed) set_scale(s, largest);
}

static __global__ void scalings_discard_kernel(Scaling *first) {
  first[blockIdx.x].maxima[threadIdx.x] = 0;
}

void launch_scalings_update(Scaling *all, int parameters, int count, StepState *state,
                            cudaStream_t stream) {
  scalings_kernel<<<1, 1024, 0, stream>>>(all, parameters, count, state);
  LAUNCHED();
}

void launch_scaling_set(Scaling *scaling, cudaStream_t stream) {
  scaling_set_kernel<<<1, 32, 0, stream>>>(scaling);
  LAUNCHED();
}

// ---- Behind kernels/ops.h

bool cuda_launch_again(const Cuda *c, int pass, Operand out) {
  if (pass == 0) return true;
  if (pass > 1 || !c->base.calibrating || !out.by_row) return false;
  launch_scaling_set(c->scalings + out.scaling, c->gpu.stream);
  return true;
}

// The largest values of the parameters were written by the update and belong to the next step.
static void op_discard(Backend *be) {
  const Cuda *c = cuda_of(be);
  const int weights = c->base.spec.weight_scalings, rest = c->base.spec.scaling_count - weights;
  if (rest <= 0) return;
  scalings_discard_kernel<<<(unsigned)rest, MAXIMA, 0, c->gpu.stream>>>(c->scalings + weights);
  LAUNCHED();
}

// All of them, in fresh memory.
static Scaling *read_all(Backend *be) {
  const Cuda *c = cuda_of(be);
  const size_t bytes = (size_t)c->base.spec.scaling_count * sizeof(Scaling);
  Scaling *all = (Scaling *)xmalloc(bytes);
  be->services.read(be, all, c->scalings, bytes);
  return all;
}

static void op_scalings_read(Backend *be, ScalingState *to_host) {
  Scaling *all = read_all(be);
  for (int i = 0; i < be->spec.scaling_count; i++) {
    to_host[i].scale = all[i].scale;
    memcpy(to_host[i].history, all[i].history, sizeof all[i].history);
  }
  free(all);
}

static void op_scalings_write(Backend *be, const ScalingState *from_host) {
  const int count = be->spec.scaling_count;
  Scaling *all = read_all(be);
  for (int i = 0; i < count; i++) {
    if (!all[i].fixed) {
      all[i].scale = from_host[i].scale;
      all[i].inverse = all[i].scale > 0 ? 1 / all[i].scale : 0;
    }
    memcpy(all[i].history, from_host[i].history, sizeof all[i].history);
    memset(all[i].maxima, 0, sizeof all[i].maxima);
  }
  be->services.write(be, cuda_of(be)->scalings, all, (size_t)count * sizeof *all);
  be->calibrating = false;
  free(all);
}

int cuda_scalings_open(Cuda *c, Error *err) {
  Backend *be = &c->base;
  const int count = c->base.spec.scaling_count;
  be->calibrating = count > 0 && !c->base.spec.fp8_weights;
  be->services.scalings_discard = op_discard;
  be->services.scalings_read = op_scalings_read;
  be->services.scalings_write = op_scalings_write;
  if (count == 0) return 0;
  const size_t bytes = (size_t)count * sizeof(Scaling);
  c->scalings = (Scaling *)cuda_take(c, bytes, err);
  if (!c->scalings) return -1;
  Scaling *all = (Scaling *)xcalloc((size_t)count, sizeof *all);
  for (int i = 0; i < count; i++) {
    const ScalingKind kind = c->base.spec.scalings[i];
    all[i].format = kind.format;
    all[i].fixed = kind.fixed != 0;
    all[i].scale = kind.fixed;
    all[i].inverse = kind.fixed != 0 ? 1 / kind.fixed : 0;
  }
  be->services.write(be, c->scalings, all, bytes);
  free(all);
  return 0;
}

// ---- A bf16 matrix as FP8 copies

template <bool STOCHASTIC_, bool SUMS_> struct Cast {
  static constexpr bool STORES = false, STOCHASTIC = STOCHASTIC_, SUMS = SUMS_;
  struct alignas(16) Row {
    float q, dither;
    uint32_t key;
  };
  using Column = const bf16_bits *; // of the first row
  using Raw = uint2;
  const bf16_bits *x;
  int N;
  RowScale previous;
  float *q;

  __device__ Row row(int64_t m) const {
    const uint32_t key = noise_mix((uint32_t)m);
    Row of = {1, fp8_dither(key) * 0x1p-8f, noise_fold(key)};
    if (!q) return of;
    if (previous.sumsq.data) q[m] = power_of_two_below(row_rstd(previous, m));
    of.q = q[m];
    return of;
  }
  __device__ Column column(int c) const {
    return x + c;
  }
  __device__ void skip(int64_t m) {
    x += m * N;
  }
  __device__ Raw load(unsigned row, Column c) const {
    return __ldg(reinterpret_cast<const uint2 *>(c + row * (unsigned)N));
  }
  __device__ float4 four(const Row &row, Column, Raw raw, float *squares) const {
    const Pack<4> p = widen(raw);
    if (SUMS) *squares += square_sum(p);
    return {p.v[0] * row.q, p.v[1] * row.q, p.v[2] * row.q, p.v[3] * row.q};
  }
};

template <bool STOCHASTIC, bool SUMS>
static void cast_rows(Cuda *c, int64_t M, int64_t N, Operand x, RowStat previous, RowStat *sumsq) {
  const Cast<STOCHASTIC, SUMS> source = {bits(x.data), (int)N, row_scale(c, previous),
                                         (float *)x.row_scale};
  Copies to = copies_of(M, N, x, c->scalings + x.scaling);
  if (SUMS) to.sums = sums_of_copies(N, sumsq);
  for (int pass = 0; cuda_launch_again(c, pass, x); pass++)
    launch_copies(source, to, c->gpu.stream);
}

void cuda_cast_rows(Cuda *c, int64_t M, int64_t N, Operand x, RowStat previous, RowStat *sumsq) {
  if (sumsq)
    cast_rows<false, true>(c, M, N, x, previous, sumsq);
  else
    cast_rows<false, false>(c, M, N, x, previous, nullptr);
}

void cuda_requantize(Backend *be, int64_t M, int64_t N, Operand x) {
  if (!x.by_row) return;
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
  cast_rows<true, false>(c, M, padded_vocab(&c->base.spec), dlogits, (RowStat){}, nullptr);
}
