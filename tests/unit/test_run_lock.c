// The lock on a run's folder, and what is said of a folder that is taken from under its run.
#include <sys/stat.h>
#include <unistd.h>

#include "model/run/checkpoint/lock.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

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
  must(directory_create(l.run.text, &err), &err);
  must(run_lock(&l.lock, l.run.text, &err), &err);
  return l;
}

static void move(const char *from, const char *to) {
  Error err = {""};
  must(path_rename(from, to, &err), &err);
}

static void expect_text(const char *path, const char *text) {
  assert_string_equal(file_text(path, NULL), text);
}

// ---- One process a folder

TEST_WITH(a_second_lock_is_refused_until_the_first_is_gone, make_folder, NULL) {
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

TEST_WITH(a_lock_that_is_no_file_is_refused_and_its_target_untouched, make_folder, NULL) {
  const char *folder = *state;
  const PathText target = path_text("%s/precious", folder), absent = path_text("%s/none", folder),
                 file = path_text("%s/" LOCK_FILE, folder);
  RunLock lock;
  put_file(target.text, "as it was");
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
  must(directory_create(file.text, &err), &err);
  expect_error(run_lock(&lock, folder, &err), &err, "is not a regular file");
  assert_false(lock.held);
}

// ---- Whose folder it is

typedef enum Attack {
  NOTHING,
  LINK_LEFT,
  MOVED_AND_BACK,
  REMOVED,
  EMPTIED,
  MOVED,
  PARENT_MOVED,
  REPLACED,
  SWAPPED,
  LOCK_REMOVED,
  LOCK_TAKEN,
  LOCK_LINKED,
  ATTACKS
} Attack;

// RUN is FOLDER/home/run. *other: the lock of another run, where there is one.
static void strike(Attack attack, const char *folder, RunLock *other) {
  Error err = {""};
  const PathText home = path_text("%s/home", folder), run = path_text("%s/run", home.text),
                 away = path_text("%s/away", home.text), file = path_text("%s/lock", run.text);
  if (attack == REMOVED) must(directory_remove(run.text, &err), &err);
  if (attack == LINK_LEFT || attack == MOVED_AND_BACK || attack == MOVED || attack == REPLACED ||
      attack == SWAPPED)
    move(run.text, away.text);
  if (attack == LINK_LEFT) assert_int_equal(symlink("away", run.text), 0); // a disk was full
  if (attack == MOVED_AND_BACK) move(away.text, run.text);
  if (attack == PARENT_MOVED) move(home.text, path_text("%s/gone", folder).text);
  if (attack == REPLACED || attack == SWAPPED) must(directory_create(run.text, &err), &err);
  if (attack == EMPTIED || attack >= LOCK_REMOVED) assert_int_equal(unlink(file.text), 0);
  if (attack == SWAPPED || attack == LOCK_TAKEN) must(run_lock(other, run.text, &err), &err);
  if (attack == LOCK_LINKED) assert_int_equal(symlink("precious", file.text), 0);
}

TEST_WITH(a_run_knows_whether_its_folder_is_its_own, make_folder, NULL) {
  const char *folder = *state;
  const PathText home = path_text("%s/home", folder), run = path_text("%s/run", home.text),
                 note = path_text("%s/note", run.text);
  for (Attack attack = NOTHING; attack < ATTACKS; attack++) {
    RunLock lock, other = {.held = false};
    must(directory_create(run.text, &err), &err);
    must(run_lock(&lock, run.text, &err), &err);
    strike(attack, folder, &other);
    if (attack < REMOVED)
      must(run_lock_check(&lock, &err), &err);
    else
      expect_error(run_lock_check(&lock, &err), &err,
                   "was moved, removed or replaced while the run");
    if (attack >= REMOVED) expect_error(-1, &err, run.text);
    // What is written all the same lands in the folder that is held, and the lock of another stays.
    if (attack != REMOVED) put_file(path_text("%s/note", lock.path.text).text, "ours");
    const bool still_named = attack < REMOVED || attack == EMPTIED || attack >= LOCK_REMOVED;
    assert_int_equal(path_exists(note.text), still_named);
    run_unlock(&lock);
    if (other.held) assert_true(path_exists(path_text("%s/" LOCK_FILE, run.text).text));
    run_unlock(&other);
    must(directory_remove(home.text, &err), &err);
    must(directory_remove(path_text("%s/gone", folder).text, &err), &err);
  }
}

// ---- What is written

TEST_WITH(sentences_have_the_users_name, make_folder, NULL) {
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
