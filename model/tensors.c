#define _GNU_SOURCE // strverscmp
#include "model/tensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "kernels/math.h"

// ---- Parameters

enum { BEFORE_LAYERS = PARAM_ATTN_NORM, PER_LAYER = PARAM_FINAL_NORM - PARAM_ATTN_NORM };
enum { NO_NORM = -1 };

int params_count(const ModelConfig *c) {
  return BEFORE_LAYERS + PER_LAYER * (int)c->num_hidden_layers + (c->tie_word_embeddings ? 1 : 2);
}

int param_index(const ModelConfig *c, ParamKind kind, int64_t layer) {
  const int after = BEFORE_LAYERS + PER_LAYER * (int)c->num_hidden_layers;
  if (kind == PARAM_FINAL_NORM) return after;
  if (kind == PARAM_LM_HEAD && !c->tie_word_embeddings) return after + 1;
  if (kind == PARAM_EMBED || kind == PARAM_LM_HEAD) return 0;
  return BEFORE_LAYERS + PER_LAYER * (int)layer + (int)(kind - PARAM_ATTN_NORM);
}

static ParamKind param_kind(const ModelConfig *c, int index) {
  const int after = BEFORE_LAYERS + PER_LAYER * (int)c->num_hidden_layers;
  if (index < BEFORE_LAYERS) return c->tie_word_embeddings ? PARAM_LM_HEAD : PARAM_EMBED;
  if (index < after) return (ParamKind)(PARAM_ATTN_NORM + (index - BEFORE_LAYERS) % PER_LAYER);
  return index == after ? PARAM_FINAL_NORM : PARAM_LM_HEAD;
}

// -1: outside of the layers.
static int64_t param_layer(const ModelConfig *c, int index) {
  const bool inside = index >= BEFORE_LAYERS && index < param_index(c, PARAM_FINAL_NORM, -1);
  return inside ? (index - BEFORE_LAYERS) / PER_LAYER : -1;
}

typedef struct ParameterPart {
  const char *name; // NULL: there is none
  int64_t rows;
  RowOrder order;
  bool begins_as_zeros;
} ParameterPart;

typedef struct ParameterRow {
  const char *name;
  bool vector;
  int64_t rows, cols;
  int norm; // a ParamKind, or NO_NORM
  ParameterPart parts[MOST_PARTS];
} ParameterRow;

static ParameterRow parameter_row(const ModelConfig *c, ParamKind kind) {
  enum { MATRIX, VECTOR };
  const int64_t D = c->hidden_size, F = c->intermediate_size, V = c->vocab_size,
                Hd = c->num_attention_heads * c->head_dim,
                KVd = c->num_key_value_heads * c->head_dim, R = Hd + 2 * KVd;
#define PART(name_, rows_, ...)                                                                    \
  { .name = name_, .rows = rows_, .order = __VA_ARGS__ }
#define PARAMETER(enumerator, name, kind, rows, cols, norm, ...)                                   \
  [PARAM_##enumerator] = {name, kind == VECTOR, rows, cols, norm, {__VA_ARGS__}},
  const ParameterRow rows[] = {
#include "model/tensors.def"
  };
#undef PARAMETER
#undef PART
  return rows[kind];
}

// Elements of the parameters; of the embedding that is looked up, and of vectors, where asked for.
static int64_t elements_of(const ModelConfig *c, bool looked_up, bool vectors) {
  int64_t sum = 0;
  for (ParamKind kind = 0; kind < PARAM_KINDS; kind++) {
    const ParameterRow r = parameter_row(c, kind);
    const bool in_layer = kind >= PARAM_ATTN_NORM && kind < PARAM_FINAL_NORM;
    if (kind == PARAM_EMBED && (!looked_up || c->tie_word_embeddings)) continue;
    if (!r.vector || vectors) sum += (in_layer ? c->num_hidden_layers : 1) * r.rows * r.cols;
  }
  return sum;
}

int64_t model_parameters(const ModelConfig *c, bool with_embedding) {
  return elements_of(c, with_embedding, true);
}

double model_step_flops(const ModelConfig *c, double tokens, double attended) {
  const double attention = (double)(c->num_attention_heads * c->head_dim);
  return 6 * tokens * (double)elements_of(c, false, false) +
         6 * (double)c->num_hidden_layers * attended * attention;
}

// Parts in GROUPED_PAIRS take turns, others lie one behind the other.
static MatrixPart rows_of_part(const ParameterRow *r, int part) {
  MatrixPart rows = {0, 1, r->parts[part].rows};
  if (r->parts[part].order == GROUPED_PAIRS) return (MatrixPart){part, 2, rows.rows};
  for (int i = 0; i < part; i++) rows.first += r->parts[i].rows;
  return rows;
}

void params_table(const ModelConfig *c, bool muon, ParamTensor *list) {
  for (int i = 0; i < params_count(c); i++) {
    const ParameterRow row = parameter_row(c, param_kind(c, i));
    ParamTensor *t = &list[i];
    *t = (ParamTensor){.rows = row.rows, .cols = row.cols, .norm = -1, .vector = row.vector};
    if (row.norm != NO_NORM) t->norm = param_index(c, (ParamKind)row.norm, param_layer(c, i));
    if (!muon || t->vector || param_layer(c, i) < 0) continue;
    for (; t->part_count < MOST_PARTS && row.parts[t->part_count].name; t->part_count++)
      t->parts[t->part_count] = rows_of_part(&row, t->part_count);
  }
}

static HfTensor hf_tensor(const ModelConfig *c, int param, const ParameterRow *r, int part) {
  const ParameterPart *p = &r->parts[part];
  HfTensor t = {.param = param,
                .rank = r->vector ? 1 : 2,
                .rows = p->rows,
                .cols = r->cols,
                .part = rows_of_part(r, part),
                .order = p->order,
                .begins_as_zeros = p->begins_as_zeros};
  const int64_t layer = param_layer(c, param);
  if (layer >= 0)
    snprintf(t.name, sizeof t.name, "model.layers.%lld.%s.weight", (long long)layer, p->name);
  else
    snprintf(t.name, sizeof t.name, "%s.weight", p->name);
  return t;
}

static int by_name_in_file(const void *a, const void *b) {
  return strverscmp(((const HfTensor *)a)->name, ((const HfTensor *)b)->name);
}

HfTensor *hf_tensor_list(const ModelConfig *c, int *count) {
  HfTensor *list = xcalloc((size_t)(MOST_PARTS * params_count(c)), sizeof *list);
  *count = 0;
  for (int i = 0; i < params_count(c); i++) { // files have a tied matrix as the embedding
    const ParameterRow row = parameter_row(c, i < BEFORE_LAYERS ? PARAM_EMBED : param_kind(c, i));
    for (int part = 0; part < MOST_PARTS && row.parts[part].name; part++)
      list[(*count)++] = hf_tensor(c, i, &row, part);
  }
  qsort(list, (size_t)*count, sizeof *list, by_name_in_file);
  return list;
}

int64_t packed_row(const ModelConfig *c, const HfTensor *t, int64_t row) {
  const int64_t d = c->head_dim, half = d / 2, j = row % d;
  if (t->order == GROUPED_PAIRS) row = pair_of_feature(row, t->rows);
  if (t->order == ROPE_PAIRS) row += (j < half ? 2 * j : 2 * (j - half) + 1) - j;
  return t->part.first + t->part.step * row;
}

double init_deviation(const ModelConfig *c, const HfTensor *t) {
  return c->zero_init && t->begins_as_zeros ? 0 : c->initializer_range;
}

size_t params_largest_bytes(const ModelConfig *c) {
  int64_t largest = 0;
  for (ParamKind kind = 0; kind < PARAM_KINDS; kind++) {
    const ParameterRow r = parameter_row(c, kind);
    largest = max_i64(largest, r.rows * r.cols);
  }
  return (size_t)largest * sizeof(float);
}

void param_init(const ModelConfig *c, uint64_t seed, const HfTensor *t, int64_t first,
                int64_t count, float *values) {
  const uint64_t key = rng_key(seed, t->name);
  const double deviation = init_deviation(c, t);
  for (int64_t i = 0; i < count; i++)
    values[i] = t->rank == 1 ? 1 : (float)(deviation * rng_normal(key, (uint64_t)(first + i)));
}

// ---- The rows of activations and gradients

typedef enum TensorKind {
  OPERAND,
  VALUES,
  STATISTIC,
  SUMS,
  IDS,
  DRAWS,
  SCORES,
  BRANCHES
} TensorKind;
typedef enum Where { LAYERS, TO_END } Where;
typedef enum Lifetime { KEPT, RECOMPUTED_LAYER, RECOMPUTED_MLP, GRADIENT, CACHE } Lifetime;
typedef enum ScaleRule { UNSCALED, DELAYED, OF_ROWS, OF_LOSS } ScaleRule;
// The buffer of copies: their own, or one that operands use in turns.
typedef enum Pool { OWN_BUFFER, STREAM, INNER, RESIDUAL_GRADIENT, POOLS } Pool;

typedef struct TensorRow {
  const char *name, *shape;
  TensorKind kind;
  size_t offset; // of the field
  int64_t rows, cols;
  Where where;
  Lifetime lifetime;
  bool narrow;
  Pool rows_in, cols_in;
  Lifetime cols_live;
  ScaleRule scale;
  bool alone;
  int64_t first_layer; // that has copies
  size_t in_place;     // the offset of that field, plus one; 0: none
  bool absent;         // of STEP: it does not exist in this run
} TensorRow;

#define LAYER(kind, field, ...) TENSOR_##field,
enum LayerTensor {
#include "model/tensors.def"
  LAYER_TENSORS
};
#undef LAYER

#define STEP(kind, field, ...) STEP_##field,
enum StepTensor {
#include "model/tensors.def"
  STEP_TENSORS
};
#undef STEP

typedef struct Table {
  TensorRow layer[LAYER_TENSORS], step[STEP_TENSORS];
} Table;

#define ROW(of, kind_, field, name_, rows_, cols_, ...)                                            \
  {                                                                                                \
    .name = name_, .shape = "[" #rows_ ", " #cols_ "]", .kind = kind_,                             \
    .offset = offsetof(of, field), .rows = rows_, .cols = cols_, __VA_ARGS__                       \
  }

static Table make_table(const Spec *s) {
  const int64_t B = s->batch, T = s->seq, M = batch_rows(s), D = s->D, F = s->F, H = s->H,
                Hd = query_width(s), R = packed_width(s), padded_V = padded_vocab(s),
                chunk = chunk_rows(s), context = s->context, parts = s->most_parts.sumsq,
                s_parts = s->most_parts.s;
  const bool train = s->train, fp8 = s->fp8, folds_softmax = s->folds_softmax, scores = s->scores,
             cache = s->cache;
  return (Table){
#define FIELD(field) 1 + offsetof(LayerActs, field)
#define LAYER(kind, field, name, rows, cols, where_, lifetime_, ...)                               \
  ROW(LayerActs, kind, field, name, rows, cols, .where = where_, .lifetime = lifetime_,            \
      __VA_ARGS__),
      .layer =
          {
#include "model/tensors.def"
          },
#undef LAYER
#undef FIELD
#define FIELD(field) 1 + offsetof(Acts, field)
#define STEP(kind, field, name, rows, cols, exists, ...)                                           \
  ROW(Acts, kind, field, name, rows, cols, .absent = !(exists), __VA_ARGS__),
      .step =
          {
#include "model/tensors.def"
          },
#undef STEP
#undef FIELD
  };
}

// ---- FP8 scales

typedef struct Scale {
  const char *name;
  int64_t layer; // -1: outside of the layers; the number of layers: the output's
  bool used, fixed;
  size_t offset; // of the operand in its layer, of dlogits in Acts
} Scale;

// The numbers of all scales are their places in this list. Fresh memory.
static Scale *scale_list(const ModelConfig *c, int *count) {
  const int64_t L = c->num_hidden_layers;
  const Table t = make_table(&(Spec){0});
  Scale *list = xcalloc((size_t)(params_count(c) + LAYER_TENSORS * (L + 1) + 1), sizeof *list);
  int n = 0;
  for (; n < params_count(c); n++) {
    const ParameterRow p = parameter_row(c, param_kind(c, n));
    list[n] = (Scale){.name = p.name,
                      .layer = param_layer(c, n),
                      .used = !p.vector && param_kind(c, n) != PARAM_EMBED}; // which is looked up
  }
  for (int64_t layer = 0; layer <= L; layer++)
    for (const TensorRow *r = t.layer; r < t.layer + LAYER_TENSORS; r++)
      if (r->scale && (layer < L || r->where == TO_END))
        list[n++] =
            (Scale){r->name, layer, layer >= r->first_layer, r->scale != DELAYED, r->offset};
  list[n++] = (Scale){t.step[STEP_dlogits].name, -1, true, true, offsetof(Acts, dlogits)};
  *count = n;
  return list;
}

static Scale scale_at(const ModelConfig *c, int index) {
  int count;
  Scale *list = scale_list(c, &count);
  const Scale scale = list[index];
  free(list);
  return scale;
}

int scaling_count(const ModelConfig *c) {
  int count;
  free(scale_list(c, &count));
  return count;
}

void scalings_declare(const ModelConfig *c, Spec *spec) {
  Scale *list = scale_list(c, &spec->scaling_count);
  ScalingKind *kinds = xcalloc((size_t)spec->scaling_count, sizeof *kinds);
  for (int i = 0; i < spec->scaling_count; i++)
    kinds[i] = (ScalingKind){FP8_E4M3, list[i].fixed ? 1 : 0};
  free(list);
  spec->scalings = kinds;
  spec->weight_scalings = params_count(c);
}

bool scaling_used(const ModelConfig *c, int index) {
  return scale_at(c, index).used;
}

ShortText scaling_name(const ModelConfig *c, int index) {
  const Scale s = scale_at(c, index);
  if (s.layer < 0 || s.layer == c->num_hidden_layers)
    return short_text("%s%s", s.layer < 0 ? "" : "final ", s.name);
  return short_text("%s of layer %lld", s.name, (long long)s.layer);
}

// ---- Laying out

// Buffers laid out in a block, each booked in the plan.
typedef struct Layout {
  Arena arena, host; // host: of what is offloaded
  MemoryPlan *plan;
  const ModelConfig *model;
  const Spec *spec;
  Table table;
  fp8_t *rows_in[POOLS], *cols_in[POOLS];
} Layout;

static Layout layout_of(const ModelConfig *c, const Spec *spec, char *block, MemoryPlan *plan) {
  return (Layout){.arena = {.block = block}, .plan = plan, .model = c, .spec = spec};
}

static void book(MemoryPlan *plan, bool host, const char *name, const char *shape, size_t bytes) {
  if (!plan) return;
  for (int i = 0; i < plan->count; i++) { // one line for all layers
    PlanItem *item = &plan->items[i];
    if (strcmp(item->name, name) != 0 || strcmp(item->shape, shape) != 0 || item->host != host)
      continue;
    item->bytes += bytes;
    item->buffers++;
    return;
  }
  assert(plan->count < PLAN_MAX_ITEMS);
  plan->items[plan->count++] = (PlanItem){name, shape, 1, bytes, host};
}

static void *take_in(Layout *l, bool host, const char *name, const char *shape, int64_t elements,
                     size_t element_bytes) {
  Arena *arena = host ? &l->host : &l->arena;
  const size_t before = arena->used;
  void *p = arena_take(arena, (size_t)elements * element_bytes);
  book(l->plan, host, name, shape, arena->used - before);
  return p;
}

static void *take(Layout *l, const char *name, const char *shape, int64_t elements,
                  size_t element_bytes) {
  return take_in(l, false, name, shape, elements, element_bytes);
}

static bool exists(const Layout *l, const TensorRow *r, int64_t layer) {
  if (r->lifetime == GRADIENT && !l->spec->train) return false;
  if (r->lifetime == CACHE && !l->spec->cache) return false;
  return layer < l->model->num_hidden_layers || r->where == TO_END;
}

// Whether a layer has a buffer of its own, or that of layer 0.
static bool owns(const Layout *l, Lifetime lifetime, int64_t layer) {
  const bool recomputed = lifetime == RECOMPUTED_LAYER ? l->spec->recompute == RECOMPUTE_LAYER
                                                       : lifetime == RECOMPUTED_MLP;
  if (layer == 0 || lifetime == CACHE) return true;
  if (lifetime == GRADIENT) return false;
  if (recomputed && layer < recomputed_layers(l->spec)) return false;
  return l->spec->train || layer == l->model->num_hidden_layers;
}

// first: the field of layer 0.
static void place_operand(Layout *l, const TensorRow *r, Operand *x, const Operand *first,
                          int64_t layer) {
  const bool fp8 = l->spec->fp8, own = owns(l, r->lifetime, layer);
  const size_t of_act = act_bytes(l->spec), of_copy = fp8_bytes(l->spec);
  x->fp8 = fp8 && layer >= r->first_layer;
  if (fp8 ? !r->alone : !r->in_place)
    x->data = own ? take(l, r->name, r->shape, r->rows * r->cols, of_act) : first->data;
  if (!x->fp8) return;
  x->stride = fp8_padded(r->rows);
  if (r->scale == OF_ROWS)
    x->row_scale =
        own ? take(l, "row scales", "[M]", r->rows, stat_bytes(l->spec)) : first->row_scale;
  x->by_row = l->rows_in[r->rows_in];
  if (r->rows_in == OWN_BUFFER)
    x->by_row = take(l, r->name, "FP8 by row", r->rows * r->cols, of_copy);
  if (!l->spec->train) return;
  x->by_col = l->cols_in[r->cols_in];
  if (r->cols_in == OWN_BUFFER)
    x->by_col = owns(l, r->cols_live, layer)
                    ? take(l, r->name, "FP8 by column", r->cols * x->stride, of_copy)
                    : first->by_col;
}

// A field of `of`, the struct of a layer or of the step; first: that of layer 0. A RowStat begins
// with the pointer to its data.
static void place(Layout *l, const TensorRow *r, void *of, const void *first_of, int64_t layer) {
  void *field = (char *)of + r->offset, *memory;
  const void *first = (const char *)first_of + r->offset;
  const int64_t stride = l->spec->max_tokens, cols = r->kind == SUMS ? stride : r->cols;
  const size_t of_values = r->narrow && l->spec->fp8 ? fp8_bytes(l->spec) : act_bytes(l->spec),
               width = r->kind == VALUES     ? of_values
                       : r->kind == IDS      ? sizeof(int32_t)
                       : r->kind == DRAWS    ? sizeof(Draw)
                       : r->kind == SCORES   ? sizeof(RowScore)
                       : r->kind == BRANCHES ? sizeof(Branch)
                                             : stat_bytes(l->spec);
  if (r->kind == OPERAND) {
    place_operand(l, r, field, first, layer);
    return;
  }
  memcpy(&memory, first, sizeof memory);
  if (owns(l, r->lifetime, layer)) memory = take(l, r->name, r->shape, r->rows * cols, width);
  memcpy(field, &memory, sizeof memory);
  if (r->kind == SUMS) ((RowStat *)field)->stride = stride;
}

// In bf16 some gradients overwrite the tensors that they are computed from.
static void place_inside(const Layout *l, const TensorRow *r, void *of) {
  if (r->in_place && !l->spec->fp8)
    ((Operand *)((char *)of + r->offset))->data = *(act_t **)((char *)of + r->in_place - 1);
}

// The buffer of a pool is as large as its largest operand.
static void take_pools(Layout *l) {
  for (int pool = OWN_BUFFER + 1; pool < POOLS && l->spec->fp8; pool++) {
    int64_t rows = 0, cols = 0;
    for (int i = 0; i < LAYER_TENSORS; i++) {
      const TensorRow *r = &l->table.layer[i];
      if (!r->scale || !exists(l, r, 0)) continue;
      const int64_t of_rows = r->rows * r->cols, of_cols = r->cols * fp8_padded(r->rows);
      if ((int)r->rows_in == pool && of_rows > rows) rows = of_rows;
      if ((int)r->cols_in == pool && of_cols > cols && l->spec->train) cols = of_cols;
    }
    const char *name = "FP8 copies, in turns";
    if (rows > 0) l->rows_in[pool] = take(l, name, "by row", rows, fp8_bytes(l->spec));
    if (cols > 0) l->cols_in[pool] = take(l, name, "by column", cols, fp8_bytes(l->spec));
  }
}

static void number_scales(Layout *l, Acts *acts) {
  int count;
  Scale *list = scale_list(l->model, &count);
  for (int i = params_count(l->model); i < count; i++) {
    char *of = i + 1 < count ? (char *)&acts->layers[list[i].layer] : (char *)acts;
    ((Operand *)(of + list[i].offset))->scaling = i;
  }
  free(list);
}

size_t acts_layout(Acts *acts, const ModelConfig *c, const Spec *spec, char *block,
                   MemoryPlan *plan) {
  const int64_t L = c->num_hidden_layers;
  Layout l = layout_of(c, spec, block, plan);
  l.table = make_table(spec);
  LayerActs *layers = acts->layers;
  memset(layers, 0, (size_t)(L + 1) * sizeof *layers);
  *acts = (Acts){.layers = layers};
  take_pools(&l);
  for (int64_t layer = 0; layer <= L; layer++) {
    for (int i = 0; i < LAYER_TENSORS; i++)
      if (exists(&l, &l.table.layer[i], layer))
        place(&l, &l.table.layer[i], &layers[layer], &layers[0], layer);
    for (int i = 0; i < LAYER_TENSORS; i++)
      if (exists(&l, &l.table.layer[i], layer)) place_inside(&l, &l.table.layer[i], &layers[layer]);
  }
  for (int i = 0; i < STEP_TENSORS; i++) {
    if (l.table.step[i].absent) continue;
    place(&l, &l.table.step[i], acts, acts, 0);
    place_inside(&l, &l.table.step[i], acts);
  }
  number_scales(&l, acts);
  acts->dlogits.row_stride = padded_vocab(spec);
  return l.arena.used;
}

Spec sampler_spec(const Spec *run, int64_t context) {
  enum { SAMPLE_ROWS = 64 }; // of a training run, whose prompts are short
  Spec s = *run;
  s.batch = 1;
  s.seq = run->train && run->max_tokens > SAMPLE_ROWS ? SAMPLE_ROWS : run->max_tokens;
  s.loss_chunks = s.seq;
  s.train = s.muon = s.scores = false;
  s.recompute = RECOMPUTE_NONE;
  s.usual_documents = 0;
  s.context = context;
  s.cache = true;
  return s;
}

// ---- States of a parameter

typedef enum StateKind {
  PLAIN_COPY,
  MOMENTS = OFFLOAD_MOMENTS, // from which value of Offload on it is on the host
  MASTERS = OFFLOAD_MASTERS,
  GRADIENTS = OFFLOAD_GRADIENTS,
  FOLDED_COPY,
  SCRATCH
} StateKind;
typedef enum Place { IN_PARAMS, IN_GRADS, BEHIND_GRADS } Place;

typedef struct StateRow {
  StateKind kind;
  size_t offset; // of the field
  const char *name;
  Place place;
  bool exists;
  const char *saved_as;
} StateRow;

// l: NULL in training, where nothing but the parameter decides about what is saved.
static StateRow state_row(const Layout *l, const ParamTensor *t, int index, ParamState state) {
  const bool train = !l || l->spec->train, apart = l && chunks_apart(l->spec),
             head = l && index == param_index(l->model, PARAM_LM_HEAD, -1), matrix = !t->vector,
             by_muon = t->part_count > 0, folded = t->norm >= 0,
             plain = !folded || index < BEFORE_LAYERS; // which is looked up
#define STATE(kind, field, name, place, exists, saved_as)                                          \
  {kind, offsetof(ParamTensor, field), name, place, exists, saved_as},
  const StateRow rows[] = {
#include "model/tensors.def"
  };
#undef STATE
  return rows[state];
}

static size_t state_width(const Spec *spec, const ParamTensor *t, StateKind kind) {
  return kind == MASTERS   ? master_bytes(spec, t)
         : kind == MOMENTS ? moment_bytes(spec)
                           : grad_bytes(spec);
}

const char *state_saved_as(const ParamTensor *t, ParamState state) {
  const StateRow r = state_row(NULL, t, 0, state);
  return r.exists ? r.saved_as : NULL;
}

StateMemory state_memory(const Spec *spec, const ParamTensor *t, ParamState state) {
  const StateRow r = state_row(NULL, t, 0, state);
  StateMemory m = {.bytes = (size_t)(t->rows * t->cols) * state_width(spec, t, r.kind),
                   .on_host = t->offloaded >= (Offload)r.kind};
  memcpy(&m.at, (const char *)t + r.offset, sizeof m.at);
  return m;
}

void state_read(Backend *be, float *to, const ParamTensor *t, ParamState state) {
  if (state == STATE_master)
    be->services.read_master(be, to, t, 0, t->rows * t->cols);
  else
    be->services.read_moments(be, to, state_memory(&be->spec, t, state).at, t->rows * t->cols);
}

void state_write(Backend *be, const ParamTensor *t, ParamState state, const float *from) {
  if (state == STATE_master)
    be->services.write_master(be, t, 0, from, t->rows * t->cols);
  else
    be->services.write_moments(be, state_memory(&be->spec, t, state).at, from, t->rows * t->cols);
}

// Which states of a parameter lie on the host. Those of vectors stay on the device: they are small,
// and each row of a folded matrix reads its norm weight again. So do the gradients of the embedding
// and of lm_head, which are added to in every chunk of rows.
static Offload offloaded_of(const Layout *l, const ParamTensor *t, int index) {
  const Spec *spec = l->spec;
  const int64_t layer = param_layer(l->model, index), layers = spec->offload_layers;
  if (t->vector || (layers > 0 && (layer < 0 || layer >= layers))) return OFFLOAD_NONE;
  return spec->offload == OFFLOAD_GRADIENTS && layer < 0 ? OFFLOAD_MASTERS : spec->offload;
}

// A matrix as products read it. index: in the list, which also numbers its scale.
static Operand take_weight(Layout *l, const StateRow *r, const ParamTensor *t, int index) {
  const Spec *spec = l->spec;
  const bool folded = r->kind == FOLDED_COPY, looked_up = !folded && index < BEFORE_LAYERS,
             fp8 = has_fp8_weights(spec) && !looked_up,
             shared = computes_with_masters(spec) && t->offloaded < OFFLOAD_MASTERS &&
                      master_bytes(spec, t) == act_bytes(spec);
  const char *shape = !shared                 ? "all matrices"
                      : has_fp8_weights(spec) ? "FP8 copies"
                                              : "folded matrices";
  const size_t each = fp8 ? fp8_bytes(spec) : act_bytes(spec);
  if (shared && !folded && !fp8) return operand_of((act_t *)t->master);
  if (!fp8) return operand_of(take(l, r->name, shape, t->rows * t->cols, each));
  Operand w = {.stride = fp8_padded(t->rows), .scaling = index, .fp8 = true};
  w.by_row =
      take(l, r->name, shape, w.stride * t->cols, each); // products take whole groups of rows
  if (spec->fp8) w.by_col = take(l, r->name, shape, t->cols * w.stride, each);
  return w;
}

static void *take_scratch(Layout *l, const StateRow *r, const ParamTensor *t) {
  const size_t there = l->arena.used, needed = (size_t)(t->rows * t->cols) * stat_bytes(l->spec);
  if (needed > there) take(l, r->name, "extra scratch", (int64_t)(needed - there), 1);
  return l->arena.block;
}

static void place_state(Layout *l, const StateRow *r, ParamTensor *t, int index) {
  char *field = (char *)t + r->offset;
  if (r->kind == PLAIN_COPY || r->kind == FOLDED_COPY) {
    const Operand copy = take_weight(l, r, t, index);
    memcpy(field, &copy, sizeof copy);
    return;
  }
  const size_t width = state_width(l->spec, t, r->kind);
  const char *format = width == 2 ? "bf16" : width == 4 ? "fp32" : "fp64";
  void *memory = r->kind == SCRATCH ? take_scratch(l, r, t)
                                    : take_in(l, t->offloaded >= (Offload)r->kind, r->name, format,
                                              t->rows * t->cols, width);
  memcpy(field, &memory, sizeof memory);
}

static void place_states(Layout *l, ParamTensor *tensors, Place in) {
  for (int i = 0; i < params_count(l->model); i++)
    for (ParamState state = 0; state < PARAM_STATES; state++) {
      const StateRow r = state_row(l, &tensors[i], i, state);
      if (r.exists && r.place == in) place_state(l, &r, &tensors[i], i);
    }
}

ParamBytes params_layout(ParamTensor *tensors, const ModelConfig *c, const Spec *spec,
                         ParamBlocks blocks, MemoryPlan *plan) {
  ParamBytes bytes;
  Layout l = layout_of(c, spec, blocks.params, plan);
  l.host.block = blocks.host;
  params_table(c, spec->muon, tensors);
  for (int i = 0; i < params_count(c); i++) tensors[i].offloaded = offloaded_of(&l, &tensors[i], i);
  place_states(&l, tensors, IN_PARAMS);
  bytes.params = l.arena.used;
  l.arena = (Arena){.block = blocks.grads};
  place_states(&l, tensors, IN_GRADS);
  place_states(&l, tensors, BEHIND_GRADS);
  bytes.grads = l.arena.used;
  bytes.host = l.host.used;
  return bytes;
}

// ---- Loans

// The layer of whose activations `at` is part: a layer's begin with x.
static int64_t layer_of(const Acts *acts, int64_t L, const char *at) {
  int64_t layer = L - 1;
  while ((const char *)acts->layers[layer].x.data > at) layer--;
  return layer;
}

// The last third of the layers lends. What is lent returns during a forward: in 22 us an H100 runs
// a token through 8B and writes 3.8 MB of activations, and 1.2 MB cross the bus. Layer 0 has the
// buffers that all layers share.
static int64_t first_lender(int64_t L) {
  return L > 1 ? max_i64(L - (L + 2) / 3, 1) : L;
}

int loans_layout(ParamTensor *tensors, const Acts *acts, const ModelConfig *c, const Spec *spec,
                 Loan *list) {
  const int64_t L = c->num_hidden_layers;
  Arena lent = {.block = (char *)acts->layers[first_lender(L)].x.data};
  const size_t all = (size_t)((char *)acts->layers[L].x.data - lent.block);
  int count = 0;
  for (int i = 0; i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const size_t bytes = (size_t)(t->rows * t->cols) * moment_bytes(spec);
    Arena more = lent;
    moment_t *const m = arena_take(&more, bytes), *const v = t->v ? arena_take(&more, bytes) : NULL;
    if (t->offloaded < OFFLOAD_MOMENTS || more.used > all) continue;
    lent = more;
    t->m_near = m;
    t->v_near = v;
    list[count++] = (Loan){t->m, m, bytes, layer_of(acts, L, (char *)m)};
    if (v) list[count++] = (Loan){t->v, v, bytes, layer_of(acts, L, (char *)v)};
  }
  return count;
}

// ---- The memory plan

// Bytes that an allocation uses beyond the bytes requested.
static size_t rounding(const Spec *spec, size_t bytes) {
  return spec->granule > 0 ? (spec->granule - bytes % spec->granule) % spec->granule : 0;
}

MemoryPlan memory_plan(const ModelConfig *c, const Spec *spec) {
  MemoryPlan plan = {0};
  ParamTensor *tensors = xcalloc((size_t)params_count(c), sizeof *tensors);
  Acts acts = {.layers = xcalloc((size_t)c->num_hidden_layers + 1, sizeof(LayerActs))};
  const ParamBytes params = params_layout(tensors, c, spec, (ParamBlocks){0}, &plan);
  plan.params_bytes = params.params;
  plan.grads_bytes = params.grads;
  plan.host_bytes = params.host;
  if (plan.host_bytes > 0) plan.host_needed = plan.host_bytes + params_largest_bytes(c);
  plan.acts_bytes = acts_layout(&acts, c, spec, NULL, &plan);
  if (spec->context > 0) {
    const Spec sampler = sampler_spec(spec, spec->context);
    plan.sampler_bytes = acts_layout(&acts, c, &sampler, NULL, NULL);
    book(&plan, false, "sampler", "[context, R] a layer", plan.sampler_bytes);
  }
  plan.workspace_bytes = spec->workspace_bytes + rounding(spec, plan.params_bytes) +
                         rounding(spec, plan.grads_bytes) + rounding(spec, plan.acts_bytes) +
                         rounding(spec, plan.sampler_bytes);
  if (spec->list_bytes) plan.workspace_bytes += spec->list_bytes(tensors, params_count(c));
  book(&plan, false, "backend workspace", "", plan.workspace_bytes);
  for (int i = 0; i < plan.count; i++)
    if (!plan.items[i].host) plan.total_bytes += plan.items[i].bytes;
  free(acts.layers);
  free(tensors);
  return plan;
}

static void print_items(const MemoryPlan *plan, bool host) {
  for (int i = 0; i < plan->count; i++) {
    const PlanItem *item = &plan->items[i];
    char buffers[24] = "";
    if (item->host != host) continue;
    if (item->shape[0] == '[' && item->buffers > 1)
      snprintf(buffers, sizeof buffers, "%lld x ", (long long)item->buffers);
    const int width = 24 - (int)strlen(buffers);
    printf("  %-26s %s%-*s %12s\n", item->name, buffers, width > 0 ? width : 0, item->shape,
           size_text(item->bytes).text);
  }
}

void memory_plan_print(const MemoryPlan *plan) {
  printf("memory plan\n");
  print_items(plan, false);
  printf("  %-51s %12s\n", "total", size_text(plan->total_bytes).text);
  if (plan->host_bytes == 0) return;
  printf("on the host\n");
  print_items(plan, true);
  printf("  %-51s %12s\n", "total on the host", size_text(plan->host_bytes).text);
}

int memory_check_host(const MemoryPlan *plan, const Spec *spec, Error *err) {
  if (plan->host_needed <= spec->host_bytes) return 0;
  return error_set(err,
                   "not enough memory on the host: backend.offload needs %s there, and %s are free",
                   size_text(plan->host_needed).text, size_text(spec->host_bytes).text);
}
