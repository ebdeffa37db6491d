// Saves that go wrong at any system call: whatever fails, and wherever the process dies, the run
// can go on from a complete checkpoint with every bit of what was saved.
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/faults.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

// ---- A run before, during and after the fault

enum { BEFORE = 1, DURING = 2, AFTER = 3 }; // versions of weights and state

typedef struct Scenario {
  const char *name;
  int64_t earlier; // step of a checkpoint that the save removes; 0 = none
  int64_t before;  // step of a checkpoint that is there; 0 = none
  int64_t during;  // step of the save that is struck
  int64_t keep;
  bool no_exchange, background; // background: by a thread, while the values change
  int kind;                     // of tiny_kinds
} Scenario;
enum { PLAIN = 0, WITH_EXTRAS = TINY_KINDS - 1 };

typedef struct Test {
  TinyTest *tiny;
  Scenario scenario;
  bool removal_struck;
} Test;

static Test open_test(const Scenario *scenario) {
  return (Test){.scenario = *scenario, .tiny = tiny_test_open_kind(&tiny_kinds[scenario->kind])};
}

static int save_in_background(Test *t, int64_t step, uint64_t version, Error *err) {
  TinyRun *run = t->tiny->run;
  SaveResult result;
  BackgroundSave *save = must_make(background_open(&run->llama, true, err), err);
  run->config.train.keep_checkpoints = t->scenario.keep;
  const TrainState state = tiny_test_fill(t->tiny, step, version);
  background_begin(save, t->tiny->dir, &run->config, NULL, &state);
  background_copied(save);
  tiny_run_fill(run, AFTER);
  assert_true(background_end(save, true, &result));
  *err = result.error;
  background_close(save);
  return result.status;
}

static int save(Test *t, int64_t step, uint64_t version, Error *err) {
  if (t->scenario.background) return save_in_background(t, step, version, err);
  return tiny_test_try_save(t->tiny, step, version, t->scenario.keep, err);
}

// Loads what "auto" finds; fails unless all of it is of one version. Returns that, 0 for nothing.
static int version_found(Test *t, const char *when) {
  Error err = {""};
  const PathText newest = tiny_newest(t->tiny->dir);
  const char *path = newest.text;
  if (path[0] == '\0') return 0;
  TrainState state;
  Config config;
  if (checkpoint_read_state(path, &state, &err) != 0 ||
      checkpoint_read_config(path, &config, &err) != 0 ||
      tiny_load(path, &t->tiny->loaded->llama, true, &err) != 0)
    fail_msg("%s: %s", when, err.text);
  const uint64_t version = UINT64_MAX - state.sequences;
  const TrainState expected = tiny_state(version == BEFORE   ? t->scenario.before
                                         : version == DURING ? t->scenario.during
                                                             : 300,
                                         version);
  if (memcmp(&state, &expected, sizeof state) != 0) fail_msg("%s: the state is mixed up", when);
  if (tiny_test_differs(t->tiny, version)) fail_msg("%s: the weights differ", when);
  return (int)version;
}

static void check_no_leftovers(const Test *t, const char *names, const char *when) {
  glob_t found;
  const int status = glob(tiny_test_path(t->tiny, names).text, 0, NULL, &found);
  if (status != GLOB_NOMATCH) fail_msg("%s: leftovers %s", when, names);
  globfree(&found);
}

// The struck save, in this process or, where it dies, in a child. 1 = it ended before the fault.
static int struck_save(Test *t, Fault fault, int at, const char *when) {
  const bool dies = fault == DIE || fault == DIE_SHORT;
  const pid_t child = dies ? fork() : 0;
  if (child < 0) fail_msg("fork: %s", strerror(errno));
  if (child > 0) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("%s: the child crashed", when);
    return WEXITSTATUS(status) != EXIT_KILLED;
  }
  Error err = {""};
  injected.fault = fault;
  injected.at = at;
  injected.calls = 0;
  const int status = save(t, t->scenario.during, DURING, &err);
  const int calls = injected.calls;
  const bool no_exchange = injected.no_exchange;
  const char *struck = injected.struck;
  t->removal_struck = struck && (strcmp(struck, "unlink") == 0 || strcmp(struck, "rmdir") == 0);
  if (dies) _exit(status == 0 ? 0 : EXIT_KILLED + 1);
  memset(&injected, 0, sizeof injected);
  injected.no_exchange = no_exchange;
  if (status != 0) {
    const PathText word = t->scenario.before
                              ? path_text("step-%08d' is intact", (int)t->scenario.before)
                              : path_text("if there are any, are intact");
    if (!strstr(err.text, word.text) || !strstr(err.text, "could not be saved"))
      fail_msg("%s: the sentence '%s' lacks '%s'", when, err.text, word.text);
  }
  return calls < at;
}

// One fault at call `at`. Returns 1 when the save has fewer calls.
static int strike(Test *t, Fault fault, int at) {
  const Scenario *s = &t->scenario;
  Error err = {""};
  char *when = held_text("%s, %s at call %d", s->name, fault_names[fault], at);
  must(directory_create(t->tiny->dir, &err), &err);
  if (s->earlier && save(t, s->earlier, BEFORE, &err) != 0) fail_msg("%s", err.text);
  if (s->before && save(t, s->before, BEFORE, &err) != 0) fail_msg("%s", err.text);
  const int done = struck_save(t, fault, at, when);
  const int version = version_found(t, when);
  if (done && version != DURING) fail_msg("%s: the save passed but is not found", when);
  if (!done && version != DURING && version != (s->before ? BEFORE : 0))
    fail_msg("%s: version %d was found", when, version);
  if (fault < DIE && !t->removal_struck) check_no_leftovers(t, "*.tmp", when);
  // `latest` itself is valid, but for the instant in which a folder is replaced without exchange.
  if (s->before && !s->no_exchange && !tiny_test_has(t->tiny, "latest/state.json"))
    fail_msg("%s: latest is broken", when);
  if (save(t, 300, AFTER, &err) != 0) fail_msg("%s: the next save: %s", when, err.text);
  if (version_found(t, when) != AFTER) fail_msg("%s: the next save is not found", when);
  check_no_leftovers(t, "*.tmp", when);
  check_no_leftovers(t, "*.old", when);
  must(directory_remove(t->tiny->dir, &err), &err);
  return done;
}

static void run_scenario(const Scenario *scenario) {
  enum { MAX_CALLS = 1000 };
  Test t = open_test(scenario);
  memset(&injected, 0, sizeof injected);
  injected.no_exchange = scenario->no_exchange;
  int faults = 0;
  for (Fault fault = FAIL_EIO; fault < FAULTS; fault++) {
    int at = 1;
    for (; at < MAX_CALLS && strike(&t, fault, at) == 0; at += fault_stride()) faults++;
    assert_in_range(at, 30, MAX_CALLS - 1); // a save has at least these calls
  }
  printf("# %s: %d faults\n", scenario->name, faults);
  injected.no_exchange = false;
}

// The calls of a folder itself are struck in test_folder_faults: here it is the files, the links
// and what is removed.
TEST(a_struck_first_save_leaves_nothing_or_a_checkpoint) {
  run_scenario(&(Scenario){.name = "first save", .during = 200, .keep = 2});
}

TEST(a_struck_save_that_removes_one_leaves_the_one_before) {
  run_scenario(&(Scenario){.name = "with extras, keep one",
                           .earlier = 50,
                           .before = 100,
                           .during = 200,
                           .keep = 1,
                           .kind = WITH_EXTRAS});
}

TEST(a_struck_save_in_the_background_leaves_the_one_before) {
  run_scenario(&(Scenario){
      .name = "in the background", .before = 100, .during = 200, .keep = 2, .background = true});
}

// Where a process dies between two names, the folder with .old is the checkpoint.
TEST(a_struck_save_of_the_same_step_leaves_the_old_or_the_new_one) {
  run_scenario(&(Scenario){.name = "same step without exchange",
                           .before = 200,
                           .during = 200,
                           .keep = 1,
                           .no_exchange = true});
}

// What a loss of power needs, which no test here can cause.
TEST(everything_is_synced_before_it_gets_its_name) {
  Test t = open_test(&(Scenario){.keep = 1, .kind = WITH_EXTRAS});
  injected.log = true;
  const int status = save(&t, 200, DURING, &err);
  injected.log = false;
  must(status, &err);
  const char *run = basename(t.tiny->dir);
  char *expected = held_text("sync model-00001-of-00002.safetensors\n"
                             "sync model-00002-of-00002.safetensors\n"
                             "sync model.safetensors.index.json\n"
                             "sync optimizer.safetensors\n"
                             "sync config.json\n"
                             "sync tokenizer.model\n"
                             "sync generation_config.json\n"
                             "sync tokenizer.json\n"
                             "sync tokenizer_config.json\n"
                             "sync run.json\n"
                             "sync state.json\n"
                             "sync checksums.json\n"
                             "sync step-00000200.tmp\n"
                             "rename step-00000200.tmp step-00000200\n"
                             "sync %s\n"
                             "rename latest.tmp latest\n"
                             "sync %s\n",
                             run, run);
  assert_string_equal(injected.events, expected);
}

// `latest` is a convenience.
TEST(a_file_system_without_links_has_its_newest_checkpoint_by_number) {
  Test t = open_test(&(Scenario){.name = "no links", .before = 100, .during = 200, .keep = 1});
  t.tiny->run->config.train.keep_best = true;
  must(save(&t, 100, BEFORE, &err), &err);
  assert_string_equal(err.text, "");
  injected.no_links = true;
  must(save(&t, 200, DURING, &err), &err);
  if (!strstr(err.text, "takes no symbolic links")) fail_msg("the remark is '%s'", err.text);
  assert_int_equal(version_found(&t, "no links"), DURING);
  must(save(&t, 300, AFTER, &err), &err);
  injected.no_links = false;
  assert_int_equal(version_found(&t, "no links"), AFTER);
  check_no_leftovers(&t, "*.tmp", "no links");
  check_no_leftovers(&t, "step-00000100", "no links");
  assert_false(tiny_test_has(t.tiny, "latest"));
}

TEST(a_system_that_writes_only_half_of_what_is_asked_saves_all) {
  Test t = open_test(&(Scenario){.name = "short writes", .during = 200, .keep = 1});
  injected.always_short = true;
  const int status = save(&t, 200, DURING, &err);
  injected.always_short = false;
  must(status, &err);
  assert_int_equal(version_found(&t, "short writes"), DURING);
}
