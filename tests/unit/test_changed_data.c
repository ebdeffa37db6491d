// Token files that change while a loader reads them: every batch has the tokens that the files had
// when the loader was opened, or there is an error that names the file.
#define _GNU_SOURCE // renameat2
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/support/data_test.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"

static void overwrite_bytes(const char *path, int64_t at, const void *bytes, size_t count) {
  const int fd = open(path, O_WRONLY);
  assert_true(fd >= 0 && pwrite(fd, bytes, count, at) == (ssize_t)count);
  close(fd);
}

// Puts this uint32 at that position of a file of wide tokens.
static void overwrite(const char *path, int64_t position, uint32_t id) {
  overwrite_bytes(path, 1024 + 4 * position, &id, sizeof id);
}

// ---- What a dataset may look like

enum { COUNT = 30000, LENGTH = 60, B = 2, T = 64, BATCHES = COUNT / B / T };
typedef enum Kind { BLOCKS, OLDER, BARE, MASKED, KINDS } Kind;
static const char *const kinds[KINDS] = {"version 2", "version 1", "no .docs", "a mask"};

// NAME.bin with documents of LENGTH, whose every 7th token does not count where there is a mask.
static PathText write_dataset(const char *folder, Kind kind) {
  const PathText path = path_text("%s/data.bin", folder), docs = path_text("%s/data.docs", folder);
  write_count(folder, "data.bin", 0, COUNT);
  unlink(docs.text);
  if (kind == BARE) return path;
  DocumentsWriter w = {0};
  uint8_t mask[LENGTH];
  for (int i = 0; i < LENGTH; i++) mask[i] = i % 7 != 0;
  for (int at = 0; at < COUNT; at += LENGTH)
    documents_add(&w, LENGTH, kind == MASKED ? mask : NULL, true);
  write_documents(&w, path.text);
  if (kind == OLDER) make_version_1(docs.text);
  return path;
}

static Loader *open_dataset(const char *folder, Kind kind) {
  return open_or_fail(
      folder, "data.bin",
      (LoaderConfig){.batch = B,
                     .seq = T,
                     .seed = 3,
                     .shuffle = true,
                     .documents = kind == MASKED ? DOCUMENTS_MASK : DOCUMENTS_JOIN});
}

// All batches of an epoch.
typedef struct EpochTokens {
  int32_t tokens[BATCHES][B * T], targets[BATCHES][B * T];
} EpochTokens;

static EpochTokens *read_epoch(const char *folder, Kind kind) {
  EpochTokens *e = held(xcalloc(1, sizeof *e));
  Loader *loader = open_dataset(folder, kind);
  Batch batch = make_batch(B * T);
  Error err;
  for (int i = 0; i < BATCHES; i++) {
    must(loader_next(loader, &batch, &err), &err);
    memcpy(e->tokens[i], batch.tokens, sizeof *e->tokens);
    memcpy(e->targets[i], batch.targets, sizeof *e->targets);
  }
  return e;
}

// A loader whose file is overwritten after `batches`. Whether an epoch found it.
static bool found_after(const char *folder, Kind kind, const EpochTokens *e, int batches,
                        const char *changed, int64_t at, uint8_t byte) {
  Loader *loader = open_dataset(folder, kind);
  Batch batch = make_batch(B * T);
  Error err = {""};
  int status = 0;
  for (int i = 0; i < BATCHES && status == 0; i++) {
    if (i == batches) overwrite_bytes(changed, at, &byte, 1);
    status = loader_next(loader, &batch, &err);
    if (status != 0) continue;
    assert_memory_equal(batch.tokens, e->tokens[i], sizeof *e->tokens);
    assert_memory_equal(batch.targets, e->targets[i], sizeof *e->targets);
  }
  if (status != 0) {
    assert_says(&err, changed);
    assert_says(&err, "was changed while it was in use, or is damaged");
  }
  let_go(loader);
  return status != 0;
}

TEST(a_batch_has_what_was_checked_or_there_is_an_error) {
  enum { TRIALS = 60 };
  for (Kind kind = 0; kind < KINDS; kind++) {
    const PathText path = write_dataset(*state, kind);
    EpochTokens *e = read_epoch(*state, kind);
    int found = 0;
    for (int i = 0; i < TRIALS; i++) {
      const int64_t at = 1024 + (int64_t)(rng_u64(kind, (uint64_t)i) % (4 * COUNT));
      const int batches = (int)(rng_u64(kind, (uint64_t)(TRIALS + i)) % BATCHES);
      const char was = file_text(path.text, NULL)[at];
      found += found_after(*state, kind, e, batches, path.text, at, (uint8_t)(was ^ 1 << i % 8));
      overwrite_bytes(path.text, at, &was, 1);
    }
    // In what is left of an epoch not every block is read again.
    printf("# %s: %d of %d changes came to light, and no wrong token to a batch; bound %d\n",
           kinds[kind], found, TRIALS, TRIALS / 2);
    assert_true(found >= TRIALS / 2);
  }
}

// It is in memory since the loader was opened.
TEST(a_mask_that_is_changed_later_is_never_used) {
  const PathText docs = path_text("%s/data.docs", (char *)*state);
  write_dataset(*state, MASKED);
  EpochTokens *e = read_epoch(*state, MASKED);
  const int64_t mask = DOCUMENTS_HEADER_BYTES + COUNT / LENGTH * 4;
  assert_false(found_after(*state, MASKED, e, 5, docs.text, mask + 1234, 0x55));
  assert_null(try_open(*state, "data.bin", (LoaderConfig){.batch = B, .seq = T}, &err));
  assert_says(&err, "data.docs' is damaged");
}

// With checksums of the blocks this is found where it is read; others are read whole at the start.
TEST(what_was_damaged_before_is_found) {
  const PathText path = write_dataset(*state, BLOCKS);
  EpochTokens *e = read_epoch(*state, BLOCKS);
  assert_true(found_after(*state, BLOCKS, e, 0, path.text, 1024 + 4 * 17, 0x77));
}

// In the middle of a run there may be none left.
TEST(a_read_needs_no_memory) {
  const PathText path = write_dataset(*state, MASKED);
  Loader *loader = open_dataset(*state, MASKED);
  Batch batch = make_batch(B * T);
  injected = (struct Injected){.fault = NO_MEMORY, .at = 1};
  must(loader_next(loader, &batch, &err), &err);
  assert_int_equal(truncate(path.text, 1024), 0);
  assert_int_equal(loader_next(loader, &batch, &err), -1);
  assert_int_equal(injected.calls, 0);
  injected = (struct Injected){.fault = NO_FAULT};
  assert_says(&err, "data.bin' became shorter while it was in use");
}

TEST(an_id_beyond_the_vocabulary_is_found_at_the_start) {
  const uint32_t ids[] = {COUNTED_VOCAB, 3000000000u};
  const char *const says[] = {"has the token id 100000, but the model knows only 0 to 99999",
                              "has the token id 3000000000, which no tokenizer has"};
  for (int i = 0; i < 2; i++) {
    const PathText path = write_dataset(*state, BARE);
    overwrite(path.text, 777, ids[i]);
    expect_none(try_open(*state, "data.bin", (LoaderConfig){.batch = B, .seq = T}, &err), &err,
                path.text);
    assert_says(&err, says[i]);
  }
  write_dataset(*state, BLOCKS); // whose file of documents has the largest id
  expect_none(try_open(*state, "data.bin",
                       (LoaderConfig){.batch = B, .seq = T, .vocab_size = COUNT - 1}, &err),
              &err, "has the token id 29999, but the model knows only 0 to 29998");
}

TEST(a_name_may_be_given_to_another_file) {
  int32_t tokens[8], targets[8];
  write_count(*state, "named.bin", 0, 9);
  write_count(*state, "another.bin", 50, 9);
  Loader *loader = open_or_fail(*state, "named.bin", (LoaderConfig){.batch = 1, .seq = 8});
  const PathText path = path_text("%s/named.bin", (char *)*state);
  must(path_rename(path_text("%s/another.bin", (char *)*state).text, path.text, &err), &err);
  next_batch(loader, tokens, targets);
  assert_int_equal(tokens[0], 0); // of the file that was opened
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
  assert_int_equal(loader->epoch.windows, FILES);
  setrlimit(RLIMIT_NOFILE, &before);
}

static uint64_t fingerprint_of(const char *folder, const char *name) {
  Loader *loader = open_or_fail(folder, name, (LoaderConfig){.batch = 1, .seq = 8});
  const uint64_t fingerprint = loader->fingerprint;
  return fingerprint;
}

static uint64_t checksum_of(const char *folder, const char *name) {
  Loader *loader = open_or_fail(folder, name, (LoaderConfig){.batch = 1, .seq = 8});
  const uint64_t checksum = loader->checksum;
  return checksum;
}

// The fingerprint of files without a checksum has samples of them alone.
TEST(the_checksum_has_every_token) {
  const PathText path = path_text("%s/sum.bin", (char *)*state);
  write_count(*state, "sum.bin", 0, 99000);
  const uint64_t print = fingerprint_of(*state, "sum.bin"), sum = checksum_of(*state, "sum.bin");
  overwrite(path.text, 30000, 5);
  assert_true(fingerprint_of(*state, "sum.bin") == print);
  assert_true(checksum_of(*state, "sum.bin") != sum && sum != 0);
}

TEST(the_fingerprint_is_the_same_with_older_docs) {
  write_dataset(*state, MASKED);
  Loader *two = open_dataset(*state, MASKED);
  make_version_1(path_text("%s/data.docs", (char *)*state).text);
  Loader *one = open_dataset(*state, MASKED);
  assert_true(one->fingerprint == two->fingerprint && one->checksum == two->checksum);
  assert_ptr_equal(loader_common(one, two), one->files);
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

TEST(empty_files_are_not_in_common) {
  Loader *loaders[2];
  for (int i = 0; i < 2; i++) {
    write_count(*state, path_text("side%d-0.bin", i).text, 7 * i, 100);
    write_count(*state, path_text("side%d-1.bin", i).text, 0, 0);
    loaders[i] = open_or_fail(*state, path_text("side%d-*.bin", i).text,
                              (LoaderConfig){.batch = 1, .seq = 8});
  }
  assert_null(loader_common(loaders[0], loaders[1]));
  assert_non_null(loader_common(loaders[0], loaders[0]));
}

// ---- Datasets that take each other's place, as ./prepare --force does it, while one is opened

// Two shards, whose tokens begin at `first`.
static void write_shards(const char *folder, int32_t first) {
  mkdir(folder, 0755);
  for (int i = 0; i < 2; i++) {
    const PathText name = path_text("train-0000%d.bin", i);
    DocumentsWriter w = {0};
    write_count(folder, name.text, first + 100 * i, 100);
    documents_add(&w, 100, NULL, true);
    write_documents(&w, path_text("%s/%s", folder, name.text).text);
  }
}

typedef struct Exchange {
  PathText a, b;
  atomic_bool end;
} Exchange;

static void *exchange(void *argument) {
  Exchange *e = argument;
  const struct timespec pause = {.tv_nsec = 100000};
  while (!e->end) {
    renameat2(AT_FDCWD, e->a.text, AT_FDCWD, e->b.text, RENAME_EXCHANGE);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

// Without a second look some openings had a shard of each, or the ends of the other's documents.
TEST(a_folder_is_opened_as_a_whole) {
  enum { OPENINGS = 2000 };
  Exchange e = {.a = path_text("%s/one", (char *)*state), .b = path_text("%s/two", (char *)*state)};
  pthread_t thread;
  int refused = 0;
  const LoaderConfig config = {.batch = 1, .seq = 8, .split = "train"};
  write_shards(e.a.text, 0);
  write_shards(e.b.text, 5000);
  assert_int_equal(pthread_create(&thread, NULL, exchange, &e), 0);
  for (int i = 0; i < OPENINGS; i++) {
    Loader *loader = try_open(*state, "one", config, &err);
    int32_t first[2];
    if (!loader) {
      assert_says(&err, "was replaced while it was opened");
      refused++;
      continue;
    }
    for (int f = 0; f < 2; f++)
      must(tokens_read(&loader->files[f], 0, 1, 0, &first[f], &err), &err);
    assert_int_equal(first[1] - first[0], 100);
    let_go(loader);
  }
  e.end = true;
  pthread_join(thread, NULL);
  printf("# %d of %d openings were refused\n", refused, OPENINGS);
  assert_true(refused < OPENINGS / 10);
}

TEST_GROUP(make_folder, NULL);
