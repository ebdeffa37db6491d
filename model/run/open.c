// Opens a run: its data, where it starts, its model on a backend, its folder.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/os.h"
#include "model/run/run.h"

static int open_train_data(Run *run, Error *err) {
  const Config *c = &run->config;
  const LoaderConfig loader = {.pattern = c->data.train,
                               .split = "train",
                               .batch = c->train.batch_size,
                               .seq = c->train.sequence_length,
                               .seed = c->train.seed,
                               .shuffle = c->data.shuffle,
                               .documents = c->data.documents};
  run->inputs.train = loader_open(&loader, err);
  if (!run->inputs.train) return error_prefix(err, "data.train");
  if (c->train.first_context == 0 || run->inputs.train->kind == WINDOWS_JOINED) return 0;
  return error_set(err, "train.first_context needs windows of whole files: set it to 0, or set "
                        "data.documents=join and take token files without a mask");
}

// A single window is enough to validate on. Where training keeps no documents apart, validation
// keeps none either: then training's recorded steps and its plan of attention serve both.
static int open_val_data(Run *run, Error *err) {
  const Config *c = &run->config;
  const LoaderConfig loader = {.pattern = c->data.val,
                               .split = "val",
                               .batch = 1,
                               .seq = c->train.sequence_length,
                               .documents = c->data.documents,
                               .alone = !loader_packs(run->inputs.train)};
  if (c->data.val[0] == '\0') return 0;
  run->inputs.val = loader_open(&loader, err);
  if (!run->inputs.val) return error_prefix(err, "data.val");
  if (run->inputs.val->source_count > 1)
    return error_set(err, "data.val: validation takes no weights: give a list of paths alone");
  run->inputs.windows =
      val_windows(run->inputs.val->epoch.windows, c->train.batch_size, c->train.eval_batches);
  return 0;
}

// Another backend than the checkpoint's is no error, but reported.
static void note_backend(Run *run) {
  const ShortText now = backend_identity(run->be), was = run->state.backend;
  if (was.text[0] != '\0' && strcmp(was.text, now.text) != 0) run->start.was_on = was;
  run->state.backend = now;
}

static int open_weights(Run *run, Error *err) {
  if (run->start.from.path[0] == '\0')
    llama_init_weights(&run->llama, run->config.train.seed);
  else if (checkpoint_load(&run->start.from, &run->llama, err) != 0)
    return -1;
  if (run->start.resumed && !run->start.from.has_checksums)
    printf("checkpoint '%s' has no checksums, as older ones: damage may go unseen\n",
           run->start.from.path);
  checkpoint_close(&run->start.from);
  if (run->start.resumed) {
    run->be->services.set_updates(run->be, run->state.updates);
    run->saves.step = run->state.step;
    run->saves.best_saved = (BestLoss){run->state.best_val_loss, run->state.best_val_step};
  }
  phase_end(&run->phases, "weights");
  return 0;
}

static int open_tasks(Run *run, Error *err) {
  const TrainConfig *t = &run->config.train;
  Inputs *inputs = &run->inputs;
  if (t->score[0] == '\0') return 0;
  if (!inputs->tokenizer)
    return error_set(err, "train.score reads texts, so it needs data.tokenizer");
  inputs->scorer = scorer_create(inputs->tokenizer, run->config.model.vocab_size,
                                 t->sequence_length, t->sequence_length, err);
  int status = inputs->scorer ? 0 : -1;
  for (const char *at = t->score; *at && status == 0;) {
    const size_t bytes = strcspn(at, " ");
    char *word = xasprintf("%.*s", (int)bytes, at);
    if (bytes > 0) status = scorer_add(inputs->scorer, word, t->score_limit, err);
    free(word);
    at += bytes + (at[bytes] == ' ');
  }
  return status == 0 ? 0 : error_prefix(err, "train.score");
}

// All checks that need no memory. An existing folder is locked before its checkpoints are looked
// at.
static int open_inputs(Run *run, Error *err) {
  const Config *c = &run->config;
  if ((path_is_directory(c->output.dir) && run_lock(&run->saves.lock, c->output.dir, err) != 0) ||
      open_train_data(run, err) != 0 || open_val_data(run, err) != 0 ||
      run_find_start(run, err) != 0 || open_tasks(run, err) != 0)
    return -1;
  return 0;
}

static int open_model(Run *run, Error *err) {
  const Config *c = &run->config;
  Hardware hardware;
  Spec asked = run_spec(c);
  spec_documents(&asked, run->inputs.train);
  spec_documents(&asked, run->inputs.val);
  if (!run->inputs.tokenizer) asked.context = 0;
  if (hardware_find(&hardware, c, err) != 0) return -1;
  const Spec spec = spec_resolve(c, asked, &hardware);
  if (plan_check(c, &spec, &hardware, err) != 0) return -1;
  phase_end(&run->phases, "GPU");
  if (!(run->be = backend_open(c, &spec, &hardware, err))) return -1;
  note_backend(run);
  phases_join(&run->phases, &run->be->opening, "backend");
  if (llama_create(&run->llama, &c->model, run->be, err) != 0) {
    plan_advise(c, &run->be->spec, &hardware, err);
    return -1;
  }
  // A GPU's run has taken its part of the host's memory by now.
  run->saves.plan = saves_plan(c, &spec, hardware.gpu ? 0 : run->llama.plan.total_bytes);
  run->inputs.batches = xcalloc((size_t)c->train.gradient_accumulation, sizeof(Batch));
  for (int64_t i = 0; i < c->train.gradient_accumulation; i++)
    run->inputs.batches[i] = batch_alloc(c->train.batch_size * c->train.sequence_length);
  phase_end(&run->phases, "memory");
  return 0;
}

// Takes the lock of a folder that did not exist when its checkpoints were looked for.
static int create_folder(Run *run, Error *err) {
  const char *dir = run->config.output.dir;
  if (directory_create(dir, err) != 0 || run_lock(&run->saves.lock, dir, err) != 0) return -1;
  const int existing = checkpoint_exists(dir, err);
  if (existing <= 0) return existing;
  return error_set(err, "another process has trained in output.dir '%s' since this one started",
                   dir);
}

// The folder's files. It was locked when its checkpoints were looked for, or is made now.
static int open_files(Run *run, Error *err) {
  const Config *c = &run->config;
  const char *dir = run->saves.lock.path.text;
  if (log_open(&run->log, dir, c->output.dir, c->train.steps, err) != 0) return -1;
  char *json = config_json(c);
  const int status = file_write_atomic(path_text("%s/run.json", dir).text, json, strlen(json), err);
  free(json);
  if (status != 0) return -1;
  const PathText saved = step_path(c->output.dir, run->state.step, "");
  if (!run->start.resumed || !path_exists(saved.text)) return 0;
  log_saved_before(&run->log, run->state.step, saved.text);
  return run->start.later.count > 0 ? checkpoint_take_back(dir, run->state.step, err) : 0;
}

// Up to here files were read by their names.
static int open_output(Run *run, Error *err) {
  const Config *c = &run->config;
  RunLock *lock = &run->saves.lock;
  if (lock->held) {
    Error left;
    checkpoint_clear(lock->path.text, &left);
    run_lock_name(lock, &left);
    if (left.text[0] != '\0') fprintf(stderr, "train: %s\n", left.text);
  }
  if (checkpoint_room(c->output.dir, c, c->train.steps - run->state.step, err) != 0 ||
      (!lock->held && create_folder(run, err) != 0) || run_lock_check(lock, err) != 0)
    return -1;
  if (open_files(run, err) == 0) return 0;
  run_lock_name(lock, err);
  return -1;
}

// Whether a resumed run has nothing left to do.
static bool has_ended(const Run *run) {
  const Config *c = &run->config;
  return run->start.resumed &&
         (run->state.step > c->train.steps ||
          (run->state.step == c->train.steps && log_has_end(c->output.dir, run->state.step)));
}

int run_open(Run *run, const Config *config, const volatile sig_atomic_t *stop, Error *err) {
  *run = (Run){.config = *config,
               .stop = stop,
               .deadline_ms = now_ms() + config->train.max_minutes * 60e3,
               .phases = {.since_ms = process_began_ms()},
               .inputs = {.val_bytes = -1},
               .state = {.best_val_loss = NAN},
               .steps = {.paused = -1},
               .last_val_loss = NAN,
               .saves = {.step = -1, .best_saved = {.loss = NAN}}};
  phase_end(&run->phases, "program");
  int status = open_inputs(run, err);
  run->finished = status == 0 && has_ended(run);
  if (run->finished) return 0;
  phase_end(&run->phases, "inputs");
  if (status == 0) status = open_model(run, err);
  if (status == 0) status = open_weights(run, err);
  if (status == 0 && run->saves.plan.background) saves_open(run);
  const int64_t context = status == 0 ? run->llama.spec.context : 0; // of samples
  if (context > 0 && !(run->generator = generator_create(&run->llama, context, err))) status = -1;
  if (status == 0) status = open_output(run, err); // last: a mistake found above writes nothing
  if (status != 0) {
    run_close(run);
    return -1;
  }
  run_print_start(run);
  log_start(run);
  phase_end(&run->phases, "output");
  return 0;
}

void run_close(Run *run) {
  if (run->steps.profiling) run->be->services.profile(run->be, false);
  saves_close(run);
  log_close(&run->log);
  generator_destroy(run->generator);
  if (run->inputs.train) loader_close(run->inputs.train);
  if (run->inputs.val) loader_close(run->inputs.val);
  checkpoint_close(&run->start.from);
  export_close(&run->saves.export);
  scorer_destroy(run->inputs.scorer);
  tokenizer_close(run->inputs.tokenizer);
  for (int64_t i = 0; run->inputs.batches && i < run->config.train.gradient_accumulation; i++)
    batch_free(&run->inputs.batches[i]);
  free(run->inputs.batches);
  free(run->start.changes);
  llama_destroy(&run->llama);
  if (run->be) run->be->services.destroy(run->be);
  run_unlock(&run->saves.lock);
  *run = (Run){0};
}
