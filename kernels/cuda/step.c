// A step's begin and end, its results on their way to the host, and its parts recorded as CUDA
// graphs, so that the host stays out of the GPU's way.
#include <assert.h>
#include <stddef.h>

#include "kernels/cuda/cuda.h"

static void op_clock_start(Backend *be) {
  const Cuda *c = cuda_of(be);
  CUDA_CHECK(cudaEventRecord(c->step_began[c->published % MAX_RESULTS], c->gpu.stream));
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
  assert(c->published - c->taken < MAX_RESULTS);
  const int slot = (int)(c->published++ % MAX_RESULTS);
  CUDA_CHECK(cudaMemcpyAsync(&c->pinned->results[slot], c->state, sizeof *c->state,
                             cudaMemcpyDeviceToHost, c->gpu.stream));
  CUDA_CHECK(cudaEventRecord(c->result_ready[slot], c->gpu.stream));
}

static StepResult op_step_result(Backend *be) {
  Cuda *c = cuda_of(be);
  assert(c->taken < c->published);
  const int slot = (int)(c->taken++ % MAX_RESULTS);
  CUDA_CHECK(cudaEventSynchronize(c->result_ready[slot]));
  float ms;
  CUDA_CHECK(cudaEventElapsedTime(&ms, c->step_began[slot], c->result_ready[slot]));
  const StepState *s = &c->pinned->results[slot];
  return (StepResult){.ms = ms,
                      .loss = s->loss,
                      .grad_norm = s->grad_norm,
                      .applied = s->applied != 0,
                      .updates = s->updates,
                      .saturated = s->saturated,
                      .saturated_first = s->saturated > 0 ? s->saturated_first : -1};
}

static void op_set_updates(Backend *be, int64_t updates) {
  be->services.write(be, &cuda_of(be)->state->updates, &updates, sizeof updates);
}

// ---- Graphs

// Where a run has documents its recorded launches are those of a batch with the usual number. More
// of them, and windows that are whole (of a split whose ends are not known), take others.
static bool differs_from_recorded(const Cuda *c) {
  return c->base.calibrating || !cuda_documents_are_usual(c);
}

// The first call only launches, since it makes the plans that were not made at the start.
static bool op_replay_begin(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->recordings[slot];
  if (differs_from_recorded(c)) return true;
  if (r->graph) {
    CUDA_CHECK(cudaGraphLaunch(r->graph, c->gpu.stream));
    return false;
  }
  if (c->options.graphs && r->calls++ > 0)
    CUDA_CHECK(cudaStreamBeginCapture(c->gpu.stream, cudaStreamCaptureModeThreadLocal));
  return true;
}

static void op_replay_end(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->recordings[slot];
  if (r->calls < 2 || differs_from_recorded(c)) return;
  cudaGraph_t graph;
  CUDA_CHECK(cudaStreamEndCapture(c->gpu.stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&r->graph, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphLaunch(r->graph, c->gpu.stream));
}

void cuda_replay_close(Cuda *c) {
  for (int i = 0; i < REPLAY_SLOTS; i++) {
    if (c->recordings[i].graph) CUDA_CHECK(cudaGraphExecDestroy(c->recordings[i].graph));
    c->recordings[i] = (Recording){0};
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
  be->services.replay_begin = op_replay_begin;
  be->services.replay_end = op_replay_end;
}
