// ./prepare struck at any system call: whatever fails, and wherever the process dies, the output
// folder holds nothing, the whole dataset that was there, or the whole new one, and the next run
// leaves no trace of it. The states of the folder itself are test_folder_faults'.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/prepare/run.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"
#include "tests/support/data_test.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"

// Their number says how much of the datasets is for validation, which tells them apart.
enum { NOTHING = 0, BEFORE = 1, DURING = 2, AFTER = 3, TEXT_BYTES = 200 };

typedef struct Scenario {
  const char *name, *out; // below the test's folder
  bool before;            // a dataset is there
  bool from_stdin;
} Scenario;

typedef struct Test {
  Scenario scenario;
  PathText folder, text, out;
} Test;

static int prepare(const Test *t, int64_t version, Error *err) {
  char text[sizeof t->text.text], standard[] = "-";
  memcpy(text, t->text.text, sizeof text);
  char *paths[] = {t->scenario.from_stdin ? standard : text};
  const PrepareOptions options = {.out = t->out.text,
                                  .tokenizer = BYTES_NAME,
                                  .val_fraction = 0.1 * (double)version,
                                  .shard_tokens = 40,
                                  .threads = 1,
                                  .force = true,
                                  .paths = paths,
                                  .path_count = 1};
  return prepare_run(&options, err);
}

// In a child, since threads, standard output and held signals are a process's. 0: it ended well,
// 1: with a sentence, EXIT_KILLED: the fault ended it. *reached: the fault came to pass.
static int run_struck(const Test *t, int64_t version, Fault fault, int at, bool *reached) {
  const pid_t child = fork();
  if (child < 0) fail_msg("fork: %s", strerror(errno));
  if (child == 0) {
    Error err = {""};
    const int nowhere = open("/dev/null", O_WRONLY), text = open(t->text.text, O_RDONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(text, STDIN_FILENO);
    injected = (struct Injected){.fault = fault, .at = at};
    const int status = prepare(t, version, &err);
    const char *words = fault == NO_MEMORY ? "out of memory: the system refused" : "";
    const bool advised = !strstr(err.text, "out of memory") || strstr(err.text, "fewer --threads");
    const int said = status == 0 || (*err.text && strstr(err.text, words) && advised) ? 0 : 4;
    _exit((status == 0 ? 0 : 1) | (injected.calls >= at ? 2 : 0) | said);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status)) fail_msg("the child crashed");
  const int code = WEXITSTATUS(status);
  *reached = code == EXIT_KILLED || (code & 2);
  if (code != EXIT_KILLED && (code & 4)) fail_msg("it failed without its sentence");
  return code == EXIT_KILLED ? code : code & 1;
}

// The bytes of text in the shards of this name, with BOS and EOS around them.
static int64_t text_of_part(const Test *t, const char *name, const char *when) {
  int64_t tokens = 0;
  for (int i = 0;; i++) {
    const PathText path = path_text("%s/%s-%05d.bin", t->out.text, name, i);
    if (!path_exists(path.text)) break;
    TokenFile file;
    Error err;
    if (tokens_open(&file, path.text, &err) != 0 || tokens_check(&file, &err) != 0 ||
        file.documents.facts.largest >= BYTE_VOCAB)
      fail_msg("%s: %s", when, err.text);
    if (!file.documents.path) fail_msg("%s: the documents of %s are missing", when, path.text);
    tokens += file.count;
    tokens_close(&file);
  }
  return tokens - 2;
}

// Which dataset the folder holds, all of it.
static int64_t version_found(const Test *t, const char *when) {
  Error err;
  if (!path_exists(t->out.text)) return NOTHING;
  const int64_t val = text_of_part(t, "val", when);
  if (text_of_part(t, "train", when) + val != TEXT_BYTES) fail_msg("%s: tokens are missing", when);
  Tokenizer *tokenizer = tokenizer_open(t->out.text, &err);
  if (!tokenizer) fail_msg("%s: %s", when, err.text);
  tokenizer_close(tokenizer);
  if (val % (TEXT_BYTES / 10) != 0) fail_msg("%s: two datasets are mixed", when);
  return val / (TEXT_BYTES / 10);
}

static bool is_beside(const Test *t, const char *suffix) {
  return path_exists(path_text("%s%s", t->out.text, suffix).text);
}

// One fault at call `at`. False when the run has fewer calls.
static bool strike(Test *t, Fault fault, int at) {
  const Scenario *s = &t->scenario;
  bool reached, ignored;
  Error err;
  const char *name = fault >= NO_MEMORY ? "no memory" : fault_names[fault];
  char *when = held_text("%s, %s at call %d", s->name, name, at);
  t->out = path_text("%s/%s", t->folder.text, s->out);
  if (s->before && run_struck(t, BEFORE, NO_FAULT, 0, &ignored) != 0) fail_msg("%s: before", when);
  const int status = run_struck(t, DURING, fault, at, &reached);
  const int64_t version = version_found(t, when);
  if (version != DURING && (status == 0 || version != (s->before ? BEFORE : NOTHING)))
    fail_msg("%s: status %d, version %d", when, status, (int)version);
  if (status == 1 && version != DURING && is_beside(t, ".tmp"))
    fail_msg("%s: OUT.tmp is left", when);
  if (status == 1 && version == NOTHING && path_exists(path_parent(t->out.text).text) &&
      strchr(s->out, '/'))
    fail_msg("%s: a folder above is left", when);
  if (run_struck(t, AFTER, NO_FAULT, 0, &ignored) != 0) fail_msg("%s: the next run failed", when);
  if (version_found(t, when) != AFTER) fail_msg("%s: the next run is not found", when);
  if (is_beside(t, ".tmp") || is_beside(t, ".old")) fail_msg("%s: leftovers", when);
  must(directory_remove(t->out.text, &err), &err);
  if (strchr(s->out, '/')) assert_int_equal(rmdir(path_parent(t->out.text).text), 0);
  return reached;
}

static Test open_test(const char *folder, Scenario scenario) {
  const Test t = {.scenario = scenario,
                  .folder = path_text("%s", folder),
                  .text = path_text("%s/text.txt", folder)};
  Error err;
  char text[TEXT_BYTES];
  memset(text, 'x', sizeof text);
  must(file_write(t.text.text, text, sizeof text, &err), &err);
  return t;
}

static void run_scenario(void **state, Scenario scenario) {
  enum { MAX_CALLS = 1000, LEAST_CALLS = 25 };
  Test t = open_test(*state, scenario);
  int faults = 0;
  for (Fault fault = FAIL_EIO; fault < FAULTS; fault++) {
    int at = 1;
    for (; at < MAX_CALLS && strike(&t, fault, at); at += fault_stride()) faults++;
    assert_in_range(at, LEAST_CALLS, MAX_CALLS - 1);
  }
  printf("# %s: %d faults\n", scenario.name, faults);
}

TEST(a_struck_run_leaves_the_old_or_the_new_dataset) {
  run_scenario(state, (Scenario){.name = "forced run", .out = "set", .before = true});
}

TEST(a_struck_first_run_of_standard_input_leaves_nothing_or_a_dataset) {
  run_scenario(state, (Scenario){.name = "standard input", .out = "new/set", .from_stdin = true});
}

TEST(an_encoder_without_memory_ends_it_with_a_sentence) {
  Test t = open_test(*state, (Scenario){.name = "no memory", .out = "set"});
  int at = 1;
  while (strike(&t, NO_MEMORY, at)) at += fault_stride();
  printf("# up to %d allocations\n", at - 1);
  assert_true(at > 2);
}

TEST(a_refused_allocation_leaves_no_folder) {
  Test t = open_test(*state, (Scenario){.name = "no memory once", .out = "set", .before = true});
  int at = 2; // the first is the job itself, which ./prepare covers
  while (strike(&t, NO_MEMORY_ONCE, at)) at += 5 * fault_stride();
  printf("# up to %d allocations\n", at - 1);
  assert_true(at > 100);
}

TEST_GROUP(make_folder, NULL);
