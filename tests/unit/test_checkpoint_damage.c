// Damaged checkpoints: a named one is refused, of a run's the one before is taken, whatever was
// done to which file.
#include <dirent.h>
#include <unistd.h>

#include "base/rng.h"
#include "model/run/checkpoint/files.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char newest[] = "step-00000200", before[] = "step-00000100";

// A run with checkpoints of version 1 and 2.
static TinyTest *open_kind(const TinyKind *kind) {
  TinyTest *t = tiny_test_open_kind(kind);
  tiny_test_save(t, 100, 1, 9);
  tiny_test_save(t, 200, 2, 9);
  return t;
}

static TinyTest *open_run(void) {
  return open_kind(&tiny_kinds[0]);
}

static PathText in(const TinyTest *t, const char *folder, const char *file) {
  return path_text("%s/%s/%s", t->dir, folder, file);
}

// A new file, of which nothing is synced.
static void write_all(const char *path, const char *data, size_t bytes) {
  unlink(path);
  FILE *file = fopen(path, "w");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
    fail_msg("cannot write '%s'", path);
}

// Standard error is put aside: what is said there.
static int open_quietly(Checkpoint *c, const TinyTest *t, char **said, Error *err) {
  const Caught all = catch_output(STDERR_FILENO);
  const int status = tiny_open(c, t->dir, true, err);
  *said = caught(all);
  return status;
}

// By its name it is refused with these words; of the run it is passed over, with its name and the
// words on a line, and the one before comes with all its bits.
static void expect_damaged(TinyTest *t, const char *what, const char *words) {
  Error err = {""};
  Checkpoint c;
  char *said;
  if (tiny_open(&c, tiny_test_path(t, newest).text, true, &err) == 0)
    fail_msg("%s: it was opened", what);
  if (!strstr(err.text, words)) fail_msg("%s: '%s' lacks '%s'", what, err.text, words);
  must(open_quietly(&c, t, &said, &err), &err);
  if (!name_ends_with(c.path, before)) fail_msg("%s: '%s' was opened", what, c.path);
  if (!strstr(said, newest) || !strstr(said, "passed over") || !strstr(said, words))
    fail_msg("%s: it said '%s'", what, said);
  must(checkpoint_load(&c, &t->loaded->llama, &err), &err);
  if (tiny_test_differs(t, 1)) fail_msg("%s: the one before has other bits", what);
  checkpoint_close(&c);
}

// ---- Every file of every kind of checkpoint, damaged in every way

typedef enum Damage {
  FLIPPED,
  FLIPPED_5,
  CUT,
  EMPTY,
  LONGER,
  ZEROED,
  MISSING,
  OF_STEP,
  OF_RUN,
  DAMAGES
} Damage;

static const char *const damages[DAMAGES] = {"flipped", "flipped often", "cut",
                                             "empty",   "longer",        "zeroed",
                                             "missing", "of a step",     "of a run"};

static void flip(char *data, size_t bytes, uint64_t key, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    const size_t at = key == 0 ? bytes - 1 : rng_u64(key, 2 * i) % bytes;
    data[at] = (char)(data[at] ^ 1 << rng_u64(key, 2 * i + 1) % 8);
  }
}

// Damages the file `name` of the newest checkpoint, which has these bytes. False where that is
// none. key: of what is random.
static bool damage(const TinyTest *t, const TinyTest *other, const char *name, Damage how,
                   uint64_t key, const char *data, size_t bytes) {
  const PathText path = in(t, newest, name);
  size_t length = bytes, zeros = bytes < 512 ? bytes : 512;
  char *changed = held(xcalloc(bytes + 64, 1));
  memcpy(changed, data, bytes);
  if (how == FLIPPED) flip(changed, bytes, key, 1);
  if (how == FLIPPED_5) flip(changed, bytes, key + 1, 5);
  if (how == CUT) length = rng_u64(key, 0) % bytes;
  if (how == EMPTY) length = 0;
  if (how == LONGER) length += 1 + rng_u64(key, 0) % 64;
  if (how == ZEROED) memset(changed + rng_u64(key, 0) % (bytes - zeros + 1), 0, zeros);
  if (how == OF_STEP || how == OF_RUN) {
    changed = how == OF_STEP ? file_text(in(t, before, name).text, &length)
                             : file_text(in(other, newest, name).text, &length);
  }
  const bool same = length == bytes && memcmp(data, changed, bytes) == 0;
  if (how == MISSING)
    unlink(path.text);
  else
    write_all(path.text, changed, length);
  // Without checksums.json it is a checkpoint of an older version.
  return !same && !(how == MISSING && strcmp(name, CHECKSUMS_FILE) == 0);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(a, b);
}

// Every file of the newest checkpoint, in order.
typedef char Name[NAME_BYTES + 1];
static int list_files(const TinyTest *t, Name *names, int most) {
  DIR *dir = opendir(tiny_test_path(t, newest).text);
  int count = 0;
  for (struct dirent *e; dir && count < most && (e = readdir(dir));)
    if (e->d_name[0] != '.') snprintf(names[count++], sizeof *names, "%s", e->d_name);
  closedir(dir);
  qsort(names, (size_t)count, sizeof *names, compare_names);
  return count;
}

static void damage_kind(const TinyKind *kind) {
  enum { MOST = 40 };
  const uint64_t flips = first_tier() ? 8 : 40;
  TinyTest *t = open_kind(kind), *other = tiny_test_open_kind(kind);
  Name names[MOST];
  const int count = list_files(t, names, MOST);
  int done = 0;
  tiny_test_save(other, 200, 9, 9);
  assert_in_range(count, 6, MOST - 1);
  for (int i = 0; i < count; i++) {
    const PathText path = in(t, newest, names[i]);
    size_t bytes;
    char *data = file_text(path.text, &bytes);
    for (Damage how = FLIPPED; how < DAMAGES; how++)
      for (uint64_t k = 0; k < (how == FLIPPED ? flips : 1); k++) {
        const PathText what = path_text("%s, %s %s", kind->name, names[i], damages[how]);
        const bool named = how == CUT || how == EMPTY || how == MISSING;
        if (damage(t, other, names[i], how, (uint64_t)(i + 1) * 1000 * (k > 0) + k, data, bytes)) {
          expect_damaged(t, what.text, named ? names[i] : newest);
          done++;
        }
        write_all(path.text, data, bytes);
      }
  }
  printf("# %s: %d times, in %d files\n", kind->name, done, count);
}

TEST(every_damage_of_every_file_is_found) {
  for (int i = 0; i < TINY_KINDS; i++) damage_kind(&tiny_kinds[i]);
}

TEST(a_step_that_is_not_the_folders_name_is_found) {
  TinyTest *t = open_run();
  must(directory_remove(tiny_test_path(t, newest).text, &err), &err);
  must(path_rename(tiny_test_path(t, before).text, tiny_test_path(t, newest).text, &err), &err);
  tiny_test_save(t, 100, 1, 9);
  unlink(tiny_test_path(t, "latest").text);
  expect_damaged(t, "another name", "is of step 100");
}

// ---- Values that no checksum finds, as they were saved

static void set_values(TinyTest *t, int param, ParamState of, float value) {
  const ParamTensor *p = &t->run->llama.tensors[param];
  float *values = held(xcalloc((size_t)(p->rows * p->cols), sizeof *values));
  values[11] = value;
  tiny_run_fill(t->run, 2);
  state_write(t->run->be, p, of, values);
  const TrainState state = tiny_state(200, 2);
  Error err = {""};
  must(tiny_run_save(t->run, t->dir, NULL, &state, 9, &err), &err);
}

TEST(impossible_values_are_found) {
  TinyTest *t = open_run();
  const float nan = strtof("nan", NULL), inf = strtof("inf", NULL);
  const int last = t->run->llama.param_count - 1;
  set_values(t, 0, STATE_master, nan);
  expect_damaged(t, "a NaN", "not finite");
  t->run->config.output.save_dtype = SAVE_BF16;
  set_values(t, last, STATE_master, -inf);
  expect_damaged(t, "an infinity", "not finite");
  t->run->config.output.save_dtype = SAVE_FP32;
  set_values(t, 2, STATE_m, nan);
  expect_damaged(t, "a NaN", "'exp_avg.");
  set_values(t, last, STATE_v, -0x1p-149f);
  expect_damaged(t, "a negative square", "below 0");
  // -0 is 0, and the finest value of either sign a value.
  set_values(t, last, STATE_v, -0.0f);
  Checkpoint c;
  must(tiny_open(&c, t->dir, true, &err), &err);
  assert_true(name_ends_with(c.path, newest));
  checkpoint_close(&c);
}

// ---- The rest of the rule

TEST(none_left_is_an_error) {
  TinyTest *t = open_run();
  char *said;
  Checkpoint c;
  write_all(in(t, newest, STATE_FILE).text, "{", 1);
  write_all(in(t, before, WEIGHTS_FILE).text, "{", 1);
  expect_error(open_quietly(&c, t, &said, &err), &err, "no checkpoint left");
  if (!strstr(said, newest) || !strstr(said, before)) fail_msg("it said '%s'", said);
}

static void expect_opened(const TinyTest *t, const char *name, bool has_checksums,
                          const char *words) {
  Error err = {""};
  Checkpoint c;
  char *said;
  must(open_quietly(&c, t, &said, &err), &err);
  if (!name_ends_with(c.path, name)) fail_msg("'%s' was opened", c.path);
  assert_int_equal(c.has_checksums, has_checksums);
  if (words ? !strstr(said, words) : said[0] != '\0') fail_msg("it said '%s'", said);
  checkpoint_close(&c);
}

// A newer one without them may have lost them to damage; where none has them, an older version made
// the run.
TEST(a_checkpoint_with_checksums_comes_first) {
  TinyTest *t = open_run();
  unlink(in(t, newest, CHECKSUMS_FILE).text);
  expect_opened(t, before, true, "step-00000200' is passed over: it has no checksums.json");
  assert_true(name_ends_with(tiny_newest(t->dir).text, before));
  Checkpoint c;
  must(tiny_open(&c, tiny_test_path(t, newest).text, true, &err), &err); // by its name
  checkpoint_close(&c);
  unlink(in(t, before, CHECKSUMS_FILE).text);
  expect_opened(t, newest, false, NULL);
  assert_true(name_ends_with(tiny_newest(t->dir).text, newest));
}

// Neither is one kept for its step alone while others are removed.
TEST(a_save_keeps_those_with_checksums) {
  TinyTest *t = open_run();
  unlink(in(t, newest, CHECKSUMS_FILE).text);
  tiny_test_save(t, 300, 3, 2);
  assert_true(tiny_test_has(t, before) && !tiny_test_has(t, newest));
}

// Without checksums.json, too, each file names its step.
TEST(files_of_two_steps_are_found) {
  static const char *const files[] = {WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE};
  for (int i = 0; i < 3; i++) {
    TinyTest *t = open_run();
    size_t bytes;
    char *other = file_text(in(t, before, files[i]).text, &bytes);
    unlink(in(t, newest, CHECKSUMS_FILE).text);
    unlink(in(t, before, CHECKSUMS_FILE).text);
    write_all(in(t, newest, files[i]).text, other, bytes);
    expect_damaged(t, files[i], "of step 100");
  }
}

// For weights alone the files that only a resumed run reads are not looked at.
TEST(weights_alone_may_stand_beside_damage) {
  static const char *const others[] = {OPTIMIZER_FILE, STATE_FILE, RUN_CONFIG_FILE};
  static const char *const read[] = {MODEL_CONFIG_FILE, CHECKSUMS_FILE, WEIGHTS_FILE};
  TinyTest *t = open_run();
  Checkpoint c;
  const PathText folder = tiny_test_path(t, newest);
  for (int i = 0; i < 3; i++) {
    write_all(in(t, newest, others[i]).text, "{", 1);
    must(tiny_open(&c, folder.text, false, &err), &err);
    checkpoint_close(&c);
    unlink(in(t, newest, others[i]).text);
    must(tiny_open(&c, folder.text, false, &err), &err);
    checkpoint_close(&c);
  }
  for (int i = 0; i < 3; i++) {
    const PathText path = in(t, newest, read[i]);
    size_t bytes;
    char *data = file_text(path.text, &bytes);
    data[bytes - 7] ^= 1;
    write_all(path.text, data, bytes);
    expect_error(tiny_open(&c, folder.text, false, &err), &err, path.text);
    data[bytes - 7] ^= 1;
    write_all(path.text, data, bytes);
  }
  unlink(in(t, newest, MODEL_CONFIG_FILE).text);
  expect_error(tiny_open(&c, folder.text, false, &err), &err, "has no config.json");
}

// Whole, finite, of the same step: another model.
TEST(weights_that_were_exchanged_after_the_check_are_not_loaded) {
  static const char *const names[] = {WEIGHTS_FILE, OPTIMIZER_FILE};
  for (int i = 0; i < 2; i++) {
    TinyTest *t = open_run();
    size_t bytes;
    Checkpoint c;
    must(tiny_open(&c, t->dir, true, &err), &err);
    tiny_test_save(t, 200, 3, 9); // its folder is another, the open files are the old ones
    must(checkpoint_load(&c, &t->loaded->llama, &err), &err);
    assert_int_equal(tiny_run_differs(t->loaded, 2), 0);
    checkpoint_close(&c);
    must(tiny_open(&c, t->dir, true, &err), &err);
    tiny_test_save(t, 300, 4, 9);
    char *other = file_text(in(t, "step-00000300", names[i]).text, &bytes);
    must(file_write(in(t, newest, names[i]).text, other, bytes, &err), &err); // in place
    expect_error(checkpoint_load(&c, &t->loaded->llama, &err), &err,
                 "was changed while it was read");
    checkpoint_close(&c);
  }
}

// What older versions wrote: without the checksum of itself.
TEST(checksums_without_their_own_are_read) {
  TinyTest *t = open_run();
  Checkpoint c;
  const PathText path = in(t, newest, CHECKSUMS_FILE);
  size_t bytes;
  char *text = file_text(path.text, &bytes);
  static const char own[] = ",\n  \"xxh3\": ";
  size_t at = 0;
  while (at < bytes && strncmp(text + at, own, sizeof own - 1) != 0) at++;
  if (at == bytes) fail_msg("'%s' has no checksum of its own", text);
  char *older = held_text("%.*s\n}\n", (int)at, text);
  write_all(path.text, older, strlen(older));
  must(tiny_open(&c, tiny_test_path(t, newest).text, true, &err), &err);
  assert_true(c.has_checksums);
  checkpoint_close(&c);
}
