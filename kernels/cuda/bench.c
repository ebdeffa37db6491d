// What the bench needs of a GPU: marks, and a copy.
#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"

struct Bench {
  cudaEvent_t *events; // [most], and what each marks
  int *what;
  int count, most;
};

static void forget_marks(Bench *b) {
  for (int i = 0; i < b->most; i++) CUDA_CHECK(cudaEventDestroy(b->events[i]));
  free(b->events);
  free(b->what);
}

static void op_marks_open(Backend *be, int most) {
  Cuda *c = cuda_of(be);
  if (!c->bench) c->bench = xcalloc(1, sizeof *c->bench);
  Bench *b = c->bench;
  forget_marks(b);
  b->count = 0;
  b->most = most;
  b->what = xcalloc((size_t)most, sizeof *b->what);
  b->events = xcalloc((size_t)most, sizeof *b->events);
  for (int i = 0; i < most; i++) CUDA_CHECK(cudaEventCreate(&b->events[i]));
}

void cuda_mark(Backend *be, int what) {
  const Cuda *c = cuda_of(be);
  Bench *b = c->bench;
  assert(b->count < b->most);
  b->what[b->count] = what;
  CUDA_CHECK(cudaEventRecord(b->events[b->count++], c->gpu.stream));
}

static int op_marks_read(Backend *be, Mark *marks) {
  const Cuda *c = cuda_of(be);
  Bench *b = c->bench;
  const int count = b->count;
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  double since_first = 0; // in fp32 the seconds of a block would round microseconds away
  for (int i = 0; i < count; i++) {
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, b->events[i > 0 ? i - 1 : 0], b->events[i]));
    since_first += (double)ms;
    marks[i] = (Mark){b->what[i], since_first};
  }
  b->count = 0;
  return count;
}

static void op_copy(Backend *be, void *to, const void *from, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_of(be)->gpu.stream));
}

void cuda_set_bench(Cuda *c) {
  Backend *be = &c->base;
  be->services.marks_open = op_marks_open;
  be->services.mark = cuda_mark;
  be->services.marks_read = op_marks_read;
  be->services.copy = op_copy;
}

void cuda_bench_close(Cuda *c) {
  if (!c->bench) return;
  forget_marks(c->bench);
  free(c->bench);
}
