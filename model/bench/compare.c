#include "model/bench/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
  Llama side[SIDES]; // the reference's last, with one layer; few rows
  Recorder *slice;   // the operations that are compared
  Recorder *one;     // of one of them, on one side
} Comparison;

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Random values that bf16 holds exactly.
typedef struct Values {
  uint64_t key;
  double mean, deviation;
} Values;

static float *values_new(Values v, int64_t count) {
  float *values = xmalloc((size_t)count * sizeof *values);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits = bits_of((float)(v.mean + v.deviation * rng_normal(v.key, (uint64_t)i)));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; // to nearest even
    memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

// Into an array of elements of so many bytes: bf16, or fp32 as masters are.
static void write_values(Backend *be, void *to, Values v, int64_t count, size_t element_bytes) {
  float *values = values_new(v, count);
  uint16_t *bf16 = xmalloc((size_t)count * sizeof *bf16);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++) bf16[i] = (uint16_t)(bits_of(values[i]) >> 16);
  if (element_bytes == sizeof *bf16)
    be->write(be, to, bf16, (size_t)count * sizeof *bf16);
  else
    be->write_master(be, to, values, count);
  free(bf16);
  free(values);
}

// ---- Inputs: every activation of a layer and of the output layer

typedef struct Input {
  act_t *data;
  int64_t count;
} Input;

static void list_inputs(const Llama *llama, Input inputs[INPUTS]) {
  const LayerActs *a = &llama->acts.layers[0];
  const Acts *s = &llama->acts;
  const Sizes n = model_sizes(&llama->config, &llama->shape);
  const Input all[INPUTS] = {{a->x.data, n.M * n.D},
                             {a->qkv, n.M * n.R},
                             {a->o.data, n.M * n.Hd},
                             {a->x1.data, n.M * n.D},
                             {a->z, n.M * 2 * n.F},
                             {a->y.data, n.M * n.F},
                             {s->layers[n.L].x.data, n.M * n.D},
                             {s->logits, n.M * n.padded_V},
                             {a->dx.data, n.M * n.D},
                             {a->da, n.M * n.Hd},
                             {a->dqkv, n.M * n.R}};
  memcpy(inputs, all, sizeof all);
}

// Sums of squares as of rows of this size, but any will do: operations read them, not x.
static void write_statistics(Llama *llama) {
  const double D = (double)llama->config.hidden_size;
  Acts *acts = &llama->acts;
  RowStat *const all[] = {&acts->layers[0].x_sumsq, &acts->layers[0].x1_sumsq,
                          &acts->layers[llama->config.num_hidden_layers].x_sumsq, &acts->s};
  const Values values[] = {{107, D, D / 16}, {108, D, D / 16}, {109, D, D / 16}, {101, 0, 1}};
  for (int i = 0; i < 4; i++) {
    all[i]->parts = 1;
    write_values(llama->be, all[i]->data, values[i], llama->shape.batch * llama->shape.seq,
                 sizeof(float)); // fp32 as masters are
  }
}

// Those that this call overwrote, or all of them (NULL), and waits for them: each backend has a
// stream of its own.
static void write_inputs(Llama *llama, const OperationCall *changed_by) {
  Input inputs[INPUTS];
  list_inputs(llama, inputs);
  for (int i = 0; i < INPUTS; i++)
    if (!changed_by || inputs[i].data == changed_by->out || inputs[i].data == changed_by->beside)
      write_values(llama->be, inputs[i].data, (Values){(uint64_t)i + 1, 0, 1}, inputs[i].count,
                   llama->be->act_bytes);
  write_statistics(llama);
  int32_t token;
  llama->be->read(llama->be, &token, llama->acts.tokens, sizeof token);
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
    if (call->B && call->B == from->compute.data)
      return to->compute.data || (to->compute.data = copy_of(c, from->compute.data, count));
    if (call->B && call->B == from->folded.data)
      return to->folded.data || (to->folded.data = copy_of(c, from->folded.data, count));
    if (call->out_is_gradient && (call->out == from->grad || call->out == from->grad_folded))
      return (to->grad = to->grad_folded = cpu->alloc(cpu, (size_t)count * cpu->grad_bytes));
  }
  return true;
}

static void release_params(Comparison *c) {
  Llama *cpu = &c->side[REFERENCE];
  for (int i = 0; i < cpu->param_count; i++) {
    ParamTensor *t = &cpu->tensors[i];
    cpu->be->release(cpu->be, t->compute.data);
    cpu->be->release(cpu->be, t->folded.data);
    cpu->be->release(cpu->be, t->grad);
    t->compute.data = t->folded.data = NULL;
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

// Frees the results.
static Differences compare(float *const results[SIDES], int64_t count) {
  double scale = 0;
#pragma omp parallel for schedule(static) reduction(max : scale)
  for (int64_t i = 0; i < count; i++) scale = fmax(scale, fabs((double)results[REFERENCE][i]));
  const float *fused = results[BENCH_FUSED], *unfused = results[BENCH_UNFUSED];
  const Differences d = {largest_apart(fused, unfused, count, scale),
                         largest_apart(fused, results[REFERENCE], count, scale),
                         largest_apart(unfused, results[REFERENCE], count, scale)};
  for (int side = 0; side < SIDES; side++) free(results[side]);
  return d;
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

// The first of dlogits', rows without their padding.
static float *read_dlogits(const Llama *llama, int64_t count) {
  const HeadGradient g = {.p = llama->acts.dlogits, .u = llama->acts.softmax_scale};
  const int64_t V = llama->config.vocab_size, stride = g.p.row_stride, rows = count / V;
  float *all = read_output(llama->be, g.p.data, rows * stride, false), *u = NULL;
  if (g.u)
    llama->be->read(llama->be, u = xmalloc((size_t)rows * sizeof *u), g.u,
                    (size_t)rows * sizeof *u);
  for (int64_t m = 0; m < rows; m++)
    for (int64_t v = 0; v < V; v++) all[m * V + v] = (u ? u[m] : 1) * all[m * stride + v];
  free(u);
  return all;
}

// The call on one side, and afterwards the inputs that it overwrote. Its result goes into *result,
// if that is asked for.
static int64_t run_call(Comparison *c, Llama *llama, Operation operation, float **result) {
  const OperationCall *call = record_alone(c->one, llama, operation, 0);
  const bool dlogits = operation == OP_HEAD_LOSS;
  int64_t count = call->out_count < MOST_COMPARED ? call->out_count : MOST_COMPARED;
  if (dlogits) count -= count % call->N;
  issue_alone(llama, operation, 0, false);
  if (result)
    *result = dlogits ? read_dlogits(llama, count)
                      : read_output(llama->be, call->out, count, call->out_is_gradient);
  write_inputs(llama, call);
  return count;
}

// Operation i of the slice on all sides, after the one that prepares it. The kinds share their
// buffers: the result is read, and the inputs are what they were, before the next side begins.
static Differences compare_operation(Comparison *c, int i) {
  const OperationCall *calls = c->slice->calls;
  const int preparation = prepared_by(calls, i);
  Differences d = {NAN, NAN, NAN};
  if (take_params(c, &calls[i]) && (preparation < 0 || take_params(c, &calls[preparation]))) {
    float *results[SIDES];
    int64_t count = 0;
    for (int side = 0; side < SIDES; side++) {
      Llama *llama = &c->side[side];
      if (preparation >= 0) issue_alone(llama, calls[preparation].operation, 0, false);
      count = run_call(c, llama, calls[i].operation, &results[side]);
      if (preparation >= 0)
        write_inputs(llama, record_alone(c->one, llama, calls[preparation].operation, 0));
    }
    d = compare(results, count);
  }
  release_params(c);
  return d;
}

// ---- The update, of a matrix folded with a norm weight

enum { NORM, MATRIX, UPDATED };

// The norm's master begins the block.
static size_t lay_out_update(ParamTensor list[UPDATED], const Backend *be, int64_t D, char *block) {
  Arena arena = {block, 0};
  for (int i = 0; i < UPDATED; i++) {
    ParamTensor *t = &list[i];
    *t = (ParamTensor){.rows = i == MATRIX ? UPDATED_ROWS : 1, .cols = D, .norm = i - 1};
    t->decay = i == MATRIX;
    const size_t count = (size_t)(t->rows * t->cols);
    t->master = arena_take(&arena, count * be->master_bytes);
    t->m = arena_take(&arena, count * be->moment_bytes);
    t->v = arena_take(&arena, count * be->moment_bytes);
    *(i == NORM ? &t->grad : &t->grad_folded) = arena_take(&arena, count * be->grad_bytes);
    if (i == MATRIX) t->folded.data = arena_take(&arena, count * be->act_bytes);
  }
  return arena.used;
}

static bool open_update(const Llama *llama, ParamTensor list[UPDATED]) {
  static const Values weights[UPDATED] = {{103, 1, 0.1}, {104, 0, 0.02}}, gradient = {106, 0, 0.01};
  Backend *be = llama->be;
  const int64_t D = llama->config.hidden_size;
  const size_t bytes = lay_out_update(list, be, D, NULL);
  char *block = be->alloc(be, bytes);
  lay_out_update(list, be, D, block);
  if (!block) return false;
  be->zero(be, block, bytes);
  for (int i = 0; i < UPDATED; i++)
    write_values(be, list[i].master, weights[i], list[i].rows * D, be->master_bytes);
  write_values(be, list[MATRIX].grad_folded, gradient, list[MATRIX].rows * D, be->grad_bytes);
  return true;
}

// What the pass over the gradients leaves, and AdamW.
static void compare_update(const Comparison *c, Differences differences[2]) {
  const AdamW hyper = {
      .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  const int64_t D = c->side[REFERENCE].config.hidden_size, counts[2] = {D, UPDATED_ROWS * D};
  ParamTensor lists[SIDES][UPDATED];
  float *results[2][SIDES] = {{NULL}};
  bool taken = true;
  for (int side = 0; side < SIDES; side++)
    taken = open_update(&c->side[side], lists[side]) && taken;
  for (int side = 0; taken && side < SIDES; side++) {
    Backend *be = c->side[side].be;
    be->set_updates(be, 0);
    be->step_begin(be);
    be->set_hyper(be, &hyper);
    be->refresh(be, lists[side], UPDATED);
    be->grads_finish(be, lists[side], UPDATED);
    results[0][side] = read_output(be, lists[side][NORM].grad, counts[0], true);
    be->zero(be, lists[side][MATRIX].folded.data, (size_t)counts[1] * be->act_bytes);
    be->adamw(be, lists[side], UPDATED);
    results[1][side] = read_output(be, lists[side][MATRIX].folded.data, counts[1], false);
  }
  for (int i = 0; i < 2; i++)
    differences[i] = taken ? compare(results[i], counts[i]) : (Differences){NAN, NAN, NAN};
  for (int side = 0; side < SIDES; side++) {
    Backend *be = c->side[side].be;
    if (lists[side][NORM].master) be->release(be, lists[side][NORM].master);
  }
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
  c->slice = record_slice(&c->side[BENCH_UNFUSED]);
  c->one = record_slice(&c->side[BENCH_UNFUSED]);
}

// Attention's backward reads the log-sum-exp that its forward left: no input of the list.
static void start_side(Comparison *c, int side) {
  Llama *llama = &c->side[side];
  write_tokens(llama);
  write_inputs(llama, NULL);
  run_call(c, llama, OP_ATTENTION, NULL);
}

static void close_comparison(Comparison *c) {
  Backend *cpu = c->side[REFERENCE].be;
  recorder_destroy(c->slice);
  recorder_destroy(c->one);
  llama_destroy(&c->side[REFERENCE]);
  cpu->destroy(cpu);
}

static int check_differences(const BenchOp *op, Error *err) {
  const double off[BENCH_KINDS] = {op->differences.fused_reference,
                                   op->differences.unfused_reference};
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (off[kind] > most_difference) // not of NAN: not compared
      return error_set(
          err,
          "%s of %s kernels is off the fp32 reference by %g of its largest value, and "
          "rounding explains %g at most: their times say nothing; run ./train --doctor",
          operation_name(op->call.operation), bench_kind_names[kind], off[kind], most_difference);
  return 0;
}

int bench_compare(BenchResult *result, Llama *const gpu[BENCH_KINDS], int threads, Error *err) {
  Comparison c = {.side = {{.be = NULL}}};
  open_comparison(&c, gpu, threads);
  result->compared_rows = (int)(c.side[REFERENCE].shape.batch * c.side[REFERENCE].shape.seq);
  Differences update[2];
  compare_update(&c, update);
  for (int side = 0; side < SIDES; side++) start_side(&c, side);
  int status = 0, updates = 0;
  for (int i = 0; status == 0 && i < c.slice->count; i++) {
    const OperationCall *call = &c.slice->calls[i];
    const Differences *of_update = call->out ? NULL : &update[updates++];
    for (int j = 0; j < result->op_count; j++) {
      BenchOp *op = &result->ops[j];
      if (op->call.operation != call->operation) continue;
      op->differences = of_update ? *of_update : compare_operation(&c, i);
      status = check_differences(op, err);
    }
  }
  close_comparison(&c);
  return status;
}
