// Which shapes of attention are planned for at a time, with counters in place of cuDNN and the GPU:
// any number of shapes, the run's own always there, nothing freed that is in use.
#include <cuda_runtime_api.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda.h"
#include "tests/support/test.h"

// What stands in for other functions needs few of their arguments.
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct AttentionCudnn {
  int64_t B, T, rows;
  bool forward_only, biased;
};

enum { MOST = 64 };
static struct Machine {
  AttentionCudnn *plans[MOST]; // that exist; NULL: none
  struct {
    void *memory;
    size_t bytes;
  } blocks[MOST];
  int created;
  const AttentionCudnn *ran; // the last plan that ran, and in which memory
  void *workspace;
  int64_t documents, rows; // of all calls that ran: places that were used, and their rows
  int calls;
  int64_t biased_rows; // of the last bias
  const void *bias;    // of the last call
} machine;

static int plans_there(void) {
  int count = 0;
  for (int i = 0; i < MOST; i++) count += machine.plans[i] != NULL;
  return count;
}
static int plan_at(const AttentionCudnn *plan) {
  int i = 0;
  while (i < MOST && machine.plans[i] != plan) i++;
  if (i == MOST) fail_msg("a plan that does not exist is used");
  return i;
}
static int block_at(const void *memory) {
  int i = 0;
  while (i < MOST && machine.blocks[i].memory != memory) i++;
  if (i == MOST) fail_msg("memory that was not allocated is used");
  return i;
}
static size_t bytes_there(void) {
  size_t sum = 0;
  for (int i = 0; i < MOST; i++) sum += machine.blocks[i].bytes;
  return sum;
}

// ---- cuDNN's part

AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle, cudaStream_t stream,
                                       const AttentionCall *call, Choices *choices, Error *err) {
  AttentionCudnn *plan = xmalloc(sizeof *plan);
  *plan = (AttentionCudnn){call->shape.B, call->shape.T, call->shape.rows, !call->backward,
                           call->shape.mask == MASK_BIAS};
  machine.plans[plan_at(NULL)] = plan;
  machine.created++;
  return plan;
}
void attention_cudnn_destroy(AttentionCudnn *a) {
  if (!a) return;
  machine.plans[plan_at(a)] = NULL;
  free(a);
}
const AttentionPlan *attention_cudnn_plan(const AttentionCudnn *a, bool backward) {
  return NULL;
}
size_t attention_cudnn_workspace(const AttentionCudnn *a) {
  plan_at(a);
  return (size_t)(a->B * a->T) * (a->forward_only ? 2 : 3);
}
int attention_cudnn_run(const AttentionCudnn *a, bool backward, const AttentionTensors *tensors,
                        Error *err) {
  plan_at(a);
  const size_t needed = attention_cudnn_workspace(a);
  assert_true(machine.blocks[block_at(tensors->workspace)].bytes >= needed);
  memset(tensors->workspace, 0xff, needed);
  assert_true(!a->biased || tensors->bias);
  // The documents of a call follow those of the one before.
  const AttentionDocuments *d = &tensors->documents;
  for (int64_t i = 0; i < a->B && a->rows > 0; i++) {
    if (d->lengths[i] == 0) continue;
    assert_int_equal(d->lse_offsets[i], machine.rows * 4);
    assert_int_equal(d->o_offsets[i], machine.rows * 64);
    assert_int_equal(d->qkv_offsets[i], machine.rows * 128);
    machine.documents++;
    machine.rows += d->lengths[i];
  }
  machine.calls++;
  machine.ran = a;
  machine.bias = tensors->bias;
  machine.workspace = tensors->workspace;
  return 0;
}
static int no_handle(CudnnHandle *handle) {
  *handle = NULL;
  return 0;
}
static int any_stream(CudnnHandle handle, struct CUstream_st *stream) {
  return 0;
}
int cudnn_open(CudnnApi *api, Error *err) {
  api->create = no_handle;
  api->set_stream = any_stream;
  return 0;
}
int cudnn_check(const CudnnApi *api, int status, const char *doing, Error *err) {
  return status;
}
void cuda_requantize(Backend *be, int64_t M, int64_t N, Operand x) {}

// ---- CUDA's part

// 1 where a row does not see the key.
void launch_document_bias(int64_t M, int64_t T, const int32_t *first, void *bias,
                          cudaStream_t stream) {
  assert_true(machine.blocks[block_at(first)].bytes >= (size_t)M * sizeof *first);
  assert_int_equal(machine.blocks[block_at(bias)].bytes, M * T * (int64_t)sizeof(uint16_t));
  for (int64_t row = 0; row < M; row++)
    for (int64_t key = 0; key < T; key++) ((uint16_t *)bias)[row * T + key] = key < first[row];
  machine.biased_rows = M;
}

void *cuda_take(Cuda *c, size_t bytes, Error *err) {
  const int i = block_at(NULL);
  machine.blocks[i].memory = xmalloc(bytes);
  machine.blocks[i].bytes = bytes;
  c->base.spec.workspace_bytes += bytes;
  return machine.blocks[i].memory;
}
void cuda_give_back(Cuda *c, void *memory) {
  if (!memory) return;
  const int i = block_at(memory);
  c->base.spec.workspace_bytes -= machine.blocks[i].bytes;
  machine.blocks[i].memory = NULL;
  machine.blocks[i].bytes = 0;
  free(memory);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return cudaSuccess;
}

static void write_here(Backend *be, void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  assert_true(machine.blocks[block_at(to)].bytes >= bytes);
}

// ---- Tests

static Cuda *cuda_new(Spec spec) {
  memset(&machine, 0, sizeof machine);
  Cuda *c = xcalloc(1, sizeof *c);
  c->base.spec = spec;
  c->base.spec.H = 4, c->base.spec.KV = 2, c->base.spec.d = 16;
  c->base.spec.gemm_cache = "";
  c->base.services.write = write_here;
  c->gpu.major = 9;
  return c;
}
static void open_attention(Cuda *c) {
  Error err;
  if (cuda_attention_open(c, &err) != 0) fail_msg("%s", err.text);
}
static Cuda *open_cuda(int64_t batch, int64_t seq) {
  Cuda *c = cuda_new((Spec){.train = batch > 0, .batch = batch, .seq = seq});
  open_attention(c);
  return c;
}
static void close_cuda(Cuda *c) {
  cuda_attention_close(c);
  assert_int_equal(plans_there(), 0);
  assert_int_equal(bytes_there(), 0);
  free(c);
}
static void attend(Cuda *c, int64_t B, int64_t T) {
  static const uint16_t qkv;
  cuda_attention(&c->base, B, T, (const act_t *)(const void *)&qkv, (Operand){0}, NULL);
  assert_true(machine.ran->B == B && machine.ran->T == T);
  assert_true(plans_there() <= MAX_ATTENTION_SHAPES);
  assert_true(c->base.spec.workspace_bytes == bytes_there());
}

// As --eval of files of many lengths asks for them.
TEST(any_number_of_shapes_is_served) {
  Cuda *c = open_cuda(0, 0);
  for (int64_t i = 0; i < 200; i++) attend(c, 1 + i * 7 % 30, 16 << i % 3);
  assert_int_equal(plans_there(), MAX_ATTENTION_SHAPES);
  close_cuda(c);
}

TEST(the_shape_of_the_run_stays) {
  Cuda *c = open_cuda(4, 128);
  attend(c, 4, 128);
  const AttentionCudnn *plan = machine.ran;
  const void *workspace = machine.workspace;
  for (int64_t i = 1; i < 40; i++) attend(c, 1, i);
  attend(c, 4, 128);
  assert_ptr_equal(machine.ran, plan);
  assert_ptr_equal(machine.workspace, workspace); // recorded steps hold its address
  close_cuda(c);
}

TEST(the_shape_that_was_used_longest_ago_makes_room) {
  Cuda *c = open_cuda(0, 0);
  for (int64_t T = 1; T <= MAX_ATTENTION_SHAPES; T++) attend(c, 1, T);
  attend(c, 1, 1);
  attend(c, 1, 100); // in the place of 2
  assert_int_equal(machine.created, MAX_ATTENTION_SHAPES + 1);
  attend(c, 1, 1);
  attend(c, 1, 3);
  assert_int_equal(machine.created, MAX_ATTENTION_SHAPES + 1);
  attend(c, 1, 2);
  assert_int_equal(machine.created, MAX_ATTENTION_SHAPES + 2);
  close_cuda(c);
}

// A run whose training has documents and whose validation has not makes both plans at its start, so
// that the memory is planned and no step waits: the windows' own without a backward.
TEST(whole_windows_beside_documents_are_planned_at_the_start) {
  for (int whole = 0; whole < 2; whole++) {
    Cuda *c = cuda_new((Spec){.usual_documents = 5,
                              .longest_document = 40,
                              .max_tokens = 4 * 128,
                              .whole_windows = whole,
                              .train = true,
                              .batch = 4,
                              .seq = 128});
    open_attention(c);
    assert_int_equal(machine.created, 1 + whole);
    assert_true(machine.plans[0]->rows == 4 * 128 && !machine.plans[0]->forward_only);
    if (whole) assert_true(machine.plans[1]->forward_only);
    const size_t bytes = c->base.spec.workspace_bytes;
    cuda_set_documents(&c->base, NULL, 0);
    if (whole) attend(c, 4, 128);
    assert_int_equal(machine.created, 1 + whole);
    assert_true(c->base.spec.workspace_bytes == bytes);
    close_cuda(c);
  }
}

// Steps of pieces are recorded, too: their plans are there from the start and stay, over one
// workspace, which is the whole windows' since these need the most.
TEST(pieces_of_windows_are_planned_at_the_start) {
  enum { HALVINGS = 3 };
  Cuda *c = cuda_new((Spec){.train = true, .batch = 4, .seq = 128, .halvings = HALVINGS});
  open_attention(c);
  assert_int_equal(machine.created, 1 + HALVINGS);
  assert_int_equal(bytes_there(), 4 * 128 * 3);
  for (int64_t i = 1; i < 40; i++) attend(c, 1, i);
  const int created = machine.created;
  for (int i = 0; i <= HALVINGS; i++) {
    attend(c, 4 << i, 128 >> i);
    assert_int_equal(machine.created, created);
    assert_false(machine.ran->forward_only);
  }
  close_cuda(c);
}

// Usual documents take as many calls as document_calls says, more documents take more calls.
// Without any there is the shape's own call.
static void check_documents(bool deterministic, int64_t longest, int64_t per_call) {
  enum { USUAL = 5, ROWS = 256 };
  Cuda *c = cuda_new((Spec){.usual_documents = USUAL,
                            .longest_document = longest,
                            .max_tokens = ROWS,
                            .train = deterministic,
                            .deterministic = deterministic});
  open_attention(c);
  Backend *be = &c->base;
  int32_t lengths[ROWS];
  for (int i = 0; i < ROWS; i++) lengths[i] = 1;
  const int64_t usual = (USUAL + per_call - 1) / per_call;
  for (int64_t count = 0; count <= ROWS; count++) {
    static const uint16_t qkv;
    if (count > 0) lengths[count - 1] = 1;
    if (count < ROWS) lengths[count] = 0;
    cuda_set_documents(be, lengths, count);
    machine.documents = machine.rows = machine.calls = 0;
    cuda_attention(be, 2, ROWS / 2, (const act_t *)(const void *)&qkv, (Operand){0}, NULL);
    const int64_t calls = (count + per_call - 1) / per_call;
    assert_int_equal(machine.documents, count);
    assert_int_equal(machine.calls, count == 0 ? 1 : calls > usual ? calls : usual);
    assert_int_equal(c->documents_are_usual, count > 0 && calls <= usual);
    assert_int_equal(machine.ran->B, count == 0 ? 2 : per_call);
    assert_int_equal(machine.ran->T, count == 0 ? ROWS / 2 : (longest + 127) / 128 * 128);
  }
  close_cuda(c);
}

// Where cuDNN has no lengths: any number of documents takes one call of whole windows, with a bias
// in which a row sees its own document alone; windows without documents take none.
TEST(a_bias_keeps_documents_apart) {
  enum { B = 3, T = 8, COUNT = 7 };
  static const int32_t lengths[COUNT] = {8, 1, 2, 5, 3, 4, 1};
  Cuda *c = cuda_new((Spec){.usual_documents = 2,
                            .longest_document = T,
                            .max_tokens = B * T,
                            .whole_windows = true,
                            .train = true,
                            .batch = B,
                            .seq = T});
  c->gpu.major = 12;
  open_attention(c);
  assert_int_equal(machine.created, 2);
  assert_true(machine.plans[0]->biased && !machine.plans[0]->forward_only);
  assert_true(!machine.plans[1]->biased && machine.plans[1]->forward_only);
  assert_false(c->documents_are_usual);
  cuda_set_documents(&c->base, lengths, COUNT);
  assert_true(c->documents_are_usual);
  assert_int_equal(machine.biased_rows, B * T);
  const AttentionCudnn *plan = machine.plans[0];
  attend(c, B, T);
  assert_ptr_equal(machine.ran, plan);
  assert_int_equal(machine.calls, 1);
  const uint16_t *bias = machine.bias;
  for (int64_t i = 0, row = 0; i < COUNT; row += lengths[i++])
    for (int64_t m = row; m < row + lengths[i]; m++)
      for (int64_t key = 0; key <= m % T; key++) assert_int_equal(bias[m * T + key], key < row % T);
  cuda_set_documents(&c->base, NULL, 0);
  assert_false(c->documents_are_usual);
  attend(c, B, T);
  assert_ptr_equal(machine.ran, machine.plans[1]);
  close_cuda(c);
}

TEST(all_documents_are_attended_to) {
  check_documents(false, 40, 5);
  check_documents(true, 40, 2);
  check_documents(true, 200, 1);
}
