// state.json and run.json of a checkpoint. Counters are whole numbers; `sequences`, `tokenizer`,
// `data`, `validation` and `tokens`, which may use all 64 bits, are strings of digits;
// best_val_loss is null until there is one; `tokenizer`, `data`, `validation`, `tokens` and
// `backend` are missing where they are not known; `optimizer`, false, is there where the checkpoint
// is the model alone; `sources` where data are mixed. Version 1, which had no `data` and `backend`,
// is read, too, and so is the `schedule` of older versions, which is ignored.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/run/checkpoint/files.h"

enum { STATE_VERSION = 2, STATE_MAX_BYTES = 1 << 16 };

// The keys of state.json in their order.
enum { VERSION, FIRST_COUNTER, SEQUENCES = FIRST_COUNTER + 5, BEST_VAL_LOSS, KEYS };
static const char *const names[KEYS] = {"version",   "step",          "updates",
                                        "nonfinite", "nonfinite_row", "best_val_step",
                                        "sequences", "best_val_loss"};
// Those that may be missing: numbers of 64 bits, and from BACKEND on others.
enum { BACKEND = 4, OPTIMIZER, SOURCES, SCHEDULE, MORE_KEYS };
static const char *const more_names[MORE_KEYS] = {
    "tokenizer", "data", "validation", "tokens", "backend", "optimizer", "sources", "schedule"};
// Of each source.
enum { SOURCE_DATA, SOURCE_WEIGHT, SOURCE_DRAWN, SOURCE_SINCE, SOURCE_KEYS };
static const char *const source_names[SOURCE_KEYS] = {"data", "weight", "drawn", "since"};

static void put_sources(JsonWriter *w, const TrainState *s) {
  json_open(w, more_names[SOURCES], '[');
  for (const SourceState *from = s->sources; from < s->sources + s->source_count; from++) {
    json_open(w, NULL, '{');
    json_string(w, source_names[SOURCE_DATA], digits_text(from->data).text);
    json_number(w, source_names[SOURCE_WEIGHT], from->weight, JSON_EXACT);
    json_string(w, source_names[SOURCE_DRAWN], digits_text(from->drawn).text);
    json_string(w, source_names[SOURCE_SINCE], digits_text(from->since).text);
    json_close(w, '}');
  }
  json_close(w, ']');
}

char *state_json(const TrainState *s) {
  const int64_t numbers[SEQUENCES] = {STATE_VERSION, s->step,          s->updates,
                                      s->nonfinite,  s->nonfinite_row, s->best_val_step};
  const uint64_t more[BACKEND] = {s->tokenizer, s->data, s->validation, s->tokens};
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  for (int i = 0; i < SEQUENCES; i++) json_whole(&w, names[i], numbers[i]);
  json_string(&w, names[SEQUENCES], digits_text(s->sequences).text);
  json_number(&w, names[BEST_VAL_LOSS], s->best_val_loss, JSON_EXACT);
  for (int i = 0; i < BACKEND; i++)
    if (more[i] != 0) json_string(&w, more_names[i], digits_text(more[i]).text);
  if (s->backend.text[0] != '\0') json_string(&w, more_names[BACKEND], s->backend.text);
  if (s->model_alone) json_bool(&w, more_names[OPTIMIZER], false);
  if (s->source_count > 0) put_sources(&w, s);
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

static int read_source(SourceState *source, const cJSON *object, Error *err) {
  const cJSON *fields[SOURCE_KEYS];
  if (json_fields(object, source_names, SOURCE_KEYS, fields, err) != 0 ||
      read_digits(fields[SOURCE_DATA], &source->data, err) != 0 ||
      read_digits(fields[SOURCE_DRAWN], &source->drawn, err) != 0 ||
      read_digits(fields[SOURCE_SINCE], &source->since, err) != 0)
    return -1;
  const cJSON *weight = fields[SOURCE_WEIGHT];
  source->weight = weight->valuedouble;
  if (cJSON_IsNumber(weight) && source->weight > 0 && source->weight <= 1 &&
      source->since <= source->drawn)
    return 0;
  return error_set(err, "a source's weight is not above 0 and at most 1, or its 'since' is above "
                        "its 'drawn'");
}

// Together not more were drawn than there are sequences: sums do not overflow.
static int read_sources(TrainState *s, const cJSON *list, Error *err) {
  uint64_t left = s->sequences;
  if (!list) return 0;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > MOST_SOURCES)
    return error_set(err, "'sources' is not a list of at most %d", MOST_SOURCES);
  for (const cJSON *item = list->child; item; item = item->next) {
    SourceState *source = &s->sources[s->source_count++];
    if (read_source(source, item, err) != 0) return -1;
    if (source->drawn > left)
      return error_set(err, "more sequences were drawn of the sources than in all");
    left -= source->drawn;
  }
  return 0;
}

// Takes the optional keys out of the tree.
static int read_more(TrainState *s, cJSON *root, Error *err) {
  uint64_t *const numbers[] = {&s->tokenizer, &s->data, &s->validation, &s->tokens};
  const cJSON *sequences = cJSON_GetObjectItemCaseSensitive(root, names[SEQUENCES]);
  int status = sequences ? read_digits(sequences, &s->sequences, err) : 0;
  for (int i = 0; i < MORE_KEYS && status == 0; i++) {
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(root, more_names[i]);
    const char *text = cJSON_GetStringValue(item);
    if (item && i < BACKEND)
      status = read_digits(item, numbers[i], err);
    else if (item && i == BACKEND && (!text || strlen(text) >= sizeof s->backend.text))
      status = error_set(err, "the value of 'backend' is not a short text");
    else if (item && i == BACKEND)
      s->backend = short_text("%s", text);
    else if (item && i == OPTIMIZER && !cJSON_IsBool(item))
      status = error_set(err, "the value of 'optimizer' is not true or false");
    else if (i == SOURCES)
      status = read_sources(s, item, err);
    else if (i == OPTIMIZER)
      s->model_alone = cJSON_IsFalse(item);
    cJSON_Delete(item);
  }
  return status;
}

static int read_state(TrainState *s, cJSON *root, Error *err) {
  int64_t number, *const counters[] = {&s->step, &s->updates, &s->nonfinite, &s->nonfinite_row,
                                       &s->best_val_step};
  const cJSON *fields[KEYS], *best;
  const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, names[VERSION]);
  *s = (TrainState){0};
  if (version && (json_integer(version, &number) != 0 || number < 1 || number > STATE_VERSION))
    return error_set(err, "'version' is not one of 1 to %d, which this program reads",
                     STATE_VERSION);
  if (read_more(s, root, err) != 0 || json_fields(root, names, KEYS, fields, err) != 0) return -1;
  for (int i = FIRST_COUNTER; i < SEQUENCES; i++) {
    int64_t *counter = counters[i - FIRST_COUNTER];
    if (json_integer(fields[i], counter) != 0 || *counter < 0)
      return error_set(err, "the value of '%s' is not a whole number from 0 to 2^53 - 1", names[i]);
  }
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
                   "'%s' is not a checkpoint that a run can resume from: it has no %s (weights "
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
  return config_load_saved(config, name.text, err);
}
