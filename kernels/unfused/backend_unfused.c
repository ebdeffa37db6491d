#include "kernels/unfused/backend_unfused.h"

#include <cuda_profiler_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/check.h"
#include "kernels/unfused/state.h"

// ---- Memory

static void *op_alloc(Backend *be, size_t bytes) {
  (void)be;
  void *memory = NULL;
  if (cudaMalloc(&memory, bytes ? bytes : 256) == cudaSuccess) return memory;
  (void)cudaGetLastError(); // not enough memory is the caller's to report
  return NULL;
}

static size_t op_memory_taken(Backend *be) {
  return gpu_memory_taken(&unfused_of(be)->gpu);
}

static void op_release(Backend *be, void *memory) {
  CUDA_CHECK(cudaStreamSynchronize(unfused_of(be)->gpu.stream));
  CUDA_CHECK(cudaFree(memory));
}

static void op_zero(Backend *be, void *memory, size_t bytes) {
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, unfused_of(be)->gpu.stream));
}

static void op_read(Backend *be, void *to_host, const void *from, size_t bytes) {
  const cudaStream_t stream = unfused_of(be)->gpu.stream;
  CUDA_CHECK(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

static void op_write_master(Backend *be, master_t *to, const float *from_host, int64_t count) {
  unfused_op_write(be, to, from_host, (size_t)count * sizeof(float));
}

static void op_read_fp32(Backend *be, float *to_host, const void *from, int64_t count) {
  op_read(be, to_host, from, (size_t)count * sizeof(float));
}

static void op_read_bf16(Backend *be, float *to_host, const void *from, int64_t count) {
  bf16_bits *bits = xmalloc((size_t)count * sizeof *bits);
  op_read(be, bits, from, (size_t)count * sizeof *bits);
  for (int64_t i = 0; i < count; i++) {
    const uint32_t widened = (uint32_t)bits[i] << 16;
    memcpy(&to_host[i], &widened, sizeof widened);
  }
  free(bits);
}

static void op_profile(Backend *be, bool open) {
  CUDA_CHECK(cudaStreamSynchronize(unfused_of(be)->gpu.stream));
  CUDA_CHECK(open ? cudaProfilerStart() : cudaProfilerStop());
}

static int op_trace_open(Backend *be, Error *err) {
  Unfused *u = unfused_of(be);
  u->trace = trace_open(NULL, u->gpu.runtime / 1000, err);
  return u->trace ? 0 : -1;
}

static int op_trace_begin(Backend *be, Error *err) {
  CUDA_CHECK(cudaStreamSynchronize(unfused_of(be)->gpu.stream));
  return trace_begin(unfused_of(be)->trace, err);
}

static int op_trace_end(Backend *be, Activities *activities, Error *err) {
  CUDA_CHECK(cudaStreamSynchronize(unfused_of(be)->gpu.stream));
  return trace_end(unfused_of(be)->trace, activities, err);
}

// ---- Set-up

// cosine and sine of position * inv_freq, in double before rounding: exact at large positions too.
static int make_rope_table(Unfused *u, Error *err) {
  const OpsConfig *c = &u->config;
  const int64_t half = c->d / 2;
  const size_t bytes = (size_t)(c->max_positions * c->d) * sizeof(float);
  float *table = xmalloc(bytes);
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < c->max_positions; t++)
    for (int64_t j = 0; j < half; j++) {
      const double angle = (double)t * c->inv_freq[j];
      table[(t * half + j) * 2] = (float)cos(angle);
      table[(t * half + j) * 2 + 1] = (float)sin(angle);
    }
  cudaError_t status = cudaMalloc((void **)&u->rope, bytes);
  if (status == cudaSuccess) status = cudaMemcpy(u->rope, table, bytes, cudaMemcpyHostToDevice);
  free(table);
  CUDA_TRY(err, status);
  u->base.workspace_bytes += bytes;
  return 0;
}

int unfused_take(Unfused *u, void **memory, size_t bytes, Error *err) {
  if (bytes == 0) return 0; // everything that it is for is done elsewhere
  if (cudaMalloc(memory, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return error_set(err, "the GPU has no %s left for the backend's workspace",
                     size_text(bytes).text);
  }
  // Zero also where it is written first: compute-sanitizer does not see what cuBLASLt stores
  // through the copy engine, and would report every read of it.
  CUDA_TRY(err, cudaMemsetAsync(*memory, 0, bytes, u->gpu.stream));
  u->base.workspace_bytes += bytes;
  return 0;
}

static int make_workspace(Unfused *u, Error *err) {
  const OpsConfig *c = &u->config;
  if (unfused_take(u, (void **)&u->state, sizeof *u->state, err) ||
      unfused_take(u, (void **)&u->row_loss, (size_t)c->max_tokens * sizeof(float), err))
    return -1;
  const size_t product_bytes = (size_t)(c->max_tokens * u->product_cols) * sizeof(bf16_bits);
  if (u->options.train &&
      (unfused_take(u, (void **)&u->product, product_bytes, err) ||
       unfused_take(u, &u->embed_scratch, unfused_embed_backward_scratch(c->max_tokens, c->V, c->D),
                    err)))
    return -1;
  CUDA_TRY(err, cudaHostAlloc((void **)&u->results, MAX_RESULTS * sizeof *u->results,
                              cudaHostAllocDefault));
  for (int i = 0; i < MAX_RESULTS; i++)
    CUDA_TRY(err, cudaEventCreateWithFlags(&u->result_ready[i], cudaEventDisableTiming));
  return 0;
}

void unfused_close(Unfused *u) {
  if (u->gpu.stream) CUDA_CHECK(cudaStreamSynchronize(u->gpu.stream));
  trace_close(u->trace);
  unfused_attention_close(u);
  unfused_table_free(u);
  unfused_replay_close(u);
  for (int i = 0; i < MAX_RESULTS; i++)
    if (u->result_ready[i]) CUDA_CHECK(cudaEventDestroy(u->result_ready[i]));
  CUDA_CHECK(cudaFreeHost(u->results));
  CUDA_CHECK(cudaFree(u->rope));
  CUDA_CHECK(cudaFree(u->product));
  CUDA_CHECK(cudaFree(u->row_loss));
  CUDA_CHECK(cudaFree(u->embed_scratch));
  CUDA_CHECK(cudaFree(u->state));
  gemm_close(&u->gemm);
  gpu_close(&u->gpu);
}

static void op_destroy(Backend *be) {
  unfused_close(unfused_of(be));
  free(be);
}

static void set_operations(Backend *be, bool grads_fp32) {
  be->destroy = op_destroy;
  be->list_bytes = unfused_op_list_bytes;
  be->alloc = op_alloc;
  be->memory_taken = op_memory_taken;
  be->release = op_release;
  be->zero = op_zero;
  be->write = unfused_op_write;
  be->read = op_read;
  be->write_master = op_write_master;
  be->read_master = op_read_fp32;
  be->read_act = op_read_bf16;
  be->read_grad = grads_fp32 ? op_read_fp32 : op_read_bf16;
  be->embed = unfused_op_embed;
  be->qkv = unfused_op_qkv;
  be->attention = unfused_op_attention;
  be->attention_decode = unfused_op_attention_decode;
  be->residual = unfused_op_residual;
  be->gate_up = unfused_op_gate_up;
  be->lm_head = unfused_op_lm_head;
  be->head_loss = unfused_op_head_loss;
  be->norm_dgrad = unfused_op_norm_dgrad;
  be->down_dgrad = unfused_op_down_dgrad;
  be->dgrad = unfused_op_dgrad;
  be->attention_backward = unfused_op_attention_backward;
  be->rope_backward = unfused_op_rope_backward;
  be->wgrad = unfused_op_wgrad;
  be->embed_backward = unfused_op_embed_backward;
  be->step_begin = unfused_op_step_begin;
  be->grads_finish = unfused_op_grads_finish;
  be->set_hyper = unfused_op_set_hyper;
  be->adamw = unfused_op_adamw;
  be->step_end = unfused_op_step_end;
  be->replay = unfused_op_replay;
  be->refresh = unfused_op_refresh;
  be->step_result = unfused_op_step_result;
  be->set_updates = unfused_op_set_updates;
  be->profile = op_profile;
  be->trace_open = op_trace_open;
  be->trace_begin = op_trace_begin;
  be->trace_end = op_trace_end;
}

// What the driver has handed out so far is more than was asked for: the libraries' code is in it.
// Where another program took memory meanwhile, what was asked for has to do.
static void count_workspace(Unfused *u) {
  enum {
    GRANULE = 2 << 20,              // the driver's; smaller blocks share one
    MOST_CODE = 512 << 20,          // more is not ours
    LOADED_BY_FIRST_STEP = 4 << 20, // kernels and the recorded step, measured on one H200
  };
  Backend *be = &u->base;
  be->workspace_bytes += u->gpu.workspace_bytes + u->attention_workspace_bytes;
  const size_t taken = gpu_memory_taken(&u->gpu);
  if (taken > be->workspace_bytes && taken - be->workspace_bytes < MOST_CODE)
    be->workspace_bytes = taken;
  be->workspace_bytes += LOADED_BY_FIRST_STEP;
  be->granule = GRANULE;
}

static void set_kinds(Backend *be, const Elsewhere *e) {
  const struct {
    Operation operation;
    bool elsewhere;
  } fused[] = {{OP_QKV, e->qkv},
               {OP_OUT, e->out},
               {OP_GATE_UP, e->mlp},
               {OP_DOWN_DGRAD, e->mlp},
               {OP_DOWN, e->down},
               {OP_QKV_DGRAD, e->qkv_dgrad},
               {OP_GATE_UP_DGRAD, e->gate_up_dgrad},
               {OP_LM_HEAD_DGRAD, e->head_dgrad}};
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_UNFUSED;
  for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
    if (fused[i].elsewhere) be->kinds[fused[i].operation] = KERNEL_FUSED;
}

void unfused_describe(Unfused *u) {
  Backend *be = &u->base;
  const Gpu *gpu = &u->gpu;
  be->name = "cuda, unfused";
  snprintf(be->description, sizeof be->description,
           "%.100s, compute capability %d.%d, CUDA %d.%d, driver %d.%d, cuBLASLt %zu, cuDNN %zu",
           gpu->name, gpu->major, gpu->minor, gpu->runtime / 1000, gpu->runtime % 1000 / 10,
           gpu->driver / 1000, gpu->driver % 1000 / 10, gpu->cublaslt, u->cudnn.version);
  be->act_bytes = sizeof(bf16_bits);
  be->stat_bytes = be->master_bytes = sizeof(float);
  be->grad_bytes = u->options.grads_fp32 ? sizeof(float) : sizeof(bf16_bits);
  be->parts.sumsq = be->parts.gate_up = be->parts.qkv = be->parts.logits = 1;
  be->max_tokens = u->config.max_tokens;
  count_workspace(u);
  be->memory_bytes = gpu->memory_bytes;
  be->peak_flops = gpu->peak_flops;
  be->steps_ahead = 1;
  set_kinds(be, &u->options.elsewhere);
}

int unfused_open(Unfused *u, const OpsConfig *config, const UnfusedOptions *options, Error *err) {
  u->config = *config;
  u->options = *options;
  if (config->d % 8 != 0 || config->d > 256)
    return error_set(err,
                     "head_dim is %lld, but attention on the GPU takes multiples of 8 up to 256",
                     (long long)config->d);
  set_operations(&u->base, options->grads_fp32);
  if (gpu_open(&u->gpu, err)) { // without a GPU not even freeing nothing works
    gpu_close(&u->gpu);
    return -1;
  }
  gemm_open(&u->gemm, &u->gpu, options->gemm_cache);
  const Elsewhere *e = &options->elsewhere;
  u->product_cols = e->qkv_dgrad && e->gate_up_dgrad && e->head_dgrad ? 0 : config->D;
  if (!e->mlp && config->F > u->product_cols) u->product_cols = config->F;
  if (unfused_prepare_gemms(u, err) || unfused_attention_open(u, err) || make_rope_table(u, err) ||
      make_workspace(u, err) || unfused_staging_open(u, err)) {
    unfused_close(u);
    return -1;
  }
  // The copies and memsets above are of a stream that this backend's does not wait for.
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) {
    unfused_close(u);
    return error_set(err, "setting up failed on the GPU: %s", cudaGetErrorString(status));
  }
  u->config.inv_freq = NULL; // the caller's; the table has what is needed
  u->options.gemm_cache = NULL;
  return 0;
}

Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options,
                                Error *err) {
  Unfused *u = xcalloc(1, sizeof *u);
  if (unfused_open(u, config, options, err)) {
    free(u);
    return NULL;
  }
  unfused_describe(u);
  return &u->base;
}
