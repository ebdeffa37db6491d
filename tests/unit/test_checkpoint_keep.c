// Which checkpoints stay when others go, and whether there is room for one.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "model/checkpoint/files.h"
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
  return tiny_run_save(&t->run, t->dir, NULL, &state, 2, err);
}

static void must_save(TinyTest *t, int64_t step, int64_t skipped, int64_t best) {
  Error err = {""};
  must(save(t, step, skipped, best, &err), &err);
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

TEST(a_row_of_skipped_updates_removes_no_good_checkpoint) {
  TinyTest t = tiny_test_open(untied);
  must_save(&t, 5, 0, 0);
  must_save(&t, 10, 3, 0); // skipped from step 8 on
  must_save(&t, 15, 8, 0);
  expect_steps(&t, "", "5 10 15");
  must_save(&t, 20, 13, 0);
  expect_steps(&t, "", "5 15 20");
  must_save(&t, 25, 0, 0); // it ended, so the weights of step 20 were good
  expect_steps(&t, "", "20 25");
  must_save(&t, 30, 0, 0);
  expect_steps(&t, "", "25 30");
  tiny_test_close(&t);
}

static int save_of_one(TinyTest *t, int64_t step, int64_t updates, Error *err) {
  TrainState state = tiny_state(step, 1);
  state.updates = updates;
  return tiny_run_save(&t->run, t->dir, NULL, &state, 1, err);
}

TEST(the_last_good_one_is_one_after_which_a_step_was_finite) {
  TinyTest t = tiny_test_open(untied);
  must(save_of_one(&t, 2, 2, &err), &err);
  must(save_of_one(&t, 4, 4, &err), &err); // its update was applied, and ruined the weights
  expect_steps(&t, "", "2 4");
  must(save_of_one(&t, 6, 4, &err), &err);
  must(save_of_one(&t, 8, 4, &err), &err);
  expect_steps(&t, "", "2 8");
  must(save_of_one(&t, 10, 6, &err), &err); // they were not ruined after all
  expect_steps(&t, "", "8 10");
  tiny_test_close(&t);
}

TEST(room_is_made_before_a_save_but_not_of_the_latest) {
  TinyTest t = tiny_test_open(untied);
  for (int step = 2; step <= 4; step++) must(save_of_one(&t, step, step, &err), &err);
  expect_steps(&t, "", "3 4");
  free_bytes = 0;
  expect_error(save_of_one(&t, 5, 5, &err), &err, "step-00000004' is intact");
  expect_steps(&t, "", "4");
  free_bytes = UINT64_MAX;
  must(save_of_one(&t, 9, 9, &err), &err);
  tiny_test_remove(&t, "latest"); // the run is taken back to step 4
  assert_int_equal(symlink("step-00000004", path_text("%s/latest", t.dir).text), 0);
  free_bytes = 0;
  expect_error(save_of_one(&t, 11, 11, &err), &err, "step-00000004' is intact");
  expect_steps(&t, "", "4");
  free_bytes = UINT64_MAX;
  tiny_test_close(&t);
}

TEST(keep_best_keeps_the_best_and_names_it) {
  TinyTest t = tiny_test_open(untied);
  t.run.config.train.keep_best = true;
  must_save(&t, 5, 0, 0); // best_val_step of a run without validation
  assert_int_equal(link_step(t.dir, "best"), -1);
  must_save(&t, 10, 0, 10);
  for (int step = 15; step <= 30; step += 5) must_save(&t, step, 0, 10);
  assert_int_equal(link_step(t.dir, "best"), 10);
  expect_steps(&t, "", "10 25 30");
  must_save(&t, 35, 0, 32); // its step was not saved, so 10 is the best that there is
  expect_steps(&t, "", "10 30 35");
  must_save(&t, 40, 0, 40);
  assert_int_equal(link_step(t.dir, "best"), 40);
  expect_steps(&t, "", "35 40");
  tiny_test_close(&t);
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
  for (SaveDtype dtype = SAVE_FP32; dtype <= SAVE_BF16; dtype++) {
    TinyTest t = tiny_test_open(untied);
    t.run.config.output.save_dtype = dtype;
    must_save(&t, 5, 0, 0);
    const uint64_t bytes = tensors_bytes(&t, WEIGHTS_FILE) + tensors_bytes(&t, OPTIMIZER_FILE);
    free_bytes = bytes - 1;
    expect_error(save(&t, 10, 0, 0, &err), &err, "of free space, but a checkpoint needs");
    expect_error(-1, &err, "step-00000005' is intact");
    expect_steps(&t, "", "5");
    expect_steps(&t, ".tmp", "");
    expect_error(checkpoint_room(t.dir, &t.run.config, 10, &err), &err,
                 "make room, or set output.dir");
    const PathText deeper = path_text("%s/not/there", t.dir);
    expect_error(checkpoint_room(deeper.text, &t.run.config, 10, &err), &err, "free space");
    free_bytes = bytes;
    must(checkpoint_room(t.dir, &t.run.config, 10, &err), &err);
    must_save(&t, 10, 0, 0);
    t.run.config.train.save_interval = -1; // a run that saves nothing needs no room
    free_bytes = 0;
    must(checkpoint_room(t.dir, &t.run.config, 10, &err), &err);
    free_bytes = UINT64_MAX;
    tiny_test_close(&t);
  }
}

TEST(a_model_alone_needs_the_room_of_its_weights) {
  for (SaveDtype dtype = SAVE_FP32; dtype <= SAVE_BF16; dtype++) {
    TinyTest t = tiny_test_open(untied);
    OutputConfig *output = &t.run.config.output;
    output->save_dtype = dtype;
    output->save_optimizer = false;
    must_save(&t, 5, 0, 0);
    assert_false(tiny_test_has(&t, "latest/" OPTIMIZER_FILE));
    free_bytes = tensors_bytes(&t, WEIGHTS_FILE);
    must(checkpoint_room(t.dir, &t.run.config, 10, &err), &err);
    must_save(&t, 10, 0, 0);
    free_bytes--;
    expect_error(save(&t, 15, 0, 0, &err), &err, "of free space, but a checkpoint needs");
    expect_steps(&t, "", "5 10");
    free_bytes = UINT64_MAX;
    tiny_test_close(&t);
  }
}

TEST(a_start_removes_what_a_kill_has_left) {
  TinyTest t = tiny_test_open(untied);
  must_save(&t, 5, 0, 0);
  must(directory_create(path_text("%s/step-00000003.tmp", t.dir).text, &err), &err);
  checkpoint_clear(t.dir, &err);
  assert_string_equal(err.text, "");
  expect_steps(&t, ".tmp", "");
  expect_steps(&t, "", "5");
  tiny_test_close(&t);
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
  TinyTest t = tiny_test_open(untied);
  must(save_of_one(&t, 5, 5, &err), &err);
  const PathText archived = archive(&t, "step-00000005");
  must(save_of_one(&t, 10, 10, &err), &err);
  must(save_of_one(&t, 15, 15, &err), &err); // step 5 would go
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  expect_steps(&t, "", "5 10 15");
  assert_true(whole(archived.text));
  must(save_of_one(&t, 5, 5, &err), &err); // a save of that step replaces the link itself
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  assert_true(whole(archived.text));
  checkpoint_clear(t.dir, &err);
  if (!strstr(err.text, word)) fail_msg("the remark '%s' lacks '%s'", err.text, word);
  assert_true(whole(archived.text));
  expect_error(save_of_one(&t, 5, 5, &err), &err, word); // not through what is left of it
  assert_true(whole(archived.text));
  tiny_test_close(&t);
}

TEST(a_checkpoint_with_a_file_of_another_stays) {
  static const char *const others[] = {"notes.txt", "deep/er", "model.gguf"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    TinyTest t = tiny_test_open(untied);
    must(save_of_one(&t, 5, 5, &err), &err);
    must(directory_add(path_text("%s/step-00000005/deep", t.dir).text, &err), &err);
    if (i != 1) must(directory_remove(path_text("%s/step-00000005/deep", t.dir).text, &err), &err);
    tiny_test_write(&t, path_text("step-00000005/%s", others[i]).text, "mine");
    for (int step = 10; step <= 20; step += 5) {
      must(save_of_one(&t, step, step, &err), &err);
      assert_int_equal(strstr(err.text, "to remove, as it holds") != NULL, step > 10);
    }
    expect_steps(&t, "", "5 15 20");
    assert_true(tiny_test_has(&t, path_text("step-00000005/%s", others[i]).text));
    assert_true(whole(path_text("%s/step-00000005", t.dir).text));
    tiny_test_close(&t);
  }
}

// ---- A run that was taken back

TEST(checkpoints_of_later_steps_go_when_the_run_passes_them) {
  TinyTest t = tiny_test_open(untied);
  t.run.config.train.keep_best = true;
  for (int step = 10; step <= 40; step += 10) must_save(&t, step, 0, step == 40 ? 40 : 0);
  expect_steps(&t, "", "30 40");
  must(checkpoint_take_back(t.dir, 30, &err), &err);
  assert_int_equal(link_step(t.dir, "latest"), 30);
  must_save(&t, 35, 0, 0);
  expect_steps(&t, "", "30 35 40");
  assert_int_equal(link_step(t.dir, "best"), 40);
  must_save(&t, 40, 0, 0); // which replaces the one that was the best
  assert_int_equal(link_step(t.dir, "best"), -1);
  expect_steps(&t, "", "35 40");
  must(checkpoint_take_back(t.dir, 35, &err), &err);
  must_save(&t, 45, 0, 0); // step 40 is not this run's
  expect_steps(&t, "", "35 45");
  tiny_test_close(&t);
}
