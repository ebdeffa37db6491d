// Moments in the memory of activations (kernels/cuda/loans.c), with queues in place of streams.
// What may run next is drawn at random, so a wait that is missing shows as a wrong value.
#include <cuda_runtime_api.h>

#include "base/rng.h"
#include "kernels/cuda/cuda.h"
#include "tests/support/test.h"

enum { L = 6, FIRST = 3, ACTS = 24, LOANS = 5, STEPS = 12, MICRO_BATCHES = 2, MOST = 1 << 14 };
enum { X = 7 }; // the first numbers of a layer, which the layer before writes

// ---- CUDA's part

typedef void Call(const int64_t *args);
typedef struct Entry {
  cudaEvent_t record, wait; // or NULL
  int64_t version;          // of the event
  void *to;                 // a copy, or NULL
  const void *from;
  size_t bytes;
  Call *call; // or NULL
  int64_t args[2];
} Entry;
struct CUstream_st {
  Entry list[MOST];
  int done, count;
};
struct CUevent_st {
  int64_t asked, reached; // records
};

static struct CUstream_st streams[2]; // the backend's, the loans'
static uint64_t seed, drawn;

static void push(cudaStream_t stream, Entry e) {
  assert_true(stream->count < MOST);
  stream->list[stream->count++] = e;
}

// False where the stream's next entry has to wait.
static bool run_next(cudaStream_t stream) {
  if (stream->done == stream->count) return false;
  const Entry *e = &stream->list[stream->done];
  if (e->wait && e->wait->reached < e->version) return false;
  if (e->record) e->record->reached = e->version;
  if (e->to) memcpy(e->to, e->from, e->bytes);
  if (e->call) e->call(e->args);
  stream->done++;
  return true;
}

// One entry of the stream that is drawn, or else of the other.
static bool run_one(void) {
  const uint64_t first = rng_u64(seed, drawn++) % 2;
  return run_next(&streams[first]) || run_next(&streams[1 - first]);
}

// The host runs far ahead, or not at all.
static void run_some(void) {
  for (uint64_t n = rng_u64(seed, drawn++) % 4; n > 0 && run_one();) n--;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  assert_int_equal(flags, cudaEventDisableTiming);
  *event = xcalloc(1, sizeof **event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  push(stream, (Entry){.record = event, .version = ++event->asked});
  run_some();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  assert_int_equal(flags, 0);
  push(stream, (Entry){.wait = event, .version = event->asked});
  run_some();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  assert_true(kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost);
  push(stream, (Entry){.to = to, .from = from, .bytes = bytes});
  run_some();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  assert_int_equal(flags, cudaStreamNonBlocking);
  *stream = &streams[1];
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  assert_int_equal(stream->done, stream->count);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (stream->done < stream->count) assert_true(run_one());
  return cudaSuccess;
}

// ---- A model: layers write their activations and read them again, the update changes moments

static int32_t acts[L][ACTS], home[LOANS][ACTS];
static Loan loans[LOANS];
static int beside; // layers that were written while moments were on their way

static int32_t act_of(int64_t layer, int64_t batch, int i) {
  return (int32_t)(batch * 1000 + layer * 100 + i);
}

static void write_layer(const int64_t *args) {
  const int64_t l = args[0];
  for (int i = l > 0 ? X : 0; i < ACTS; i++) acts[l][i] = act_of(l, args[1], i);
  for (int i = 0; i < X && l + 1 < L; i++) acts[l + 1][i] = act_of(l + 1, args[1], i);
  beside += streams[1].done < streams[1].count;
}

static void read_layer(const int64_t *args) {
  for (int i = 0; i < ACTS; i++) assert_int_equal(acts[args[0]][i], act_of(args[0], args[1], i));
}

static int32_t next_moment(int32_t before, int64_t step) {
  return before * 3 + (int32_t)step;
}

static void update(const int64_t *args) {
  for (int k = 0; k < LOANS; k++) {
    int32_t *at = loans[k].near;
    for (size_t i = 0; i < loans[k].bytes / sizeof *at; i++) at[i] = next_moment(at[i], args[0]);
  }
}

// After `steps` updates.
static void check_home(const int64_t *args) {
  for (int k = 0; k < LOANS; k++)
    for (size_t i = 0; i < loans[k].bytes / sizeof(int32_t); i++) {
      int32_t expected = (int32_t)(k * 100 + (int)i);
      for (int64_t step = 0; step < args[0]; step++) expected = next_moment(expected, step);
      assert_int_equal(home[k][i], expected);
    }
}

static void forward(Backend *be, int64_t batch) {
  for (int64_t l = 0; l < L; l++) {
    be->services.acts_needed(be, l + 1);
    push(&streams[0], (Entry){.call = write_layer, .args = {l, batch}});
    run_some();
  }
}

static void backward(Backend *be, int64_t batch) {
  for (int64_t l = L - 1; l >= 0; l--) {
    push(&streams[0], (Entry){.call = read_layer, .args = {l, batch}});
    be->services.acts_read(be, l);
  }
}

// Loans fill the memory of the layers from FIRST on, and some use that of two layers.
static void lay_out(void) {
  static const size_t sizes[LOANS] = {10, 20, 14, 4, 23};
  int32_t *at = acts[FIRST];
  for (int k = 0; k < LOANS; at += sizes[k++]) {
    loans[k] = (Loan){home[k], at, sizes[k] * sizeof *at, (at - acts[0]) / ACTS};
    for (size_t i = 0; i < sizes[k]; i++) home[k][i] = (int32_t)(k * 100 + (int)i);
  }
}

static void train_with_loans(void) {
  Cuda c = {.gpu.stream = &streams[0]};
  Backend *be = &c.base;
  memset(streams, 0, sizeof streams);
  lay_out();
  cuda_set_loans(&c);
  be->services.lend(be, loans, LOANS);
  int64_t batch = 0;
  for (int64_t step = 0; step < STEPS; step++) {
    for (int i = 0; i < MICRO_BATCHES; i++, batch++) {
      forward(be, batch);
      backward(be, batch);
    }
    cuda_loans_fetch(&c);
    push(&streams[0], (Entry){.call = update, .args = {step}});
    cuda_loans_return(&c);
    if (step % 3 == 1) forward(be, batch++); // a validation
    cuda_loans_return(&c);                   // whose end sends nothing back
    if (step % 4 == 2) cuda_loans_settle(&c);
    if (step % 4 == 2) push(&streams[0], (Entry){.call = check_home, .args = {step + 1}});
  }
  cuda_loans_settle(&c);
  push(&streams[0], (Entry){.call = check_home, .args = {STEPS}});
  cudaStreamSynchronize(&streams[0]);
  cuda_loans_close(&c);
  assert_null(c.loans);
}

TEST(moments_in_the_memory_of_activations_harm_neither) {
  for (seed = 1; seed <= 300; seed++) train_with_loans();
  print_message("# %d layers were written while moments were on their way\n", beside);
  assert_true(beside > 1000);
}

TEST(a_backend_that_lends_nothing_waits_for_nothing) {
  Cuda c = {.gpu.stream = &streams[0]};
  memset(streams, 0, sizeof streams);
  cuda_set_loans(&c);
  c.base.services.lend(&c.base, loans, 0);
  forward(&c.base, 0);
  backward(&c.base, 0);
  cuda_loans_fetch(&c);
  cuda_loans_return(&c);
  cuda_loans_settle(&c);
  assert_int_equal(streams[0].count, 2 * L);
  cuda_loans_close(&c);
}
