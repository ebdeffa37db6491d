// The services of a backend besides the operations of kernels/ops.h: memory, the step around the
// operations, FP8 scales in checkpoints, copies of the state, replay and profiling.
#pragma once
#include "base/error.h"
#include "kernels/operand.h"

enum { MOST_HALVINGS = 6 }; // of the context (Spec.halvings)

// Parts of a step that are the same at every step.
typedef enum ReplaySlot {
  REPLAY_FORWARD,
  REPLAY_FIRST_BACKWARD, // starts the gradients
  REPLAY_NEXT_BACKWARD,  // adds to them
  REPLAY_OF_A_CONTEXT,   // how many these are: as many follow for each half of the context
  REPLAY_LOSS = REPLAY_OF_A_CONTEXT * (1 + MOST_HALVINGS), // of a validation
  REPLAY_UPDATE,
  REPLAY_TOKEN, // generation: one token through all layers
  REPLAY_SLOTS
} ReplaySlot;

// ---- Copies of a backend's state on the host. A checkpoint is written from them while training
// continues, so they are made concurrently with the operations that follow.

// A piece of the backend's memory, and the host address of its copy.
typedef struct SnapshotPiece {
  void *to_host;
  const void *from;
  size_t bytes;
  bool on_host; // `from` is memory of alloc_host
} SnapshotPiece;

// Called once, before the first step: allocates the memory and starts the threads that copies need.
typedef int SnapshotOpen(Backend *be, Error *err);
// Starts to copy list[count] once all earlier operations have finished. The list and the copied
// memory must not change until SnapshotWait has returned, so an update comes after it.
typedef void SnapshotBegin(Backend *be, const SnapshotPiece *list, int count);
// Waits until everything is copied. Returns the milliseconds in which the backend had no other
// work.
typedef double SnapshotWait(Backend *be);

// ---- Loans. The activations of a layer have no values between its last backward in a step and its
// first forward in the next step. Meanwhile offloaded moments use their memory: they come while the
// backward of the layers below runs, the update finds them on the GPU, and they return while the
// next forward runs.
typedef struct Loan {
  void *home, *near; // on the host, and among the activations
  size_t bytes;
  int64_t layer; // the first one whose activations' memory it uses
} Loan;

// ---- Timing, for the bench

// What a step notes marks of. A mark takes a microsecond or two of the GPU, so those inside of
// others are not always wanted.
typedef enum Observed {
  OBSERVE_NOTHING,
  OBSERVE_LAYERS,
  OBSERVE_OPERATIONS, // and layers
  OBSERVE_GEMMS,      // and operations and layers
} Observed;
// A mark's meaning: an Operation that begins, or one of these.
enum {
  MARK_END = -1, // of the operation
  MARK_GEMM = -2,
  MARK_GEMM_END = -3,
  MARK_LAYER = -4,
  MARK_LAYER_END = -5,
  MARK_STEP = -6,
  MARK_STEP_END = -7,
};
typedef struct Mark {
  int what;
  double ms; // since the first mark
} Mark;

typedef struct Services {
  void (*destroy)(Backend *be);

  // ---- Memory of the backend. alloc returns NULL when there is not enough.
  void *(*alloc)(Backend *be, size_t bytes);
  // Bytes allocated on the GPU since the backend was opened, by the driver's count. NULL on the
  // CPU.
  size_t (*memory_taken)(Backend *be);
  void (*release)(Backend *be, void *memory);
  // The same of the host's memory that operations and all functions here use as the backend's own:
  // pinned, so that kernels reach it. NULL where be->spec.offload is OFFLOAD_NONE.
  void *(*alloc_host)(Backend *be, size_t bytes);
  void (*release_host)(Backend *be, void *memory);
  void (*zero)(Backend *be, void *memory, size_t bytes);
  void (*write)(Backend *be, void *to, const void *from_host, size_t bytes);
  void (*read)(Backend *be, void *to_host, const void *from, size_t bytes);
  // master_t, moment_t <-> host float; values written into bf16 are rounded to nearest. first: of
  // the elements of t's master.
  void (*write_master)(Backend *be, const ParamTensor *t, int64_t first, const float *from_host,
                       int64_t count);
  void (*read_master)(Backend *be, float *to_host, const ParamTensor *t, int64_t first,
                      int64_t count);
  void (*write_moments)(Backend *be, moment_t *to, const float *from_host, int64_t count);
  void (*read_moments)(Backend *be, float *to_host, const moment_t *from, int64_t count);
  void (*read_act)(Backend *be, float *to_host, const act_t *from, int64_t count);
  void (*read_grad)(Backend *be, float *to_host, const grad_t *from, int64_t count);
  // Row places[n] of to's master becomes deviation * rng_normal(key, n cols + k), k < cols: the
  // bits of base/rng.h in fp32, rounded to nearest where it is bf16. NULL: the model draws on the
  // host and writes.
  //   places [rows] on the host, each below to->rows
  void (*draw_master)(Backend *be, const ParamTensor *to, const int32_t *places, int64_t rows,
                      uint64_t key, double deviation);

  // ---- Documents. The rows of the operations that follow, up to the next call, are these
  // documents, one after the other: attention of a row sees its own document alone. lengths [count]
  // on the host, each at least 1 and at most Spec.longest_document, their sum the rows of
  // every attention. count 0: each sequence of T rows is one document, as it is before the first
  // call.
  void (*set_documents)(Backend *be, const int32_t *lengths, int64_t count);

  // ---- The update. A step: set_hyper, step_begin, head_loss for every micro-batch, grads_finish,
  // adamw, step_end. A validation: step_begin, head_loss, step_end. Results are read in the order
  // of the step_ends. clock_start comes before all of a step whose time is wanted: the GPU takes
  // it, since a host that runs far ahead of the GPU does not see when a step ends.
  void (*clock_start)(Backend *be);
  void (*set_hyper)(Backend *be, const AdamW *hyper);
  void (*step_begin)(Backend *be);
  void (*step_end)(Backend *be);          // queues the result; at most MAX_RESULTS may be unread
  StepResult (*step_result)(Backend *be); // waits for the oldest unread result and reads it
  // Writes the compute copies from the masters (after init or load).
  void (*refresh)(Backend *be, const ParamTensor *list, int count);
  void (*set_updates)(Backend *be, int64_t updates); // after load

  // ---- Loans, NULL on the CPU. From lend to the release of the host's memory, moments of the list
  // come in grads_finish, are updated where they are near, and return after step_end.
  void (*lend)(Backend *be, const Loan *list, int count); // in ascending order of `near`
  // Marks the activations of this layer as read for the last time, in each micro-batch.
  void (*acts_read)(Backend *be, int64_t layer);
  // Before a forward writes the activations of this layer: waits until all that was lent of it and
  // of the layers below has returned.
  void (*acts_needed)(Backend *be, int64_t layer);

  // ---- FP8: the scales of copies, which live in the backend.
  // Discards the largest values since the last update: a validation's, or a sample's.
  void (*scalings_discard)(Backend *be);
  // [scaling_count] for a checkpoint. Reading waits for the GPU.
  void (*scalings_read)(Backend *be, ScalingState *to_host);
  void (*scalings_write)(Backend *be, const ScalingState *from_host);

  // ---- Copies of the state on the host
  SnapshotOpen *snapshot_open;
  SnapshotBegin *snapshot_begin;
  SnapshotWait *snapshot_wait;

  // ---- Generation. token_send comes after the choice of token `index` and does not wait;
  // token_take waits for that token: -1 where there is none. At most MAX_RESULTS are sent and not
  // taken.
  void (*token_send)(Backend *be, uint64_t index);
  int32_t (*token_take)(Backend *be, uint64_t index);

  // ---- Replay and profiling
  // Enclose a part of a step that is the same at every call with this slot: the same operations
  // (from embed to adamw, and step_begin), pointers, shapes and flags.
  //     if (services.replay_begin(be, slot)) { operations; services.replay_end(be, slot); }
  // A GPU backend captures the second call's launches in a CUDA graph. From then on replay_begin
  // launches the graph and returns false, so that the host's share of a step is one call. Releasing
  // memory destroys the graphs, since they may point to it.
  bool (*replay_begin)(Backend *be, ReplaySlot slot);
  void (*replay_end)(Backend *be, ReplaySlot slot);
  // Opens or closes the window that profilers record (cudaProfilerStart, cudaProfilerStop), once
  // the GPU has finished all work queued so far. Does nothing on the CPU.
  void (*profile)(Backend *be, bool open);

  // ---- Timing
  // Room for `most` marks, made now and given back with the backend or by the next call.
  void (*marks_open)(Backend *be, int most);
  // Notes the time at which all work before it is done. Neither allocates nor waits.
  void (*mark)(Backend *be, int what);
  // Waits for all marks, writes them to `marks` in their order, and forgets them. Returns how many.
  int (*marks_read)(Backend *be, Mark *marks);
  void (*copy)(Backend *be, void *to, const void *from, size_t bytes); // inside its memory
} Services;
