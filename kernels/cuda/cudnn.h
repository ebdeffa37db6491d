// cuDNN 9, loaded at run time, and its operation graphs: the program builds without cuDNN, runs
// without it, and says what to install when it is missing. Needs no CUDA or cuDNN header.
//
// The constants below are cuDNN's binary interface (cudnn_graph.h of 9.19), under cuDNN's names
// without the leading CUDNN_. They do not change within major version 9;
// tests/unit/test_attention_graph.c compares all of them with the installed header.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "base/memory.h"

// ---- Functions of a library that is loaded at run time

typedef struct LibraryFunction {
  const char *name;
  size_t offset; // of the pointer to it in `functions`
} LibraryFunction;

// Writes the addresses of all in `list` into the struct `functions`. Returns NULL, or the name of
// the first function that the library (dlopen's) does not have; its pointer and those after it are
// not changed.
const char *library_functions(void *library, const LibraryFunction *list, size_t count,
                              void *functions);

// ---- The part of cuDNN that we call

// clang-format off
#define CUDNN_CONSTANTS(X) \
  X(DATA_FLOAT, 0) X(DATA_INT32, 4) X(DATA_BFLOAT16, 9) X(DATA_INT64, 10) X(DATA_BOOLEAN, 11) \
  X(TYPE_HANDLE, 0) X(TYPE_DATA_TYPE, 1) X(TYPE_BOOLEAN, 2) X(TYPE_INT64, 3) X(TYPE_FLOAT, 4) \
  X(TYPE_VOID_PTR, 6) X(TYPE_HEUR_MODE, 8) X(TYPE_POINTWISE_MODE, 14) \
  X(TYPE_BACKEND_DESCRIPTOR, 15) X(TYPE_REDUCTION_OPERATOR_TYPE, 18) X(TYPE_CHAR, 24) \
  X(BACKEND_POINTWISE_DESCRIPTOR, 0) \
  X(BACKEND_ENGINECFG_DESCRIPTOR, 3) X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4) \
  X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5) X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13) \
  X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15) X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16) \
  X(BACKEND_TENSOR_DESCRIPTOR, 17) \
  X(BACKEND_MATMUL_DESCRIPTOR, 18) X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19) \
  X(BACKEND_REDUCTION_DESCRIPTOR, 21) X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22) \
  X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31) X(BACKEND_DEVICEPROP_DESCRIPTOR, 38) \
  X(POINTWISE_ADD, 0) X(POINTWISE_MUL, 1) X(POINTWISE_DIV, 6) X(POINTWISE_SUB, 9) \
  X(POINTWISE_EXP, 13) X(POINTWISE_LOG, 15) X(POINTWISE_IDENTITY, 21) X(POINTWISE_CMP_GE, 303) \
  X(POINTWISE_CMP_LT, 304) X(POINTWISE_LOGICAL_AND, 400) X(POINTWISE_GEN_INDEX, 501) \
  X(POINTWISE_BINARY_SELECT, 601) \
  X(REDUCE_TENSOR_ADD, 0) X(REDUCE_TENSOR_MAX, 3) X(HEUR_MODE_A, 3) \
  X(ATTR_POINTWISE_MODE, 0) X(ATTR_POINTWISE_MATH_PREC, 1) X(ATTR_POINTWISE_AXIS, 9) \
  X(ATTR_ENGINEHEUR_MODE, 200) X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201) \
  X(ATTR_ENGINEHEUR_RESULTS, 202) X(ATTR_ENGINEHEUR_DEVICEPROP, 204) \
  X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401) X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402) \
  X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750) X(ATTR_OPERATION_POINTWISE_XDESC, 751) \
  X(ATTR_OPERATION_POINTWISE_BDESC, 752) X(ATTR_OPERATION_POINTWISE_YDESC, 753) \
  X(ATTR_OPERATION_POINTWISE_ALPHA1, 754) X(ATTR_OPERATION_POINTWISE_ALPHA2, 755) \
  X(ATTR_OPERATION_POINTWISE_TDESC, 758) \
  X(ATTR_OPERATIONGRAPH_HANDLE, 800) X(ATTR_OPERATIONGRAPH_OPS, 801) \
  X(ATTR_TENSOR_BYTE_ALIGNMENT, 900) X(ATTR_TENSOR_DATA_TYPE, 901) \
  X(ATTR_TENSOR_DIMENSIONS, 902) X(ATTR_TENSOR_STRIDES, 903) X(ATTR_TENSOR_UNIQUE_ID, 906) \
  X(ATTR_TENSOR_IS_VIRTUAL, 907) X(ATTR_TENSOR_IS_BY_VALUE, 908) \
  X(ATTR_TENSOR_RAGGED_OFFSET_DESC, 913) \
  X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000) X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001) \
  X(ATTR_VARIANT_PACK_WORKSPACE, 1003) \
  X(ATTR_MATMUL_COMP_TYPE, 1500) X(ATTR_OPERATION_MATMUL_ADESC, 1520) \
  X(ATTR_OPERATION_MATMUL_BDESC, 1521) X(ATTR_OPERATION_MATMUL_CDESC, 1522) \
  X(ATTR_OPERATION_MATMUL_DESC, 1523) X(ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, 1525) \
  X(ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, 1526) \
  X(ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, 1527) \
  X(ATTR_REDUCTION_OPERATOR, 1600) X(ATTR_REDUCTION_COMP_TYPE, 1601) \
  X(ATTR_REDUCTION_IS_DETERMINISTIC, 1602) X(ATTR_OPERATION_REDUCTION_XDESC, 1610) \
  X(ATTR_OPERATION_REDUCTION_YDESC, 1611) X(ATTR_OPERATION_REDUCTION_DESC, 1612) \
  X(ATTR_OPERATION_RESHAPE_XDESC, 2200) X(ATTR_OPERATION_RESHAPE_YDESC, 2201) \
  X(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)
// clang-format on
#define CUDNN_ENUMERATOR(name, value) name = value,
enum { CUDNN_CONSTANTS(CUDNN_ENUMERATOR) };
#undef CUDNN_ENUMERATOR

typedef struct cudnnContext *CudnnHandle;
typedef void *CudnnDescriptor;
struct CUstream_st; // cudaStream_t points to it

// cuDNN's functions. Statuses are 0 for success; the int arguments are its enumerations.
typedef struct CudnnApi {
  size_t version; // 91900 is 9.19.0
  size_t (*get_version)(void);
  size_t (*get_cudart_version)(void);
  const char *(*error_string)(int status);
  void (*last_error_string)(char *message, size_t bytes);
  int (*create)(CudnnHandle *handle);
  int (*destroy)(CudnnHandle handle);
  int (*set_stream)(CudnnHandle handle, struct CUstream_st *stream);
  int (*create_descriptor)(int type, CudnnDescriptor *descriptor);
  int (*destroy_descriptor)(CudnnDescriptor descriptor);
  int (*finalize)(CudnnDescriptor descriptor);
  int (*set_attribute)(CudnnDescriptor descriptor, int name, int type, int64_t count,
                       const void *values);
  int (*get_attribute)(CudnnDescriptor descriptor, int name, int type, int64_t requested,
                       int64_t *count, void *values);
  int (*execute)(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor variant_pack);
} CudnnApi;

// Loads libcudnn.so.9 as the dynamic linker finds it, and refuses versions that cannot work. The
// library stays loaded until the program ends: unloading it leaks what it holds.
int cudnn_open(CudnnApi *api, Error *err);

// 0 if this cuDNN can run our attention; else -1, and err says why not.
int cudnn_version_supported(size_t version, Error *err);

ShortText cudnn_version_text(size_t version); // "9.19.0"

// 0 if status is success; else fails with `doing`, the status and cuDNN's own last words.
int cudnn_check(const CudnnApi *api, int status, const char *doing, Error *err);

// ---- Operation graphs, and plans from them, through cuDNN's C graph API. A failing call writes
// its error to graph->error and makes every later call do nothing. So the builders read like a
// table of operations, and graph_finish reports the first failure.

// Sizes and element strides over (batch, head, row, column): cuDNN's attention is rank 4
// throughout.
typedef struct TensorShape {
  int64_t size[4], stride[4];
} TensorShape;

enum { GRAPH_MAX_OPS = 32, GRAPH_MAX_DESCRIPTORS = 160 };

typedef struct CudnnGraph {
  const CudnnApi *api;
  CudnnDescriptor owned[GRAPH_MAX_DESCRIPTORS]; // destroyed with the graph, last first
  int owned_count;
  CudnnDescriptor ops[GRAPH_MAX_OPS];
  int op_count;
  CudnnDescriptor graph; // NULL before graph_finish
  int64_t virtual_id;    // id of the latest virtual tensor
  Error error;
} CudnnGraph;

void graph_begin(CudnnGraph *g, const CudnnApi *api);

// Tensors. `type` is DATA_*. The id (below GRAPH_FIRST_VIRTUAL) names it in a variant pack; a
// virtual tensor is an edge without memory; a scalar is one float in host memory. offsets: NULL, or
// a tensor of size[0] + 1 int64, the elements at which its size[0] batches begin.
enum { GRAPH_VIRTUAL = 0, GRAPH_FIRST_VIRTUAL = 100 };
CudnnDescriptor graph_tensor(CudnnGraph *g, int64_t id, int type, TensorShape shape,
                             CudnnDescriptor offsets);
CudnnDescriptor graph_scalar(CudnnGraph *g, int64_t id);

// Operations, all computing in fp32. They return their result, the last argument.

// c = a b. sizes: where batches have fewer rows, columns or terms than the shapes say, tensors of a
// number for each batch; else NULL.
typedef struct ProductSizes {
  CudnnDescriptor m, n, k;
} ProductSizes;
CudnnDescriptor graph_matmul(CudnnGraph *g, ProductSizes sizes, CudnnDescriptor a,
                             CudnnDescriptor b, CudnnDescriptor c);
// b: NULL where the mode takes one operand
CudnnDescriptor graph_pointwise(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor b,
                                CudnnDescriptor y);
// y = the index along `axis` of each element of x
CudnnDescriptor graph_index(CudnnGraph *g, int64_t axis, CudnnDescriptor x, CudnnDescriptor y);
// y = condition ? x : b
CudnnDescriptor graph_select(CudnnGraph *g, CudnnDescriptor x, CudnnDescriptor b,
                             CudnnDescriptor condition, CudnnDescriptor y);
// Over the dimensions where y is smaller than x; op is REDUCE_TENSOR_*.
CudnnDescriptor graph_reduce(CudnnGraph *g, int op, CudnnDescriptor x, CudnnDescriptor y);
CudnnDescriptor graph_reshape(CudnnGraph *g, CudnnDescriptor x, CudnnDescriptor y);

// handle may be NULL: then only graph_configs with device properties works on it.
int graph_finish(CudnnGraph *g, CudnnHandle handle, Error *err);
void graph_destroy(CudnnGraph *g); // safe after a failure

// The configurations, ways to run a graph, that passed cuDNN's support check, best guess first;
// *count can be 0. device: a descriptor of a GPU's properties, or NULL for the one of
// graph_finish's handle. The caller destroys them.
int graph_configs(const CudnnGraph *g, CudnnDescriptor device, CudnnDescriptor *list, int max,
                  int *count, Error *err);
void descriptors_destroy(const CudnnApi *api, const CudnnDescriptor *list, int count);

// Compiles a configuration: 0.4 s of CPU the first time on a machine, 0.03 s where the CUDA driver
// has it in its cache (~/.nv/ComputeCache). workspace: bytes that every execution needs. *plan is
// NULL after a failure.
int plan_create(const CudnnApi *api, CudnnDescriptor config, CudnnDescriptor *plan,
                size_t *workspace, Error *err);

// Launches a plan on the stream of the handle. tensors: addresses by id, NULL where the graph has
// no tensor of that id. Making the variant pack that cuDNN reads them from takes 1 us of the 6 to
// 12 that a call takes on the host, too little to keep packs for.
int plan_execute(const CudnnApi *api, CudnnHandle handle, CudnnDescriptor plan,
                 const void *const *tensors, int ids, const void *workspace, Error *err);
