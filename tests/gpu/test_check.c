// The check of fused programs on the GPU that is here: it passes, in the time that a first start may
// take, and it finds a fault.
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

static int fuse_with_a_fault(Backend *be, OperationSet operations, Error *err) {
  if (backend_fuse(be, operations, err) != 0) return -1;
  if (operations >> OP_down & 1) be->down = down_with_a_fault;
  return 0;
}

TEST(a_planted_fault_is_found_in_its_operation_alone) {
  Check check;
  Spec spec = check_spec(false);
  Backend *cpu = backend_cpu_create(&spec);
  const int64_t batch = spec.batch;
  spec.batch = 0; // as the check opens it
  spec.kernels = KERNELS_FUSED;
  Backend *be = gpu_backend(spec);
  be->spec.batch = batch;
  if (check_operations(&check, cpu, be, fuse_with_a_fault, &err) != 0) fail_msg("%s", err.text);
  check_print(&check, false, NULL);
  assert_int_equal(check_failed(&check), operations_with(OP_down));
  cpu->services.destroy(cpu);
  be->services.destroy(be);
}
