#include "model/run/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "data/tokenizer.h"
#include "model/optimizer.h"
#include "model/ranges.h"
#include "model/step.h"

static Loader *open_data(const Config *c, const char *pattern, bool shuffle, Error *err) {
  const LoaderConfig loader = {.pattern = pattern,
                               .batch = c->train.batch_size,
                               .seq = c->train.sequence_length,
                               .vocab_size = c->model.vocab_size,
                               .seed = c->train.seed,
                               .shuffle = shuffle};
  return loader_open(&loader, err);
}

static int64_t tokens_per_step(const Config *c) {
  return c->train.batch_size * c->train.sequence_length * c->train.gradient_accumulation;
}

// Weights and state from `from`, a checkpoint folder.
static int resume(Trainer *t, const char *from, Error *err) {
  Config saved;
  if (checkpoint_read_config(from, &saved, err) != 0) return -1;
  if (!t->config.train.resume_allow_changes && config_compare(&saved, &t->config, err) != 0)
    return error_prefix(err, "cannot resume from '%s'", from);
  if (checkpoint_read_state(from, &t->state, err) != 0) return -1;
  if (checkpoint_load(from, &t->llama, true, err) != 0) return -1;
  t->be->set_updates(t->be, t->state.updates);
  loader_seek(t->train_data, t->state.sequences);
  t->saved_step = t->state.step;
  t->resumed = true;
  return 0;
}

static int set_weights(Trainer *t, Error *err) {
  const Config *c = &t->config;
  char existing[PATH_CHARS], from[PATH_CHARS] = "";
  if (checkpoint_find("auto", c->output.dir, existing, err) != 0) return -1;
  if (c->train.resume[0] == '\0' && existing[0] != '\0')
    return error_set(err,
                     "output.dir '%s' already holds the checkpoints of a run; go on with it by "
                     "train.resume=auto, or choose another output.dir",
                     c->output.dir);
  if (c->train.resume[0] != '\0' && checkpoint_find(c->train.resume, c->output.dir, from, err) != 0)
    return -1;
  if (from[0] != '\0') return resume(t, from, err);
  llama_init_weights(&t->llama, c->train.seed);
  if (c->train.init_from[0] == '\0') return 0;
  if (checkpoint_find(c->train.init_from, c->output.dir, from, err) != 0) return -1;
  return checkpoint_load(from, &t->llama, false, err);
}

static void print_start(const Trainer *t) {
  const Config *c = &t->config;
  const ModelConfig *m = &c->model;
  printf("model      %s\n", model_text(m).text);
  printf("backend    %s: %s\n", t->be->name, t->be->description);
  if (t->be->costs[0] != '\0') printf("           %s\n", t->be->costs);
  printf("data       %s training tokens in %d file%s",
         count_text((double)loader_tokens(t->train_data)).text, loader_files(t->train_data),
         loader_files(t->train_data) == 1 ? "" : "s");
  if (t->val_data)
    printf(", %s validation tokens", count_text((double)loader_tokens(t->val_data)).text);
  const double epochs =
      (double)(c->train.steps * c->train.batch_size * c->train.gradient_accumulation) /
      (double)loader_windows(t->train_data);
  printf("; the run reads %.2f epochs\n", epochs);
  printf("step       %lld x %lld x %lld tokens (accumulation x sequences x length), %.3g model "
         "FLOPs\n",
         (long long)c->train.gradient_accumulation, (long long)c->train.batch_size,
         (long long)c->train.sequence_length,
         model_step_flops(m, c->train.batch_size * c->train.gradient_accumulation,
                          c->train.sequence_length));
  const int64_t first = t->state.step + c->output.profile_start,
                last = first + c->output.profile_steps - 1;
  if (c->output.profile_steps > 0)
    printf("profile    steps %lld to %lld%s\n", (long long)first, (long long)last,
           first > c->train.steps ? ", which this run does not reach" : "");
  if (t->tracing)
    printf("breakdown  every %lld steps and at the last one\n",
           (long long)c->output.breakdown_interval);
  if (t->resumed)
    printf("resumed    at step %lld of %lld\n", (long long)t->state.step,
           (long long)c->train.steps);
  fflush(stdout);
}

static int open_trace(Trainer *t, Error *err) {
  if (!t->be->trace_open)
    return error_set(err, "output.breakdown is true, but only a GPU's steps can be split up, and "
                          "this run is on the CPU: leave it false");
  if (t->be->trace_open(t->be, err) != 0) return error_prefix(err, "output.breakdown is true");
  t->tracing = true;
  return 0;
}

static int open_parts(Trainer *t, Error *err) {
  const Config *c = &t->config;
  RunShape shape = run_shape(c);
  const size_t M = (size_t)(c->train.batch_size * c->train.sequence_length);
  t->train_data = open_data(c, c->data.train, c->data.shuffle, err);
  if (!t->train_data) return error_prefix(err, "data.train");
  if (c->data.val[0] != '\0') {
    t->val_data = open_data(c, c->data.val, false, err);
    if (!t->val_data) return error_prefix(err, "data.val");
  }
  t->be = backend_create(c, &shape, c->train.sequence_length, err);
  if (!t->be || (c->output.breakdown && open_trace(t, err) != 0)) return -1;
  MemoryPlan plan;
  memory_plan(&plan, &c->model, &shape, t->be);
  memory_plan_print(&plan);
  t->planned_bytes = plan.total_bytes;
  if (llama_create(&t->llama, &c->model, &shape, t->be, err) != 0) return -1;
  t->tokens = xmalloc(2 * M * sizeof *t->tokens);
  t->targets = t->tokens + M;
  if (set_weights(t, err) != 0) return -1;
  if (shape.context > 0) {
    t->generator = generator_create(&t->llama, shape.context, err);
    if (!t->generator) return -1;
  }
  return 0;
}

// The run's folder comes last, so that a mistake found above leaves nothing behind.
static int open_output(Trainer *t, Error *err) {
  const Config *c = &t->config;
  if (directory_create(c->output.dir, err) != 0) return -1;
  if (log_open(&t->log, c->output.dir, c->train.steps, err) != 0) return -1;
  char *json = config_json(c), *path = xasprintf("%s/run.json", c->output.dir);
  const int status = file_write_atomic(path, json, strlen(json), err);
  free(path);
  free(json);
  return status;
}

int trainer_open(Trainer *t, const Config *config, Error *err) {
  *t = (Trainer){.config = *config, .saved_step = -1, .state = {.best_val_loss = NAN}};
  if (open_parts(t, err) != 0 || open_output(t, err) != 0) {
    trainer_close(t);
    return -1;
  }
  print_start(t);
  log_start(&t->log, t->state.step, model_parameters(&config->model, true), tokens_per_step(config),
            t->be->name, t->resumed);
  return 0;
}

static void profile(Trainer *t, bool open) {
  t->be->profile(t->be, open);
  t->profiling = open;
}

void trainer_close(Trainer *t) {
  if (t->profiling) profile(t, false);
  log_close(&t->log);
  generator_destroy(t->generator);
  if (t->train_data) loader_close(t->train_data);
  if (t->val_data) loader_close(t->val_data);
  free(t->tokens);
  if (t->llama.be) llama_destroy(&t->llama);
  if (t->be) t->be->destroy(t->be);
  *t = (Trainer){0};
}

// A process' first step launches what its second one records; from the third on steps are alike.
enum { WARM_UP_STEPS = 2 };

// Books the oldest step that was asked for in the state and the log; an error when too many updates
// in a row were refused.
static int book_step(Trainer *t, Error *err) {
  const Config *c = &t->config;
  TrainState *s = &t->state;
  PendingStep *pending = &t->pending[t->booked++ % MAX_RESULTS];
  const StepResult result = t->be->step_result(t->be);
  const double now = now_ms(), began = fmax(pending->asked_ms, t->booked_ms);
  t->booked_ms = now;
  s->step++;
  s->updates = result.updates;
  s->sequences = pending->cursor;
  s->nonfinite += !result.applied;
  s->nonfinite_row = result.applied ? 0 : s->nonfinite_row + 1;

  const double ms = now - began, peak = t->be->peak_flops;
  if (!pending->traced && t->booked > WARM_UP_STEPS) {
    t->untraced++;
    t->untraced_ms += ms;
  }
  const int64_t sequences = c->train.batch_size * c->train.gradient_accumulation;
  const StepLine line = {
      .step = s->step,
      .loss = result.loss,
      .lr = pending->learning_rate,
      .grad_norm = result.grad_norm,
      .ms = ms,
      .tokens = tokens_per_step(c),
      .mfu = peak > 0 ? model_step_flops(&c->model, sequences, c->train.sequence_length) /
                            (ms * 1e-3 * peak)
                      : NAN,
      .applied = result.applied};
  log_train(&t->log, &line, s->step % c->output.log_interval == 0 || s->step == c->train.steps);
  const size_t taken = t->booked == 1 ? t->be->memory_taken(t->be) : 0;
  if (taken > 0) // after the first step: libraries load their code when it is first called
    printf("memory     %s taken on the GPU by the driver's count, %s planned (%+.1f %%)\n",
           size_text(taken).text, size_text(t->planned_bytes).text,
           100 * ((double)taken / (double)t->planned_bytes - 1));
  if (result.applied || s->nonfinite_row < c->train.max_nonfinite) return 0;
  error_set(err,
            "stopped at step %lld: %lld updates in a row had a loss or gradient norm that is not "
            "finite, and "
            "none of them was applied; lower optimizer.learning_rate or look at the data",
            (long long)s->step, (long long)s->nonfinite_row);
  log_stop(&t->log, s->step, err->text);
  return -1;
}

int trainer_settle(Trainer *t, Error *err) {
  while (t->booked < t->asked)
    if (book_step(t, err) != 0) return -1;
  return 0;
}

int64_t trainer_step_asked(const Trainer *t) {
  return t->state.step + (t->asked - t->booked);
}

static void next_batch(void *trainer) {
  Trainer *t = trainer;
  loader_next(t->train_data, t->tokens, t->targets);
  llama_load_batch(&t->llama, t->tokens, t->targets);
}

// A trace that fails ends the traces, not the training.
static void stop_tracing(Trainer *t, int64_t step, const Error *why) {
  fflush(stdout);
  fprintf(stderr, "no breakdown of step %lld: %s; training goes on without them\n", (long long)step,
          why->text);
  t->tracing = false;
}

// Where the next step is one to trace: waits for those before it, and traces from here on. The
// first trace of a process is thrown away: in it CUPTI prepares the recorded graphs, which shows as
// about 1 ms of gaps.
static int begin_trace(Trainer *t, bool *traced, Error *err) {
  const int64_t step = trainer_step_asked(t) + 1;
  const bool due = step % t->config.output.breakdown_interval == 0 || step == t->config.train.steps;
  *traced = t->tracing && (t->asked == WARM_UP_STEPS || (t->asked > WARM_UP_STEPS && due));
  if (!*traced) return 0;
  if (trainer_settle(t, err) != 0) return -1;
  Error why;
  if (t->be->trace_begin(t->be, &why) == 0) return 0;
  stop_tracing(t, step, &why);
  *traced = false;
  return 0;
}

static int tell_breakdown(Trainer *t, double step_ms, const Activities *activities, Error *err) {
  Breakdown b = {.step_ms = step_ms,
                 .other_steps_ms = t->untraced > 0 ? t->untraced_ms / (double)t->untraced : NAN};
  t->untraced = 0;
  t->untraced_ms = 0;
  breakdown_make(&b, activities);
  const bool seen = b.groups[GROUP_PRODUCTS].count > 0;
  if (seen) log_breakdown(&t->log, t->state.step, &b);
  breakdown_free(&b);
  return seen ? 0
              : error_set(err, "CUPTI recorded none of its matrix products, as happens beside "
                               "another profiler");
}

static int end_trace(Trainer *t, double asked_ms, Error *err) {
  Activities activities;
  Error why;
  const int status = trainer_settle(t, err);
  const double step_ms = t->booked_ms - asked_ms;
  if (t->be->trace_end(t->be, &activities, &why) != 0 ||
      (status == 0 && t->booked > WARM_UP_STEPS + 1 &&
       tell_breakdown(t, step_ms, &activities, &why) != 0))
    stop_tracing(t, t->state.step, &why);
  return status;
}

int trainer_step(Trainer *t, Error *err) {
  const Config *c = &t->config;
  bool traced;
  if (begin_trace(t, &traced, err) != 0) return -1;
  const AdamW hyper = adamw_at(&c->optimizer, trainer_step_asked(t), c->train.steps);
  PendingStep *pending = &t->pending[t->asked % MAX_RESULTS];
  *pending =
      (PendingStep){.learning_rate = hyper.learning_rate, .asked_ms = now_ms(), .traced = traced};
  if (c->output.profile_steps > 0 && t->asked + 1 == c->output.profile_start) profile(t, true);
  range_push("step");
  step_ask(&(StepRequest){.llama = &t->llama,
                          .accumulation = c->train.gradient_accumulation,
                          .next_batch = next_batch,
                          .context = t},
           &hyper);
  range_pop();
  pending->cursor = loader_cursor(t->train_data);
  t->asked++;
  if (t->profiling && t->asked + 1 == c->output.profile_start + c->output.profile_steps)
    profile(t, false);
  if (traced) return end_trace(t, pending->asked_ms, err);
  return t->asked - t->booked > t->be->steps_ahead ? book_step(t, err) : 0;
}

static void issue_validation(void *trainer) {
  Trainer *t = trainer;
  llama_forward(&t->llama);
  llama_loss(&t->llama, t->val_scale);
}

// The mean loss of the first `batches` batches; false where it was asked to stop.
static bool validation_loss(Trainer *t, int64_t batches, StopRequested *stop, double *loss) {
  Backend *be = t->be;
  t->val_scale = 1 / (double)batches;
  be->step_begin(be);
  loader_seek(t->val_data, 0);
  for (int64_t i = 0; i < batches; i++) {
    if (stop()) return false;
    loader_next(t->val_data, t->tokens, t->targets);
    llama_load_batch(&t->llama, t->tokens, t->targets);
    be->replay(be, REPLAY_VALIDATION, issue_validation, t);
  }
  be->step_end(be);
  *loss = be->step_result(be).loss;
  return true;
}

void trainer_validate(Trainer *t, StopRequested *stop) {
  if (!t->val_data) return;
  const Config *c = &t->config;
  const int64_t whole = loader_windows(t->val_data) / c->train.batch_size,
                asked = c->train.eval_batches;
  const int64_t batches = asked > 0 && asked < whole ? asked : whole;
  double loss = NAN;
  range_push("evaluation");
  const bool finished = validation_loss(t, batches, stop, &loss);
  range_pop();
  if (!finished) return;
  const bool best = !(loss >= t->state.best_val_loss) && isfinite(loss);
  if (best) {
    t->state.best_val_loss = loss;
    t->state.best_val_step = t->state.step;
  }
  log_val(&t->log, t->state.step, loss, batches * c->train.batch_size * c->train.sequence_length,
          best);
}

typedef struct Text {
  char *bytes;
  size_t count;
  StopRequested *stop;
} Text;

static bool collect(void *context, int32_t token) {
  Text *text = context;
  if (token < 256)
    text->bytes[text->count++] = (char)token; // begin and end of document are no text
  return !text->stop();
}

void trainer_sample(Trainer *t, StopRequested *stop) {
  if (!t->generator) return;
  const TrainConfig *c = &t->config.train;
  const size_t prompt_bytes = strlen(c->sample_prompt);
  int32_t *prompt = xmalloc((prompt_bytes + 1) * sizeof *prompt);
  prompt[0] = TOKEN_BEGIN;
  bytes_encode(c->sample_prompt, prompt_bytes, prompt + 1);
  Text text = {.bytes = xmalloc(prompt_bytes + (size_t)c->sample_tokens),
               .count = prompt_bytes,
               .stop = stop};
  memcpy(text.bytes, c->sample_prompt, prompt_bytes);
  const SampleOptions options = {.temperature = c->sample_temperature,
                                 .top_p = 1,
                                 .seed = c->seed,
                                 .max_tokens = c->sample_tokens};
  Error err;
  range_push("sample");
  const int64_t written =
      generate(t->generator, prompt, (int64_t)prompt_bytes + 1, &options, collect, &text, &err);
  range_pop();
  if (written < 0) {
    fprintf(stderr, "no sample: %s\n", err.text);
  } else {
    printf("step %lld | sample\n----\n%.*s\n----\n", (long long)t->state.step, (int)text.count,
           text.bytes);
    fflush(stdout);
    log_sample(&t->log, t->state.step, text.bytes, text.count);
  }
  free(text.bytes);
  free(prompt);
}

int trainer_save(Trainer *t, Error *err) {
  const Config *c = &t->config;
  if (t->saved_step == t->state.step || c->train.save_interval < 0) return 0;
  range_push("save");
  const int status =
      checkpoint_save(c->output.dir, &t->llama, c, &t->state, c->train.keep_checkpoints, err);
  range_pop();
  if (status != 0) return -1;
  t->saved_step = t->state.step;
  char *path = xasprintf("%s/step-%08lld", c->output.dir, (long long)t->state.step);
  log_save(&t->log, t->state.step, path);
  free(path);
  return 0;
}
