// The check of fused programs on the GPU that is here: they pass, in the time that a first start
// may take, and a program with a fault and one that does not pay are found.
#include "base/os.h"
#include "kernels/fused/fused.h"
#include "tests/gpu/gpu_test.h"

static Gpu the_gpu(void) {
  Gpu gpu;
  Error err;
  if (gpu_find(&gpu, &err) != 0) fail_msg("%s", err.text);
  return gpu;
}

TEST(every_program_passes_within_three_seconds) {
  const Gpu gpu = the_gpu();
  for (Mainloop loop = MAINLOOP_WGMMA; loop <= MAINLOOP_MMA_SYNC; loop++)
    for (int fp8 = 0; fp8 < 2; fp8++) {
      const double began = now_ms();
      Check check;
      if (check_programs(&check, fp8, loop, &gpu, &err) != 0) {
        printf("# mainloop %d, FP8 %d: %s\n", (int)loop, fp8, err.text);
        assert_true(loop != gpu.mainloop || fp8);
        continue;
      }
      const double ms = now_ms() - began;
      check_print(&check, fp8, NULL);
      printf("# %.0f ms\n", ms);
      fflush(stdout);
      assert_true(check.count >= 8);
      assert_int_equal(check_failed(&check), 0);
      assert_true(ms < 3000);
    }
}

// It leaves the last 16 columns of the last row as they were.
static void down_with_a_fault(Backend *be, int64_t M, int64_t K, Operand a, Operand W,
                              const act_t *x, RowStat x_sumsq, Operand out, RowStat *sumsq) {
  const int64_t D = be->spec.D;
  fused_residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
  be->services.zero(be, act_at(be, out.data, M * D - 16), 16 * act_bytes(&be->spec));
}

// As the check opens it.
static Backend *fused_backend(Spec spec) {
  const int64_t batch = spec.batch;
  spec.batch = 0;
  spec.kernels = KERNELS_FUSED;
  Backend *be = gpu_backend(spec);
  be->spec.batch = batch;
  return be;
}

static int fuse_with_a_fault(Backend *be, OperationSet operations, Error *err) {
  if (backend_fuse(be, operations, err) != 0) return -1;
  if (operations >> OP_down & 1) be->down = down_with_a_fault;
  return 0;
}

TEST(a_planted_fault_is_found_in_its_operation_alone) {
  Check check;
  const Spec spec = check_spec(false);
  Backend *cpu = backend_cpu_create(&spec), *be = fused_backend(spec);
  if (check_operations(&check, cpu, be, fuse_with_a_fault, &err) != 0) fail_msg("%s", err.text);
  check_print(&check, false, NULL);
  assert_int_equal(check_failed(&check), operations_with(OP_down));
  cpu->services.destroy(cpu);
  be->services.destroy(be);
}

// ---- Times

// LLaMA-3.2-1B's sizes.
static const ModelConfig billion = {.hidden_size = 2048,
                                    .intermediate_size = 8192,
                                    .num_hidden_layers = 16,
                                    .num_attention_heads = 32,
                                    .num_key_value_heads = 8,
                                    .head_dim = 64,
                                    .vocab_size = 128256,
                                    .max_position_embeddings = 4096,
                                    .rms_norm_eps = 1e-5,
                                    .rope_theta = 500000,
                                    .initializer_range = 0.02};

static Spec run_of_a_billion(bool fp8) {
  return model_spec(&billion,
                    (Spec){.batch = 8, .seq = 4096, .loss_chunks = 8, .train = true, .fp8 = fp8});
}

static double ms_of_start(Spec *spec, const Gpu *gpu) {
  const double began = now_ms();
  check_remembered(spec, &billion, gpu);
  const double ms = now_ms() - began;
  printf("# %s: %.0f ms, failed %x, slow %x\n", spec->fp8 ? "FP8" : "bf16", ms,
         (unsigned)spec->failed, (unsigned)spec->slow);
  fflush(stdout);
  return ms;
}

// On Hopper, by its own mainloop, every program pays, but for lm_head's dgrad in FP8 on some cards:
// 1.17 times the unfused time on one H100, below 1.1 on one H200.
TEST(a_first_start_takes_three_seconds_more_and_the_next_none) {
  const Gpu gpu = the_gpu();
  for (int fp8 = 0; fp8 < (gpu.mainloop == MAINLOOP_WGMMA ? 2 : 1); fp8++) {
    Spec first = run_of_a_billion(fp8);
    first.mainloop = gpu.mainloop;
    first.gemm_cache = held_text("%s/choices.txt", temporary_folder());
    Spec next = first;
    assert_true(ms_of_start(&first, &gpu) < 3000);
    assert_int_equal(first.failed, 0);
    const OperationSet may_be_slow = fp8 ? (OperationSet)1 << OP_lm_head_dgrad : 0;
    if (gpu.mainloop == MAINLOOP_WGMMA) assert_int_equal(first.slow & ~may_be_slow, 0);
    assert_true(ms_of_start(&next, &gpu) < 50);
    assert_int_equal(next.failed | next.slow, first.slow);
  }
}

static void down_three_times(Backend *be, int64_t M, int64_t K, Operand a, Operand W,
                             const act_t *x, RowStat x_sumsq, Operand out, RowStat *sumsq) {
  for (int i = 0; i < 3; i++) fused_residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
}

static int fuse_slowly(Backend *be, OperationSet operations, Error *err) {
  if (backend_fuse(be, operations, err) != 0) return -1;
  if (operations >> OP_down & 1) be->down = down_three_times;
  return 0;
}

TEST(a_program_that_does_not_pay_is_found) {
  const Spec run = run_of_a_billion(false);
  const ModelConfig layer = timed_model(&billion, false);
  CheckedTimes times;
  Backend *be = fused_backend(timed_spec(&billion, &run));
  if (check_times(&times, &layer, be, fuse_slowly, &err) != 0) fail_msg("%s", err.text);
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (times.fused[i] > 0)
      printf("# %-16s %8.3f ms, unfused %8.3f%s\n", operation_name(i), times.fused[i],
             times.unfused[i], times.slow >> i & 1 ? ", slow" : "");
  fflush(stdout);
  assert_true(times.slow >> OP_down & 1);
  if (the_gpu().mainloop == MAINLOOP_WGMMA) assert_int_equal(times.slow, operations_with(OP_down));
  be->services.destroy(be);
}
