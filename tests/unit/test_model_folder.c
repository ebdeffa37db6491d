// Which folder a name stands for, what is compared with its checksums, and a run that saves while
// it is read.
#include <unistd.h>

#include "data/model_folder.h"
#include "tests/support/test.h"

// A run's folder, in which folders are "checkpoints" by their names and a file or two.
typedef struct Test {
  char *dir;
  char read[512]; // the folders that were read, each with a space in front
  int failures;   // so many of the next calls fail
  void (*meanwhile)(struct Test *t, const char *folder);
} Test;

static PathText in(const Test *t, const char *name) {
  return path_text("%s/%s", t->dir, name);
}

static void put(const Test *t, const char *folder, const char *file, const char *text) {
  Error err = {""};
  must(directory_create(in(t, folder).text, &err), &err);
  put_file(path_text("%s/%s/%s", t->dir, folder, file).text, text);
}

static void sign(const Test *t, const char *folder, int64_t step) {
  Error err = {""};
  FileSums sums = {.step = step};
  must(sums_write(&sums, in(t, folder).text, &err), &err);
  sums_free(&sums);
}

static void make_step(const Test *t, int64_t step, const char *suffix, bool with_sums) {
  const PathText name = step_path(".", step, suffix);
  put(t, name.text + 2, WEIGHTS_FILE, "weights");
  put(t, name.text + 2, "config.json", "{}");
  if (with_sums) sign(t, name.text + 2, step);
}

static void point(const Test *t, const char *link, const char *target) {
  unlink(in(t, link).text);
  assert_int_equal(symlink(target, in(t, link).text), 0);
}

static void remove_folder(const Test *t, const char *name) {
  Error err = {""};
  must(directory_remove(in(t, name).text, &err), &err);
}

static int note(void *test, const char *folder, const FileSums *sums, Error *err) {
  Test *t = test;
  const size_t used = strlen(t->read);
  (void)sums;
  snprintf(t->read + used, sizeof t->read - used, " %s", strrchr(folder, '/') + 1);
  if (t->meanwhile) t->meanwhile(t, folder);
  return t->failures-- > 0 ? error_set(err, "'%s' does not serve", folder) : 0;
}

static int make_test(void **state) {
  Test *t = held(xcalloc(1, sizeof *t));
  t->dir = temporary_folder();
  *state = t;
  return 0;
}

// Reads what the name stands for, the first `failures` calls of which fail.
static void expect_read(Test *t, const char *name, int failures, const char *folders) {
  Error err = {""};
  t->read[0] = '\0';
  t->failures = failures;
  must(model_folder_read(in(t, name).text, false, note, t, &err), &err);
  assert_string_equal(t->read, folders);
}

TEST_WITH(a_name_stands_for_one_folder, make_test, NULL) {
  Test *t = *state;
  make_step(t, 5, "", true);
  make_step(t, 10, "", true);
  point(t, "latest", "step-00000010");
  point(t, "best", "step-00000005");
  put(t, "model", WEIGHTS_INDEX_FILE, "{}");
  put(t, "tokenizer", TOKENIZER_FILE, "{}");
  point(t, "elsewhere", "model");
  expect_read(t, ".", 0, " step-00000010");
  expect_read(t, "latest", 0, " step-00000010");
  expect_read(t, "latest/", 0, " step-00000010");
  expect_read(t, "best", 0, " step-00000005");
  expect_read(t, "step-00000005//", 0, " step-00000005");
  expect_read(t, "model", 0, " model");
  expect_read(t, "tokenizer", 0, " tokenizer");
  expect_read(t, "elsewhere", 0, " elsewhere");
  expect_error(model_folder_read(in(t, "none").text, false, note, t, &err), &err, "no folder");
  expect_error(model_folder_read(in(t, "model/" WEIGHTS_INDEX_FILE).text, false, note, t, &err),
               &err, "is not a folder");
  assert_int_equal(run_folder_read(in(t, "none").text, false, note, t, &err), 1);
}

TEST_WITH(the_checkpoints_of_a_run_are_tried_in_order, make_test, NULL) {
  Test *t = *state;
  make_step(t, 10, "", true);
  make_step(t, 20, "", false);
  make_step(t, 30, "", true);
  make_step(t, 30, ".old", true);
  make_step(t, 40, "", true);
  make_step(t, 50, "", false);
  put(t, "step-1", WEIGHTS_FILE, "another program's");
  point(t, "latest", "step-00000030");
  expect_read(t, ".", 5,
              " step-00000030 step-00000030.old step-00000010 step-00000020 step-00000040 "
              "step-00000050");
  t->failures = 9;
  expect_error(model_folder_read(t->dir, false, note, t, &err), &err, "no checkpoint left");
}

TEST_WITH(a_lone_checkpoint_says_itself_what_is_wrong, make_test, NULL) {
  Test *t = *state;
  make_step(t, 10, "", true);
  t->failures = 1;
  expect_error(model_folder_read(t->dir, false, note, t, &err), &err,
               "step-00000010' does not serve");
}

// ---- What a run does while it is read

static void save_and_prune(Test *t, const char *folder) {
  t->meanwhile = NULL;
  make_step(t, 20, "", true);
  point(t, "latest", "step-00000020");
  remove_folder(t, strrchr(folder, '/') + 1);
}

TEST_WITH(a_checkpoint_that_goes_while_it_is_read_is_followed_by_the_next, make_test, NULL) {
  Test *t = *state;
  static const char *const names[] = {".", "latest"};
  for (int i = 0; i < 4; i++) { // also where nothing seemed to be missing
    make_step(t, 10, "", true);
    point(t, "latest", "step-00000010");
    t->meanwhile = save_and_prune;
    expect_read(t, names[i / 2], i % 2, " step-00000010 step-00000020");
    remove_folder(t, "step-00000020");
  }
}

static void replace(Test *t, const char *folder) {
  Error err = {""};
  t->meanwhile = NULL;
  make_step(t, 10, ".new", false);
  must(path_rename(folder, in(t, "gone").text, &err), &err);
  must(path_rename(in(t, "step-00000010.new").text, folder, &err), &err);
  must(directory_remove(in(t, "gone").text, &err), &err);
}

TEST_WITH(a_checkpoint_that_is_replaced_is_read_again, make_test, NULL) {
  Test *t = *state;
  static const char *const names[] = {".", "step-00000010"};
  for (int i = 0; i < 2; i++) {
    make_step(t, 10, "", false);
    t->meanwhile = replace;
    expect_read(t, names[i], 1, " step-00000010 step-00000010");
  }
}

// ---- Checksums

TEST_WITH(small_files_are_as_they_were_saved, make_test, NULL) {
  Test *t = *state;
  put(t, "m", STATE_FILE, "{}");
  put(t, "m", RUN_CONFIG_FILE, "{}");
  put(t, "m", TOKENIZER_FILE, "{\"a\": 1}");
  make_step(t, 5, "", true);
  sign(t, "m", 5);
  const PathText folder = in(t, "m"), tokenizer = in(t, "m/" TOKENIZER_FILE);
  put(t, "m", STATE_FILE, "{ }"); // a resumed run alone reads it
  must(model_folder_read(folder.text, false, note, t, &err), &err);
  expect_error(model_folder_read(folder.text, true, note, t, &err), &err, "remove checksums.json");
  must(model_folder_check(tokenizer.text, &err), &err);
  put(t, "m", TOKENIZER_FILE, "{\"a\": 2}");
  expect_error(model_folder_read(folder.text, false, note, t, &err), &err, "remove checksums.json");
  expect_error(model_folder_check(tokenizer.text, &err), &err, tokenizer.text);
  unlink(tokenizer.text);
  expect_error(model_folder_read(folder.text, false, note, t, &err), &err, "has no tokenizer.json");
  unlink(in(t, "m/" CHECKSUMS_FILE).text);
  must(model_folder_read(folder.text, true, note, t, &err), &err);
}

// No byte of it may change, also where what it says is used by other readers alone.
TEST_WITH(every_byte_of_checksums_json_counts, make_test, NULL) {
  Test *t = *state;
  size_t bytes;
  put(t, "m", "config.json", "{}");
  put(t, "m", "optimizer.safetensors", "");
  sign(t, "m", 5);
  const PathText path = in(t, "m/" CHECKSUMS_FILE);
  char *text = file_text(path.text, &bytes);
  for (size_t i = 0; i < 8 * bytes; i++) {
    text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
    must(file_write(path.text, text, bytes, &err), &err);
    expect_error(model_folder_read(in(t, "m").text, false, note, t, &err), &err, path.text);
    text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
  }
}
