// train: trains a LLaMA from a JSON config, and writes with it. `./train --help` says how to call
// it.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/os.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/command.h"
#include "kernels/openblas.h"
#include "model/bench/bench.h"
#include "model/bench/doctor.h"
#include "model/run/eval.h"
#include "model/run/run.h"
#include "model/run/write.h"

// The formatter would break lines of the text in the middle of a word.
// clang-format off
static const char usage[] =
    "usage: train CONFIG.json [section.key=value ...]          train\n"
    "       train --plan CONFIG.json [section.key=value ...]   the resolved config, its memory\n"
    "       train --generate DIR [--prompt TEXT] [options]     write; without --prompt: stdin\n"
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
    "Options of --eval:\n"
    "  --length N (max_position_embeddings, at most 4096)  --batch N (8192 tokens' worth)\n"
    "  FILES: token files ('data/mine/val-*.bin'), a folder with val-*.bin, or one plain text.\n"
    "  Each file is cut into windows of N tokens: every token but its first is predicted once.\n"
    "Options of --bench, which needs no data:\n"
    "  --op NAME (one operation alone)  --json FILE  --seconds S (8; with --op: 3)\n"
    "\n"
    "Ctrl-C finishes the step, saves and ends; train.resume=auto resumes from there.\n"
    "Configs to start from are in configs/, and ./prepare turns text into training data.\n";
// clang-format on

// Why the process is to stop at the next step boundary. A notice may be followed by other signals.
enum { BY_SIGNAL = 1, BY_NOTICE, BY_TIME };

// A mutable global: a signal handler can reach nothing else.
static volatile sig_atomic_t stop_requested = 0;

// The second one kills.
static void on_signal(int number) {
  if (stop_requested == BY_SIGNAL) {
    signal(number, SIG_DFL);
    raise(number);
  }
  stop_requested = BY_SIGNAL;
}

// Signals that never kill: a closing terminal sends several SIGHUPs, and a batch system one of its
// choice well before SIGTERM.
static void on_notice(int number) {
  (void)number;
  if (!stop_requested) stop_requested = BY_NOTICE;
}

// The kernel's is the alarm of train.max_minutes; anybody else's is a notice.
static void on_alarm(int number, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_code != SI_KERNEL)
    on_notice(number);
  else if (!stop_requested)
    stop_requested = BY_TIME;
}

static void catch_signal(int number, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, NULL);
}

static void catch_signals(void) {
  catch_signal(SIGINT, on_signal, 0);
  catch_signal(SIGTERM, on_signal, 0);
}

// A console that goes away ends no run but by SIGHUP. What is ignored, as by nohup, stays so.
static void catch_signals_of_training(const Config *config) {
  static const int notices[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
  for (size_t i = 0; i < sizeof notices / sizeof *notices; i++) {
    struct sigaction before;
    if (sigaction(notices[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      catch_signal(notices[i], on_notice, SA_RESTART);
  }
  struct sigaction alarm = {.sa_sigaction = on_alarm, .sa_flags = SA_RESTART | SA_SIGINFO};
  sigemptyset(&alarm.sa_mask);
  if (config->train.max_minutes > 0) sigaction(SIGALRM, &alarm, NULL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); // a file's limit is the error of a write
  catch_signals();
}

// Has the alarm come in time for train.max_minutes.
static void set_alarm(const Run *run, double started_ms) {
  const double minutes = run->config.train.max_minutes;
  if (minutes == 0 || stop_requested) return;
  const double left_ms = fmax(1, started_ms + minutes * 60e3 - now_ms() - run_end_ms(run));
  const struct itimerval alarm = {.it_value = {.tv_sec = (time_t)(left_ms / 1000),
                                               .tv_usec = (suseconds_t)fmod(left_ms, 1000) * 1000}};
  setitimer(ITIMER_REAL, &alarm, NULL);
}

// Without standard output no file may be opened in its place, for prints would go there.
static void fill_closed_streams(void) {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY); // writes to it fail
  if (fd >= 0) close(fd);
}

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

// ---- Training

static bool due(int64_t step, int64_t interval, int64_t steps) {
  return step >= steps || (interval > 0 && step % interval == 0);
}

// A failed save, with its sentence, ends a run only where its folder is gone, or it was the last.
static int survive(Run *run, int status, Error *err) {
  if (status == 0) return 0;
  const Error why = *err;
  if (run_check_folder(run, true, err) != 0) return -1;
  fprintf(stderr, "train: %s; training goes on\n", why.text);
  return 0;
}

// Tells how the save under way has ended, if it has. wait: once it has.
static int end_save(Run *run, bool wait, Error *err) {
  return survive(run, run_save_end(run, wait, err), err);
}

// Saves, one at a time. The last one is waited for.
static int save(Run *run, bool last, Error *err) {
  if (end_save(run, true, err) != 0) return -1;
  if (last) return run_save_last(run, err);
  if (run_check_folder(run, true, err) != 0) return -1;
  return survive(run, run_save(run, err), err);
}

// What a signal has kept the last step from; NULL: nothing.
static const char *left_out_text(bool validated, bool sampled) {
  if (validated) return sampled ? NULL : "its sample";
  return sampled ? "its validation" : "its validation and sample";
}

// Trains until the last step, a signal, train.max_minutes or an error. *left_out: as left_out_text
// has it.
static int training_loop(Run *run, double started_ms, const char **left_out, Error *err) {
  Llama *llama = &run->llama;
  const TrainConfig *c = &run->config.train;
  *left_out = NULL;
  for (;;) {
    const int64_t step = run_steps_asked(run); // the GPU may still be busy with the last one
    const bool validate = step == 0 || due(step, c->eval_interval, c->steps),
               sample = step > 0 && due(step, c->sample_interval, c->steps),
               checkpoint = step > 0 && due(step, c->save_interval, c->steps);
    if (end_save(run, false, err) != 0 || run_check_folder(run, false, err) != 0) return -1;
    set_alarm(run, started_ms);
    if (validate || sample || checkpoint || stop_requested) {
      if (run_settle(run, err) != 0) return -1;
      const bool validated = !validate || run_validate(run), sampled = !sample || run_sample(run);
      if (run_check_data(run, err) != 0) return -1;
      const bool best = c->keep_best && step > 0 && run->state.best_val_step == step;
      // A signal may come meanwhile.
      if ((checkpoint || best) && end_save(run, true, err) != 0) return -1;
      const bool last = step >= c->steps || stop_requested;
      if ((checkpoint || best || last) && save(run, last, err) != 0) return -1;
      if (last) {
        if (step >= c->steps) *left_out = left_out_text(validated, sampled);
        return run_check_data(run, err);
      }
    }

    AdamW hyper;
    if (run_step_begin(run, &hyper, err) != 0) return -1;
    for (int64_t i = 0; i < c->gradient_accumulation; i++) {
      run_load_batch(run, i);
      llama_forward(llama);
      llama_backward(llama, 1 / (double)c->gradient_accumulation, i > 0);
    }
    run_save_copied(run);
    llama_update(llama, &hyper);
    if (run_step_end(run, err) != 0) return -1;
  }
}

// Takes the word over.
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

static void print_end(const char *path, const Run *run, const char *left_out, int override_count,
                      char **overrides) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (run->saved_step < 0) {
    printf("ended after step %lld of %lld; nothing was saved, as train.save_interval asks\n", step,
           steps);
  } else if (step == steps && !left_out) {
    printf("done; ");
    print_model(run);
  } else {
    printf("stopped after step %lld of %lld", step, steps);
    if (stop_requested == BY_TIME)
      printf(", as train.max_minutes=%g asks", run->config.train.max_minutes);
    printf("; ");
    if (left_out) printf("the checkpoint is saved, but still without %s; ", left_out);
    print_word(left_out ? "make up for it with: ./train " : "go on with: ./train ",
               shell_word(path));
    for (int i = 0; i < override_count; i++)
      if (strncmp(overrides[i], "train.resume=", 13) != 0)
        print_word(" ", shell_word(overrides[i]));
    printf(" train.resume=auto\n");
  }
}

static int command_train(const char *path, int override_count, char **overrides) {
  const double started_ms = now_ms();
  Error err;
  Config config;
  Run run;
  if (config_load(&config, path, override_count, overrides, &err) != 0) return fail(&err);
  catch_signals_of_training(&config);
  if (run_open(&run, &config, &stop_requested, &err) != 0) return fail(&err);
  if (run.finished) {
    print_finished(&run);
    run_close(&run);
    return 0;
  }
  const char *left_out;
  const int status = training_loop(&run, started_ms, &left_out, &err);
  if (status == 0) {
    const bool done = run.state.step >= config.train.steps && !left_out;
    const char *why = stop_requested == BY_TIME ? "max_minutes" : "signal";
    log_stop(&run.log, run.state.step, done ? "done" : why);
    print_end(path, &run, left_out, override_count, overrides);
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
  WriteArgs args;
  if (write_parse(&args, argc, argv, &err) != 0) return fail(&err);
  catch_signals();
  return write_run(&args, &stop_requested, &err) == 0 ? 0 : fail(&err);
}

static int command_eval(int argc, char **argv) {
  Error err;
  EvalArgs args;
  if (eval_parse(&args, argc, argv, &err) != 0) return fail(&err);
  catch_signals();
  return eval_run(&args, &stop_requested, &err) == 0 ? printed() : fail(&err);
}

static int command_bench(int argc, char **argv) {
  Error err;
  BenchArgs args;
  if (bench_parse(&args, argc, argv, &err) != 0) return fail(&err);
  return bench_run(&args, &err) == 0 ? printed() : fail(&err);
}

static int command_doctor(void) {
  const int failed = doctor();
  return printed() || failed;
}

// ---- The command line

// OpenMP's threads wait for work by spinning. Asleep they are better on two cores (41 ms for 58,
// configs/shakespeare-cpu.json alone on the machine) and much better beside other programs (94 ms
// for 1900 beside two compilers). The library reads its policy before main, and OpenBLAS chooses
// its kernels then, so both are set by starting over; whoever sets them himself has the last word.
static void start_over_with_libraries_set(char **argv) {
  const bool policy = !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT") &&
                      setenv("OMP_WAIT_POLICY", "passive", 1) == 0;
  const bool kernels = openblas_mend();
  if (policy || kernels) execv("/proc/self/exe", argv);
  // no /proc: go on as it is
}

int main(int argc, char **argv) {
  Error err;
  fill_closed_streams();
  start_over_with_libraries_set(argv);
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
