// Memory of a GPU backend, and copies to and from it.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/formats.h"

enum { STAGES = 4, STAGE_BYTES = 1 << 20 };

typedef struct Workspace {
  void *memory;
  size_t bytes;
} Workspace;

struct Memory {
  Workspace *workspaces; // [workspace_count], of cuda_take
  int workspace_count;
  // Pinned, [STAGES]: writes go through them, so that they wait neither for the GPU nor for the
  // driver.
  char (*stages)[STAGE_BYTES];
  cudaEvent_t stage_free[STAGES];
  int64_t staged;
};

int cuda_memory_open(Cuda *c, Error *err) {
  Memory *m = c->memory = xcalloc(1, sizeof *m);
  CUDA_TRY(err,
           cudaHostAlloc((void **)&m->stages, sizeof *m->stages * STAGES, cudaHostAllocDefault));
  for (int i = 0; i < STAGES; i++)
    CUDA_TRY(err, cudaEventCreateWithFlags(&m->stage_free[i], cudaEventDisableTiming));
  return 0;
}

void cuda_memory_close(Cuda *c) {
  Memory *m = c->memory;
  if (!m) return;
  for (int i = 0; i < STAGES; i++)
    if (m->stage_free[i]) CUDA_CHECK(cudaEventDestroy(m->stage_free[i]));
  if (m->stages) CUDA_CHECK(cudaFreeHost(m->stages));
  for (int i = 0; i < m->workspace_count; i++) CUDA_CHECK(cudaFree(m->workspaces[i].memory));
  free(m->workspaces);
  free(m);
}

void *cuda_take(Cuda *c, size_t bytes, Error *err) {
  Memory *m = c->memory;
  void *memory = gpu_alloc(bytes);
  if (!memory) {
    error_set(err, "the GPU has no %s left for the backend's workspace", size_text(bytes).text);
    return NULL;
  }
  m->workspaces = xrealloc(m->workspaces, ((size_t)m->workspace_count + 1) * sizeof *m->workspaces);
  m->workspaces[m->workspace_count++] = (Workspace){memory, bytes};
  c->base.spec.workspace_bytes += bytes;
  // Zero also where it is written first: compute-sanitizer does not see what cuBLASLt stores
  // through the copy engine, and would report every read of it.
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, c->gpu.stream));
  return memory;
}

void cuda_give_back(Cuda *c, void *memory) {
  Memory *m = c->memory;
  for (int i = 0; i < m->workspace_count; i++) {
    if (m->workspaces[i].memory != memory) continue;
    CUDA_CHECK(cudaFree(memory));
    c->base.spec.workspace_bytes -= m->workspaces[i].bytes;
    m->workspaces[i] = m->workspaces[--m->workspace_count];
    return;
  }
}

static void *op_alloc(Backend *be, size_t bytes) {
  (void)be;
  return gpu_alloc(bytes);
}

static size_t op_memory_taken(Backend *be) {
  return gpu_memory_taken(&cuda_of(be)->gpu);
}

static void op_release(Backend *be, void *memory) {
  cuda_loans_settle(cuda_of(be));
  CUDA_CHECK(cudaStreamSynchronize(cuda_of(be)->gpu.stream));
  cuda_replay_close(cuda_of(be));
  CUDA_CHECK(cudaFree(memory));
}

static void *op_alloc_host(Backend *be, size_t bytes) {
  (void)be;
  return gpu_alloc_host(bytes);
}

static void op_release_host(Backend *be, void *memory) {
  cuda_loans_close(cuda_of(be));
  CUDA_CHECK(cudaStreamSynchronize(cuda_of(be)->gpu.stream));
  cuda_replay_close(cuda_of(be));
  CUDA_CHECK(cudaFreeHost(memory));
}

static void op_zero(Backend *be, void *memory, size_t bytes) {
  cuda_loans_settle(cuda_of(be));
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, cuda_of(be)->gpu.stream));
}

// The next stage, once the copy out of it is done; a run's batches never find one busy.
static int take_stage(Cuda *c) {
  const int stage = (int)(c->memory->staged++ % STAGES);
  CUDA_CHECK(cudaEventSynchronize(c->memory->stage_free[stage]));
  return stage;
}

static void op_write(Backend *be, void *to, const void *from_host, size_t bytes) {
  Cuda *c = cuda_of(be);
  for (size_t done = 0; done < bytes;) {
    const int stage = take_stage(c);
    char *pinned = c->memory->stages[stage];
    const size_t piece = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
    memcpy(pinned, (const char *)from_host + done, piece);
    // What is offloaded lies on the host, too.
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, pinned, piece, cudaMemcpyDefault, c->gpu.stream));
    CUDA_CHECK(cudaEventRecord(c->memory->stage_free[stage], c->gpu.stream));
    done += piece;
  }
}

static void op_read(Backend *be, void *to_host, const void *from, size_t bytes) {
  const cudaStream_t stream = cuda_of(be)->gpu.stream;
  cuda_loans_settle(cuda_of(be));
  CUDA_CHECK(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDefault, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Through a stage: a token's logits are read for every token written.
static void op_read_act(Backend *be, float *to_host, const act_t *from, int64_t count) {
  enum { PIECE = STAGE_BYTES / sizeof(bf16_bits) };
  Cuda *c = cuda_of(be);
  for (int64_t done = 0; done < count; done += PIECE) {
    bf16_bits *bits = (bf16_bits *)c->memory->stages[take_stage(c)];
    const int64_t piece = count - done < PIECE ? count - done : PIECE;
    op_read(be, bits, act_at(be, from, done), (size_t)piece * sizeof *bits);
    for (int64_t i = 0; i < piece; i++) {
      const uint32_t widened = (uint32_t)bits[i] << 16;
      memcpy(&to_host[done + i], &widened, sizeof widened);
    }
  }
}

// to: fp32 or bf16, by element_bytes; so `from` below.
static void write_either(Backend *be, void *to, const float *from_host, int64_t count,
                         size_t element_bytes) {
  enum { PIECE = STAGE_BYTES / sizeof(bf16_bits) };
  if (element_bytes == sizeof(float)) {
    op_write(be, to, from_host, (size_t)count * sizeof(float));
    return;
  }
  bf16_bits *bits = xmalloc(STAGE_BYTES);
  for (int64_t done = 0; done < count; done += PIECE) {
    const int64_t piece = count - done < PIECE ? count - done : PIECE;
    for (int64_t i = 0; i < piece; i++) {
      const float rounded = moment_round(from_host[done + i], MOMENT_NEAREST);
      memcpy(&bits[i], (const char *)&rounded + sizeof *bits, sizeof *bits); // the upper half
    }
    op_write(be, (bf16_bits *)to + done, bits, (size_t)piece * sizeof *bits);
  }
  free(bits);
}

static void read_either(Backend *be, float *to_host, const void *from, int64_t count,
                        size_t element_bytes) {
  if (element_bytes == sizeof(float))
    op_read(be, to_host, from, (size_t)count * sizeof(float));
  else
    op_read_act(be, to_host, from, count);
}

// Element `first` of a tensor's master.
static char *master_at(const Backend *be, const ParamTensor *t, int64_t first) {
  return (char *)t->master + (size_t)first * master_bytes(&be->spec, t);
}

static void op_write_master(Backend *be, const ParamTensor *t, int64_t first,
                            const float *from_host, int64_t count) {
  write_either(be, master_at(be, t, first), from_host, count, master_bytes(&be->spec, t));
}

static void op_read_master(Backend *be, float *to_host, const ParamTensor *t, int64_t first,
                           int64_t count) {
  read_either(be, to_host, master_at(be, t, first), count, master_bytes(&be->spec, t));
}

static void op_write_moments(Backend *be, moment_t *to, const float *from_host, int64_t count) {
  cuda_loans_settle(cuda_of(be));
  write_either(be, to, from_host, count, moment_bytes(&be->spec));
}

static void op_read_moments(Backend *be, float *to_host, const moment_t *from, int64_t count) {
  read_either(be, to_host, from, count, moment_bytes(&be->spec));
}

static void op_read_grad(Backend *be, float *to_host, const grad_t *from, int64_t count) {
  read_either(be, to_host, from, count, grad_bytes(&be->spec));
}

// The rows' numbers go through the stages, where the kernel reads them.
static void op_draw_master(Backend *be, const ParamTensor *to, const int32_t *places, int64_t rows,
                           uint64_t key, double deviation) {
  enum { PIECE = STAGE_BYTES / sizeof *places };
  Cuda *c = cuda_of(be);
  for (int64_t done = 0; done < rows; done += PIECE) {
    const int stage = take_stage(c);
    const int64_t piece = rows - done < PIECE ? rows - done : PIECE;
    int32_t *pinned = (int32_t *)c->memory->stages[stage];
    memcpy(pinned, places + done, (size_t)piece * sizeof *pinned);
    launch_draw(to->master, master_bytes(&be->spec, to) == sizeof(bf16_bits), pinned, done, piece,
                to->cols, key, deviation, c->gpu.stream);
    CUDA_CHECK(cudaEventRecord(c->memory->stage_free[stage], c->gpu.stream));
  }
}

void cuda_set_memory(Cuda *c) {
  Backend *be = &c->base;
  be->services.alloc = op_alloc;
  be->services.memory_taken = op_memory_taken;
  be->services.release = op_release;
  be->services.alloc_host = op_alloc_host;
  be->services.release_host = op_release_host;
  be->services.zero = op_zero;
  be->services.write = op_write;
  be->services.read = op_read;
  be->services.write_master = op_write_master;
  be->services.read_master = op_read_master;
  be->services.write_moments = op_write_moments;
  be->services.read_moments = op_read_moments;
  be->services.read_act = op_read_act;
  be->services.read_grad = op_read_grad;
  be->services.draw_master = op_draw_master;
}
