// The loader: what an epoch holds, in which order, and that a cursor is all there is to resume.
#include <inttypes.h>

#include "tests/support/data_test.h"
#include "tests/support/test.h"

TEST(permute_is_a_bijection) {
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 64, 65, 100, 1000, 4096, 4097};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (uint64_t key = 0; key < 20; key++) {
      char *seen = held(xcalloc(sizes[s], 1));
      for (uint64_t i = 0; i < sizes[s]; i++) {
        const uint64_t p = permute(i, sizes[s], key);
        assert_true(p < sizes[s]);
        assert_int_equal(seen[p], 0);
        seen[p] = 1;
      }
    }
  }
}

TEST(permute_stays_in_range_for_huge_sets) {
  static const uint64_t sizes[] = {(uint64_t)1 << 32, ((uint64_t)1 << 40) + 1,
                                   ((uint64_t)1 << 62) + 1, UINT64_MAX};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (uint64_t i = 0; i < 100; i++) {
      assert_true(permute(i, sizes[s], 7) < sizes[s]);
      assert_true(permute(sizes[s] - 1 - i, sizes[s], 7) < sizes[s]);
    }
}

// Over the keys, every position is as likely as every other: chi-squared of n cells, n - 1 degrees
// of freedom, mean n - 1 and standard deviation sqrt(2 (n - 1)); 6 of them are the bound.
TEST(permute_spreads_positions_evenly_over_the_keys) {
  static const struct {
    uint64_t n;
    double bound;
  } cases[] = {{2, 1 + 6 * 1.42}, {3, 2 + 6 * 2.0}, {5, 4 + 6 * 2.83}, {100, 99 + 6 * 14.1}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const uint64_t n = cases[c].n;
    enum { PER_CELL = 1000 };
    int counts[100] = {0};
    for (uint64_t key = 0; key < n * PER_CELL; key++) counts[permute(1, n, key * 0x9e3779b9)]++;
    double chi2 = 0;
    for (uint64_t i = 0; i < n; i++)
      chi2 += (double)(counts[i] - PER_CELL) * (counts[i] - PER_CELL) / PER_CELL;
    printf("# permute, n = %" PRIu64 ": chi-squared %.1f, bound %.1f\n", n, chi2, cases[c].bound);
    if (!(chi2 <= cases[c].bound)) fail();
  }
}

TEST(permute_depends_on_the_key) {
  int same = 0, fixed = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    same += permute(i, 1000, 1) == permute(i, 1000, 2);
    fixed += permute(i, 1000, 1) == i;
  }
  printf("# of 1000 positions %d go to the same place under two keys, %d stay: bound 10\n", same,
         fixed);
  assert_true(same <= 10 && fixed <= 10);
}

// Draws an epoch, batch by batch, and counts how often each token is an input.
static void count_epoch(Loader *loader, int64_t B, int64_t T, int *inputs) {
  int32_t *tokens = held(xmalloc((size_t)(B * T) * sizeof *tokens));
  int32_t *targets = held(xmalloc((size_t)(B * T) * sizeof *targets));
  assert_int_equal(loader->epoch.windows % B, 0);
  for (int64_t drawn = 0; drawn < loader->epoch.windows; drawn += B) {
    next_batch(loader, tokens, targets);
    for (int64_t i = 0; i < B * T; i++) {
      assert_int_equal(targets[i], tokens[i] + 1);
      if (i % T) assert_int_equal(tokens[i], tokens[i - 1] + 1);
      inputs[tokens[i]]++;
    }
  }
}

// Tokens first ... last of a file, how many of them were inputs; each at most once.
static int inputs_between(const int *inputs, int first, int last) {
  int total = 0;
  for (int i = first; i < last; i++) {
    assert_in_range(inputs[i], 0, 1);
    total += inputs[i];
  }
  return total;
}

TEST(a_shuffled_epoch_visits_every_window_once) {
  const int64_t T = 7, B = 5;
  write_count(*state, "once-0.bin", 0, 7 * 31 + 4);    // 31 fit: 30
  write_count(*state, "once-1.bin", 1000, 7 * 16 + 1); // 16 fit: 15
  write_count(*state, "once-2.bin", 2000, 7);          // one too few for a window
  write_count(*state, "once-3.bin", 3000, 0);
  Loader *loader = open_or_fail(*state, "once-*.bin",
                                (LoaderConfig){.batch = B, .seq = T, .seed = 3, .shuffle = true});
  assert_int_equal(loader->file_count, 4);
  assert_int_equal(loader->epoch.tokens, 7 * 31 + 4 + 7 * 16 + 1 + 7);
  assert_int_equal(loader->epoch.windows, 45);
  for (int epoch = 0; epoch < 20; epoch++) {
    int inputs[4000] = {0};
    count_epoch(loader, B, T, inputs);
    assert_int_equal(inputs_between(inputs, 0, 1000), 30 * T);
    assert_int_equal(inputs_between(inputs, 1000, 2000), 15 * T);
    assert_int_equal(inputs_between(inputs, 2000, 4000), 0);
    assert_int_equal(loader->drawn.windows, 45 * (epoch + 1));
  }
}

// Each piece of a batch is of another window, and an epoch still has each token once.
TEST(pieces_of_a_batch_are_of_different_windows) {
  enum { T = 12, N = 4, ROWS = T / N, B = 5, BATCHES = 2 * N, WINDOWS = BATCHES * B };
  write_count(*state, "pieces.bin", 0, T * (WINDOWS + 1) + 1);
  Loader *loader = open_or_fail(*state, "pieces.bin",
                                (LoaderConfig){.batch = B, .seq = T, .seed = 3, .shuffle = true});
  int32_t tokens[BATCHES][B * T], targets[B * T], lowest = COUNTED_VOCAB;
  int inputs[T * (WINDOWS + 1) + 1] = {0};
  assert_int_equal(loader->epoch.windows, WINDOWS);
  loader->pieces = N;
  loader->piece_block = WINDOWS / 2;
  for (int batch = 0; batch < BATCHES; batch++) {
    next_batch(loader, tokens[batch], targets);
    for (int i = 0; i < B * T; i++) {
      const int32_t token = tokens[batch][i];
      assert_int_equal(targets[i], token + 1);
      if (i % ROWS) assert_int_equal(token, tokens[batch][i - 1] + 1);
      if (token < lowest) lowest = token;
      inputs[token]++;
    }
  }
  assert_int_equal(inputs_between(inputs, 0, T * (WINDOWS + 1) + 1), WINDOWS * T);
  for (int batch = 0; batch < BATCHES; batch++) {
    int of_window[WINDOWS] = {0};
    for (int i = 0; i < B * T; i += ROWS) of_window[(tokens[batch][i] - lowest) / T]++;
    for (int w = 0; w < WINDOWS; w++) assert_in_range(of_window[w], 0, 1);
  }
}

// While pieces grow, each source's own windows are read once, too.
TEST(pieces_of_several_sources_have_each_token_once) {
  enum { T = 12, B = 4, BLOCK = 16, WINDOWS = 3 * BLOCK, RARE = 1000 };
  write_count(*state, "often.bin", 0, T * (WINDOWS * 3 / 4 + 1) + 1);
  write_count(*state, "rare.bin", RARE, T * (WINDOWS / 4 + 1) + 1);
  const PathText list = path_text("[{\"path\": \"%s/often.bin\", \"weight\": 3}, "
                                  "{\"path\": \"%s/rare.bin\", \"weight\": 1}]",
                                  (const char *)*state, (const char *)*state);
  const LoaderConfig config = {.pattern = list.text,
                               .split = "train",
                               .batch = B,
                               .seq = T,
                               .vocab_size = COUNTED_VOCAB,
                               .seed = 3,
                               .shuffle = true};
  Loader *loader = open_loader(&config);
  int32_t tokens[B * T], targets[B * T];
  int inputs[COUNTED_VOCAB] = {0};
  loader->piece_block = BLOCK;
  for (int drawn = 0; drawn < WINDOWS; drawn += B) {
    loader->pieces = 4 >> drawn / BLOCK;
    next_batch(loader, tokens, targets);
    for (int i = 0; i < B * T; i++) inputs[tokens[i]]++;
  }
  assert_int_equal(inputs_between(inputs, 0, RARE), WINDOWS * 3 / 4 * T);
  assert_int_equal(inputs_between(inputs, RARE, COUNTED_VOCAB), WINDOWS / 4 * T);
}

// The lowest token of an epoch is the file's offset: every one in [0, T) turns up, and no other.
TEST(the_offset_of_an_epoch_covers_the_window) {
  enum { T = 8, WINDOWS = 10, EPOCHS = 200 };
  write_count(*state, "offset.bin", 0, T * (WINDOWS + 1) + 1);
  Loader *loader = open_or_fail(*state, "offset.bin",
                                (LoaderConfig){.batch = 1, .seq = T, .seed = 5, .shuffle = true});
  assert_int_equal(loader->epoch.windows, WINDOWS);
  int seen[T] = {0};
  int32_t tokens[T], targets[T];
  for (int epoch = 0; epoch < EPOCHS; epoch++) {
    int32_t lowest = COUNTED_VOCAB;
    for (int i = 0; i < WINDOWS; i++) {
      next_batch(loader, tokens, targets);
      if (tokens[0] < lowest) lowest = tokens[0];
    }
    assert_in_range(lowest, 0, T - 1);
    seen[lowest]++;
  }
  for (int i = 0; i < T; i++) assert_in_range(seen[i], 5, 60); // 25 on average
}

// Too short for T offsets: the window moves between the file's two ends, and no further.
TEST(a_single_window_moves_within_its_file) {
  enum { T = 8, EPOCHS = 200 };
  for (int32_t count = T + 1; count <= 2 * T; count++) {
    write_count(*state, "single.bin", 0, count);
    Loader *loader = open_or_fail(*state, "single.bin",
                                  (LoaderConfig){.batch = 1, .seq = T, .seed = 6, .shuffle = true});
    assert_int_equal(loader->epoch.windows, 1);
    int32_t tokens[T], targets[T], lowest = COUNTED_VOCAB, highest = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
      next_batch(loader, tokens, targets);
      if (tokens[0] < lowest) lowest = tokens[0];
      if (targets[T - 1] > highest) highest = targets[T - 1];
    }
    assert_int_equal(lowest, 0);
    assert_int_equal(highest, count - 1);
  }
}

TEST(an_epoch_has_its_own_order_and_a_seed_its_own_epochs) {
  enum { T = 4, B = 50 };
  write_count(*state, "order.bin", 0, T * (B + 1) + 1);
  int32_t first[B * T], second[B * T], other[B * T], again[B * T], targets[B * T];
  const LoaderConfig config = {.batch = B, .seq = T, .seed = 1, .shuffle = true};
  LoaderConfig config2 = config;
  config2.seed = 2;
  Loader *a = open_or_fail(*state, "order.bin", config);
  Loader *b = open_or_fail(*state, "order.bin", config2);
  Loader *c = open_or_fail(*state, "order.bin", config);
  next_batch(a, first, targets);
  next_batch(a, second, targets);
  next_batch(b, other, targets);
  next_batch(c, again, targets);
  assert_memory_equal(first, again, sizeof first);
  assert_memory_not_equal(first, second, sizeof first);
  assert_memory_not_equal(first, other, sizeof first);
  int in_place = 0;
  for (int i = 0; i < B; i++) in_place += first[i * T] / T == i;
  printf("# of %d windows %d are where the file has them: bound 10\n", B, in_place);
  assert_true(in_place <= 10);
}

// Batches of 4 out of 10 windows: the third spans two epochs.
TEST(a_sought_loader_gives_the_batches_of_one_that_ran) {
  enum { T = 5, B = 4, BATCHES = 23 };
  write_count(*state, "seek-0.bin", 0, T * 7 + 3);
  write_count(*state, "seek-1.bin", 500, T * 5 + 1);
  const LoaderConfig config = {.batch = B, .seq = T, .seed = 9, .shuffle = true};
  int32_t tokens[BATCHES][B * T], targets[BATCHES][B * T];
  Loader *loader = open_or_fail(*state, "seek-*.bin", config);
  assert_int_equal(loader->epoch.windows, 10);
  for (int i = 0; i < BATCHES; i++) next_batch(loader, tokens[i], targets[i]);
  for (int i = BATCHES - 1; i >= 0; i--) {
    int32_t again[B * T], again_targets[B * T];
    Loader *fresh = open_or_fail(*state, "seek-*.bin", config);
    seek(fresh, (uint64_t)(i * B));
    next_batch(fresh, again, again_targets);
    assert_memory_equal(tokens[i], again, sizeof again);
    assert_memory_equal(targets[i], again_targets, sizeof again);
    assert_int_equal(fresh->drawn.windows, (i + 1) * B);
  }
}

TEST(a_batch_spans_epochs_without_losing_a_window) {
  enum { T = 3, WINDOWS = 7, B = 5 };
  write_count(*state, "span.bin", 0, T * (WINDOWS + 1) + 1);
  Loader *loader = open_or_fail(*state, "span.bin",
                                (LoaderConfig){.batch = B, .seq = T, .seed = 4, .shuffle = true});
  int32_t tokens[WINDOWS * B * T], targets[B * T]; // B epochs are WINDOWS batches
  for (int i = 0; i < WINDOWS; i++) next_batch(loader, tokens + i * B * T, targets);
  for (int epoch = 0; epoch < B; epoch++) {
    int inputs[T * (WINDOWS + 1) + 1] = {0};
    for (int i = 0; i < WINDOWS * T; i++) inputs[tokens[epoch * WINDOWS * T + i]]++;
    assert_int_equal(inputs_between(inputs, 0, T * (WINDOWS + 1) + 1), WINDOWS * T);
  }
}

TEST(without_shuffle_windows_come_in_file_order) {
  enum { T = 4, B = 3 };
  write_count(*state, "plain-1.bin", 100, T * 2 + 1); // 2 windows; named after plain-0
  write_count(*state, "plain-0.bin", 0, T * 4 + 4);   // 4 windows and 3 tokens too few for a fifth
  Loader *loader =
      open_or_fail(*state, "plain-*.bin", (LoaderConfig){.batch = B, .seq = T, .seed = 8});
  assert_int_equal(loader->epoch.windows, 6);
  const int32_t starts[6] = {0, 4, 8, 12, 100, 104};
  for (int epoch = 0; epoch < 3; epoch++)
    for (int batch = 0; batch < 2; batch++) {
      int32_t tokens[B * T], targets[B * T];
      next_batch(loader, tokens, targets);
      for (int i = 0; i < B * T; i++) {
        assert_int_equal(tokens[i], starts[batch * B + i / T] + i % T);
        assert_int_equal(targets[i], tokens[i] + 1);
      }
    }
}

TEST(a_single_window_is_that_of_its_cursor) {
  enum { T = 4, B = 3, BATCHES = 4 };
  write_count(*state, "alone.bin", 0, T * 7 + 3);
  Loader *loader = open_or_fail(*state, "alone.bin",
                                (LoaderConfig){.batch = B, .seq = T, .seed = 8, .shuffle = true});
  int32_t tokens[B * T], targets[B * T], input[T], target[T];
  for (uint64_t cursor = 0; cursor < B * BATCHES; cursor++) {
    if (cursor % B == 0) next_batch(loader, tokens, targets);
    must(loader_window(loader, cursor, 0, &(Batch){.tokens = input, .targets = target}, &err),
         &err);
    assert_memory_equal(input, tokens + cursor % B * T, sizeof input);
    assert_memory_equal(target, targets + cursor % B * T, sizeof target);
    assert_int_equal(loader->drawn.windows, (cursor / B + 1) * B);
  }
}

// The sentence's number is exact: with it the loader opens, with one token less it does not.
static void check_least(const char *folder, int64_t B, int64_t T, bool shuffle, int32_t least) {
  const LoaderConfig config = {.batch = B, .seq = T, .shuffle = shuffle};
  Error err;
  write_count(folder, "least.bin", 0, least - 1);
  assert_null(try_open(folder, "least.bin", config, &err));
  char *needs = held_text("at least %d tokens in one file", least);
  char *has = held_text("has %d token", least - 1);
  assert_int_equal(strstr(err.text, "train.batch_size") != NULL, B > 1);
  assert_says(&err, needs);
  assert_says(&err, has);
  write_count(folder, "least.bin", 0, least);
  Loader *loader = open_or_fail(folder, "least.bin", config);
  assert_int_equal(loader->epoch.windows, B);
}

TEST(a_set_smaller_than_a_batch_says_how_many_tokens_it_needs) {
  check_least(*state, 1, 1, false, 2);
  check_least(*state, 1, 16, true, 17);
  check_least(*state, 2, 16, true, 49);
  check_least(*state, 12, 64, false, 12 * 64 + 1);
  check_least(*state, 12, 64, true, 13 * 64 + 1);
}

TEST(a_pattern_that_matches_nothing_suggests_prepare) {
  const LoaderConfig config = {.batch = 1, .seq = 1};
  expect_none(try_open(*state, "nothing-*.bin", config, &err), &err, "nothing-*.bin");
  assert_says(&err, "./prepare");
  expect_none(try_open(*state, "nothing.bin", config, &err), &err, "./prepare");
}

TEST(a_folder_stands_for_the_files_of_its_split) {
  LoaderConfig config = {.split = "other", .batch = 1, .seq = 1};
  expect_none(try_open(*state, ".", config, &err), &err, "./other-*.bin");
  write_count(*state, "split-00000.bin", 0, 10);
  write_count(*state, "split-00001.bin", 0, 20);
  config.split = "split";
  Loader *loader = open_or_fail(*state, ".", config);
  assert_int_equal(loader->file_count, 2);
  assert_int_equal(loader->epoch.tokens, 30);
}

// What exists is literal, in the name of a file or of any folder above it.
TEST(names_with_special_characters_are_found) {
  static const char *const names[] = {"odd[1]", "a*b", "why?", "back\\slash", "x[!a]"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    LoaderConfig config = {.split = "train", .batch = 1, .seq = 3};
    const PathText file = path_text("%s.bin", names[i]), folder = path_text("%s.d", names[i]),
                   inside = path_text("%s/train-00000.bin", folder.text);
    must(directory_create(path_text("%s/%s", (char *)*state, folder.text).text, &err), &err);
    write_count(*state, file.text, 0, 10);
    write_count(*state, inside.text, 0, 20);
    Loader *loader = open_or_fail(*state, file.text, config);
    assert_int_equal(loader->epoch.tokens, 10);
    loader = open_or_fail(*state, folder.text, config);
    assert_int_equal(loader->epoch.tokens, 20);
    loader = open_or_fail(*state, inside.text, config);
    assert_int_equal(loader->file_count, 1);
  }
  expect_none(
      try_open(*state, "odd[1].d", (LoaderConfig){.split = "no", .batch = 1, .seq = 1}, &err), &err,
      "odd[1].d/no-*.bin'");
}

TEST(a_faulty_file_among_good_ones_is_named) {
  write_count(*state, "mixed-0.bin", 0, 100);
  write_count(*state, "mixed-1.bin", 300, 100);
  const LoaderConfig config = {.batch = 1, .seq = 3, .vocab_size = 350};
  expect_none(try_open(*state, "mixed-*.bin", config, &err), &err,
              "mixed-1.bin' has the token id 399, but the model knows only 0 to 349");
  char *path = held_text("%s/mixed-2.bin", (char *)*state);
  put_file(path, "text");
  expect_none(try_open(*state, "mixed-[02].bin", config, &err), &err,
              "mixed-2.bin' is not a token file");
}

TEST_GROUP(make_folder, NULL);
