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

static void print_device(const Config *c, const RunShape *shape, const Outlook *o,
                         size_t total_bytes) {
  const bool enough = total_bytes <= o->sizes.memory_bytes;
  Error advice = {""};
  if (!enough) plan_advise(c, shape, &o->sizes, &advice);
  printf("  this %s has %s free: the run %s%s\n", o->sizes.name,
         size_text(o->sizes.memory_bytes).text, enough ? "fits" : "does not fit", advice.text);
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
  return 0;
}
