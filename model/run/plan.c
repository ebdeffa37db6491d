// The memory plan without a backend, and runs that would fit.
#include <stddef.h>
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
  const Spec *spec;
  size_t more; // bytes of the backend's workspace beyond the estimate
} Search;

// A key's value that may take less memory. Those of a key follow one another, each smaller.
typedef struct Saving {
  const char *text;
  size_t offset; // of the key's int in a Config
  int value;
} Saving;

static const Saving savings[] = {
    {"train.recompute=mlp", offsetof(Config, train.recompute), RECOMPUTE_MLP},
    {"train.recompute=layer", offsetof(Config, train.recompute), RECOMPUTE_LAYER},
    {"backend.moments=bf16", offsetof(Config, backend.moments), MOMENTS_BF16},
    {"backend.masters=bf16", offsetof(Config, backend.masters), MASTERS_BF16},
    {"backend.gradients=bf16", offsetof(Config, backend.gradients), GRADIENTS_BF16},
    {"backend.offload=none", offsetof(Config, backend.offload), OFFLOAD_NONE}, // of the host's
    {"backend.offload=moments", offsetof(Config, backend.offload), OFFLOAD_MOMENTS},
    {"backend.offload=masters", offsetof(Config, backend.offload), OFFLOAD_MASTERS},
    {"backend.offload=gradients", offsetof(Config, backend.offload), OFFLOAD_GRADIENTS},
};
enum { SAVINGS = sizeof savings / sizeof *savings };

static int *value_of(Config *c, const Saving *saving) {
  return (int *)((char *)c + saving->offset);
}

// The bytes that it lacks, on either side; 0: it fits.
static size_t lacking(const Search *s, const Config *c) {
  Spec spec = *s->spec;
  MemoryPlan plan;
  spec.batch = c->train.batch_size;
  spec.recompute = c->train.recompute;
  spec.recompute_layers = c->train.recompute_layers;
  spec = spec_again(c, spec);
  memory_plan(&plan, &c->model, &spec);
  const size_t needed = plan.total_bytes + s->more;
  return (needed > spec.memory_bytes ? needed - spec.memory_bytes : 0) +
         (plan.host_needed > spec.host_bytes ? plan.host_needed - spec.host_bytes : 0);
}

static bool fits(const Search *s, const Config *c) {
  return lacking(s, c) == 0;
}

static bool chunks_divide(const Config *c) {
  const TrainConfig *t = &c->train;
  return t->loss_chunks == 0 || t->batch_size * t->sequence_length % t->loss_chunks == 0;
}

// The largest batch below this one that fits, and that the loss' chunks divide; 0: none does.
static int64_t fitting_batch(const Search *s) {
  Config c = *s->config;
  int64_t least = 0, too_large = s->spec->batch;
  while (too_large - least > 1) {
    const int64_t middle = c.train.batch_size = least + (too_large - least) / 2;
    *(fits(s, &c) ? &least : &too_large) = middle;
  }
  for (c.train.batch_size = least; !chunks_divide(&c); c.train.batch_size--) continue;
  return c.train.batch_size;
}

// The fewest micro-batches that fit and make the same step together; 0: none do.
static int64_t fitting_micro_batches(const Search *s) {
  const TrainConfig *t = &s->config->train;
  Config c = *s->config;
  for (int64_t k = 2; k <= t->batch_size; k++) {
    c.train.batch_size = t->batch_size / k;
    c.train.gradient_accumulation = t->gradient_accumulation * k;
    if (t->batch_size % k == 0 && chunks_divide(&c) && fits(s, &c)) return k;
  }
  return 0;
}

// "; it would fit with A", and from the second on ", or with B".
static void name_one(int *named, Error *err) {
  error_append(err, "%s", (*named)++ == 0 ? "; it would fit with " : ", or with ");
}

// Lists every single change that makes the run fit; for each key, the mildest.
static void advise_savings(const Search *s, int *named, Error *err) {
  size_t before = SIZE_MAX; // the key that was named last
  for (int i = 0; i < SAVINGS; i++) {
    const Saving *saving = &savings[i];
    Config c = *s->config;
    if (*value_of(&c, saving) == saving->value || saving->offset == before) continue;
    *value_of(&c, saving) = saving->value;
    if (!fits(s, &c)) continue;
    name_one(named, err);
    error_append(err, "%s", saving->text);
    before = saving->offset;
  }
}

// A key that saves memory in layers, and the one that says in how many.
typedef struct LayersKey {
  const char *what, *name;
  size_t what_offset, offset; // of the first one's int and the other's int64_t in a Config
} LayersKey;

enum { LAYERS_KEYS = 2 };
static const LayersKey layers_keys[LAYERS_KEYS] = {
    {"train.recompute", "train.recompute_layers", offsetof(Config, train.recompute),
     offsetof(Config, train.recompute_layers)},
    {"backend.offload", "backend.offload_layers", offsetof(Config, backend.offload),
     offsetof(Config, backend.offload_layers)}};

static bool in_use(const Config *c, const LayersKey *key) {
  return *(const int *)((const char *)c + key->what_offset) != 0; // RECOMPUTE_NONE, OFFLOAD_NONE
}

static int64_t layers_in(const Config *c, const LayersKey *key) {
  return *(const int64_t *)((const char *)c + key->offset);
}

typedef bool Fits(const Config *config, const void *context);

static bool fits_with(const Config *config, const LayersKey *key, int64_t layers, Fits *fitting,
                      const void *context) {
  Config c = *config;
  if (layers == 0)
    *(int *)((char *)&c + key->what_offset) = 0;
  else
    *(int64_t *)((char *)&c + key->offset) = layers;
  return fitting(&c, context);
}

// The fewest layers with which the run fits, from 0 on; -1 where it does not with all of them.
static int64_t fewest_layers(const Config *c, const LayersKey *key, Fits *fitting,
                             const void *context) {
  int64_t most = c->model.num_hidden_layers, too_few = -1;
  if (!fits_with(c, key, most, fitting, context)) return -1;
  while (most - too_few > 1) {
    const int64_t middle = too_few + (most - too_few) / 2;
    *(fits_with(c, key, middle, fitting, context) ? &most : &too_few) = middle;
  }
  return most;
}

static bool fits_search(const Config *c, const void *search) {
  return fits(search, c);
}

static void advise_layers(const Search *s, int *named, Error *err) {
  for (int i = 0; i < LAYERS_KEYS; i++) {
    const LayersKey *key = &layers_keys[i];
    const int64_t layers =
        in_use(s->config, key) ? fewest_layers(s->config, key, fits_search, s) : -1;
    if (layers <= layers_in(s->config, key)) continue;
    name_one(named, err);
    error_append(err, "%s=%lld", key->name, (long long)layers);
  }
}

static void advise_batches(const Search *s, int *named, Error *err) {
  const TrainConfig *t = &s->config->train;
  const int64_t batch = fitting_batch(s), k = batch > 0 ? fitting_micro_batches(s) : 0;
  if (k > 0) {
    name_one(named, err);
    error_append(err, "train.gradient_accumulation=%lld train.batch_size=%lld",
                 (long long)(t->gradient_accumulation * k), (long long)(t->batch_size / k));
  }
  if (batch == 0) return;
  name_one(named, err);
  error_append(err, "train.batch_size=%lld", (long long)batch);
}

// Several savings, with this batch. False where all of them are not enough.
static bool advise_together(const Search *s, int64_t batch, Error *err) {
  Config c = *s->config;
  c.train.batch_size = batch;
  for (int i = 0; i < SAVINGS && !fits(s, &c); i++) {
    Config less = c;
    *value_of(&less, &savings[i]) = savings[i].value;
    if (lacking(s, &less) < lacking(s, &c)) c = less;
  }
  if (!fits(s, &c) || !chunks_divide(&c)) return false;
  for (int i = 0; i < SAVINGS; i++) { // without those that later ones have made needless
    Config more = c, was = *s->config;
    *value_of(&more, &savings[i]) = *value_of(&was, &savings[i]);
    if (fits(s, &more)) c = more;
  }
  error_append(err, "; it would fit with");
  for (int i = 0; i < SAVINGS; i++) {
    Config was = *s->config;
    const int now = *value_of(&c, &savings[i]);
    if (now == savings[i].value && now != *value_of(&was, &savings[i]))
      error_append(err, " %s", savings[i].text);
  }
  if (batch != s->config->train.batch_size)
    error_append(err, " train.batch_size=%lld", (long long)batch);
  return true;
}

void plan_advise(const Config *c, const Spec *spec, Error *err) {
  const size_t estimate = spec_again(c, *spec).workspace_bytes, there = spec->workspace_bytes;
  const Search s = {.config = c, .spec = spec, .more = there > estimate ? there - estimate : 0};
  int named = 0;
  if (fits(&s, c)) return; // it was refused for another reason
  advise_layers(&s, &named, err);
  advise_savings(&s, &named, err);
  advise_batches(&s, &named, err);
  if (named > 0 || advise_together(&s, c->train.batch_size, err) || advise_together(&s, 1, err))
    return;
  error_append(err, "; not even one sequence would fit: take a smaller model, a shorter "
                    "train.sequence_length or more train.loss_chunks");
}

int plan_check(const Config *c, const Spec *spec, Error *err) {
  MemoryPlan plan;
  memory_plan(&plan, &c->model, spec);
  int status = memory_check_host(&plan, spec, err);
  if (!runs_on_gpu(spec) && plan.total_bytes > spec->memory_bytes)
    status = error_set(err, "not enough memory: the run needs %s and this cpu has %s free",
                       size_text(plan.total_bytes).text, size_text(spec->memory_bytes).text);
  if (status != 0) plan_advise(c, spec, err);
  return status;
}

// ---- The largest runs that fit

static bool fits_hardware(const Config *c, const void *hardware) {
  const Spec spec = spec_resolve(c, run_spec(c), hardware);
  MemoryPlan plan;
  memory_plan(&plan, &c->model, &spec);
  return plan.total_bytes <= spec.memory_bytes && plan.host_needed <= spec.host_bytes;
}

static bool limit_fits(const Config *c, const Hardware *h, int64_t batch, int64_t length) {
  Config tried = *c;
  tried.train.batch_size = batch;
  tried.train.sequence_length = length;
  return fits_hardware(&tried, h);
}

// The i-th length that is tried, ascending. Loss chunks divide it well.
static int64_t window_length(int64_t i) {
  return i < 16 ? i : (16 + i % 16) << (i / 16 - 1);
}

PlanLimits plan_limits(const Config *c, const Hardware *h) {
  const int64_t T = c->train.sequence_length, chunks = c->train.loss_chunks;
  int64_t least = 0, too_large = 1;
  while (window_length(too_large) <= MAX_TOKENS) too_large++;
  while (too_large - least > 1) {
    const int64_t middle = least + (too_large - least) / 2;
    *(limit_fits(c, h, 1, window_length(middle)) ? &least : &too_large) = middle;
  }
  PlanLimits limits = {.window = window_length(least)};
  if (chunks > 0) limits.window -= limits.window % chunks;
  for (too_large = MAX_TOKENS / T + 1; too_large - limits.batch > 1;) {
    const int64_t middle = limits.batch + (too_large - limits.batch) / 2;
    *(limit_fits(c, h, middle, T) ? &limits.batch : &too_large) = middle;
  }
  while (chunks > 0 && limits.batch * T % chunks != 0) limits.batch--;
  return limits;
}

static void print_limits(const Config *c, const Hardware *h) {
  const PlanLimits limits = plan_limits(c, h);
  const char *positions = limits.window > c->model.max_position_embeddings
                              ? " (raise model.max_position_embeddings for that)"
                              : "";
  if (limits.window == 0) return;
  printf("  at most train.sequence_length=%lld with train.batch_size=1%s", (long long)limits.window,
         positions);
  if (limits.batch > 0)
    printf("; or train.batch_size=%lld with train.sequence_length=%lld", (long long)limits.batch,
           (long long)c->train.sequence_length);
  printf("\n");
  for (int i = 0; i < LAYERS_KEYS; i++) {
    const LayersKey *key = &layers_keys[i];
    const int64_t layers = in_use(c, key) ? fewest_layers(c, key, fits_hardware, h) : -1;
    if (layers == 0)
      printf("  %s=none fits, too\n", key->what);
    else if (layers > 0 && layers < layers_in(c, key))
      printf("  %s=%lld is enough\n", key->name, (long long)layers);
  }
}

static void print_device(const Config *c, const Spec *spec, const Hardware *h,
                         const MemoryPlan *plan) {
  Error advice = {""};
  const bool enough =
      plan->total_bytes <= spec->memory_bytes && memory_check_host(plan, spec, &advice) == 0;
  printf("  this %s has %s free", h->gpu ? "GPU" : "cpu", size_text(spec->memory_bytes).text);
  if (plan->host_bytes > 0) printf(", and the host %s", size_text(spec->host_bytes).text);
  advice.text[0] = '\0';
  if (!enough) plan_advise(c, spec, &advice);
  printf(": the run %s%s\n", enough ? "fits" : "does not fit", advice.text);
  print_limits(c, h);
  if (h->gpu) printf("  the workspace is an estimate: what it is a run says when it starts\n");
  if (h->why_no_gpu.text[0]) printf("  not the GPU, because %s\n", h->why_no_gpu.text);
}

int plan_print(const Config *c, Error *err) {
  Hardware hardware;
  if (hardware_find(&hardware, c, err) != 0) return -1;
  const Spec spec = spec_resolve(c, run_spec(c), &hardware);
  char *json = config_json(c);
  printf("%s\n", json);
  free(json);
  MemoryPlan plan;
  memory_plan(&plan, &c->model, &spec);
  memory_plan_print(&plan);
  const SavesPlan saves = saves_plan(c, &spec, hardware.gpu ? plan.host_bytes : plan.total_bytes);
  if (saves.bytes > 0)
    printf("  %-51s %12s%s\n", "host: snapshot for background saves", size_text(saves.bytes).text,
           saves.background ? "" : ", which is not free: training waits for saves");
  print_device(c, &spec, &hardware, &plan);
  printf("%s parameters, %.3g model FLOPs a step\n",
         count_text((double)model_parameters(&c->model, true)).text, flops_per_step(c));
  recipe_print(c, hardware.gpu, false);
  return 0;
}
