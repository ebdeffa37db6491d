#include "model/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/command.h"
#include "kernels/gpu_backends.h"
#include "model/bench/compare.h"
#include "model/bench/state.h"
#include "model/optimizer.h"
#include "model/ranges.h"
#include "model/run/backend.h"
#include "model/run/log.h"
#include "model/tensors.h"

// ---- The command line

int bench_parse(BenchArgs *args, int argc, char **argv, Error *err) {
  const char *only = NULL;
  char operations[1024] = "an operation of";
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (operation_trains(i)) strcat(strcat(operations, " "), operation_name(i));
  *args = (BenchArgs){.only = OPERATION_COUNT, .overrides = argv};
  const Option options[] = {
      {.name = "--op", .needs = operations, .text = &only},
      {.name = "--json", .needs = "a file to write to", .text = &args->json},
      {.name = "--seconds", .low = 0.1, .high = 3600, .number = &args->seconds}};
  for (int i = 0; i < argc; i++) {
    if (argv[i][0] == '-') {
      if (option_read(options, 3, "--bench", argc, argv, &i, err) != 0) return -1;
    } else if (!args->config) {
      args->config = argv[i];
    } else {
      args->overrides[args->override_count++] = argv[i];
    }
  }
  for (Operation i = 0; only && i < OPERATION_COUNT; i++)
    if (operation_trains(i) && strcmp(only, operation_name(i)) == 0) args->only = i;
  if (only && args->only == OPERATION_COUNT)
    return error_set(err, "--op needs %s, and '%.100s' is none", operations, only);
  if (args->json && (args->json[0] == '\0' || args->json[0] == '-'))
    return error_set(err, "--json needs a file to write to");
  return args->config ? 0 : error_set(err, "--bench: no config given; see ./train --help");
}

// ---- Opening

static int open_backends(Bench *b, RunShape *shape, Error *err) {
  GpuMemory memory;
  if (gpu_usable(&memory, err) != 0)
    return error_prefix(err, "the bench times an NVIDIA GPU's kernels");
  Config c = b->config;
  const bool all_fused = c.backend.kernels == KERNELS_FUSED;
  const KernelChoice kernels[] = {all_fused ? KERNELS_FUSED : KERNELS_AUTO, KERNELS_UNFUSED};
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    c.backend.kernels = kernels[kind];
    b->be[kind] = backend_create(&c, shape, c.train.sequence_length, err);
    if (!b->be[kind]) return -1;
  }
  return 0;
}

static int check_memory(const Bench *b, const RunShape *shape, size_t own, Error *err) {
  const ModelConfig *m = &b->config.model;
  MemoryPlan fused, unfused;
  memory_plan(&fused, m, shape, b->be[BENCH_FUSED]);
  memory_plan(&unfused, m, shape, b->be[BENCH_UNFUSED]);
  const size_t beside = unfused.workspace_bytes, all = fused.total_bytes + beside + own,
               there = b->be[BENCH_FUSED]->memory_bytes;
  printf("memory     %s: %s for a step, %s more for the other kind, %s for the bench; the GPU has "
         "%s\n",
         size_text(all).text, size_text(fused.total_bytes).text, size_text(beside).text,
         size_text(own).text, size_text(there).text);
  fflush(stdout);
  if (all <= there) return 0;
  return error_set(err,
                   "the bench needs %s and the GPU has %s: take a smaller train.batch_size, more "
                   "train.loss_chunks, or fewer layers (model.num_hidden_layers=%lld), which "
                   "changes no operation",
                   size_text(all).text, size_text(there).text,
                   (long long)(m->num_hidden_layers > 1 ? m->num_hidden_layers / 2 : 1));
}

static void describe(Bench *b, const BenchArgs *args) {
  BenchResult *r = &b->result;
  const RunShape *s = &b->llama[BENCH_FUSED].shape;
  static const char *const recompute[] = {"none", "mlp", "layer"};
  r->config = args->config;
  r->model = model_text(&b->config.model);
  r->gpu = b->be[BENCH_FUSED]->description;
  snprintf(r->step_shape, sizeof r->step_shape,
           "%lld x %lld x %lld tokens (accumulation x sequences x length), loss in %lld piece%s, "
           "recompute %s, %s",
           (long long)b->config.train.gradient_accumulation, (long long)s->batch, (long long)s->seq,
           (long long)s->loss_chunks, s->loss_chunks == 1 ? "" : "s", recompute[s->recompute],
           precision_name(b->config.backend.precision));
}

// The kinds share the weights' FP8 copies, so that both must know their scales.
static void share_scalings(Backend *from, Backend *to, const ModelConfig *model) {
  ScalingState *states = xcalloc((size_t)scaling_count(model), sizeof *states);
  from->scalings_read(from, states);
  to->scalings_write(to, states);
  free(states);
}

static int open_bench(Bench *b, const BenchArgs *args, Error *err) {
  const Config *c = &b->config;
  RunShape shape = run_shape(c);
  shape.context = 0; // no samples
  if (open_backends(b, &shape, err) != 0) return -1;
  Llama *fused = &b->llama[BENCH_FUSED], *unfused = &b->llama[BENCH_UNFUSED];
  if (llama_create(fused, &c->model, &shape, b->be[BENCH_FUSED], err) != 0) return -1;
  size_t sum_bytes;
  if (bench_sum_apart(fused, &sum_bytes, err) != 0) return -1;
  b->sum = fused->lm_head->part_sum;
  if (bench_share(unfused, fused, b->be[BENCH_UNFUSED], err) != 0) return -1;
  bench_list(&b->result, fused, c->train.gradient_accumulation, args->only);
  describe(b, args);
  printf("model      %s\nstep       %s\nbackend    %s\n", b->result.model.text,
         b->result.step_shape, b->result.gpu);
  b->recorder = record_slice(unfused);
  const OperationCall *calls = b->recorder->calls;
  const int count = b->recorder->count;
  list_makers(b->recorder, b->makers);
  if (check_memory(b, &shape, bench_gpu_bytes(calls, count) + sum_bytes, err) != 0) return -1;
  b->gpu = bench_gpu_open(b->be[BENCH_FUSED], b->be[BENCH_UNFUSED], calls, count, err);
  if (!b->gpu) return -1;
  b->result.facts = b->gpu->facts;
  b->hyper = adamw_at(&c->optimizer, 0, 1);
  // The weights stay as they are, and so do the scales of their FP8 copies, which the kinds share.
  b->hyper.learning_rate = 0;
  const size_t M = (size_t)(shape.batch * shape.seq);
  b->tokens = xmalloc(2 * M * sizeof *b->tokens);
  bench_weights(fused, c->train.seed);
  if (shape.fp8) share_scalings(b->be[BENCH_FUSED], b->be[BENCH_UNFUSED], &c->model);
  b->gpu->turn(b->gpu, b->be[BENCH_UNFUSED]);
  return 0;
}

static void close_bench(Bench *b) {
  if (b->gpu) b->gpu->close(b->gpu);
  recorder_destroy(b->recorder);
  bench_unshare(&b->llama[BENCH_UNFUSED]);
  if (b->sum) b->be[BENCH_FUSED]->release(b->be[BENCH_FUSED], b->sum);
  if (b->llama[BENCH_FUSED].be) llama_destroy(&b->llama[BENCH_FUSED]);
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (b->be[kind]) b->be[kind]->destroy(b->be[kind]);
  free(b->samples);
  free(b->tokens);
}

// ---- The whole

static int write_json(const char *path, const BenchResult *r, Error *err) {
  char *text = bench_json(r);
  const int status = file_write_atomic(path, text, strlen(text), err);
  free(text);
  return status;
}

int bench_run(const BenchArgs *args, Error *err) {
  Bench *b = xcalloc(1, sizeof *b);
  int status = config_load(&b->config, args->config, args->override_count, args->overrides, err);
  b->config.backend.device = DEVICE_CUDA;
  b->config.output.profile_steps = 0;
  b->seconds = args->seconds;
  b->result.whole = args->only == OPERATION_COUNT;
  if (status == 0 && args->json && file_check_writable(args->json, err) != 0)
    status = error_prefix(err, "--json"); // before minutes of measuring, not after
  if (status == 0) status = open_bench(b, args, err);
  if (status == 0 && b->llama[BENCH_FUSED].shape.fp8) {
    printf("compared   not in FP8: the reference has no copies to read\n");
  } else if (status == 0) {
    Llama *const llamas[BENCH_KINDS] = {&b->llama[BENCH_FUSED], &b->llama[BENCH_UNFUSED]};
    status = bench_compare(&b->result, llamas, (int)b->config.backend.threads, err);
  }
  if (status == 0) status = bench_measure(b, err);
  if (status == 0) {
    bench_print(&b->result);
    if (args->json) status = write_json(args->json, &b->result, err);
  }
  close_bench(b);
  free(b);
  return status;
}
