// state.json and run.json of a checkpoint. Counters are whole numbers; `sequences` and `tokenizer`,
// which may use all 64 bits, are strings of digits; best_val_loss is null until there is one;
// `tokenizer` is left out where it is not known, and `schedule` where no resume has planned one.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

enum { STATE_VERSION = 1, STATE_MAX_BYTES = 1 << 16 };

// The keys of state.json in their order.
enum { VERSION, FIRST_COUNTER, SEQUENCES = FIRST_COUNTER + 5, BEST_VAL_LOSS, TOKENIZER, KEYS };
static const char *const names[KEYS] = {"version",   "step",          "updates",
                                        "nonfinite", "nonfinite_row", "best_val_step",
                                        "sequences", "best_val_loss", "tokenizer"};

#define PLAN_NAME "schedule"
enum { PLAN_KEYS = 4 };
static const char *const plan_names[PLAN_KEYS] = {"from", "warmup", "rate", "peak"};

typedef struct DigitsText {
  char text[24];
} DigitsText;

static DigitsText digits_text(uint64_t value) {
  DigitsText t;
  snprintf(t.text, sizeof t.text, "%" PRIu64, value);
  return t;
}

char *state_json(const TrainState *s) {
  const int64_t numbers[SEQUENCES] = {STATE_VERSION, s->step,          s->updates,
                                      s->nonfinite,  s->nonfinite_row, s->best_val_step};
  const DigitsText digits = digits_text(s->sequences);
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  for (int i = 0; i < SEQUENCES; i++) json_whole(&w, names[i], numbers[i]);
  json_string(&w, names[SEQUENCES], digits.text);
  json_number(&w, names[BEST_VAL_LOSS], s->best_val_loss, JSON_EXACT);
  if (s->plan.from > 0) {
    json_open(&w, PLAN_NAME, '{');
    json_whole(&w, plan_names[0], s->plan.from);
    json_whole(&w, plan_names[1], s->plan.warmup);
    json_number(&w, plan_names[2], s->plan.rate, JSON_EXACT);
    json_number(&w, plan_names[3], s->plan.peak, JSON_EXACT);
    json_close(&w, '}');
  }
  if (s->tokenizer != 0) json_string(&w, names[TOKENIZER], digits_text(s->tokenizer).text);
  json_close(&w, '}');
  return w.text;
}

// A sign, a space, zeros in front or more than 64 bits would print as another text.
static int read_digits(const cJSON *item, uint64_t *value, Error *err) {
  const char *digits = cJSON_GetStringValue(item);
  *value = digits ? strtoull(digits, NULL, 10) : 0;
  if (digits && strcmp(digits, digits_text(*value).text) == 0) return 0;
  return error_set(err, "the value of '%s' is not a string of digits below 2^64", item->string);
}

static int read_plan(SchedulePlan *plan, const cJSON *object, Error *err) {
  const cJSON *fields[PLAN_KEYS];
  int64_t steps[2];
  if (json_fields(object, plan_names, PLAN_KEYS, fields, err) != 0)
    return error_prefix(err, PLAN_NAME);
  for (int i = 0; i < PLAN_KEYS; i++) {
    const double value = cJSON_IsNumber(fields[i]) ? fields[i]->valuedouble : -1;
    if (!(value >= 0) || !isfinite(value) || (i < 2 && json_integer(fields[i], &steps[i]) != 0))
      return error_set(err, PLAN_NAME ": the value of '%s' is no %s from 0 on", plan_names[i],
                       i < 2 ? "whole number" : "number");
  }
  *plan = (SchedulePlan){steps[0], steps[1], fields[2]->valuedouble, fields[3]->valuedouble};
  return 0;
}

// Takes the schedule, which may be missing, out of the tree.
static int read_state(TrainState *s, cJSON *root, Error *err) {
  cJSON *plan = cJSON_DetachItemFromObjectCaseSensitive(root, PLAN_NAME);
  s->plan = (SchedulePlan){0};
  const int status = plan ? read_plan(&s->plan, plan, err) : 0;
  cJSON_Delete(plan);
  if (status != 0) return -1;
  int64_t number, *const counters[] = {&s->step, &s->updates, &s->nonfinite, &s->nonfinite_row,
                                       &s->best_val_step};
  const cJSON *fields[KEYS], *best;
  const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, names[VERSION]);
  if (version && (json_integer(version, &number) != 0 || number != STATE_VERSION))
    return error_set(err, "'version' is not %d, the one that this program reads", STATE_VERSION);
  const bool tokenizer = cJSON_GetObjectItemCaseSensitive(root, names[TOKENIZER]) != NULL;
  if (json_fields(root, names, tokenizer ? KEYS : TOKENIZER, fields, err) != 0) return -1;
  for (int i = FIRST_COUNTER; i < SEQUENCES; i++) {
    int64_t *counter = counters[i - FIRST_COUNTER];
    if (json_integer(fields[i], counter) != 0 || *counter < 0)
      return error_set(err, "the value of '%s' is not a whole number from 0 to 2^53 - 1", names[i]);
  }
  s->tokenizer = 0;
  if (read_digits(fields[SEQUENCES], &s->sequences, err) != 0 ||
      (tokenizer && read_digits(fields[TOKENIZER], &s->tokenizer, err) != 0))
    return -1;
  best = fields[BEST_VAL_LOSS];
  s->best_val_loss = cJSON_IsNull(best) ? NAN : best->valuedouble;
  if (!cJSON_IsNull(best) && !(cJSON_IsNumber(best) && isfinite(best->valuedouble)))
    return error_set(err, "the value of 'best_val_loss' is not a number or null");
  if (s->updates <= s->step) return 0;
  return error_set(err, "%" PRId64 " updates in %" PRId64 " steps cannot be", s->updates, s->step);
}

// PATH/FILE, which must be there.
static int find_file(const char *path, const char *file, PathText *found, Error *err) {
  *found = path_text("%s/%s", path, file);
  if (path_exists(found->text)) return 0;
  return error_set(err,
                   "'%s' is not a checkpoint that a run can go on from: it has no %s (weights "
                   "alone can be started from with train.init_from)",
                   path, file);
}

int checkpoint_read_state(const char *path, TrainState *state, Error *err) {
  PathText name;
  if (find_file(path, STATE_FILE, &name, err) != 0) return -1;
  cJSON *root = json_read(name.text, STATE_MAX_BYTES, err);
  int status = root ? 0 : -1;
  if (root && read_state(state, root, err) != 0) status = error_prefix(err, "'%s'", name.text);
  cJSON_Delete(root);
  return status;
}

int checkpoint_read_config(const char *path, Config *config, Error *err) {
  PathText name;
  if (find_file(path, RUN_CONFIG_FILE, &name, err) != 0) return -1;
  return config_load(config, name.text, 0, NULL, err);
}
