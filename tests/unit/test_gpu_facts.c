// What is known of GPUs and their libraries without having one.
#include <dlfcn.h>

#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/peak.h"
#include "model/activations.h"
#include "model/run/backend.h"
#include "tests/support/test.h"

// Dense bf16 with fp32 accumulation, as NVIDIA's data sheets and whitepapers have it.
TEST(peaks_are_those_of_the_data_sheets) {
  static const struct {
    const char *name;
    int major, minor, sm_count;
    double ghz, tflops;
  } cards[] = {
      {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 1.41, 312},
      {"NVIDIA A40", 8, 6, 84, 1.74, 149.7},
      {"NVIDIA RTX A6000", 8, 6, 84, 1.8, 154.8},
      {"NVIDIA A10", 8, 6, 72, 1.695, 125},
      {"NVIDIA GeForce RTX 3090", 8, 6, 82, 1.695, 71},
      {"NVIDIA GeForce RTX 3080", 8, 6, 68, 1.71, 59.5},
      {"NVIDIA L4", 8, 9, 58, 2.04, 121},
      {"NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 2.505, 364.2},
      {"NVIDIA GeForce RTX 4090", 8, 9, 128, 2.52, 165.2},
      {"NVIDIA GeForce RTX 4080", 8, 9, 76, 2.505, 97.5},
      {"NVIDIA H100 80GB HBM3", 9, 0, 132, 1.98, 989.5},
      {"NVIDIA B200", 10, 0, 148, 1.86, 2250},
      {"NVIDIA GeForce RTX 5090", 12, 0, 170, 2.407, 209.5},
  };
  for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
    const double peak = gpu_peak_flops(cards[i].name, cards[i].major, cards[i].minor,
                                       cards[i].sm_count, cards[i].ghz * 1e9) *
                        1e-12;
    if (fabs(peak / cards[i].tflops - 1) > 0.005) // at most 0.3 % apart: the sheets are rounded
      fail_msg("%s: %.1f TFLOP/s, not %.1f", cards[i].name, peak, cards[i].tflops);
  }
  assert_true(gpu_peak_flops("NVIDIA T4", 7, 5, 40, 1.59e9) == 0);
}

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
  Error err = {""};
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
    Error err = {""};
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
