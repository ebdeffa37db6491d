#include "tests/support/tiny_training.h"

#include "tests/support/data_test.h"
#include "tests/support/test.h"

enum { TOKENS = 200, VOCAB = 11 };

int make_tokens_folder(void **state) {
  int32_t tokens[TOKENS];
  if (make_folder(state) != 0) return -1;
  for (int i = 0; i < TOKENS; i++) tokens[i] = i * i % VOCAB;
  write_tokens(path_text("%s/tokens.bin", (char *)*state).text, tokens, TOKENS, VOCAB);
  return 0;
}

Config tiny_training_config(const char *folder, int steps, const char *output) {
  Error err = {""};
  Config config;
  char *json = held_text(
      "{\"model\": {\"hidden_size\": 16, \"intermediate_size\": 20, \"num_hidden_layers\": 1,"
      " \"num_attention_heads\": 4, \"vocab_size\": %d, \"max_position_embeddings\": 8},"
      " \"data\": {\"train\": \"%s/tokens.bin\"},"
      " \"train\": {\"steps\": %d, \"sequence_length\": 8, \"batch_size\": 1},"
      " \"backend\": {\"device\": \"cpu\", \"threads\": 1},"
      " \"output\": {\"dir\": \"%s/run\"%s}}",
      VOCAB, folder, steps, folder, output);
  must(config_parse(&config, "test", json, 0, NULL, &err), &err);
  return config;
}

void tiny_training_open(Run *run, const Config *config) {
  static const volatile sig_atomic_t never = 0;
  Error err = {""};
  must(run_open(run, config, &never, &err), &err);
}

void tiny_training_step(Run *run) {
  Error err = {""};
  AdamW hyper;
  must(run_step_begin(run, &hyper, &err), &err);
  llama_load_batch(&run->llama, &run->inputs.batches[0]);
  llama_forward(&run->llama);
  llama_backward(&run->llama, 1, false);
  run_save_copied(run);
  llama_update(&run->llama, &hyper);
  must(run_step_end(run, &err), &err);
}
