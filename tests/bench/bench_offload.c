// Times the update with its state on the GPU and on the host: the norm of the gradients, AdamW, and
// the bytes that cross the bus each way; beside what copy engines reach, both ways at once.
//   usage: bench_offload CONFIG.json [section.key=value ...]
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/os.h"
#include "base/rng.h"
#include "kernels/cuda/gpu.h"
#include "model/llama.h"
#include "model/optimizer.h"
#include "model/run/backend.h"
#include "tests/bench/gpu_timer.h"

enum { ROUNDS = 7, WARM_UP = 2 };

static void must(int status, const Error *err) {
  if (status == 0) return;
  fprintf(stderr, "bench_offload: %s\n", err->text);
  exit(1);
}

// Bytes that cross the bus in one direction: of the update each way, of the norm to the GPU. The
// update reads gradients on the host once more.
typedef struct Crossing {
  double update, norm;
} Crossing;

static Crossing crossing_of(const Llama *llama) {
  const Spec *spec = &llama->spec;
  const double moments = spec->offload >= OFFLOAD_MOMENTS ? 2 * (double)moment_bytes(spec) : 0,
               master = spec->offload >= OFFLOAD_MASTERS
                            ? (double)master_bytes(spec, llama->layers[0].qkv)
                            : 0,
               gradient = spec->offload >= OFFLOAD_GRADIENTS ? (double)grad_bytes(spec) : 0;
  Crossing c = {0, 0};
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const double n = (double)(t->rows * t->cols);
    if (!t->vector) c.update += n * (moments + master);
    if (!t->vector && t != llama->embed && t != llama->lm_head) c.norm += n * gradient;
    if (t->norm >= 0 && !(t->folded.data && !spec->grads_fp32)) c.norm += n * master;
  }
  return c;
}

// Gradients of a batch of random tokens.
static void make_gradients(Llama *llama, int64_t V, bool twice) {
  const int64_t M = batch_rows(&llama->spec);
  int32_t *ids = xmalloc(2 * (size_t)M * sizeof *ids);
  for (int64_t i = 0; i < 2 * M; i++) ids[i] = (int32_t)(rng_u64(1, (uint64_t)i) % (uint64_t)V);
  for (int i = 0; i < (twice ? 2 : 1); i++) {
    llama_load_batch(llama, &(Batch){.tokens = ids, .targets = ids + M});
    llama_forward(llama);
    llama_backward(llama, 1, i > 0);
  }
  free(ids);
}

static void wait_for_gpu(Llama *llama) {
  char byte;
  llama->be->services.read(llama->be, &byte, llama->params_block, 1);
}

static void time_update(Llama *llama, const AdamW *hyper) {
  Backend *be = llama->be;
  double norm[ROUNDS], update[ROUNDS];
  for (int round = -WARM_UP; round < ROUNDS; round++) {
    be->services.step_begin(be);
    be->services.set_hyper(be, hyper);
    wait_for_gpu(llama);
    const double began = now_ms();
    be->grads_finish(be, llama->tensors, llama->param_count);
    wait_for_gpu(llama);
    const double middle = now_ms();
    be->adamw(be, llama->tensors, llama->param_count);
    be->services.step_end(be);
    const StepResult result = be->services.step_result(be);
    const double end = now_ms();
    Error err;
    if (!result.applied) must(error_set(&err, "an update was skipped: nothing is timed"), &err);
    if (round < 0) continue;
    norm[round] = middle - began;
    update[round] = end - middle;
  }
  sort_samples(norm, ROUNDS);
  sort_samples(update, ROUNDS);
  const double norm_ms = median_of(norm, ROUNDS), ms = median_of(update, ROUNDS);
  const Crossing bytes = crossing_of(llama);
  printf("  norm   %9.2f ms", norm_ms);
  if (bytes.norm > 0)
    printf("  %6.2f GB to the GPU, %.1f GB/s", bytes.norm / 1e9, bytes.norm / norm_ms / 1e6);
  printf("\n  update %9.2f ms (%.2f to %.2f)", ms, update[0], update[ROUNDS - 1]);
  if (bytes.update > 0)
    printf("  %6.2f GB each way, %.1f GB/s each way", bytes.update / 1e9, bytes.update / ms / 1e6);
  printf("\n");
  fflush(stdout);
}

// Copies of the offloaded block to the GPU and, at the same time, back.
static void time_copies(const Llama *llama, size_t bytes) {
  enum { MOST = 1 << 30 };
  const size_t half = bytes / 2 < MOST ? bytes / 2 : MOST;
  cudaStream_t there, back;
  void *to = gpu_alloc(half), *from = gpu_alloc(half);
  double ms[ROUNDS];
  if (!to || !from) {
    printf("  copies: the GPU has no room for them\n");
    return;
  }
  CUDA_CHECK(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&back, cudaStreamNonBlocking));
  CUDA_CHECK(cudaMemcpy(from, llama->host_block + half, half, cudaMemcpyDefault));
  for (int round = 0; round < ROUNDS; round++) {
    const double began = now_ms();
    CUDA_CHECK(cudaMemcpyAsync(to, llama->host_block, half, cudaMemcpyHostToDevice, there));
    CUDA_CHECK(cudaMemcpyAsync(llama->host_block + half, from, half, cudaMemcpyDeviceToHost, back));
    CUDA_CHECK(cudaStreamSynchronize(there));
    CUDA_CHECK(cudaStreamSynchronize(back));
    ms[round] = now_ms() - began;
  }
  sort_samples(ms, ROUNDS);
  printf("  copies %9.2f ms  %6.2f GB each way, %.1f GB/s each way\n", median_of(ms, ROUNDS),
         (double)half / 1e9, (double)half / median_of(ms, ROUNDS) / 1e6);
  CUDA_CHECK(cudaStreamDestroy(there));
  CUDA_CHECK(cudaStreamDestroy(back));
  CUDA_CHECK(cudaFree(to));
  CUDA_CHECK(cudaFree(from));
}

static void measure(Config *c, Offload offload) {
  static const char *const names[] = {"none", "moments", "masters", "gradients"};
  Error err;
  c->backend.offload = offload;
  Hardware hardware;
  Spec asked = run_spec(c);
  asked.context = 0;
  must(hardware_find(&hardware, c, &err), &err);
  const Spec spec = spec_resolve(c, asked, &hardware);
  Backend *be = backend_open(c, &spec, &hardware, &err);
  must(be ? 0 : -1, &err);
  const double began = now_ms();
  Llama llama;
  if (llama_create(&llama, &c->model, be, &err) != 0) {
    printf("offload=%s: %s\n", names[offload], err.text);
    be->services.destroy(be);
    return;
  }
  const MemoryPlan plan = llama.plan;

  printf("offload=%s: %s on the GPU, %s on the host, allocated in %.1f s\n", names[offload],
         size_text(plan.total_bytes).text, size_text(plan.host_bytes).text,
         (now_ms() - began) * 1e-3);
  llama_init_weights(&llama, 1);
  make_gradients(&llama, c->model.vocab_size, c->train.gradient_accumulation > 1);
  const AdamW hyper = adamw_at(&c->optimizer, 0, 1);
  time_update(&llama, &hyper);
  if (plan.host_bytes > 0) time_copies(&llama, plan.host_bytes);
  llama_destroy(&llama);
  be->services.destroy(be);
}

int main(int argc, char **argv) {
  Error err;
  Config config;
  if (argc < 2) must(error_set(&err, "say which CONFIG.json"), &err);
  must(config_load(&config, argv[1], argc - 2, argv + 2, &err), &err);
  config.backend.device = DEVICE_CUDA;
  for (int offload = OFFLOAD_NONE; offload <= OFFLOAD_GRADIENTS; offload++)
    measure(&config, (Offload)offload);
  return 0;
}
