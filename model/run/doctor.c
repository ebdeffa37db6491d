// ./train --doctor: which paths this machine can train on, tried with a tiny model.

#include <math.h>
#include <stdio.h>

#include "base/os.h"
#include "base/rng.h"
#include "kernels/bf16_products.h"
#include "kernels/gpu.h"
#include "model/llama.h"
#include "model/optimizer.h"
#include "model/run/check.h"
#include "model/run/commands.h"

static const char tiny_run[] =
    "{\"model\": {\"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 320, "
    "\"initializer_range\": 0.1},"
    " \"data\": {\"train\": \"none\"}, \"output\": {\"dir\": \"none\"},"
    " \"train\": {\"steps\": 3, \"sequence_length\": 64, \"batch_size\": 2},"
    " \"optimizer\": {\"learning_rate\": 0.01, \"schedule\": \"constant\"}}";

enum { TINY_TOKENS = 128 };

// Steps of the tiny run on random tokens; the last step's loss.
static double tiny_loss(Llama *llama, const Config *c) {
  Backend *be = llama->be;
  int32_t ids[2 * TINY_TOKENS];
  for (int i = 0; i < 2 * TINY_TOKENS; i++)
    ids[i] = (int32_t)(rng_u64(1, (uint64_t)i) % (uint64_t)c->model.vocab_size);
  llama_init_weights(llama, 1);
  double loss = NAN;
  for (int64_t step = 0; step < c->train.steps; step++) {
    const AdamW hyper = adamw_at(&c->optimizer, step, c->train.steps);
    llama_load_batch(llama, &(Batch){.tokens = ids, .targets = ids + TINY_TOKENS});
    llama_forward(llama);
    llama_backward(llama, 1, false);
    llama_update(llama, &hyper);
    loss = be->services.step_result(be).loss;
  }
  return loss;
}

// The loss of the tiny run so, NAN with a sentence where it cannot run. Prints the backend's
// description.
static double try_backend(BackendConfig backend, Error *err) {
  Config config;
  if (config_parse(&config, "the doctor's run", tiny_run, 0, NULL, err) != 0) return NAN;
  backend.graphs = config.backend.graphs;
  config.backend = backend;
  Hardware hardware;
  if (hardware_find(&hardware, &config, err) != 0) return NAN;
  const Spec spec = spec_resolve(&config, run_spec(&config), &hardware);
  Backend *be = backend_open(&config, &spec, &hardware, err);
  if (!be) return NAN;
  printf("%-14s %s\n", be->name, be->description);
  Llama llama = {0};
  double loss = NAN;
  if (llama_create(&llama, &config.model, be, err) == 0) {
    loss = tiny_loss(&llama, &config);
    llama_destroy(&llama);
    if (!isfinite(loss)) error_set(err, "the loss after three steps is not finite");
  }
  be->services.destroy(be);
  return loss;
}

// 1 if it cannot run or disagrees with the CPU's loss in fp32.
static int check_bf16(const char *name, BackendConfig backend, double expected) {
  enum { BF16_AGREEMENT_PER_CENT = 2 }; // three steps in bf16 stay well below this
  Error err;
  const double loss = try_backend(backend, &err);
  const double difference = 100 * fabs(loss - expected) / expected;
  if (difference <= BF16_AGREEMENT_PER_CENT) {
    printf("PASS  %s: the same, loss %.4f, %.2f %% from fp32's on the CPU\n", name, loss,
           difference);
    return 0;
  }
  if (isfinite(loss)) error_set(&err, "loss %.4f where the CPU has %.4f", loss, expected);
  printf("FAIL  %s: %s\n", name, err.text);
  return 1;
}

// ---- Fused programs

// Large enough that a program's time is not its launch's.
static const char timed_run[] =
    "{\"model\": {\"hidden_size\": 1024, \"intermediate_size\": 2816, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"vocab_size\": 32000},"
    " \"data\": {\"train\": \"none\"}, \"output\": {\"dir\": \"none\"},"
    " \"train\": {\"steps\": 1, \"sequence_length\": 1024, \"batch_size\": 4}}";

static int time_programs(BenchResult *times, bool fp8, Mainloop mainloop, Error *err) {
  enum { SECONDS = 1 };
  Config config;
  if (config_parse(&config, "the doctor's timed run", timed_run, 0, NULL, err) != 0) return -1;
  config.backend.device = DEVICE_CUDA;
  config.backend.kernels = KERNELS_FUSED;
  config.backend.mainloop = mainloop;
  config.backend.precision = fp8 ? PRECISION_FP8 : PRECISION_BF16;
  return bench_config(&config, SECONDS, times, err);
}

// 1 if a program is wrong.
static int check_table(const Gpu *gpu, bool fp8, Mainloop mainloop) {
  const char *precision = fp8 ? "FP8" : "bf16",
             *loop = mainloop == MAINLOOP_WGMMA ? "wgmma" : "mma.sync";
  Check check;
  BenchResult times;
  Error err;
  if (check_programs(&check, fp8, mainloop, gpu, &err) != 0) {
    printf("----  programs in %s by %s: %s\n", precision, loop, err.text);
    return 0;
  }
  const bool timed = time_programs(&times, fp8, mainloop, &err) == 0;
  printf("\nprograms in %s by %s on %s, compute capability %d.%d, driver for CUDA %d.%d\n",
         precision, loop, gpu->name, gpu->major, gpu->minor, gpu->driver / 1000,
         gpu->driver % 1000 / 10);
  check_print(&check, fp8, timed ? &times : NULL);
  if (!timed) printf("----  no times: %s\n", err.text);
  return check_failed(&check) != 0;
}

static int check_tables(const Gpu *gpu) {
  int failed = 0;
  for (Mainloop loop = MAINLOOP_WGMMA; loop <= MAINLOOP_MMA_SYNC; loop++)
    for (int fp8 = 0; fp8 < 2; fp8++)
      if (loop == MAINLOOP_MMA_SYNC || gpu->mainloop == loop) failed |= check_table(gpu, fp8, loop);
  return failed;
}

// ---- All paths

static int check_cpu_products(double expected) {
  const BackendConfig backend = {.device = DEVICE_CPU, .cpu_products = PRODUCTS_BF16};
  Error err;
  if (bf16_products_pay()) return check_bf16("cpu, products in bf16", backend, expected);
  if (bf16_products_usable(&err) == 0)
    error_set(&err,
              "oneDNN finds no AMX, so fp32 is faster, and backend.cpu_products=auto takes it");
  printf("----  cpu, products in bf16: %s\n", err.text);
  return 0;
}

int doctor_command(int argc, char **argv, Error *err) {
  (void)argc, (void)argv;
  Gpu gpu;
  int failed = 0;
  const ShortText name = cpu_name();
  const ThreadsAsked threads = threads_asked("");
  printf("%-14s %s; %d thread%s, %s\n", "processor", name.text[0] ? name.text : "unnamed",
         threads.count, threads.count == 1 ? "" : "s", threads.why);
  const double expected = try_backend((BackendConfig){.device = DEVICE_CPU}, err);
  if (isfinite(expected))
    printf("PASS  cpu: three steps of a tiny model, loss %.4f\n", expected);
  else
    failed = 1, printf("FAIL  cpu: %s\n", err->text);
  failed |= check_cpu_products(expected);

  if (gpu_find(&gpu, err) != 0) {
    printf("----  cuda: %s\n", err->text);
    return failed;
  }
  BackendConfig cuda = {.device = DEVICE_CUDA, .kernels = KERNELS_UNFUSED};
  failed |= check_bf16("cuda, unfused", cuda, expected);
  const Spec any_that_fits = {.D = 8, .F = 8, .d = 8};
  if (backend_fused_supported(&any_that_fits, err) == 0)
    cuda.kernels = KERNELS_FUSED,
    failed |= check_bf16("cuda, fused", cuda, expected) | check_tables(&gpu);
  else
    printf("----  cuda, fused: %s\n", err->text);
  return failed;
}
