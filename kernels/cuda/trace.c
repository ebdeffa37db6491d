#include "kernels/cuda/trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cupti_api.h"

// CUPTI fills one buffer after the other, and one is read while the next is filled. A record takes
// about 220 bytes. A 1B model's step has some thousand records; the list has room for many of its
// micro-batches.
enum { BUFFERS = 4, BUFFER_BYTES = 2 << 20, MAX_ACTIVITIES = 1 << 17 };

static const int kinds[] = {[ACTIVITY_KERNEL] = CUPTI_KIND_CONCURRENT_KERNEL,
                            [ACTIVITY_COPY] = CUPTI_KIND_MEMCPY,
                            [ACTIVITY_MEMSET] = CUPTI_KIND_MEMSET};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct Trace {
  CuptiApi api;
  pthread_mutex_t lock; // CUPTI calls from threads of its own
  uint8_t *buffers;     // [BUFFERS, BUFFER_BYTES]
  bool lent[BUFFERS];   // to CUPTI
  bool recording;       // between begin and end
  Activity *list;       // [MAX_ACTIVITIES]
  int64_t count, lost;
};

// A mutable global: CUPTI calls back with nothing of ours, so this is where it finds us. Set
// once CUPTI is there and cleared when it can call no more; whoever finds it set may not open a
// second trace.
static _Atomic(Trace *) receiver;

static void requested(uint8_t **buffer, size_t *bytes, size_t *most_records) {
  *buffer = NULL; // CUPTI then drops records, and counts them
  *bytes = *most_records = 0;
  Trace *t = atomic_load(&receiver);
  if (!t) return;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < BUFFERS && !*buffer; i++) {
    if (t->lent[i]) continue;
    t->lent[i] = true;
    *buffer = t->buffers + (size_t)i * BUFFER_BYTES;
    *bytes = BUFFER_BYTES;
  }
  pthread_mutex_unlock(&t->lock);
}

// A record without times counts as lost: what is said of the step must not be thought complete.
static void keep(Trace *t, const CuptiRecord *r) {
  int kind = 0;
  while (kind < KINDS && r->kind != (uint32_t)kinds[kind]) kind++;
  if (kind == KINDS) return;
  if (t->count == MAX_ACTIVITIES || r->end < r->start || r->end == 0) {
    t->lost++;
    return;
  }
  t->list[t->count++] = (Activity){
      .kind = (ActivityKind)kind,
      .name = kind == ACTIVITY_KERNEL ? ((const CuptiKernel *)(const void *)r)->name : NULL,
      .began = r->start,
      .ended = r->end,
  };
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                      size_t valid_bytes) {
  (void)bytes;
  Trace *t = atomic_load(&receiver);
  if (!t || !buffer) return;
  pthread_mutex_lock(&t->lock);
  CuptiRecord *record = NULL;
  int status = valid_bytes > 0 && t->recording ? 0 : CUPTI_MAX_LIMIT_REACHED;
  while (status == 0 && (status = t->api.next_record(buffer, valid_bytes, &record)) == 0)
    keep(t, record);
  if (status != CUPTI_MAX_LIMIT_REACHED) t->lost++; // or more: the rest cannot be read
  size_t dropped = 0;
  if (t->api.dropped_records(context, stream, &dropped) == 0 && t->recording)
    t->lost += (int64_t)dropped;
  t->lent[(size_t)(buffer - t->buffers) / BUFFER_BYTES] = false;
  pthread_mutex_unlock(&t->lock);
}

static void set_recording(Trace *t, bool recording) {
  pthread_mutex_lock(&t->lock);
  if (recording) t->count = t->lost = 0;
  t->recording = recording;
  pthread_mutex_unlock(&t->lock);
}

// All kinds off, also those that an error left on.
static int stop(Trace *t, Error *err) {
  int status = 0;
  for (int i = 0; i < KINDS; i++) {
    const int failed = t->api.disable(kinds[i]);
    if (status == 0) status = failed;
  }
  return cupti_check(&t->api, status, "ending the records of a step", err);
}

static int start(Trace *t, Error *err) {
  Error ignored; // it says why it could not start
  for (int i = 0; i < KINDS; i++)
    if (cupti_check(&t->api, t->api.enable(kinds[i]), "asking for the records of a step", err)) {
      stop(t, &ignored);
      return -1;
    }
  return 0;
}

// Gives back what it got. A buffer that CUPTI still has may still be written to: then the memory is
// left to it.
static void forget(Trace *t) {
  bool lent = false;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < BUFFERS; i++) lent |= t->lent[i];
  pthread_mutex_unlock(&t->lock);
  atomic_store(&receiver, NULL);
  if (lent) return;
  pthread_mutex_destroy(&t->lock);
  free(t->buffers);
  free(t->list);
  free(t);
}

// Beside Nsight Systems CUPTI reports success and leaves out the kernels of graphs. Profilers name
// themselves to the processes that they start.
static int check_alone(Error *err) {
  static const char *const marks[] = {"NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"};
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
    if (getenv(marks[i]))
      return error_set(err,
                       "another profiler (nsys, ncu, ...) watches this process, as %s in its "
                       "environment says, and there can be only one: run without it",
                       marks[i]);
  return 0;
}

Trace *trace_open(const char *library, int cuda_major, Error *err) {
  CuptiApi api;
  if (check_alone(err) || cupti_open(&api, library, cuda_major, err)) return NULL;
  Trace *t = xcalloc(1, sizeof *t), *none = NULL;
  t->api = api;
  t->buffers = xmalloc((size_t)BUFFERS * BUFFER_BYTES);
  t->list = xmalloc(MAX_ACTIVITIES * sizeof *t->list);
  if (pthread_mutex_init(&t->lock, NULL) != 0 ||
      !atomic_compare_exchange_strong(&receiver, &none, t)) {
    error_set(err, "a step is traced in this process already: close that trace first");
    free(t->buffers);
    free(t->list);
    free(t);
    return NULL;
  }
  if (cupti_check(&api, api.register_callbacks(requested, completed), "registering buffers", err) ||
      start(t, err) || stop(t, err)) {
    forget(t);
    return NULL;
  }
  return t;
}

void trace_close(Trace *t) {
  if (!t) return;
  Error ignored; // nothing is wanted of it any more
  set_recording(t, false);
  stop(t, &ignored);
  (void)t->api.flush_all(CUPTI_FLUSH_FORCED); // gets the buffers back
  forget(t);
}

int trace_begin(Trace *t, Error *err) {
  set_recording(t, true);
  if (start(t, err) == 0) return 0;
  set_recording(t, false);
  return -1;
}

int trace_end(Trace *t, Activities *a, Error *err) {
  const int flushed = cupti_check(&t->api, t->api.flush_all(CUPTI_FLUSH_FORCED),
                                  "collecting the records of a step", err);
  set_recording(t, false);
  if (stop(t, flushed ? &(Error){""} : err) || flushed) return -1;
  *a = (Activities){.list = t->list, .count = t->count, .lost = t->lost};
  return 0;
}
