#include "model/bench/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "base/rng.h"
#include "model/bench/model.h"
#include "model/ranges.h"

enum {
  MOST_SEQUENCE = 64,
  MOST_SEQUENCES = 2,
  MOST_COMPARED = 1 << 24, // of a result's elements: a weight gradient can have half a billion
  PIECE = 1 << 22,
  UPDATED_ROWS = 512, // of the matrix that stands for all in the update
  INPUTS = 11,
  MATRICES = 6
};

// Of bf16 results, of their largest value: rounding leaves below 0.01.
static const double most_difference = 0.05;

// The two kinds and the reference.
enum { REFERENCE = BENCH_KINDS, SIDES };

typedef struct Comparison {
  Llama side[SIDES];         // the reference's last, with one layer; few rows
  Recorder *recorder[SIDES]; // each side's operations
  float *inputs[INPUTS];     // values of list_inputs
  float *row_sums;           // [M] of the backward
} Comparison;

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Random values that bf16 holds exactly.
static float *values_new(uint64_t key, int64_t count, double mean, double deviation) {
  float *values = xmalloc((size_t)count * sizeof *values);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits = bits_of((float)(mean + deviation * rng_normal(key, (uint64_t)i)));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; // to nearest even
    memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

// Into an array of elements of so many bytes: bf16, or fp32 as masters are.
static void write_values(Backend *be, void *to, const float *values, int64_t count,
                         size_t element_bytes) {
  uint16_t *bf16 = xmalloc((size_t)count * sizeof *bf16);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++) bf16[i] = (uint16_t)(bits_of(values[i]) >> 16);
  if (element_bytes == sizeof *bf16)
    be->write(be, to, bf16, (size_t)count * sizeof *bf16);
  else
    be->write_master(be, to, values, count);
  free(bf16);
}

// ---- Inputs: every activation of a layer and of the output layer

typedef struct Input {
  act_t *data;
  int64_t count;
} Input;

enum { X = 0, X1 = 3, X_FINAL = 6 }; // in this list
static void list_inputs(const Llama *llama, Input inputs[INPUTS]) {
  const LayerActs *a = &llama->acts.layers[0];
  const Acts *s = &llama->acts;
  const Sizes n = model_sizes(&llama->config, &llama->shape);
  const Input all[INPUTS] = {{a->x, n.M * n.D},       {a->qkv, n.M * n.R},    {a->o, n.M * n.Hd},
                             {a->x1, n.M * n.D},      {a->z, n.M * 2 * n.F},  {a->y, n.M * n.F},
                             {s->x_final, n.M * n.D}, {s->logits, n.M * n.V}, {s->dx, n.M * n.D},
                             {s->da, n.M * n.Hd},     {s->dqkv, n.M * n.R}};
  memcpy(inputs, all, sizeof all);
}

static void write_statistic(const Llama *llama, RowStat *s, const float *sums, int64_t M) {
  Backend *be = llama->be;
  s->parts = 1;
  be->write_master(be, (master_t *)s->data, sums, M); // statistics are fp32 as masters are
}

static void write_sumsq(const Llama *llama, RowStat *s, const float *x, int64_t M) {
  const int64_t D = llama->config.hidden_size;
  float *sums = xmalloc((size_t)M * sizeof *sums);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = m * D; k < (m + 1) * D; k++) sum += (double)x[k] * (double)x[k];
    sums[m] = (float)sum;
  }
  write_statistic(llama, s, sums, M);
  free(sums);
}

static void write_statistics(const Comparison *c, Llama *llama) {
  const int64_t M = llama->shape.batch * llama->shape.seq;
  LayerActs *a = &llama->acts.layers[0];
  write_sumsq(llama, &a->x_sumsq, c->inputs[X], M);
  write_sumsq(llama, &a->x1_sumsq, c->inputs[X1], M);
  write_sumsq(llama, &llama->acts.final_sumsq, c->inputs[X_FINAL], M);
  write_statistic(llama, &llama->acts.s, c->row_sums, M);
}

// Those that this call overwrote, or all of them (NULL).
static void write_inputs(const Comparison *c, Llama *llama, const OperationCall *changed_by) {
  Input inputs[INPUTS];
  list_inputs(llama, inputs);
  for (int i = 0; i < INPUTS; i++)
    if (!changed_by || inputs[i].data == changed_by->out || inputs[i].data == changed_by->beside)
      write_values(llama->be, inputs[i].data, c->inputs[i], inputs[i].count, llama->be->act_bytes);
  write_statistics(c, llama);
}

// Tokens whose rows of dE are among those that are compared.
static void write_tokens(Llama *llama) {
  const int64_t M = llama->shape.batch * llama->shape.seq, V = llama->config.vocab_size,
                seen = MOST_COMPARED / llama->config.hidden_size, most = V < seen ? V : seen;
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++) tokens[m] = (int32_t)(rng_u64(102, (uint64_t)m) % (uint64_t)most);
  llama_load_batch(llama, tokens, tokens);
  free(tokens);
}

// ---- The reference's parameters: those of one operation at a time, since fp32 copies of all need
// too much memory

// Fresh memory of the reference with what the GPU holds.
static act_t *copy_of(const Comparison *c, const act_t *from, int64_t count) {
  Backend *gpu = c->side[BENCH_UNFUSED].be, *cpu = c->side[REFERENCE].be;
  char *to = cpu->alloc(cpu, (size_t)count * cpu->act_bytes);
  float *piece = xmalloc(PIECE * sizeof *piece);
  for (int64_t i = 0; to && i < count; i += PIECE) {
    const int64_t more = count - i < PIECE ? count - i : PIECE;
    gpu->read_act(gpu, piece, act_at(gpu, from, i), more);
    cpu->write_master(cpu, (master_t *)(to + (size_t)i * cpu->act_bytes), piece, more);
  }
  free(piece);
  return (act_t *)to;
}

static void list_matrices(const Llama *llama, ParamTensor *list[MATRICES]) {
  const LayerParams *w = &llama->layers[0];
  ParamTensor *const all[MATRICES] = {llama->embed, llama->lm_head, w->qkv,
                                      w->out,       w->gate_up,     w->down};
  memcpy(list, all, sizeof all);
}

// Makes what the call reads, or the gradient that it leaves. False where the machine has no memory
// for it: then nothing is compared.
static bool take_params(Comparison *c, const OperationCall *call) {
  Backend *cpu = c->side[REFERENCE].be;
  ParamTensor *there[MATRICES], *here[MATRICES];
  list_matrices(&c->side[BENCH_UNFUSED], there);
  list_matrices(&c->side[REFERENCE], here);
  for (int i = 0; i < MATRICES; i++) {
    const ParamTensor *from = there[i];
    ParamTensor *to = here[i];
    const int64_t count = to->rows * to->cols;
    if (call->weight && call->weight == from->compute)
      return to->compute || (to->compute = copy_of(c, from->compute, count));
    if (call->weight && call->weight == from->folded)
      return to->folded || (to->folded = copy_of(c, from->folded, count));
    if (call->out_is_gradient && (call->out == from->grad || call->out == from->grad_folded))
      return (to->grad = to->grad_folded = cpu->alloc(cpu, (size_t)count * cpu->grad_bytes));
  }
  return true;
}

static void release_params(Comparison *c) {
  Llama *cpu = &c->side[REFERENCE];
  for (int i = 0; i < cpu->param_count; i++) {
    ParamTensor *t = &cpu->tensors[i];
    cpu->be->release(cpu->be, t->compute);
    cpu->be->release(cpu->be, t->folded);
    cpu->be->release(cpu->be, t->grad);
    t->compute = t->folded = NULL;
    t->grad = t->grad_folded = NULL;
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

// Each kind's backend has a stream of its own, and reading waits for it.
static void wait_for(const Llama *llama) {
  int32_t token;
  llama->be->read(llama->be, &token, llama->acts.tokens, sizeof token);
}

// Fresh memory with the first of what is there.
static float *read_output(Backend *be, const void *from, int64_t count, bool gradient) {
  float *values = xmalloc((size_t)count * sizeof *values);
  if (gradient)
    be->read_grad(be, values, from, count);
  else
    be->read_act(be, values, from, count);
  return values;
}

// Operation i of the slice on one side, after the one that prepares it (-1: none). The kinds share
// their buffers: the result is read, and the inputs are what they were, before the next side
// begins.
static float *run_operation(Comparison *c, int side, int i, int preparation, int64_t *count) {
  Llama *llama = &c->side[side];
  Backend *be = llama->be;
  const OperationCall *calls = c->recorder[side]->calls, *call = &calls[i];
  if (preparation >= 0) issue_alone(llama, calls[preparation].operation, 0, false);
  issue_alone(llama, call->operation, 0, false);
  *count = call->out_count < MOST_COMPARED ? call->out_count : MOST_COMPARED;
  float *values = read_output(be, call->out, *count, call->out_is_gradient);
  write_inputs(c, llama, call);
  if (preparation >= 0) write_inputs(c, llama, &calls[preparation]);
  wait_for(llama);
  return values;
}

static Differences compare_operation(Comparison *c, int i) {
  const OperationCall *calls = c->recorder[BENCH_UNFUSED]->calls;
  const int preparation = prepared_by(calls, i);
  Differences d = {NAN, NAN, NAN};
  if (take_params(c, &calls[i]) && (preparation < 0 || take_params(c, &calls[preparation]))) {
    recorder_destroy(c->recorder[REFERENCE]); // its parameters have memory only now
    c->recorder[REFERENCE] = record_slice(&c->side[REFERENCE]);
    float *results[SIDES];
    int64_t count = 0;
    for (int side = 0; side < SIDES; side++)
      results[side] = run_operation(c, side, i, preparation, &count);
    d = compare(results, count);
    for (int side = 0; side < SIDES; side++) free(results[side]);
  }
  release_params(c);
  return d;
}

// ---- The update, of a matrix folded with a norm weight

typedef struct Update {
  ParamTensor list[2]; // norm weight, matrix
  char *block;
} Update;

static size_t lay_out_update(Update *u, const Backend *be, int64_t D) {
  Arena arena = {u->block, 0};
  for (int i = 0; i < 2; i++) {
    ParamTensor *t = &u->list[i];
    *t = (ParamTensor){.rows = i ? UPDATED_ROWS : 1, .cols = D, .norm = i - 1, .decay = i == 1};
    const size_t count = (size_t)(t->rows * t->cols);
    t->master = arena_take(&arena, count * be->master_bytes);
    t->m = arena_take(&arena, count * be->master_bytes);
    t->v = arena_take(&arena, count * be->master_bytes);
    t->grad = arena_take(&arena, count * be->grad_bytes);
    if (i == 0) continue;
    t->grad_folded = t->grad;
    t->folded = arena_take(&arena, count * be->act_bytes);
  }
  return arena.used;
}

static bool open_update(const Llama *llama, Update *u) {
  Backend *be = llama->be;
  const int64_t D = llama->config.hidden_size;
  *u = (Update){.block = NULL};
  const size_t bytes = lay_out_update(u, be, D);
  if (!(u->block = be->alloc(be, bytes))) return false;
  be->zero(be, u->block, bytes);
  lay_out_update(u, be, D);
  for (int i = 0; i < 2; i++) {
    const ParamTensor *t = &u->list[i];
    const int64_t count = t->rows * t->cols;
    float *weights = values_new(103 + (uint64_t)i, count, i ? 0 : 1, i ? 0.02 : 0.1),
          *gradients = values_new(105 + (uint64_t)i, count, 0, 0.01);
    be->write_master(be, t->master, weights, count);
    write_values(be, t->grad, gradients, count, be->grad_bytes);
    free(weights);
    free(gradients);
  }
  return true;
}

static Differences compare_matrices(const Comparison *c, const Update updates[SIDES],
                                    bool gradients) {
  float *results[SIDES];
  const ParamTensor *W = &updates[REFERENCE].list[1];
  const int64_t count = W->rows * W->cols;
  for (int side = 0; side < SIDES; side++) {
    W = &updates[side].list[1];
    const void *from = gradients ? (const void *)W->grad : (const void *)W->folded;
    results[side] = read_output(c->side[side].be, from, count, gradients);
  }
  const Differences d = compare(results, count);
  for (int side = 0; side < SIDES; side++) free(results[side]);
  return d;
}

// What the pass over the gradients leaves, and AdamW.
static void compare_update(const Comparison *c, Differences differences[2]) {
  const AdamW hyper = {
      .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  Update updates[SIDES];
  bool taken = true;
  for (int side = 0; side < SIDES; side++)
    taken = open_update(&c->side[side], &updates[side]) && taken;
  differences[0] = differences[1] = (Differences){NAN, NAN, NAN};
  for (int side = 0; taken && side < SIDES; side++) {
    Backend *be = c->side[side].be;
    be->set_updates(be, 0);
    be->step_begin(be);
    be->set_hyper(be, &hyper);
    be->grads_finish(be, updates[side].list, 2);
  }
  if (taken) differences[0] = compare_matrices(c, updates, true);
  for (int side = 0; taken && side < SIDES; side++)
    c->side[side].be->adamw(c->side[side].be, updates[side].list, 2);
  if (taken) differences[1] = compare_matrices(c, updates, false);
  for (int side = 0; side < SIDES; side++)
    if (updates[side].block) c->side[side].be->release(c->side[side].be, updates[side].block);
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

static void open_reference(Comparison *c, const ModelConfig *config, const RunShape *shape,
                           int threads) {
  ModelConfig one_layer = *config;
  one_layer.num_hidden_layers = 1;
  const OpsConfig ops = llama_ops_config(&one_layer, shape, shape->seq, threads);
  Backend *be = backend_cpu_create(&ops);
  Llama *cpu = &c->side[REFERENCE];
  llama_outline(cpu, &one_layer, shape, be);
  cpu->acts_block = be->alloc(be, acts_layout(&cpu->acts, &one_layer, shape, be, NULL, NULL));
  if (cpu->acts_block) acts_layout(&cpu->acts, &one_layer, shape, be, cpu->acts_block, NULL);
}

static void open_comparison(Comparison *c, Llama *const gpu[BENCH_KINDS], int threads) {
  const RunShape shape = small_shape(&gpu[BENCH_FUSED]->shape);
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    c->side[kind] = *gpu[kind];
    c->side[kind].shape = shape;
  }
  open_reference(c, &gpu[BENCH_FUSED]->config, &shape, threads);
  Input inputs[INPUTS];
  list_inputs(&c->side[REFERENCE], inputs);
  for (int i = 0; i < INPUTS; i++)
    c->inputs[i] = values_new((uint64_t)i + 1, inputs[i].count, 0, 1);
  c->row_sums = values_new(101, shape.batch * shape.seq, 0, 1);
  for (int side = 0; side < SIDES; side++) c->recorder[side] = record_slice(&c->side[side]);
}

// Attention's backward reads the log-sum-exp that its forward left: no input of the list.
static void start_side(Comparison *c, int side) {
  Llama *llama = &c->side[side];
  const OperationCall *call = c->recorder[side]->calls;
  while (call->class != CLASS_ATTENTION) call++;
  write_tokens(llama);
  write_inputs(c, llama, NULL);
  issue_alone(llama, call->operation, 0, false);
  write_inputs(c, llama, call);
  wait_for(llama);
}

static void close_comparison(Comparison *c) {
  Backend *cpu = c->side[REFERENCE].be;
  for (int side = 0; side < SIDES; side++) recorder_destroy(c->recorder[side]);
  for (int i = 0; i < INPUTS; i++) free(c->inputs[i]);
  free(c->row_sums);
  llama_destroy(&c->side[REFERENCE]);
  cpu->destroy(cpu);
}

static int check_difference(const BenchOp *op, BenchKind kind, double difference, Error *err) {
  if (!(difference > most_difference)) return 0; // NAN: not compared
  return error_set(err,
                   "%s of %s kernels is off the fp32 reference by %g of its largest value, and "
                   "rounding explains %g at most: their times say nothing; run ./train --doctor",
                   operation_name(op->call.operation), kind == BENCH_FUSED ? "fused" : "unfused",
                   difference, most_difference);
}

int bench_compare(BenchResult *result, Llama *const gpu[BENCH_KINDS], int threads, Error *err) {
  Comparison c = {.side = {{.be = NULL}}};
  open_comparison(&c, gpu, threads);
  result->compared_rows = (int)(c.side[REFERENCE].shape.batch * c.side[REFERENCE].shape.seq);
  Differences update[2];
  compare_update(&c, update);
  for (int side = 0; side < SIDES; side++) start_side(&c, side);
  const Recorder *all = c.recorder[BENCH_UNFUSED];
  int status = 0, updates = 0;
  for (int i = 0; status == 0 && i < all->count; i++) {
    const OperationCall *call = &all->calls[i];
    const Differences *of_update = call->out ? NULL : &update[updates++];
    for (int j = 0; j < result->op_count; j++) {
      BenchOp *op = &result->ops[j];
      if (op->call.operation != call->operation) continue;
      op->differences = of_update ? *of_update : compare_operation(&c, i);
      status = check_difference(op, BENCH_FUSED, op->differences.fused_reference, err);
      if (status == 0)
        status = check_difference(op, BENCH_UNFUSED, op->differences.unfused_reference, err);
    }
  }
  close_comparison(&c);
  return status;
}
