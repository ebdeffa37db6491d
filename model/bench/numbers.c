#include "model/bench/numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

enum {
  MOST_SEQUENCE = 64,
  MOST_SEQUENCES = 2,
  MOST_COMPARED = 1 << 24, // of a result's elements: a weight gradient can have half a billion
  PIECE = 1 << 22,
  UPDATED_ROWS = 512, // of the matrix that stands for all in the update
  MAX_INPUTS = 11
};

// Of bf16 results, of their largest value: rounding leaves below 0.01.
static const double most_difference = 0.05;

// The two kinds and the reference.
enum { REFERENCE = BENCH_KINDS, SIDES };

typedef struct Numbers {
  Llama side[SIDES]; // the reference's last, with one layer
  ModelConfig one_layer;
  char *cpu_acts;
} Numbers;

static float bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; // to nearest even
  memcpy(&value, &bits, sizeof bits);
  return value;
}

static bool is_reference(const Numbers *n, const Llama *llama) {
  return llama == &n->side[REFERENCE];
}

static uint16_t *bf16_bits_of(const float *values, int64_t count) {
  uint16_t *bits = xmalloc((size_t)count * sizeof *bits);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, &values[i], sizeof word);
    bits[i] = (uint16_t)(word >> 16);
  }
  return bits;
}

// Values that bf16 holds exactly, as fp32 and as bf16.
typedef struct Values {
  float *wide;
  uint16_t *bits;
  int64_t count;
} Values;

// Into an array of elements of so many bytes: bf16 or the backend's wide type.
static void write_values(const Numbers *n, const Llama *llama, void *to, const Values *values,
                         size_t element_bytes) {
  Backend *be = llama->be;
  if (is_reference(n, llama) || element_bytes == sizeof(float))
    be->write_master(be, to, values->wide, values->count);
  else
    be->write(be, to, values->bits, (size_t)values->count * sizeof *values->bits);
}

static float *random_values(uint64_t key, int64_t count, double mean, double deviation) {
  float *values = xmalloc((size_t)count * sizeof *values);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++)
    values[i] = bf16_of((float)(mean + deviation * rng_normal(key, (uint64_t)i)));
  return values;
}

static Values values_new(uint64_t key, int64_t count, double deviation) {
  float *wide = random_values(key, count, 0, deviation);
  return (Values){wide, bf16_bits_of(wide, count), count};
}

static void values_free(Values *v) {
  free(v->wide);
  free(v->bits);
}

// ---- Inputs: every activation of a layer and of the output layer

enum { X = 0, X1 = 3, Z = 4, X_FINAL = 6, LOGITS = 7 }; // in the list below

typedef struct Input {
  act_t *data;
  int64_t count;
} Input;

static int list_inputs(const Llama *llama, Input inputs[MAX_INPUTS]) {
  const ModelConfig *c = &llama->config;
  const LayerActs *a = &llama->acts.layers[0];
  const Acts *s = &llama->acts;
  const int64_t M = llama->shape.batch * llama->shape.seq, D = c->hidden_size,
                F = c->intermediate_size, Hd = c->num_attention_heads * c->head_dim,
                R = Hd + 2 * c->num_key_value_heads * c->head_dim;
  const Input all[MAX_INPUTS] = {
      {a->x, M * D},     {a->qkv, M * R}, {a->o, M * Hd},      {a->x1, M * D},
      {a->z, M * 2 * F}, {a->y, M * F},   {s->x_final, M * D}, {s->logits, M * c->vocab_size},
      {s->dx, M * D},    {s->da, M * Hd}, {s->dqkv, M * R}};
  memcpy(inputs, all, sizeof all);
  return MAX_INPUTS;
}

static float *row_sums_of_squares(const float *x, int64_t M, int64_t D) {
  float *sums = xmalloc((size_t)M * sizeof *sums);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = 0; k < D; k++) sum += (double)x[m * D + k] * (double)x[m * D + k];
    sums[m] = (float)sum;
  }
  return sums;
}

// The whole sum in the first part, 0 in the others.
static void write_statistic(const Llama *llama, stat_t *to, int64_t parts, const float *sums,
                            int64_t M) {
  Backend *be = llama->be;
  be->zero(be, to, (size_t)(parts * be->max_tokens) * be->stat_bytes);
  be->write_master(be, to, sums, M); // statistics are fp32 as masters are
}

static void write_statistics(const Llama *l, const float *x, const float *x1,
                             const float *x_final) {
  const Backend *be = l->be;
  const LayerActs *a = &l->acts.layers[0];
  const int64_t M = l->shape.batch * l->shape.seq, D = l->config.hidden_size;
  const int64_t most = be->parts.gate_up > be->parts.qkv ? be->parts.gate_up : be->parts.qkv;
  float *of_x = row_sums_of_squares(x, M, D), *of_x1 = row_sums_of_squares(x1, M, D),
        *of_final = row_sums_of_squares(x_final, M, D), *s = random_values(101, M, 0, 1);
  write_statistic(l, a->x_sumsq, be->parts.sumsq, of_x, M);
  write_statistic(l, a->x1_sumsq, be->parts.sumsq, of_x1, M);
  write_statistic(l, l->acts.final_sumsq, be->parts.sumsq, of_final, M);
  write_statistic(l, l->acts.s, most > be->parts.logits ? most : be->parts.logits, s, M);
  free(of_x), free(of_x1), free(of_final), free(s);
}

// Tokens whose rows of dE are among those that are compared.
static void write_tokens(Llama *l) {
  const int64_t M = l->shape.batch * l->shape.seq, V = l->config.vocab_size,
                seen = MOST_COMPARED / l->config.hidden_size, most = V < seen ? V : seen;
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++) tokens[m] = (int32_t)(rng_u64(102, (uint64_t)m) % (uint64_t)most);
  llama_load_batch(l, tokens, tokens);
  free(tokens);
}

// The large ones only where they are read: z as it stands is nobody's input but the products' with
// dz', logits those' with dlogits'.
static bool is_read(int input, Operation operation) {
  if (input == Z) return operation == OP_GATE_UP_WGRAD || operation == OP_GATE_UP_DGRAD;
  if (input == LOGITS) return operation == OP_LM_HEAD_WGRAD || operation == OP_LM_HEAD_DGRAD;
  return true;
}

static void write_inputs(const Numbers *n, Llama *l, Operation operation,
                         const Values values[MAX_INPUTS]) {
  Input inputs[MAX_INPUTS];
  const int count = list_inputs(l, inputs);
  for (int i = 0; i < count; i++)
    if (is_read(i, operation)) write_values(n, l, inputs[i].data, &values[i], l->be->act_bytes);
  write_statistics(l, values[X].wide, values[X1].wide, values[X_FINAL].wide);
  write_tokens(l);
}

// ---- The reference's parameters: of one operation at a time, since fp32 copies of all need too
// much memory

// Fresh memory of the reference with what the GPU holds.
static act_t *copy_of(Numbers *n, const act_t *from, int64_t count) {
  Backend *gpu = n->side[BENCH_UNFUSED].be, *cpu = n->side[REFERENCE].be;
  char *to = cpu->alloc(cpu, (size_t)count * cpu->act_bytes);
  float *piece = xmalloc(PIECE * sizeof *piece);
  for (int64_t i = 0; to && i < count; i += PIECE) {
    const int64_t more = count - i < PIECE ? count - i : PIECE;
    gpu->read_act(gpu, piece, (const char *)from + (size_t)i * gpu->act_bytes, more);
    cpu->write_master(cpu, to + (size_t)i * cpu->act_bytes, piece, more);
  }
  free(piece);
  return to;
}

// False where the machine has no memory for it: then nothing is compared.
static bool take_params(Numbers *n, Operation operation) {
  Llama *cpu = &n->side[REFERENCE], *gpu = &n->side[BENCH_UNFUSED];
  const OpParams there = bench_op_params(&gpu->config, operation, 0),
                 here = bench_op_params(&cpu->config, operation, 0);
  bool taken = true;
  for (int i = 0; i < 2; i++) {
    if (here.reads[i] < 0) continue;
    ParamTensor *to = &cpu->tensors[here.reads[i]];
    const ParamTensor *from = &gpu->tensors[there.reads[i]];
    const int64_t count = to->rows * to->cols;
    if (from->compute && operation != OP_HEAD_LOSS && operation != OP_LM_HEAD_DGRAD)
      taken = (to->compute = copy_of(n, from->compute, count)) && taken;
    if (from->folded && operation != OP_EMBED)
      taken = (to->folded = copy_of(n, from->folded, count)) && taken;
  }
  if (here.gradient >= 0) {
    ParamTensor *to = &cpu->tensors[here.gradient];
    to->grad = cpu->be->alloc(cpu->be, (size_t)(to->rows * to->cols) * cpu->be->grad_bytes);
    to->grad_folded = to->grad;
    taken = taken && to->grad;
  }
  return taken;
}

static void release_params(Numbers *n) {
  Llama *cpu = &n->side[REFERENCE];
  for (int i = 0; i < cpu->param_count; i++) {
    ParamTensor *t = &cpu->tensors[i];
    cpu->be->release(cpu->be, t->compute);
    cpu->be->release(cpu->be, t->folded);
    cpu->be->release(cpu->be, t->grad);
    t->compute = t->folded = t->grad = t->grad_folded = NULL;
  }
}

// ---- Comparing

static double largest_apart(const float *a, const float *b, int64_t count, double scale) {
  double most = 0;
#pragma omp parallel for schedule(static) reduction(max : most)
  for (int64_t i = 0; i < count; i++) {
    const double apart = fabs((double)a[i] - (double)b[i]);
    if (!(apart <= most)) most = isnan(apart) ? INFINITY : apart; // NaN is no agreement
  }
  return most / scale;
}

static Differences compare(float *const results[SIDES], int64_t count) {
  double scale = 0;
#pragma omp parallel for schedule(static) reduction(max : scale)
  for (int64_t i = 0; i < count; i++) scale = fmax(scale, fabs((double)results[REFERENCE][i]));
  const float *fused = results[BENCH_FUSED], *unfused = results[BENCH_UNFUSED];
  return (Differences){largest_apart(fused, unfused, count, scale),
                       largest_apart(fused, results[REFERENCE], count, scale),
                       largest_apart(unfused, results[REFERENCE], count, scale)};
}

// Fresh memory with the first of what is there.
static float *read_output(Backend *be, const OpOutput *from, int64_t *count) {
  *count = from->count < MOST_COMPARED ? from->count : MOST_COMPARED;
  float *values = xmalloc((size_t)*count * sizeof *values);
  (from->gradient ? be->read_grad : be->read_act)(be, values, from->data, *count);
  return values;
}

// Attention's backward, which also prepares RoPE's, reads the log-sum-exp that the forward left.
static bool needs_attention(Operation operation) {
  return operation == OP_ATTENTION_BACKWARD || operation == OP_ROPE_BACKWARD;
}

// The kinds share their buffers: each one's result is read before the next one's inputs are
// written.
static Differences compare_operation(Numbers *n, Operation operation,
                                     const Values values[MAX_INPUTS]) {
  Differences d = {NAN, NAN, NAN};
  if (take_params(n, operation)) {
    float *results[SIDES];
    int64_t count = 0;
    for (int side = 0; side < SIDES; side++) {
      Llama *l = &n->side[side];
      write_inputs(n, l, operation, values);
      if (needs_attention(operation)) {
        bench_op_issue(l, OP_ATTENTION, 0, false);
        write_inputs(n, l, operation, values); // o, the same for all again
      }
      bench_op_prepare(l, operation, 0);
      bench_op_issue(l, operation, 0, false);
      const OpOutput output = bench_op_output(l, operation, 0);
      results[side] = read_output(l->be, &output, &count);
    }
    d = compare(results, count);
    for (int side = 0; side < SIDES; side++) free(results[side]);
  }
  release_params(n);
  return d;
}

// ---- The update, of a matrix folded with a norm weight

typedef struct Update {
  ParamTensor list[2]; // norm weight, matrix
  void *memory[9];
  int count;
} Update;

static void *take(Update *u, Backend *be, int64_t elements, size_t element_bytes) {
  void *memory = be->alloc(be, (size_t)elements * element_bytes);
  if (memory) be->zero(be, memory, (size_t)elements * element_bytes);
  return u->memory[u->count++] = memory;
}

static bool open_update(Numbers *n, int side, Update *u) {
  Llama *l = &n->side[side];
  Backend *be = l->be;
  const int64_t D = l->config.hidden_size;
  *u = (Update){.count = 0};
  bool taken = true;
  for (int i = 0; i < 2; i++) {
    ParamTensor *t = &u->list[i];
    *t = (ParamTensor){.rows = i ? UPDATED_ROWS : 1, .cols = D, .norm = i - 1, .decay = i == 1};
    const int64_t count = t->rows * t->cols;
    t->master = take(u, be, count, be->master_bytes);
    t->m = take(u, be, count, be->master_bytes);
    t->v = take(u, be, count, be->master_bytes);
    t->grad = take(u, be, count, be->grad_bytes);
    taken = taken && t->master && t->m && t->v && t->grad;
    if (i == 1) {
      t->grad_folded = t->grad;
      t->folded = take(u, be, count, be->act_bytes);
      taken = taken && t->folded;
    }
    float *weights = random_values(103 + (uint64_t)i, count, i ? 0 : 1, i ? 0.02 : 0.1);
    Values gradients = values_new(105 + (uint64_t)i, count, 0.01);
    if (taken) be->write_master(be, t->master, weights, count);
    if (taken) write_values(n, l, t->grad, &gradients, be->grad_bytes);
    free(weights);
    values_free(&gradients);
  }
  return taken;
}

static Differences compare_matrices(Numbers *n, const Update updates[SIDES], bool gradients) {
  float *results[SIDES];
  int64_t count = 0;
  for (int side = 0; side < SIDES; side++) {
    const ParamTensor *W = &updates[side].list[1];
    const OpOutput output = {gradients ? W->grad : W->folded, W->rows * W->cols, gradients};
    results[side] = read_output(n->side[side].be, &output, &count);
  }
  const Differences d = compare(results, count);
  for (int side = 0; side < SIDES; side++) free(results[side]);
  return d;
}

static void compare_update(Numbers *n, Differences *finish, Differences *adamw) {
  const AdamW hyper = {
      .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  Update updates[SIDES];
  bool taken = true;
  for (int side = 0; side < SIDES; side++) taken = open_update(n, side, &updates[side]) && taken;
  for (int side = 0; taken && side < SIDES; side++) {
    Backend *be = n->side[side].be;
    be->set_updates(be, 0);
    be->step_begin(be);
    be->set_hyper(be, &hyper);
    be->grads_finish(be, updates[side].list, 2);
  }
  if (taken) *finish = compare_matrices(n, updates, true);
  for (int side = 0; taken && side < SIDES; side++)
    n->side[side].be->adamw(n->side[side].be, updates[side].list, 2);
  if (taken) *adamw = compare_matrices(n, updates, false);
  for (int side = 0; side < SIDES; side++)
    for (int i = 0; i < updates[side].count; i++)
      if (updates[side].memory[i])
        n->side[side].be->release(n->side[side].be, updates[side].memory[i]);
}

// ---- All of it

static RunShape small_shape(const RunShape *run) {
  const int64_t head_rows = run->batch * run->seq / run->loss_chunks;
  RunShape s = *run;
  s.seq = run->seq < MOST_SEQUENCE ? run->seq : MOST_SEQUENCE;
  if (s.seq > head_rows) s.seq = head_rows; // the logits of all rows at once
  s.batch = run->batch * run->seq / s.seq;
  if (s.batch > MOST_SEQUENCES) s.batch = MOST_SEQUENCES;
  if (s.batch * s.seq > head_rows) s.batch = 1;
  s.loss_chunks = 1;
  s.recompute = RECOMPUTE_NONE;
  s.context = 0;
  return s;
}

static void open_reference(Numbers *n, const RunShape *shape, int threads) {
  Llama *cpu = &n->side[REFERENCE];
  const OpsConfig ops = llama_ops_config(&n->one_layer, shape, shape->seq, threads);
  *cpu = (Llama){.config = n->one_layer,
                 .shape = *shape,
                 .be = backend_cpu_create(&ops),
                 .param_count = params_count(&n->one_layer)};
  free((void *)(uintptr_t)ops.inv_freq);
  cpu->tensors = xcalloc((size_t)cpu->param_count, sizeof *cpu->tensors);
  cpu->acts.layers = xcalloc(1, sizeof *cpu->acts.layers);
  params_layout(cpu->tensors, &n->one_layer, shape, cpu->be, NULL, NULL); // rows and cols
  const size_t bytes = acts_layout(&cpu->acts, &n->one_layer, shape, cpu->be, NULL, NULL);
  n->cpu_acts = xmalloc(bytes + 64);
  acts_layout(&cpu->acts, &n->one_layer, shape, cpu->be,
              n->cpu_acts + (64 - (uintptr_t)n->cpu_acts % 64), NULL);
}

static void close_reference(Numbers *n) {
  Llama *cpu = &n->side[REFERENCE];
  free(cpu->tensors);
  free(cpu->acts.layers);
  free(n->cpu_acts);
  cpu->be->destroy(cpu->be);
}

static int check_difference(const BenchOp *op, BenchKind kind, double difference, Error *err) {
  if (!(difference > most_difference)) return 0; // NAN: not compared
  return error_set(err,
                   "%s of %s kernels is off the fp32 reference by %g of its largest value, and "
                   "rounding explains %g at most: their times say nothing; run ./train --doctor",
                   operation_name(op->operation), kind == BENCH_FUSED ? "fused" : "unfused",
                   difference, most_difference);
}

int bench_numbers(BenchResult *result, Llama *const gpu[BENCH_KINDS], int threads, Error *err) {
  const RunShape shape = small_shape(&gpu[BENCH_FUSED]->shape);
  Numbers n = {.one_layer = gpu[BENCH_FUSED]->config};
  n.one_layer.num_hidden_layers = 1;
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    n.side[kind] = *gpu[kind];
    n.side[kind].shape = shape;
  }
  open_reference(&n, &shape, threads);
  result->compared_rows = (int)(shape.batch * shape.seq);
  Input inputs[MAX_INPUTS];
  Values values[MAX_INPUTS];
  const int count = list_inputs(&n.side[REFERENCE], inputs);
  for (int i = 0; i < count; i++) values[i] = values_new((uint64_t)i + 1, inputs[i].count, 1);
  Differences finish = {NAN, NAN, NAN}, adamw = finish;
  compare_update(&n, &finish, &adamw);
  int status = 0;
  for (int i = 0; status == 0 && i < result->op_count; i++) {
    BenchOp *op = &result->ops[i];
    op->differences = op->operation == OP_GRADS_FINISH ? finish
                      : op->operation == OP_ADAMW      ? adamw
                                                  : compare_operation(&n, op->operation, values);
    status = check_difference(op, BENCH_FUSED, op->differences.fused_reference, err);
    if (status == 0)
      status = check_difference(op, BENCH_UNFUSED, op->differences.unfused_reference, err);
  }
  for (int i = 0; i < count; i++) values_free(&values[i]);
  close_reference(&n);
  return status;
}
