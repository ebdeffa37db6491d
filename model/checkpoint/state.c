// state.json and run.json of a checkpoint. Counters are whole numbers; `sequences`, which may use
// all 64 bits, is a string of digits; best_val_loss is null until there is one.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"
#include "base/json.h"

enum { STATE_VERSION = 1, STATE_MAX_BYTES = 1 << 16, RUN_CONFIG_MAX_BYTES = 1 << 20 };

static const struct {
  const char *name;
  size_t offset; // of an int64_t in TrainState
} counters[] = {
    {"step", offsetof(TrainState, step)},
    {"updates", offsetof(TrainState, updates)},
    {"nonfinite", offsetof(TrainState, nonfinite)},
    {"nonfinite_row", offsetof(TrainState, nonfinite_row)},
    {"best_val_step", offsetof(TrainState, best_val_step)},
};
enum { COUNTERS = sizeof counters / sizeof *counters };

static int64_t *counter(TrainState *state, int i) {
  return (int64_t *)((char *)state + counters[i].offset);
}

char *state_json(const TrainState *state) {
  TrainState copy = *state;
  JsonText out = {0};
  json_append(&out, "{\n  \"version\": %d,\n", STATE_VERSION);
  for (int i = 0; i < COUNTERS; i++)
    json_append(&out, "  \"%s\": %" PRId64 ",\n", counters[i].name, *counter(&copy, i));
  json_append(&out, "  \"sequences\": \"%" PRIu64 "\",\n  \"best_val_loss\": ", state->sequences);
  if (isfinite(state->best_val_loss))
    json_append_number(&out, state->best_val_loss);
  else
    json_append(&out, "null");
  json_append(&out, "\n}\n");
  return out.text;
}

// "0", "17", at most 2^64 - 1; no sign, space or leading zero.
static int parse_digits(const char *text, uint64_t *value) {
  const size_t length = strlen(text);
  if (length == 0 || length != strspn(text, "0123456789") || (length > 1 && text[0] == '0'))
    return -1;
  errno = 0;
  const unsigned long long parsed = strtoull(text, NULL, 10);
  *value = parsed;
  return errno == 0 ? 0 : -1;
}

// Stores one key; *seen counts the keys of state.json that were met.
static int read_key(TrainState *state, const cJSON *item, int *seen, Error *err) {
  const char *key = item->string;
  ++*seen;
  for (int i = 0; i < COUNTERS; i++) {
    if (strcmp(key, counters[i].name) != 0) continue;
    if (json_integer(item, counter(state, i)) == 0 && *counter(state, i) >= 0) return 0;
    return error_set(err, "the value of '%s' is not a whole number from 0 to 2^53 - 1", key);
  }
  if (strcmp(key, "version") == 0) {
    int64_t version;
    if (json_integer(item, &version) == 0 && version == STATE_VERSION) return 0;
    return error_set(err, "'version' is not %d, the one that this program reads", STATE_VERSION);
  }
  if (strcmp(key, "sequences") == 0) {
    if (cJSON_IsString(item) && parse_digits(item->valuestring, &state->sequences) == 0) return 0;
    return error_set(err, "the value of 'sequences' is not a string of digits below 2^64");
  }
  if (strcmp(key, "best_val_loss") == 0) {
    state->best_val_loss = cJSON_IsNull(item) ? NAN : item->valuedouble;
    if (cJSON_IsNull(item) || (cJSON_IsNumber(item) && isfinite(item->valuedouble))) return 0;
    return error_set(err, "the value of 'best_val_loss' is not a number or null");
  }
  return error_set(err, "the key '%.100s' is unknown", key);
}

static int read_state(TrainState *state, const cJSON *root, Error *err) {
  enum { KEYS = COUNTERS + 3 };
  if (!cJSON_IsObject(root)) return error_set(err, "it is not an object");
  const char *twice = json_duplicate_key(root);
  if (twice) return error_set(err, "the key '%.100s' is there twice", twice);
  int seen = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, root) {
    if (read_key(state, item, &seen, err) != 0) return -1;
  }
  if (seen != KEYS) return error_set(err, "only %d of its %d keys are there", seen, KEYS);
  if (state->updates > state->step)
    return error_set(err, "%" PRId64 " updates in %" PRId64 " steps cannot be", state->updates,
                     state->step);
  return 0;
}

// The text of PATH/FILE, with its full name in *name; both in fresh memory.
static int read_file(const char *path, const char *file, size_t max_bytes, char **name, char **text,
                     size_t *bytes, Error *err) {
  *name = xasprintf("%s/%s", path, file);
  int status = -1;
  if (!path_exists(*name))
    error_set(err,
              "'%s' is not a checkpoint that a run can go on from: it has no %s (weights alone can "
              "be started from with train.init_from)",
              path, file);
  else
    status = file_read(*name, max_bytes, text, bytes, err);
  if (status != 0) free(*name);
  return status;
}

int checkpoint_read_state(const char *path, TrainState *state, Error *err) {
  char *name, *text;
  size_t bytes;
  if (read_file(path, STATE_FILE, STATE_MAX_BYTES, &name, &text, &bytes, err) != 0) return -1;
  cJSON *root = json_parse(name, text, bytes, err);
  int status = root ? 0 : -1;
  if (root && read_state(state, root, err) != 0) status = error_prefix(err, "'%s'", name);
  cJSON_Delete(root);
  free(text);
  free(name);
  return status;
}

int checkpoint_read_config(const char *path, Config *config, Error *err) {
  char *name, *text;
  size_t bytes;
  if (read_file(path, RUN_CONFIG_FILE, RUN_CONFIG_MAX_BYTES, &name, &text, &bytes, err) != 0)
    return -1;
  const int status = config_parse(config, name, text, 0, NULL, err);
  free(text);
  free(name);
  return status;
}
