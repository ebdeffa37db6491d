// The memory plan without a backend, and runs that would fit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/run/backend.h"
#include "model/run/commands.h"
#include "model/run/run.h"

// The changes that may make a run fit.
typedef struct Search {
  const Config *config;
  RunShape shape;
  bool gpu;
  size_t there; // bytes that the backend's memory has for the run
  size_t more;  // bytes of the backend's workspace beyond its outline's
} Search;

static bool fits(const Search *s, int64_t batch, Recompute recompute) {
  RunShape shape = s->shape;
  MemoryPlan plan;
  shape.batch = batch;
  shape.recompute = recompute;
  const Backend sizes = backend_outline(s->config, &shape, s->gpu);
  memory_plan(&plan, &s->config->model, &shape, &sizes);
  return plan.total_bytes + s->more <= s->there;
}

// The largest batch below this one that fits, and that the loss' chunks divide; 0: none does.
static int64_t fitting_batch(const Search *s) {
  const TrainConfig *t = &s->config->train;
  int64_t least = 0, too_large = s->shape.batch;
  while (too_large - least > 1) {
    const int64_t middle = least + (too_large - least) / 2;
    *(fits(s, middle, s->shape.recompute) ? &least : &too_large) = middle;
  }
  while (t->loss_chunks > 0 && least * t->sequence_length % t->loss_chunks != 0) least--;
  return least;
}

void plan_advise(const Config *c, const RunShape *shape, const Backend *be, Error *err) {
  static const char *const names[] = {"none", "mlp", "layer"};
  Search s = {.config = c, .shape = *shape, .gpu = strcmp(be->name, "cpu") != 0};
  const size_t outline = backend_outline(c, shape, s.gpu).workspace_bytes;
  s.there = be->memory_bytes;
  s.more = be->workspace_bytes > outline ? be->workspace_bytes - outline : 0;
  int again = (int)shape->recompute + 1;
  while (again <= RECOMPUTE_LAYER && !fits(&s, shape->batch, (Recompute)again)) again++;
  const bool helps = again <= RECOMPUTE_LAYER;
  const int64_t batch = fitting_batch(&s);
  if (helps) error_append(err, "; it would fit with train.recompute=%s", names[again]);
  if (batch > 0)
    error_append(err, "%s with train.batch_size=%lld", helps ? ", or" : "; it would fit",
                 (long long)batch);
  if (!helps && batch == 0)
    error_append(err, "; not even one sequence would fit: take a smaller model, a shorter "
                      "train.sequence_length or more train.loss_chunks");
}

int plan_check(const Config *c, const RunShape *shape, Error *err) {
  Outlook outlook;
  MemoryPlan plan;
  RunShape known = *shape;
  if (backend_outlook(&outlook, c, &known, err) != 0) return -1;
  memory_plan(&plan, &c->model, &known, &outlook.sizes);
  if (outlook.gpu || plan.total_bytes <= outlook.sizes.memory_bytes) return 0;
  error_set(err, "not enough memory: the run needs %s and this %s has %s free",
            size_text(plan.total_bytes).text, outlook.sizes.name,
            size_text(outlook.sizes.memory_bytes).text);
  plan_advise(c, &known, &outlook.sizes, err);
  return -1;
}

// ---- The largest runs that fit

static bool limit_fits(const Config *c, const Outlook *o, int64_t batch, int64_t length) {
  Config tried = *c;
  MemoryPlan plan;
  tried.train.batch_size = batch;
  tried.train.sequence_length = length;
  RunShape shape = run_shape(&tried);
  if (shape.loss_chunks == 0) shape.loss_chunks = choose_loss_chunks(&tried, shape, o->gpu_bytes);
  const Backend sizes = backend_outline(&tried, &shape, o->gpu);
  memory_plan(&plan, &c->model, &shape, &sizes);
  return plan.total_bytes <= o->sizes.memory_bytes;
}

// The i-th length that is tried, ascending. Loss chunks divide it well.
static int64_t window_length(int64_t i) {
  return i < 16 ? i : (16 + i % 16) << (i / 16 - 1);
}

PlanLimits plan_limits(const Config *c, const Outlook *o) {
  const int64_t T = c->train.sequence_length, chunks = c->train.loss_chunks;
  int64_t least = 0, too_large = 1;
  while (window_length(too_large) <= MAX_TOKENS) too_large++;
  while (too_large - least > 1) {
    const int64_t middle = least + (too_large - least) / 2;
    *(limit_fits(c, o, 1, window_length(middle)) ? &least : &too_large) = middle;
  }
  PlanLimits limits = {.window = window_length(least)};
  if (chunks > 0) limits.window -= limits.window % chunks;
  for (too_large = MAX_TOKENS / T + 1; too_large - limits.batch > 1;) {
    const int64_t middle = limits.batch + (too_large - limits.batch) / 2;
    *(limit_fits(c, o, middle, T) ? &limits.batch : &too_large) = middle;
  }
  while (chunks > 0 && limits.batch * T % chunks != 0) limits.batch--;
  return limits;
}

static void print_limits(const Config *c, const Outlook *o) {
  const PlanLimits limits = plan_limits(c, o);
  const char *positions = limits.window > c->model.max_position_embeddings
                              ? ", were model.max_position_embeddings as large"
                              : "";
  if (limits.window == 0) return;
  printf("  at most train.sequence_length=%lld with train.batch_size=1%s", (long long)limits.window,
         positions);
  if (limits.batch > 0)
    printf("; or train.batch_size=%lld with train.sequence_length=%lld", (long long)limits.batch,
           (long long)c->train.sequence_length);
  printf("\n");
}

static void print_device(const Config *c, const RunShape *shape, const Outlook *o,
                         size_t total_bytes) {
  const bool enough = total_bytes <= o->sizes.memory_bytes;
  Error advice = {""};
  if (!enough) plan_advise(c, shape, &o->sizes, &advice);
  printf("  this %s has %s free: the run %s%s\n", o->sizes.name,
         size_text(o->sizes.memory_bytes).text, enough ? "fits" : "does not fit", advice.text);
  print_limits(c, o);
  if (o->gpu) printf("  the workspace is an estimate: what it is a run says when it starts\n");
  if (o->why_no_gpu.text[0]) printf("  not the GPU, because %s\n", o->why_no_gpu.text);
}

int plan_print(const Config *c, Error *err) {
  RunShape shape = run_shape(c);
  Outlook outlook;
  if (backend_outlook(&outlook, c, &shape, err) != 0) return -1;
  char *json = config_json(c);
  printf("%s\n", json);
  free(json);
  MemoryPlan plan;
  memory_plan(&plan, &c->model, &shape, &outlook.sizes);
  memory_plan_print(&plan);
  const SavesPlan saves = saves_plan(c, &outlook.sizes, outlook.gpu ? 0 : plan.total_bytes);
  if (saves.bytes > 0)
    printf("  %-51s %12s%s\n", "besides, on the host: copy of the state, for saves",
           size_text(saves.bytes).text,
           saves.background ? "" : ", which is not free: training waits for saves");
  print_device(c, &shape, &outlook, plan.total_bytes);
  printf("%s parameters, %.3g model FLOPs a step\n",
         count_text((double)model_parameters(&c->model, true)).text, flops_per_step(c));
  recipe_warn(c);
  return 0;
}
