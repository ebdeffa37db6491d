// The rows of kernels/ops.def: their work by hand, and that a step calls and marks what they say.
#include "base/rng.h"
#include "kernels/math.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include "model/llama.h"

// No two widths are alike.
enum { D = 32, F = 48, HD = 40, KVD = 20, R = 80, V = 70, LAYERS = 3, B = 2, T = 16, M = 32 };
static const ModelConfig config = {MODEL_SHAPE(D, F, LAYERS, 4, 2, 10, V, T),
                                   .initializer_range = 0.05};

static Llama *open_model(bool muon, Recompute recompute, MasterType masters) {
  const Spec asked = {TRAINS(B, T, 2), .muon = muon, .recompute = recompute, .masters = masters,
                      .threads = 1};
  int32_t tokens[M], targets[M];
  Llama *llama = cpu_llama(&config, asked);
  llama_init_weights(llama, 5);
  for (int i = 0; i < M; i++) {
    tokens[i] = (int32_t)(rng_u64(1, (uint64_t)i) % V);
    targets[i] = (int32_t)(rng_u64(2, (uint64_t)i) % V);
  }
  llama_load_batch(llama, &(Batch){.tokens = tokens, .targets = targets});
  return llama;
}

static OperationWork work(const Llama *m, Operation operation) {
  return operation_work(&m->spec, m->tensors, m->param_count, operation);
}

// ---- Work

TEST(gemms_are_those_of_the_model) {
  static const struct {
    Operation operation;
    GemmForm form;
    int64_t M, N, K;
  } rows[] = {{OP_qkv, GEMM_NT, M, R, D},
              {OP_out, GEMM_NT, M, D, HD},
              {OP_gate_up, GEMM_NT, M, 2 * F, D},
              {OP_down, GEMM_NT, M, D, F},
              {OP_validation_loss, GEMM_NT, M / 2, V, D},
              {OP_head_loss, GEMM_NT, M / 2, V, D},
              {OP_lm_head_wgrad, GEMM_TN, V, D, M / 2},
              {OP_lm_head_dgrad, GEMM_NN, M / 2, D, V},
              {OP_down_wgrad, GEMM_TN, D, F, M},
              {OP_down_dgrad, GEMM_NN, M, F, D},
              {OP_gate_up_wgrad, GEMM_TN, 2 * F, D, M},
              {OP_gate_up_dgrad, GEMM_NN, M, D, 2 * F},
              {OP_out_wgrad, GEMM_TN, D, HD, M},
              {OP_out_dgrad, GEMM_NN, M, HD, D},
              {OP_qkv_wgrad, GEMM_TN, R, D, M},
              {OP_qkv_dgrad, GEMM_NN, M, D, R}};
  int gemms = 0;
  Llama *m = open_model(false, RECOMPUTE_NONE, MASTERS_FP32);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const OperationWork w = work(m, rows[i].operation);
    if (w.kind != CLASS_GEMM || w.form != rows[i].form || w.M != rows[i].M || w.N != rows[i].N ||
        w.K != rows[i].K || w.flops != 2.0 * (double)(w.M * w.N * w.K))
      fail_msg("%s: form %d, %d x %d x %d", operation_name(rows[i].operation), w.form, (int)w.M,
               (int)w.N, (int)w.K);
  }
  for (Operation i = 0; i < OPERATION_COUNT; i++) gemms += work(m, i).kind == CLASS_GEMM;
  assert_int_equal(gemms, sizeof rows / sizeof *rows);
  assert_int_equal(work(m, OP_head_loss).ldd, padded_vocab(&m->be->spec));
  assert_int_equal(work(m, OP_lm_head_wgrad).lda, padded_vocab(&m->be->spec));
  assert_int_equal(work(m, OP_lm_head_dgrad).lda, padded_vocab(&m->be->spec));
  assert_true(work(m, OP_out).adds && work(m, OP_down).adds);
}

enum { LAYER = R * D + D * HD + 2 * F * D + D * F, NORMS = 2 * LAYERS + 1 };
static const double all = 2 * V * D + LAYERS * LAYER + NORMS * D,
                    matrices = 2 * V * D + LAYERS * LAYER,
                    folded = V * D + LAYERS * (R * D + 2 * F * D), e = sizeof(real);

// On the CPU every element has sizeof(real) bytes.
TEST(bytes_are_those_of_the_arrays) {
  Llama *m = open_model(false, RECOMPUTE_NONE, MASTERS_FP32);
  const struct {
    Operation operation;
    double bytes, floor;
  } rows[] = {
      {OP_embed, 2 * M * D * e, 2 * M * D * e},
      {OP_rope_backward, 3 * M * R * e, 0},
      {OP_embed_backward, (M * D + V * D) * e, (M * D + V * D) * e},
      {OP_requantize, 3 * M * D * e, 3 * M * D * e}, // values in, both copies out
      {OP_head_loss, 0, 4 * M / 2 * D * e},          // of a chunk x and rows of W in, x in, u x out
      {OP_validation_loss, 0, 2 * M / 2 * D * e},
      {OP_gate_up, 0, 0},
      // weight, two moments in and out, gradient in; the compute copy out
      {OP_adamw, (7 * all + matrices) * e, (7 * all + matrices) * e},
      // gradients for the norm of all; where folded, the weight besides
      {OP_grads_finish, (all + folded) * e, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const OperationWork w = work(m, rows[i].operation);
    if (w.bytes != rows[i].bytes || w.floor_bytes != rows[i].floor)
      fail_msg("%s: %g %g", operation_name(rows[i].operation), w.bytes, w.floor_bytes);
  }

  // Of bf16 masters the folded copies alone are written besides.
  m = open_model(false, RECOMPUTE_NONE, MASTERS_BF16);
  assert_true(work(m, OP_adamw).bytes == (7 * all + folded) * e);
}

// Muon reads gradients and reads and writes momentum where AdamW would, and writes a direction that
// AdamW's pass reads; and its products: F is larger than D, D than k and v are high.
TEST(muons_bytes_and_flops_are_those_of_its_rule) {
  const double d = D, wide = 3 * d * d * (2 * HD + 3 * F) + 5 * d * d * d,
               kv = 3.0 * KVD * KVD * D + (double)KVD * KVD * KVD, parts = LAYERS * LAYER * e;
  Llama *adamw = open_model(false, RECOMPUTE_NONE, MASTERS_FP32);
  Llama *muon = open_model(true, RECOMPUTE_NONE, MASTERS_FP32);
  const OperationWork a = work(adamw, OP_adamw), m = work(muon, OP_muon),
                      rest = work(muon, OP_adamw);
  assert_true(a.flops == 0 && rest.flops == 0);
  assert_true(m.bytes == (1 + 2 + 1) * parts);
  assert_true(a.bytes - rest.bytes == (1 + 4 - 1) * parts);
  assert_true(m.flops == LAYERS * MUON_STEPS * (wide + 2 * kv));
}

// ---- Programs

typedef struct Programs {
  const char *function, *name, *fp8;
} Programs;

static bool same_programs(Programs a, Programs b) {
  return strcmp(a.function, b.function) == 0 && strcmp(a.name, b.name) == 0 &&
         strcmp(a.fp8, b.fp8) == 0;
}

// kernels/fused/operations.c: fused_qkv runs ROPE, and so on. PROMOTED is for sums over F and 2 F.
TEST(programs_are_those_that_the_functions_run) {
  static const Programs rows[OPERATION_COUNT] = {
#define OP(name, type, function, program, fp8, ...) [OP_##name] = {#function, #program, #fp8},
#include "kernels/ops.def"
#undef OP
  };
  static const Programs fused[] = {
      {"qkv", "ROPE", "ROPE_FP8"},
      {"residual", "RESIDUAL", "RESIDUAL_FP8"},
      {"gate_up", "SWIGLU", "SWIGLU_FP8"},
      {"head_loss", "PROBABILITIES", "PROBABILITIES_FP8"},
      {"head_dgrad", "NORM_DGRAD", "NORM_DGRAD_FP8"},
      {"down_dgrad", "SWIGLU_BACKWARD", "SWIGLU_BACKWARD_FP8"},
      {"norm_dgrad", "NORM_DGRAD_RESIDUAL", "NORM_DGRAD_RESIDUAL_FP8"}};
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    Programs expected = {rows[i].function, "NONE", "NONE"};
    for (size_t k = 0; k < sizeof fused / sizeof *fused; k++)
      if (strcmp(rows[i].function, fused[k].function) == 0) expected = fused[k];
    if (i == OP_down) expected.fp8 = "RESIDUAL_PROMOTED_FP8";
    if (i == OP_gate_up_dgrad) expected.fp8 = "NORM_DGRAD_RESIDUAL_PROMOTED_FP8";
    if (!same_programs(rows[i], expected))
      fail_msg("%s: %s, %s", operation_name(i), rows[i].name, rows[i].fp8);
  }
}

// ---- Marks

enum { MOST_MARKS = 2048 };

static int observed_step(Llama *m, Observed observed, Mark *marks) {
  const AdamW hyper = {.learning_rate = 1e-3, USUAL_ADAMW};
  m->be->services.marks_open(m->be, MOST_MARKS);
  m->be->observed = observed;
  llama_forward(m);
  llama_backward(m, 1, false);
  llama_update(m, &hyper);
  (void)m->be->services.step_result(m->be);
  return m->be->services.marks_read(m->be, marks);
}

// Every product's FLOPs, as often as a step calls it, are the model's.
TEST(flops_and_calls_are_those_of_a_step) {
  Mark marks[MOST_MARKS];
  Llama *m = open_model(false, RECOMPUTE_NONE, MASTERS_FP32);
  const int count = observed_step(m, OBSERVE_OPERATIONS, marks);
  double flops = 0, attention = 0;
  for (int i = 0; i < count; i++) {
    if (marks[i].what < 0) continue;
    const OperationWork w = work(m, (Operation)marks[i].what);
    *(w.kind == CLASS_ATTENTION ? &attention : &flops) += w.flops;
  }
  // The model's count has 2 + 4 products of T^2 d in attention's passes; its kernels do 2 + 5.
  const double expected = model_step_flops(&config, M, M * T);
  assert_true(fabs(flops + attention * 6 / 7 - expected) < 1e-9 * expected);
}

static int64_t calls_of(const Mark *marks, int count, int what) {
  int64_t calls = 0;
  for (int i = 0; i < count; i++) calls += marks[i].what == what;
  return calls;
}

// An operation's marks enclose those of its GEMM, and a layer's those of its operations.
TEST(marks_nest) {
  for (Recompute again = RECOMPUTE_NONE; again <= RECOMPUTE_LAYER; again++) {
    Mark marks[MOST_MARKS];
    Llama *m = open_model(true, again, MASTERS_FP32);
    const int count = observed_step(m, OBSERVE_GEMMS, marks);
    int in_layer = 0, in_operation = 0, in_gemm = 0;
    for (int i = 0; i < count; i++) {
      assert_true(i == 0 || marks[i].ms >= marks[i - 1].ms);
      const int what = marks[i].what;
      in_layer += (what == MARK_LAYER) - (what == MARK_LAYER_END);
      in_operation += (what >= 0) - (what == MARK_END);
      in_gemm += (what == MARK_GEMM) - (what == MARK_GEMM_END);
      assert_in_range(in_layer, 0, 1);
      assert_in_range(in_operation, 0, 1);
      assert_in_range(in_gemm, 0, in_operation);
      if (what == MARK_LAYER || what == MARK_LAYER_END) assert_int_equal(in_operation, 0);
    }
    assert_true(in_layer == 0 && in_operation == 0 && in_gemm == 0);
    assert_int_equal(calls_of(marks, count, MARK_LAYER), 2 * LAYERS);
    assert_int_equal(calls_of(marks, count, OP_down_dgrad), LAYERS);
    assert_int_equal(calls_of(marks, count, OP_head_loss), 2);
    assert_int_equal(calls_of(marks, count, OP_muon), 1);
    // The last layer's activations are still there.
    assert_int_equal(calls_of(marks, count, OP_gate_up),
                     again == RECOMPUTE_NONE ? LAYERS : 2 * LAYERS - 1);
    assert_int_equal(calls_of(marks, count, OP_qkv),
                     again == RECOMPUTE_LAYER ? 2 * LAYERS - 1 : LAYERS);
    assert_int_equal(observed_step(m, OBSERVE_LAYERS, marks), 2 * 2 * LAYERS);
    assert_int_equal(observed_step(m, OBSERVE_NOTHING, marks), 0);
  }
}
