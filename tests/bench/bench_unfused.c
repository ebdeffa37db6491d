// Bandwidth of every kernel of the unfused backend at real sizes, as a share of a device-to-device
// copy's, and the rate of its matrix products. Usage: bench_unfused [M [NAME]]: M tokens (default
// 32768), only kernels with NAME in their name.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/gpu_backends.h"
#include "kernels/unfused/kernels.h"
#include "tests/bench/timing.h"
#include "tests/gpu/random_fill.h"

enum { BATCHES = 7 };

typedef struct Sizes {
  const char *name;
  int64_t M, D, F, H, KV, d, V, T;
} Sizes;

// Memory that the operations work on. Each call takes the next stretch of it, so that none finds
// its data in the second-level cache.
typedef struct Pool {
  Gpu gpu;
  char *memory;
  size_t bytes, used;
  double copy_rate; // bytes read + written a second
  const char *only; // NULL: all kernels, otherwise those whose name has this in it
  GpuTimer timer;
} Pool;

static void *take(Pool *p, size_t bytes) {
  bytes = (bytes + 511) / 512 * 512;
  if (p->used + bytes > p->bytes) p->used = 0;
  char *memory = p->memory + p->used;
  p->used += bytes;
  return memory;
}

// Median seconds of a call, over batches of back-to-back calls.
#define TIME(pool, calls, seconds, call)                                                           \
  do {                                                                                             \
    double median_;                                                                                \
    TIME_CALLS(&(pool)->timer, BATCHES, calls, median_, call);                                     \
    seconds = median_ * 1e-3;                                                                      \
  } while (0)

static void report(const Pool *p, const char *name, double bytes, double seconds) {
  const double rate = bytes / seconds;
  printf("  %-26s %9.1f us %8.1f GB/s %6.1f %% of a copy\n", name, seconds * 1e6, rate * 1e-9,
         100 * rate / p->copy_rate);
  fflush(stdout);
}

static int calls_for(double bytes) {
  const double calls = 4e9 / bytes;
  return calls < 2 ? 2 : calls > 50 ? 50 : (int)calls;
}

#define KERNEL(pool, name, bytes, call)                                                            \
  do {                                                                                             \
    if ((pool)->only && !strstr(name, (pool)->only)) break;                                        \
    double seconds_;                                                                               \
    TIME(pool, calls_for(bytes), seconds_, call);                                                  \
    report(pool, name, bytes, seconds_);                                                           \
  } while (0)

static void copy_rate(Pool *p) {
  const size_t bytes = (size_t)2 << 30;
  double seconds;
  TIME(p, 5, seconds,
       CUDA_CHECK(cudaMemcpyAsync(p->memory, p->memory + bytes, bytes, cudaMemcpyDeviceToDevice,
                                  p->gpu.stream)));
  p->copy_rate = 2 * (double)bytes / seconds;
  report(p, "copy of 2 GiB", 2 * (double)bytes, seconds);
}

// Small vectors that every call may share.
typedef struct Vectors {
  RowStat sumsq, s;
  float *row_loss, *rope;
  int32_t *tokens;
  StepState *state;
  void *scratch;
} Vectors;

static void *allocate(size_t bytes) {
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}

// Tokens as text has them: the k-th most frequent with a probability in 1 / k (Zipf's law).
static int32_t *zipf_tokens(int64_t M, int64_t V) {
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++)
    tokens[m] = (int32_t)(pow((double)V, rng_uniform(5, (uint64_t)m)) - 1);
  return tokens;
}

static Vectors vectors_new(const Sizes *z) {
  Vectors v = {.sumsq = {allocate((size_t)z->M * 4), z->M, 1},
               .s = {allocate((size_t)z->M * 4), z->M, 1},
               .row_loss = allocate((size_t)z->M * 4),
               .rope = allocate((size_t)(z->T * z->d) * 4),
               .tokens = allocate((size_t)z->M * 4),
               .state = allocate(sizeof(StepState)),
               .scratch = allocate(cuda_embed_scratch(z->M, z->V, z->D))};
  const size_t most = (size_t)(z->M > z->T * z->d ? z->M : z->T * z->d);
  float *ones = xmalloc(most * sizeof *ones);
  for (size_t i = 0; i < most; i++) ones[i] = 1;
  CUDA_CHECK(cudaMemcpy(v.rope, ones, (size_t)(z->T * z->d) * 4, cudaMemcpyHostToDevice));
  for (size_t i = 0; i < most; i++) ones[i] = (float)z->D;
  CUDA_CHECK(cudaMemcpy(v.sumsq.data, ones, (size_t)z->M * 4, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemset(v.s.data, 0, (size_t)z->M * 4));
  CUDA_CHECK(cudaMemset(v.state, 0, sizeof(StepState)));
  int32_t *tokens = zipf_tokens(z->M, z->V);
  CUDA_CHECK(cudaMemcpy(v.tokens, tokens, (size_t)z->M * 4, cudaMemcpyHostToDevice));
  free(tokens);
  free(ones);
  return v;
}

static void vectors_free(const Vectors *v) {
  CUDA_CHECK(cudaFree(v->sumsq.data));
  CUDA_CHECK(cudaFree(v->s.data));
  CUDA_CHECK(cudaFree(v->row_loss));
  CUDA_CHECK(cudaFree(v->rope));
  CUDA_CHECK(cudaFree(v->tokens));
  CUDA_CHECK(cudaFree(v->state));
  CUDA_CHECK(cudaFree(v->scratch));
}

static void cross_entropy(Pool *p, const Sizes *z, const Vectors *v, RowScale r, float *s) {
  const CrossEntropy args = {.M = z->M,
                             .V = z->V,
                             .stride = z->V,
                             .logits = take(p, 2 * (size_t)(z->M * z->V)),
                             .targets = v->tokens,
                             .r = r,
                             .clusters = p->gpu.compiled_for >= 90,
                             .multiprocessors = p->gpu.sm_count,
                             .grad_scale = 1,
                             .row_loss = v->row_loss,
                             .s = s};
  launch_cross_entropy(&args, p->gpu.stream);
}

static Operand copies(Pool *p, int64_t M, int64_t N, act_t *data) {
  const size_t bytes = (size_t)(M * N);
  return (Operand){
      .data = data, .by_row = take(p, bytes), .by_col = take(p, bytes), .stride = M, .fp8 = true};
}

// The kernels that leave FP8 copies.
static void row_copies(Pool *p, const Sizes *z, Backend *be, RowScale r, RopeShape rope) {
  const int64_t M = z->M, D = z->D, F = z->F, R = rope.R;
  const cudaStream_t stream = p->gpu.stream;
  const Scaling one = {.scale = 1, .inverse = 1};
  Scaling *scaling = allocate(sizeof one);
  float *q = allocate((size_t)M * 4);
  RowStat sums = {allocate((size_t)M * 4), M, 1};
  const double MD = 2.0 * (double)(M * D), MF = 2.0 * (double)(M * F), MR = 2.0 * (double)(M * R);
  const size_t md = (size_t)MD, mf = (size_t)MF, mr = (size_t)MR;
  CUDA_CHECK(cudaMemcpy(scaling, &one, sizeof one, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemset(q, 0x3f, (size_t)M * 4));
  CUDA_CHECK(cudaMemset(sums.data, 0, (size_t)M * 4));
  cuda_of(be)->scalings = scaling;
  KERNEL(p, "cast", 2 * MD, cuda_repack(be, M, D, copies(p, M, D, take(p, md))));
  KERNEL(p, "norm_backward, fp8", 5 * MD,
         launch_norm_backward_fp8(M, r, (Operand){.data = take(p, md), .row_scale = (stat_t *)q},
                                  sums, take(p, md), take(p, md), copies(p, M, D, take(p, md)),
                                  scaling, stream));
  KERNEL(p, "rope_backward, fp8", 3 * MR,
         launch_rope_backward_fp8(M, rope, r, take(p, mr), take(p, mr), copies(p, M, R, NULL),
                                  scaling, &sums, stream));
  KERNEL(p, "swiglu, fp8", 3 * MF,
         launch_swiglu_fp8(M, F, r, take(p, 2 * mf), copies(p, M, F, NULL), scaling, stream));
  KERNEL(p, "swiglu_backward, fp8", 5 * MF,
         launch_swiglu_backward_fp8(M, F, r, take(p, 2 * mf), take(p, mf),
                                    copies(p, M, 2 * F, NULL), scaling, &sums, stream));
  CUDA_CHECK(cudaFree(scaling));
  CUDA_CHECK(cudaFree(q));
  CUDA_CHECK(cudaFree(sums.data));
}

static void activations(Pool *p, const Sizes *z) {
  Vectors v = vectors_new(z);
  const int64_t M = z->M, D = z->D, F = z->F, V = z->V, R = (z->H + 2 * z->KV) * z->d;
  const RowScale r = {.sumsq = v.sumsq, .D = D, .eps = 1e-5f};
  const RopeShape rope = {
      .rotated = (z->H + z->KV) * z->d, .R = R, .d = z->d, .T = z->T, .table = v.rope};
  const cudaStream_t stream = p->gpu.stream;
  Cuda cuda = {.config = {.D = D, .V = V}, .gpu = p->gpu, .embed_scratch = v.scratch};
  Backend *be = &cuda.base; // as much of one as the embedding needs
  const double MD = 2.0 * (double)(M * D), MF = 2.0 * (double)(M * F), MR = 2.0 * (double)(M * R),
               MV = 2.0 * (double)(M * V), VD = 2.0 * (double)(V * D);
  const size_t md = (size_t)MD, mf = (size_t)MF, mr = (size_t)MR, vd = (size_t)VD;
  KERNEL(p, "embed", 2 * MD,
         cuda_embed(be, M, v.tokens, take(p, vd), operand_of(take(p, md)), &v.s));
  KERNEL(p, "row_sumsq", MD, launch_row_sumsq(M, D, take(p, md), &v.s, stream));
  KERNEL(p, "norm_backward", 3 * MD,
         launch_norm_backward(M, r, take(p, md), v.s, NULL, take(p, md), take(p, md), stream));
  KERNEL(p, "rope", 2 * MR, launch_rope(M, rope, r, take(p, mr), stream));
  KERNEL(p, "rope_backward", 3 * MR,
         launch_rope_backward(M, rope, r, take(p, mr), take(p, mr), &v.s, stream));
  KERNEL(p, "swiglu", 3 * MF, launch_swiglu(M, F, r, take(p, 2 * mf), take(p, mf), stream));
  KERNEL(p, "swiglu_backward", 5 * MF, {
    act_t *zz = take(p, 2 * mf);
    launch_swiglu_backward(M, F, r, zz, take(p, mf), zz, &v.s, stream);
  });
  row_copies(p, z, be, r, rope);
  KERNEL(p, "cross_entropy", 2 * MV, cross_entropy(p, z, &v, r, (float *)v.s.data));
  KERNEL(p, "cross_entropy, loss only", MV, cross_entropy(p, z, &v, r, NULL));
  KERNEL(p, "add_loss", 4.0 * (double)M, launch_add_loss(M, v.row_loss, 1, v.state, stream));
  // As the bytes that must move: dx in, dE out.
  KERNEL(p, "embed_backward", MD + VD,
         cuda_embed_backward(be, M, v.tokens, take(p, md), take(p, vd), false));
  KERNEL(p, "embed_backward, added", 3 * MD,
         cuda_embed_backward(be, M, v.tokens, take(p, md), take(p, vd), true));
  CUDA_CHECK(cudaMemset(v.tokens, 0, (size_t)M * 4));
  KERNEL(p, "embed_backward, one token", MD + VD,
         cuda_embed_backward(be, M, v.tokens, take(p, md), take(p, vd), false));
  vectors_free(&v);
}

// One folded matrix with its norm weight, as large as all of a 1B model's: the kernels do not see
// the difference to a list of many, but for the look-up of a block's tensor.
// Numbers that stay finite: zero state, gradients of 2^-9 or so.
static void take_tensor(Pool *p, ParamTensor *t, size_t moment, size_t grad) {
  const size_t n = (size_t)(t->rows * t->cols);
  CUDA_CHECK(cudaMemset(t->master = take(p, n * 4), 0x3b, n * 4));
  CUDA_CHECK(cudaMemset(t->m = take(p, n * moment), 0, n * moment));
  CUDA_CHECK(cudaMemset(t->v = take(p, n * moment), 0, n * moment));
  grad_t **gradient = t->norm < 0 ? &t->grad : &t->grad_folded;
  CUDA_CHECK(cudaMemset(*gradient = take(p, n * grad), 0x3b, n * grad));
}

static void update(const Pool *all, bool grads_fp32, MomentType moments, bool fp8) {
  const int64_t rows = (int64_t)1 << 18, cols = 2048, count = rows * cols;
  const size_t grad = grads_fp32 ? 4 : 2, moment = moments == MOMENTS_BF16 ? 2 : 4;
  const ScalingKind delayed[2] = {{FP8_E4M3, 0}, {FP8_E4M3, 0}};
  const OpsConfig config = {.D = cols,
                            .F = 8,
                            .H = 1,
                            .KV = 1,
                            .d = 64,
                            .V = 8,
                            .max_tokens = 8,
                            .max_positions = 8,
                            .rms_norm_eps = 1e-5,
                            .moments = moments,
                            .scalings = delayed,
                            .scaling_count = 2};
  const GpuOptions options = {
      .kernels = KERNELS_UNFUSED, .train = true, .grads_fp32 = grads_fp32, .gemm_cache = ""};
  Error err;
  Backend *be = backend_gpu_create(&config, &options, &err);
  if (!be) {
    fprintf(stderr, "%s\n", err.text);
    exit(1);
  }
  Pool pool = *all, *p = &pool;
  p->used = 0;
  p->timer = gpu_timer_open(cuda_of(be)->gpu.stream, 0);
  ParamTensor list[2] = {{.rows = 1, .cols = cols, .norm = -1},
                         {.rows = rows, .cols = cols, .norm = 0, .decay = true}};
  for (int i = 0; i < 2; i++) take_tensor(p, &list[i], moment, grad);
  list[1].folded = operand_of(take(p, (size_t)count * 2));
  if (fp8)
    list[1].folded = (Operand){.by_row = take(p, (size_t)count),
                               .by_col = take(p, (size_t)count),
                               .stride = rows,
                               .scaling = 1,
                               .fp8 = true};
  be->refresh(be, list, 2);
  CUDA_CHECK(cudaDeviceSynchronize());
  const AdamW hyper = {1e-4, 0.9, 0.95, 1e-8, 0.1, 1};
  be->set_hyper(be, &hyper);
  char what[64];
  snprintf(what, sizeof what, "adamw, moments %s, copies %s", moment == 2 ? "bf16" : "fp32",
           fp8 ? "FP8" : "bf16");
  KERNEL(p, grads_fp32 ? "grads_finish, fp32" : "grads_finish, bf16",
         (double)count * ((fp8 || grads_fp32 ? 4 : 2) + (double)grad),
         be->grads_finish(be, list, 2));
  KERNEL(p, what, (double)count * (10 + 4.0 * (double)moment + (double)grad),
         be->adamw(be, list, 2));
  be->step_end(be);
  if (!be->step_result(be).applied)
    printf("  (the update was skipped: this is no measurement of it)\n");
  gpu_timer_close(&p->timer);
  be->destroy(be);
}

typedef enum ProductKind { PLAIN, ADDED, FP32_ADDED, FP8, FP8_ADDED, FP8_FAST } ProductKind;

static void products(Pool *p, const Sizes *z) {
  const int64_t M = z->M, D = z->D, F = z->F, V = z->V, R = (z->H + 2 * z->KV) * z->d,
                Hd = z->H * z->d;
  const struct {
    const char *name;
    int64_t M, N, K;
    GemmForm form;
    ProductKind kind;
  } list[] = {
      {"qkv", M, R, D, GEMM_NT, PLAIN},
      {"out + residual", M, D, Hd, GEMM_NT, ADDED},
      {"gate_up", M, 2 * F, D, GEMM_NT, PLAIN},
      {"down + residual", M, D, F, GEMM_NT, ADDED},
      {"lm_head", M, V, D, GEMM_NT, PLAIN},
      {"lm_head dgrad", M, D, V, GEMM_NN, PLAIN},
      {"down dgrad", M, F, D, GEMM_NN, PLAIN},
      {"gate_up dgrad + residual", M, D, 2 * F, GEMM_NN, ADDED},
      {"out dgrad", M, Hd, D, GEMM_NN, PLAIN},
      {"qkv dgrad + residual", M, D, R, GEMM_NN, ADDED},
      {"lm_head wgrad", V, D, M, GEMM_TN, PLAIN},
      {"down wgrad", D, F, M, GEMM_TN, PLAIN},
      {"gate_up wgrad", 2 * F, D, M, GEMM_TN, PLAIN},
      {"out wgrad", D, Hd, M, GEMM_TN, PLAIN},
      {"qkv wgrad", R, D, M, GEMM_TN, PLAIN},
      {"gate_up wgrad, fp32 added", 2 * F, D, M, GEMM_TN, FP32_ADDED},
      {"gate_up, fp8", M, 2 * F, D, GEMM_NT, FP8_FAST},
      {"down, fp8 + residual", M, D, F, GEMM_NT, FP8_ADDED},
      {"gate_up dgrad, fp8", M, D, 2 * F, GEMM_NT, FP8},
      {"gate_up wgrad, fp8", 2 * F, D, M, GEMM_NT, FP8},
  };
  Gemm gemm;
  Error err;
  gemm_open(&gemm, &p->gpu, "");
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const ProductKind kind = list[i].kind;
    const GemmProblem problem = {.M = list[i].M,
                                 .N = list[i].N,
                                 .K = list[i].K,
                                 .form = list[i].form,
                                 .formats = kind >= FP8 ? GEMM_E4M3 : GEMM_BF16,
                                 .accurate = kind == FP8 || kind == FP8_ADDED,
                                 .out_fp32 = kind == FP32_ADDED,
                                 .add = kind == ADDED || kind == FP32_ADDED || kind == FP8_ADDED,
                                 .alignment = 16},
                      *q = &problem;
    if (gemm_prepare(&gemm, q, 1, &err)) {
      fprintf(stderr, "%s\n", err.text);
      exit(1);
    }
    const GemmChoice *plan = gemm_find(&gemm, q);
    const double flops = 2.0 * (double)q->M * (double)q->N * (double)q->K;
    printf("  %-26s %9.1f us %8.1f TFLOP/s   %d algorithms, %.2f x the heuristics' first\n",
           list[i].name, (double)plan->microseconds, flops / (double)plan->microseconds * 1e-6,
           plan->candidates, (double)(plan->first_microseconds / plan->microseconds));
    fflush(stdout);
  }
  gemm_close(&gemm);
}

int main(int argc, char **argv) {
  const int64_t M = argc > 1 ? atoll(argv[1]) : 32768;
  const Sizes all[] = {
      {"1B, V 128256", M, 2048, 8192, 32, 8, 64, 128256, 4096},
      {"350M", M, 1024, 2816, 16, 16, 64, 32000, 2048},
      {"110M", M, 768, 2048, 12, 12, 64, 32000, 1024},
      {"15M", M, 288, 768, 6, 6, 48, 32000, 256},
  };
  Pool p = {.only = argc > 2 ? argv[2] : NULL};
  Error err;
  if (gpu_open(&p.gpu, &err)) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  p.bytes = (size_t)20 << 30;
  p.memory = allocate(p.bytes);
  p.timer = gpu_timer_open(p.gpu.stream, 0);
  fill_with_normals(p.memory, p.bytes);
  printf("%s\n", p.gpu.name);
  copy_rate(&p);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    printf("%s: M %lld, D %lld, F %lld, V %lld\n", all[i].name, (long long)M, (long long)all[i].D,
           (long long)all[i].F, (long long)all[i].V);
    activations(&p, &all[i]);
  }
  printf("update of %d M parameters\n", 1 << 9);
  for (MomentType moments = MOMENTS_FP32; moments <= MOMENTS_BF16; moments++)
    for (int i = 0; i < 4; i++) update(&p, i % 2 == 1, moments, i / 2 == 1);
  CUDA_CHECK(cudaFree(p.memory));
  if (p.only) return 0;
  printf("products of %s\n", all[0].name);
  products(&p, &all[0]);
  printf("products of %s\n", all[3].name);
  products(&p, &all[3]);
  gpu_timer_close(&p.timer);
  gpu_close(&p.gpu);
  return 0;
}
