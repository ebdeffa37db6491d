// Builds cuDNN operation graphs, and plans from them, through cuDNN's C graph API.
//
// A failing call leaves its sentence in graph->error and makes every later call do nothing, so that
// the builders read like the table of operations that they are; graph_finish reports the first
// failure.
#pragma once
#include <stdbool.h>
#include "kernels/cuda/cudnn_api.h"

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
// virtual tensor is an edge without memory; a scalar is one float in host memory.
enum { GRAPH_FIRST_VIRTUAL = 100 };
CudnnDescriptor graph_tensor(CudnnGraph *g, int64_t id, int type, TensorShape shape);
CudnnDescriptor graph_virtual(CudnnGraph *g, int type, TensorShape shape);
CudnnDescriptor graph_scalar(CudnnGraph *g, int64_t id);

// Operations, all computing in fp32. They return their result, the last argument.
CudnnDescriptor graph_matmul(CudnnGraph *g, CudnnDescriptor a, CudnnDescriptor b,
                             CudnnDescriptor c);
CudnnDescriptor graph_unary(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor y);
CudnnDescriptor graph_binary(CudnnGraph *g, int mode, CudnnDescriptor x, CudnnDescriptor b,
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

// One way to run a graph, as cuDNN's heuristic offers it.
typedef struct CudnnConfig {
  CudnnDescriptor descriptor;
  int64_t engine, kernel; // cuDNN's ids of the engine and of its kernel; they differ by version
} CudnnConfig;

// The configurations that passed cuDNN's support check, best guess first; *count can be 0. device:
// a descriptor of a GPU's properties, or NULL for the one of graph_finish's handle.
int graph_configs(const CudnnGraph *g, CudnnDescriptor device, CudnnConfig *list, int max,
                  int *count, Error *err);
void configs_destroy(const CudnnApi *api, CudnnConfig *list, int count);

// Compiles a configuration: 0.4 s of CPU the first time on a machine, 0.03 s where the CUDA driver
// has it in its cache (~/.nv/ComputeCache). workspace: bytes that every execution needs. *plan is
// NULL after a failure.
int plan_create(const CudnnApi *api, CudnnDescriptor config, CudnnDescriptor *plan,
                size_t *workspace, Error *err);

// Launches a plan on the stream of the handle: the ids of the graph's tensors with the addresses of
// each. Making the variant pack that cuDNN reads them from takes 1 us of the 6 to 12 that a call
// takes on the host, too little to keep packs for.
int plan_execute(const CudnnApi *api, CudnnHandle handle, CudnnDescriptor plan, int count,
                 const int64_t *ids, const void *const *pointers, const void *workspace,
                 Error *err);
