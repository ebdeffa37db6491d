#include "kernels/cuda/cudnn.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// ---- The library

const char *library_functions(void *library, const LibraryFunction *list, size_t count,
                              void *functions) {
  for (size_t i = 0; i < count; i++) {
    void *address = dlsym(library, list[i].name);
    if (!address) return list[i].name;
    memcpy((char *)functions + list[i].offset, &address, sizeof address);
  }
  return NULL;
}

static const LibraryFunction functions[] = {
    {"cudnnGetVersion", offsetof(CudnnApi, get_version)},
    {"cudnnGetCudartVersion", offsetof(CudnnApi, get_cudart_version)},
    {"cudnnGetErrorString", offsetof(CudnnApi, error_string)},
    {"cudnnGetLastErrorString", offsetof(CudnnApi, last_error_string)},
    {"cudnnCreate", offsetof(CudnnApi, create)},
    {"cudnnDestroy", offsetof(CudnnApi, destroy)},
    {"cudnnSetStream", offsetof(CudnnApi, set_stream)},
    {"cudnnBackendCreateDescriptor", offsetof(CudnnApi, create_descriptor)},
    {"cudnnBackendDestroyDescriptor", offsetof(CudnnApi, destroy_descriptor)},
    {"cudnnBackendFinalize", offsetof(CudnnApi, finalize)},
    {"cudnnBackendSetAttribute", offsetof(CudnnApi, set_attribute)},
    {"cudnnBackendGetAttribute", offsetof(CudnnApi, get_attribute)},
    {"cudnnBackendExecute", offsetof(CudnnApi, execute)},
};

ShortText cudnn_version_text(size_t version) {
  return short_text("%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

// 9.10.0 and 9.10.1 have no working backward, and before 9.11 the mask value and the reduction's
// attributes differ (cudnn-frontend, scaled_dot_product_flash_attention.h).
int cudnn_version_supported(size_t version, Error *err) {
  if (version >= 91100 && version < 100000) return 0;
  return error_set(err,
                   "cuDNN %s is installed, and attention on the GPU needs 9.11 or later of major "
                   "version 9: install a newer one (apt install cudnn9-cuda-13, or pip install "
                   "nvidia-cudnn-cu13)",
                   cudnn_version_text(version).text);
}

// cuDNN loads its compiler (NVRTC, 110 MB) and unloads it again for every configuration that it
// examines, and each unloading leaks. So we keep the library open, and cuDNN finds it loaded. Where
// we do not find it, cuDNN may.
static void hold_compiler(const CudnnApi *api) {
  dlopen(short_text("libnvrtc.so.%zu", api->get_cudart_version() / 1000).text,
         RTLD_NOW | RTLD_LOCAL);
}

int cudnn_open(CudnnApi *api, Error *err) {
  memset(api, 0, sizeof *api);
  void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return error_set(err,
                     "cuDNN 9 is missing (%s): install it (apt install cudnn9-cuda-13), or put the "
                     "folder that holds libcudnn.so.9 into LD_LIBRARY_PATH",
                     dlerror());
  const char *absent =
      library_functions(library, functions, sizeof functions / sizeof *functions, api);
  if (absent)
    return error_set(err, "libcudnn.so.9 has no function %s: reinstall cuDNN 9.11 or later",
                     absent);
  api->version = api->get_version();
  if (cudnn_version_supported(api->version, err)) return -1;
  hold_compiler(api);
  return 0;
}

int cudnn_check(const CudnnApi *api, int status, const char *doing, Error *err) {
  if (status == 0) return 0;
  char detail[1024] = "";
  api->last_error_string(detail, sizeof detail);
  detail[sizeof detail - 1] = 0;
  return error_set(err, "cuDNN %s, %s: %s%s%s", cudnn_version_text(api->version).text, doing,
                   api->error_string(status), *detail ? ": " : "", detail);
}

// ---- Descriptors

void graph_begin(CudnnGraph *g, const CudnnApi *api) {
  memset(g, 0, sizeof *g);
  g->api = api;
  g->virtual_id = GRAPH_FIRST_VIRTUAL;
}

static bool failed(const CudnnGraph *g) {
  return g->error.text[0] != 0;
}

static CudnnDescriptor descriptor_new(CudnnGraph *g, int type) {
  CudnnDescriptor d = NULL;
  if (failed(g)) return NULL;
  if (cudnn_check(g->api, g->api->create_descriptor(type, &d), "creating a descriptor", &g->error))
    return NULL;
  assert(g->owned_count < GRAPH_MAX_DESCRIPTORS);
  return g->owned[g->owned_count++] = d;
}

typedef struct Attribute {
  int name, type; // ATTR_*, TYPE_*
  int64_t count;
  const void *values; // NULL: the attribute is not set
} Attribute;
#define LINK(name, descriptor)                                                                     \
  { name, TYPE_BACKEND_DESCRIPTOR, 1, (descriptor) ? &(descriptor) : NULL }
#define COUNTED(list) list, (int)(sizeof list / sizeof *list)

static void set(CudnnGraph *g, CudnnDescriptor d, const Attribute *a) {
  if (failed(g) || !a->values) return;
  cudnn_check(g->api, g->api->set_attribute(d, a->name, a->type, a->count, a->values),
              short_text("setting attribute %d", a->name).text, &g->error);
}

// Reads up to `most` values of a finished descriptor and returns how many there were.
static int64_t get(CudnnGraph *g, CudnnDescriptor d, int name, int type, int64_t most, void *values,
                   const char *doing) {
  int64_t got = 0;
  if (failed(g)) return 0;
  cudnn_check(g->api, g->api->get_attribute(d, name, type, most, &got, values), doing, &g->error);
  return failed(g) ? 0 : got;
}

// A finished descriptor with these attributes.
static CudnnDescriptor make(CudnnGraph *g, int type, const Attribute *list, int count,
                            const char *doing) {
  CudnnDescriptor d = descriptor_new(g, type);
  for (int i = 0; i < count; i++) set(g, d, &list[i]);
  if (!failed(g)) cudnn_check(g->api, g->api->finalize(d), doing, &g->error);
  return d;
}

// ---- Tensors

// is: an attribute that makes it a special one, or 0. offsets as in graph_tensor.
static CudnnDescriptor tensor(CudnnGraph *g, int64_t id, int type, const TensorShape *shape, int is,
                              CudnnDescriptor offsets) {
  static const int64_t alignment = 16;
  static const bool yes = true;
  const Attribute list[] = {
      {ATTR_TENSOR_DATA_TYPE, TYPE_DATA_TYPE, 1, &type},
      {ATTR_TENSOR_DIMENSIONS, TYPE_INT64, 4, shape->size},
      {ATTR_TENSOR_STRIDES, TYPE_INT64, 4, shape->stride},
      {ATTR_TENSOR_UNIQUE_ID, TYPE_INT64, 1, &id},
      {ATTR_TENSOR_BYTE_ALIGNMENT, TYPE_INT64, 1, &alignment},
      {is, TYPE_BOOLEAN, 1, is ? &yes : NULL},
      LINK(ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets),
  };
  return make(g, BACKEND_TENSOR_DESCRIPTOR, COUNTED(list), "finalizing a tensor");
}

CudnnDescriptor graph_tensor(CudnnGraph *g, int64_t id, int type, TensorShape shape,
                             CudnnDescriptor offsets) {
  assert(id < GRAPH_FIRST_VIRTUAL);
  if (id == GRAPH_VIRTUAL)
    return tensor(g, ++g->virtual_id, type, &shape, ATTR_TENSOR_IS_VIRTUAL, offsets);
  return tensor(g, id, type, &shape, 0, offsets);
}

CudnnDescriptor graph_scalar(CudnnGraph *g, int64_t id) {
  const TensorShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  return tensor(g, id, DATA_FLOAT, &one, ATTR_TENSOR_IS_BY_VALUE, NULL);
}

// ---- Operations

static const int fp32 = DATA_FLOAT;

// Adds an operation and returns its result.
static CudnnDescriptor operation(CudnnGraph *g, int type, const Attribute *list, int count,
                                 CudnnDescriptor result) {
  assert(g->op_count < GRAPH_MAX_OPS);
  const ShortText doing = short_text("finalizing operation %d of the graph", g->op_count + 1);
  g->ops[g->op_count++] = make(g, type, list, count, doing.text);
  return result;
}

CudnnDescriptor graph_matmul(CudnnGraph *g, ProductSizes sizes, CudnnDescriptor a,
                             CudnnDescriptor b, CudnnDescriptor c) {
  const Attribute product[] = {{ATTR_MATMUL_COMP_TYPE, TYPE_DATA_TYPE, 1, &fp32}};
  CudnnDescriptor parameters =
      make(g, BACKEND_MATMUL_DESCRIPTOR, COUNTED(product), "finalizing a matrix product");
  const Attribute list[] = {LINK(ATTR_OPERATION_MATMUL_ADESC, a),
                            LINK(ATTR_OPERATION_MATMUL_BDESC, b),
                            LINK(ATTR_OPERATION_MATMUL_CDESC, c),
                            LINK(ATTR_OPERATION_MATMUL_DESC, parameters),
                            LINK(ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.m),
                            LINK(ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.n),
                            LINK(ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.k)};
  return operation(g, BACKEND_OPERATION_MATMUL_DESCRIPTOR, COUNTED(list), c);
}

// b and t are NULL where the mode takes none, axis is -1.
static CudnnDescriptor pointwise(CudnnGraph *g, int mode, int64_t axis, CudnnDescriptor x,
                                 CudnnDescriptor b, CudnnDescriptor t, CudnnDescriptor y) {
  static const float one = 1;
  const bool is_logical =
      mode == POINTWISE_CMP_GE || mode == POINTWISE_CMP_LT || mode == POINTWISE_LOGICAL_AND;
  const int precision = is_logical ? DATA_BOOLEAN : DATA_FLOAT;
  const Attribute function[] = {
      {ATTR_POINTWISE_MODE, TYPE_POINTWISE_MODE, 1, &mode},
      {ATTR_POINTWISE_MATH_PREC, TYPE_DATA_TYPE, 1, &precision},
      {ATTR_POINTWISE_AXIS, TYPE_INT64, 1, axis < 0 ? NULL : &axis},
  };
  CudnnDescriptor parameters =
      make(g, BACKEND_POINTWISE_DESCRIPTOR, COUNTED(function), "finalizing a pointwise function");
  const Attribute list[] = {
      LINK(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parameters),
      LINK(ATTR_OPERATION_POINTWISE_XDESC, x),
      LINK(ATTR_OPERATION_POINTWISE_BDESC, b),
      LINK(ATTR_OPERATION_POINTWISE_TDESC, t),
      LINK(ATTR_OPERATION_POINTWISE_YDESC, y),
      {ATTR_OPERATION_POINTWISE_ALPHA1, TYPE_FLOAT, 1, &one},
      {ATTR_OPERATION_POINTWISE_ALPHA2, TYPE_FLOAT, 1, &one},
  };
  return operation(g, BACKEND_OPERATION_POINTWISE_DESCRIPTOR, COUNTED(list), y);
}

CudnnDescriptor graph_pointwise(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor b,
                                CudnnDescriptor y) {
  return pointwise(g, mode, -1, x, b, NULL, y);
}

CudnnDescriptor graph_index(CudnnGraph *g, int64_t axis, CudnnDescriptor x, CudnnDescriptor y) {
  return pointwise(g, POINTWISE_GEN_INDEX, axis, x, NULL, NULL, y);
}

CudnnDescriptor graph_select(CudnnGraph *g, CudnnDescriptor x, CudnnDescriptor b,
                             CudnnDescriptor condition, CudnnDescriptor y) {
  return pointwise(g, POINTWISE_BINARY_SELECT, -1, x, b, condition, y);
}

CudnnDescriptor graph_reduce(CudnnGraph *g, int op_kind, CudnnDescriptor x, CudnnDescriptor y) {
  static const bool deterministic = false;
  const Attribute reduction[] = {
      {ATTR_REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, 1, &fp32},
      {ATTR_REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR_TYPE, 1, &op_kind},
      {ATTR_REDUCTION_IS_DETERMINISTIC, TYPE_BOOLEAN, 1, &deterministic},
  };
  CudnnDescriptor parameters =
      make(g, BACKEND_REDUCTION_DESCRIPTOR, COUNTED(reduction), "finalizing a reduction");
  const Attribute list[] = {LINK(ATTR_OPERATION_REDUCTION_DESC, parameters),
                            LINK(ATTR_OPERATION_REDUCTION_XDESC, x),
                            LINK(ATTR_OPERATION_REDUCTION_YDESC, y)};
  return operation(g, BACKEND_OPERATION_REDUCTION_DESCRIPTOR, COUNTED(list), y);
}

CudnnDescriptor graph_reshape(CudnnGraph *g, CudnnDescriptor x, CudnnDescriptor y) {
  const Attribute list[] = {LINK(ATTR_OPERATION_RESHAPE_XDESC, x),
                            LINK(ATTR_OPERATION_RESHAPE_YDESC, y)};
  return operation(g, BACKEND_OPERATION_RESHAPE_DESCRIPTOR, COUNTED(list), y);
}

static int report(const CudnnGraph *g, Error *err) {
  if (!failed(g)) return 0;
  *err = g->error;
  return -1;
}

int graph_finish(CudnnGraph *g, CudnnHandle handle, Error *err) {
  const Attribute list[] = {
      {ATTR_OPERATIONGRAPH_OPS, TYPE_BACKEND_DESCRIPTOR, g->op_count, g->ops},
      {ATTR_OPERATIONGRAPH_HANDLE, TYPE_HANDLE, 1, handle ? &handle : NULL},
  };
  g->graph =
      make(g, BACKEND_OPERATIONGRAPH_DESCRIPTOR, COUNTED(list), "finalizing the operation graph");
  return report(g, err);
}

void descriptors_destroy(const CudnnApi *api, const CudnnDescriptor *list, int count) {
  while (count-- > 0)
    if (list[count]) api->destroy_descriptor(list[count]);
}

void graph_destroy(CudnnGraph *g) {
  descriptors_destroy(g->api, g->owned, g->owned_count);
  g->owned_count = 0;
}

int graph_configs(const CudnnGraph *g, CudnnDescriptor device, CudnnDescriptor *list, int max,
                  int *count, Error *err) {
  const CudnnApi *api = g->api;
  const int mode = HEUR_MODE_A;
  CudnnGraph h; // owns the heuristic, and keeps the first failure
  graph_begin(&h, api);
  memset(list, 0, (size_t)max * sizeof *list);
  const Attribute attributes[] = {LINK(ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph),
                                  {ATTR_ENGINEHEUR_MODE, TYPE_HEUR_MODE, 1, &mode},
                                  LINK(ATTR_ENGINEHEUR_DEVICEPROP, device)};
  CudnnDescriptor heuristic = make(&h, BACKEND_ENGINEHEUR_DESCRIPTOR, COUNTED(attributes),
                                   "finalizing the engine heuristic");
  for (int i = 0; i < max && !failed(&h); i++)
    cudnn_check(api, api->create_descriptor(BACKEND_ENGINECFG_DESCRIPTOR, &list[i]),
                "creating an engine configuration", &h.error);
  const int64_t got = get(&h, heuristic, ATTR_ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, max,
                          list, "asking for engine configurations");
  graph_destroy(&h);
  *count = got < max ? (int)got : max;
  descriptors_destroy(api, list + *count, max - *count);
  return report(&h, err);
}

// ---- Plans

int plan_create(const CudnnApi *api, CudnnDescriptor config, CudnnDescriptor *plan,
                size_t *workspace, Error *err) {
  CudnnGraph g; // keeps the first failure
  int64_t bytes = 0;
  graph_begin(&g, api);
  const Attribute list[] = {LINK(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)};
  *plan = make(&g, BACKEND_EXECUTION_PLAN_DESCRIPTOR, COUNTED(list), "compiling a plan");
  get(&g, *plan, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &bytes,
      "reading a plan's workspace");
  *workspace = (size_t)bytes;
  if (report(&g, err) == 0) return 0; // the plan, all that g owns, is the caller's
  graph_destroy(&g);
  *plan = NULL;
  return -1;
}

int plan_execute(const CudnnApi *api, CudnnHandle handle, CudnnDescriptor plan,
                 const void *const *tensors, int ids, const void *workspace, Error *err) {
  CudnnGraph g; // owns the pack, and keeps the first failure
  int64_t id[GRAPH_FIRST_VIRTUAL];
  const void *address[GRAPH_FIRST_VIRTUAL];
  int count = 0;
  for (int i = 0; i < ids; i++) {
    if (!tensors[i]) continue;
    id[count] = i;
    address[count++] = tensors[i];
  }
  graph_begin(&g, api);
  const Attribute list[] = {
      {ATTR_VARIANT_PACK_UNIQUE_IDS, TYPE_INT64, count, id},
      {ATTR_VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR, count, address},
      {ATTR_VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, 1, &workspace},
  };
  CudnnDescriptor pack =
      make(&g, BACKEND_VARIANT_PACK_DESCRIPTOR, COUNTED(list), "making a variant pack");
  if (!failed(&g))
    cudnn_check(api, api->execute(handle, plan, pack), "launching attention", &g.error);
  graph_destroy(&g);
  return report(&g, err);
}
