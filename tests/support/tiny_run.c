#include "tests/support/tiny_run.h"

#include <unistd.h>

#include "base/rng.h"
#include "model/run/checkpoint/files.h"
#include "tests/support/data_test.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"

static void close_run(void *what) {
  TinyRun *run = what;
  llama_destroy(&run->llama);
  run->be->services.destroy(run->be);
  free(run);
}

TinyRun *tiny_run_open(const char *text) {
  Error err = {""};
  TinyRun *run = xcalloc(1, sizeof *run);
  char *json = held_text("{\"model\": {\"hidden_size\": 16, \"intermediate_size\": 20,"
                         " \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                         " \"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 11,"
                         " \"max_position_embeddings\": 16%s%s},"
                         " \"data\": {\"train\": \"unused.bin\"},"
                         " \"train\": {\"steps\": 400, \"sequence_length\": 8, \"batch_size\": 1},"
                         " \"output\": {\"dir\": \"unused\"}}",
                         text[0] ? ", " : "", text);
  must(config_parse(&run->config, "tiny", json, 0, NULL, &err), &err);
  const Config *c = &run->config;
  const Spec asked = {TRAINS(1, 8, 1), .muon = c->optimizer.kind == OPTIMIZER_MUON,
                      .moments = c->backend.moments, .masters = c->backend.masters, .threads = 1};
  const Spec spec = model_spec(&c->model, asked);
  run->be = backend_cpu_create(&spec);
  must(llama_create(&run->llama, &c->model, run->be, &err), &err);
  return hold(run, close_run);
}

static void close_generator(void *generator) {
  generator_destroy(generator);
}

TinyRun *tiny_run_drawn(const char *text, uint64_t seed) {
  TinyRun *run = tiny_run_open(text);
  llama_init_weights(&run->llama, seed);
  return run;
}

Generator *tiny_generator(TinyRun *run) {
  Error err;
  return hold(must_make(generator_create(&run->llama, 8, &err), &err), close_generator);
}

// Value i of one array of one version; every seventh is far out of the ordinary.
static float tiny_value(uint64_t version, int array, int64_t i) {
  static const float odd[] = {0.0f, -0.0f, 0x1p-149f, 0x1.fffffep127f, 1.0f, -0x1p-126f};
  const uint64_t key = version * 1000 + (uint64_t)array;
  const float value =
      i % 7 == 3 ? odd[rng_u64(key, (uint64_t)i) % 6] : (float)rng_normal(key, (uint64_t)i);
  if (array % 3 == 2) return fabsf(value);                            // exp_avg_sq
  return array % 3 == 0 && value > 0x1.fep127f ? 0x1.fep127f : value; // a weight is finite in bf16
}

// Value `part` of a parameter: masters that are kept in bf16 have no other bits.
static float *tiny_array(const TinyRun *run, uint64_t version, int param, int part) {
  const ParamTensor *p = &run->llama.tensors[param];
  const int64_t count = p->rows * p->cols;
  const bool bf16 = part == 0 && !p->vector && run->config.backend.masters == MASTERS_BF16;
  float *values = xmalloc((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    values[i] = tiny_value(version, 3 * param + part, i);
    memcpy(&bits, &values[i], sizeof bits);
    bits &= bf16 ? 0xffff0000u : 0xffffffffu;
    memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

void tiny_run_fill(TinyRun *run, uint64_t version) {
  Backend *be = run->be;
  for (int i = 0; i < run->llama.param_count; i++) {
    const ParamTensor *p = &run->llama.tensors[i];
    const int64_t count = p->rows * p->cols;
    for (int j = 0; j < (p->v ? 3 : 2); j++) {
      float *values = tiny_array(run, version, i, j);
      if (j == 0) be->services.write_master(be, p, 0, values, count);
      if (j > 0) be->services.write_moments(be, j == 1 ? p->m : p->v, values, count);
      free(values);
    }
  }
}

int tiny_run_differs(const TinyRun *run, uint64_t version) {
  Backend *be = run->be;
  int differs = 0;
  for (int i = 0; i < run->llama.param_count; i++) {
    const ParamTensor *p = &run->llama.tensors[i];
    const int64_t count = p->rows * p->cols;
    float *found = xmalloc((size_t)count * sizeof *found);
    for (int j = 0; j < (p->v ? 3 : 2); j++) {
      float *expected = tiny_array(run, version, i, j);
      if (j == 0) be->services.read_master(be, found, p, 0, count);
      if (j > 0) be->services.read_moments(be, found, j == 1 ? p->m : p->v, count);
      if (memcmp(found, expected, (size_t)count * sizeof *found) != 0) differs = 1;
      free(expected);
    }
    free(found);
  }
  return differs;
}

TrainState tiny_state(int64_t step, uint64_t version) {
  return (TrainState){.step = step,
                      .updates = step - 1,
                      .sequences = UINT64_MAX - version,
                      .nonfinite = 1,
                      .best_val_loss = 1.0 / 3 + (double)version,
                      .best_val_step = step};
}

int tiny_run_save(TinyRun *run, const char *dir, const Export *export, const TrainState *state,
                  int64_t keep, Error *err) {
  const StateSource source = state_source(&run->llama);
  run->config.train.keep_checkpoints = keep;
  return checkpoint_save(dir, &source, &run->config, export, state, err);
}

PathText tiny_newest(const char *run_dir) {
  RunCheckpoints all;
  TrainState state;
  Error err = {""};
  int i = 0;
  must(run_checkpoints(&all, run_dir, &err), &err);
  while (i < all.count && checkpoint_complete(all.list[i].path.text, &state, &err) != 0) i++;
  const PathText newest = i < all.count ? all.list[i].path : path_text("%s", "");
  free(all.list);
  return newest;
}

int tiny_open(Checkpoint *c, const char *path, bool with_optimizer, Error *err) {
  *c = (Checkpoint){.with_optimizer = with_optimizer};
  return model_folder_read(path, with_optimizer, checkpoint_open_folder, c, err);
}

int tiny_load(const char *path, Llama *llama, bool with_optimizer, Error *err) {
  Checkpoint c;
  if (tiny_open(&c, path, with_optimizer, err) != 0) return -1;
  const int status = checkpoint_load(&c, llama, err);
  checkpoint_close(&c);
  return status;
}

// ---- A run and its folder

#define TIED "\"tie_word_embeddings\": true"
#define UNTIED "\"tie_word_embeddings\": false"
const TinyKind tiny_kinds[TINY_KINDS] = {
    {"fp32", TIED, SAVE_FP32, false, false},
    {"weights in bf16", UNTIED, SAVE_BF16, false, false},
    {"masters in bf16", UNTIED "}, \"backend\": {\"masters\": \"bf16\"", SAVE_BF16, false, false},
    {"FP8", UNTIED, SAVE_FP32, true, false},
    {"Muon", TIED "}, \"optimizer\": {\"kind\": \"muon\"", SAVE_FP32, false, false},
    {"Muon, FP8, bf16, shards", UNTIED "}, \"optimizer\": {\"kind\": \"muon\"", SAVE_BF16, true,
     true},
};

struct TinyScalings tiny_scalings;

static void read_scalings(Backend *be, ScalingState *to_host) {
  (void)be;
  memcpy(to_host, tiny_scalings.saved, (size_t)tiny_scalings.count * sizeof *to_host);
}

static void write_scalings(Backend *be, const ScalingState *from_host) {
  memcpy(tiny_scalings.loaded, from_host, (size_t)tiny_scalings.count * sizeof *from_host);
  be->calibrating = false;
  tiny_scalings.written++;
}

static void fill_scalings(ScalingState *states, uint64_t version) {
  for (int i = 0; i < tiny_scalings.count; i++) {
    states[i].scale = (float)(1 << i % 20);
    for (int j = 0; j < SCALE_HISTORY; j++)
      states[i].history[j] = (float)i + (float)version / (float)(j + 3);
  }
}

TinyTest *tiny_test_open_kind(const TinyKind *kind) {
  static char config[] = "{\"pad_token_id\": 3}", carried[] = "carried";
  static CarriedFile file = {"tokenizer.model", carried, sizeof carried - 1};
  TinyTest *t = held(xcalloc(1, sizeof *t));
  t->dir = temporary_folder();
  t->run = tiny_run_open(kind->model);
  t->loaded = tiny_run_open(kind->model);
  t->run->config.output.save_dtype = kind->dtype;
  t->run->llama.spec.fp8 = t->loaded->llama.spec.fp8 = kind->fp8; // only the scalings are looked at
  t->run->be->calibrating = !kind->fp8;
  t->loaded->be->calibrating = true;
  t->run->be->services.scalings_read = read_scalings;
  t->loaded->be->services.scalings_write = write_scalings;
  tiny_scalings = (struct TinyScalings){.count = scaling_count(&t->run->config.model)};
  assert_in_range(tiny_scalings.count, 1, TINY_SCALINGS);
  if (!kind->export) return t;
  t->export = (Export){.tokenizer = open_tokenizer(BYTES_NAME),
                       .config = config,
                       .files = &file,
                       .count = 1,
                       .shard_bytes = 4000};
  return t;
}

TinyTest *tiny_test_open(const char *model) {
  return tiny_test_open_kind(&(TinyKind){.model = model});
}

int tiny_test_differs(const TinyTest *t, uint64_t version) {
  ScalingState expected[TINY_SCALINGS] = {0};
  fill_scalings(expected, version);
  return tiny_run_differs(t->loaded, version) ||
         (t->loaded->llama.spec.fp8 &&
          memcmp(expected, tiny_scalings.loaded, sizeof expected) != 0);
}

PathText tiny_test_path(const TinyTest *t, const char *name) {
  return path_text("%s/%s", t->dir, name);
}

char *tiny_test_read(const TinyTest *t, const char *name, size_t *bytes) {
  return file_text(tiny_test_path(t, name).text, bytes);
}

int tiny_test_load(TinyTest *t, bool with_optimizer, Error *err) {
  return tiny_load(t->dir, &t->loaded->llama, with_optimizer, err);
}

TrainState tiny_test_fill(TinyTest *t, int64_t step, uint64_t version) {
  tiny_run_fill(t->run, version);
  fill_scalings(tiny_scalings.saved, version);
  return tiny_state(step, version);
}

int tiny_test_try_save(TinyTest *t, int64_t step, uint64_t version, int64_t keep, Error *err) {
  const TrainState state = tiny_test_fill(t, step, version);
  return tiny_run_save(t->run, t->dir, t->export.count ? &t->export : NULL, &state, keep, err);
}

void tiny_test_save(TinyTest *t, int64_t step, uint64_t version, int64_t keep) {
  Error err = {""};
  must(tiny_test_try_save(t, step, version, keep, &err), &err);
}

void tiny_test_sign(const TinyTest *t, const char *name, int64_t step) {
  Error err = {""};
  FileSums sums = {.step = step};
  const PathText folder = tiny_test_path(t, name);
  unlink(path_text("%s/" CHECKSUMS_FILE, folder.text).text);
  must(sums_write(&sums, folder.text, &err), &err);
  sums_free(&sums);
}

bool tiny_test_has(const TinyTest *t, const char *name) {
  return path_exists(tiny_test_path(t, name).text);
}

void tiny_test_write(const TinyTest *t, const char *name, const char *text) {
  put_file(tiny_test_path(t, name).text, text);
}

void tiny_test_remove(const TinyTest *t, const char *name) {
  if (unlink(tiny_test_path(t, name).text) != 0) fail_msg("cannot remove %s", name);
}
