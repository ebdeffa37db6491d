// --compare: what differs between runs, and which is better, as text.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "model/run/commands.h"
#include "model/run/history.h"
#include "model/run/log.h"

typedef enum Axis { STEPS, TOKENS, SECONDS, AXES } Axis;

enum { COLUMN = 18 };                // characters
static const double FAR_APART = 0.2; // of validations, as a share of how far the run is

typedef struct Comparison {
  History *runs;      // [count]; the first is what the others are compared with
  int count, width;   // of the longest name
  double equal[AXES]; // where they are compared: the end of the run that went least far
  bool vals[AXES];    // by validations, which all have near it; else by losses of training
} Comparison;

// ---- Losses

typedef struct Loss {
  double mean, error; // NAN: not known
} Loss;

static double along(const HistoryPlace *at, Axis axis) {
  return axis == STEPS ? (double)at->step : axis == TOKENS ? at->tokens : at->seconds;
}

// Between the validations before and behind x. Where these are far apart it is not known.
static Loss val_loss(const History *h, Axis axis, double x) {
  size_t i = 0;
  while (i < h->val_count && along(&h->vals[i].at, axis) < x) i++;
  if (i == h->val_count) return (Loss){NAN, NAN};
  const HistoryVal *v = &h->vals[i], *before = i > 0 ? v - 1 : v;
  const double here = along(&v->at, axis), there = along(&before->at, axis);
  if (here == x) return (Loss){v->loss, v->error};
  if (i == 0 || here - there > FAR_APART * x) return (Loss){NAN, NAN};
  const double share = (x - there) / (here - there);
  return (Loss){before->loss + share * (v->loss - before->loss), fmax(before->error, v->error)};
}

// The mean of a twentieth of the steps up to x, 200 at most; its error as if they were independent.
static Loss train_loss(const History *h, Axis axis, double x) {
  size_t end = 0;
  while (end < h->step_count && along(&h->steps[end].at, axis) <= x) end++;
  const size_t most = (size_t)max_i64(1, min_i64(200, (int64_t)end / 20));
  double sum = 0, squares = 0, n = 0;
  for (size_t i = end > most ? end - most : 0; i < end; i++) {
    const double loss = h->steps[i].loss;
    if (isnan(loss)) continue;
    sum += loss;
    squares += loss * loss;
    n++;
  }
  const double mean = sum / n;
  return (Loss){mean, n > 1 ? sqrt(fmax(0, squares / n - mean * mean) / (n - 1)) : NAN};
}

static Loss loss_at(const Comparison *c, int run, Axis axis) {
  const double x = c->equal[axis];
  return c->vals[axis] ? val_loss(&c->runs[run], axis, x) : train_loss(&c->runs[run], axis, x);
}

static Loss difference(Loss a, Loss b) {
  const double first = isnan(a.error) ? 0 : a.error, second = isnan(b.error) ? 0 : b.error;
  return (Loss){b.mean - a.mean, hypot(first, second)};
}

// ---- What is printed

static ShortText loss_text(Loss loss, const char *sign) {
  if (isnan(loss.mean)) return short_text("-");
  ShortText t = short_text(*sign ? "%+.4f" : "%.4f", loss.mean);
  if (loss.error > 0) short_append(&t, " +- %.4f", loss.error);
  return t;
}

static ShortText place_text(Axis axis, double x) {
  if (axis == STEPS) return short_text("%.0f steps", x);
  if (axis == TOKENS) return short_text("%s tokens", count_text(x).text);
  return time_text(x);
}

static void print_runs(const Comparison *c) {
  for (int i = 0; i < c->count; i++) {
    const History *h = &c->runs[i];
    const HistoryPlace end = history_end(h);
    const cJSON *steps = history_start(h, "steps"), *size = history_start(h, "parameters"),
                *device = history_start(h, "device");
    printf("%-*s  step %lld", c->width, h->name, (long long)end.step);
    if (cJSON_IsNumber(steps)) printf("/%.0f", steps->valuedouble);
    printf(", %s tokens, %s of steps", count_text(end.tokens).text, time_text(end.seconds).text);
    if (cJSON_IsNumber(size)) printf(", %s parameters", count_text(size->valuedouble).text);
    printf(", %s", h->reason ? h->reason : "has not ended");
    if (h->skipped > 0) printf(", %lld skipped updates", (long long)h->skipped);
    if (cJSON_IsString(device)) printf("\n%*s  %s", c->width, "", device->valuestring);
    printf("\n");
  }
}

// NULL where the run does not know the key.
static const cJSON *value_of(const History *h, const char *section, const char *key) {
  const cJSON *config = history_start(h, "config");
  return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(config, section), key);
}

static bool equal(const cJSON *a, const cJSON *b) {
  return a == b || (a && b && cJSON_Compare(a, b, true));
}

static void print_key(const Comparison *c, const char *section, const char *key) {
  const cJSON *first = value_of(c->runs, section, key);
  bool differ = false;
  for (int i = 1; i < c->count; i++) differ |= !equal(first, value_of(&c->runs[i], section, key));
  if (!differ || (strcmp(section, "output") == 0 && strcmp(key, "dir") == 0)) return;
  printf("%s.%-*s", section, (int)max_i64(0, 30 - (int64_t)strlen(section)), key);
  for (int i = 0; i < c->count; i++) {
    const cJSON *value = value_of(&c->runs[i], section, key);
    printf("%s%s", i > 0 ? " | " : "", value ? json_shown(value).text : "-");
  }
  printf("\n");
}

static bool seen_before(const Comparison *c, int run, const char *section, const char *key) {
  for (int i = 0; i < run; i++)
    if (value_of(&c->runs[i], section, key)) return true;
  return false;
}

static void print_configs(const Comparison *c) {
  printf("\nkeys that differ, in the order of the runs\n");
  for (int i = 0; i < c->count; i++) {
    const cJSON *section, *key;
    cJSON_ArrayForEach(section, history_start(&c->runs[i], "config")) {
      cJSON_ArrayForEach(key, section) {
        if (!seen_before(c, i, section->string, key->string))
          print_key(c, section->string, key->string);
      }
    }
  }
}

static void print_row(const Comparison *c, const char *name, int run, bool relative) {
  printf("%-*s", c->width, name);
  for (Axis a = 0; a < AXES; a++) {
    const Loss loss = loss_at(c, run, a);
    const Loss shown = relative ? difference(loss_at(c, 0, a), loss) : loss;
    printf("  %-*s", a + 1 < AXES ? COLUMN : 0, loss_text(shown, relative ? "+" : "").text);
  }
  printf("\n");
}

static void print_losses(const Comparison *c) {
  printf("\n%-*s", c->width, "loss at");
  for (Axis a = 0; a < AXES; a++)
    printf("  %-*s", a + 1 < AXES ? COLUMN : 0, place_text(a, c->equal[a]).text);
  printf("\n%-*s", c->width, "");
  for (Axis a = 0; a < AXES; a++)
    printf("  %-*s", a + 1 < AXES ? COLUMN : 0, c->vals[a] ? "(validation)" : "(training)");
  printf("\n");
  for (int i = 0; i < c->count; i++) print_row(c, c->runs[i].name, i, false);
  printf("less %s's\n", c->runs[0].name);
  for (int i = 1; i < c->count; i++) print_row(c, c->runs[i].name, i, true);
}

// The last ones, of the tasks that the first run has.
static void print_scores(const Comparison *c) {
  const History *first = c->runs;
  for (const HistoryScore *own = first->scores; own < first->scores + first->score_count; own++) {
    if (history_score(first, own->task) != own) continue;
    printf("\n%-*s  %-*s  less %s's\n", c->width, own->task, COLUMN, "score", first->name);
    for (int i = 0; i < c->count; i++) {
      const HistoryScore *s = history_score(&c->runs[i], own->task);
      const Loss score = s ? (Loss){s->value, s->error} : (Loss){NAN, NAN};
      const Loss d = difference((Loss){own->value, own->error}, score);
      printf("%-*s  %-*s", c->width, c->runs[i].name, COLUMN, loss_text(score, "").text);
      if (s)
        printf("  %-*s  step %lld", COLUMN, i > 0 ? loss_text(d, "+").text : "",
               (long long)s->at.step);
      printf("\n");
    }
  }
}

// Where the validations first reach a loss; NAN: that is not known, INFINITY: they do not.
static double reached(const History *h, Axis axis, double loss) {
  for (size_t i = 0; i < h->val_count; i++) {
    const HistoryVal *v = &h->vals[i];
    if (!(v->loss <= loss)) continue;
    const double here = along(&v->at, axis), there = i > 0 ? along(&v[-1].at, axis) : here;
    if (here - there > FAR_APART * here) return NAN;
    return i > 0 ? there + (v[-1].loss - loss) / (v[-1].loss - v->loss) * (here - there) : here;
  }
  return h->val_count > 0 ? INFINITY : NAN;
}

// "better by 0.0100 +- 0.0020 at equal steps".
static void print_verdict(Loss d, const char *equal_what) {
  if (isnan(d.mean)) return;
  if (d.mean == 0)
    printf("  equal at equal %s\n", equal_what);
  else
    printf("  %s by %s at equal %s%s\n", d.mean < 0 ? "better" : "worse",
           loss_text((Loss){fabs(d.mean), d.error}, "").text, equal_what,
           fabs(d.mean) < 2 * d.error ? ": less than two errors, which chance may do" : "");
}

// When a run has the loss of the first one's last validation.
static void print_reached(const History *h, const History *first) {
  if (first->val_count == 0) return;
  const HistoryVal *last = &first->vals[first->val_count - 1];
  if (isnan(last->loss)) return;
  const double tokens = reached(h, TOKENS, last->loss), seconds = reached(h, SECONDS, last->loss);
  if (isinf(tokens))
    printf("  does not reach %s's last validation, %.4f\n", first->name, last->loss);
  else if (isfinite(tokens) && isfinite(seconds) && last->at.tokens > 0 && last->at.seconds > 0)
    printf("  reaches %s's last validation, %.4f, after %.3f of its tokens and %.3f of its "
           "seconds\n",
           first->name, last->loss, tokens / last->at.tokens, seconds / last->at.seconds);
}

// Another tokenizer's token is another piece of text. A log knows tokenizers by their paths.
static void print_tokenizers(const Comparison *c) {
  const cJSON *first = history_start(c->runs, "tokenizer"),
              *size = value_of(c->runs, "model", "vocab_size");
  bool differ = false;
  for (int i = 1; i < c->count; i++)
    differ |= !equal(first, history_start(&c->runs[i], "tokenizer")) ||
              !equal(size, value_of(&c->runs[i], "model", "vocab_size"));
  if (!differ) return;
  printf("The tokenizers are");
  for (int i = 0; i < c->count; i++) {
    const cJSON *name = history_start(&c->runs[i], "tokenizer");
    printf("%s %s", i > 0 ? " |" : "", cJSON_IsString(name) ? name->valuestring : "not known");
  }
  printf(". Where they differ, losses cannot be compared,\n"
         "but bits a byte can; in the last validations:");
  for (int i = 0; i < c->count; i++) {
    const History *h = &c->runs[i];
    const double bits = h->val_count > 0 ? h->vals[h->val_count - 1].bits : NAN;
    printf("%s %s", i > 0 ? " |" : "", loss_text((Loss){bits, NAN}, "").text);
  }
  printf("\n");
}

static void print_verdicts(const Comparison *c, int run) {
  static const char *const of[AXES] = {"steps", "tokens", "seconds"};
  printf("%s against %s:\n", c->runs[run].name, c->runs[0].name);
  for (Axis a = 0; a < AXES; a++)
    print_verdict(difference(loss_at(c, 0, a), loss_at(c, run, a)), of[a]);
  print_reached(&c->runs[run], c->runs);
}

static void print_comparison(const Comparison *c) {
  print_runs(c);
  print_configs(c);
  print_losses(c);
  print_scores(c);
  printf("\n");
  for (int i = 1; i < c->count; i++) print_verdicts(c, i);
  print_tokenizers(c);
  printf("Errors of validations are of the choice of windows: none where all were read. Those of\n"
         "training are of the noise between steps. Another seed may differ by more.\n");
}

static HistoryPlace end_of(const History *h, bool vals) {
  return vals && h->val_count > 0 ? h->vals[h->val_count - 1].at : history_end(h);
}

static void find_equal(Comparison *c, Axis axis, bool vals) {
  c->vals[axis] = vals;
  c->equal[axis] = INFINITY;
  for (int i = 0; i < c->count; i++) {
    const HistoryPlace end = end_of(&c->runs[i], vals);
    c->equal[axis] = fmin(c->equal[axis], along(&end, axis));
  }
  for (int i = 0; i < c->count && vals; i++)
    if (isnan(loss_at(c, i, axis).mean)) find_equal(c, axis, vals = false);
}

int compare_command(int argc, char **argv, Error *err) {
  for (int i = 0; i < argc; i++)
    if (argv[i][0] == '-') return error_set(err, "--compare takes runs alone, not '%s'", argv[i]);
  if (argc < 2) return error_set(err, "--compare needs two runs or more: --compare runs/a runs/b");
  Comparison c = {.runs = xcalloc((size_t)argc, sizeof *c.runs), .count = argc};
  int status = 0;
  for (int i = 0; i < argc && status == 0; i++)
    status = history_open(&c.runs[i], argc, argv, i, err);
  if (status == 0) {
    for (Axis a = 0; a < AXES; a++) find_equal(&c, a, true);
    for (int i = 0; i < argc; i++) c.width = (int)max_i64(c.width, (int64_t)strlen(c.runs[i].name));
    print_comparison(&c);
  }
  for (int i = 0; i < argc; i++) history_close(&c.runs[i]);
  free(c.runs);
  return status;
}
