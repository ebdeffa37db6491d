// What keeps the host out of the GPU's way: writes through pinned memory, and parts of a step
// recorded as CUDA graphs.
#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/unfused/state.h"

int unfused_staging_open(Unfused *u, Error *err) {
  Staging *s = &u->staging;
  CUDA_TRY(err,
           cudaHostAlloc((void **)&s->memory, (size_t)STAGES * STAGE_BYTES, cudaHostAllocDefault));
  for (int i = 0; i < STAGES; i++)
    CUDA_TRY(err, cudaEventCreateWithFlags(&s->taken[i], cudaEventDisableTiming));
  return 0;
}

void unfused_replay_close(Unfused *u) {
  for (int i = 0; i < REPLAY_SLOTS; i++)
    if (u->recordings[i].graph) CUDA_CHECK(cudaGraphExecDestroy(u->recordings[i].graph));
  for (int i = 0; i < STAGES; i++)
    if (u->staging.taken[i]) CUDA_CHECK(cudaEventDestroy(u->staging.taken[i]));
  CUDA_CHECK(cudaFreeHost(u->staging.memory));
}

// A stage is free again when the copy out of it is done; a run's batches never find one busy.
void unfused_op_write(Backend *be, void *to, const void *from_host, size_t bytes) {
  Unfused *u = unfused_of(be);
  Staging *s = &u->staging;
  for (size_t done = 0; done < bytes;) {
    const int stage = (int)(s->used++ % STAGES);
    char *pinned = s->memory + (size_t)stage * STAGE_BYTES;
    const size_t piece = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
    CUDA_CHECK(cudaEventSynchronize(s->taken[stage]));
    memcpy(pinned, (const char *)from_host + done, piece);
    CUDA_CHECK(
        cudaMemcpyAsync((char *)to + done, pinned, piece, cudaMemcpyHostToDevice, u->gpu.stream));
    CUDA_CHECK(cudaEventRecord(s->taken[stage], u->gpu.stream));
    done += piece;
  }
}

// The first call launches as it goes, since plans that were not made at the start are made there.
void unfused_op_replay(Backend *be, ReplaySlot slot, void (*issue)(void *context), void *context) {
  Unfused *u = unfused_of(be);
  Recording *r = &u->recordings[slot];
  if (!u->options.graphs || r->calls++ == 0) {
    issue(context);
    return;
  }
  if (!r->graph) {
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(u->gpu.stream, cudaStreamCaptureModeThreadLocal));
    issue(context);
    CUDA_CHECK(cudaStreamEndCapture(u->gpu.stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&r->graph, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  CUDA_CHECK(cudaGraphLaunch(r->graph, u->gpu.stream));
}
