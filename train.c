// train: trains a LLaMA from a JSON config, and continues texts with it. `./train --help` says how
// to call it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/os.h"
#include "model/run/bench.h"
#include "model/run/process.h"
#include "model/run/run.h"
#include "model/run/commands.h"

// The formatter would break lines of the text in the middle of a word.
// clang-format off
static const char usage[] =
    "usage: train CONFIG.json [section.key=value ...]          train\n"
    "       train --plan CONFIG.json [section.key=value ...]   the resolved config, its memory\n"
    "       train --generate DIR [--prompt TEXT] [options]     continue a text, or stdin\n"
    "       train --generate DIR --user TEXT [--system TEXT] [options]   answer a message\n"
    "       train --eval DIR --data FILES [options]            loss, perplexity, bits per byte\n"
    "       train --bench CONFIG.json [section.key=value ...]  what fusing buys on this GPU\n"
    "       train --doctor                                     what can train on this machine\n"
    "       train --help-config [KEY]                          config keys that begin so\n"
    "       train --help | --version\n"
    "\n"
    "DIR is a run's folder, one of its checkpoints, or a Hugging Face LLaMA folder.\n"
    "Options of --generate:\n"
    "  --tokens N (400)  --temperature X (0.8; 0 = likeliest)  --top-k N (0 = all)\n"
    "  --top-p X (1)  --seed N (1337)\n"
    "  BOS comes first; special tokens in the prompt, such as <|eot_id|>, are taken as such. It\n"
    "  ends at eos_token_id. After max_position_embeddings tokens the model sees only the newer\n"
    "  half of them. Without a tokenizer.json, prompt and text are token ids.\n"
    "  --user writes the message by the chat template of DIR, and the answer ends with the turn.\n"
    "  Without --prompt and --user on a terminal it is a conversation, until Ctrl-D; special\n"
    "  tokens in what you say are text.\n"
    "Options of --eval:\n"
    "  --length N (max_position_embeddings, at most 4096)  --batch N (8192 tokens' worth)\n"
    "  --documents mask|join (as the run's, else mask): apart, or a file as one document\n"
    "  FILES: token files ('data/mine/val-*.bin'), a folder with val-*.bin, or one plain text.\n"
    "  Documents are packed into windows of N tokens: each but their first is predicted once.\n"
    "Options of --bench, which needs no data:\n"
    "  --op NAME (one operation alone)  --seconds S (8; with --op: 3)\n"
    "\n"
    "Ctrl-C finishes the step, saves and ends; train.resume=auto resumes from there.\n"
    "Configs to start from are in configs/, and ./prepare turns text into training data.\n";
// clang-format on

// Trains until the last step, a signal, train.max_minutes or an error.
static int train(Run *run, Error *err) {
  Llama *llama = &run->llama;
  const int64_t micro_batches = run->config.train.gradient_accumulation;
  while (!run_done(run)) {
    if (run_pause_due(run)) {
      if (run_pause(run, err) != 0) return -1;
      continue;
    }
    AdamW hyper;
    if (run_step_begin(run, &hyper, err) != 0) return run_bad_data(run, err);
    for (int64_t i = 0; i < micro_batches; i++) {
      run_load_batch(run, i);
      llama_forward(llama);
      llama_backward(llama, 1 / (double)micro_batches, i > 0);
    }
    run_save_copied(run); // the update overwrites tensors that a save under way copies
    llama_update(llama, &hyper);
    if (run_step_end(run, err) != 0) return -1;
  }
  return 0;
}

// ---- Messages

static int fail(const Error *err) {
  fflush(stdout);
  fprintf(stderr, "train: %s\n", err->text);
  return 1;
}

// stdout is the command's result, so a failed write is an error.
static int printed(void) {
  Error err;
  if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
  error_set(&err, "cannot write to standard output: %s", strerror(errno));
  return fail(&err);
}

// Frees `word`.
static void print_word(const char *before, char *word) {
  printf("%s%s", before, word);
  free(word);
}

static void print_model(const Run *run) {
  print_word("the model: ", shell_word(run->saved.text));
  print_word("; write with it: ./train --generate ", shell_word(run->saved.text));
  printf(" --prompt \"...\"\n");
}

static void print_finished(const Run *run) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (step > steps) {
    printf("nothing to train: the run is at step %lld already, beyond train.steps=%lld; a larger "
           "train.steps resumes it\n",
           step, steps);
  } else {
    printf("nothing to do: the run is done, at step %lld of %lld; ", step, steps);
    print_model(run);
  }
}

static void print_end(const char *path, const Run *run, int override_count, char **overrides) {
  const char *left_out = run->left_out;
  const long long step = run->state.step, steps = run->config.train.steps;
  if (run->saved_step < 0) {
    printf("ended after step %lld of %lld; nothing was saved, as train.save_interval asks\n", step,
           steps);
  } else if (step == steps && !left_out) {
    printf("done; ");
    print_model(run);
  } else {
    printf("stopped after step %lld of %lld", step, steps);
    if (*run->stop == STOP_BY_TIME)
      printf(", as train.max_minutes=%g asks", run->config.train.max_minutes);
    printf("; ");
    if (!run->config.output.save_optimizer) {
      printf("no run resumes from it, as output.save_optimizer=false asks; ");
      print_model(run);
      return;
    }
    if (left_out) printf("the checkpoint is saved, but still without %s; ", left_out);
    print_word(left_out ? "make up for it with: ./train " : "resume with: ./train ",
               shell_word(path));
    for (int i = 0; i < override_count; i++)
      if (strncmp(overrides[i], "train.resume=", 13) != 0)
        print_word(" ", shell_word(overrides[i]));
    printf(" train.resume=auto\n");
  }
}

static int command_train(const char *path, int override_count, char **overrides) {
  Error err;
  Config config;
  Run run;
  if (config_load(&config, path, override_count, overrides, &err) != 0) return fail(&err);
  process_catch_signals_of_training(config.train.max_minutes > 0);
  if (run_open(&run, &config, process_stop(), &err) != 0) return fail(&err);
  if (run.finished) {
    print_finished(&run);
    run_close(&run);
    return 0;
  }
  const int status = train(&run, &err);
  if (status == 0) {
    const bool done = run.state.step >= config.train.steps && !run.left_out;
    const char *why = *run.stop == STOP_BY_TIME ? "max_minutes" : "signal";
    log_stop(&run.log, run.state.step, done ? "done" : why);
    print_end(path, &run, override_count, overrides);
  }
  run_close(&run);
  return status == 0 ? 0 : fail(&err);
}

static int command_plan(const char *path, int override_count, char **overrides) {
  Error err;
  Config config;
  if (config_load(&config, path, override_count, overrides, &err) != 0) return fail(&err);
  return plan_print(&config, &err) == 0 ? printed() : fail(&err);
}

static int command_generate(int argc, char **argv) {
  Error err;
  GenerateArgs args;
  if (generate_parse(&args, argc, argv, &err) != 0) return fail(&err);
  process_catch_signals();
  return generate_run(&args, process_stop(), &err) == 0 ? 0 : fail(&err);
}

static int command_eval(int argc, char **argv) {
  Error err;
  EvalArgs args;
  if (eval_parse(&args, argc, argv, &err) != 0) return fail(&err);
  process_catch_signals();
  return eval_run(&args, process_stop(), &err) == 0 ? printed() : fail(&err);
}

static int command_bench(int argc, char **argv) {
  Error err;
  BenchArgs args;
  BenchResult result;
  if (bench_parse(&args, argc, argv, &err) != 0) return fail(&err);
  return bench_run(&args, &result, &err) == 0 ? printed() : fail(&err);
}

static int command_doctor(void) {
  const int failed = doctor();
  return printed() || failed;
}

// ---- The command line

int main(int argc, char **argv) {
  Error err;
  if (stack_check(&err) != 0) return fail(&err);
  process_start(argv);
  const char *first = argc > 1 ? argv[1] : "";
  const bool help = strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0,
             version = strcmp(first, "--version") == 0, keys = strcmp(first, "--help-config") == 0;
  if (help) fputs(usage, stdout);
  if (version) printf("coda.c train %s\n", CODA_VERSION);
  if (keys && config_print_keys(argc > 2 ? argv[2] : "", &err) != 0) return fail(&err);
  if (help || version || keys) return printed();
  if (strcmp(first, "--doctor") == 0) return command_doctor();
  if (strcmp(first, "--generate") == 0) return command_generate(argc - 2, argv + 2);
  if (strcmp(first, "--eval") == 0) return command_eval(argc - 2, argv + 2);
  if (strcmp(first, "--bench") == 0) return command_bench(argc - 2, argv + 2);
  if (strcmp(first, "--plan") == 0 && argc > 2) return command_plan(argv[2], argc - 3, argv + 3);
  if (argc < 2 || first[0] == '-') {
    static const char *const names[] = {"--plan",   "--generate",    "--eval", "--bench",
                                        "--doctor", "--help-config", "--help", "--version"};
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
