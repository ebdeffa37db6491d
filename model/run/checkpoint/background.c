#define _GNU_SOURCE // MAP_ANONYMOUS, madvise and its advice
#include "model/run/checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/os.h"
#include "base/file.h"
#include "model/tensors.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // missing in older headers
#endif

// COPYING: the backend copies. WRITING: the thread writes. ENDED: background_end was not called
// yet. The thread alone goes from WRITING to ENDED; all other changes are the main thread's.
typedef enum Phase { IDLE, COPYING, WRITING, ENDED, CLOSING } Phase;

struct BackgroundSave {
  StateSource source; // first: a StateSource * of a background save is a BackgroundSave *
  const Llama *llama; // the run's
  Llama state;        // its shapes and flags as they were
  char *memory;       // of the copy
  size_t bytes;
  bool with_optimizer;   // else masters alone are copied
  SnapshotPiece *pieces; // [param_count, PARAM_STATES]
  ScalingState *scalings;
  PathText run_dir;
  Config config;
  const Export *export;
  TrainState train;
  double began_ms;
  SaveResult result;
  pthread_t thread;
  pthread_mutex_t lock; // for the phase; while it is WRITING, the fields above are the thread's
  pthread_cond_t changed;
  Phase phase;
};

// ---- The copy

// Where each piece goes. Counts where there is no block, and no pieces; returns the bytes.
static size_t place(SnapshotPiece *pieces, const ParamTensor *tensors, int count,
                    bool with_optimizer, const Spec *spec, char *block) {
  Arena arena = {.block = block};
  for (int i = 0; i < PARAM_STATES * count; i++) {
    const ParamTensor *t = &tensors[i / PARAM_STATES];
    const ParamState state = (ParamState)(i % PARAM_STATES);
    if (!state_saved_as(t, state) || (state != STATE_master && !with_optimizer)) continue;
    const StateMemory from = state_memory(spec, t, state);
    void *to = arena_take(&arena, from.bytes);
    if (pieces) pieces[i] = (SnapshotPiece){to, from.at, from.bytes, from.on_host};
  }
  return arena.used;
}

size_t background_bytes(const Config *c, const Spec *spec) {
  const int count = params_count(&c->model);
  ParamTensor *tensors = xcalloc((size_t)count, sizeof *tensors);
  params_table(&c->model, c->optimizer.kind == OPTIMIZER_MUON, tensors);
  const size_t bytes = place(NULL, tensors, count, c->output.save_optimizer, spec, NULL);
  free(tensors);
  return bytes;
}

// bf16 on a GPU, double in tests' builds, else float.
static void read_copy(const StateSource *source, float *packed, int param, ParamState state) {
  const BackgroundSave *b = (const BackgroundSave *)source;
  const SnapshotPiece *piece = &b->pieces[PARAM_STATES * param + (int)state];
  const ParamTensor *p = &source->llama->tensors[param];
  const size_t count = (size_t)(p->rows * p->cols), each = piece->bytes / count;
  assert(each == sizeof *packed || each == sizeof(double) || each == sizeof(uint16_t));
  if (each != sizeof(double))
    safetensors_floats(each == sizeof *packed ? SAFE_F32 : SAFE_BF16, piece->to_host,
                       (int64_t)count, packed);
  for (size_t i = 0; each == sizeof(double) && i < count; i++)
    packed[i] = (float)((const double *)piece->to_host)[i];
}

static void read_scalings(const StateSource *source, ScalingState *states) {
  memcpy(states, ((const BackgroundSave *)source)->scalings,
         (size_t)scaling_count(&source->llama->config) * sizeof *states);
}

// ---- The thread

static Phase phase_of(BackgroundSave *b) {
  pthread_mutex_lock(&b->lock);
  const Phase phase = b->phase;
  pthread_mutex_unlock(&b->lock);
  return phase;
}

static void set_phase(BackgroundSave *b, Phase phase) {
  pthread_mutex_lock(&b->lock);
  b->phase = phase;
  pthread_cond_signal(&b->changed); // at most one of the two threads waits
  pthread_mutex_unlock(&b->lock);
}

// Waits for something to write. False when there will be nothing more.
static bool asked_to_write(BackgroundSave *b) {
  pthread_mutex_lock(&b->lock);
  while (b->phase != WRITING && b->phase != CLOSING) pthread_cond_wait(&b->changed, &b->lock);
  const bool write = b->phase == WRITING;
  pthread_mutex_unlock(&b->lock);
  return write;
}

// Allocates the copy's pages beside the first steps: gigabytes of fresh pages would slow down the
// first copy. In pieces, since no other thread gets memory meanwhile. The contents stay.
static void take_memory(BackgroundSave *b) {
  enum { PIECE = 32 << 20 };
  for (size_t at = 0; at < b->bytes && phase_of(b) != CLOSING; at += PIECE) {
    const size_t left = b->bytes - at;
    if (madvise(b->memory + at, left < PIECE ? left : PIECE, MADV_POPULATE_WRITE) != 0)
      return; // before Linux 5.14 the first copy allocates them
  }
}

static void *write_saves(void *save) {
  BackgroundSave *b = save;
  take_memory(b);
  while (asked_to_write(b)) {
    SaveResult *r = &b->result;
    r->status =
        checkpoint_save(b->run_dir.text, &b->source, &b->config, b->export, &b->train, &r->error);
    r->ms = now_ms() - b->began_ms;
    set_phase(b, ENDED);
  }
  return NULL;
}

// ---- The main thread

static int start(BackgroundSave *b, const Llama *llama, Error *err) {
  Backend *be = llama->be;
  b->bytes = place(NULL, llama->tensors, llama->param_count, b->with_optimizer, &llama->spec, NULL);
  void *memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return error_set(err, "the system refused %s: %s", size_text(b->bytes).text, strerror(errno));
  b->memory = memory;
  madvise(memory, b->bytes, MADV_HUGEPAGE); // without them allocation is slower
  b->pieces = xcalloc((size_t)(PARAM_STATES * llama->param_count), sizeof *b->pieces);
  place(b->pieces, llama->tensors, llama->param_count, b->with_optimizer, &llama->spec, b->memory);
  if (llama->spec.fp8)
    b->scalings = xcalloc((size_t)scaling_count(&llama->config), sizeof *b->scalings);
  if (be->services.snapshot_open(be, err) != 0) return -1;
  return thread_start(&b->thread, "save", write_saves, b, err);
}

static void release(BackgroundSave *b) {
  if (b->memory) munmap(b->memory, b->bytes);
  free(b->pieces);
  free(b->scalings);
  pthread_cond_destroy(&b->changed);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

BackgroundSave *background_open(const Llama *llama, bool with_optimizer, Error *err) {
  BackgroundSave *b = xcalloc(1, sizeof *b);
  b->with_optimizer = with_optimizer;
  b->llama = llama;
  b->state = *llama;
  b->source = (StateSource){.llama = &b->state, .read = read_copy};
  pthread_mutex_init(&b->lock, NULL); // cannot fail on Linux, nor can the next
  pthread_cond_init(&b->changed, NULL);
  if (start(b, llama, err) == 0) return b;
  release(b);
  return NULL;
}

void background_close(BackgroundSave *b) {
  SaveResult ignored;
  if (!b) return;
  background_end(b, true, &ignored);
  set_phase(b, CLOSING);
  pthread_join(b->thread, NULL);
  release(b);
}

void background_begin(BackgroundSave *b, const char *run_dir, const Config *config,
                      const Export *export, const TrainState *state) {
  Backend *be = b->llama->be;
  assert(phase_of(b) == IDLE);
  assert(b->with_optimizer == config->output.save_optimizer);
  b->began_ms = now_ms();
  b->source.scalings = b->scalings && !be->calibrating ? read_scalings : NULL;
  b->run_dir = path_text("%s", run_dir);
  b->config = *config;
  b->export = export;
  b->train = *state;
  b->result = (SaveResult){.step = state->step};
  if (b->source.scalings) be->services.scalings_read(be, b->scalings);
  be->services.snapshot_begin(be, b->pieces, PARAM_STATES * b->llama->param_count);
  b->result.waited_ms = now_ms() - b->began_ms;
  set_phase(b, COPYING);
}

void background_copied(BackgroundSave *b) {
  if (phase_of(b) != COPYING) return;
  b->result.waited_ms += b->llama->be->services.snapshot_wait(b->llama->be);
  set_phase(b, WRITING);
}

bool background_ended(BackgroundSave *b) {
  return phase_of(b) == ENDED;
}

bool background_end(BackgroundSave *b, bool wait, SaveResult *result) {
  const double from_ms = now_ms(), waited_ms = b->result.waited_ms;
  if (wait) background_copied(b);
  pthread_mutex_lock(&b->lock);
  while (wait && b->phase == WRITING) pthread_cond_wait(&b->changed, &b->lock);
  const bool ended = b->phase == ENDED;
  if (ended) b->phase = IDLE;
  pthread_mutex_unlock(&b->lock);
  if (!ended) return false;
  *result = b->result;
  if (wait) result->waited_ms = fmin(waited_ms + now_ms() - from_ms, result->ms);
  return true;
}
