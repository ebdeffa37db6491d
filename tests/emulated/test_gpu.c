// What a run says of the GPUs that a machine has, with CUDA's answers in place of a GPU: none, an
// old driver, old GPUs, several, and one that the program was not built for.
#include <cuda_runtime_api.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "tests/support/test.h"

typedef struct Card {
  const char *name;
  int major, minor;
} Card;

static const Card ada = {"NVIDIA GeForce RTX 4090", 8, 9}, turing = {"Tesla T4", 7, 5};

// CUDA's functions get no context.
static struct Machine {
  int driver;
  cudaError_t counting, finding_code;
  int ptx_version;
  int count;
  Card cards[4];
  size_t memory, taken;
} machine;

cudaError_t cudaDriverGetVersion(int *version) {
  *version = machine.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
  *count = machine.count;
  return machine.counting;
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  const Card *card = &machine.cards[device];
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", card->name);
  properties->major = card->major;
  properties->minor = card->minor;
  properties->multiProcessorCount = 128;
  properties->totalGlobalMem = machine.memory;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  assert_ptr_equal(kernel, cuda_any_kernel());
  attributes->ptxVersion = machine.ptx_version;
  return machine.finding_code;
}
cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "another failure";
}
const char *cudaGetErrorName(cudaError_t status) {
  (void)status;
  return "cudaErrorOfTheTest";
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all) {
  *all = machine.memory;
  *free_bytes = machine.memory - machine.taken;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **memory, size_t bytes) {
  if (machine.memory - machine.taken < bytes) return cudaErrorMemoryAllocation;
  machine.taken += bytes;
  *memory = &machine;
  return cudaSuccess;
}
const void *cuda_any_kernel(void) {
  return &machine;
}

static const char *probe(Gpu *gpu, Error *err) {
  err->text[0] = 0;
  const int status = gpu_probe(gpu, err);
  assert_int_equal(status, err->text[0] ? -1 : 0);
  return err->text;
}

static void set_machine(int count, Card first, Card second) {
  machine = (struct Machine){.driver = CUDART_VERSION, .ptx_version = 89, .count = count};
  machine.cards[0] = first;
  for (int i = 1; i < 4; i++) machine.cards[i] = second;
}

TEST(what_is_missing_is_said_in_one_sentence) {
  Gpu gpu;
  set_machine(1, ada, ada);
  machine.driver = 0;
  assert_string_equal(probe(&gpu, &err),
                      "no NVIDIA driver was found: install one (a container needs --gpus all)");
  machine.driver = 11080;
  machine.counting = cudaErrorInsufficientDriver;
  char words[128];
  snprintf(words, sizeof words,
           "the NVIDIA driver supports CUDA 11.8, but this program was built with CUDA %d.%d: "
           "update the driver",
           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  assert_string_equal(probe(&gpu, &err), words);
  machine.counting = cudaErrorNoDevice;
  assert_string_equal(probe(&gpu, &err),
                      "no NVIDIA GPU was found (no CUDA-capable device is detected)");
  machine.counting = cudaSuccess;
  machine.count = 0;
  assert_string_equal(probe(&gpu, &err), "no NVIDIA GPU was found (the driver lists none)");
  set_machine(1, turing, ada);
  assert_string_equal(probe(&gpu, &err),
                      "the GPU (Tesla T4) has compute capability 7.5, but bf16 needs 8.0 or later "
                      "(A100, RTX 30 and newer)");
}

// The library itself where it is installed, one that is not there, and one that is another.
TEST(cublaslt_is_loaded_or_named) {
  CublasLt lt;
  if (cublaslt_open(&lt, CUBLASLT_LIBRARY, &err) == 0)
    assert_int_equal(lt.GetVersion() / 10000, CUBLAS_VER_MAJOR);
  else
    print_message("# %s\n", err.text);
  expect_error(cublaslt_open(&lt, "libcublasLt-none.so", &err), &err,
               "is missing (libcublasLt-none.so: ");
  expect_error(cublaslt_open(&lt, "libm.so.6", &err), &err, "libm.so.6 has no function cublasLt");
}

TEST(a_gpu_without_kernels_is_refused) {
  Gpu gpu;
  set_machine(1, ada, ada);
  assert_string_equal(probe(&gpu, &err), "");
  assert_int_equal(gpu.compiled_for, 89);
  assert_true(gpu.rates.bf16 == 165.2e12 && gpu.rates.fp8 == 330.3e12);
  machine.finding_code = cudaErrorNoKernelImageForDevice;
  assert_string_equal(probe(&gpu, &err),
                      "this program has no kernels for the GPU (NVIDIA GeForce RTX 4090, compute "
                      "capability 8.9): run make all CUDA_ARCHS=89");
  machine.finding_code = cudaErrorDevicesUnavailable;
  assert_string_equal(probe(&gpu, &err),
                      "the GPU (NVIDIA GeForce RTX 4090) cannot be used: another failure");
}

TEST(of_several_the_first_is_taken_and_that_is_said) {
  Gpu gpu;
  set_machine(1, ada, turing);
  assert_string_equal(probe(&gpu, &err), "");
  assert_string_equal(gpu.choice, "");
  machine.count = 3;
  assert_string_equal(probe(&gpu, &err), "");
  assert_string_equal(gpu.name, ada.name);
  assert_string_equal(gpu.choice, "first of 3 GPUs (CUDA_VISIBLE_DEVICES chooses)");
  set_machine(2, turing, ada);
  assert_non_null(strstr(probe(&gpu, &err), "(A100, RTX 30 and newer); it is the first of 2 GPUs "
                                            "(CUDA_VISIBLE_DEVICES chooses)"));
}

// A card of 141 with 1 taken, which is to be one of 24: 23 can be had.
TEST(a_limit_of_memory_makes_a_card_smaller) {
  const size_t gb = 1000000000;
  Gpu gpu;
  size_t free_bytes, all;
  set_machine(1, ada, ada);
  machine.memory = 141 * gb;
  machine.taken = gb;
  assert_int_equal(setenv("CODA_MEMORY_LIMIT", "24GB", 1), 0);
  assert_string_equal(probe(&gpu, &err), "");
  assert_int_equal(gpu.memory_bytes, 24 * gb);
  assert_int_equal(gpu_memory(&free_bytes, &all, &err), 0);
  assert_true(all == 24 * gb && free_bytes == 23 * gb);
  assert_non_null(gpu_alloc(20 * gb));
  assert_null(gpu_alloc(3 * gb + 1));
  assert_non_null(gpu_alloc(3 * gb));
  assert_null(gpu_alloc(1));
  assert_int_equal(gpu_memory_taken(&gpu), 24 * gb);
  machine.taken = 30 * gb; // by another program
  assert_int_equal(gpu_memory(&free_bytes, &all, &err), 0);
  assert_true(free_bytes == 0);
  assert_int_equal(setenv("CODA_MEMORY_LIMIT", "200GB", 1), 0);
  assert_string_equal(probe(&gpu, &err), "");
  assert_int_equal(gpu.memory_bytes, 141 * gb);
  assert_int_equal(setenv("CODA_MEMORY_LIMIT", "lots", 1), 0);
  assert_string_equal(probe(&gpu, &err),
                      "CODA_MEMORY_LIMIT is 'lots', but it must be a size such as 24GB or 512MiB");
  assert_int_equal(unsetenv("CODA_MEMORY_LIMIT"), 0);
  assert_non_null(gpu_alloc(100 * gb));
}
