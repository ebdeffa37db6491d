// Times attention through cuDNN on the shapes that are trained: every configuration that cuDNN
// offers, the deterministic backward, and what start-up costs.
//
// Medians of 20 calls by CUDA events, each after a write of 256 MB that empties the second-level
// cache. FLOPs: causal, 4 B H (T^2 / 2) d forward, 2.5 times that backward.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/os.h"
#include "base/memory.h"
#include "kernels/cuda/attention.h"
#include "tests/bench/timing.h"

enum { WARM_UP = 3, RUNS = 20, FLUSH_BYTES = 256 << 20 };

typedef struct Bench {
  CudnnApi api;
  CudnnHandle handle;
  cudaStream_t stream;
  GpuTimer timer;
} Bench;

static void ok(int status, const Error *err) {
  if (status == 0) return;
  fprintf(stderr, "%s\n", err->text);
  exit(1);
}

static double now(void) {
  return now_ms() * 1e-3;
}

// ---- Tensors of one shape

typedef struct Tensors {
  char *memory, *qkv, *o, *do_, *dqkv, *workspace;
  float *lse;
} Tensors;

// workspace: bytes of it
static Tensors tensors_new(const AttentionShape *s, size_t workspace) {
  const size_t rows = (size_t)(s->B * s->T), qkv = rows * (size_t)attention_row(s) * 2;
  const size_t o = rows * (size_t)(s->H * s->d) * 2,
               lse = (rows * (size_t)s->H * 4 + 255) / 256 * 256;
  Tensors t;
  CUDA_CHECK(cudaMalloc((void **)&t.memory, 2 * qkv + 2 * o + lse + workspace));
  t.qkv = t.memory, t.do_ = t.qkv + qkv, t.o = t.do_ + o, t.dqkv = t.o + o;
  t.workspace = t.dqkv + qkv;
  t.lse = (float *)(void *)(t.workspace + workspace);
  fill_with_normals(t.qkv, qkv + o);
  return t;
}

static void call(const AttentionCudnn *a, AttentionDirection direction, const Tensors *t) {
  Error err;
  const AttentionTensors tensors = {t->qkv, t->o, t->lse, t->do_, t->dqkv, t->workspace};
  ok(attention_cudnn_run(a, direction, &tensors, &err), &err);
}

// Median milliseconds.
static double time_direction(const Bench *b, const AttentionCudnn *a, AttentionDirection direction,
                             const Tensors *t) {
  double ms;
  TIME_CALLS(&b->timer, RUNS, 1, ms, call(a, direction, t));
  return ms;
}

// ---- Tables

static AttentionCudnn *create(const Bench *b, const AttentionShape *s, bool deterministic,
                              int forward_config, int backward_config) {
  const AttentionOptions options = {.deterministic = deterministic,
                                    .forward_config = forward_config,
                                    .backward_config = backward_config};
  Error err;
  AttentionCudnn *a = attention_cudnn_create(&b->api, b->handle, b->stream, s, &options, &err);
  ok(a ? 0 : -1, &err);
  return a;
}

static double teraflops(const AttentionShape *s, AttentionDirection direction, double ms) {
  const double forward =
      2.0 * (double)s->B * (double)s->H * (double)s->T * (double)s->T * (double)s->d;
  return (direction == ATTENTION_FORWARD ? 1 : 2.5) * forward / ms * 1e-9;
}

static void print_configs(const AttentionShape *s, const AttentionCudnn *a,
                          AttentionDirection direction) {
  const AttentionConfig *list;
  const int count = attention_cudnn_configs(a, direction, &list);
  for (int i = 0; i < count; i++)
    printf("  %s engine %lld kernel %lld: %.3f ms (%.0f TFLOP/s), workspace %s, compiled in %.2f "
           "s%s\n",
           direction == ATTENTION_FORWARD ? "forward " : "backward", (long long)list[i].engine,
           (long long)list[i].kernel, list[i].milliseconds,
           teraflops(s, direction, list[i].milliseconds), size_text(list[i].workspace).text,
           list[i].plan_seconds, list[i].chosen ? " <- kept" : "");
}

static void bench_shape(const Bench *b, const char *name, const AttentionShape *s) {
  printf("\n%s: B%lld T%lld H%lld KV%lld d%lld\n", name, (long long)s->B, (long long)s->T,
         (long long)s->H, (long long)s->KV, (long long)s->d);
  for (int deterministic = 0; deterministic < 2; deterministic++) {
    const double start = now();
    AttentionCudnn *a = create(b, s, deterministic, ATTENTION_FASTEST, ATTENTION_FASTEST);
    const double created = now() - start;
    if (!deterministic) print_configs(s, a, ATTENTION_FORWARD);
    print_configs(s, a, ATTENTION_BACKWARD);
    printf("  created, all timed, in %.2f s\n", created);
    const size_t workspace = attention_cudnn_workspace(a, ATTENTION_BACKWARD);
    Tensors t = tensors_new(s, workspace);
    const double forward = time_direction(b, a, ATTENTION_FORWARD, &t);
    const double backward = time_direction(b, a, ATTENTION_BACKWARD, &t);
    printf("  cold cache: forward %.3f ms (%.0f TFLOP/s), %sbackward %.3f ms (%.0f TFLOP/s), "
           "workspace %s\n",
           forward, teraflops(s, ATTENTION_FORWARD, forward), deterministic ? "deterministic " : "",
           backward, teraflops(s, ATTENTION_BACKWARD, backward), size_text(workspace).text);
    CUDA_CHECK(cudaFree(t.memory));
    attention_cudnn_destroy(a);
  }
}

static void bench_host(const Bench *b) {
  enum { CALLS = 200 };
  const AttentionShape s = {1, 128, 6, 6, 48};
  AttentionCudnn *a = create(b, &s, false, ATTENTION_FIRST, ATTENTION_FIRST);
  Tensors t = tensors_new(&s, attention_cudnn_workspace(a, ATTENTION_BACKWARD));
  for (int direction = 0; direction < 2; direction++) {
    double seconds = 0;
    for (int i = -WARM_UP; i < CALLS; i++) {
      CUDA_CHECK(cudaStreamSynchronize(b->stream));
      const double start = now();
      call(a, (AttentionDirection)direction, &t);
      if (i >= 0) seconds += now() - start;
    }
    printf("host time of a %s call: %.1f us\n", direction ? "backward" : "forward",
           seconds / CALLS * 1e6);
  }
  CUDA_CHECK(cudaStreamSynchronize(b->stream));
  CUDA_CHECK(cudaFree(t.memory));
  attention_cudnn_destroy(a);
}

static void start_up(Bench *b) {
  Error err;
  double t = now();
  CUDA_CHECK(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
  b->timer = gpu_timer_open(b->stream, FLUSH_BYTES);
  printf("CUDA context %.3f s, ", now() - t), t = now();
  ok(cudnn_open(&b->api, &err), &err);
  printf("loading cuDNN %s %.3f s, ", cudnn_version_text(b->api.version).text, now() - t),
      t = now();
  ok(cudnn_check(&b->api, b->api.create(&b->handle), "opening cuDNN", &err), &err);
  ok(cudnn_check(&b->api, b->api.set_stream(b->handle, b->stream), "opening cuDNN", &err), &err);
  printf("its handle %.3f s\n", now() - t);
  const AttentionShape s = {8, 4096, 32, 8, 64};
  for (int round = 0; round < 2; round++) {
    t = now();
    attention_cudnn_destroy(create(b, &s, false, ATTENTION_FIRST, ATTENTION_FIRST));
    printf("%s forward and backward, not timed: %.3f s\n", round ? "again" : "the first",
           now() - t);
  }
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  static const struct {
    const char *name;
    AttentionShape shape;
  } shapes[] = {
      {"llama-3.2-1b", {8, 4096, 32, 8, 64}},
      {"llama-3.2-1b", {4, 8192, 32, 8, 64}},
      {"350M", {16, 2048, 16, 16, 64}},
      {"110M", {32, 1024, 12, 12, 64}},
      {"15M", {128, 256, 6, 6, 48}},
      {"llama-3.1-8b", {4, 4096, 32, 8, 128}},
      {"llama-3.1-70b", {2, 8192, 64, 8, 128}},
  };
  Bench b = {.stream = NULL};
  start_up(&b);
  bench_host(&b);
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    bench_shape(&b, shapes[i].name, &shapes[i].shape);
  return 0;
}
