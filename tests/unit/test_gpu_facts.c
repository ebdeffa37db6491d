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
// 12.6 GiB, of which a run on an H200 took 12.4.
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
