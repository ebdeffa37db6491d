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
#include "model/run/run.h"

// ---- The recipe

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
  const TrainConfig *t = &c->train;
  const long long pieces = context_halvings(t) * context_steps(t);
  if (t->first_context > 0 && pieces == 0)
    printf(
        "schedule   train.first_context %lld does nothing: half of %lld tokens is shorter or not "
        "whole, or steps are too few\n",
        (long long)t->first_context, (long long)t->sequence_length);
  else if (pieces > 0 && t->context_warmup > steps / 4 * 3)
    printf("schedule   train.context_warmup %lld is more than three quarters of the %lld steps: "
           "pieces take %lld\n",
           (long long)t->context_warmup, steps, pieces);
}

static void check_threads(const Config *c) {
  const bool set = c->backend.threads > 0;
  const ThreadsAsked asked = threads_asked("");
  const int threads = set ? (int)c->backend.threads : asked.count, usable = processors_usable("");
  if (threads > usable)
    printf("warning    %d threads, %s, share %d processor%s: try backend.threads=%d\n", threads,
           set ? "as backend.threads asks" : asked.why, usable, usable == 1 ? "" : "s", usable);
}

// Trained weights take lower rates and fewer tokens. A trial of a few steps is no training. The
// usual rate is configs/RECIPE.md's: 1e-3 at a width of 768, in inverse proportion to the width,
// but no more for narrow models than they bear.
static void check_training(const Config *c) {
  enum { TRIAL = 100, USUAL = 20 }; // steps; tokens for each parameter
  const long long steps = c->train.steps, width = c->model.hidden_size,
                  warmup = schedule_lengths(&c->optimizer, steps).warmup;
  const double rate = c->optimizer.learning_rate, usual = fmin(0.768 / (double)width, 2e-3),
               parameters = (double)model_parameters(&c->model, true), each = tokens_per_step(c),
               tokens = (double)steps * each, share = tokens / parameters;
  const bool untrained = c->train.init_from[0] == '\0', whole = untrained && steps >= TRIAL;
  if (rate > 5 * usual || (untrained && rate < usual / 10))
    printf("warning    optimizer.learning_rate %g is far %s the usual %.2g of a width of %lld: "
           "the loss %s\n",
           rate, rate > usual ? "above" : "below", usual, width,
           rate > usual ? "may jump or diverge" : "falls slowly");
  if (warmup > steps / 2)
    printf("warning    optimizer.warmup_steps %lld is more than half of the %lld steps; try %lld\n",
           warmup, steps, steps / 20);
  if (whole && share < 0.1)
    printf("warning    %s tokens are %.3f for each parameter, but %d are usual: try "
           "train.steps=%.0f, or a smaller model\n",
           count_text(tokens).text, share, USUAL, ceil(USUAL * parameters / each));
  if (whole && share > 2000)
    printf("warning    %s tokens are %.0f for each parameter, but %d are usual: try a model of %s "
           "parameters\n",
           count_text(tokens).text, share, USUAL, count_text(tokens / USUAL).text);
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
  const Backend *be = run->be;
  printf("backend    %s: %s%s%s\n", be->name, be->description, be->costs[0] ? "; " : "", be->costs);
  if (run->llama.spec.fp8)
    printf("precision  fp8: layers and output layer multiply in FP8; the first step %s\n",
           be->calibrating ? "finds the scales" : "has the checkpoint's scales");
}

// ", of which 1.2k count", where not all of the tokens to predict do.
static void print_counted(int64_t targets, int64_t counted) {
  if (counted < targets) printf(", of which %s count", count_text((double)counted).text);
}

// Of each source its share of the tokens that count, where it differs also of the windows, and how
// often the whole run reads it.
static void print_sources(const Run *run) {
  const Loader *loader = run->inputs.train;
  const double sequences = run_epochs(run) * (double)loader->epoch.windows;
  for (int i = 0; i < loader->source_count; i++) {
    const Source *s = &loader->sources[i];
    const double weight = loader->weights[i];
    printf("%s%.3g %% of '%s' (%s tokens", i > 0 ? ", " : "", 100 * s->share, s->name,
           count_text((double)s->tokens).text);
    print_counted(s->targets, s->counted);
    if (fabs(weight - s->share) >= 5e-4) printf(", %.3g %% of the windows", 100 * weight);
    printf(", %.2f epochs)", weight * sequences / (double)s->windows);
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

static void print_data(const Run *run) {
  const Loader *train = run->inputs.train, *val = run->inputs.val;
  printf("data       ");
  if (train->source_count > 1) {
    print_sources(run);
  } else {
    printf("%s training tokens in %d file%s", count_text((double)train->epoch.tokens).text,
           train->file_count, train->file_count == 1 ? "" : "s");
    print_counted(train->epoch.targets, train->epoch.counted);
  }
  if (val) {
    printf(", %s validation tokens", count_text((double)val->epoch.tokens).text);
    print_counted(val->epoch.targets, val->epoch.counted);
  }
  print_documents(run);
  printf("\n");
}

static void print_tokenizer(const Run *run) {
  const long long V = run->config.model.vocab_size;
  if (!run->inputs.tokenizer) {
    printf("tokenizer  not known: no samples; data.tokenizer may name it\n");
    return;
  }
  const TokenizerFacts *facts = tokenizer_facts(run->inputs.tokenizer);
  printf("tokenizer  %s, %lld tokens", facts->name, (long long)facts->vocab_size);
  if (facts->vocab_size > V)
    printf("; the model knows the first %lld alone, and the token files have no others", V);
  printf("\n");
}

static void print_steps(const Run *run) {
  const TrainConfig *t = &run->config.train;
  const bool accumulates = t->gradient_accumulation > 1;
  printf("steps      %lld of ", (long long)t->steps);
  if (accumulates) printf("%lld x ", (long long)t->gradient_accumulation);
  printf("%lld x %lld tokens (%ssequences x length)", (long long)t->batch_size,
         (long long)t->sequence_length, accumulates ? "accumulation x " : "");
  if (run->inputs.train->source_count == 1) printf(", %.2f epochs", run_epochs(run));
  const long long each = context_steps(t), halvings = context_halvings(t);
  if (each > 0)
    printf("; pieces of %lld at first, twice as long every %lld steps, whole from step %lld on",
           (long long)context_at(t, 0), each, halvings * each + 1);
  printf("\n");
}

static void print_memory(const Run *run) {
  const SavesPlan *saves = &run->saves.plan;
  const MemoryPlan *plan = &run->llama.plan;
  const PlanItem *most = plan->items; // of the device's
  for (const PlanItem *item = plan->items; item < plan->items + plan->count; item++)
    if (!item->host && (most->host || item->bytes > most->bytes)) most = item;
  printf("memory     %s, the largest part %s for %s; %s were free",
         size_text(plan->total_bytes).text, size_text(most->bytes).text, most->name,
         size_text(run->be->spec.memory_bytes).text);
  if (plan->host_bytes > 0)
    printf("; on the host %s offloaded, of %s", size_text(plan->host_bytes).text,
           size_text(run->be->spec.host_bytes).text);
  if (saves->background)
    printf("; on the host %s for saves", size_text(saves->bytes).text);
  else if (saves->bytes > 0)
    printf("; training waits for saves: a copy of the state takes %s of the host, and %s are left",
           size_text(saves->bytes).text, size_text(saves->left).text);
  printf("\n");
}

static void print_profile(const Run *run) {
  const long long first = run->state.step + PROFILE_START, steps = run->config.output.profile_steps;
  if (steps == 0) return;
  printf("profile    steps %lld to %lld%s\n", first, first + steps - 1,
         first > run->config.train.steps ? ", which this run does not reach" : "");
}

void run_print_start(const Run *run) {
  const Config *c = &run->config;
  const Loader *val = run->inputs.val;
  const TokenFile *common = val ? loader_common(val, run->inputs.train) : NULL;
  if (!run->start.resumed && strcmp(c->train.resume, "auto") == 0)
    printf("output.dir '%s' has no checkpoint to resume: a new run begins\n", c->output.dir);
  printf("model      %s\n", model_text(&c->model).text);
  print_backend(run);
  print_data(run);
  print_tokenizer(run);
  print_steps(run);
  print_memory(run);
  if (run->start.resumed)
    print_resumed(run);
  else
    config_print(c);
  recipe_print(c, runs_on_gpu(&run->be->spec), run->start.resumed);
  if (common)
    printf("warning    data.val: '%s' is a training file, too: its loss says nothing of new text\n",
           common->path);
  print_profile(run);
  fflush(stdout);
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
  return masked && run->inputs.tokenizer && template_choose(run->inputs.tokenizer, "", &ignored);
}

// The checkpoint, and RUN/best where it is kept and is not the end.
static void print_model(const Run *run) {
  const PathText best = path_text("%s/" BEST_LINK, run->config.output.dir);
  const TrainState *s = &run->state;
  const bool other = run->config.train.keep_best && isfinite(s->best_val_loss) &&
                     s->best_val_step < s->step && path_exists(best.text);
  print_word("the model: ", shell_word(run->saves.path.text));
  if (other) print_word("; the best by validation: ", shell_word(best.text));
  print_word("; write with it: ./train --generate ",
             shell_word(other ? best.text : run->saves.path.text));
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
  if (!run->config.output.save_optimizer) {
    printf("no run resumes from it, as output.save_optimizer=false asks; ");
    print_model(run);
    return;
  }
  if (run->left_out) printf("the stop skipped the last validation or sample; ");
  print_word("resume with: ./train ", shell_word(path));
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
