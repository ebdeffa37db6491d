#include <cuda_profiler_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu.h"
#include "kernels/math.h"

// ---- Profilers

static void op_profile(Backend *be, bool open) {
  CUDA_CHECK(cudaStreamSynchronize(cuda_of(be)->gpu.stream));
  CUDA_CHECK(open ? cudaProfilerStart() : cudaProfilerStop());
}

// ---- Set-up

static int make_rope_table(Cuda *c, Error *err) {
  const int64_t d = c->base.spec.d, positions = c->base.spec.max_positions;
  const size_t bytes = (size_t)(positions * d) * sizeof(float);
  if (!(c->rope = cuda_take(c, bytes, err))) return -1;
  float *table = xmalloc(bytes);
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < positions; t++) rope_row(t, d / 2, c->base.spec.inv_freq, table + t * d);
  c->base.services.write(&c->base, c->rope, table, bytes);
  free(table);
  return 0;
}

static int make_workspace(Cuda *c, Error *err) {
  const Spec *o = &c->base.spec;
  const size_t scratch = cuda_embed_scratch(o->max_tokens, o->V, o->D);
  const size_t parts = (size_t)(DECODE_SPLITS * o->H * (o->d + 2)) * sizeof(float);
  if (!(c->state = cuda_take(c, sizeof *c->state, err)) ||
      !(c->row_loss = cuda_take(c, (size_t)o->max_tokens * sizeof(float), err)) ||
      !(c->decode_parts = cuda_take(c, parts, err)) ||
      !(c->decode_done = cuda_take(c, (size_t)o->H * sizeof *c->decode_done, err)) ||
      !(c->logit_bins = cuda_take(c, (LOGIT_BINS + 4) * sizeof *c->logit_bins, err)))
    return -1;
  // A generator's logits are of one row.
  const int64_t sizes[] = {packed_width(o) * o->D, o->D * query_width(o), 2 * o->F * o->D,
                           o->context > 0 ? 0 : o->V * o->D};
  int64_t most = 0;
  for (int i = 0; i < 4; i++) most = max_i64(most, sizes[i]);
  if (o->fp8_weights && !(c->widened = cuda_take(c, (size_t)most * sizeof(bf16_bits), err)))
    return -1;
  return o->train && !(c->embed_scratch = cuda_take(c, scratch, err)) ? -1 : 0;
}

// The algorithms of the run's GEMMs are chosen before it starts.
static int prepare_gemms(Cuda *c, Error *err) {
  GemmProblem list[OPERATION_COUNT * MOST_PROBLEMS];
  int count = 0;
  for (Operation i = 0; i < OPERATION_COUNT && plans_ahead(&c->base.spec); i++)
    if (cuda_work(c, i).kind == CLASS_GEMM && c->base.kinds[i] != KERNEL_FUSED)
      count += cuda_problems_of(c, i, list + count);
  return gemm_prepare(&c->gemm, list, count, err);
}

static void set_services(Cuda *c) {
  Backend *be = &c->base;
  be->services.destroy = cuda_destroy;
  cuda_set_memory(c);
  cuda_set_step(c);
  cuda_set_update(c);
  cuda_set_snapshot(c);
  cuda_set_loans(c);
  cuda_set_bench(c);
  be->services.set_documents = cuda_set_documents;
  be->services.profile = op_profile;
}

static ScalingKind *copy_of_scalings(const Spec *spec) {
  const size_t bytes = (size_t)spec->scaling_count * sizeof *spec->scalings;
  return bytes > 0 ? memcpy(xmalloc(bytes), spec->scalings, bytes) : NULL;
}

static int check_precision(const Cuda *c, Error *err) {
  const Gpu *gpu = &c->gpu;
  const char *instead = c->base.spec.fp8_weights ? "--weights bf16" : "backend.precision=bf16";
  if (!has_fp8_weights(&c->base.spec)) return 0;
  if (!gpu_has_fp8(gpu))
    return error_set(
        err,
        "FP8 needs compute capability 8.9 or later (RTX 40, H100 and newer), and the GPU "
        "(%s) has %d.%d; take %s",
        gpu->name, gpu->major, gpu->minor, instead);
  if (gpu->compiled_for >= 89) return 0;
  return error_set(err,
                   "FP8 needs kernels compiled for 8.9 or later, and what this program has for the "
                   "GPU (%s) is for %d.%d: run make all CUDA_ARCHS=%d%d, or take %s",
                   gpu->name, gpu->compiled_for / 10, gpu->compiled_for % 10, gpu->major,
                   gpu->minor, instead);
}

int cuda_open(Cuda *c, const Spec *spec, const Gpu *gpu, Error *err) {
  c->gpu = *gpu;
  c->base.spec = *spec;
  c->base.spec.workspace_bytes = 0; // cuda_take counts
  c->base.spec.scalings = copy_of_scalings(spec);
  const AttentionShape any = {.B = 1, .T = 1, .H = spec->H, .KV = spec->KV, .d = spec->d};
  Phases *opening = &c->base.opening;
  opening->since_ms = now_ms();
  if (attention_shape_check(&any, err) || gpu_open(&c->gpu, err) || check_precision(c, err))
    return -1;
  set_services(c);
  gemm_open(&c->gemm, &c->gpu, spec->gemm_cache);
  phase_end(opening, "cuBLASLt");
  if (prepare_gemms(c, err)) return -1;
  phase_end(opening, "products");
  const bool failed = cuda_memory_open(c, err) || cuda_attention_open(c, err) ||
                      cuda_step_open(c, err) || make_rope_table(c, err) || make_workspace(c, err) ||
                      cuda_scalings_open(c, err);
  phase_end(opening, "workspace");
  return failed ? -1 : 0;
}

void cuda_destroy(Backend *be) {
  Cuda *c = cuda_of(be);
  if (c->gpu.stream) CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  cuda_snapshot_close(c);
  cuda_loans_close(c);
  cuda_bench_close(c);
  cuda_attention_close(c);
  cuda_table_free(c);
  cuda_step_close(c);
  cuda_memory_close(c);
  gemm_close(&c->gemm);
  gpu_close(&c->gpu);
  free((void *)c->base.spec.scalings);
  free(c);
}

// The driver has allocated more so far than the backend requested: it includes the libraries' code.
// Where another program allocated memory meanwhile, only the requested bytes are counted.
static void count_workspace(Cuda *c) {
  enum {
    GRANULE = 2 << 20,              // the driver's; smaller blocks share one
    MOST_CODE = 512 << 20,          // more is not ours
    LOADED_BY_FIRST_STEP = 4 << 20, // kernels and the recorded step, measured on one H200
  };
  Backend *be = &c->base;
  be->spec.workspace_bytes += c->gpu.workspace_bytes;
  const size_t taken = gpu_memory_taken(&c->gpu);
  if (taken > be->spec.workspace_bytes && taken - be->spec.workspace_bytes < MOST_CODE)
    be->spec.workspace_bytes = taken;
  be->spec.workspace_bytes += LOADED_BY_FIRST_STEP;
  be->spec.granule = GRANULE;
}

int cuda_ready(Cuda *c, const char *name, Error *err) {
  Backend *be = &c->base;
  const Gpu *gpu = &c->gpu;
  // The copies of preparations are of a stream that this backend's does not wait for.
  const cudaError_t status = cudaDeviceSynchronize();
  phase_end(&be->opening, "set-up on the GPU");
  if (status != cudaSuccess)
    return error_set(err, "setting up failed on the GPU: %s", cudaGetErrorString(status));
  c->base.spec.gemm_cache = NULL;
  be->name = name;
  snprintf(
      be->description, sizeof be->description,
      "%.100s, compute capability %d.%d, CUDA %d.%d, driver %d.%d, cuBLASLt %zu, cuDNN %zu%s%.280s",
      gpu->name, gpu->major, gpu->minor, gpu->runtime / 1000, gpu->runtime % 1000 / 10,
      gpu->driver / 1000, gpu->driver % 1000 / 10, gpu->cublaslt, cuda_cudnn_version(c),
      *gpu->choice ? "; " : "", gpu->choice);
  be->spec.memory_bytes =
      gpu->memory_bytes > gpu->used_before ? gpu->memory_bytes - gpu->used_before : 0;
  be->spec.host_bytes = memory_available();
  be->peak_flops = c->base.spec.fp8 ? gpu->rates.fp8 : gpu->rates.bf16;
  be->steps_ahead = 1;
  count_workspace(c);
  return 0;
}
