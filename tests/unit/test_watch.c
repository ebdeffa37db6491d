// Token files that change, or turn out to be wrong, while a loader reads them.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "tests/support/data_test.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"

// Puts this uint32 at that position of a file of wide tokens.
static void overwrite(const char *path, int64_t position, uint32_t id) {
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, 1024 + 4 * (long)position, SEEK_SET), 0);
  assert_int_equal(fwrite(&id, sizeof id, 1, file), 1);
  assert_int_equal(fclose(file), 0);
}

// Draws batches of 2 x 8 until one is refused; every token before is below COUNTED_VOCAB.
static void draw_until_refused(Loader *loader, Error *err) {
  int32_t tokens[16], targets[16];
  Batch batch = {.tokens = tokens, .targets = targets};
  int64_t batches = 0;
  while (loader_next(loader, &batch, err) == 0) {
    for (int i = 0; i < 16; i++)
      assert_true(tokens[i] < COUNTED_VOCAB && targets[i] < COUNTED_VOCAB);
    assert_true(++batches <= loader->windows);
  }
}

TEST(an_id_beyond_the_vocabulary_is_never_given_out) {
  const LoaderConfig config = {.batch = 2, .seq = 8, .seed = 3, .shuffle = true};
  const PathText path = path_text("%s/%s", (char *)*state, "overwritten.bin");
  const uint32_t ids[] = {COUNTED_VOCAB, 3000000000u};
  const char *const says[] = {
      "'%s' has the token id 100000 at position 777, but the model knows "
      "only 0 to 99999: set model.vocab_size",
      "'%s' has the token id 3000000000 at position 777, which no tokenizer "
      "has: the file is damaged"};
  for (int i = 0; i < 2; i++) {
    write_count(*state, "overwritten.bin", 0, 1000);
    Loader *loader = open_or_fail(*state, "overwritten.bin", config);
    overwrite(path.text, 777, ids[i]);
    draw_until_refused(loader, &err);
    char *words = xasprintf(says[i], path.text);
    assert_says(&err, words);
    free(words);
    loader_close(loader);
  }
}

TEST(a_file_cut_under_the_loader_is_an_error) {
  const LoaderConfig config = {.batch = 2, .seq = 8, .seed = 3, .shuffle = true};
  const PathText path = path_text("%s/%s", (char *)*state, "cut.bin");
  write_count(*state, "cut.bin", 0, 1000);
  Loader *loader = open_or_fail(*state, "cut.bin", config);
  assert_int_equal(truncate(path.text, 1024 + 4 * 500 + 2), 0);
  draw_until_refused(loader, &err);
  assert_says(&err, "cut.bin' became shorter while it was in use");
  loader_close(loader);
}

static void wait_until_refused(Loader *loader, Error *err) {
  const double start = now_ms();
  while (loader_look(loader, err) == 0) {
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (now_ms() - start > 300000) fail_msg("nothing was found");
  }
}

// No batch is read after the change: the check alone finds it. A file that was only touched is not
// changed.
TEST(files_that_were_changed_are_found) {
  const LoaderConfig config = {.batch = 2, .seq = 8};
  write_count(*state, "touched.bin", 0, 1000);
  write_count(*state, "changed.bin", 0, 1000);
  write_count(*state, "header.bin", 0, 1000);
  Loader *touched = open_or_fail(*state, "touched.bin", config),
         *changed = open_or_fail(*state, "changed.bin", config),
         *header = open_or_fail(*state, "header.bin", config);
  const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  assert_int_equal(utimensat(AT_FDCWD, path_text("%s/touched.bin", (char *)*state).text, now, 0),
                   0);
  overwrite(path_text("%s/changed.bin", (char *)*state).text, 500, 7);
  overwrite(path_text("%s/header.bin", (char *)*state).text, 2 - 256, 999);
  wait_until_refused(changed, &err);
  assert_says(&err, "changed.bin' was changed while it was in use: its tokens differ");
  wait_until_refused(header, &err);
  assert_says(&err, "header.bin' was changed while it was in use: its size or its header");
  assert_int_equal(loader_look(touched, &err), 0);
  loader_close(touched);
  loader_close(changed);
  loader_close(header);
}

// In the middle of a run there may be none left.
TEST(a_look_needs_no_memory) {
  write_count(*state, "looked-at.bin", 0, 1000);
  Loader *loader = open_or_fail(*state, "looked-at.bin", (LoaderConfig){.batch = 2, .seq = 8});
  overwrite(path_text("%s/looked-at.bin", (char *)*state).text, 500, 7);
  injected = (struct Injected){.fault = NO_MEMORY, .at = 1};
  wait_until_refused(loader, &err);
  assert_int_equal(injected.calls, 0);
  injected = (struct Injected){.fault = NO_FAULT};
  assert_says(&err, "looked-at.bin' was changed while it was in use: its tokens differ");
  loader_close(loader);
}

// 0.8 GB, nearly all of them a hole: opening takes half a second, whatever the file's size, and the
// id behind the hole is found while the loader is open.
TEST(the_rest_of_a_large_file_is_checked_by_and_by) {
  SECOND_TIER_ONLY();
  enum { COUNT = 200000000 };
  const PathText path = path_text("%s/%s", (char *)*state, "large.bin");
  write_count(*state, "large.bin", 0, 1);
  const int32_t count = COUNT;
  overwrite(path.text, 2 - 256, (uint32_t)count);
  overwrite(path.text, COUNT - 1, COUNTED_VOCAB);
  const double start = now_ms();
  Loader *loader = try_open(*state, "large.bin", (LoaderConfig){.batch = 2, .seq = 8}, &err);
  const double ms = now_ms() - start;
  printf("# opening took %.0f ms of 500 to check the tokens; bound 1500\n", ms);
  assert_true(ms < 1500);
  if (loader) wait_until_refused(loader, &err); // else half a second was enough
  assert_says(&err, "large.bin' has the token id 100000 at position 199999999");
  loader_close(loader);
}

TEST(more_files_than_a_process_may_open_at_first_are_opened) {
  enum { FILES = 300 };
  char name[32];
  struct rlimit before, limit;
  for (int i = 0; i < FILES; i++) {
    snprintf(name, sizeof name, "many-%03d.bin", i);
    write_count(*state, name, i, 9);
  }
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  limit = before;
  limit.rlim_cur = FILES / 2;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  Loader *loader = open_or_fail(*state, "many-*.bin", (LoaderConfig){.batch = 1, .seq = 8});
  assert_int_equal(loader->windows, FILES);
  loader_close(loader);
  setrlimit(RLIMIT_NOFILE, &before);
}

static uint64_t fingerprint_of(const char *folder, const char *name) {
  Loader *loader = open_or_fail(folder, name, (LoaderConfig){.batch = 1, .seq = 8});
  const uint64_t fingerprint = loader->fingerprint;
  loader_close(loader);
  return fingerprint;
}

TEST(the_fingerprint_is_of_what_files_hold) {
  const char *folder = *state;
  write_count(folder, "print-0.bin", 0, 99000);
  write_count(folder, "print-1.bin", 5, 99000);
  const uint64_t both = fingerprint_of(folder, "print-*.bin");
  write_count(folder, "moved-a.bin", 0, 99000);
  write_count(folder, "moved-b.bin", 5, 99000);
  assert_true(fingerprint_of(folder, "moved-*.bin") == both);
  assert_true(fingerprint_of(folder, "print-0.bin") != both);
  for (int i = 0; i < 3; i++) { // in each of its three samples
    overwrite(path_text("%s/moved-b.bin", folder).text, i == 2 ? 98999 : i * 49500, 77777);
    assert_true(fingerprint_of(folder, "moved-*.bin") != both);
    write_count(folder, "moved-b.bin", 5, 99000);
  }
  write_count(folder, "moved-a.bin", 5, 99000);
  write_count(folder, "moved-b.bin", 0, 99000);
  assert_true(fingerprint_of(folder, "moved-*.bin") != both); // the order is another
}

// ---- The file of documents' ends

// A file of 1000 tokens in documents of `length`, or with a mask.
static PathText write_ends(const char *folder, const char *name, int length, const uint8_t *mask) {
  const PathText path = path_text("%s/%s.bin", folder, name);
  DocumentsWriter w = {0};
  Error err;
  for (int at = 0; at < 1000; at += length)
    documents_add(&w, 1000 - at < length ? 1000 - at : length, mask ? mask + at : NULL, true);
  if (documents_write(&w, path.text, 0, &err) != 0) fail_msg("%s", err.text);
  documents_writer_free(&w);
  return path_text("%s/%s.docs", folder, name);
}

TEST(ends_that_were_changed_are_found) {
  const LoaderConfig config = {.batch = 2, .seq = 8};
  static const char *const names[] = {"same", "other", "cut", "flipped"};
  static const char *const said[] = {NULL, "other.docs' was changed while it was in use",
                                     "cut.docs' is cut short", "flipped.docs' is damaged"};
  PathText ends[4];
  Loader *loaders[4];
  for (int i = 0; i < 4; i++) {
    const PathText name = path_text("%s.bin", names[i]);
    write_count(*state, name.text, 0, 1000);
    ends[i] = write_ends(*state, names[i], 50, NULL);
    loaders[i] = open_or_fail(*state, name.text, config);
  }
  write_ends(*state, "same", 50, NULL); // written again, as it was
  write_ends(*state, "other", 40, NULL);
  assert_int_equal(truncate(ends[2].text, 60), 0);
  const int fd = open(ends[3].text, O_WRONLY);
  assert_int_equal(pwrite(fd, "\xff", 1, 60), 1);
  close(fd);
  for (int i = 1; i < 4; i++) {
    wait_until_refused(loaders[i], &err);
    assert_says(&err, said[i]);
  }
  assert_int_equal(loader_look(loaders[0], &err), 0);
  for (int i = 0; i < 4; i++) loader_close(loaders[i]);
}

TEST(ends_that_were_replaced_are_told_and_the_old_ones_read_on) {
  write_count(*state, "kept.bin", 0, 1000);
  const PathText path = write_ends(*state, "kept", 50, NULL);
  Loader *loader = open_or_fail(*state, "kept.bin", (LoaderConfig){.batch = 2, .seq = 8});
  const uint64_t before = loader->fingerprint;
  assert_null(loader_replaced(loader));
  const PathText other = write_ends(*state, "new", 40, NULL);
  assert_int_equal(path_rename(other.text, path.text, &err), 0);
  assert_string_equal(loader_replaced(loader), loader->files[0].path);
  assert_int_equal(loader_look(loader, &err), 0);
  loader_close(loader);
  assert_true(fingerprint_of(*state, "kept.bin") != before); // other windows
}

TEST(a_name_that_belongs_to_another_file_is_told) {
  int32_t tokens[8], targets[8];
  write_count(*state, "named.bin", 0, 9);
  write_count(*state, "another.bin", 50, 9);
  Loader *loader = open_or_fail(*state, "named.bin", (LoaderConfig){.batch = 1, .seq = 8});
  const PathText path = path_text("%s/named.bin", (char *)*state);
  assert_null(loader_replaced(loader));
  assert_int_equal(path_rename(path_text("%s/another.bin", (char *)*state).text, path.text, &err),
                   0);
  assert_string_equal(loader_replaced(loader), path.text);
  next_batch(loader, tokens, targets);
  assert_int_equal(tokens[0], 0); // of the file that was opened
  assert_int_equal(unlink(path.text), 0);
  assert_string_equal(loader_replaced(loader), path.text);
  loader_close(loader);
}

TEST_GROUP(make_folder, remove_folder);
