// Offloaded moments that are on the GPU while the update needs them, in the memory of activations
// (kernels/services.h: Loan). A stream of its own copies them, and events say when: the bus is busy
// while the backward and the next forward compute.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"

struct Loans {
  cudaStream_t stream;
  Loan *list; // [count]
  int count;
  int at_home; // from the first one: those that the backend's stream has waited for
  bool near;   // fetched, and not on the way back
  // [count]: the backward of a loan's layers is done; the loan has returned
  cudaEvent_t *read, *returned;
  cudaEvent_t fetched, updated;
};

static cudaEvent_t new_event(void) {
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void cuda_loans_close(Cuda *c) {
  Loans *s = c->loans;
  if (!s) return;
  CUDA_CHECK(cudaStreamSynchronize(s->stream));
  for (int i = 0; i < s->count; i++) {
    CUDA_CHECK(cudaEventDestroy(s->read[i]));
    CUDA_CHECK(cudaEventDestroy(s->returned[i]));
  }
  CUDA_CHECK(cudaEventDestroy(s->fetched));
  CUDA_CHECK(cudaEventDestroy(s->updated));
  CUDA_CHECK(cudaStreamDestroy(s->stream));
  free(s->read);
  free(s->returned);
  free(s->list);
  free(s);
  c->loans = NULL;
}

static void op_lend(Backend *be, const Loan *list, int count) {
  Cuda *c = cuda_of(be);
  cuda_loans_close(c);
  if (count == 0) return;
  Loans *s = c->loans = xcalloc(1, sizeof *s);
  s->count = s->at_home = count;
  s->list = xmalloc((size_t)count * sizeof *list);
  memcpy(s->list, list, (size_t)count * sizeof *list);
  s->read = xcalloc((size_t)count, sizeof *s->read);
  s->returned = xcalloc((size_t)count, sizeof *s->returned);
  CUDA_CHECK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
  for (int i = 0; i < count; i++) {
    s->read[i] = new_event();
    s->returned[i] = new_event();
  }
  s->fetched = new_event();
  s->updated = new_event();
}

static void op_acts_read(Backend *be, int64_t layer) {
  const Cuda *c = cuda_of(be);
  const Loans *s = c->loans;
  for (int i = 0; s && i < s->count; i++)
    if (s->list[i].layer == layer) CUDA_CHECK(cudaEventRecord(s->read[i], c->gpu.stream));
}

// Waits for the first `count` to be at home. They return one after the other.
static void wait_for(const Cuda *c, int count) {
  Loans *s = c->loans;
  if (count <= s->at_home) return;
  CUDA_CHECK(cudaStreamWaitEvent(c->gpu.stream, s->returned[count - 1], 0));
  s->at_home = count;
}

static void op_acts_needed(Backend *be, int64_t layer) {
  const Cuda *c = cuda_of(be);
  if (!c->loans) return;
  int count = c->loans->at_home;
  while (count < c->loans->count && c->loans->list[count].layer <= layer) count++;
  wait_for(c, count);
}

void cuda_loans_settle(Cuda *c) {
  if (c->loans) wait_for(c, c->loans->count);
}

// The last one first: a backward is done with the last layer first.
void cuda_loans_fetch(Cuda *c) {
  Loans *s = c->loans;
  if (!s || s->near) return;
  for (int i = s->count; i-- > 0;) {
    const Loan *l = &s->list[i];
    CUDA_CHECK(cudaStreamWaitEvent(s->stream, s->read[i], 0));
    CUDA_CHECK(cudaMemcpyAsync(l->near, l->home, l->bytes, cudaMemcpyHostToDevice, s->stream));
  }
  CUDA_CHECK(cudaEventRecord(s->fetched, s->stream));
  CUDA_CHECK(cudaStreamWaitEvent(c->gpu.stream, s->fetched, 0));
  s->near = true;
}

// The first one first: a forward needs the memory of the first layer first.
void cuda_loans_return(Cuda *c) {
  Loans *s = c->loans;
  if (!s || !s->near) return;
  CUDA_CHECK(cudaEventRecord(s->updated, c->gpu.stream));
  CUDA_CHECK(cudaStreamWaitEvent(s->stream, s->updated, 0));
  for (int i = 0; i < s->count; i++) {
    const Loan *l = &s->list[i];
    CUDA_CHECK(cudaMemcpyAsync(l->home, l->near, l->bytes, cudaMemcpyDeviceToHost, s->stream));
    CUDA_CHECK(cudaEventRecord(s->returned[i], s->stream));
  }
  s->at_home = 0;
  s->near = false;
}

void cuda_set_loans(Cuda *c) {
  Backend *be = &c->base;
  be->services.lend = op_lend;
  be->services.acts_read = op_acts_read;
  be->services.acts_needed = op_acts_needed;
}
