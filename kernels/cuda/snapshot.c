// Copies of the GPU's memory on the host, made while the GPU computes. Threads share the pieces:
// each has a stream and a little pinned memory, into which the copy engine writes a piece; from
// there the thread copies it to its destination. Meanwhile the engine works for the other threads.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "base/os.h"
#include "base/memory.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"

enum { MAX_THREADS = 12, PIECE_BYTES = 8 << 20 };

typedef struct CopyThread {
  Snapshot *snapshot;
  pthread_t thread;
  cudaStream_t stream;
  cudaEvent_t arrived;
  char *pinned; // [PIECE_BYTES]
} CopyThread;

struct Snapshot {
  int device;
  CopyThread threads[MAX_THREADS];
  int thread_count;   // those that were started
  cudaEvent_t before; // after all work that was queued before the copies
  const SnapshotPiece *list;
  int count;
  atomic_llong next; // number of the next piece of PIECE_BYTES
  // Protected by the lock:
  pthread_mutex_t lock;
  pthread_cond_t begun, done;
  int64_t asked; // lists so far
  int busy;      // threads that still copy
  bool closing;
  cudaError_t failed; // the first failure of a thread
};

// ---- A thread

// Copies one piece, or its last part. What is offloaded needs no engine, but waits for the GPU's
// earlier work, too.
static cudaError_t copy_piece(const CopyThread *t, const SnapshotPiece *whole, size_t offset) {
  const size_t left = whole->bytes - offset, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
  const char *from = (const char *)whole->from + offset;
  cudaError_t status = cudaSuccess;
  if (!whole->on_host) {
    status = cudaMemcpyAsync(t->pinned, from, bytes, cudaMemcpyDeviceToHost, t->stream);
    from = t->pinned;
  }
  if (status == cudaSuccess) status = cudaEventRecord(t->arrived, t->stream);
  if (status == cudaSuccess) status = cudaEventSynchronize(t->arrived);
  if (status == cudaSuccess) memcpy((char *)whole->to_host + offset, from, bytes);
  return status;
}

// Copies the pieces that no other thread has claimed.
static cudaError_t copy_list(const CopyThread *t) {
  Snapshot *s = t->snapshot;
  long long first = 0, mine = atomic_fetch_add(&s->next, 1); // first: of list[i]
  for (int i = 0; i < s->count; i++) {
    const long long end = first + (long long)((s->list[i].bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    for (; mine < end; mine = atomic_fetch_add(&s->next, 1)) {
      const cudaError_t status = copy_piece(t, &s->list[i], (size_t)(mine - first) * PIECE_BYTES);
      if (status != cudaSuccess) return status;
    }
    first = end;
  }
  return cudaSuccess;
}

// False when there will be no other list.
static bool next_list(Snapshot *s, int64_t seen) {
  pthread_mutex_lock(&s->lock);
  while (s->asked == seen && !s->closing) pthread_cond_wait(&s->begun, &s->lock);
  const bool more = s->asked > seen;
  pthread_mutex_unlock(&s->lock);
  return more;
}

// The main thread reports a failure, in snapshot_wait.
static void *copy_lists(void *thread) {
  const CopyThread *t = thread;
  Snapshot *s = t->snapshot;
  const cudaError_t device = cudaSetDevice(s->device);
  for (int64_t seen = 0; next_list(s, seen); seen++) {
    const cudaError_t status = device == cudaSuccess ? copy_list(t) : device;
    pthread_mutex_lock(&s->lock);
    if (s->failed == cudaSuccess) s->failed = status;
    if (--s->busy == 0) pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
  }
  return NULL;
}

// ---- The main thread

void cuda_snapshot_close(Cuda *c) {
  Snapshot *s = c->snapshot;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->closing = true;
  pthread_cond_broadcast(&s->begun);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < s->thread_count; i++) pthread_join(s->threads[i].thread, NULL);
  for (int i = 0; i < MAX_THREADS; i++) {
    const CopyThread *t = &s->threads[i];
    if (t->pinned) CUDA_CHECK(cudaFreeHost(t->pinned));
    if (t->arrived) CUDA_CHECK(cudaEventDestroy(t->arrived));
    if (t->stream) CUDA_CHECK(cudaStreamDestroy(t->stream));
  }
  if (s->before) CUDA_CHECK(cudaEventDestroy(s->before));
  pthread_cond_destroy(&s->begun);
  pthread_cond_destroy(&s->done);
  pthread_mutex_destroy(&s->lock);
  free(s);
  c->snapshot = NULL;
}

static int start_thread(Snapshot *s, CopyThread *t, Error *err) {
  t->snapshot = s;
  CUDA_TRY(err, cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
  CUDA_TRY(err,
           cudaEventCreateWithFlags(&t->arrived, cudaEventDisableTiming | cudaEventBlockingSync));
  CUDA_TRY(err, cudaHostAlloc((void **)&t->pinned, PIECE_BYTES, cudaHostAllocDefault));
  if (thread_start(&t->thread, "snapshot", copy_lists, t, err) != 0) return -1;
  s->thread_count++;
  return 0;
}

static int start_threads(Snapshot *s, int count, Error *err) {
  CUDA_TRY(err, cudaEventCreateWithFlags(&s->before, cudaEventDisableTiming));
  for (int i = 0; i < count; i++)
    if (start_thread(s, &s->threads[i], err) != 0) return -1;
  return 0;
}

// Three of four processors, so that there are some for the main thread and for reading data.
static int op_open(Backend *be, Error *err) {
  Cuda *c = cuda_of(be);
  const int share = omp_get_num_procs() * 3 / 4, count = share > 2 ? share : 2;
  Snapshot *s = c->snapshot = xcalloc(1, sizeof *s);
  s->device = c->gpu.device;
  if (pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->begun, NULL) ||
      pthread_cond_init(&s->done, NULL)) {
    free(s);
    c->snapshot = NULL;
    return error_set(err, "the system gives no lock for the threads that copy");
  }
  if (start_threads(s, count < MAX_THREADS ? count : MAX_THREADS, err) == 0) return 0;
  (void)cudaGetLastError(); // else the next check of a launch would find it
  cuda_snapshot_close(c);
  return -1;
}

static void op_begin(Backend *be, const SnapshotPiece *list, int count) {
  Cuda *c = cuda_of(be);
  Snapshot *s = c->snapshot;
  cuda_loans_settle(c);
  CUDA_CHECK(cudaEventRecord(s->before, c->gpu.stream));
  for (int i = 0; i < s->thread_count; i++)
    CUDA_CHECK(cudaStreamWaitEvent(s->threads[i].stream, s->before, 0));
  pthread_mutex_lock(&s->lock);
  s->list = list;
  s->count = count;
  atomic_store(&s->next, 0);
  s->busy = s->thread_count;
  s->asked++;
  pthread_cond_broadcast(&s->begun);
  pthread_mutex_unlock(&s->lock);
}

// Copies that are done by now have cost nothing. Otherwise the GPU is idle from the end of the work
// queued meanwhile.
static double op_wait(Backend *be) {
  Cuda *c = cuda_of(be);
  Snapshot *s = c->snapshot;
  pthread_mutex_lock(&s->lock);
  const bool busy = s->busy > 0;
  pthread_mutex_unlock(&s->lock);
  if (busy) CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  const double idle_from = now_ms();
  pthread_mutex_lock(&s->lock);
  while (s->busy > 0) pthread_cond_wait(&s->done, &s->lock);
  const cudaError_t failed = s->failed;
  pthread_mutex_unlock(&s->lock);
  cuda_check(failed, "copying the state to the host", __FILE__, __LINE__);
  return busy ? now_ms() - idle_from : 0;
}

void cuda_set_snapshot(Cuda *c) {
  Backend *be = &c->base;
  be->services.snapshot_open = op_open;
  be->services.snapshot_begin = op_begin;
  be->services.snapshot_wait = op_wait;
}
