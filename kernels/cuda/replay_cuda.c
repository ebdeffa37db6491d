// Parts of a step recorded as CUDA graphs, so that the host stays out of the GPU's way.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"

// The first call launches as it goes, since plans that were not made at the start are made there.
bool cuda_replay_begin(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->recordings[slot];
  if (be->calibrating) return true;
  if (r->graph) {
    CUDA_CHECK(cudaGraphLaunch(r->graph, c->gpu.stream));
    return false;
  }
  if (c->options.graphs && r->calls++ > 0)
    CUDA_CHECK(cudaStreamBeginCapture(c->gpu.stream, cudaStreamCaptureModeThreadLocal));
  return true;
}

void cuda_replay_end(Backend *be, ReplaySlot slot) {
  Cuda *c = cuda_of(be);
  Recording *r = &c->recordings[slot];
  if (r->calls < 2 || be->calibrating) return;
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
