#include "kernels/cuda/cudnn_graph.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

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

static void set(CudnnGraph *g, CudnnDescriptor d, int name, int type, int64_t count,
                const void *values) {
  char doing[64];
  if (failed(g)) return;
  snprintf(doing, sizeof doing, "setting attribute %d", name);
  cudnn_check(g->api, g->api->set_attribute(d, name, type, count, values), doing, &g->error);
}

static void set_descriptor(CudnnGraph *g, CudnnDescriptor d, int name, CudnnDescriptor value) {
  set(g, d, name, TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_int64(CudnnGraph *g, CudnnDescriptor d, int name, int64_t value) {
  set(g, d, name, TYPE_INT64, 1, &value);
}

static void set_bool(CudnnGraph *g, CudnnDescriptor d, int name, bool value) {
  set(g, d, name, TYPE_BOOLEAN, 1, &value);
}

// For the attributes whose value is one of cuDNN's enumerations.
static void set_enum(CudnnGraph *g, CudnnDescriptor d, int name, int type, int value) {
  set(g, d, name, type, 1, &value);
}

static void finalize(CudnnGraph *g, CudnnDescriptor d, const char *doing) {
  if (!failed(g)) cudnn_check(g->api, g->api->finalize(d), doing, &g->error);
}

// Returns the operation's result.
static CudnnDescriptor finalize_op(CudnnGraph *g, CudnnDescriptor op, CudnnDescriptor result) {
  char doing[64];
  snprintf(doing, sizeof doing, "finalizing operation %d of the graph", g->op_count + 1);
  finalize(g, op, doing);
  assert(g->op_count < GRAPH_MAX_OPS);
  g->ops[g->op_count++] = op;
  return result;
}

// ---- Tensors

// A tensor that still lacks its last attribute and its finalization.
static CudnnDescriptor tensor_begin(CudnnGraph *g, int64_t id, int type, const TensorShape *shape) {
  CudnnDescriptor t = descriptor_new(g, BACKEND_TENSOR_DESCRIPTOR);
  set_enum(g, t, ATTR_TENSOR_DATA_TYPE, TYPE_DATA_TYPE, type);
  set(g, t, ATTR_TENSOR_DIMENSIONS, TYPE_INT64, 4, shape->size);
  set(g, t, ATTR_TENSOR_STRIDES, TYPE_INT64, 4, shape->stride);
  set_int64(g, t, ATTR_TENSOR_UNIQUE_ID, id);
  set_int64(g, t, ATTR_TENSOR_BYTE_ALIGNMENT, 16);
  return t;
}

CudnnDescriptor graph_tensor(CudnnGraph *g, int64_t id, int type, TensorShape shape) {
  assert(id < GRAPH_FIRST_VIRTUAL);
  CudnnDescriptor t = tensor_begin(g, id, type, &shape);
  finalize(g, t, "finalizing a tensor");
  return t;
}

CudnnDescriptor graph_virtual(CudnnGraph *g, int type, TensorShape shape) {
  CudnnDescriptor t = tensor_begin(g, ++g->virtual_id, type, &shape);
  set_bool(g, t, ATTR_TENSOR_IS_VIRTUAL, true);
  finalize(g, t, "finalizing a virtual tensor");
  return t;
}

CudnnDescriptor graph_scalar(CudnnGraph *g, int64_t id) {
  const TensorShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  CudnnDescriptor t = tensor_begin(g, id, DATA_FLOAT, &one);
  set_bool(g, t, ATTR_TENSOR_IS_BY_VALUE, true);
  finalize(g, t, "finalizing a scalar");
  return t;
}

// ---- Operations

CudnnDescriptor graph_matmul(CudnnGraph *g, CudnnDescriptor a, CudnnDescriptor b,
                             CudnnDescriptor c) {
  CudnnDescriptor parameters = descriptor_new(g, BACKEND_MATMUL_DESCRIPTOR);
  set_enum(g, parameters, ATTR_MATMUL_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT);
  finalize(g, parameters, "finalizing a matrix product");
  CudnnDescriptor op = descriptor_new(g, BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_descriptor(g, op, ATTR_OPERATION_MATMUL_ADESC, a);
  set_descriptor(g, op, ATTR_OPERATION_MATMUL_BDESC, b);
  set_descriptor(g, op, ATTR_OPERATION_MATMUL_CDESC, c);
  set_descriptor(g, op, ATTR_OPERATION_MATMUL_DESC, parameters);
  return finalize_op(g, op, c);
}

// b and t are NULL where the mode takes none, axis is -1.
static CudnnDescriptor pointwise(CudnnGraph *g, int mode, int64_t axis, CudnnDescriptor x,
                                 CudnnDescriptor b, CudnnDescriptor t, CudnnDescriptor y) {
  const float one = 1;
  CudnnDescriptor parameters = descriptor_new(g, BACKEND_POINTWISE_DESCRIPTOR);
  set_enum(g, parameters, ATTR_POINTWISE_MODE, TYPE_POINTWISE_MODE, mode);
  set_enum(g, parameters, ATTR_POINTWISE_MATH_PREC, TYPE_DATA_TYPE,
           mode == POINTWISE_CMP_GE ? DATA_BOOLEAN : DATA_FLOAT);
  if (axis >= 0) set_int64(g, parameters, ATTR_POINTWISE_AXIS, axis);
  finalize(g, parameters, "finalizing a pointwise function");
  CudnnDescriptor op = descriptor_new(g, BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_descriptor(g, op, ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parameters);
  set_descriptor(g, op, ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) set_descriptor(g, op, ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t) set_descriptor(g, op, ATTR_OPERATION_POINTWISE_TDESC, t);
  set_descriptor(g, op, ATTR_OPERATION_POINTWISE_YDESC, y);
  set(g, op, ATTR_OPERATION_POINTWISE_ALPHA1, TYPE_FLOAT, 1, &one);
  set(g, op, ATTR_OPERATION_POINTWISE_ALPHA2, TYPE_FLOAT, 1, &one);
  return finalize_op(g, op, y);
}

CudnnDescriptor graph_unary(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor y) {
  return pointwise(g, mode, -1, x, NULL, NULL, y);
}

CudnnDescriptor graph_binary(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor b,
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
  CudnnDescriptor parameters = descriptor_new(g, BACKEND_REDUCTION_DESCRIPTOR);
  set_enum(g, parameters, ATTR_REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT);
  set_enum(g, parameters, ATTR_REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR_TYPE, op_kind);
  set_bool(g, parameters, ATTR_REDUCTION_IS_DETERMINISTIC, false);
  finalize(g, parameters, "finalizing a reduction");
  CudnnDescriptor op = descriptor_new(g, BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_descriptor(g, op, ATTR_OPERATION_REDUCTION_DESC, parameters);
  set_descriptor(g, op, ATTR_OPERATION_REDUCTION_XDESC, x);
  set_descriptor(g, op, ATTR_OPERATION_REDUCTION_YDESC, y);
  return finalize_op(g, op, y);
}

CudnnDescriptor graph_reshape(CudnnGraph *g, CudnnDescriptor x, CudnnDescriptor y) {
  CudnnDescriptor op = descriptor_new(g, BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_descriptor(g, op, ATTR_OPERATION_RESHAPE_XDESC, x);
  set_descriptor(g, op, ATTR_OPERATION_RESHAPE_YDESC, y);
  return finalize_op(g, op, y);
}

int graph_finish(CudnnGraph *g, CudnnHandle handle, Error *err) {
  CudnnDescriptor graph = descriptor_new(g, BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(g, graph, ATTR_OPERATIONGRAPH_OPS, TYPE_BACKEND_DESCRIPTOR, g->op_count, g->ops);
  if (handle) set(g, graph, ATTR_OPERATIONGRAPH_HANDLE, TYPE_HANDLE, 1, &handle);
  finalize(g, graph, "finalizing the operation graph");
  if (failed(g)) {
    *err = g->error;
    return -1;
  }
  g->graph = graph;
  return 0;
}

void graph_destroy(CudnnGraph *g) {
  while (g->owned_count > 0) g->api->destroy_descriptor(g->owned[--g->owned_count]);
  g->op_count = 0;
  g->graph = NULL;
}

// ---- Configurations

void configs_destroy(const CudnnApi *api, CudnnConfig *list, int count) {
  for (int i = 0; i < count; i++) {
    if (list[i].descriptor) api->destroy_descriptor(list[i].descriptor);
    list[i].descriptor = NULL;
  }
}

// Reads one value of a finished descriptor; false: cuDNN does not tell.
static bool tells(const CudnnApi *api, CudnnDescriptor d, int name, int type, void *value) {
  int64_t got = 0;
  return api->get_attribute(d, name, type, 1, &got, value) == 0;
}

// Reads the engine's id and its choice of kernel, -1 where cuDNN does not tell: they only name a
// configuration to people.
static void config_describe(const CudnnApi *api, CudnnConfig *config) {
  enum { KNOBS = 8 };
  CudnnDescriptor engine = NULL, knobs[KNOBS] = {NULL};
  int64_t got = 0;
  config->engine = config->kernel = -1;
  if (api->create_descriptor(BACKEND_ENGINE_DESCRIPTOR, &engine) == 0) {
    if (!tells(api, config->descriptor, ATTR_ENGINECFG_ENGINE, TYPE_BACKEND_DESCRIPTOR, &engine) ||
        !tells(api, engine, ATTR_ENGINE_GLOBAL_INDEX, TYPE_INT64, &config->engine))
      config->engine = -1;
    api->destroy_descriptor(engine);
  }
  int made = 0;
  while (made < KNOBS && api->create_descriptor(BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[made]) == 0)
    made++;
  if (api->get_attribute(config->descriptor, ATTR_ENGINECFG_KNOB_CHOICES, TYPE_BACKEND_DESCRIPTOR,
                         made, &got, knobs))
    got = 0;
  for (int64_t i = 0; i < made; i++) {
    int type = -1;
    int64_t value = -1;
    if (i < got && tells(api, knobs[i], ATTR_KNOB_CHOICE_KNOB_TYPE, TYPE_KNOB_TYPE, &type) &&
        type == KNOB_TYPE_KERNEL_CFG &&
        tells(api, knobs[i], ATTR_KNOB_CHOICE_KNOB_VALUE, TYPE_INT64, &value))
      config->kernel = value;
    api->destroy_descriptor(knobs[i]);
  }
}

int graph_configs(const CudnnGraph *g, CudnnDescriptor device, CudnnConfig *list, int max,
                  int *count, Error *err) {
  const CudnnApi *api = g->api;
  assert(g->graph);
  CudnnGraph h; // owns the heuristic, and keeps the first failure
  graph_begin(&h, api);
  *count = 0;
  memset(list, 0, (size_t)max * sizeof *list);
  CudnnDescriptor heuristic = descriptor_new(&h, BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_descriptor(&h, heuristic, ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph);
  set_enum(&h, heuristic, ATTR_ENGINEHEUR_MODE, TYPE_HEUR_MODE, HEUR_MODE_A);
  if (device) set_descriptor(&h, heuristic, ATTR_ENGINEHEUR_DEVICEPROP, device);
  finalize(&h, heuristic, "finalizing the engine heuristic");
  for (int i = 0; i < max && !failed(&h); i++)
    cudnn_check(api, api->create_descriptor(BACKEND_ENGINECFG_DESCRIPTOR, &list[i].descriptor),
                "creating an engine configuration", &h.error);
  if (!failed(&h)) {
    CudnnDescriptor *results = xcalloc((size_t)max, sizeof *results);
    int64_t got = 0;
    for (int i = 0; i < max; i++) results[i] = list[i].descriptor;
    cudnn_check(api,
                api->get_attribute(heuristic, ATTR_ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, max,
                                   &got, results),
                "asking for engine configurations", &h.error);
    free(results);
    if (!failed(&h)) *count = got < max ? (int)got : max;
  }
  graph_destroy(&h);
  configs_destroy(api, list + *count, max - *count);
  if (failed(&h)) {
    *err = h.error;
    return -1;
  }
  for (int i = 0; i < *count; i++) config_describe(api, &list[i]);
  return 0;
}

// ---- Plans

int plan_create(const CudnnApi *api, CudnnDescriptor config, CudnnDescriptor *plan,
                size_t *workspace, Error *err) {
  CudnnGraph g; // keeps the first failure
  int64_t bytes = 0, got = 0;
  graph_begin(&g, api);
  CudnnDescriptor d = descriptor_new(&g, BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set_descriptor(&g, d, ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  finalize(&g, d, "compiling a plan");
  if (!failed(&g))
    cudnn_check(
        api, api->get_attribute(d, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &got, &bytes),
        "reading a plan's workspace", &g.error);
  if (failed(&g)) {
    *err = g.error;
    graph_destroy(&g);
    return -1;
  }
  *plan = d; // the only descriptor that g owned
  *workspace = (size_t)bytes;
  return 0;
}
