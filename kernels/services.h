// What a backend does besides the operations of kernels/ops.h: memory, the step around the
// operations, FP8 scales in checkpoints, copies of the state, replay and profiling.
#pragma once
#include "base/error.h"
#include "kernels/operand.h"

// Parts of a step that are the same at every step.
typedef enum ReplaySlot {
  REPLAY_FORWARD,
  REPLAY_LOSS,           // of a validation
  REPLAY_FIRST_BACKWARD, // starts the gradients
  REPLAY_NEXT_BACKWARD,  // adds to them
  REPLAY_UPDATE,
  REPLAY_TOKEN, // generation: one token through all layers
  REPLAY_SLOTS
} ReplaySlot;

// ---- Copies of a backend's state on the host, made beside the operations that follow: a checkpoint
// is written from them while training continues.

// A piece of the backend's memory, and where on the host its copy goes.
typedef struct SnapshotPiece {
  void *to_host;
  const void *from;
  size_t bytes;
} SnapshotPiece;

// Comes once, before the first step, and takes the memory and the threads that copies need.
typedef int SnapshotOpen(Backend *be, Error *err);
// Starts to copy list[count], once all is done that was asked for earlier. The list and what is
// copied stay as they are until SnapshotWait has returned: an update comes after it.
typedef void SnapshotBegin(Backend *be, const SnapshotPiece *list, int count);
// Waits until all is copied. Returns the ms in which the backend had nothing else to do.
typedef double SnapshotWait(Backend *be);

typedef struct Services {
  void (*destroy)(Backend *be);

  // Bytes that the backend takes besides when it first sees this list of parameters (in refresh,
  // for one), of which rows, cols and norm are set. NULL: none.
  size_t (*list_bytes)(const ParamTensor *list, int count);

  // ---- Memory of the backend. alloc returns NULL when there is not enough.
  void *(*alloc)(Backend *be, size_t bytes);
  // Bytes taken on the GPU since the backend was opened, by the driver's count. NULL on the CPU.
  size_t (*memory_taken)(Backend *be);
  void (*release)(Backend *be, void *memory);
  void (*zero)(Backend *be, void *memory, size_t bytes);
  void (*write)(Backend *be, void *to, const void *from_host, size_t bytes);
  void (*read)(Backend *be, void *to_host, const void *from, size_t bytes);
  // master_t, moment_t <-> host float; what is written into bf16 is rounded to nearest
  void (*write_master)(Backend *be, master_t *to, const float *from_host, int64_t count);
  void (*read_master)(Backend *be, float *to_host, const master_t *from, int64_t count);
  void (*write_moments)(Backend *be, moment_t *to, const float *from_host, int64_t count);
  void (*read_moments)(Backend *be, float *to_host, const moment_t *from, int64_t count);
  void (*read_act)(Backend *be, float *to_host, const act_t *from, int64_t count);
  void (*read_grad)(Backend *be, float *to_host, const grad_t *from, int64_t count);
  // Row places[n] of `to` becomes deviation * rng_normal(key, n cols + k), k < cols, in fp32: the
  // bits of base/rng.h. NULL: the model draws on the host and writes.
  //   to [rows, cols], places [rows] on the host, each below rows
  void (*draw_master)(Backend *be, master_t *to, const int32_t *places, int64_t rows, int64_t cols,
                      uint64_t key, double deviation);

  // ---- The update. A step: set_hyper, step_begin, head_loss for every micro-batch, grads_finish,
  // adamw, step_end. A validation: step_begin, head_loss, step_end. Results are taken in the order
  // of the step_ends.
  void (*set_hyper)(Backend *be, const AdamW *hyper);
  void (*step_begin)(Backend *be);
  void (*step_end)(Backend *be); // puts the result on its way; at most MAX_RESULTS may be untaken
  StepResult (*step_result)(Backend *be); // waits for the oldest result and takes it
  // Writes the compute copies from the masters (after init or load).
  void (*refresh)(Backend *be, const ParamTensor *list, int count);
  void (*set_updates)(Backend *be, int64_t updates); // after load

  // ---- FP8: the scales of copies, which live in the backend.
  // Forgets the largest values since the last update: of a validation, or a sample.
  void (*scalings_discard)(Backend *be);
  // [scaling_count] for a checkpoint. Reading waits for the GPU.
  void (*scalings_read)(Backend *be, ScalingState *to_host);
  void (*scalings_write)(Backend *be, const ScalingState *from_host);

  // ---- Copies of the state on the host
  SnapshotOpen *snapshot_open;
  SnapshotBegin *snapshot_begin;
  SnapshotWait *snapshot_wait;

  // ---- Replay and profiling
  // A part of a step, which is the same at every call with this slot: the same operations (from
  // embed to adamw, and step_begin), pointers, shapes and flags.
  //     if (be->replay_begin(be, slot)) { operations; be->replay_end(be, slot); }
  // A GPU backend records what is launched the second time. From then on replay_begin launches the
  // record and returns false, so that the host's share of a step is one call. Records are forgotten
  // when memory is released, which they may point to.
  bool (*replay_begin)(Backend *be, ReplaySlot slot);
  void (*replay_end)(Backend *be, ReplaySlot slot);
  // Opens or closes the window that profilers record (cudaProfilerStart, cudaProfilerStop), once
  // the GPU has done all that it was asked for. Nothing on the CPU.
  void (*profile)(Backend *be, bool open);
} Services;
