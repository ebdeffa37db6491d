// A step's begin and end, its results on their way to the host, and its parts recorded as CUDA
// graphs, so that the host stays out of the GPU's way.
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"

// A part of a step, launched the first time and replayed as a CUDA graph later.
typedef struct Recording {
  int64_t calls;
  cudaGraphExec_t graph; // from the second call on
} Recording;

struct Steps {
  // Pinned, [MAX_RESULTS]: step_end copies the results to it, and they are read in the same order.
  StepState *results;
  cudaEvent_t began[MAX_RESULTS], ready[MAX_RESULTS];
  int64_t published, taken;
  cudaEvent_t token_ready[MAX_RESULTS];
  Recording recordings[REPLAY_SLOTS];
};

int cuda_step_open(Cuda *c, Error *err) {
  Steps *s = c->steps = xcalloc(1, sizeof *s);
  CUDA_TRY(err, cudaHostAlloc((void **)&s->results, sizeof *s->results * MAX_RESULTS,
                              cudaHostAllocDefault));
  CUDA_TRY(err, cudaHostAlloc((void **)&c->tokens_to_host, sizeof *c->tokens_to_host * MAX_RESULTS,
                              cudaHostAllocDefault));
  for (int i = 0; i < MAX_RESULTS; i++) {
    CUDA_TRY(err, cudaEventCreateWithFlags(&s->token_ready[i], cudaEventDisableTiming));
    CUDA_TRY(err, cudaEventCreate(&s->began[i]));
    CUDA_TRY(err, cudaEventCreate(&s->ready[i]));
    // Validations have no clock_start, and only a recorded event can be asked for its time.
    CUDA_TRY(err, cudaEventRecord(s->began[i], c->gpu.stream));
  }
  return 0;
}

void cuda_step_close(Cuda *c) {
  Steps *s = c->steps;
  if (!s) return;
  cuda_replay_close(c);
  for (int i = 0; i < MAX_RESULTS; i++) {
    if (s->token_ready[i]) CUDA_CHECK(cudaEventDestroy(s->token_ready[i]));
    if (s->began[i]) CUDA_CHECK(cudaEventDestroy(s->began[i]));
    if (s->ready[i]) CUDA_CHECK(cudaEventDestroy(s->ready[i]));
  }
  if (s->results) CUDA_CHECK(cudaFreeHost(s->results));
  if (c->tokens_to_host) CUDA_CHECK(cudaFreeHost(c->tokens_to_host));
  free(s);
}

static void op_clock_start(Backend *be) {
  const Cuda *c = cuda_of(be);
  const Steps *s = c->steps;
  CUDA_CHECK(cudaEventRecord(s->began[s->published % MAX_RESULTS], c->gpu.stream));
}

static void op_step_begin(Backend *be) {
  be->services.zero(be, cuda_of(be)->state, offsetof(StepState, updates));
}

// Not inside a captured graph, which would freeze the values.
static void op_set_hyper(Backend *be, const AdamW *hyper) {
  be->services.write(be, &cuda_of(be)->state->hyper, hyper, sizeof *hyper);
  be->calibrating = false;
}

static void op_step_end(Backend *be) {
  Cuda *c = cuda_of(be);
  Steps *s = c->steps;
  assert(s->published - s->taken < MAX_RESULTS);
  const int slot = (int)(s->published++ % MAX_RESULTS);
  CUDA_CHECK(cudaMemcpyAsync(&s->results[slot], c->state, sizeof *c->state, cudaMemcpyDeviceToHost,
                             c->gpu.stream));
  CUDA_CHECK(cudaEventRecord(s->ready[slot], c->gpu.stream));
  cuda_loans_return(c); // the engine that copies to the host is free for the result before
}

static StepResult op_step_result(Backend *be) {
  Steps *s = cuda_of(be)->steps;
  assert(s->taken < s->published);
  const int slot = (int)(s->taken++ % MAX_RESULTS);
  CUDA_CHECK(cudaEventSynchronize(s->ready[slot]));
  float ms;
  CUDA_CHECK(cudaEventElapsedTime(&ms, s->began[slot], s->ready[slot]));
  const StepState *r = &s->results[slot];
  return (StepResult){.ms = ms,
                      .loss = r->loss,
                      .grad_norm = r->grad_norm,
                      .applied = r->applied != 0,
                      .updates = r->updates,
                      .saturated = r->saturated,
                      .saturated_first = r->saturated > 0 ? r->saturated_first : -1};
}

static void op_set_updates(Backend *be, int64_t updates) {
  be->services.write(be, &cuda_of(be)->state->updates, &updates, sizeof updates);
}

static void op_token_send(Backend *be, uint64_t index) {
  const Cuda *c = cuda_of(be);
  CUDA_CHECK(cudaEventRecord(c->steps->token_ready[index % MAX_RESULTS], c->gpu.stream));
}

static int32_t op_token_take(Backend *be, uint64_t index) {
  const Cuda *c = cuda_of(be);
  CUDA_CHECK(cudaEventSynchronize(c->steps->token_ready[index % MAX_RESULTS]));
  return c->tokens_to_host[index % MAX_RESULTS];
}

// ---- Graphs

// An observed step is always launched. In a run with documents the recorded launches are for the
// usual number of documents. A batch with more documents, or with whole windows (of a split whose
// ends are not known), needs others. Where moments are lent, the copies of the step wait for parts
// of it, and a graph has no such inside; what a kernel computes there takes longer than a launch.
static bool differs_from_recorded(const Cuda *c, ReplaySlot slot) {
  const bool of_step = slot != REPLAY_LOSS && slot != REPLAY_TOKEN;
  return c->base.calibrating || c->base.observed || !c->documents_are_usual ||
         (of_step && c->loans);
}

// The first call only launches, since it makes the plans that were not made at the start.
static bool op_replay_begin(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->steps->recordings[slot];
  if (differs_from_recorded(c, slot)) return true;
  if (r->graph) {
    CUDA_CHECK(cudaGraphLaunch(r->graph, c->gpu.stream));
    return false;
  }
  if (c->base.spec.graphs && r->calls++ > 0)
    CUDA_CHECK(cudaStreamBeginCapture(c->gpu.stream, cudaStreamCaptureModeThreadLocal));
  return true;
}

static void op_replay_end(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->steps->recordings[slot];
  if (r->calls < 2 || differs_from_recorded(c, slot)) return;
  cudaGraph_t graph;
  CUDA_CHECK(cudaStreamEndCapture(c->gpu.stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&r->graph, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphLaunch(r->graph, c->gpu.stream));
}

void cuda_replay_close(Cuda *c) {
  for (int i = 0; i < REPLAY_SLOTS; i++) {
    Recording *r = &c->steps->recordings[i];
    if (r->graph) CUDA_CHECK(cudaGraphExecDestroy(r->graph));
    *r = (Recording){0};
  }
}

void cuda_set_step(Cuda *c) {
  Backend *be = &c->base;
  be->services.step_begin = op_step_begin;
  be->services.set_hyper = op_set_hyper;
  be->services.step_end = op_step_end;
  be->services.clock_start = op_clock_start;
  be->services.step_result = op_step_result;
  be->services.set_updates = op_set_updates;
  be->services.token_send = op_token_send;
  be->services.token_take = op_token_take;
  be->services.replay_begin = op_replay_begin;
  be->services.replay_end = op_replay_end;
}
