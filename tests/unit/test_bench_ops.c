// The bench's operations are the step's: one by one in a step's order they leave what the step
// leaves.
#include "base/rng.h"
#include "kernels/math.h"
#include "model/ranges.h"
#include "model/run/bench.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

typedef struct Model {
  Backend *be;
  Llama llama;
} Model;

static const ModelConfig config = {.hidden_size = 32,
                                   .intermediate_size = 48,
                                   .num_hidden_layers = 3,
                                   .num_attention_heads = 4,
                                   .num_key_value_heads = 2,
                                   .head_dim = 10, // no two widths are alike
                                   .vocab_size = 70,
                                   .max_position_embeddings = 16,
                                   .rms_norm_eps = 1e-5,
                                   .rope_theta = 10000,
                                   .initializer_range = 0.05};

static void open_with(Model *m, const ModelConfig *c, int64_t chunks, bool muon,
                      MasterType masters) {
  const RunShape shape = {
      .batch = 2, .seq = 16, .loss_chunks = chunks, .train = true, .muon = muon};
  OpsConfig ops = llama_ops_config(c, &shape, shape.seq, 1);
  ops.masters = masters;
  Error err;
  m->be = backend_cpu_create(&ops);
  if (llama_create(&m->llama, c, &shape, m->be, &err) != 0) fail_msg("%s", err.text);
  llama_init_weights(&m->llama, 5);
  int32_t tokens[32], targets[32];
  for (int i = 0; i < 32; i++) {
    tokens[i] = (int32_t)(rng_u64(1, (uint64_t)i) % (uint64_t)c->vocab_size);
    targets[i] = (int32_t)(rng_u64(2, (uint64_t)i) % (uint64_t)c->vocab_size);
  }
  llama_load_batch(&m->llama, &(Batch){.tokens = tokens, .targets = targets});
}

static void open_model(Model *m, const ModelConfig *c, int64_t chunks) {
  open_with(m, c, chunks, false, MASTERS_FP32);
}

static void close_model(Model *m) {
  llama_destroy(&m->llama);
  m->be->services.destroy(m->be);
}

static void issue(Model *m, Operation operation, int index, bool accumulate) {
  issue_alone(&m->llama, operation, index, accumulate);
}

static void step_by_operations(Model *m) {
  static const Operation forward[] = {OP_qkv, OP_attention, OP_out, OP_gate_up, OP_down},
                         backward[] = {OP_down_wgrad,         OP_down_dgrad,    OP_gate_up_wgrad,
                                       OP_gate_up_dgrad,      OP_out_wgrad,     OP_out_dgrad,
                                       OP_attention_backward, OP_rope_backward, OP_qkv_wgrad,
                                       OP_qkv_dgrad};
  const int L = (int)m->llama.config.num_hidden_layers, chunks = (int)m->llama.shape.loss_chunks;
  issue(m, OP_embed, 0, false);
  for (int l = 0; l < L; l++)
    for (size_t i = 0; i < sizeof forward / sizeof *forward; i++) issue(m, forward[i], l, false);
  for (int chunk = 0; chunk < chunks; chunk++) {
    issue(m, OP_head_loss, chunk, false);
    issue(m, OP_lm_head_wgrad, chunk, chunk > 0);
    issue(m, OP_lm_head_dgrad, chunk, false);
  }
  for (int l = L - 1; l >= 0; l--)
    for (size_t i = 0; i < sizeof backward / sizeof *backward; i++) issue(m, backward[i], l, false);
  issue(m, OP_embed_backward, 0, false);
  issue(m, OP_grads_finish, 0, false);
  issue(m, OP_muon, 0, false);
  issue(m, OP_adamw, 0, false);
}

static void one_by_one_they_are_a_step(bool tied, int64_t chunks, bool muon) {
  const AdamW hyper = {.learning_rate = 0.01,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .momentum = 0.95,
                       .clip_norm = 1,
                       .gradient_scale = 1};
  Model whole, parts;
  ModelConfig c = config;
  c.tie_word_embeddings = tied;
  open_with(&whole, &c, chunks, muon, MASTERS_FP32);
  open_with(&parts, &c, chunks, muon, MASTERS_FP32);
  Model *const models[] = {&whole, &parts};
  for (int i = 0; i < 2; i++) {
    models[i]->be->services.set_hyper(models[i]->be, &hyper);
    models[i]->be->services.step_begin(models[i]->be);
  }
  llama_forward(&whole.llama);
  llama_backward(&whole.llama, 1, false);
  whole.be->grads_finish(whole.be, whole.llama.tensors, whole.llama.param_count);
  if (muon) whole.be->muon(whole.be, whole.llama.tensors, whole.llama.param_count);
  whole.be->adamw(whole.be, whole.llama.tensors, whole.llama.param_count);
  step_by_operations(&parts);
  for (int i = 0; i < whole.llama.param_count; i++) {
    const ParamTensor *a = &whole.llama.tensors[i], *b = &parts.llama.tensors[i];
    const size_t bytes = (size_t)(a->rows * a->cols) * sizeof(real);
    if (a->grad) assert_memory_equal(a->grad, b->grad, bytes);
    if (a->grad_folded) assert_memory_equal(a->grad_folded, b->grad_folded, bytes);
    assert_memory_equal(a->master, b->master, bytes);
  }
  close_model(&whole);
  close_model(&parts);
}

TEST(one_by_one_the_operations_are_a_step) {
  one_by_one_they_are_a_step(false, 1, false);
  one_by_one_they_are_a_step(true, 4, true);
}

// Every product's FLOPs, as often as it is called, are the model's.
TEST(flops_and_calls_are_those_of_a_step) {
  Model m;
  open_model(&m, &config, 2);
  BenchResult r = {.whole = true};
  bench_list(&r, &m.llama, 3, OPERATION_COUNT);
  double flops = 0, attention = 0;
  for (int i = 0; i < r.op_count; i++) {
    const BenchOp *op = &r.ops[i];
    if (op->call.class == CLASS_GEMM) flops += (double)op->calls * op->call.flops;
    if (op->call.class == CLASS_ATTENTION) attention += (double)op->calls * op->call.flops;
    assert_true(op->calls == 1 || op->calls % 3 == 0);
  }
  // The model's count has 2 + 4 products of T^2 d in attention's passes; its kernels do 2 + 5.
  const double expected = model_step_flops(&config, 2 * 3 * 16, 2 * 3 * 16 * 16);
  assert_true(fabs(flops + attention * 6 / 7 - expected) < 1e-9 * expected);
  close_model(&m);
}

enum { D = 32, F = 48, HD = 40, R = 80, V = 70 }; // of config

static const BenchOp *op_of(const BenchResult *r, Operation operation) {
  for (int i = 0; i < r->op_count; i++)
    if (r->ops[i].call.operation == operation) return &r->ops[i];
  fail_msg("there is no %s", operation_name(operation));
  return NULL;
}

// On the CPU every element has sizeof(real) bytes.
TEST(bytes_are_those_of_the_arrays) {
  enum { M = 32, LAYERS = 3, LAYER = R * D + D * HD + 2 * F * D + D * F, NORMS = 2 * LAYERS + 1 };
  const double all = 2 * V * D + LAYERS * LAYER + NORMS * D, matrices = all - NORMS * D,
               folded = V * D + LAYERS * (R * D + 2 * F * D), e = sizeof(real);
  Model m;
  open_model(&m, &config, 2);
  BenchResult r = {.whole = true};
  bench_list(&r, &m.llama, 1, OPERATION_COUNT);
  const struct {
    Operation operation;
    double bytes, floor;
  } expected[] = {
      {OP_embed, 2 * M * D * e, 2 * M * D * e},
      {OP_rope_backward, 3 * M * R * e, 0},
      {OP_embed_backward, (M * D + V * D) * e, (M * D + V * D) * e},
      {OP_head_loss, 0, 4 * M / 2 * D * e}, // of a chunk x and rows of W in, x in, u x out
      {OP_gate_up, 0, 0},
      // weight, two moments in and out, gradient in; the compute copy out
      {OP_adamw, (7 * all + matrices) * e, (7 * all + matrices) * e},
      // gradients for the norm of all; where folded, the weight besides
      {OP_grads_finish, (all + folded) * e, 0},
  };
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    const BenchOp *op = op_of(&r, expected[i].operation);
    if (op->call.bytes != expected[i].bytes || op->call.floor_bytes != expected[i].floor)
      fail_msg("%s: %g %g", operation_name(op->call.operation), op->call.bytes,
               op->call.floor_bytes);
  }
  close_model(&m);

  // Of bf16 masters the folded copies alone are written besides.
  open_with(&m, &config, 2, false, MASTERS_BF16);
  bench_list(&r, &m.llama, 1, OPERATION_COUNT);
  assert_true(op_of(&r, OP_adamw)->call.bytes == (7 * all + folded) * e);
  close_model(&m);
}

// Muon reads gradients and reads and writes momentum where AdamW would, and writes a direction that
// AdamW's pass reads; and its products: F is larger than D, D than k and v are high.
TEST(muons_bytes_and_flops_are_those_of_its_rule) {
  enum { KVD = (R - HD) / 2, LAYERS = 3, MATRICES = R * D + D * HD + 2 * F * D + D * F };
  const double d = D, wide = 3 * d * d * (2 * HD + 3 * F) + 5 * d * d * d,
               kv = 3.0 * KVD * KVD * D + (double)KVD * KVD * KVD;
  Model adamw, muon;
  open_model(&adamw, &config, 2);
  open_with(&muon, &config, 2, true, MASTERS_FP32);
  BenchResult of_adamw = {.whole = true}, of_muon = {.whole = true};
  bench_list(&of_adamw, &adamw.llama, 1, OPERATION_COUNT);
  bench_list(&of_muon, &muon.llama, 1, OPERATION_COUNT);
  const OperationCall *a = &op_of(&of_adamw, OP_adamw)->call, *m = &op_of(&of_muon, OP_muon)->call,
                      *rest = &op_of(&of_muon, OP_adamw)->call;
  const double matrices = (double)LAYERS * MATRICES * sizeof(real);
  assert_true(a->flops == 0 && rest->flops == 0);
  assert_true(m->bytes == (1 + 2 + 1) * matrices);
  assert_true(a->bytes - rest->bytes == (1 + 4 - 1) * matrices);
  assert_true(m->flops == LAYERS * MUON_STEPS * (wide + 2 * kv));
  close_model(&adamw);
  close_model(&muon);
}

TEST(recomputed_operations_are_in_the_backward) {
  for (Recompute again = RECOMPUTE_NONE; again <= RECOMPUTE_LAYER; again++) {
    Model m;
    open_model(&m, &config, 1);
    m.llama.shape.recompute = again;
    BenchResult r = {.whole = true};
    bench_list(&r, &m.llama, 1, OPERATION_COUNT);
    assert_int_equal(op_of(&r, OP_gate_up)->in_backward, again != RECOMPUTE_NONE);
    assert_int_equal(op_of(&r, OP_qkv)->in_backward, again == RECOMPUTE_LAYER);
    assert_int_equal(op_of(&r, OP_qkv)->calls, again == RECOMPUTE_LAYER ? 5 : 3);
    assert_int_equal(op_of(&r, OP_down)->in_backward, 0);
    close_model(&m);
  }
}

TEST(a_twin_shares_all_but_the_row_statistics) {
  Model m;
  Llama twin = {0};
  open_model(&m, &config, 1);
  if (bench_share(&twin, &m.llama, m.be, &err) != 0) fail_msg("%s", err.text);
  const Acts *a = &m.llama.acts, *b = &twin.acts;
  assert_ptr_equal(a->layers[0].dx.data, b->layers[0].dx.data);
  assert_ptr_not_equal(a->s.data, b->s.data);
  assert_ptr_not_equal(a->layers[3].x_sumsq.data, b->layers[3].x_sumsq.data);
  for (int l = 0; l < 3; l++) {
    assert_ptr_equal(a->layers[l].x.data, b->layers[l].x.data);
    assert_ptr_not_equal(a->layers[l].x_sumsq.data, b->layers[l].x_sumsq.data);
    assert_ptr_not_equal(a->layers[l].x1_sumsq.data, b->layers[l].x1_sumsq.data);
  }
  bench_unshare(&twin);
  close_model(&m);
}

TEST(one_operation_can_be_listed_alone) {
  Model m;
  open_model(&m, &config, 1);
  BenchResult r = {.whole = false};
  bench_list(&r, &m.llama, 1, OP_gate_up);
  assert_int_equal(r.op_count, 1);
  assert_string_equal(operation_name(r.ops[0].call.operation), "gate_up");
  assert_string_equal(r.ops[0].call.shape, "32 x 96 x 32");
  assert_int_equal(r.ops[0].calls, 3);
  close_model(&m);
}

// What a call overwrites is there again before it: by the step's own order, nobody lists it.
TEST(what_works_in_place_is_prepared) {
  Model m;
  open_model(&m, &config, 1);
  Recorder *slice = record_slice(&m.llama);
  int prepared = 0;
  for (int i = 0; i < slice->count; i++) {
    const int by = prepared_by(slice->calls, i);
    if (by < 0) continue;
    const Operation operation = slice->calls[i].operation;
    prepared++;
    assert_true(operation == OP_down_dgrad || operation == OP_rope_backward ||
                operation == OP_lm_head_wgrad || operation == OP_lm_head_dgrad);
    assert_int_equal(slice->calls[by].operation, operation == OP_down_dgrad ? OP_gate_up
                                                 : operation == OP_rope_backward
                                                     ? OP_attention_backward
                                                     : OP_head_loss);
  }
  assert_int_equal(prepared, 4);
  assert_int_equal(slice->count, OPERATION_COUNT - 3); // of a model without parts
  recorder_destroy(slice);
  close_model(&m);
}

// In FP8 what exists as copies alone is made again, too; of all else the copies can be cast anew.
TEST(what_takes_turns_is_prepared) {
  static const Operation makers[OPERATION_COUNT] = {[OP_down] = OP_gate_up,
                                                    [OP_down_dgrad] = OP_gate_up,
                                                    [OP_gate_up_wgrad] = OP_down_dgrad,
                                                    [OP_gate_up_dgrad] = OP_down_dgrad,
                                                    [OP_rope_backward] = OP_attention_backward,
                                                    [OP_qkv_wgrad] = OP_rope_backward,
                                                    [OP_qkv_dgrad] = OP_rope_backward,
                                                    [OP_lm_head_wgrad] = OP_head_loss,
                                                    [OP_lm_head_dgrad] = OP_head_loss};
  SmallModel m = small_open((SmallShape){.fp8 = true});
  Recorder *slice = record_slice(&m.llama);
  int prepared = 0, cast = 0;
  for (int i = 0; i < slice->count; i++) {
    const OperationCall *call = &slice->calls[i];
    const int by = prepared_by(slice->calls, i);
    prepared += by >= 0;
    cast += call->input.data != NULL;
    if (by >= 0) assert_int_equal(slice->calls[by].operation, makers[call->operation]);
    if (call->fp8) assert_true((by >= 0) || call->input.data);
  }
  assert_int_equal(prepared, 9);
  assert_int_equal(cast, 8); // of x, o, x1, the final x, and of dx and dx1 twice
  recorder_destroy(slice);
  small_close(&m);
}

// How far copies are from what their layer's values make of them, beyond e4m3's rounding: half of
// 2^-3 of a value, and half of the least there is.
static double off(const Operand *x, int64_t rows, int64_t cols) {
  const real *data = (const real *)x->data, *copies = (const real *)x->by_row,
             *q = (const real *)x->row_scale;
  double most = 0;
  for (int64_t i = 0; i < rows * cols; i++) {
    const double value = (double)q[i / cols] * (double)data[i];
    most = fmax(most, fabs((double)copies[i] - value) - fabs(value) / 16 - 0x1p-10);
  }
  return most;
}

// What an operation reads out of order is its own layer's, whatever was in that place.
TEST(inputs_are_made_again) {
  SmallModel m = small_open((SmallShape){.fp8 = true});
  Recorder *slice = record_slice(&m.llama);
  int makers[OPERATION_COUNT];
  list_makers(slice, makers);
  small_train(&m, 0, 1);
  const LayerActs *a = &m.llama.acts.layers[0];
  const Sizes n = model_sizes(&m.llama.config, &m.llama.shape);
  assert_true(off(&a->x, n.M, n.D) > 0.1); // another's are there
  issue_inputs(&m.llama, slice, makers, OP_qkv, 0);
  assert_true(off(&a->x, n.M, n.D) <= 0);
  // Of y only copies are kept: gate_up makes them of x1's, whose place x's take.
  const size_t bytes = (size_t)(n.M * n.F) * sizeof(real);
  real *copies = (real *)a->y.by_row, *before = malloc(bytes);
  issue_inputs(&m.llama, slice, makers, OP_gate_up, 0);
  issue_alone(&m.llama, OP_gate_up, 0, false);
  memcpy(before, copies, bytes);
  memset(copies, 0, bytes);
  issue_inputs(&m.llama, slice, makers, OP_qkv, 0);
  issue_inputs(&m.llama, slice, makers, OP_down, 0);
  assert_memory_equal(copies, before, bytes);
  free(before);
  recorder_destroy(slice);
  small_close(&m);
}

// The sum over the loss' chunks is where no other gradient is, as an operation alone leaves it.
TEST(a_sum_apart_overwrites_no_gradient) {
  SmallModel m = small_open((SmallShape){.bf16 = true, .loss_chunks = 2});
  Llama *llama = &m.llama;
  const ParamTensor *head = llama->lm_head;
  const size_t sum = (size_t)(head->rows * head->cols) * m.be->stat_bytes;
  size_t bytes;
  MemoryPlan plan;
  memory_plan(&plan, &llama->config, &llama->shape, m.be);
  assert_ptr_equal(head->part_sum, llama->grads_block);
  assert_int_equal(bench_sum_apart(llama, &bytes, &err), 0);
  assert_int_equal(bytes, sum);
  const char *at = (const char *)head->part_sum, *gradients = llama->grads_block;
  assert_true(at + sum <= gradients || at >= gradients + plan.grads_bytes);
  m.be->services.release(m.be, head->part_sum);
  small_close(&m);
}
