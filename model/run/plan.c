// The memory plan without a backend, and runs that would fit.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/run/backend.h"
#include "model/run/commands.h"
#include "model/run/run.h"

// A search for changes that make a run fit.
typedef struct Search {
  const Config *config;
  const Hardware *hardware; // each try is resolved anew on it
  const Spec *spec;         // of the run, with what is free for it; NULL: the hardware's is free
  size_t more;              // bytes of the backend's workspace beyond the estimate
  Error *advice;            // gets what was found ...
  int named;                // ... so far
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

// As a run of this configuration resolves it, loss chunks too, with the documents of s->spec.
static Spec resolve(const Search *s, const Config *c) {
  Spec spec = s->spec ? *s->spec : run_spec(c);
  spec.batch = c->train.batch_size;
  spec.loss_chunks = c->train.loss_chunks;
  spec.recompute = c->train.recompute;
  spec.recompute_layers = c->train.recompute_layers;
  spec = spec_resolve(c, spec, s->hardware);
  if (s->spec) spec.memory_bytes = s->spec->memory_bytes, spec.host_bytes = s->spec->host_bytes;
  return spec;
}

// The bytes that it lacks, on either side; 0: it fits.
static size_t lacking(const Search *s, const Config *c) {
  const Spec spec = resolve(s, c);
  const MemoryPlan plan = memory_plan(&c->model, &spec);
  const size_t needed = plan.total_bytes + s->more;
  return (needed > spec.memory_bytes ? needed - spec.memory_bytes : 0) +
         (plan.host_needed > spec.host_bytes ? plan.host_needed - spec.host_bytes : 0);
}

static bool fits(const Search *s, const Config *c) {
  return lacking(s, c) == 0;
}

// The last value of c's number `value` that fits, from one that does to one that does not, which is
// larger or smaller.
static int64_t last_fitting(const Search *s, Config *c, int64_t *value, int64_t good, int64_t bad) {
  while (good - bad > 1 || bad - good > 1) {
    const int64_t middle = *value = good + (bad - good) / 2;
    *(fits(s, c) ? &good : &bad) = middle;
  }
  return *value = good;
}

static bool chunks_divide(const Config *c) {
  const TrainConfig *t = &c->train;
  return t->loss_chunks == 0 || t->batch_size * t->sequence_length % t->loss_chunks == 0;
}

// The largest batch below this one that fits, and that the loss' chunks divide; 0: none does.
static int64_t fitting_batch(const Search *s, Config c, int64_t too_large) {
  int64_t *batch = &c.train.batch_size;
  for (last_fitting(s, &c, batch, 0, too_large); !chunks_divide(&c); *batch -= 1) continue;
  return *batch;
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
static void name_one(Search *s, const char *change) {
  error_append(s->advice, "%s%s", s->named++ == 0 ? "; it would fit with " : ", or with ", change);
}

// Lists every single change that makes the run fit; for each key, the mildest.
static void advise_savings(Search *s) {
  size_t before = SIZE_MAX; // the key that was named last
  for (int i = 0; i < SAVINGS; i++) {
    const Saving *saving = &savings[i];
    Config c = *s->config;
    if (*value_of(&c, saving) == saving->value || saving->offset == before) continue;
    *value_of(&c, saving) = saving->value;
    if (!fits(s, &c)) continue;
    name_one(s, saving->text);
    before = saving->offset;
  }
}

// A key that saves memory in layers; the one that says in how many has this name and "_layers".
typedef struct LayersKey {
  const char *name;
  size_t offset, layers_offset; // of its int and the other's int64_t in a Config
} LayersKey;

enum { LAYERS_KEYS = 2 };
static const LayersKey layers_keys[LAYERS_KEYS] = {
    {"train.recompute", offsetof(Config, train.recompute),
     offsetof(Config, train.recompute_layers)},
    {"backend.offload", offsetof(Config, backend.offload),
     offsetof(Config, backend.offload_layers)}};

// The fewest layers with which the run fits, and how many there are now; -1 where the key is not in
// use, or the run does not fit with all layers.
static int64_t fewest_layers(const Search *s, const LayersKey *key, int64_t *now) {
  Config c = *s->config;
  int *what = (int *)((char *)&c + key->offset);
  int64_t *layers = (int64_t *)((char *)&c + key->layers_offset);
  const int used = *what;
  if (used == 0) return -1; // RECOMPUTE_NONE, OFFLOAD_NONE
  *now = *layers;
  *what = 0;
  if (fits(s, &c)) return 0;
  *what = used;
  *layers = c.model.num_hidden_layers;
  return fits(s, &c) ? last_fitting(s, &c, layers, *layers, 0) : -1;
}

static void advise_layers(Search *s) {
  for (int i = 0; i < LAYERS_KEYS; i++) {
    int64_t now = 0;
    const long long layers = fewest_layers(s, &layers_keys[i], &now);
    if (layers > now) name_one(s, path_text("%s_layers=%lld", layers_keys[i].name, layers).text);
  }
}

static void advise_batches(Search *s) {
  const TrainConfig *t = &s->config->train;
  const long long batch = fitting_batch(s, *s->config, s->spec->batch),
                  k = batch > 0 ? fitting_micro_batches(s) : 0;
  if (k > 0)
    name_one(s, path_text("train.gradient_accumulation=%lld train.batch_size=%lld",
                          t->gradient_accumulation * k, t->batch_size / k)
                    .text);
  if (batch > 0) name_one(s, path_text("train.batch_size=%lld", batch).text);
}

// Several savings, with this batch. False where all of them are not enough.
static bool advise_together(const Search *s, int64_t batch) {
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
  error_append(s->advice, "; it would fit with");
  for (int i = 0; i < SAVINGS; i++) {
    Config was = *s->config;
    const int now = *value_of(&c, &savings[i]);
    if (now == savings[i].value && now != *value_of(&was, &savings[i]))
      error_append(s->advice, " %s", savings[i].text);
  }
  if (batch != s->config->train.batch_size)
    error_append(s->advice, " train.batch_size=%lld", (long long)batch);
  return true;
}

void plan_advise(const Config *c, const Spec *spec, const Hardware *h, Error *err) {
  Search s = {.config = c, .hardware = h, .spec = spec, .advice = err};
  const size_t estimate = resolve(&s, c).workspace_bytes, there = spec->workspace_bytes;
  if (there > estimate) s.more = there - estimate;
  if (fits(&s, c)) return; // it was refused for another reason
  advise_layers(&s);
  advise_savings(&s);
  advise_batches(&s);
  if (s.named > 0 || advise_together(&s, c->train.batch_size) || advise_together(&s, 1)) return;
  error_append(err, "; not even one sequence would fit: take a smaller model, a shorter "
                    "train.sequence_length or more train.loss_chunks");
}

int plan_check(const Config *c, const Spec *spec, const Hardware *h, Error *err) {
  const MemoryPlan plan = memory_plan(&c->model, spec);
  int status = memory_check_host(&plan, spec, err);
  if (!runs_on_gpu(spec) && plan.total_bytes > spec->memory_bytes)
    status = error_set(err, "not enough memory: the run needs %s and this cpu has %s free",
                       size_text(plan.total_bytes).text, size_text(spec->memory_bytes).text);
  if (status != 0) plan_advise(c, spec, h, err);
  return status;
}

bool plan_fits(const Config *c, const Hardware *h) {
  return fits(&(Search){.config = c, .hardware = h}, c);
}

// ---- The largest runs that fit

// The i-th length that is tried, ascending. Loss chunks divide it well.
static int64_t window_length(int64_t i) {
  return i < 16 ? i : (16 + i % 16) << (i / 16 - 1);
}

PlanLimits plan_limits(const Config *config, const Hardware *h) {
  const Search s = {.config = config, .hardware = h};
  const int64_t T = config->train.sequence_length, chunks = config->train.loss_chunks;
  PlanLimits limits = {.window = 0};
  Config c = *config;
  c.train.batch_size = 1;
  for (int64_t i = 1; (c.train.sequence_length = window_length(i)) <= MAX_TOKENS && fits(&s, &c);
       i++)
    limits.window = c.train.sequence_length;
  if (chunks > 0) limits.window -= limits.window % chunks;
  limits.batch = fitting_batch(&s, *config, MAX_TOKENS / T + 1);
  return limits;
}

static void print_limits(const Config *c, const Hardware *h) {
  const Search s = {.config = c, .hardware = h};
  const PlanLimits limits = plan_limits(c, h);
  if (limits.window == 0) return;
  printf("  at most train.sequence_length=%lld with train.batch_size=1%s", (long long)limits.window,
         limits.window > c->model.max_position_embeddings
             ? " (raise model.max_position_embeddings for that)"
             : "");
  if (limits.batch > 0)
    printf("; or train.batch_size=%lld with train.sequence_length=%lld", (long long)limits.batch,
           (long long)c->train.sequence_length);
  printf("\n");
  for (int i = 0; i < LAYERS_KEYS; i++) {
    int64_t now = 0;
    const int64_t layers = fewest_layers(&s, &layers_keys[i], &now);
    if (layers == 0)
      printf("  %s=none fits, too\n", layers_keys[i].name);
    else if (layers > 0 && layers < now)
      printf("  %s_layers=%lld is enough\n", layers_keys[i].name, (long long)layers);
  }
}

// What backend.device finds, or the card of this name, whose host is not known.
static int find_hardware(Hardware *h, bool *named, const Config *c, const char *card, Error *err) {
  *named = card != NULL;
  if (!card) return hardware_find(h, c, err);
  *h = (Hardware){.gpu = true, .host_bytes = SIZE_MAX};
  if (c->backend.device == DEVICE_CPU)
    return error_set(err, "gpu=%.80s plans for a GPU, but backend.device is \"cpu\"", card);
  if (gpu_named(&h->card, card, err) != 0) return -1;
  h->memory_bytes = h->card.free_bytes;
  if (c->backend.precision == PRECISION_FP8 && h->card.sm_count > 0 && !gpu_has_fp8(&h->card))
    return error_set(err, "%s has no FP8; take backend.precision=bf16", h->card.name);
  if (c->backend.kernels == KERNELS_FUSED && c->backend.mainloop == MAINLOOP_WGMMA &&
      h->card.sm_count > 0 && h->card.mainloop != MAINLOOP_WGMMA)
    return error_set(err, "%s has no wgmma; take backend.mainloop=auto", h->card.name);
  return 0;
}

// The NAME of the word gpu=NAME, which it takes out of the words; NULL: there is none.
static const char *take_card(int *count, char **words) {
  const char *card = NULL;
  int kept = 0;
  for (int i = 0; i < *count; i++)
    if (strncmp(words[i], "gpu=", 4) == 0)
      card = words[i] + 4;
    else
      words[kept++] = words[i];
  *count = kept;
  return card;
}

static void print_time(const Config *c, const Spec *spec, const Gpu *gpu, size_t host_bytes) {
  const double ms = step_estimate_ms(c, spec, gpu, host_bytes), steps = (double)c->train.steps;
  if (!isfinite(ms)) return;
  printf(
      "  a step takes about %.*f ms, %s tokens/s, and %lld steps %s: by count, from %.4g TFLOP/s "
      "and %.4g GB/s of the data sheet, %s\n",
      ms < 100 ? 1 : 0, ms, count_text((double)tokens_per_step(c) / ms * 1e3).text,
      (long long)c->train.steps, time_text(steps * ms * 1e-3).text,
      (spec->fp8 ? gpu->rates.fp8 : gpu->rates.bf16) * 1e-12, gpu->rates.memory * 1e-9,
      gpu->major == 9 ? "right to 5 % on an H200"
                      : "tried on no card of this kind: it may be off by a third");
}

// Whether the run fits.
static bool print_device(const Config *c, const Spec *spec, const Hardware *h,
                         const MemoryPlan *plan, bool named) {
  Error ignored, advice = {""};
  const bool enough =
      plan->total_bytes <= spec->memory_bytes && memory_check_host(plan, spec, &ignored) == 0;
  if (!enough) plan_advise(c, spec, h, &advice);
  printf("  %s%s has %s free", named ? "" : "this ",
         named    ? h->card.name
         : h->gpu ? "GPU"
                  : "cpu",
         size_text(spec->memory_bytes).text);
  if (plan->host_bytes > 0 && !named) printf(", and the host %s", size_text(spec->host_bytes).text);
  printf(": the run %s%s\n", enough ? "fits" : "does not fit", advice.text);
  print_limits(c, h);
  if (h->gpu) print_time(c, spec, &h->card, plan->host_bytes);
  if (h->gpu) printf("  the workspace is an estimate: what it is a run says when it starts\n");
  if (h->why_no_gpu.text[0]) printf("  not the GPU, because %s\n", h->why_no_gpu.text);
  return enough;
}

int plan_command(int argc, char **argv, Error *err) {
  Config config;
  const Config *c = &config;
  Hardware hardware;
  bool named;
  if (argc < 1) return error_set(err, NO_CONFIG);
  int overrides = argc - 1;
  const char *card = take_card(&overrides, argv + 1);
  if (config_load(&config, argv[0], overrides, argv + 1, err) != 0 ||
      find_hardware(&hardware, &named, c, card, err) != 0)
    return -1;
  const Spec spec = spec_resolve(c, run_spec(c), &hardware);
  char *json = config_json(c);
  printf("%s\n", json);
  free(json);
  const MemoryPlan plan = memory_plan(&c->model, &spec);
  memory_plan_print(&plan);
  const SavesPlan saves = saves_plan(c, &spec, hardware.gpu ? plan.host_bytes : plan.total_bytes);
  if (saves.bytes > 0)
    printf("  %-51s %12s%s\n", "host: snapshot for background saves", size_text(saves.bytes).text,
           saves.background || named ? "" : ", which is not free: training waits for saves");
  const bool enough = print_device(c, &spec, &hardware, &plan, named);
  printf("%s parameters, %.3g model FLOPs a step\n",
         count_text((double)model_parameters(&c->model, true)).text, flops_per_step(c));
  recipe_print(c, hardware.gpu, false);
  return named && !enough;
}
