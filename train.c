// train: trains a LLaMA from a JSON config, and continues texts with it. `./train --help` says how
// to call it.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "model/run/commands.h"
#include "model/run/run.h"
#include "model/run/token_text.h"

// The formatter would break lines of the text in the middle of a word.
// clang-format off
static const char usage[] =
    "usage: train CONFIG.json [section.key=value ...]          train\n"
    "       train --fit DATA minutes=N [params=P] [OUT.json] [section.key=value ...]\n"
    "                                                          a config for this machine and time\n"
    "       train --plan CONFIG.json [section.key=value ...]   the resolved config, its memory\n"
    "       train --generate DIR [--prompt TEXT] [options]     continue a text, or stdin\n"
    "       train --generate DIR --user TEXT [--system TEXT] [options]   answer a message\n"
    "       train --eval DIR --data FILES [options]            loss, perplexity, bits per byte\n"
    "       train --score DIR TASK=FILE ... [options]          acc, acc_norm, perplexity of tasks\n"
    "       train --page RUN... [--out page.html] [--serve PORT]   loss and more, as HTML\n"
    "       train --compare RUN RUN...                         what differs, which is better\n"
    "       train --bench CONFIG.json [section.key=value ...]  times; on a GPU what fusing gains\n"
    "       train --doctor                                     what can train on this machine\n"
    "       train --help-config [WORD]                         config keys about it, such as lr\n"
    "       train --help | --version\n"
    "\n"
    "DIR is a run's folder, one of its checkpoints, or a Hugging Face LLaMA folder.\n"
    "Options of --generate:\n"
    "  --tokens N (400)  --temperature X (0.8; 0 = likeliest)  --top-k N (0 = all)\n"
    "  --top-p X (1)  --seed N (1337)\n"
    "  --weights fp8: rounded to e4m3, of which a token reads half the bytes (default bf16)\n"
    "  BOS comes first; special tokens in the prompt, such as <|eot_id|>, are taken as such. It\n"
    "  ends at eos_token_id. After max_position_embeddings tokens the model sees only the newer\n"
    "  half of them. Without a tokenizer.json, prompt and text are token ids.\n"
    "  --user writes the message by the chat template of DIR, and the answer ends with the turn.\n"
    "  Without --prompt and --user on a terminal it is a conversation, until Ctrl-D; special\n"
    "  tokens in what you say are text.\n"
    "Options of --eval:\n"
    "  --length N (max_position_embeddings, at most 4096)  --batch N (8192 tokens' worth)\n"
    "  --documents mask|join (as the run's, else mask): apart, or a file as one document\n"
    "  --weights fp8: what rounding them costs (default bf16)\n"
    "  FILES: token files ('data/mine/val-*.bin'), a folder with val-*.bin, or one plain text.\n"
    "  Documents are cut into pieces of N tokens: each but their first is predicted once.\n"
    "Options of --score:\n"
    "  --limit N (all; questions of each file)  --json (with every question's sums)\n"
    "  TASK=FILE: hellaswag piqa arc_easy arc_challenge openbookqa winogrande lambada_openai\n"
    "  blimp mmlu boolq sciq; mmlu=FILE,EXAMPLES for 5 shots; core=FOLDER, CORE's bundle; or a\n"
    "  folder whose files begin with tasks' names. FILE: jsonl or Parquet, a folder or a pattern.\n"
    "Options of --bench, which needs no data:\n"
    "  --op NAME (one operation alone)  --seconds S (8; with --op: 3)\n"
    "--plan takes gpu=\"RTX 3060\", or a memory as gpu=12GB, for a card that is not here.\n"
    "\n"
    "Ctrl-C finishes the step, saves and ends; train.resume=auto resumes from there.\n"
    "Configs to start from are in configs/, and ./prepare turns text into training data.\n";
// clang-format on

// Trains until the last step, a signal, train.max_minutes or an error.
static int train(Run *run, Error *err) {
  Llama *llama = &run->llama;
  const int64_t micro_batches = run->config.train.gradient_accumulation;
  while (!run->done) {
    if (run_pause_due(run)) {
      if (run_pause(run, err) != 0) return -1;
      continue;
    }
    AdamW hyper;
    if (run_step_begin(run, &hyper, err) != 0) return run_bad_data(run, err);
    for (int64_t i = 0; i < micro_batches; i++) {
      llama_load_batch(llama, &run->inputs.batches[i]);
      llama_forward(llama);
      llama_backward(llama, 1 / (double)micro_batches, i > 0);
    }
    run_save_copied(run); // the update overwrites tensors that a save under way copies
    llama_update(llama, &hyper);
    if (run_step_end(run, err) != 0) return -1;
  }
  return 0;
}

// ---- Commands: each gets the words behind its own. -1 with a message, else the exit status

static int command_train(const char *path, int override_count, char **overrides, Error *err) {
  Config config;
  Run run;
  if (config_load(&config, path, override_count, overrides, err) != 0 ||
      run_open(&run, &config, process_catch_signals_of_training(config.train.max_minutes > 0),
               err) != 0)
    return -1;
  int status = 0;
  if (run.finished) {
    run_print_finished(&run);
  } else if ((status = train(&run, err)) == 0) {
    const bool done = run.state.step >= config.train.steps && !run.left_out;
    const char *why = *run.stop == STOP_BY_TIME ? "max_minutes" : "signal";
    log_stop(&run.log, run.state.step, done ? "done" : why);
    run_print_end(&run, path, override_count, overrides);
    status = log_complete(&run.log, err);
  }
  run_close(&run);
  return status;
}

static int command_keys(int argc, char **argv, Error *err) {
  return config_print_keys(argc > 0 ? argv[0] : "", err);
}

static int command_help(int argc, char **argv, Error *err) {
  (void)argc, (void)argv, (void)err;
  return fputs(usage, stdout) < 0; // main says why
}

static int command_version(int argc, char **argv, Error *err) {
  (void)argc, (void)argv, (void)err;
  return printf("coda.c train %s\n", CODA_VERSION) < 0;
}

static const struct {
  const char *name;
  int (*run)(int argc, char **argv, Error *err);
} commands[] = {
    {"--plan", plan_command},        {"--fit", fit_command},     {"--generate", generate_command},
    {"--eval", eval_command},        {"--score", score_command}, {"--bench", bench_command},
    {"--doctor", doctor_command},    {"--page", page_command},   {"--compare", compare_command},
    {"--help-config", command_keys}, {"--help", command_help},   {"--version", command_version}};
enum { COMMANDS = sizeof commands / sizeof *commands };

// Its index; -1: no command has this name.
static int find_command(const char *name) {
  int i = COMMANDS - 1;
  while (i >= 0 && strcmp(name, commands[i].name) != 0) i--;
  return i;
}

// Before a run: -1 where the first word is no config, or where a command stands behind it.
static int check_words(int argc, char **argv, Error *err) {
  const char *first = argc > 1 ? argv[1] : "", *names[COMMANDS];
  for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
  const char *near = nearest_name(first, names, COMMANDS);
  const PathText dashed = path_text("--%s", first);
  if (first[0] == '\0') return error_set(err, NO_CONFIG);
  if (first[0] == '-')
    return error_set(err, "unknown option '%s'; %s%s%ssee ./train --help", first,
                     near ? "did you mean " : "", near ? near : "", near ? "? " : "");
  if (find_command(dashed.text) >= 0 && !path_exists(first))
    return error_set(err, "there is no config '%s'; did you mean ./train %s?", first, dashed.text);
  for (int i = 2; i < argc; i++)
    if (find_command(argv[i]) >= 0)
      return error_set(err, "%s comes before the config: ./train %s; see ./train --help", argv[i],
                       argv[i]);
  return 0;
}

static int fail(const Error *err) {
  fflush(stdout);
  fprintf(stderr, "train: %s\n", err->text);
  return 1;
}

int main(int argc, char **argv) {
  Error err;
  process_start(argv);
  const char *first = argc > 1 ? argv[1] : "";
  const int command = find_command(strcmp(first, "-h") == 0 ? "--help" : first);
  if (command < 0) {
    const bool trained =
        check_words(argc, argv, &err) == 0 && command_train(first, argc - 2, argv + 2, &err) == 0;
    return trained ? 0 : fail(&err);
  }
  const int status = commands[command].run(argc - 2, argv + 2, &err);
  // Its result is on standard output.
  return status < 0 || text_print(NULL, "", 0, &err) != 0 ? fail(&err) : status;
}
