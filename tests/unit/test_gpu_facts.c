// What is known of GPUs and their libraries without having one.
#include <dlfcn.h>

#include "kernels/cuda/cudnn.h"
#include "model/run/backend.h"
#include "model/tensors.h"
#include "tests/support/test.h"

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

// There is no cuDNN 9, but a stub of cuDNN 8.
void *__wrap_dlopen(const char *name, int flags) {
  if (strcmp(name, "libcudnn.so.8") == 0) name = "build/release/tests/cudnn_stub.so";
  if (strcmp(name, "libcudnn.so.9") == 0) name = "libcudnn.so.absent";
  return __real_dlopen(name, flags);
}

TEST(a_cudnn_of_another_major_version_is_named) {
  CudnnApi api;
  assert_int_equal(cudnn_open(&api, &err), -1);
  assert_non_null(strstr(err.text, "cuDNN 8.9.7 is installed"));
  assert_non_null(strstr(err.text, "needs 9.11 or later"));
}

// By the plan, with room for what the driver and a screen take. The plan of llama-110m.json says
// 12.5 GiB, of which a run on an H200 took 12.4.
TEST(the_configs_for_24_gb_fit) {
  static const char *const paths[] = {"configs/llama-15m.json", "configs/llama-110m.json",
                                      "configs/llama-350m-24gb.json",
                                      "configs/llama-3.2-1b-24gb.json"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    Config c;
    if (config_load(&c, paths[i], 0, NULL, &err) != 0) fail_msg("%s", err.text);
    RunShape shape = run_shape(&c);
    if (shape.loss_chunks == 0) shape.loss_chunks = 1;
    const Backend sizes = backend_outline(&c, &shape, true);
    MemoryPlan plan;
    memory_plan(&plan, &c.model, &shape, &sizes);
    const double gib = (double)plan.total_bytes / (1 << 30);
    print_message("# %s: %.1f GiB\n", paths[i], gib);
    assert_true(gib < 22.5);
  }
}

static size_t planned_bytes(const Config *c, size_t gpu_bytes) {
  RunShape shape = run_shape(c);
  MemoryPlan plan;
  if (shape.loss_chunks == 0) shape.loss_chunks = choose_loss_chunks(c, shape, gpu_bytes);
  const Backend sizes = backend_outline(c, &shape, true);
  memory_plan(&plan, &c->model, &shape, &sizes);
  return plan.total_bytes;
}

// The limits are those of the memory to the byte: with one less than a run needs it is beyond them.
static void check_limits(const char *path, int64_t batch, int64_t window, const char *precision) {
  Error err = {""};
  Config c;
  char *overrides[] = {(char *)precision};
  if (config_load(&c, path, 1, overrides, &err) != 0) fail_msg("%s", err.text);
  Outlook o = {.gpu = true, .gpu_bytes = (size_t)80 << 30};
  Config of_batch = c, of_window = c;
  of_batch.train.batch_size = batch;
  of_window.train.batch_size = 1;
  of_window.train.sequence_length = window;
  o.sizes.memory_bytes = planned_bytes(&of_batch, o.gpu_bytes);
  assert_int_equal(plan_limits(&c, &o).batch, batch);
  o.sizes.memory_bytes--;
  assert_int_equal(plan_limits(&c, &o).batch, batch - 1);
  o.sizes.memory_bytes = planned_bytes(&of_window, o.gpu_bytes);
  assert_int_equal(plan_limits(&c, &o).window, window);
  o.sizes.memory_bytes--;
  const int64_t below = plan_limits(&c, &o).window;
  assert_true(below < window && below > window * 9 / 10);
  o.sizes.memory_bytes = 1 << 20;
  assert_true(plan_limits(&c, &o).window == 0 && plan_limits(&c, &o).batch == 0);
}

TEST(the_largest_runs_are_those_that_just_fit) {
  check_limits("configs/llama-110m.json", 37, 4096 * 9, "backend.precision=bf16");
  check_limits("configs/llama-350m.json", 9, 1024 * 17, "backend.precision=fp8");
  check_limits("configs/llama-3.1-8b.json", 3, 4096 * 4, "backend.precision=bf16");
}

// 139 GiB of an H200's 141 GB are free for a run.
TEST(eight_billion_parameters_fit_141_gb) {
  static const char *const precisions[] = {"backend.precision=bf16", "backend.precision=fp8"};
  for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
    Config c;
    char *overrides[] = {(char *)precisions[i]};
    if (config_load(&c, "configs/llama-3.1-8b.json", 1, overrides, &err) != 0)
      fail_msg("%s", err.text);
    Outlook o = {.gpu = true, .gpu_bytes = (size_t)139 << 30};
    o.sizes.memory_bytes = o.gpu_bytes;
    const PlanLimits limits = plan_limits(&c, &o);
    const double gib = (double)planned_bytes(&c, o.gpu_bytes) / (1 << 30);
    print_message("# %s: %.1f GiB of 139; at most a window of %lld, or a batch of %lld\n",
                  precisions[i], gib, (long long)limits.window, (long long)limits.batch);
    assert_true(gib < 136);
    assert_int_equal(model_parameters(&c.model, true), INT64_C(8030261248));
  }
}
