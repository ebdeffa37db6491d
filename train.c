// train: trains a LLaMA from a JSON config, and writes with it. `./train --help` says how to call
// it.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "build/version.h"
#include "data/tokenizer.h"
#include "model/bench/bench.h"
#include "model/bench/doctor.h"
#include "model/run/run.h"

static const char usage[] =
    "usage: train CONFIG.json [section.key=value ...]          train\n"
    "       train --plan CONFIG.json [section.key=value ...]   show the resolved config and the "
    "memory plan\n"
    "       train --generate DIR [--prompt TEXT] [options]     write with a trained model (no "
    "--prompt: stdin)\n"
    "       train --bench CONFIG.json [section.key=value ...]  what fusing buys on this GPU\n"
    "       train --doctor                                     what this machine can train on, "
    "tried out\n"
    "       train --help-config                                every config key, its default and "
    "meaning\n"
    "       train --help | --version\n"
    "\n"
    "Options of --generate: --tokens N (400)  --temperature X (0.8; 0 = likeliest)  --top-k N (0 = "
    "all)\n"
    "  --top-p X (1)  --seed N (1337). DIR is a run's folder, one of its checkpoints, or a Hugging "
    "Face LLaMA folder.\n"
    "Options of --bench: --op NAME (one operation alone)  --json FILE  --seconds S (8; with --op: "
    "3). "
    "No data are needed.\n"
    "Ctrl-C finishes the step, saves and ends; train.resume=auto goes on from there.\n"
    "Configs to start from are in configs/, and ./prepare turns text into training data.\n";

// The one mutable global: a signal handler can reach nothing else.
static volatile sig_atomic_t stop_requested = 0;

static void on_signal(int number) {
  if (stop_requested) { // the second one ends at once
    signal(number, SIG_DFL);
    raise(number);
  }
  stop_requested = 1;
}

static void catch_signals(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

static int fail(const Error *err) {
  fflush(stdout);
  fprintf(stderr, "train: %s\n", err->text);
  return 1;
}

// ---- Training

static bool due(int64_t step, int64_t interval, int64_t steps) {
  return step == steps || (interval > 0 && step % interval == 0);
}

// Saves after `step` steps. A failed save ends a run only where it was the last.
static int save(Run *run, bool last, Error *err) {
  if (run_save(run, err) == 0) return 0;
  if (last) return -1;
  fprintf(stderr, "train: %s; training goes on\n", err->text);
  return 0;
}

// Trains until the last step, a signal or an error.
static int training_loop(Run *run, Error *err) {
  Llama *llama = &run->llama;
  const TrainConfig *c = &run->config.train;
  for (;;) {
    const int64_t step = run_steps_asked(run); // the GPU may still be busy with the last one
    const bool validate = step == 0 || due(step, c->eval_interval, c->steps),
               sample = step > 0 && due(step, c->sample_interval, c->steps),
               checkpoint = step > 0 && due(step, c->save_interval, c->steps);
    if (validate || sample || checkpoint || stop_requested) {
      if (run_settle(run, err) != 0) return -1;
      if (validate && !stop_requested) run_validate(run);
      if (sample && !stop_requested) run_sample(run);
      const bool last = step >= c->steps || stop_requested;
      if ((checkpoint || last) && save(run, last, err) != 0) return -1;
      if (last) return 0;
    }

    AdamW hyper;
    if (run_step_begin(run, &hyper, err) != 0) return -1;
    for (int64_t i = 0; i < c->gradient_accumulation; i++) {
      run_load_batch(run);
      llama_forward(llama);
      llama_backward(llama, 1 / (double)c->gradient_accumulation, i > 0);
    }
    llama_update(llama, &hyper);
    if (run_step_end(run, err) != 0) return -1;
  }
}

static void print_end(const char *path, const Config *config, int64_t step, bool saved,
                      int override_count, char **overrides) {
  const char *dir = config->output.dir;
  const bool done = step >= config->train.steps;
  if (!saved) {
    printf("ended after step %lld of %lld; nothing was saved, as train.save_interval asks\n",
           (long long)step, (long long)config->train.steps);
  } else if (done) {
    printf(
        "done: the model is in %s/latest; write with it: ./train --generate %s --prompt \"...\"\n",
        dir, dir);
  } else {
    printf("stopped after step %lld of %lld; go on with: ./train %s train.resume=auto",
           (long long)step, (long long)config->train.steps, path);
    for (int i = 0; i < override_count; i++)
      if (strncmp(overrides[i], "train.resume=", 13) != 0) printf(" '%s'", overrides[i]);
    printf("\n");
  }
}

static int command_train(const char *path, int override_count, char **overrides) {
  Error err;
  Config config;
  Run run;
  if (config_load(&config, path, override_count, overrides, &err) != 0) return fail(&err);
  config_print(&config);
  catch_signals(); // from here on a signal means: stop at the next step boundary and save
  if (run_open(&run, &config, &stop_requested, &err) != 0) return fail(&err);
  const int status = training_loop(&run, &err);
  if (status == 0) {
    const int64_t step = run.state.step;
    log_stop(&run.log, step, step >= config.train.steps ? "done" : "signal");
    print_end(path, &config, step, run.saved_step >= 0, override_count, overrides);
  }
  run_close(&run);
  return status == 0 ? 0 : fail(&err);
}

static int command_plan(const char *path, int override_count, char **overrides) {
  Error err;
  Config config;
  if (config_load(&config, path, override_count, overrides, &err) != 0) return fail(&err);
  RunShape shape = run_shape(&config);
  Backend *be = backend_create(&config, &shape, config.train.sequence_length, &err);
  if (!be) return fail(&err);
  char *json = config_json(&config);
  printf("%s\n", json);
  free(json);
  MemoryPlan plan;
  memory_plan(&plan, &config.model, &shape, be);
  memory_plan_print(&plan);
  const double flops =
      model_step_flops(&config.model, config.train.batch_size * config.train.gradient_accumulation,
                       config.train.sequence_length);
  printf("  this %s has %s: the run %s\n", be->name, size_text(be->memory_bytes).text,
         plan.total_bytes <= be->memory_bytes ? "fits" : "does not fit");
  printf("%s parameters, %.3g model FLOPs a step\n",
         count_text((double)model_parameters(&config.model, true)).text, flops);
  be->destroy(be);
  return 0;
}

// ---- --generate

typedef struct GenerateArgs {
  const char *dir, *prompt; // prompt NULL: stdin
  SampleOptions options;
} GenerateArgs;

static char *read_stdin(void) {
  size_t used = 0, room = 4096;
  char *text = xmalloc(room);
  for (size_t n; (n = fread(text + used, 1, room - used - 1, stdin)) > 0;) {
    used += n;
    if (used + 1 == room) text = xrealloc(text, room *= 2);
  }
  text[used] = '\0';
  return text;
}

// Token ids separated by white space, for models of another tokenizer.
static int parse_ids(const char *text, int32_t *ids, int64_t *count, Error *err) {
  *count = 0;
  for (const char *at = text; *(at += strspn(at, " \t\n")) != '\0';) {
    char *end;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\n", *end)))
      return error_set(err,
                       "this model does not use the byte tokenizer, so the prompt must be token "
                       "ids separated by "
                       "spaces, and '%.20s' is none",
                       at);
    ids[(*count)++] = (int32_t)id;
    at = end;
  }
  return 0;
}

static int write_text(Llama *llama, int64_t context, GenerateArgs *args, const char *prompt,
                      Error *err) {
  const bool bytes = llama->config.vocab_size == BYTE_VOCAB;
  int32_t *ids = xmalloc((strlen(prompt) + 1) * sizeof *ids);
  int64_t count = 0;
  int status = 0;
  if (bytes) {
    ids[0] = TOKEN_BEGIN;
    bytes_encode(prompt, strlen(prompt), ids + 1);
    count = (int64_t)strlen(prompt) + 1;
  } else {
    status = parse_ids(prompt, ids, &count, err);
  }
  args->options.end = bytes ? TOKEN_END : -1;
  Generator *g = status == 0 ? generator_create(llama, context, err) : NULL;
  if (g) {
    fputs(prompt, stdout);
    status = generator_start(g, ids, count, &args->options, err);
    for (int32_t id; status == 0 && !stop_requested && (id = generator_next(g)) >= 0;) {
      if (!bytes)
        printf(" %d", id);
      else if (id < 256)
        putchar(id);
      fflush(stdout);
    }
    putchar('\n');
  }
  generator_destroy(g);
  free(ids);
  return g ? status : -1;
}

// The context a checkpoint of ours was trained with; for other folders what the model allows,
// within reason.
static int64_t context_of(const char *path, const ModelConfig *model) {
  enum { FOREIGN_CONTEXT = 2048 };
  Config config;
  Error ignored; // a foreign folder has no run.json
  if (checkpoint_read_config(path, &config, &ignored) == 0) return config.train.sequence_length;
  return model->max_position_embeddings < FOREIGN_CONTEXT ? model->max_position_embeddings
                                                          : FOREIGN_CONTEXT;
}

static int command_generate(GenerateArgs *args) {
  enum { MAX_CONFIG_BYTES = 1 << 20, ROWS = 64 };
  Error err;
  char path[PATH_CHARS], *json;
  size_t json_bytes;
  if (checkpoint_find(args->dir, args->dir, path, &err) != 0) return fail(&err);
  char *config_path = xasprintf("%s/config.json", path);
  Config config = {.backend = {.device = DEVICE_AUTO, .kernels = KERNELS_AUTO}};
  int status = file_read(config_path, MAX_CONFIG_BYTES, &json, &json_bytes, &err);
  if (status == 0) {
    status = model_config_parse(&config.model, config_path, json, &err);
    free(json);
  }
  free(config_path);
  if (status != 0) return fail(&err);

  const int64_t context = context_of(path, &config.model);
  RunShape shape = {.batch = 1, .seq = ROWS, .loss_chunks = 1, .context = context};
  Llama llama = {0};
  Backend *be = backend_create(&config, &shape, context > ROWS ? context : ROWS, &err);
  if (!be) return fail(&err);
  status = llama_create(&llama, &config.model, &shape, be, &err);
  if (status == 0) status = checkpoint_load(path, &llama, false, &err);
  if (status == 0) {
    catch_signals();
    char *prompt = args->prompt ? xstrdup(args->prompt) : read_stdin();
    status = write_text(&llama, context, args, prompt, &err);
    free(prompt);
  }
  if (llama.be) llama_destroy(&llama);
  be->destroy(be);
  return status == 0 ? 0 : fail(&err);
}

// ---- The command line

static int parse_number(const char *option, const char *text, double low, double high,
                        double *value, Error *err) {
  char *end;
  const double x = text ? strtod(text, &end) : 0;
  if (!text || end == text || *end != '\0' || !(x >= low && x <= high))
    return error_set(err, "%s needs a number from %g to %g, not '%s'", option, low, high,
                     text ? text : "");
  *value = x;
  return 0;
}

static int parse_generate(GenerateArgs *args, int argc, char **argv, Error *err) {
  *args =
      (GenerateArgs){.options = {.temperature = 0.8, .top_p = 1, .seed = 1337, .max_tokens = 400}};
  if (argc < 1) return error_set(err, "--generate needs the folder of a run or checkpoint");
  args->dir = argv[0];
  static const char *const names[] = {"--prompt", "--tokens", "--temperature",
                                      "--top-k",  "--top-p",  "--seed"};
  for (int i = 1; i < argc; i += 2) {
    const char *option = argv[i], *text = i + 1 < argc ? argv[i + 1] : NULL;
    double x = 0;
    int status = 0;
    if (strcmp(option, "--prompt") == 0) {
      args->prompt = text;
      if (!text) status = error_set(err, "--prompt needs a text");
    } else if (strcmp(option, "--tokens") == 0) {
      status = parse_number(option, text, 1, 1e9, &x, err);
      args->options.max_tokens = (int64_t)x;
    } else if (strcmp(option, "--temperature") == 0) {
      status = parse_number(option, text, 0, 100, &args->options.temperature, err);
    } else if (strcmp(option, "--top-k") == 0) {
      status = parse_number(option, text, 0, 1e9, &x, err);
      args->options.top_k = (int64_t)x;
    } else if (strcmp(option, "--top-p") == 0) {
      status = parse_number(option, text, 0, 1, &args->options.top_p, err);
    } else if (strcmp(option, "--seed") == 0) {
      status = parse_number(option, text, 0, 9e15, &x, err);
      args->options.seed = (uint64_t)x;
    } else {
      const char *near = nearest_name(option, names, (int)(sizeof names / sizeof names[0]));
      status = error_set(err, "unknown option '%s' of --generate%s%s%s", option,
                         near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (status != 0) return -1;
  }
  return 0;
}

// OpenMP's threads wait for work by spinning. Asleep they are better on two cores (41 ms for 58,
// configs/shakespeare-cpu.json alone on the machine) and much better beside other programs (94 ms
// for 1900 beside two compilers). The library reads its policy before main, so it is set by
// starting over once; whoever sets it himself has the last word.
static void let_idle_threads_sleep(char **argv) {
  if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
  // no /proc: go on as it is
}

int main(int argc, char **argv) {
  Error err;
  let_idle_threads_sleep(argv);
  const char *first = argc > 1 ? argv[1] : "";
  if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
    fputs(usage, stdout);
    return 0;
  }
  if (strcmp(first, "--version") == 0) {
    printf("coda.c train %s\n", CODA_VERSION);
    return 0;
  }
  if (strcmp(first, "--help-config") == 0) {
    config_print_keys();
    return 0;
  }
  if (strcmp(first, "--doctor") == 0) return doctor();
  if (strcmp(first, "--generate") == 0) {
    GenerateArgs args;
    if (parse_generate(&args, argc - 2, argv + 2, &err) != 0) return fail(&err);
    return command_generate(&args);
  }
  if (strcmp(first, "--bench") == 0) {
    BenchArgs args;
    if (bench_parse(&args, argc - 2, argv + 2, &err) != 0) return fail(&err);
    return bench_run(&args, &err) == 0 ? 0 : fail(&err);
  }
  if (strcmp(first, "--plan") == 0 && argc > 2) return command_plan(argv[2], argc - 3, argv + 3);
  if (argc < 2 || first[0] == '-') {
    static const char *const names[] = {"--plan",        "--generate", "--bench",  "--doctor",
                                        "--help-config", "--help",     "--version"};
    const char *near = nearest_name(first, names, (int)(sizeof names / sizeof *names));
    if (argc < 2 || strcmp(first, "--plan") == 0)
      error_set(&err, "no config given; see ./train --help");
    else
      error_set(&err, "unknown option '%s'; did you mean %s? see ./train --help", first,
                near ? near : "--help");
    return fail(&err);
  }
  return command_train(first, argc - 2, argv + 2);
}
