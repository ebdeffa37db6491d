#include <inttypes.h>
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
  run->train_data = loader_open(&loader, err);
  return run->train_data ? 0 : error_prefix(err, "data.train");
}

// A single window is enough to validate on. Where training has no documents apart, its windows have
// none either: then training's recorded steps and its plan of attention serve validation, too.
static int open_val_data(Run *run, Error *err) {
  const Config *c = &run->config;
  const LoaderConfig loader = {.pattern = c->data.val,
                               .split = "val",
                               .batch = 1,
                               .seq = c->train.sequence_length,
                               .documents = c->data.documents,
                               .alone = !loader_packs(run->train_data)};
  if (c->data.val[0] == '\0') return 0;
  run->val_data = loader_open(&loader, err);
  if (!run->val_data) return error_prefix(err, "data.val");
  if (run->val_data->source_count > 1)
    return error_set(err, "data.val: validation takes no weights: give a list of paths alone");
  run->val_windows =
      val_windows(run->val_data->epoch.windows, c->train.batch_size, c->train.eval_batches);
  return 0;
}

// ---- Its tokenizer

static bool holds_tokenizer(const char *folder) {
  return folder[0] != '\0' && path_exists(path_text("%s/tokenizer.json", folder).text);
}

// The tokenizer beside the token files in place of an equal one, where it has a chat template: that
// of the conversations in them. Where it has checksums, one that cannot be read is an error.
static int take_template(Tokenizer **tokenizer, const char *beside, Error *err) {
  if (!holds_tokenizer(beside)) return 0;
  Tokenizer *theirs = tokenizer_open(beside, err);
  if (!theirs) return has_file(beside, CHECKSUMS_FILE) ? -1 : 0;
  if (tokenizer_facts(theirs)->chat_template &&
      tokenizer_facts(theirs)->fingerprint == tokenizer_facts(*tokenizer)->fingerprint) {
    tokenizer_close(*tokenizer);
    *tokenizer = theirs;
  } else {
    tokenizer_close(theirs);
  }
  return 0;
}

static int choose_tokenizer(Tokenizer **tokenizer, const Config *c, const TokenFile *file,
                            const char *from, Error *err) {
  const PathText beside = path_parent(file->path);
  const char *path = c->data.tokenizer[0] != '\0'   ? c->data.tokenizer
                     : holds_tokenizer(beside.text) ? beside.text
                     : holds_tokenizer(from)        ? from
                                                    : NULL;
  *tokenizer = tokenizer_open(path ? path : BYTES_NAME, err);
  if (!*tokenizer && path == from) return 0;
  if (!*tokenizer) return path == beside.text ? -1 : error_prefix(err, "data.tokenizer");
  const bool bytes = file->tokenizer == tokenizer_facts(*tokenizer)->fingerprint ||
                     (file->tokenizer == 0 && c->model.vocab_size == BYTE_VOCAB);
  const int status = path && path != beside.text ? take_template(tokenizer, beside.text, err) : 0;
  if (status == 0 && (path || bytes)) return 0;
  tokenizer_close(*tokenizer);
  *tokenizer = NULL;
  return status;
}

// "the tokenizer 'data/mine'", as far as can be found out.
typedef struct MakerText {
  char text[1200];
} MakerText;

static MakerText maker_text(const TokenFile *file) {
  MakerText t;
  const PathText beside = path_parent(file->path);
  const char *const paths[] = {BYTES_NAME, beside.text};
  snprintf(t.text, sizeof t.text, "another tokenizer (fingerprint %016" PRIx64 ")",
           file->tokenizer);
  for (int i = 0; i < 2; i++) {
    Error ignored;
    Tokenizer *tokenizer =
        i == 0 || holds_tokenizer(paths[i]) ? tokenizer_open(paths[i], &ignored) : NULL;
    if (tokenizer && tokenizer_facts(tokenizer)->fingerprint == file->tokenizer)
      snprintf(t.text, sizeof t.text, "the tokenizer '%.1000s'", paths[i]);
    tokenizer_close(tokenizer);
  }
  return t;
}

static int check_token_files(const Loader *loader, const Tokenizer *tokenizer, Error *err) {
  const TokenizerFacts *facts = tokenizer ? tokenizer_facts(tokenizer) : NULL;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++) {
    if (f->tokenizer == 0 || (facts && f->tokenizer == facts->fingerprint)) continue;
    const MakerText maker = maker_text(f);
    if (!facts)
      return error_set(err,
                       "'%s' was made with %s, which is not in its folder: name it in "
                       "data.tokenizer",
                       f->path, maker.text);
    return error_set(err,
                     "'%s' was made with %s, but the run's tokenizer is '%s': make the token files "
                     "with that one (./prepare --tokenizer), or name theirs in data.tokenizer",
                     f->path, maker.text, facts->name);
  }
  return 0;
}

// Fewer ids than the tokenizer's are fine as long as no file has the others: check_ids looks.
static int check_vocabulary(const Config *c, const Tokenizer *tokenizer, const char *from,
                            Error *err) {
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  const int64_t V = c->model.vocab_size, ids = facts->vocab_size;
  if (V <= ids + SPARE_TOKENS || c->data.tokenizer[0] != '\0') return 0;
  return error_set(err,
                   "model.vocab_size is %" PRId64 ", but the tokenizer '%s' has %" PRId64
                   " tokens: %stake token files of the model's tokenizer, or name this one in "
                   "data.tokenizer if you want that many unused tokens",
                   V, facts->name, ids, from[0] == '\0' ? "set it to that, " : "");
}

int run_tokenizer(Tokenizer **tokenizer, const Config *config, const Loader *train,
                  const Loader *val, const char *from, Error *err) {
  if (choose_tokenizer(tokenizer, config, &train->files[0], from, err) != 0) return -1;
  if (check_token_files(train, *tokenizer, err) == 0 &&
      (!val || check_token_files(val, *tokenizer, err) == 0) &&
      (!*tokenizer || check_vocabulary(config, *tokenizer, from, err) == 0))
    return 0;
  tokenizer_close(*tokenizer);
  *tokenizer = NULL;
  return -1;
}

// Advice that works: weights fix the vocabulary, and so does the tokenizer of the files.
static int advise_ids(const Run *run, int64_t id, Error *err) {
  const TokenizerFacts *facts = run->tokenizer ? tokenizer_facts(run->tokenizer) : NULL;
  const int64_t ids = facts ? facts->vocab_size : id + 1;
  if (id >= ids)
    error_append(err, ", and the tokenizer '%s' only 0 to %" PRId64, facts->name, ids - 1);
  if (run->start.path[0] != '\0')
    error_append(err, ": make token files with the tokenizer of the model in '%s'",
                 run->start.path);
  else if (id >= ids)
    error_append(err, ": make token files with that one, or name theirs in data.tokenizer");
  else
    error_append(err, ": set model.vocab_size to %" PRId64 " or more", ids);
  return -1;
}

// Knows the ids of all files before it advises.
static int check_ids(const Run *run, Error *err) {
  Loader *const loaders[] = {run->train_data, run->val_data};
  int64_t largest = 0;
  Error beyond = {""};
  for (int i = 0; i < 2 && loaders[i]; i++) {
    const int status = loader_check(loaders[i], run->config.model.vocab_size, err);
    if (status < 0) return -1;
    if (status > 0 && beyond.text[0] == '\0') beyond = *err;
    if (loader_largest(loaders[i]) > largest) largest = loader_largest(loaders[i]);
  }
  if (beyond.text[0] == '\0') return 0;
  *err = beyond;
  return advise_ids(run, largest, err);
}

// ---- The checkpoint or weights that a run starts from

// The moments of one kind of optimizer are of no use to the other.
static int check_optimizer(const Config *saved, const Config *now, const char *from, Error *err) {
  const char *was = optimizer_name(saved->optimizer.kind),
             *is = optimizer_name(now->optimizer.kind);
  if (saved->optimizer.kind == now->optimizer.kind) return 0;
  return error_set(err,
                   "cannot resume from '%s': it has the moments of optimizer.kind=%s, which %s "
                   "cannot use; resume with optimizer.kind=%s, or start another run with %s from "
                   "its weights: train.init_from='%s'",
                   from, was, is, was, is, from);
}

// State and configuration of the checkpoint that the run resumes from, and the changes.
static int check_resume(Run *run, Error *err) {
  const char *from = run->start.path;
  Config saved;
  const Config *now = &run->config;
  TrainState *state = &run->state;
  if (checkpoint_read_config(from, &saved, err) != 0 ||
      check_optimizer(&saved, now, from, err) != 0)
    return -1;
  if (config_compare(&saved, now, err) != 0)
    return error_prefix(err, "cannot resume from '%s'", from);
  if (checkpoint_read_state(from, state, err) != 0) return -1;
  run->resumed = true;
  run->saved = path_text("%s", from);
  run->was = precision_name(saved.backend.precision);
  free(run->changes);
  run->changes = config_changes(&saved, now);
  run->lr_changed = learning_rate(&saved.optimizer, state->step, saved.train.steps) !=
                    learning_rate(&now->optimizer, state->step, now->train.steps);
  if (run->changes[0] != '\0') state->nonfinite_row = 0; // another learning rate may end the row
  return 0;
}

// A checkpoint that names no tokenizer resumes with any.
static int check_tokenizer(Run *run, Error *err) {
  const char *from = run->start.path;
  const TokenizerFacts *facts = run->tokenizer ? tokenizer_facts(run->tokenizer) : NULL;
  const uint64_t now = facts ? facts->fingerprint : 0, was = run->state.tokenizer;
  run->state.tokenizer = now;
  if (was == 0 || was == now || run->config.train.resume_allow_changes) return 0;
  return error_set(err,
                   "cannot resume from '%s': it was trained with another tokenizer than %s%s%s "
                   "(data.tokenizer='%s' names its own; train.resume_allow_changes=true takes this "
                   "one)",
                   from, facts ? "'" : "none", facts ? facts->name : "", facts ? "'" : "", from);
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
  Loader *loader = run->train_data;
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

static int refuse_tokens(const Run *run, Error *err) {
  return error_set(
      err,
      "cannot resume from '%s': '%s' holds other tokens than those that it was trained "
      "on (train.resume_allow_changes=true takes these)",
      run->start.path, run->config.data.train);
}

static int refuse_weights(const Run *run, const TrainState *saved, Error *err) {
  const Loader *loader = run->train_data;
  error_set(err,
            "cannot resume from '%s': its data have other weights "
            "(train.resume_allow_changes=true takes the new ones): ",
            run->start.path);
  for (int i = 0; i < loader->source_count; i++)
    if (i < saved->source_count && !same_share(saved->sources[i].weight, loader->weights[i]))
      error_append(err, "'%s' had %.3g %% of the windows, and has %.3g %% now; ",
                   loader->sources[i].name, 100 * saved->sources[i].weight,
                   100 * loader->weights[i]);
  return error_append(err, "restore data.train");
}

// The data are compared by what they hold, not by where they are. A checkpoint that does not name
// its data resumes on any data.
static int check_data(Run *run, Error *err) {
  const TrainState saved = run->state;
  const bool same = resume_data(run);
  run->state.data = run->train_data->fingerprint;
  if (saved.data == 0 || run->config.train.resume_allow_changes) return 0;
  if (saved.data != run->state.data) return refuse_tokens(run, err);
  return same ? 0 : refuse_weights(run, &saved, err);
}

// Reads what is not known of the token files yet.
static int check_tokens(Run *run, Error *err) {
  const uint64_t was = run->state.tokens;
  if (check_ids(run, err) != 0) return -1;
  run->state.tokens = run->train_data->checksum;
  if (was != 0 && was != run->state.tokens && !run->config.train.resume_allow_changes)
    return refuse_tokens(run, err);
  return 0;
}

// Losses on other windows cannot be compared: the best one is forgotten.
static void check_validation(Run *run) {
  TrainState *s = &run->state;
  if (!run->val_data) return;
  const uint64_t was = s->validation;
  s->validation = val_fingerprint(&run->val_windows, run->val_data->fingerprint,
                                  run->config.train.sequence_length);
  run->val_changed = isfinite(s->best_val_loss) && was != s->validation;
  if (!run->val_changed) return;
  s->best_val_loss = NAN;
  s->best_val_step = 0;
}

// Keys that follow from the folder of the weights, if there is one, and from the data. An older
// checkpoint would not mend an error here.
static int open_beside(Run *run, Error *err) {
  const Config *c = &run->config;
  const bool muon = c->optimizer.kind == OPTIMIZER_MUON;
  const char *from = run->start.path;
  tokenizer_close(run->tokenizer);
  export_close(&run->export);
  run->tokenizer = NULL;
  if (from[0] && run->start.with_optimizer && check_resume(run, err) != 0) return -1;
  if (from[0] && !run->start.with_optimizer && model_config_check(&c->model, from, err) != 0)
    return error_prefix(err, "train.init_from");
  if (run_tokenizer(&run->tokenizer, c, run->train_data, run->val_data, from, err) != 0 ||
      check_tokenizer(run, err) != 0 || check_data(run, err) != 0 ||
      (from[0] && checkpoint_check(&run->start, &c->model, muon, err) != 0))
    return -1;
  return export_open(&run->export, run->tokenizer, from, err);
}

// Without `latest` readers take the largest step, so a run cannot go back there.
static int find_later(Run *run, Error *err) {
  const Config *c = &run->config;
  RunCheckpoints all;
  LaterSteps *later = &run->later;
  int status = run_checkpoints(&all, c->output.dir, err);
  for (int i = 0; i < all.count; i++) {
    const int64_t step = all.list[i].step;
    if (step <= run->state.step || all.list[i].old) continue;
    if (later->count == 0 || step < later->first) later->first = step;
    if (later->count == 0 || step > later->last) later->last = step;
    later->count++;
  }
  later->best = link_step(c->output.dir, BEST_LINK) > run->state.step;
  free(all.list);
  if (status != 0 || later->count == 0 || all.latest >= 0 || strcmp(c->train.resume, "auto") == 0)
    return status;
  return error_set(err,
                   "output.dir '%s' has checkpoints up to step %lld and no link 'latest', so the "
                   "run cannot go back to step %lld there: choose another output.dir, or move the "
                   "later checkpoints away",
                   c->output.dir, (long long)later->last, (long long)run->state.step);
}

// The start of a run, as it is read.
typedef struct Start {
  Run *run;
  int status; // of open_beside
  Error why;
} Start;

static int read_start(void *start, const char *folder, const FileSums *sums, Error *err) {
  Start *s = start;
  if (checkpoint_open_folder(&s->run->start, folder, sums, err) != 0) return -1;
  s->status = open_beside(s->run, &s->why);
  return 0;
}

// run->start.path becomes the folder of the weights, "" where they are random.
static int open_start(Run *run, Error *err) {
  const Config *c = &run->config;
  const char *resume = c->train.resume, *init_from = c->train.init_from;
  Start start = {.run = run};
  char existing[PATH_CHARS];
  int status = 1; // no folder
  if (checkpoint_find(c->output.dir, existing, err) != 0) return -1;
  if (resume[0] == '\0' && existing[0] != '\0')
    return error_set(err,
                     "output.dir '%s' already holds the checkpoints of a run; resume it by "
                     "train.resume=auto, or choose another output.dir",
                     c->output.dir);
  run->start.with_optimizer = true;
  if (resume[0] != '\0' && strcmp(resume, "auto") != 0 && !path_exists(resume))
    return error_set(
        err,
        "train.resume is '%s', but it must be \"auto\", for the newest checkpoint in "
        "output.dir, or the folder of a checkpoint or a run; there is none of that name",
        resume);
  if (strcmp(resume, "auto") == 0)
    status = run_folder_read(c->output.dir, true, read_start, &start, err);
  else if (resume[0] != '\0')
    status = model_folder_read(resume, true, read_start, &start, err);
  if (status == 1 && init_from[0] != '\0') {
    run->start.with_optimizer = false;
    status = model_folder_read(init_from, false, read_start, &start, err);
    if (status != 0) return error_prefix(err, "train.init_from");
  }
  if (status != 0) return status == 1 ? open_beside(run, err) : -1;
  if (start.status != 0) *err = start.why;
  return start.status == 0 && run->resumed ? find_later(run, err) : start.status;
}

// Another backend than the checkpoint's is no error, but reported.
static void note_backend(Run *run) {
  const BackendText now = backend_identity(run->be);
  char *was = run->state.backend;
  if (was[0] != '\0' && strcmp(was, now.text) != 0)
    snprintf(run->was_on.text, sizeof run->was_on.text, "%s", was);
  snprintf(was, sizeof run->state.backend, "%s", now.text);
}

static int load_weights(Run *run, Error *err) {
  if (run->start.path[0] == '\0')
    llama_init_weights(&run->llama, run->config.train.seed);
  else if (checkpoint_load(&run->start, &run->llama, err) != 0)
    return -1;
  if (run->resumed && !run->start.has_checksums)
    printf("checkpoint '%s' has no checksums, as older ones: damage may go unseen\n",
           run->start.path);
  checkpoint_close(&run->start);
  if (!run->resumed) return 0;
  run->be->services.set_updates(run->be, run->state.updates);
  run->saved_step = run->state.step;
  run->best_saved = (BestLoss){run->state.best_val_loss, run->state.best_val_step};
  return 0;
}

// ---- The start-up table: twelve lines at most. A resume has its own in the place of the settings.

// One line: the step, the changes, and the learning rate.
static void print_resumed(const Run *run) {
  const Config *c = &run->config;
  printf("resumed    at step %lld of %lld", (long long)run->state.step, (long long)c->train.steps);
  if (run->changes[0] != '\0') printf(": %s", run->changes);
  if (run->lr_changed)
    printf("; the learning rate is %.3g here",
           learning_rate(&c->optimizer, run->state.step, c->train.steps));
  if (run->val_changed) printf("; validation reads other windows, so the best loss is forgotten");
  printf("\n");
  const LaterSteps *later = &run->later;
  if (later->count > 0)
    printf("           output.dir has %d checkpoint%s of later steps, up to step %lld%s: each is "
           "replaced or removed when the run passes its step\n",
           later->count, later->count == 1 ? "" : "s", (long long)later->last,
           later->best ? ", 'best' among them" : "");
  if (run->was_on.text[0] != '\0')
    printf(
        "           the checkpoint was made on %s: the bits will not be those of one whole run\n",
        run->was_on.text);
}

static void print_backend(const Run *run) {
  const char *precision = precision_name(run->config.backend.precision), *costs = run->be->costs;
  printf("backend    %s: %s%s%s\n", run->be->name, run->be->description, costs[0] ? "; " : "",
         costs);
  const bool fp8 = run->llama.spec.fp8, other = run->was && run->was != precision;
  if (!fp8 && !other) return;
  printf("precision  ");
  if (other) printf("now %s, after %s%s", precision, run->was, fp8 ? ": " : "");
  if (fp8 && !other) printf("%s: ", precision);
  if (fp8)
    printf("layers and output layer multiply in FP8; the first step %s",
           run->calibrates ? "finds the scales" : "has the checkpoint's scales");
  printf("\n");
}

// Of the whole run.
static double epochs(const Run *run) {
  const TrainConfig *t = &run->config.train;
  return (double)(t->steps * t->batch_size * t->gradient_accumulation) /
         (double)run->train_data->epoch.windows;
}

typedef struct CountedText {
  char text[64];
} CountedText;

// ", of which 1.2k count", where not all of the tokens to predict do.
static CountedText counted_text(int64_t targets, int64_t counted) {
  CountedText t = {""};
  if (counted < targets)
    snprintf(t.text, sizeof t.text, ", of which %s count", count_text((double)counted).text);
  return t;
}

// The share of the windows, where it is not that of the tokens that count.
static void print_windows_share(double weight, double share) {
  if (fabs(weight - share) >= 5e-4) printf(", %.3g %% of the windows", 100 * weight);
}

// Of each source its share, its tokens, and how often the whole run reads it.
static void print_sources(const Run *run) {
  const Loader *loader = run->train_data;
  const double sequences = epochs(run) * (double)loader->epoch.windows;
  for (int i = 0; i < loader->source_count; i++) {
    const Source *s = &loader->sources[i];
    printf("%s%.3g %% of '%s' (%s tokens%s", i > 0 ? ", " : "", 100 * s->share, s->name,
           count_text((double)s->tokens).text, counted_text(s->targets, s->counted).text);
    print_windows_share(loader->weights[i], s->share);
    printf(", %.2f epochs)", loader->weights[i] * sequences / (double)s->windows);
  }
}

static void print_documents(const Run *run) {
  const Epoch *e = &run->train_data->epoch;
  if (loader_packs(run->train_data))
    printf("; %s document%s, %.1f %% cut, %.1f %% padding", count_text((double)e->documents).text,
           e->documents == 1 ? "" : "s", 100 * (double)e->cut / (double)e->documents,
           100 * e->padding);
  else if (run->config.data.documents == DOCUMENTS_MASK)
    printf("; where documents end is not known");
}

static void print_tokenizer(const Run *run) {
  const TokenizerFacts *facts = run->tokenizer ? tokenizer_facts(run->tokenizer) : NULL;
  const long long V = run->config.model.vocab_size;
  if (!facts) {
    printf("\ntokenizer  not known: no samples; data.tokenizer may name it\n");
    return;
  }
  printf("\ntokenizer  %s, %lld tokens", facts->name, (long long)facts->vocab_size);
  if (facts->vocab_size > V)
    printf("; the model knows the first %lld alone, and the token files have no others", V);
  printf("\n");
}

static void warn_of_common_files(const Run *run) {
  const TokenFile *file = run->val_data ? loader_common(run->val_data, run->train_data) : NULL;
  if (!file) return;
  printf("warning    data.val: '%s' is a training file, too: a loss on it does not tell how well "
         "the model does on new text\n",
         file->path);
}

static void print_data(const Run *run) {
  const TrainConfig *t = &run->config.train;
  const Loader *train = run->train_data, *val = run->val_data;
  const bool mixed = train->source_count > 1;
  const int files = train->file_count;
  const long long tokens = t->sequence_length, sequences = t->batch_size;
  printf("data       ");
  if (mixed)
    print_sources(run);
  else
    printf("%s training tokens in %d file%s%s", count_text((double)train->epoch.tokens).text, files,
           files == 1 ? "" : "s", counted_text(train->epoch.targets, train->epoch.counted).text);
  if (val)
    printf(", %s validation tokens%s", count_text((double)val->epoch.tokens).text,
           counted_text(val->epoch.targets, val->epoch.counted).text);
  print_documents(run);
  print_tokenizer(run);
  printf("steps      %lld of ", (long long)t->steps);
  if (t->gradient_accumulation > 1) printf("%lld x ", (long long)t->gradient_accumulation);
  printf("%lld x %lld tokens (%ssequences x length)", sequences, tokens,
         t->gradient_accumulation > 1 ? "accumulation x " : "");
  if (!mixed) printf(", %.2f epochs", epochs(run));
  printf("\n");
}

static void print_memory(const Run *run) {
  const SavesPlan *saves = &run->saves_plan;
  const PlanItem *most = run->llama.plan.items; // of the device's
  for (int i = 1; i < run->llama.plan.count; i++)
    if (!run->llama.plan.items[i].host &&
        (most->host || run->llama.plan.items[i].bytes > most->bytes))
      most = &run->llama.plan.items[i];
  printf("memory     %s, the largest part %s for %s; %s were free",
         size_text(run->llama.plan.total_bytes).text, size_text(most->bytes).text, most->name,
         size_text(run->be->spec.memory_bytes).text);
  if (run->llama.plan.host_bytes > 0)
    printf("; on the host %s offloaded, of %s", size_text(run->llama.plan.host_bytes).text,
           size_text(run->be->spec.host_bytes).text);
  if (saves->background)
    printf("; on the host %s for saves", size_text(saves->bytes).text);
  else if (saves->bytes > 0)
    printf("; training waits for saves: a copy of the state takes %s of the host, and %s are left",
           size_text(saves->bytes).text, size_text(saves->left).text);
  printf("\n");
}

static void print_start(const Run *run) {
  const Config *c = &run->config;
  if (!run->resumed && strcmp(c->train.resume, "auto") == 0)
    printf("output.dir '%s' has no checkpoint to resume: a new run begins\n", c->output.dir);
  printf("model      %s\n", model_text(&c->model).text);
  print_backend(run);
  print_data(run);
  print_memory(run);
  if (run->resumed)
    print_resumed(run);
  else
    config_print(c);
  recipe_print(c, runs_on_gpu(&run->be->spec), run->resumed);
  warn_of_common_files(run);
  const long long first = run->state.step + PROFILE_START,
                  last = first + c->output.profile_steps - 1;
  if (c->output.profile_steps > 0)
    printf("profile    steps %lld to %lld%s\n", first, last,
           first > c->train.steps ? ", which this run does not reach" : "");
  fflush(stdout);
}

static void log_begin(Run *run) {
  const SavesPlan *saves = &run->saves_plan;
  const StartFacts facts = {.step = run->state.step,
                            .config = &run->config,
                            .be = run->be,
                            .plan = &run->llama.plan,
                            .host_copy = saves->background ? saves->bytes : 0,
                            .train = run->train_data,
                            .val = run->val_data,
                            .epochs = epochs(run),
                            .tokenizer =
                                run->tokenizer ? tokenizer_facts(run->tokenizer)->name : NULL,
                            .changes = run->changes};
  log_start(&run->log, &facts);
}

// ---- Opening

// All checks that need no memory. An existing folder is locked before its checkpoints are looked
// at.
static int open_inputs(Run *run, Error *err) {
  const Config *c = &run->config;
  if ((path_is_directory(c->output.dir) && run_lock(&run->lock, c->output.dir, err) != 0) ||
      open_train_data(run, err) != 0 || open_val_data(run, err) != 0 || open_start(run, err) != 0 ||
      check_tokens(run, err) != 0)
    return -1;
  check_validation(run);
  return 0;
}

static int open_parts(Run *run, Error *err) {
  const Config *c = &run->config;
  phase_end(&run->phases, "inputs");
  Hardware hardware;
  Spec asked = run_spec(c);
  spec_documents(&asked, run->train_data);
  spec_documents(&asked, run->val_data);
  if (!run->tokenizer) asked.context = 0;
  if (hardware_find(&hardware, c, err) != 0) return -1;
  const Spec spec = spec_resolve(c, asked, &hardware);
  if (plan_check(c, &spec, err) != 0) return -1;
  phase_end(&run->phases, "GPU");
  run->be = backend_open(c, &spec, &hardware, err);
  if (run->be) note_backend(run);
  if (run->be) phases_join(&run->phases, &run->be->opening, "backend");
  if (!run->be) return -1;
  if (llama_create(&run->llama, &c->model, run->be, err) != 0) {
    plan_advise(c, &run->be->spec, err);
    return -1;
  }
  // What an open GPU's run has of the host's memory is taken already.
  run->saves_plan = saves_plan(c, &spec, hardware.gpu ? 0 : run->llama.plan.total_bytes);
  run->batches = xcalloc((size_t)c->train.gradient_accumulation, sizeof *run->batches);
  for (int64_t i = 0; i < c->train.gradient_accumulation; i++)
    run->batches[i] = batch_alloc(c->train.batch_size * c->train.sequence_length);
  phase_end(&run->phases, "memory");
  if (load_weights(run, err) != 0) return -1;
  phase_end(&run->phases, "weights");
  if (run->saves_plan.background) saves_open(run);
  run->calibrates = run->be->calibrating;
  if (spec.context == 0) return 0;
  run->generator = generator_create(&run->llama, spec.context, err);
  return run->generator ? 0 : -1;
}

// Takes the lock of a folder that did not exist when its checkpoints were looked for.
static int create_folder(Run *run, Error *err) {
  const char *dir = run->config.output.dir;
  char existing[PATH_CHARS];
  if (directory_create(dir, err) != 0 || run_lock(&run->lock, dir, err) != 0 ||
      checkpoint_find(dir, existing, err) != 0)
    return -1;
  if (existing[0] == '\0') return 0;
  return error_set(err, "another process has trained in output.dir '%s' since this one started",
                   dir);
}

static int write_run_json(const Run *run, Error *err) {
  char *json = config_json(&run->config);
  const PathText path = path_text("%s/run.json", run->lock.path.text);
  const int status = file_write_atomic(path.text, json, strlen(json), err);
  free(json);
  return status;
}

static void clear_leftovers(const Run *run) {
  Error left;
  checkpoint_clear(run->lock.path.text, &left);
  run_lock_name(&run->lock, &left);
  if (left.text[0] != '\0') fprintf(stderr, "train: %s\n", left.text);
}

// The run's folder comes last, so that a mistake found above writes nothing. Up to here files were
// read by their names.
static int open_output(Run *run, Error *err) {
  const Config *c = &run->config;
  RunLock *lock = &run->lock;
  if (lock->held) clear_leftovers(run);
  if (checkpoint_room(c->output.dir, c, c->train.steps - run->state.step, err) != 0 ||
      (!lock->held && create_folder(run, err) != 0) || run_lock_check(lock, err) != 0)
    return -1;
  if (log_open(&run->log, lock->path.text, c->output.dir, c->train.steps, err) != 0 ||
      write_run_json(run, err) != 0) {
    run_lock_name(lock, err);
    return -1;
  }
  const PathText saved = path_text("%s/step-%08lld", c->output.dir, (long long)run->state.step);
  if (!run->resumed || !path_exists(saved.text)) return 0;
  log_saved_before(&run->log, run->state.step, saved.text);
  if (run->later.count == 0 || checkpoint_take_back(lock->path.text, run->state.step, err) == 0)
    return 0;
  run_lock_name(lock, err);
  return -1;
}

// Whether a resumed run has nothing left to do.
static bool has_ended(const Run *run) {
  const Config *c = &run->config;
  return run->resumed &&
         (run->state.step > c->train.steps ||
          (run->state.step == c->train.steps && log_has_end(c->output.dir, run->state.step)));
}

int run_open(Run *run, const Config *config, const volatile sig_atomic_t *stop, Error *err) {
  *run = (Run){.config = *config,
               .saved_step = -1,
               .paused_step = -1,
               .deadline_ms = now_ms() + config->train.max_minutes * 60e3,
               .state = {.best_val_loss = NAN},
               .last_val_loss = NAN,
               .best_saved = {.loss = NAN},
               .stop = stop,
               .phases = {.since_ms = process_began_ms()}};
  phase_end(&run->phases, "program");
  int status = open_inputs(run, err);
  run->finished = status == 0 && has_ended(run);
  if (run->finished) return 0;
  if (status == 0) status = open_parts(run, err);
  if (status == 0) status = open_output(run, err);
  if (status != 0) {
    run_close(run);
    return -1;
  }
  print_start(run);
  log_begin(run);
  phase_end(&run->phases, "output");
  return 0;
}

void run_close(Run *run) {
  if (run->profiling) run->be->services.profile(run->be, false);
  saves_close(run);
  log_close(&run->log);
  generator_destroy(run->generator);
  if (run->train_data) loader_close(run->train_data);
  if (run->val_data) loader_close(run->val_data);
  checkpoint_close(&run->start);
  export_close(&run->export);
  tokenizer_close(run->tokenizer);
  for (int64_t i = 0; run->batches && i < run->config.train.gradient_accumulation; i++)
    batch_free(&run->batches[i]);
  free(run->batches);
  free(run->changes);
  llama_destroy(&run->llama);
  if (run->be) run->be->services.destroy(run->be);
  run_unlock(&run->lock);
  *run = (Run){0};
}
