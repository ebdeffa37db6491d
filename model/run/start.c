// What a run starts from: random weights, weights of another model, or a checkpoint, to which
// configuration, tokenizer and data have to fit.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/minmax.h"
#include "model/optimizer.h"
#include "model/run/run.h"

static const TokenizerFacts *facts_of(const Run *run) {
  return run->inputs.tokenizer ? tokenizer_facts(run->inputs.tokenizer) : NULL;
}

// Weights fix the vocabulary. Without any, the files and their tokenizer do.
static int check_ids(const Run *run, Error *err) {
  Loader *const loaders[] = {run->inputs.train, run->inputs.val};
  const TokenizerFacts *facts = facts_of(run);
  const char *from = run->start.from.path;
  for (int i = 0; i < 2 && loaders[i]; i++) {
    const int status = loader_check(loaders[i], run->config.model.vocab_size, err);
    if (status == 0) continue;
    if (status < 0) return -1;
    if (from[0] != '\0')
      return error_append(err, ": make token files with the tokenizer of the model in '%s'", from);
    return error_append(
        err, ": set model.vocab_size to %" PRId64 " or more",
        max_i64(facts ? facts->vocab_size : 0, (int64_t)loader_largest(loaders[i]) + 1));
  }
  return 0;
}

// ---- The checkpoint or weights that a run starts from

// State and configuration of the checkpoint that the run resumes from, and the changes. The moments
// of one kind of optimizer are of no use to the other.
static int check_resume(Run *run, Error *err) {
  const char *from = run->start.from.path;
  Config saved;
  const Config *now = &run->config;
  TrainState *state = &run->state;
  if (checkpoint_read_config(from, &saved, err) != 0) return -1;
  if (saved.optimizer.kind != now->optimizer.kind)
    return error_set(
        err,
        "cannot resume from '%s': it has the moments of optimizer.kind=%s: resume with "
        "that, or start another run from its weights by train.init_from='%s'",
        from, optimizer_name(saved.optimizer.kind), from);
  if (config_compare(&saved, now, err) != 0)
    return error_prefix(err, "cannot resume from '%s'", from);
  if (checkpoint_read_state(from, state, err) != 0) return -1;
  run->start.resumed = true;
  run->saves.path = path_text("%s", from);
  free(run->start.changes);
  run->start.changes = config_changes(&saved, now);
  run->start.lr_changed = learning_rate(&saved.optimizer, state->step, saved.train.steps) !=
                          learning_rate(&now->optimizer, state->step, now->train.steps);
  if (run->start.changes[0] != '\0')
    state->nonfinite_row = 0; // another learning rate may end the row
  return 0;
}

// What else shapes the run has changed: -1, unless that is allowed.
static int changed(const Run *run, PathText what, Error *err) {
  if (run->config.train.resume_allow_changes) return 0;
  return error_set(err, "cannot resume from '%s': %s (train.resume_allow_changes=true allows it)",
                   run->start.from.path, what.text);
}

// A checkpoint that names no tokenizer resumes with any.
static int check_tokenizer(Run *run, Error *err) {
  const TokenizerFacts *facts = facts_of(run);
  const uint64_t now = facts ? facts->fingerprint : 0, was = run->state.tokenizer;
  run->state.tokenizer = now;
  if (was == 0 || was == now) return 0;
  const char *name = facts ? facts->name : "none";
  return changed(run, path_text("it was trained with another tokenizer than '%s'", name), err);
}

// The source of the checkpoint that source i of the run continues; NULL: it is new.
static const SourceState *saved_source(const TrainState *saved, int i, const Source *source) {
  if (i < saved->source_count && saved->sources[i].data == source->fingerprint)
    return &saved->sources[i];
  for (const SourceState *s = saved->sources; s < saved->sources + saved->source_count; s++)
    if (s->data == source->fingerprint) return s;
  return NULL;
}

// Weights that were written in another way, such as 30:10 for 3:1, may differ by rounding.
static bool same_share(double a, double b) {
  return fabs(a - b) <= 1e-12 * a;
}

// Each source continues at its own position. Shares hold from here on, unless all sources and
// weights are those of the checkpoint: true. One without sources has one, with all its sequences.
static bool resume_data(Run *run) {
  Loader *loader = run->inputs.train;
  TrainState *state = &run->state, saved = *state;
  Draws *drawn = &loader->drawn;
  *drawn = (Draws){.windows = saved.sequences};
  if (saved.source_count == 0) {
    const uint64_t data = loader->source_count > 1 ? saved.data : loader->fingerprint;
    saved.sources[saved.source_count++] = (SourceState){
        .data = data, .weight = 1, .drawn = saved.sequences, .since = saved.sequences};
  }
  bool same = saved.source_count == loader->source_count;
  for (int i = 0; i < loader->source_count; i++) {
    const Source *source = &loader->sources[i];
    const SourceState *from = saved_source(&saved, i, source);
    same &= from == &saved.sources[i] && same_share(from->weight, loader->weights[i]);
    drawn->of[i] = from ? from->drawn : 0;
    drawn->since[i] = from ? from->since : 0;
  }
  if (!same) memset(drawn->since, 0, sizeof drawn->since);
  for (int i = 0; i < loader->source_count && same; i++)
    loader->weights[i] = saved.sources[i].weight; // to the bit
  const bool mixed = loader->source_count > 1 || drawn->since[0] < drawn->windows;
  state->source_count = mixed ? loader->source_count : 0;
  memset(state->sources, 0, sizeof state->sources);
  for (int64_t i = 0; i < state->source_count; i++)
    state->sources[i] = (SourceState){.data = loader->sources[i].fingerprint,
                                      .weight = loader->weights[i],
                                      .drawn = drawn->of[i],
                                      .since = drawn->since[i]};
  return same;
}

static int tokens_changed(const Run *run, Error *err) {
  const char *data = run->config.data.train;
  return changed(run, path_text("'%s' holds other tokens than it was trained on", data), err);
}

// The data are compared by what they hold, not by where they are. A checkpoint that does not name
// its data resumes on any data.
static int check_data(Run *run, Error *err) {
  const Loader *loader = run->inputs.train;
  const TrainState saved = run->state;
  const bool same = resume_data(run);
  run->state.data = loader->fingerprint;
  if (saved.data == 0) return 0;
  if (saved.data != run->state.data) return tokens_changed(run, err);
  if (same) return 0;
  PathText what = path_text("its data have other weights");
  for (int64_t i = min_i64(loader->source_count, saved.source_count) - 1; i >= 0; i--)
    if (!same_share(saved.sources[i].weight, loader->weights[i]))
      what =
          path_text("'%s' had %.3g %% of the windows, and has %.3g %% now", loader->sources[i].name,
                    100 * saved.sources[i].weight, 100 * loader->weights[i]);
  return changed(run, what, err);
}

// Reads what is not known of the token files yet.
static int check_tokens(Run *run, Error *err) {
  const uint64_t was = run->state.tokens;
  if (check_ids(run, err) != 0) return -1;
  run->state.tokens = run->inputs.train->checksum;
  return was == 0 || was == run->state.tokens ? 0 : tokens_changed(run, err);
}

// Losses on other windows cannot be compared: the best one is forgotten.
static void check_validation(Run *run) {
  TrainState *s = &run->state;
  if (!run->inputs.val) return;
  const uint64_t was = s->validation;
  s->validation = val_fingerprint(&run->inputs.windows, run->inputs.val->fingerprint,
                                  run->config.train.sequence_length);
  run->start.val_changed = isfinite(s->best_val_loss) && was != s->validation;
  if (!run->start.val_changed) return;
  s->best_val_loss = NAN;
  s->best_val_step = 0;
}

// Keys that follow from the folder of the weights, if there is one, and from the data. An older
// checkpoint would not mend an error here.
static int open_beside(Run *run, Error *err) {
  const Config *c = &run->config;
  const bool muon = c->optimizer.kind == OPTIMIZER_MUON;
  const char *from = run->start.from.path;
  tokenizer_close(run->inputs.tokenizer);
  export_close(&run->saves.export);
  run->inputs.tokenizer = NULL;
  if (from[0] && run->start.from.with_optimizer && check_resume(run, err) != 0) return -1;
  if (from[0] && !run->start.from.with_optimizer && model_config_check(&c->model, from, err) != 0)
    return error_prefix(err, "train.init_from");
  if (run_tokenizer(&run->inputs.tokenizer, c, run->inputs.train, run->inputs.val, from, err) !=
          0 ||
      check_tokenizer(run, err) != 0 || check_data(run, err) != 0 ||
      (from[0] && checkpoint_check(&run->start.from, &c->model, muon, err) != 0))
    return -1;
  return export_open(&run->saves.export, run->inputs.tokenizer, from, err);
}

// Without `latest` readers take the largest step, so a run cannot go back there.
static int find_later(Run *run, Error *err) {
  const Config *c = &run->config;
  RunCheckpoints all;
  LaterSteps *later = &run->start.later;
  const int status = run_checkpoints(&all, c->output.dir, err);
  for (int i = 0; i < all.count; i++) {
    if (all.list[i].step <= run->state.step || all.list[i].old) continue;
    later->count++;
    later->last = max_i64(later->last, all.list[i].step);
  }
  later->best = link_step(c->output.dir, BEST_LINK) > run->state.step;
  free(all.list);
  if (status != 0 || later->count == 0 || all.latest >= 0 || strcmp(c->train.resume, "auto") == 0)
    return status;
  return error_set(
      err,
      "output.dir '%s' has checkpoints up to step %lld, and no link 'latest' that could go "
      "back to step %lld: choose another output.dir",
      c->output.dir, (long long)later->last, (long long)run->state.step);
}

// The start of a run, as it is read.
typedef struct Reading {
  Run *run;
  int status; // of open_beside
  Error why;
} Reading;

static int read_start(void *start, const char *folder, const FileSums *sums, Error *err) {
  Reading *s = start;
  if (checkpoint_open_folder(&s->run->start.from, folder, sums, err) != 0) return -1;
  s->status = open_beside(s->run, &s->why);
  return 0;
}

// run->start.from.path becomes the folder of the weights, "" where they are random.
static int open_start(Run *run, Error *err) {
  const Config *c = &run->config;
  const char *resume = c->train.resume, *init_from = c->train.init_from;
  const bool newest = strcmp(resume, "auto") == 0;
  Reading start = {.run = run};
  int status = 1; // no folder
  const int existing = checkpoint_exists(c->output.dir, err);
  if (existing < 0) return -1;
  if (resume[0] == '\0' && existing > 0)
    return error_set(err,
                     "output.dir '%s' already holds the checkpoints of a run; resume it by "
                     "train.resume=auto, or choose another output.dir",
                     c->output.dir);
  if (resume[0] != '\0' && !newest && !path_exists(resume))
    return error_set(err,
                     "train.resume is '%s', but it must be \"auto\", or the folder of a checkpoint "
                     "or a run",
                     resume);
  run->start.from.with_optimizer = true;
  if (newest)
    status = run_folder_read(c->output.dir, true, read_start, &start, err);
  else if (resume[0] != '\0')
    status = model_folder_read(resume, true, read_start, &start, err);
  if (status == 1 && init_from[0] != '\0') {
    run->start.from.with_optimizer = false;
    status = model_folder_read(init_from, false, read_start, &start, err);
    if (status != 0) return error_prefix(err, "train.init_from");
  }
  if (status != 0) return status == 1 ? open_beside(run, err) : -1;
  if (start.status != 0) *err = start.why;
  return start.status == 0 && run->start.resumed ? find_later(run, err) : start.status;
}

int run_find_start(Run *run, Error *err) {
  if (open_start(run, err) != 0 || check_tokens(run, err) != 0) return -1;
  check_validation(run);
  return 0;
}
