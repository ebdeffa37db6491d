// What a run says when it starts and when it ends, and where its configuration is far from what
// configs/RECIPE.md says.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/file.h"
#include "data/chat/template.h"
#include "model/optimizer.h"
#include "model/run/process.h"
#include "model/run/run.h"

// ---- The recipe

// The rate of configs/RECIPE.md: 1e-3 at a width of 768, in inverse proportion to the width, but no
// more for narrow models than they bear.
static double usual_rate(const Config *c) {
  return fmin(0.768 / (double)c->model.hidden_size, 2e-3);
}

// Says which lengths hold where those of the configuration do not fit into the run.
static void print_lengths(const Config *c) {
  const OptimizerConfig *o = &c->optimizer;
  const long long steps = c->train.steps, warmup = o->warmup_steps, decay = o->decay_steps;
  const ScheduleLengths hold = schedule_lengths(o, steps);
  if (o->schedule == SCHEDULE_WSD && (hold.warmup != warmup || hold.decay != decay))
    printf("schedule   optimizer.warmup_steps %lld and decay_steps %lld are more than the %lld "
           "steps: warm-up takes %lld, decay %lld\n",
           warmup, decay, steps, (long long)hold.warmup, (long long)hold.decay);
  else if (hold.warmup != warmup)
    printf(
        "schedule   optimizer.warmup_steps %lld is more than the %lld steps: warm-up takes %lld\n",
        warmup, steps, (long long)hold.warmup);
}

static void check_threads(const Config *c) {
  const bool set = c->backend.threads > 0;
  const ThreadsAsked asked = threads_asked("");
  const int threads = set ? (int)c->backend.threads : asked.count, usable = processors_usable("");
  if (threads > usable)
    printf("warning    %d threads, %s, share %d processor%s: steps take longer; try "
           "backend.threads=%d\n",
           threads, set ? "as backend.threads asks" : asked.why, usable, usable == 1 ? "" : "s",
           usable);
}

// Trained weights take lower rates and fewer tokens. A trial of a few steps is no training.
static void check_training(const Config *c) {
  enum { TRIAL = 100, USUAL = 20 }; // steps; tokens for each parameter
  const long long steps = c->train.steps, width = c->model.hidden_size,
                  warmup = schedule_lengths(&c->optimizer, steps).warmup;
  const double rate = c->optimizer.learning_rate, usual = usual_rate(c),
               parameters = (double)model_parameters(&c->model, true), each = tokens_per_step(c),
               tokens = (double)steps * each, share = tokens / parameters;
  const bool untrained = c->train.init_from[0] == '\0', whole = untrained && steps >= TRIAL;
  if (rate > 5 * usual)
    printf("warning    optimizer.learning_rate %g is far above the usual %.2g of a width of "
           "%lld: the loss may jump or diverge; try optimizer.learning_rate=%.2g\n",
           rate, usual, width, usual);
  if (untrained && rate < usual / 10)
    printf("warning    optimizer.learning_rate %g is far below the usual %.2g of a width of "
           "%lld: the loss falls slowly; try optimizer.learning_rate=%.2g\n",
           rate, usual, width, usual);
  if (warmup > steps / 2)
    printf("warning    optimizer.warmup_steps %lld is more than half of the %lld steps: "
           "little is left at the full rate; try optimizer.warmup_steps=%lld\n",
           warmup, steps, steps / 20);
  if (whole && share < 0.1)
    printf("warning    %s tokens are %.3f for each parameter: the model learns little of what "
           "it could; 20 are usual: try train.steps=%.0f, or a smaller model\n",
           count_text(tokens).text, share, ceil(USUAL * parameters / each));
  if (whole && share > 2000)
    printf("warning    %s tokens are %.0f for each parameter: a larger model would learn more "
           "from them; 20 are usual: try one of %s parameters\n",
           count_text(tokens).text, share, count_text(tokens / USUAL).text);
}

void recipe_print(const Config *c, bool gpu, bool resumed) {
  print_lengths(c);
  if (!gpu) check_threads(c);
  if (!resumed) check_training(c);
}

// ---- The start-up table: twelve lines at most. A resume has its own in the place of the settings.

// One line: the step, the changes, and the learning rate.
static void print_resumed(const Run *run) {
  const Config *c = &run->config;
  printf("resumed    at step %lld of %lld", (long long)run->state.step, (long long)c->train.steps);
  if (run->start.changes[0] != '\0') printf(": %s", run->start.changes);
  if (run->start.lr_changed)
    printf("; the learning rate is %.3g here",
           learning_rate(&c->optimizer, run->state.step, c->train.steps));
  if (run->start.val_changed)
    printf("; validation reads other windows, so the best loss is forgotten");
  printf("\n");
  const LaterSteps *later = &run->start.later;
  if (later->count > 0)
    printf("           output.dir has %d checkpoint%s of later steps, up to step %lld%s: each is "
           "replaced or removed when the run passes its step\n",
           later->count, later->count == 1 ? "" : "s", (long long)later->last,
           later->best ? ", 'best' among them" : "");
  if (run->start.was_on.text[0] != '\0')
    printf(
        "           the checkpoint was made on %s: the bits will not be those of one whole run\n",
        run->start.was_on.text);
}

static void print_backend(const Run *run) {
  const char *precision = precision_name(run->config.backend.precision), *costs = run->be->costs;
  printf("backend    %s: %s%s%s\n", run->be->name, run->be->description, costs[0] ? "; " : "",
         costs);
  const bool fp8 = run->llama.spec.fp8, other = run->start.was && run->start.was != precision;
  if (!fp8 && !other) return;
  printf("precision  ");
  if (other) printf("now %s, after %s%s", precision, run->start.was, fp8 ? ": " : "");
  if (fp8 && !other) printf("%s: ", precision);
  if (fp8)
    printf("layers and output layer multiply in FP8; the first step %s",
           run->start.calibrates ? "finds the scales" : "has the checkpoint's scales");
  printf("\n");
}

// Of the whole run.
static double epochs(const Run *run) {
  const TrainConfig *t = &run->config.train;
  return (double)(t->steps * t->batch_size * t->gradient_accumulation) /
         (double)run->inputs.train->epoch.windows;
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
  const Loader *loader = run->inputs.train;
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
  const Epoch *e = &run->inputs.train->epoch;
  if (loader_packs(run->inputs.train))
    printf("; %s document%s, %.1f %% cut, %.1f %% padding", count_text((double)e->documents).text,
           e->documents == 1 ? "" : "s", 100 * (double)e->cut / (double)e->documents,
           100 * e->padding);
  else if (run->config.data.documents == DOCUMENTS_MASK)
    printf("; where documents end is not known");
}

static void print_tokenizer(const Run *run) {
  const TokenizerFacts *facts =
      run->inputs.tokenizer ? tokenizer_facts(run->inputs.tokenizer) : NULL;
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
  const TokenFile *file =
      run->inputs.val ? loader_common(run->inputs.val, run->inputs.train) : NULL;
  if (!file) return;
  printf("warning    data.val: '%s' is a training file, too: a loss on it does not tell how well "
         "the model does on new text\n",
         file->path);
}

static void print_data(const Run *run) {
  const TrainConfig *t = &run->config.train;
  const Loader *train = run->inputs.train, *val = run->inputs.val;
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
  const SavesPlan *saves = &run->saves.plan;
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
  if (!run->start.resumed && strcmp(c->train.resume, "auto") == 0)
    printf("output.dir '%s' has no checkpoint to resume: a new run begins\n", c->output.dir);
  printf("model      %s\n", model_text(&c->model).text);
  print_backend(run);
  print_data(run);
  print_memory(run);
  if (run->start.resumed)
    print_resumed(run);
  else
    config_print(c);
  recipe_print(c, runs_on_gpu(&run->be->spec), run->start.resumed);
  warn_of_common_files(run);
  const long long first = run->state.step + PROFILE_START,
                  last = first + c->output.profile_steps - 1;
  if (c->output.profile_steps > 0)
    printf("profile    steps %lld to %lld%s\n", first, last,
           first > c->train.steps ? ", which this run does not reach" : "");
  fflush(stdout);
}

static void log_begin(Run *run) {
  const SavesPlan *saves = &run->saves.plan;
  const StartFacts facts = {
      .step = run->state.step,
      .config = &run->config,
      .be = run->be,
      .plan = &run->llama.plan,
      .host_copy = saves->background ? saves->bytes : 0,
      .train = run->inputs.train,
      .val = run->inputs.val,
      .epochs = epochs(run),
      .tokenizer = run->inputs.tokenizer ? tokenizer_facts(run->inputs.tokenizer)->name : NULL,
      .changes = run->start.changes};
  log_start(&run->log, &facts);
}

void run_report_start(Run *run) {
  print_start(run);
  log_begin(run);
}

// ---- The end

// Frees `word`.
static void print_word(const char *before, char *word) {
  printf("%s%s", before, word);
  free(word);
}

// Whether it learnt conversations that --generate can continue: a mask says what counts in them.
static bool is_chat(const Run *run) {
  Error ignored;
  bool masked = false;
  for (int i = 0; i < run->inputs.train->file_count; i++)
    masked |= run->inputs.train->files[i].documents.mask != NULL;
  return masked && run->inputs.tokenizer &&
         template_choose(run->inputs.tokenizer, NULL, "", &ignored);
}

// RUN/best where it is kept and is not the end, else "".
static PathText best_of(const Run *run) {
  const PathText best = path_text("%s/" BEST_LINK, run->config.output.dir);
  const bool other =
      isfinite(run->state.best_val_loss) && run->state.best_val_step < run->state.step;
  return path_text("%s",
                   run->config.train.keep_best && other && path_exists(best.text) ? best.text : "");
}

static void print_model(const Run *run) {
  const PathText best = best_of(run), saved = path_text("%s", run->saves.path.text);
  print_word("the model: ", shell_word(saved.text));
  if (best.text[0]) print_word("; the best by validation: ", shell_word(best.text));
  print_word("; write with it: ./train --generate ",
             shell_word(best.text[0] ? best.text : saved.text));
  printf(" %s \"...\"\n", is_chat(run) ? "--user" : "--prompt");
}

static void print_validation(const Run *run) {
  const TrainState *s = &run->state;
  if (!isfinite(run->last_val_loss)) return;
  printf("validation loss %.4f at the end", run->last_val_loss);
  if (s->best_val_step == s->step)
    printf(", the best of the run\n");
  else
    printf("; the best: %.4f at step %lld%s\n", s->best_val_loss, (long long)s->best_val_step,
           run->config.train.keep_best || s->best_val_step == 0
               ? ""
               : ", which train.keep_best=true would keep");
}

void run_print_finished(const Run *run) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (step > steps) {
    printf("nothing to train: the run is at step %lld already, beyond train.steps=%lld; a larger "
           "train.steps resumes it\n",
           step, steps);
  } else {
    printf("nothing to do: the run is done, at step %lld of %lld; ", step, steps);
    print_model(run);
  }
}

// How to continue a run that was stopped.
static void print_resume(const Run *run, const char *path, int override_count,
                         char *const *overrides) {
  const char *left_out = run->left_out;
  if (!run->config.output.save_optimizer) {
    printf("no run resumes from it, as output.save_optimizer=false asks; ");
    print_model(run);
    return;
  }
  if (left_out) printf("the checkpoint is saved, but the stop skipped %s; ", left_out);
  print_word(left_out ? "for the rest run: ./train " : "resume with: ./train ", shell_word(path));
  for (int i = 0; i < override_count; i++)
    if (strncmp(overrides[i], "train.resume=", 13) != 0) print_word(" ", shell_word(overrides[i]));
  printf(" train.resume=auto\n");
}

void run_print_end(const Run *run, const char *path, int override_count, char *const *overrides) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (run->saves.step < 0) {
    printf("ended after step %lld of %lld; nothing was saved, as train.save_interval asks\n", step,
           steps);
  } else if (step == steps && !run->left_out) {
    print_validation(run);
    printf("done; ");
    print_model(run);
  } else {
    printf("stopped after step %lld of %lld", step, steps);
    if (*run->stop == STOP_BY_TIME)
      printf(", as train.max_minutes=%g asks", run->config.train.max_minutes);
    printf("; ");
    print_resume(run, path, override_count, overrides);
  }
}
