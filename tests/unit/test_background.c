// Saves beside training: their files are those of saves that training waits for, whatever training
// does meanwhile; one that fails, or is cut off, leaves the checkpoint before.
#define _GNU_SOURCE
#include <glob.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "model/run/run.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"
#include "tests/support/tiny_training.h"

// ---- A thread that is held while it writes

enum { HELD_MS = 60 };
static struct Gate {
  sem_t writes, may_go_on;
  bool armed;
} gate;

// Of the next save the first sync waits until it is released. The log is the main thread's.
static void wait_to_go_on(void) {
  if (!gate.armed || gettid() == getpid()) return;
  gate.armed = false;
  sem_post(&gate.writes);
  while (sem_wait(&gate.may_go_on) != 0) continue;
}

static void hold_next_save(void) {
  sem_init(&gate.writes, 0, 0);
  sem_init(&gate.may_go_on, 0, 0);
  gate.armed = true;
  injected.before_sync = wait_to_go_on;
}

static void *release_later(void *unused) {
  (void)unused;
  usleep(HELD_MS * 1000);
  sem_post(&gate.may_go_on);
  return NULL;
}

// ---- Of a model alone

static BackgroundSave *open_save(const TinyTest *t) {
  Error err = {""};
  return must_make(background_open(&t->run->llama, t->run->config.output.save_optimizer, &err),
                   &err);
}

static void begin(BackgroundSave *save, TinyTest *t, int64_t step, uint64_t version) {
  const TrainState state = tiny_test_fill(t, step, version);
  background_begin(save, t->dir, &t->run->config, t->export.count ? &t->export : NULL, &state);
}

static SaveResult end(BackgroundSave *save) {
  SaveResult result;
  assert_true(background_end(save, true, &result));
  return result;
}

static void must_end(BackgroundSave *save, int64_t step) {
  const SaveResult r = end(save);
  must(r.status, &r.error);
  assert_int_equal(r.step, step);
  assert_true(r.ms >= r.waited_ms && r.waited_ms >= 0);
}

// Is what a run would go on from.
static void expect_version(TinyTest *t, int64_t step, uint64_t version) {
  Error err = {""};
  TrainState state;
  const PathText path = tiny_newest(t->dir);
  must(checkpoint_read_state(path.text, &state, &err), &err);
  must(tiny_load(path.text, &t->loaded->llama, true, &err), &err);
  assert_int_equal(state.step, step);
  assert_int_equal(tiny_test_differs(t, version), 0);
}

static void expect_equal_files(const char *a, const char *b, const char *name) {
  size_t bytes_a, bytes_b;
  const char *in_a = file_text(path_text("%s/%s", a, name).text, &bytes_a),
             *in_b = file_text(path_text("%s/%s", b, name).text, &bytes_b);
  if (bytes_a != bytes_b || memcmp(in_a, in_b, bytes_a) != 0)
    fail_msg("%s differs in %s and %s", name, a, b);
}

// All files of the two folders, and that there are any.
static void expect_equal_folders(const char *a, const char *b) {
  glob_t in_a, in_b;
  assert_int_equal(glob(path_text("%s/*", a).text, 0, NULL, &in_a), 0);
  assert_int_equal(glob(path_text("%s/*", b).text, 0, NULL, &in_b), 0);
  assert_int_equal(in_a.gl_pathc, in_b.gl_pathc);
  assert_true(in_a.gl_pathc >= 5);
  for (size_t i = 0; i < in_a.gl_pathc; i++)
    expect_equal_files(a, b, strrchr(in_a.gl_pathv[i], '/') + 1);
  globfree(&in_a);
  globfree(&in_b);
}

// A save that is written while the model's values change has the files of one made at once.
static void check_moment(const TinyKind *kind, bool with_optimizer) {
  Error err = {""};
  SaveResult none;
  TinyTest *t = tiny_test_open_kind(kind);
  t->run->config.output.save_optimizer = with_optimizer;
  t->run->config.train.keep_checkpoints = 1;
  BackgroundSave *save = open_save(t);
  hold_next_save();
  begin(save, t, 7, 1);
  background_copied(save);
  while (sem_wait(&gate.writes) != 0) continue;
  tiny_run_fill(t->run, 2);
  tiny_scalings.saved[0].scale = 2;
  t->run->be->calibrating = true;
  assert_false(background_end(save, false, &none));
  sem_post(&gate.may_go_on);
  must_end(save, 7);
  assert_false(background_end(save, true, &none));
  if (with_optimizer) expect_version(t, 7, 1);

  const PathText there = tiny_test_path(t, "step-00000007"), kept = tiny_test_path(t, "kept");
  must(path_rename(there.text, kept.text, &err), &err);
  t->run->be->calibrating = !kind->fp8;
  tiny_test_save(t, 7, 1, 1);
  expect_equal_folders(kept.text, there.text);
  background_close(save);
}

TEST(files_are_of_the_moment_of_the_save) {
  for (int i = 0; i < TINY_KINDS; i++) check_moment(&tiny_kinds[i], true);
  check_moment(&tiny_kinds[TINY_KINDS - 1], false);
}

TEST(closing_waits_for_what_is_under_way) {
  TinyTest *t = tiny_test_open("");
  for (int copied = 0; copied < 2; copied++) {
    BackgroundSave *save = open_save(t);
    begin(save, t, 7 + copied, (uint64_t)copied);
    if (copied) background_copied(save);
    background_close(save);
    expect_version(t, 7 + copied, (uint64_t)copied);
  }
}

// In a child, since what such a save held is lost, which ASan would call a leak.
static bool save_without_memory(TinyTest *t, int from) {
  const pid_t child = fork();
  int status;
  assert_true(child >= 0);
  if (child > 0) {
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
      fail_msg("no memory from allocation %d on: status %d", from, status);
    return WEXITSTATUS(status) == 1;
  }
  BackgroundSave *save = open_save(t);
  begin(save, t, 200, 2);
  injected = (struct Injected){.fault = NO_MEMORY, .at = from};
  background_copied(save);
  const SaveResult r = end(save);
  injected = (struct Injected){.fault = NO_FAULT};
  if (r.status != 0 && (!strstr(r.error.text, "of step 200 could not be saved: out of memory: ") ||
                        !strstr(r.error.text, "step-00000100' is intact"))) {
    fprintf(stderr, "no memory from allocation %d on: %s\n", from, r.error.text);
    _exit(2);
  }
  begin(save, t, 300, 4);
  must_end(save, 300);
  _exit(r.status != 0);
}

TEST(a_save_without_memory_fails_and_the_next_one_succeeds) {
  int from = 1;
  for (bool fails = true; fails; from += fault_stride()) {
    TinyTest *t = tiny_test_open("");
    tiny_test_save(t, 100, 1, 9);
    fails = save_without_memory(t, from);
    expect_version(t, 300, 4);
    assert_false(path_exists(path_text("%s/step-00000200.tmp", t->dir).text));
  }
  printf("# up to %d allocations\n", from - 1);
  assert_true(from > 20);
}

// ---- Of a run

// A backend that copies when it is waited for: at the last moment that it may.
static struct {
  const SnapshotPiece *list;
  int count;
} later;

static void note_list(Backend *be, const SnapshotPiece *list, int count) {
  (void)be;
  later.list = list;
  later.count = count;
}

static double copy_list(Backend *be) {
  (void)be;
  for (int i = 0; i < later.count; i++)
    if (later.list[i].bytes > 0) // a state that the parameter does not have
      memcpy(later.list[i].to_host, later.list[i].from, later.list[i].bytes);
  later.count = 0;
  return 0;
}

enum { STEPS = 6 };

// Trains to the last step with a save after every second one, as train.c does.
static void train(const Config *config, int until) {
  Error err = {""};
  Run run;
  tiny_training_open(&run, config);
  assert_int_equal(run.saves.background != NULL, config->output.background_save);
  run.be->services.snapshot_begin = note_list;
  run.be->services.snapshot_wait = copy_list;
  while (run_steps_asked(&run) < until) {
    tiny_training_step(&run);
    must(run_settle(&run, &err), &err);
    if (run.state.step % 2 != 0) continue;
    must(run_save_end(&run, true, &err), &err);
    must(run_save(&run, &err), &err);
  }
  run_close(&run);
}

static void rename_run(const char *folder, const char *name) {
  Error err = {""};
  must(path_rename(path_text("%s/run", folder).text, path_text("%s/%s", folder, name).text, &err),
       &err);
}

static void expect_equal_runs(const char *folder, const char *a, const char *b) {
  static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
  for (int step = 2; step <= STEPS; step += 2)
    for (int i = 0; i < 3; i++)
      expect_equal_files(path_text("%s/%s/step-%08d", folder, a, step).text,
                         path_text("%s/%s/step-%08d", folder, b, step).text, names[i]);
}

TEST_WITH(a_run_has_the_files_of_one_that_waits, make_tokens_folder, NULL) {
  Config config = tiny_training_config(*state, STEPS, "");
  train(&config, STEPS);
  rename_run(*state, "beside");
  config.output.background_save = false;
  train(&config, STEPS);
  rename_run(*state, "waiting");
  expect_equal_runs(*state, "beside", "waiting");
}

static int log_has(const char *folder, const char *words) {
  int found = 0;
  for (const char *at = file_text(path_text("%s/run/log.jsonl", folder).text, NULL);
       (at = strstr(at, words)); at++)
    found++;
  return found;
}

// Opens a run, trains for two steps and begins a save, whose thread is then held.
static void open_and_hold(Run *run, const Config *config) {
  Error err = {""};
  tiny_training_open(run, config);
  for (int i = 0; i < 2; i++) tiny_training_step(run);
  must(run_settle(run, &err), &err);
  hold_next_save();
  must(run_save(run, &err), &err);
  tiny_training_step(run); // which has the copy written
  while (sem_wait(&gate.writes) != 0) continue;
}

TEST_WITH(a_save_is_in_the_log_once_it_is_in_place, make_tokens_folder, NULL) {
  pthread_t thread;
  Run run;
  const Config config = tiny_training_config(*state, STEPS, "");
  open_and_hold(&run, &config);
  must(run_save_end(&run, false, &err), &err);
  assert_int_equal(run.saves.step, -1);
  assert_int_equal(log_has(*state, "\"kind\":\"save\""), 0);
  assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
  const double from_ms = now_ms();
  must(run_save_end(&run, true, &err), &err); // as the next save would
  assert_true(now_ms() - from_ms > HELD_MS / 2);
  assert_int_equal(run.saves.step, 2);
  assert_int_equal(log_has(*state, "\"kind\":\"save\",\"step\":2,"), 1);
  pthread_join(thread, NULL);
  run_close(&run);
}

TEST_WITH(closing_a_run_waits_for_its_save, make_tokens_folder, NULL) {
  pthread_t thread;
  Run run;
  Config config = tiny_training_config(*state, STEPS, "");
  open_and_hold(&run, &config);
  assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
  run_close(&run);
  pthread_join(thread, NULL);
  assert_int_equal(log_has(*state, "\"kind\":\"save\",\"step\":2,"), 1);
  TrainState found;
  must(checkpoint_read_state(path_text("%s/run/latest", *(char **)state).text, &found, &err), &err);
  assert_int_equal(found.step, 2);
}

TEST_WITH(a_failed_save_is_told_and_training_goes_on, make_tokens_folder, NULL) {
  Run run;
  const Config config = tiny_training_config(*state, STEPS, "");
  open_and_hold(&run, &config);
  injected.disk_full = true;
  sem_post(&gate.may_go_on);
  expect_error(run_save_end(&run, true, &err), &err, "of step 2 could not be saved");
  injected.disk_full = false;
  assert_int_equal(run.saves.step, -1);
  must(run_save_end(&run, true, &err), &err); // told once
  tiny_training_step(&run);
  must(run_settle(&run, &err), &err);
  must(run_save(&run, &err), &err);
  must(run_save_end(&run, true, &err), &err);
  assert_int_equal(run.saves.step, 4);
  run_close(&run);
}

static int save_at_once(Run *run, double best, Error *err) {
  tiny_training_step(run);
  must(run_settle(run, err), err);
  run->state.best_val_loss = best;
  run->state.best_val_step = run->state.step;
  return run_save(run, err);
}

// One fault in each save, from its first call to its last.
TEST_WITH(a_best_validation_counts_only_once_it_is_saved, make_tokens_folder, NULL) {
  Run run;
  Config config = tiny_training_config(*state, 1000, "");
  config.output.background_save = false;
  config.train.keep_best = true;
  tiny_training_open(&run, &config);
  must(save_at_once(&run, 1000, &err), &err);
  int lost = 0, at = 1;
  for (double best = 999; best > 0; best--, at++) {
    injected = (struct Injected){.fault = FAIL_EIO, .at = at};
    const int status = save_at_once(&run, best, &err);
    const bool fewer = injected.calls < at;
    injected = (struct Injected){.fault = NO_FAULT};
    const int64_t named = checkpoint_best(path_text("%s/run", *(char **)state).text);
    assert_int_equal(run.state.best_val_step, named);
    assert_true(status != 0 || named == run.state.step);
    lost += status != 0 && named != run.state.step;
    if (fewer) break;
  }
  assert_in_range(lost, 20, 999);
  run_close(&run);
}

TEST_WITH(a_better_validation_outlives_the_failed_save_of_the_one_before, make_tokens_folder,
          NULL) {
  Run run;
  Config config = tiny_training_config(*state, STEPS, "");
  config.train.keep_best = true;
  open_and_hold(&run, &config); // step 2, without a validation
  run.saves.best_saving = (BestLoss){3, 2};
  run.state.best_val_loss = 2;
  run.state.best_val_step = 3;
  injected.disk_full = true;
  sem_post(&gate.may_go_on);
  expect_error(run_save_end(&run, true, &err), &err, "of step 2 could not be saved");
  injected.disk_full = false;
  assert_int_equal(run.state.best_val_step, 3);
  run_close(&run);
}

TEST_WITH(a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before, make_tokens_folder,
          NULL) {
  Config config = tiny_training_config(*state, STEPS, "");
  train(&config, STEPS);
  rename_run(*state, "whole");
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    Run run;
    train(&config, 2);
    strcpy(config.train.resume, "auto");
    open_and_hold(&run, &config);
    run_save_end(&run, false, &err);
    raise(SIGKILL);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  assert_true(path_exists(path_text("%s/run/step-00000004.tmp", *(char **)state).text));
  assert_int_equal(log_has(*state, "\"kind\":\"save\",\"step\":2,"), 1);
  strcpy(config.train.resume, "auto");
  train(&config, STEPS);
  rename_run(*state, "resumed");
  expect_equal_runs(*state, "whole", "resumed");
}

TEST_WITH(a_host_without_the_memory_lets_training_wait, make_tokens_folder, NULL) {
  Config config = tiny_training_config(*state, STEPS, "");
  Run run;
  tiny_training_open(&run, &config);
  assert_true(saves_plan(&config, &run.be->spec, 0).background);
  assert_false(saves_plan(&config, &run.be->spec, SIZE_MAX).background);
  assert_false(saves_plan(&config, &run.be->spec, memory_available()).background);
  config.train.save_interval = -1;
  assert_false(saves_plan(&config, &run.be->spec, 0).background);
  config.train.save_interval = 0;
  config.output.background_save = false;
  assert_false(saves_plan(&config, &run.be->spec, 0).background);
  run_close(&run);
}
