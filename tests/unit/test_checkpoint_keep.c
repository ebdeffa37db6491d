// Which checkpoints stay when others go, and whether there is room for one.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "model/run/checkpoint/files.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char untied[] = "\"tie_word_embeddings\": false";

// What every file system has free; UINT64_MAX: as it is.
static uint64_t free_bytes = UINT64_MAX;
int statvfs(const char *path, struct statvfs *s) { // in the C library's place
  const int fd = open(path, O_RDONLY);
  if (fd < 0) return -1;
  const int status = fstatvfs(fd, s);
  close(fd);
  if (free_bytes == UINT64_MAX || status != 0) return status;
  s->f_frsize = 1;
  s->f_bavail = free_bytes;
  return 0;
}

// skipped: updates in a row, the last ones; none before them.
static int save(TinyTest *t, int64_t step, int64_t skipped, int64_t best, Error *err) {
  TrainState state = tiny_state(step, 1);
  state.updates = step - skipped;
  state.nonfinite_row = skipped;
  state.best_val_step = best;
  return tiny_run_save(t->run, t->dir, NULL, &state, t->run->config.train.keep_checkpoints, err);
}

static void must_save(TinyTest *t, int64_t step, int64_t best) {
  Error err = {""};
  must(save(t, step, 0, best, &err), &err);
}

static TinyTest *open_keeping(int64_t keep) {
  TinyTest *t = tiny_test_open(untied);
  t->run->config.train.keep_checkpoints = keep;
  return t;
}

// "5 10 15": the steps that there are, from the first on.
static void expect_steps(const TinyTest *t, const char *suffix, const char *expected) {
  Error err = {""};
  int64_t *steps;
  int count;
  char text[256] = "";
  must(step_list(t->dir, suffix, &steps, &count, &err), &err);
  for (int i = count; i-- > 0;)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", text[0] ? " " : "",
             (long long)steps[i]);
  free(steps);
  assert_string_equal(text, expected);
}

TEST(the_newest_stay_and_the_last_good_one_and_the_best) {
  static const struct {
    int64_t keep;
    bool keep_best;
    struct {
      int64_t step, skipped, best;
      const char *left; // afterwards
      int64_t named;    // by RUN/best
    } saves[9];
  } runs[] = {
      {2,
       false,
       {{5, 0, 0, "5", -1},
        {10, 3, 0, "5 10", -1}, // skipped from step 8 on
        {15, 8, 0, "5 10 15", -1},
        {20, 13, 0, "5 15 20", -1},
        {25, 0, 0, "20 25", -1}, // it ended, so the weights of step 20 were good
        {30, 0, 0, "25 30", -1}}},
      {1,
       false,
       {{2, 0, 0, "2", -1},
        {4, 0, 0, "2 4", -1}, // its update was applied, and ruined the weights
        {6, 2, 0, "2 6", -1},
        {8, 4, 0, "2 8", -1},
        {10, 4, 0, "8 10", -1}}}, // they were not ruined after all
      {2,
       true,
       {{5, 0, 0, "5", -1}, // best_val_step of a run without validation
        {10, 0, 10, "5 10", 10},
        {15, 0, 10, "10 15", 10},
        {20, 0, 10, "10 15 20", 10},
        {25, 0, 10, "10 20 25", 10},
        {30, 0, 10, "10 25 30", 10},
        {35, 0, 32, "10 30 35", 10}, // its step was not saved, so 10 is the best that there is
        {40, 0, 40, "35 40", 40}}},
  };
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
    TinyTest *t = open_keeping(runs[i].keep);
    t->run->config.train.keep_best = runs[i].keep_best;
    for (int j = 0; runs[i].saves[j].step; j++) {
      must(save(t, runs[i].saves[j].step, runs[i].saves[j].skipped, runs[i].saves[j].best, &err),
           &err);
      expect_steps(t, "", runs[i].saves[j].left);
      assert_int_equal(link_step(t->dir, "best"), runs[i].saves[j].named);
    }
  }
}

TEST(room_is_made_before_a_save_but_not_of_the_latest) {
  TinyTest *t = open_keeping(1);
  for (int step = 2; step <= 4; step++) must(save(t, step, 0, 0, &err), &err);
  expect_steps(t, "", "3 4");
  free_bytes = 0;
  expect_error(save(t, 5, 0, 0, &err), &err, "step-00000004' is intact");
  expect_steps(t, "", "4");
  free_bytes = UINT64_MAX;
  must(save(t, 9, 0, 0, &err), &err);
  tiny_test_remove(t, "latest"); // the run is taken back to step 4
  assert_int_equal(symlink("step-00000004", path_text("%s/latest", t->dir).text), 0);
  free_bytes = 0;
  expect_error(save(t, 11, 0, 0, &err), &err, "step-00000004' is intact");
  expect_steps(t, "", "4");
  free_bytes = UINT64_MAX;
}

// ---- Room

static uint64_t tensors_bytes(const TinyTest *t, const char *name) {
  Error err = {""};
  SafeFile file;
  must(safetensors_open(&file, path_text("%s/latest/%s", t->dir, name).text, &err), &err);
  const uint64_t bytes = file.tensors[file.count - 1].end;
  safetensors_close(&file);
  return bytes;
}

TEST(a_save_without_room_writes_nothing) {
  for (int i = 0; i < 4; i++) {
    const bool with_optimizer = i % 2;
    TinyTest *t = open_keeping(2);
    OutputConfig *output = &t->run->config.output;
    output->save_dtype = i / 2 ? SAVE_BF16 : SAVE_FP32;
    output->save_optimizer = with_optimizer;
    must_save(t, 5, 0);
    assert_int_equal(tiny_test_has(t, "latest/" OPTIMIZER_FILE), with_optimizer);
    const uint64_t bytes =
        tensors_bytes(t, WEIGHTS_FILE) + (with_optimizer ? tensors_bytes(t, OPTIMIZER_FILE) : 0);
    free_bytes = bytes - 1;
    expect_error(save(t, 10, 0, 0, &err), &err, "of free space, but a checkpoint needs");
    expect_error(-1, &err, "step-00000005' is intact");
    expect_steps(t, "", "5");
    expect_steps(t, ".tmp", "");
    const PathText deeper = tiny_test_path(t, "not/there");
    expect_error(checkpoint_room(t->dir, &t->run->config, 10, &err), &err, "set output.dir");
    expect_error(checkpoint_room(deeper.text, &t->run->config, 10, &err), &err, "free space");
    free_bytes = bytes;
    must(checkpoint_room(t->dir, &t->run->config, 10, &err), &err);
    must_save(t, 10, 0);
    t->run->config.train.save_interval = -1; // a run that saves nothing needs no room
    free_bytes = 0;
    must(checkpoint_room(t->dir, &t->run->config, 10, &err), &err);
    free_bytes = UINT64_MAX;
  }
}

TEST(a_start_removes_what_a_kill_has_left) {
  TinyTest *t = open_keeping(2);
  must_save(t, 5, 0);
  must(directory_create(path_text("%s/step-00000003.tmp", t->dir).text, &err), &err);
  checkpoint_clear(t->dir, &err);
  assert_string_equal(err.text, "");
  expect_steps(t, ".tmp", "");
  expect_steps(t, "", "5");
}

// ---- Nothing is removed that no save wrote

// RUN/NAME becomes a link to a folder beside the run, where the checkpoint is now.
static PathText archive(const TinyTest *t, const char *name) {
  Error err = {""};
  const PathText from = path_text("%s/%s", t->dir, name), to = path_text("%s/archive", t->dir);
  must(path_rename(from.text, to.text, &err), &err);
  assert_int_equal(symlink("archive", from.text), 0);
  return to;
}

static bool whole(const char *folder) {
  Error err = {""};
  TrainState state;
  return checkpoint_complete(folder, &state, &err) == 0;
}

TEST(what_a_link_leads_to_stays) {
  static const char word[] = "is a link or a file";
  TinyTest *t = open_keeping(1);
  must(save(t, 5, 0, 0, &err), &err);
  const PathText archived = archive(t, "step-00000005");
  must(save(t, 10, 0, 0, &err), &err);
  must(save(t, 15, 0, 0, &err), &err); // step 5 would go
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  expect_steps(t, "", "5 10 15");
  assert_true(whole(archived.text));
  must(save(t, 5, 0, 0, &err), &err); // a save of that step replaces the link itself
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  assert_true(whole(archived.text));
  checkpoint_clear(t->dir, &err);
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  assert_true(whole(archived.text));
  expect_error(save(t, 5, 0, 0, &err), &err, word); // not through what is left of it
  assert_true(whole(archived.text));
}

TEST(a_checkpoint_with_a_file_of_another_stays) {
  static const char *const others[] = {"notes.txt", "deep/er", "model.gguf"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    TinyTest *t = open_keeping(1);
    must(save(t, 5, 0, 0, &err), &err);
    must(directory_create(path_text("%s/step-00000005/deep", t->dir).text, &err), &err);
    if (i != 1) must(directory_remove(path_text("%s/step-00000005/deep", t->dir).text, &err), &err);
    tiny_test_write(t, path_text("step-00000005/%s", others[i]).text, "mine");
    for (int step = 10; step <= 20; step += 5) {
      must(save(t, step, 0, 0, &err), &err);
      assert_int_equal(strstr(err.text, "to remove, as it holds") != NULL, step > 10);
    }
    expect_steps(t, "", "5 15 20");
    assert_true(tiny_test_has(t, path_text("step-00000005/%s", others[i]).text));
    assert_true(whole(path_text("%s/step-00000005", t->dir).text));
  }
}

// ---- A run that was taken back

TEST(checkpoints_of_later_steps_go_when_the_run_passes_them) {
  TinyTest *t = open_keeping(2);
  t->run->config.train.keep_best = true;
  for (int step = 10; step <= 40; step += 10) must_save(t, step, step == 40 ? 40 : 0);
  expect_steps(t, "", "30 40");
  must(checkpoint_take_back(t->dir, 30, &err), &err);
  assert_int_equal(link_step(t->dir, "latest"), 30);
  must_save(t, 35, 0);
  expect_steps(t, "", "30 35 40");
  assert_int_equal(link_step(t->dir, "best"), 40);
  must_save(t, 40, 0); // which replaces the one that was the best
  assert_int_equal(link_step(t->dir, "best"), -1);
  expect_steps(t, "", "35 40");
  must(checkpoint_take_back(t->dir, 35, &err), &err);
  must_save(t, 45, 0); // step 40 is not this run's
  expect_steps(t, "", "35 45");
}
