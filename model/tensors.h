// The tensors of a run: structs and functions that follow from the rows of model/tensors.def. The
// memory plan is the sum of that table; it is printed before anything is allocated.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// ---- Parameters

#define PARAMETER(enumerator, ...) PARAM_##enumerator,
typedef enum ParamKind {
#include "model/tensors.def"
  PARAM_KINDS
} ParamKind;
#undef PARAMETER

int params_count(const ModelConfig *model);
// Fills list[params_count(model)] with the fields that need no memory: rows, cols, vector,
// norm, and with muon the parts of layers' matrices.
void params_table(const ModelConfig *model, bool muon, ParamTensor *list);
// Of the largest parameter in fp32, as which loads and saves hold one at a time.
size_t params_largest_bytes(const ModelConfig *model);
// Number of parameters; with = false the embedding look-up is left out (a tied one counts as
// lm_head).
int64_t model_parameters(const ModelConfig *model, bool with_embedding);
// Model FLOPs of one training step: 6 x tokens x the parameters of all matrix multiplications + 6 L
// H d x attended for causal attention, of which the masked half is not counted. attended: the sum
// of the squares of the lengths of what attention sees apart: B T^2 of B windows of T tokens, or of
// documents (batch_attended).
double model_step_flops(const ModelConfig *model, double tokens, double attended);
// Indices into the list; layer: -1 outside the layers.
int param_index(const ModelConfig *model, ParamKind kind, int64_t layer);

// How a part's rows are stored (tensors.def).
typedef enum RowOrder { AS_IS, ROPE_PAIRS, GROUPED_PAIRS } RowOrder;

// A Hugging Face tensor: a part of a parameter, with rows in another order.
typedef struct HfTensor {
  char name[80];        // "model.layers.3.self_attn.q_proj.weight"
  int param;            // index of the parameter that it is a part of
  int rank;             // 1 for norms, 2 for matrices
  int64_t rows, cols;   // in the file; rows = 1 for norms
  MatrixPart part;      // the rows of the parameter that hold it ...
  RowOrder order;       // ... and the order of its own in these
  bool begins_as_zeros; // under zero_init
} HfTensor;

// All of the model in the order of a file: by name, layers by number. A tied lm_head is not among
// them. Fresh memory.
HfTensor *hf_tensor_list(const ModelConfig *model, int *count);
// Row of the parameter that holds row `row` of t.
int64_t packed_row(const ModelConfig *model, const HfTensor *t, int64_t row);

// Initial values of t, element range [first, first + count): 1 for norms, else normal with standard
// deviation init_deviation. Depends on (seed, name, element) alone.
void param_init(const ModelConfig *model, uint64_t seed, const HfTensor *t, int64_t first,
                int64_t count, float *values);
// initializer_range, or 0 of what begins as zeros.
double init_deviation(const ModelConfig *model, const HfTensor *t);

// ---- States of a parameter

#define STATE(kind, field, ...) STATE_##field,
typedef enum ParamState {
#include "model/tensors.def"
  PARAM_STATES
} ParamState;
#undef STATE

// The start of its name in a checkpoint, such as "exp_avg" (without the dot). NULL: no checkpoint
// has it of this parameter. Saved are the masters and the moments; the next functions are for them.
const char *state_saved_as(const ParamTensor *t, ParamState state);
typedef struct StateMemory {
  void *at; // NULL: none
  size_t bytes;
  bool on_host;
} StateMemory;
StateMemory state_memory(const Spec *spec, const ParamTensor *t, ParamState state);
// All of its values, as floats [rows, cols] on the host.
void state_read(Backend *be, float *to, const ParamTensor *t, ParamState state);
void state_write(Backend *be, const ParamTensor *t, ParamState state, const float *from);

// ---- Activations and their gradients

#define TYPE_OPERAND Operand
#define TYPE_VALUES act_t *
#define TYPE_STATISTIC stat_t *
#define TYPE_SUMS RowStat
#define TYPE_IDS int32_t *
#define TYPE_DRAWS Draw *
#define TYPE_SCORES RowScore *
#define TYPE_BRANCHES Branch *
#define LAYER(kind, field, ...) TYPE_##kind field;
typedef struct LayerActs {
#include "model/tensors.def"
} LayerActs;
#undef LAYER
#define STEP(kind, field, ...) TYPE_##kind field;
typedef struct Acts {
  LayerActs *layers; // [L + 1]; of the last one, the output layer's, only x, x_sumsq and dx exist
#include "model/tensors.def"
} Acts;
#undef STEP

// ---- FP8 scales, numbered: first the parameters in the order of their list, then layer by layer
// the rows of the table that have one, then dlogits.

int scaling_count(const ModelConfig *model);
// False where no product reads copies with that scale: only copies' scales are state.
bool scaling_used(const ModelConfig *model, int index);
// Tells a spec of all of them. The caller frees spec->scalings when the backend is created.
void scalings_declare(const ModelConfig *model, Spec *spec);

// "y of layer 3", "down weight of layer 0", "final norm"
ShortText scaling_name(const ModelConfig *model, int index);

// ---- Memory

enum { PLAN_MAX_ITEMS = 48 };

// One line of the memory plan.
typedef struct PlanItem {
  const char *name, *shape; // "z (gate, up)", "[M, 2 * F]"; of states the number format
  int64_t buffers;          // how many of that shape
  size_t bytes;             // all together
  bool host;                // in the host's memory
} PlanItem;

typedef struct MemoryPlan {
  int count;
  PlanItem items[PLAN_MAX_ITEMS];
  size_t params_bytes, grads_bytes, acts_bytes; // the three allocations
  size_t host_bytes;                            // a fourth, of what is offloaded
  size_t host_needed;     // if that is not 0: it, plus what loads and saves hold meanwhile
  size_t sampler_bytes;   // the generator's
  size_t workspace_bytes; // the backend's own, and rounding of allocations
  size_t total_bytes;     // but for host_bytes
} MemoryPlan;

// Bytes of everything a run allocates.
MemoryPlan memory_plan(const ModelConfig *model, const Spec *spec);
void memory_plan_print(const MemoryPlan *plan);
// 0 unless the host has not enough memory for what is offloaded.
int memory_check_host(const MemoryPlan *plan, const Spec *spec, Error *err);

// Whether the loss' chunks add up lm_head's gradient in memory of their own, finer than the
// gradient's (HeadWgradOp). It lies in the memory of gradients that are written later, so there is
// none in a micro-batch whose gradients add to an earlier one's.
static inline bool chunks_apart(const Spec *spec) {
  return spec->train && spec->loss_chunks > 1 && !spec->grads_fp32;
}

// Each lays one class of buffers out in a block, sets the pointers, and books them in the plan
// (NULL: nowhere). With block = NULL they only count. They return the bytes used. Gradients exist
// in a training run only.
typedef struct ParamBlocks {
  char *params, *grads, *host; // host: of what spec->offload names
} ParamBlocks;
typedef struct ParamBytes {
  size_t params, grads, host;
} ParamBytes;
ParamBytes params_layout(ParamTensor *tensors, const ModelConfig *model, const Spec *spec,
                         ParamBlocks blocks, MemoryPlan *plan);
// acts->layers: [num_hidden_layers + 1], the caller's.
size_t acts_layout(Acts *acts, const ModelConfig *model, const Spec *spec, char *block,
                   MemoryPlan *plan);
// Which moments of the host's memory borrow activations' for the update (kernels/services.h: Loan),
// for a model that was laid out: sets m_near and v_near, and fills list [2 params_count]. Returns
// how many there are.
int loans_layout(ParamTensor *tensors, const Acts *acts, const ModelConfig *model, const Spec *spec,
                 Loan *list);
// A generator with `context` positions on the backend of a run.
Spec sampler_spec(const Spec *run, int64_t context);
