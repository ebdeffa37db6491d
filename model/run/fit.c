// --fit: a config for this machine, a text and a time. What it chooses by is configs/RECIPE.md's
// table; how fast the machine is, it measures.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "model/run/bench.h"
#include "model/run/commands.h"
#include "model/run/run.h"

enum {
  USUAL = 20,      // tokens for each parameter
  MOST_EPOCHS = 4, // a text read so often is worth about as much as new text (arXiv 2305.16264)
  VALIDATIONS = 10,
  MOST_CHOICES = 48,
  MOST_MEASURED = 4,
};
static const char ending[] = ".json";
static const double most_measured_seconds = 4, start_seconds = 1, save_rate = 0.5e9; // bytes/s

// One key of the config: an override, "train.steps=7600", and why.
typedef struct Choice {
  char *text;
  ShortText why;
} Choice;

typedef struct Fit {
  const char *data, *out;
  double seconds, params; // params 0: as many as suit the time
  int override_count;
  char **overrides; // of the user: they come last
  // ---- The text
  int64_t tokens, vocab, val_tokens; // val_tokens: of its other split, 0 without one
  bool joined;                       // windows run across documents, and every token counts
  // ---- The machine
  Hardware hardware;
  // ---- The candidate
  Choice choices[MOST_CHOICES];
  int count;
  double tokens_wanted; // in the time
  int64_t each, steps;  // a step's tokens without overrides, and how many; 0: not chosen yet
  int64_t threads;      // that are faster than all; 0: all are
  Config config;
  double step_ms;
} Fit;

// ---- The ladder of widths

static const int16_t widths[] = {64,  96,   128,  192,  256,  384,  512,  640,
                                 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096};
enum { WIDTHS = sizeof widths / sizeof *widths };

static int64_t round_up(double x, int64_t multiple) {
  return (int64_t)ceil(x / (double)multiple) * multiple;
}

// A layer for every 64 of the width, heads of 32, 64 and 128; query heads share keys and values
// from 2048 on; an MLP of 8/3 of the width.
static ModelConfig model_of(const Fit *f, int width) {
  const int64_t D = widths[width], head = D < 256 ? 32 : D < 2048 ? 64 : 128, L = D / 64;
  ModelConfig m = {.hidden_size = D,
                   .intermediate_size = round_up((double)D * 8 / 3, D < 512 ? 32 : 128),
                   .num_hidden_layers = max_i64(4, min_i64(L, 32)),
                   .num_attention_heads = D / head,
                   .num_key_value_heads = D < 2048 ? D / head : D / head / 4,
                   .head_dim = head,
                   .vocab_size = f->vocab};
  const double layers = (double)(model_parameters(&m, false) - f->vocab * D);
  m.tie_word_embeddings = (double)(f->vocab * D) > layers / 8;
  return m;
}

static int64_t window_of(const Fit *f, int64_t width) {
  const int64_t usual = !f->hardware.gpu ? (width <= 192 ? 128 : 256)
                        : width < 512    ? 256
                        : width < 1024   ? 1024
                                         : 2048;
  int64_t T = usual;
  while (T > 16 && T * 16 > f->tokens) T /= 2;
  return T;
}

// "15M", "1.1B", "870k", "25000"; 0: it is none.
static double read_count(const char *text) {
  static const char units[] = "kMB";
  char *end;
  double value = strtod(text, &end);
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (unit) value *= pow(1e3, (double)(unit - units + 1)), end++;
  return end > text && *end == '\0' && isfinite(value) && value > 0 ? value : 0;
}

// ---- Choices

// What the user says of a key, which may have a value behind it; NULL: nothing.
static const char *said(const Fit *f, const char *key) {
  const size_t length = strcspn(key, "=");
  const char *value = NULL;
  for (int i = 0; i < f->override_count; i++)
    if (strncmp(f->overrides[i], key, length) == 0 && f->overrides[i][length] == '=')
      value = f->overrides[i] + length + 1;
  return value;
}

// Whether it is `value`; `otherwise` where the user says nothing.
static bool is(const Fit *f, const char *key, const char *value, bool otherwise) {
  const char *theirs = said(f, key);
  return theirs ? strcmp(theirs, value) == 0 : otherwise;
}

static void add_choice(Fit *f, const char *why, char *text) {
  if (said(f, text))
    free(text);
  else
    f->choices[f->count++] = (Choice){text, short_text("%s", why)};
}
#define choose(f, why, ...) add_choice(f, why, xasprintf(__VA_ARGS__))

static void forget_choices(Fit *f) {
  while (f->count > 0) free(f->choices[--f->count].text);
}

static void choose_model(Fit *f, const ModelConfig *m, int64_t T) {
  const char *shape = "a width's usual shape";
  choose(f, "tokens and time, at 20 tokens a parameter", "model.hidden_size=%lld",
         (long long)m->hidden_size);
  choose(f, shape, "model.intermediate_size=%lld", (long long)m->intermediate_size);
  choose(f, shape, "model.num_hidden_layers=%lld", (long long)m->num_hidden_layers);
  choose(f, shape, "model.num_attention_heads=%lld", (long long)m->num_attention_heads);
  if (m->num_key_value_heads != m->num_attention_heads)
    choose(f, shape, "model.num_key_value_heads=%lld", (long long)m->num_key_value_heads);
  choose(f, "the tokenizer's", "model.vocab_size=%lld", (long long)m->vocab_size);
  choose(f, "long enough for this width", "model.max_position_embeddings=%lld", (long long)T);
  if (m->tie_word_embeddings)
    choose(f, "the vocabulary is much of so small a model", "model.tie_word_embeddings=true");
  choose(f, "0.5 / sqrt(width)", "model.initializer_range=%.2g",
         0.5 / sqrt((double)m->hidden_size));
}

// Where it was measured. On a CPU its own time costs what its steps save.
static bool takes_muon(const Fit *f, int64_t width) {
  return is(f, "optimizer.kind", "muon", f->hardware.gpu && width >= 512 && width <= 1024);
}

// Pieces of an eighth of the window T, of 32 to 128 tokens.
static void choose_context(Fit *f, int64_t T, int64_t steps) {
  const int64_t first = min_i64(max_i64(T / 8, 32), 128);
  const bool apart = !f->joined || is(f, "data.documents", "mask", false),
             off = is(f, "train.first_context", "0", false) ||
                   is(f, "train.context_warmup", "0", false);
  if (apart || off || first >= T || steps == 0) return;
  choose(f, "RECIPE.md: short pieces first", "train.first_context=%lld", (long long)first);
  choose(f, "three quarters of the steps", "train.context_warmup=%lld", (long long)steps);
}

// By configs/RECIPE.md. share: tokens for each parameter.
static void choose_optimizer(Fit *f, const ModelConfig *m, double share, int64_t each,
                             int64_t steps) {
  static const char seconds[] = "RECIPE.md: what is worth its seconds";
  static const char schedule[] = "optimizer.schedule";
  const bool muon = takes_muon(f, m->hidden_size), few = muon && share < 1,
             linear = is(f, schedule, "linear", share >= USUAL),
             wsd = is(f, schedule, "wsd", muon && !linear && !few);
  const double by_width = 0.768 / (double)m->hidden_size;
  const char *theirs = said(f, "optimizer.learning_rate");
  double rate = fmin(by_width, 2e-3);
  if (muon) rate = few ? fmin(3 * by_width, 3e-3) : 2e-3;
  if (theirs && read_count(theirs) > 0) rate = read_count(theirs);
  if (muon) choose(f, seconds, "optimizer.kind=muon");
  choose(f,
         few    ? "3e-3 x 768 / width, at most 3e-3"
         : muon ? "measured with Muon"
                : "1e-3 x 768 / width, at most 2e-3",
         "optimizer.learning_rate=%.2g", rate);
  if (linear) choose(f, "from 20 tokens a parameter on", "optimizer.schedule=linear");
  if (wsd) choose(f, seconds, "optimizer.schedule=wsd");
  if (wsd)
    choose(f, "40 % of the steps", "optimizer.decay_steps=%lld",
           (long long)max_i64(1, steps * 2 / 5));
  if (!linear && !wsd) choose(f, "a tenth", "optimizer.min_learning_rate=%.2g", rate / 10);
  choose(f, "gains at each size that was measured", "optimizer.norm_rate=3");
  if (few)
    choose(f, "2.2 / (rate x steps), 600 steps at least", "optimizer.weight_decay=%.2g",
           2.2 / (rate * fmax((double)steps, 600)));
  choose(f, "5 % of the steps", "optimizer.warmup_steps=%lld", (long long)max_i64(1, steps / 20));
  choose(f, "for so many tokens a step", "optimizer.beta2=%g",
         each <= 32768   ? 0.99
         : each <= 65536 ? 0.98
                         : 0.95);
}

// ---- The candidate of a width

// About 4000 steps: at a width of 64 1.9M tokens in steps of 512 ended at 1.28 nats a byte, 1.7M in
// steps of 1024 at 1.36. With Muon 16k a step were better than 32k after equal tokens, and than 8k.
static int64_t step_tokens(const Fit *f, int64_t width, int64_t T) {
  if (f->each > 0) return f->each;
  const bool gpu = f->hardware.gpu;
  const double least = !gpu                   ? 512
                       : takes_muon(f, width) ? 16384
                                              : 4096,
               most = gpu ? 32768 : 8192,
               each = exp2(round(log2(fmax(f->tokens_wanted / 4000, 1))));
  // A batch has other windows than the one before; of a short text they are few.
  return max_i64(T, min_i64((int64_t)fmin(fmax(each, least), most), f->tokens / 4) / T * T);
}

static int64_t steps_of(const Fit *f, int64_t each) {
  const char *theirs = said(f, "train.steps");
  if (theirs && read_count(theirs) >= 1) return (int64_t)read_count(theirs);
  return f->steps > 0 ? f->steps : max_i64(1, llround(f->tokens_wanted / (double)each));
}

// What is given up for memory, the mildest first.
static const char *const savings[] = {"train.recompute=layer", "backend.moments=bf16",
                                      "backend.masters=bf16"};
enum { SAVINGS = sizeof savings / sizeof *savings };

// A save's writes take longer than an eighth of a run of seconds does.
static void choose_saves(Fit *f, int64_t steps) {
  const double minute = f->step_ms > 0 ? 60e3 / f->step_ms : 0;
  const int64_t every = max_i64((steps + 7) / 8, (int64_t)fmin(minute, (double)steps));
  choose(f, "an eighth of the run, but at least a minute", "train.save_interval=%lld",
         (long long)every);
}

static void choose_all(Fit *f, int width, int64_t micro_batches, int saved) {
  const ModelConfig m = model_of(f, width);
  const int64_t D = m.hidden_size, T = window_of(f, D), each = step_tokens(f, D, T),
                steps = steps_of(f, each), every = (steps + VALIDATIONS - 1) / VALIDATIONS;
  const double share = (double)(steps * each) / (double)model_parameters(&m, true);
  forget_choices(f);
  choose_model(f, &m, T);
  choose(f, "the text", "data.train=%s", f->data);
  if (f->val_tokens > T) choose(f, "its other split", "data.val=%s", f->data);
  choose(f, "what the time allows", "train.steps=%lld", (long long)steps);
  choose(f, "a step's tokens", "train.batch_size=%lld", (long long)(each / T / micro_batches));
  choose(f, "its window", "train.sequence_length=%lld", (long long)T);
  if (micro_batches > 1)
    choose(f, "they fit one after the other", "train.gradient_accumulation=%lld",
           (long long)micro_batches);
  if (share < 5) choose(f, "below 5 tokens a parameter", "train.zero_init=true");
  choose_context(f, T, steps / 4 * 3);
  choose(f, "ten validations", "train.eval_interval=%lld", (long long)every);
  choose(f, "2 % of the time", "train.eval_batches=%lld",
         (long long)max_i64(4, min_i64(steps / 200, 40)));
  choose_saves(f, steps);
  choose_optimizer(f, &m, share, each, steps);
  if (f->hardware.gpu && D >= 512 && gpu_has_fp8(&f->hardware.card))
    choose(f, "faster from this width on", "backend.precision=fp8");
  if (!f->hardware.gpu) choose(f, "bf16 where it is faster", "backend.cpu_products=auto");
  if (f->threads > 0)
    choose(f, "more are slower at this width", "backend.threads=%lld", (long long)f->threads);
  for (int i = 0; i < saved; i++) choose(f, "it does not fit otherwise", "%s", savings[i]);
  const char *name = path_name(f->out);
  choose(f, "after the file", "output.dir=runs/%.*s", (int)(strlen(name) - sizeof ending + 1),
         name);
}

static int parse_choices(Fit *f, Error *err) {
  char **all = xmalloc((size_t)(f->count + f->override_count) * sizeof *all);
  for (int i = 0; i < f->count; i++) all[i] = f->choices[i].text;
  for (int i = 0; i < f->override_count; i++) all[f->count + i] = f->overrides[i];
  const int status =
      config_parse(&f->config, "--fit", "{}", f->count + f->override_count, all, err);
  free(all);
  return status;
}

// f->config becomes the run of this width that fits into memory. 1: none does.
static int candidate(Fit *f, int width, Error *err) {
  int64_t micro_batches = 1;
  for (int saved = 0; saved <= SAVINGS;) {
    choose_all(f, width, micro_batches, saved);
    if (parse_choices(f, err) != 0) return -1;
    if (plan_fits(&f->config, &f->hardware)) return 0;
    if (f->config.train.batch_size % 2 == 0)
      micro_batches *= 2;
    else
      saved++;
  }
  return 1;
}

// ---- Time

static double flops_per_token(const Fit *f, int width) {
  const ModelConfig m = model_of(f, width);
  return model_step_flops(&m, 1, (double)window_of(f, m.hidden_size));
}

// Steps that a validation of the candidate costs: forwards are a third of a step.
static double validation_steps(const Fit *f) {
  const TrainConfig *t = &f->config.train;
  return *f->config.data.val ? (double)t->eval_batches / 3 / (double)t->gradient_accumulation : 0;
}

// Seconds of a run of so many steps: start, steps, validations, the last save.
static double run_seconds(const Fit *f, double steps) {
  const double bytes = 12 * (double)model_parameters(&f->config.model, true);
  return (f->hardware.gpu ? start_seconds : 0) + bytes / save_rate +
         (steps + (VALIDATIONS + 1) * validation_steps(f)) * f->step_ms * 1e-3;
}

// The tokens that a run at this speed reads in the time; of a short text fewer.
static double tokens_in_time(const Fit *f, double flops_per_second, int width) {
  return fmin(f->seconds * flops_per_second / flops_per_token(f, width),
              MOST_EPOCHS * (double)f->tokens);
}

// The width whose tokens for each parameter are nearest to the usual ones; of a number of
// parameters the nearest.
static int best_width(const Fit *f, double flops_per_second) {
  int best = 0;
  double least = INFINITY;
  for (int i = 0; i < WIDTHS; i++) {
    const ModelConfig m = model_of(f, i);
    const double parameters = (double)model_parameters(&m, true),
                 off =
                     f->params > 0
                         ? fabs(log(parameters / f->params))
                         : fabs(log(tokens_in_time(f, flops_per_second, i) / (USUAL * parameters)));
    if (off < least) least = off, best = i;
  }
  return best;
}

// A narrow model's threads wait for each other more than they compute: half of them, and half of
// those, as long as a step is faster by a twentieth.
static void try_fewer_threads(Fit *f, double seconds) {
  Config c = f->config;
  Error ignored;
  double ms;
  if (f->hardware.gpu || c.backend.threads != 0) return;
  for (int64_t threads = threads_asked("").count / 2; threads > 0; threads /= 2) {
    c.backend.threads = threads;
    if (bench_steps(&c, seconds, &ms, &ignored) != 0 || ms > 0.95 * f->step_ms) return;
    f->step_ms = ms, f->threads = threads;
  }
}

// Measures, and sets what the time allows at the measured speed.
static int measure(Fit *f, int width, double *flops_per_second, Error *err) {
  const double seconds = fmin(most_measured_seconds, f->seconds / 8);
  printf("measured   width %d: ", widths[width]); // a large one takes a while
  fflush(stdout);
  if (bench_steps(&f->config, seconds, &f->step_ms, err) != 0) {
    printf("\n");
    return -1;
  }
  try_fewer_threads(f, seconds);
  *flops_per_second = flops_per_step(&f->config) / (f->step_ms * 1e-3);
  printf("%.4g ms a step of %lld tokens, %s tokens/s", f->step_ms,
         (long long)tokens_per_step(&f->config),
         count_text((double)tokens_per_step(&f->config) / f->step_ms * 1e3).text);
  if (f->threads > 0)
    printf(" with %lld thread%s", (long long)f->threads, f->threads == 1 ? "" : "s");
  printf("\n");
  fflush(stdout);
  return 0;
}

// Steps of `each` tokens that take the time, or read the text as often as pays.
static double steps_in_time(const Fit *f, double each) {
  const double steps = (f->seconds - run_seconds(f, 0)) / (f->step_ms * 1e-3);
  return fmin(steps, MOST_EPOCHS * (double)f->tokens / each);
}

// The config's steps fill the time that is there. Steps of another size than those that were
// measured are measured, too; overrides may change it.
static int fill_time(Fit *f, int width, int64_t measured, Error *err) {
  double ignored;
  f->tokens_wanted = steps_in_time(f, (double)measured) * (double)measured;
  if (candidate(f, width, err) != 0) return -1;
  const int64_t each = tokens_per_step(&f->config);
  if (each >= f->tokens)
    return error_set(err, "the text is too short: a step has %lld tokens, and the text %lld",
                     (long long)each, (long long)f->tokens);
  if (each != measured && measure(f, width, &ignored, err) != 0) return -1;
  f->each = step_tokens(f, widths[width], window_of(f, widths[width]));
  for (int i = 0; i < 2; i++) { // the second time with the first's validations
    f->steps = (int64_t)steps_in_time(f, (double)each);
    if (f->steps < 1)
      return error_set(err,
                       "minutes=%g is too short: one step takes %.3g s, and its start and end "
                       "%.3g s",
                       f->seconds / 60, f->step_ms * 1e-3, run_seconds(f, 0));
    f->tokens_wanted = (double)(f->steps * each);
    if (candidate(f, width, err) != 0) return -1;
  }
  return 0;
}

static int search(Fit *f, Error *err) {
  const Gpu *card = &f->hardware.card;
  double speed = !f->hardware.gpu ? 5e10 : card->rates.bf16 > 0 ? 0.4 * card->rates.bf16 : 3e13;
  struct {
    double ms; // 0: not measured
    int64_t each, threads;
  } known[WIDTHS] = {{0}};
  int width = best_width(f, speed), last = -1;
  for (int i = 0; i < MOST_MEASURED; i++) {
    int status = 1;
    f->threads = 0;
    while (status == 1) {
      f->tokens_wanted = tokens_in_time(f, speed, width);
      status = candidate(f, width, err);
      if (status == 1 && --width < 0)
        return error_set(err, "not even a model of width %d fits into the memory here", widths[0]);
    }
    if (status != 0) return -1;
    if (known[width].ms > 0) break;
    if (measure(f, width, &speed, err) != 0) return -1;
    last = width;
    known[last].ms = f->step_ms;
    known[last].each = tokens_per_step(&f->config);
    known[last].threads = f->threads;
    width = best_width(f, speed);
    if (known[width].ms > 0) break;
  }
  f->step_ms = known[last].ms;
  f->threads = known[last].threads;
  return fill_time(f, last, known[last].each, err);
}

// ---- The text and the machine

// Tokens of DATA's split to validate on: a folder of ./prepare may have one. 0: none.
static int64_t validation_tokens(const Fit *f) {
  Error ignored;
  const LoaderConfig config = {.pattern = f->data, .split = "val", .batch = 1, .seq = 16};
  Loader *val = path_is_directory(f->data) ? loader_open(&config, &ignored) : NULL;
  const int64_t tokens = val ? val->epoch.tokens : 0;
  if (val) loader_close(val);
  return tokens;
}

static int read_text(Fit *f, Error *err) {
  const LoaderConfig config = {
      .pattern = f->data, .split = "train", .batch = 1, .seq = 16, .documents = DOCUMENTS_JOIN};
  Loader *train = loader_open(&config, err);
  if (!train) return -1;
  Config c = {.model.vocab_size = 1};
  Tokenizer *tokenizer = NULL;
  int status = loader_check(train, TOKENS_MOST_IDS, err);
  if (status == 0) {
    c.model.vocab_size = (int64_t)loader_largest(train) + 1;
    status = run_tokenizer(&tokenizer, &c, train, NULL, "", err);
  }
  f->tokens = train->epoch.tokens;
  f->joined = train->kind == WINDOWS_JOINED;
  f->vocab = tokenizer ? tokenizer_facts(tokenizer)->vocab_size : c.model.vocab_size;
  f->val_tokens = validation_tokens(f);
  if (status == 0)
    printf("text       %s tokens of '%s', vocabulary %lld%s\n", count_text((double)f->tokens).text,
           f->data, (long long)f->vocab, f->val_tokens > 0 ? "" : ", nothing to validate on");
  tokenizer_close(tokenizer);
  loader_close(train);
  return status;
}

// What backend.device finds, where the user named one.
static int find_machine(Fit *f, Error *err) {
  f->tokens_wanted = 1e6;
  choose_all(f, 0, 1, 0);
  if (parse_choices(f, err) != 0 || hardware_find(&f->hardware, &f->config, err) != 0) return -1;
  printf("machine    %s, %s free\n", f->hardware.gpu ? f->hardware.card.name : "the processor",
         size_text(f->hardware.memory_bytes).text);
  return 0;
}

// ---- The command

// "mine.json", and no ".json", after which no run can be called.
static bool is_config(const char *word) {
  const size_t name = strlen(word) - strlen(ending);
  return name_ends_with(word, ending) && name > 0 && word[name - 1] != '/';
}

static int read_words(Fit *f, int argc, char **argv, Error *err) {
  static const char words[] =
      "train --fit DATA minutes=N [params=P] [OUT.json] [section.key=value ...]";
  for (int i = 0; i < argc; i++) {
    char *word = argv[i], *equals = strchr(word, '=');
    if (strncmp(word, "minutes=", 8) == 0) {
      f->seconds = 60 * read_count(equals + 1);
      if (!(f->seconds > 0 && f->seconds <= 1e9))
        return error_set(err, "'%.60s' is no time: give minutes, such as minutes=30", word);
    } else if (strncmp(word, "params=", 7) == 0) {
      f->params = read_count(equals + 1);
      if (f->params == 0)
        return error_set(err, "'%.60s' is no number of parameters, such as params=15M", word);
    } else if (strncmp(word, "model=", 6) == 0) {
      return error_set(err,
                       "--fit chooses the model, so '%.60s' has no place here: "
                       "./train configs/continue.json %.60s trains that one",
                       word, word);
    } else if (equals) {
      argv[f->override_count++] = word;
    } else if (!f->data) {
      f->data = word;
    } else if (is_config(word) && !f->out) {
      f->out = word;
    } else {
      return error_set(err, "'%.60s' is one word too many: %s", word, words);
    }
  }
  f->overrides = argv;
  if (!f->data || f->seconds == 0)
    return error_set(err, "%s missing: %s", f->data ? "minutes=N is" : "the token files are",
                     words);
  if (!f->out) f->out = "fit.json";
  if (path_exists(f->out))
    return error_set(err, "'%s' is there already: remove it, or name another file at the end",
                     f->out);
  const PathText folder = path_parent(f->out);
  return path_is_directory(folder.text)
             ? 0
             : error_set(err, "there is no folder '%s' for '%s'", folder.text, f->out);
}

static void print_choices(const Fit *f) {
  for (int i = 0; i < f->count; i++)
    printf("  %-42s %s\n", f->choices[i].text, f->choices[i].why.text);
  for (int i = 0; i < f->override_count; i++) printf("  %-42s as you say\n", f->overrides[i]);
}

static int write_config(const Fit *f, Error *err) {
  const Config *c = &f->config;
  const double each = (double)tokens_per_step(c), tokens = each * (double)c->train.steps,
               parameters = (double)model_parameters(&c->model, true);
  char *json = config_json_short(c);
  const int status = file_write_atomic(f->out, json, strlen(json), err);
  free(json);
  if (status != 0) return -1;
  printf(
      "run        %s parameters, %lld steps of %s tokens: %s tokens, %.1f a parameter, %.2g times "
      "the text\n",
      count_text(parameters).text, (long long)c->train.steps, count_text(each).text,
      count_text(tokens).text, tokens / parameters, tokens / (double)f->tokens);
  printf("time       about %s", time_text(run_seconds(f, (double)c->train.steps)).text);
  if (tokens > 0.99 * MOST_EPOCHS * (double)f->tokens)
    printf(": more text would use the rest of the %s", time_text(f->seconds).text);
  char *word = shell_word(f->out);
  printf("\n./train %s\n", word);
  free(word);
  return 0;
}

int fit_command(int argc, char **argv, Error *err) {
  Fit f = {.count = 0};
  int status = read_words(&f, argc, argv, err);
  if (status == 0) status = read_text(&f, err);
  if (status == 0) status = find_machine(&f, err);
  if (status == 0) status = search(&f, err);
  if (status == 0) {
    print_choices(&f);
    status = write_config(&f, err);
  }
  forget_choices(&f);
  return status;
}
