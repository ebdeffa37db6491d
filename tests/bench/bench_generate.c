// Times generation: tokens a second of configs' models with random weights, whole tokens as
// --generate makes them (layers, logits to the host, the choice), but for the text.
//   usage: bench_generate CONFIG.json ... [section.key=value ...]
// With backend.precision=fp8 weights are e4m3, as with --weights fp8.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "model/generate.h"
#include "model/run/backend.h"
#include "tests/bench/gpu_timer.h"

enum { PROMPT = 32, BLOCK = 64, BLOCKS = 12, CONTEXT = PROMPT + (BLOCKS + 1) * BLOCK };

static void must(int status, const Error *err) {
  if (status == 0) return;
  fprintf(stderr, "bench_generate: %s\n", err->text);
  exit(1);
}

// Milliseconds a token: median, least and most of blocks of tokens, after one that is not counted.
static void measure(Generator *g, const char *name, SampleOptions options, int64_t V) {
  int32_t prompt[PROMPT], id;
  double blocks[BLOCKS];
  Error err;
  for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 7919 % V);
  options.max_tokens = CONTEXT;
  must(generator_start(g, prompt, PROMPT, &options, &err), &err);
  for (int b = -1; b < BLOCKS; b++) {
    const double start = now_ms();
    for (int i = 0; i < BLOCK; i++) must(generator_next(g, &id, &err) == 1 ? 0 : -1, &err);
    if (b >= 0) blocks[b] = (now_ms() - start) / BLOCK;
  }
  sort_samples(blocks, BLOCKS);
  const double middle = median_of(blocks, BLOCKS);
  printf("%-34s %8.3f ms a token (%.3f to %.3f) %8.0f tokens/s\n", name, middle, blocks[0],
         blocks[BLOCKS - 1], 1e3 / middle);
  fflush(stdout);
}

static void measure_model(const char *path, int values, char **value) {
  Error err;
  Config config;
  must(config_load(&config, path, values, value, &err), &err);
  Hardware hardware;
  const bool fp8 = config.backend.precision == PRECISION_FP8;
  const Spec asked = {
      .batch = 1, .seq = 64, .loss_chunks = 1, .context = CONTEXT, .fp8_weights = fp8};
  must(hardware_find(&hardware, &config, &err), &err);
  const Spec spec = spec_resolve(&config, asked, &hardware);
  Backend *be = backend_open(&config, &spec, &hardware, &err);
  must(be ? 0 : -1, &err);
  Llama llama;
  must(llama_create(&llama, &config.model, be, &err), &err);
  llama_init_weights(&llama, 1);
  Generator *g = generator_create(&llama, CONTEXT, &err);
  must(g ? 0 : -1, &err);
  printf("%s, %s, %s weights, positions %d to %d; blocks of %d tokens\n", path, be->name,
         precision_name(config.backend.precision), PROMPT + BLOCK, CONTEXT, BLOCK);
  const int64_t V = config.model.vocab_size;
  measure(g, "greedy", (SampleOptions){.top_p = 1}, V);
  measure(g, "temperature 0.8", (SampleOptions){.temperature = 0.8, .top_p = 1}, V);
  measure(g, "temperature 0.8, top-k 50",
          (SampleOptions){.temperature = 0.8, .top_p = 1, .top_k = 50}, V);
  measure(g, "temperature 0.8, top-p 0.95", (SampleOptions){.temperature = 0.8, .top_p = 0.95}, V);
  generator_destroy(g);
  llama_destroy(&llama);
  be->services.destroy(be);
}

int main(int argc, char **argv) {
  Error err;
  int configs = 1;
  while (configs < argc && !strchr(argv[configs], '=')) configs++;
  if (configs < 2) must(error_set(&err, "say which CONFIG.json"), &err);
  for (int i = 1; i < configs; i++) measure_model(argv[i], argc - configs, argv + configs);
  return 0;
}
