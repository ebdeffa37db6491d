// Arbitrary bytes as a configuration and as a config.json: refused with a sentence, or accepted and
// then written and read back as the same bytes.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/tensors.h"

static void check(int holds) {
  if (!holds) abort();
}

static void try_config(const char *json) {
  Config config, again;
  Error err = {""};
  if (config_parse(&config, "fuzz", json, 0, NULL, &err)) {
    check(err.text[0] != '\0');
    return;
  }
  char *resolved = config_json(&config);
  check(config_parse(&again, "resolved", resolved, 0, NULL, &err) == 0);
  check(memcmp(&config, &again, sizeof config) == 0);
  check(config_compare(&config, &again, &err) == 0);
  check(model_parameters(&config.model, true) > 0);
  free(resolved);
}

static void try_model(const char *json) {
  ModelConfig model, again;
  Error err = {""};
  if (model_config_parse(&model, "fuzz", json, &err)) {
    check(err.text[0] != '\0');
    return;
  }
  char *written =
      model_config_json(&model, &(ConfigExtras){.bos = 256, .eos = 257, .carried = json});
  check(model_config_parse(&again, "written", written, &err) == 0);
  check(memcmp(&model, &again, sizeof model) == 0);
  free(written);
}

// The text of one override over a valid file.
static void try_override(char *override) {
  static const char base[] =
      "{\"model\":{\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1,"
      "\"num_attention_heads\":2,\"vocab_size\":258},\"data\":{\"train\":\"t\"},"
      "\"train\":{\"steps\":1,\"sequence_length\":8},\"output\":{\"dir\":\"o\"}}";
  Config config;
  Error err = {""};
  if (config_parse(&config, "fuzz", base, 1, &override, &err)) check(err.text[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = xmalloc(size + 1); // exactly as large, so that ASan sees a byte too far
  memcpy(text, data, size);
  text[size] = '\0';
  try_config(text);
  try_model(text);
  try_override(text);
  free(text);
  return 0;
}
