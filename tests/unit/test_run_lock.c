// The lock on a run's folder, and what is said of a folder that is taken from under its run.
#include <sys/stat.h>
#include <unistd.h>

#include "model/checkpoint/lock.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

// A folder with RUN, which is locked.
typedef struct Locked {
  PathText run, moved, file; // RUN, where it goes, RUN/lock
  RunLock lock;
} Locked;

static Locked locked_run(void **state) {
  const char *folder = *state;
  Error err = {""};
  Locked l = {.run = path_text("%s/run", folder),
              .moved = path_text("%s/moved", folder),
              .file = path_text("%s/run/" LOCK_FILE, folder)};
  must(directory_add(l.run.text, &err), &err);
  must(run_lock(&l.lock, l.run.text, &err), &err);
  return l;
}

static void move(const char *from, const char *to) {
  Error err = {""};
  must(path_rename(from, to, &err), &err);
}

static void write_text(const char *path, const char *text) {
  Error err = {""};
  must(file_write(path, text, strlen(text), &err), &err);
}

static void expect_text(const char *path, const char *text) {
  Error err = {""};
  char *found;
  size_t bytes;
  must(file_read(path, 1 << 16, &found, &bytes, &err), &err);
  assert_string_equal(found, text);
  free(found);
}

static void expect_kept(const Locked *l) {
  Error err = {""};
  must(run_lock_check(&l->lock, &err), &err);
}

static void expect_lost(const Locked *l) {
  Error err = {""};
  expect_error(run_lock_check(&l->lock, &err), &err, "was moved, removed or replaced");
  expect_error(-1, &err, l->run.text);
}

// ---- One process a folder

TEST_WITH(a_second_lock_is_refused_until_the_first_is_gone, make_folder, remove_folder) {
  Locked l = locked_run(state);
  RunLock second;
  char holder[64];
  snprintf(holder, sizeof holder, "process %ld on ", (long)getpid());
  expect_error(run_lock(&second, l.run.text, &err), &err, holder);
  run_unlock(&l.lock);
  assert_false(path_exists(l.file.text));
  run_unlock(&l.lock); // zeros are fine
  must(run_lock(&second, l.run.text, &err), &err);
  run_unlock(&second);
}

TEST_WITH(a_lock_that_is_no_file_is_refused_and_its_target_untouched, make_folder, remove_folder) {
  const char *folder = *state;
  const PathText target = path_text("%s/precious", folder), absent = path_text("%s/none", folder),
                 file = path_text("%s/" LOCK_FILE, folder);
  RunLock lock;
  write_text(target.text, "as it was");
  assert_int_equal(symlink(target.text, file.text), 0);
  expect_error(run_lock(&lock, folder, &err), &err, "is not a regular file");
  expect_text(target.text, "as it was");
  assert_int_equal(unlink(file.text), 0);
  assert_int_equal(symlink(absent.text, file.text), 0);
  expect_error(run_lock(&lock, folder, &err), &err, "is not a regular file");
  assert_false(path_exists(absent.text));
  assert_int_equal(unlink(file.text), 0);
  assert_int_equal(mkfifo(file.text, 0600), 0);
  expect_error(run_lock(&lock, folder, &err), &err, "is not a regular file");
  assert_int_equal(unlink(file.text), 0);
  must(directory_add(file.text, &err), &err);
  expect_error(run_lock(&lock, folder, &err), &err, "is not a regular file");
  assert_false(lock.held);
}

TEST_WITH(the_lock_of_another_is_not_removed, make_folder, remove_folder) {
  Locked l = locked_run(state);
  move(l.run.text, l.moved.text);
  must(directory_add(l.run.text, &err), &err);
  RunLock second;
  must(run_lock(&second, l.run.text, &err), &err);
  run_unlock(&l.lock);
  assert_true(path_exists(l.file.text));
  assert_false(path_exists(path_text("%s/" LOCK_FILE, l.moved.text).text));
  run_unlock(&second);

  must(run_lock(&l.lock, l.run.text, &err), &err);
  assert_int_equal(unlink(l.file.text), 0);
  must(run_lock(&second, l.run.text, &err), &err); // of the same folder
  run_unlock(&l.lock);
  assert_true(path_exists(l.file.text));
  run_unlock(&second);
  assert_false(path_exists(l.file.text));
}

// ---- Whose folder it is

TEST_WITH(a_folder_that_is_there_is_kept, make_folder, remove_folder) {
  Locked l = locked_run(state);
  expect_kept(&l);
  move(l.run.text, l.moved.text);
  assert_int_equal(symlink("moved", l.run.text), 0); // as one does where a disk is full
  expect_kept(&l);
  run_unlock(&l.lock);
}

TEST_WITH(a_folder_that_was_moved_or_removed_is_lost, make_folder, remove_folder) {
  Locked l = locked_run(state);
  move(l.run.text, l.moved.text);
  expect_lost(&l);
  must(directory_add(l.run.text, &err), &err); // and another has its name
  expect_lost(&l);
  must(directory_remove(l.run.text, &err), &err);
  move(l.moved.text, l.run.text); // it is back
  expect_kept(&l);
  must(directory_remove(l.run.text, &err), &err);
  expect_lost(&l);
  must(directory_add(l.run.text, &err), &err);
  expect_lost(&l);
  run_unlock(&l.lock);
}

TEST_WITH(a_folder_without_our_lock_is_lost, make_folder, remove_folder) {
  Locked l = locked_run(state);
  RunLock second;
  assert_int_equal(unlink(l.file.text), 0);
  expect_lost(&l);
  must(run_lock(&second, l.run.text, &err), &err);
  expect_lost(&l);
  run_unlock(&second);
  run_unlock(&l.lock);
}

// ---- What is written

TEST_WITH(what_is_written_lands_in_the_folder_that_is_held, make_folder, remove_folder) {
  Locked l = locked_run(state);
  move(l.run.text, l.moved.text);
  must(directory_add(l.run.text, &err), &err);
  write_text(path_text("%s/note", l.lock.path.text).text, "ours");
  assert_false(path_exists(path_text("%s/note", l.run.text).text));
  expect_text(path_text("%s/note", l.moved.text).text, "ours");
  must(directory_sync(l.lock.path.text, &err), &err);
  run_unlock(&l.lock);
}

TEST_WITH(sentences_have_the_users_name, make_folder, remove_folder) {
  Locked l = locked_run(state);
  const char *path = l.lock.path.text, *run = l.run.text;
  static const char sentence[] = "cannot rename '%s/a' to '%s/b' in '%s'; all else is fine";
  Error expected;
  error_set(&err, sentence, path, path, path);
  error_set(&expected, sentence, run, run, run);
  for (int i = 0; i < 2; i++) {
    run_lock_name(&l.lock, &err);
    assert_string_equal(err.text, expected.text);
  }
  run_unlock(&l.lock);
}
