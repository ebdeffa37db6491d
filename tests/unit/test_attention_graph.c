// The attention graphs against the installed cuDNN, without a GPU: cuDNN's support check takes a
// device's properties from text.
#include <dlfcn.h>
#include "kernels/cuda/attention.h"
#include "tests/support/test.h"

#if defined(__has_include)
#if __has_include(<cudnn_graph.h>) && __has_include(<cuda_runtime_api.h>)
#include <cudnn_graph.h>
#define HAVE_CUDNN_HEADER
#endif
#endif

TEST(the_constants_are_those_of_the_installed_header) {
#ifdef HAVE_CUDNN_HEADER
#define COMPARE(name, value)                                                                       \
  if ((int)CUDNN_##name != (value)) fail_msg(#name " is %d, not %d", (int)CUDNN_##name, value);
  CUDNN_CONSTANTS(COMPARE)
  printf("# compared with the header of cuDNN %d.%d.%d\n", CUDNN_MAJOR, CUDNN_MINOR,
         CUDNN_PATCHLEVEL);
#else
  printf("# skipped: cudnn_graph.h is not on the include path\n");
  skip();
#endif
}

TEST(versions_that_cannot_work_are_refused) {
  static const struct {
    size_t version;
    bool works;
    const char *text;
  } cases[] = {{90500, false, "cuDNN 9.5.0 "},
               {91000, false, "cuDNN 9.10.0 "},
               {91001, false, "cuDNN 9.10.1 "},
               {91002, false, "cuDNN 9.10.2 "},
               {91100, true, ""},
               {91400, true, ""},
               {91900, true, ""},
               {92600, true, ""},
               {100000, false, "cuDNN 10.0.0 "}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(cudnn_version_supported(cases[i].version, &err), cases[i].works ? 0 : -1);
    assert_non_null(strstr(err.text, cases[i].text));
  }
}

TEST(impossible_heads_are_refused_with_the_reason) {
  for (int64_t d = 60; d <= 264; d += 204) {
    expect_error(
        attention_shape_check(&(AttentionShape){.B = 1, .T = 8, .H = 4, .KV = 4, .d = d}, &err),
        &err, d == 60 ? "head_dim 60" : "head_dim 264");
  }
}

// ---- With the library

// cuDNN drops every engine in silence where it finds no driver library. Any of that name will do,
// and one that is loaded already is found by its name.
static const char *const driver_libraries[] = {
    "libcuda.so.1",
    "/usr/local/cuda/lib64/stubs/libcuda.so",
    "/usr/lib/x86_64-linux-gnu/stubs/libcuda.so",
};

// Skips the test where the support check cannot run, and says why.
static void library_open(CudnnApi *api) {
  Error err = {"neither a driver's libcuda.so.1 nor the CUDA toolkit's stub of it is here"};
  void *driver = NULL;
  for (size_t i = 0; i < sizeof driver_libraries / sizeof *driver_libraries && !driver; i++)
    driver = dlopen(driver_libraries[i], RTLD_NOW | RTLD_GLOBAL);
  if (driver && cudnn_open(api, &err) == 0) return;
  printf("# skipped: %s\n", err.text);
  skip();
}

typedef struct Device {
  const char *name;
  int compute, processors, shared_optin, threads_per_processor, max_blocks, l2_MiB;
} Device;

static const Device h200 = {"NVIDIA H200", 900, 132, 232448, 2048, 32, 60};
static const Device a100 = {"NVIDIA A100", 800, 108, 166912, 2048, 32, 40};
static const Device b200 = {"NVIDIA B200", 1000, 148, 232448, 2048, 32, 126};
static const Device rtx5090 = {"NVIDIA GeForce RTX 5090", 1200, 170, 101376, 1536, 24, 96};
static const Device rtx4090 = {"NVIDIA GeForce RTX 4090", 890, 128, 101376, 1536, 24, 72};

static CudnnDescriptor device_open(const CudnnApi *api, const Device *d) {
  char json[2048];
  CudnnDescriptor device = NULL;
  snprintf(json, sizeof json,
           "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
           "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
           "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
           "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
           "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
           "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
           "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":%d,"
           "\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,"
           "\"totalGlobalMem\":25000000000}",
           d->processors, d->shared_optin, d->max_blocks, d->threads_per_processor,
           d->l2_MiB * 1048576, d->name, d->compute);
  if (api->create_descriptor(BACKEND_DEVICEPROP_DESCRIPTOR, &device) ||
      api->set_attribute(device, ATTR_DEVICEPROP_JSON_REPRESENTATION, TYPE_CHAR,
                         (int64_t)strlen(json) + 1, json) ||
      api->finalize(device))
    fail_msg("cuDNN does not read a device's properties");
  return device;
}

enum { MAX_CONFIGS = 8 };

// Number of configurations, each of its own; the graph is freed.
static int count_configs(CudnnGraph *g, CudnnDescriptor device) {
  CudnnDescriptor list[MAX_CONFIGS];
  Error err;
  int count = 0;
  must(graph_configs(g, device, list, MAX_CONFIGS, &count, &err), &err);
  for (int i = 0; i < count; i++)
    for (int k = 0; k < i; k++) assert_ptr_not_equal(list[i], list[k]);
  descriptors_destroy(g->api, list, count);
  graph_destroy(g);
  return count;
}

static int offered(const CudnnApi *api, CudnnDescriptor device, const AttentionShape *s,
                   AttentionGraph graph) {
  CudnnGraph g;
  Error err;
  must(attention_graph(&g, api, NULL, s, graph, &err), &err);
  return count_configs(&g, device);
}

static const AttentionShape shapes[] = {
    {8, 4096, 32, 8, 64, 0, 0},   {2, 8192, 64, 8, 128, 0, 0},  {32, 1024, 12, 12, 64, 0, 0},
    {128, 256, 6, 6, 48, 0, 0},   {16, 2048, 16, 16, 64, 0, 0}, {1, 1, 4, 4, 64, 0, 0},
    {3, 77, 3, 1, 80, 0, 0},      {2, 333, 8, 1, 128, 0, 0},    {2, 128, 8, 2, 48, 0, 0},
    {1, 16384, 64, 8, 128, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const AttentionShape of_documents[] = {
    {64, 4096, 32, 8, 64, 32768, 0},  {96, 1024, 12, 12, 64, 32768, 0}, {7, 333, 8, 1, 128, 666, 0},
    {16, 2048, 64, 8, 128, 16384, 0}, {200, 256, 6, 6, 48, 32768, 0},   {5, 77, 3, 1, 80, 231, 0},
    {9, 128, 4, 4, 64, 9, 0},
};
enum { OF_DOCUMENTS = sizeof of_documents / sizeof *of_documents };

// All three graphs of windows, without a bias and with one.
static void expect_engines(const Device *device_description, size_t shape_count) {
  CudnnApi api;
  library_open(&api);
  if (device_description->compute >= 1000 && api.version < 91900) return; // nobody looked
  printf("# cuDNN %s, %s: configurations offered for the three graphs\n",
         cudnn_version_text(api.version).text, device_description->name);
  CudnnDescriptor device = device_open(&api, device_description);
  for (size_t i = 0; i < 2 * shape_count; i++) {
    AttentionShape s = shapes[i / 2];
    int counts[3];
    s.mask = i % 2 ? MASK_BIAS : MASK_NONE;
    for (int graph = 0; graph < 3; graph++)
      if ((counts[graph] = offered(&api, device, &s, (AttentionGraph)graph)) == 0)
        fail_msg("graph %d, shape %zu, mask %d: cuDNN offers no engine", graph, i / 2, s.mask);
    printf("# B%lld T%lld H%lld KV%lld d%lld%s: %d, %d, %d\n", (long long)s.B, (long long)s.T,
           (long long)s.H, (long long)s.KV, (long long)s.d, i % 2 ? " bias" : "", counts[0],
           counts[1], counts[2]);
  }
  api.destroy_descriptor(device);
}

TEST(every_shape_has_engines_on_hopper) {
  expect_engines(&h200, SHAPES);
}
TEST(other_gpus_have_engines) {
  expect_engines(&a100, 5);
  expect_engines(&rtx4090, 5);
  expect_engines(&b200, 5);
  expect_engines(&rtx5090, 5);
}

// What gpu_biases_documents relies on. A newer cuDNN may offer more.
TEST(documents_have_engines_where_no_bias_is_used) {
  CudnnApi api;
  library_open(&api);
  CudnnDescriptor hopper = device_open(&api, &h200), blackwell = device_open(&api, &b200),
                  other = device_open(&api, &rtx5090);
  for (size_t i = 0; i < 2 * OF_DOCUMENTS; i++) {
    AttentionShape s = of_documents[i / 2];
    s.mask = i % 2 ? MASK_LENGTHS : MASK_NONE;
    for (int graph = 0; graph < 3; graph++) {
      assert_true(offered(&api, hopper, &s, (AttentionGraph)graph) > 0);
      if (s.mask == MASK_LENGTHS && graph != ATTENTION_DETERMINISTIC && api.version >= 91900)
        assert_true(offered(&api, blackwell, &s, (AttentionGraph)graph) > 0);
    }
    printf("# documents, shape %zu: %d deterministic ways on a B200, %d ways on an RTX 5090\n",
           i / 2, offered(&api, blackwell, &s, ATTENTION_DETERMINISTIC),
           offered(&api, other, &s, ATTENTION_BACKWARD));
  }
  api.destroy_descriptor(hopper);
  api.destroy_descriptor(blackwell);
  api.destroy_descriptor(other);
}

// ---- The table of documents

static void expect_aligned(const void *array) {
  assert_int_equal((uintptr_t)array % 16, 0); // the graphs' ATTR_TENSOR_BYTE_ALIGNMENT
}

// Every document once, in order, in at most B places of each call.
static void check_table(int64_t B, int64_t calls, int64_t count) {
  const AttentionShape s = {.B = B, .T = 128, .H = 3, .KV = 1, .d = 8, .rows = 4096};
  const size_t bytes = attention_table_bytes(B, calls);
  int32_t *lengths = held(xmalloc(((size_t)count + 1) * sizeof *lengths));
  void *table = held(aligned_alloc(256, (bytes + 255) / 256 * 256));
  assert_non_null(table);
  for (int64_t i = 0; i < count; i++) lengths[i] = (int32_t)(1 + i % 5);
  attention_table_fill(&s, lengths, count, calls, table);
  int64_t seen = 0, row = 0;
  for (int64_t call = 0; call < calls; call++) {
    const AttentionDocuments at = attention_table_at(table, B, call);
    expect_aligned(at.lengths), expect_aligned(at.qkv_offsets);
    expect_aligned(at.o_offsets), expect_aligned(at.lse_offsets);
    assert_true((const char *)(at.lse_offsets + B + 1) <= (const char *)table + bytes);
    for (int64_t i = 0; i <= B; i++) {
      assert_int_equal(at.qkv_offsets[i], row * 40);
      assert_int_equal(at.o_offsets[i], row * 24);
      assert_int_equal(at.lse_offsets[i], row * 3);
      if (i == B || at.lengths[i] == 0) continue;
      assert_int_equal(at.lengths[i], lengths[seen++]);
      row += at.lengths[i];
    }
  }
  assert_int_equal(seen, count);
}

TEST(a_table_of_documents_is_aligned_and_whole) {
  for (int64_t B = 1; B <= 9; B++)
    for (int64_t calls = 1; calls <= 5; calls++)
      for (int64_t count = 0; count <= B * calls; count++) check_table(B, calls, count);
}

// That a count of zero is possible, so that the checks above can fail.
TEST(a_graph_outside_the_pattern_is_offered_no_engine) {
  CudnnApi api;
  library_open(&api);
  CudnnDescriptor device = device_open(&api, &h200);
  CudnnGraph g;
  const TensorShape x = {{1, 4, 128, 64}, {32768, 8192, 64, 1}};
  const TensorShape p = {{1, 4, 128, 128}, {65536, 16384, 128, 1}};
  graph_begin(&g, &api);
  CudnnDescriptor made_by_nothing = graph_tensor(&g, GRAPH_VIRTUAL, DATA_BFLOAT16, p, NULL);
  graph_matmul(&g, (ProductSizes){0}, made_by_nothing, graph_tensor(&g, 1, DATA_BFLOAT16, x, NULL),
               graph_tensor(&g, 2, DATA_BFLOAT16, x, NULL));
  must(graph_finish(&g, NULL, &err), &err);
  assert_int_equal(count_configs(&g, device), 0);
  api.destroy_descriptor(device);
}

TEST(a_failure_of_cudnn_is_reported_in_a_sentence) {
  CudnnApi api;
  library_open(&api);
  CudnnGraph g;
  graph_begin(&g, &api);
  assert_int_equal(graph_finish(&g, NULL, &err), -1); // no operation
  graph_destroy(&g);
  printf("# %s\n", err.text);
  assert_non_null(strstr(err.text, "cuDNN 9."));
  assert_non_null(strstr(err.text, "finalizing the operation graph: CUDNN_STATUS_"));
}
