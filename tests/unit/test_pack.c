// Windows of whole documents: every token but a document's first is a target once, in its own
// document, and the windows are as full as those of first fit.
#include "base/rng.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

// Files whose tokens count on from `first`, with documents of these lengths. mask: [all tokens] or
// NULL.
static void write_lengths(const char *folder, const char *name, int32_t first, int count,
                          const int32_t *lengths, const uint8_t *mask) {
  const PathText path = path_text("%s/%s", folder, name);
  int32_t tokens = 0;
  DocumentsWriter w = {0};
  for (int i = 0; i < count; i++) {
    documents_add(&w, lengths[i], mask ? mask + tokens : NULL, true);
    tokens += lengths[i];
  }
  write_count(folder, name, first, tokens);
  write_documents(&w, path.text);
}

enum { DOCUMENTS = 400 };

// Many short ones, a few of thousands of tokens.
static int64_t draw_lengths(uint64_t key, int32_t *lengths) {
  int64_t tokens = 0;
  for (int i = 0; i < DOCUMENTS; i++) {
    const double u = rng_uniform(key, (uint64_t)i);
    lengths[i] = 1 + (int32_t)(u * u * u * u * 900);
    tokens += lengths[i];
  }
  return tokens;
}

// ---- An epoch

typedef struct Seen {
  int targets[COUNTED_VOCAB]; // how often each token was one
  int64_t padding, places, longest, most;
} Seen;

static void see_document(const Batch *batch, int64_t at, int64_t rows, Seen *seen) {
  const bool padding = batch->tokens[at] == 0;
  for (int64_t i = at; i < at + rows; i++) {
    if (padding != (batch->tokens[i] == 0)) fail_msg("a document with padding");
    if (!padding && i > at) assert_int_equal(batch->tokens[i], batch->tokens[i - 1] + 1);
    if (padding) assert_int_equal(batch->targets[i], NO_TARGET);
    if (batch->targets[i] == NO_TARGET) continue;
    assert_int_equal(batch->targets[i], batch->tokens[i] + 1);
    seen->targets[batch->targets[i]]++;
  }
  if (padding) seen->padding += rows;
  if (rows > seen->longest) seen->longest = rows;
}

static void see_epoch(Loader *loader, Seen *seen) {
  const int64_t B = loader->config.batch, T = loader->config.seq;
  Batch batch = make_batch(B * T);
  memset(seen, 0, sizeof *seen);
  assert_int_equal(loader->epoch.windows % B, 0);
  for (int64_t drawn = 0; drawn < loader->epoch.windows; drawn += B) {
    Error err;
    must(loader_next(loader, &batch, &err), &err);
    int64_t at = 0, counted = 0, in_window = 0;
    for (int64_t i = 0; i < batch.documents; at += batch.lengths[i++]) {
      if (at % T == 0) in_window = 0;
      if (++in_window > seen->most) seen->most = in_window;
      assert_true(batch.lengths[i] > 0 && at % T + batch.lengths[i] <= T);
      see_document(&batch, at, batch.lengths[i], seen);
    }
    assert_int_equal(at, B * T);
    for (int64_t i = 0; i < B * T; i++) counted += batch.targets[i] != NO_TARGET;
    assert_int_equal(batch.counted, counted);
    seen->places += batch.documents;
  }
}

static Loader *open_packed(const char *folder, const char *name, int64_t batch, int64_t T) {
  return open_or_fail(folder, name,
                      (LoaderConfig){.batch = batch, .seq = T, .seed = 3, .shuffle = true});
}

TEST(every_token_but_a_documents_first_is_a_target_once_an_epoch) {
  Seen *seen = held(xmalloc(sizeof *seen));
  int32_t lengths[DOCUMENTS];
  assert_true(draw_lengths(2, lengths) < COUNTED_VOCAB - 1);
  write_lengths(*state, "epoch.bin", 1, DOCUMENTS, lengths, NULL);
  for (int64_t T = 1; T <= 1024; T *= 4) {
    Loader *loader = open_packed(*state, "epoch.bin", 1, T);
    assert_true(loader_packs(loader));
    for (int epoch = 0; epoch < 2; epoch++) {
      see_epoch(loader, seen);
      int64_t at = 1;
      for (int i = 0; i < DOCUMENTS; at += lengths[i++])
        for (int64_t t = at; t < at + lengths[i]; t++)
          if (seen->targets[t] != (t > at)) fail_msg("token %d: %d", (int)t, seen->targets[t]);
      assert_int_equal(
          seen->places,
          (int64_t)(loader->epoch.mean_documents * (double)loader->epoch.windows + 0.5));
      assert_true(seen->most <= loader->epoch.most_documents &&
                  seen->longest == loader->epoch.longest);
      const double padding = (double)seen->padding / (double)(loader->epoch.windows * T);
      assert_true(fabs(padding - loader->epoch.padding) < 1e-12);
    }
    printf("# T %d: %d windows, padding %.3f %%, %.2f documents a window, %d at most\n", (int)T,
           (int)loader->epoch.windows, 100 * loader->epoch.padding, loader->epoch.mean_documents,
           (int)loader->epoch.most_documents);
  }
}

TEST(windows_are_as_full_as_those_of_first_fit) {
  enum { T = 128 };
  int32_t lengths[DOCUMENTS], left[DOCUMENTS * 10];
  for (uint64_t key = 0; key < 20; key++) {
    draw_lengths(key, lengths);
    write_lengths(*state, "fit.bin", 1, DOCUMENTS, lengths, NULL);
    int64_t windows = 0;
    for (int i = 0; i < DOCUMENTS; i++)
      for (int32_t rows = lengths[i] - 1; rows > 0; rows -= T) {
        const int32_t piece = rows < T ? rows : T;
        int64_t w = 0;
        while (w < windows && left[w] < piece) w++;
        if (w == windows) left[windows++] = T;
        left[w] -= piece;
      }
    Loader *loader = open_packed(*state, "fit.bin", 1, T);
    assert_true(loader->epoch.windows <= windows);
    if (key == 0)
      printf("# %d windows, first fit has %d\n", (int)loader->epoch.windows, (int)windows);
  }
}

// Rows 6, 5, 3, 2, 1 of T = 8: {6, 2}, {5, 3}, {1 and 7 of padding}; in each by falling size.
TEST(a_small_packing_is_as_by_hand) {
  enum { T = 8 };
  const int32_t lengths[6] = {4, 7, 1, 2, 3, 6}; // rows 3 6 0 1 2 5, first tokens 1 5 12 13 15 18
  const int32_t firsts[3][2] = {{5, 15}, {18, 1}, {13, 0}}, rows[3][2] = {{6, 2}, {5, 3}, {1, 7}};
  write_lengths(*state, "hand.bin", 1, 6, lengths, NULL);
  Loader *loader = open_or_fail(*state, "hand.bin", (LoaderConfig){.batch = 3, .seq = T});
  Batch batch = make_batch(3 * T);
  must(loader_next(loader, &batch, &err), &err);
  assert_int_equal(batch.documents, 6);
  for (int w = 0; w < 3; w++)
    for (int i = 0; i < 2; i++) {
      assert_int_equal(batch.lengths[2 * w + i], rows[w][i]);
      assert_int_equal(batch.tokens[w * T + (i ? rows[w][0] : 0)], firsts[w][i]);
    }
  assert_int_equal(batch.counted, 17);
  assert_int_equal(loader->epoch.documents, 5);
  assert_int_equal(loader->epoch.cut, 0);
  assert_int_equal(loader->epoch.longest, 7);
  assert_int_equal(loader->epoch.most_documents,
                   3); // one window has padding, and one two documents
}

TEST(a_sought_packed_loader_gives_the_batches_of_one_that_ran) {
  enum { T = 64, B = 4, BATCHES = 40 };
  int32_t lengths[DOCUMENTS];
  draw_lengths(5, lengths);
  write_lengths(*state, "seek.bin", 1, 15, lengths, NULL);
  Loader *loader = open_packed(*state, "seek.bin", B, T);
  Batch batches[BATCHES], again = make_batch(B * T);
  for (int i = 0; i < BATCHES; i++) {
    batches[i] = make_batch(B * T);
    must(loader_next(loader, &batches[i], &err), &err);
  }
  assert_true(loader->epoch.windows < B * BATCHES / 2); // several epochs
  for (int i = BATCHES - 1; i >= 0; i--) {
    Loader *fresh = open_packed(*state, "seek.bin", B, T);
    seek(fresh, (uint64_t)(i * B));
    must(loader_next(fresh, &again, &err), &err);
    assert_memory_equal(again.tokens, batches[i].tokens, B * T * sizeof(int32_t));
    assert_memory_equal(again.targets, batches[i].targets, B * T * sizeof(int32_t));
    assert_int_equal(again.documents, batches[i].documents);
    assert_memory_equal(again.lengths, batches[i].lengths,
                        (size_t)again.documents * sizeof(int32_t));
  }
}

// ---- The mask

TEST(tokens_that_do_not_count_are_no_targets) {
  enum { T = 16 };
  int32_t lengths[DOCUMENTS];
  const int64_t tokens = draw_lengths(7, lengths);
  uint8_t *mask = held(xcalloc((size_t)tokens, 1));
  for (int64_t i = 0; i < tokens; i++) mask[i] = rng_u64(1, (uint64_t)(i / 30)) % 3 == 0;
  Seen *seen = held(xmalloc(sizeof *seen));
  write_lengths(*state, "mask.bin", 1, DOCUMENTS, lengths, mask);
  Loader *loader = open_packed(*state, "mask.bin", 1, T);
  see_epoch(loader, seen);
  int64_t at = 0, wrong = 0;
  for (int i = 0; i < DOCUMENTS; at += lengths[i++])
    for (int64_t t = at; t < at + lengths[i]; t++)
      wrong += seen->targets[t + 1] != (t > at && mask[t]);
  assert_int_equal(wrong, 0);
  Batch batch = make_batch(T); // none without a target
  for (uint64_t w = 0; w < (uint64_t)loader->epoch.windows; w++) {
    batch_clear(&batch);
    must(loader_window(loader, w, 0, &batch, &err), &err);
    assert_true(batch.counted > 0);
  }
}

TEST(joined_windows_have_the_mask_too) {
  enum { T = 4 };
  const int32_t lengths[2] = {6, 7};
  const uint8_t mask[13] = {1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1};
  write_lengths(*state, "joined.bin", 1, 2, lengths, mask);
  const LoaderConfig config = {.batch = 3, .seq = T, .documents = DOCUMENTS_JOIN};
  Loader *loader = open_or_fail(*state, "joined.bin", config);
  Batch batch = make_batch(3 * T);
  must(loader_next(loader, &batch, &err), &err);
  assert_int_equal(batch.documents, 0);
  for (int i = 0; i < 3 * T; i++) {
    assert_int_equal(batch.tokens[i], i + 1);
    assert_int_equal(batch.targets[i], mask[i + 1] ? i + 2 : NO_TARGET);
  }
  assert_int_equal(batch.counted, 8);
}

// ---- Windows of one piece

// A mask in which long stretches do not count, as in conversations with short answers.
static uint8_t *sparse_mask(int64_t tokens) {
  uint8_t *mask = held(xcalloc((size_t)tokens, 1));
  for (int64_t i = 0; i < tokens; i++) mask[i] = rng_u64(1, (uint64_t)(i / 30)) % 8 == 0;
  return mask;
}

// Every window of an epoch has a target, every token that counts is one once, and the loader knows
// how many they are. first: tokens[i] begins a document, or a file.
static void check_counted(Loader *loader, int64_t tokens, const uint8_t *mask, const bool *first) {
  const int64_t T = loader->config.seq;
  uint8_t *seen = held(xcalloc((size_t)tokens + 1, 1));
  int64_t targets = 0, counted = 0;
  Batch batch = make_batch(T);
  Error err;
  for (uint64_t w = 0; w < (uint64_t)loader->epoch.windows; w++) {
    batch_clear(&batch);
    must(loader_window(loader, w, 0, &batch, &err), &err);
    assert_true(batch.counted > 0);
    if (!loader_packs(loader)) assert_int_equal(batch.documents, 0);
    for (int64_t i = 0; i < T; i++)
      if (batch.targets[i] != NO_TARGET) assert_int_equal(seen[batch.targets[i]]++, 0);
  }
  for (int64_t i = 0; i < tokens; i++) {
    targets += !first[i];
    counted += !first[i] && mask[i];
    if (seen[i + 1] != (!first[i] && mask[i])) fail_msg("token %d", (int)i);
  }
  assert_int_equal(loader->epoch.targets, targets);
  assert_int_equal(loader->epoch.counted, counted);
}

TEST(every_window_has_a_token_that_counts) {
  static const LoaderConfig configs[] = {
      {.documents = DOCUMENTS_MASK, .shuffle = true},
      {.documents = DOCUMENTS_MASK, .shuffle = true, .alone = true},
      {.documents = DOCUMENTS_JOIN, .shuffle = true},
      {.documents = DOCUMENTS_JOIN, .whole = true}};
  int32_t lengths[DOCUMENTS];
  const int64_t tokens = draw_lengths(11, lengths);
  uint8_t *mask = sparse_mask(tokens);
  bool *first = held(xcalloc((size_t)tokens, 1));
  write_lengths(*state, "sparse.bin", 1, DOCUMENTS, lengths, mask);
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    LoaderConfig config = configs[i];
    const bool join = config.documents == DOCUMENTS_JOIN;
    memset(first, 0, (size_t)tokens);
    first[0] = true;
    for (int64_t d = 0, at = 0; d < DOCUMENTS && !join; at += lengths[d++]) first[at] = true;
    config.batch = 1, config.seq = 16, config.seed = 3;
    Loader *loader = open_or_fail(*state, "sparse.bin", config);
    assert_int_equal(loader_packs(loader), !join && !config.alone);
    assert_int_equal(loader->apart, !join);
    check_counted(loader, tokens, mask, first);
    printf("# kind %d: %d windows\n", (int)i, (int)loader->epoch.windows);
  }
}

// Every token of documents without a mask counts, and the windows are not longer than needed.
TEST(whole_files_are_windows_to_their_ends) {
  int32_t lengths[DOCUMENTS], longest = 0;
  int64_t tokens = 0;
  draw_lengths(3, lengths);
  for (int i = 0; i < DOCUMENTS; i++) {
    lengths[i] = 1 + lengths[i] % 40;
    tokens += lengths[i];
    if (lengths[i] > longest) longest = lengths[i];
  }
  uint8_t *mask = held(xcalloc((size_t)tokens, 1));
  bool *first = held(xcalloc((size_t)tokens, 1));
  memset(mask, 1, (size_t)tokens);
  write_lengths(*state, "whole.bin", 1, DOCUMENTS, lengths, NULL);
  LoaderConfig config = {.batch = 1, .seq = 100, .whole = true, .documents = DOCUMENTS_JOIN};
  Loader *joined = open_or_fail(*state, "whole.bin", config);
  first[0] = true;
  assert_int_equal(joined->config.seq, 100);
  assert_int_equal(joined->epoch.windows, (tokens - 1 + 99) / 100);
  check_counted(joined, tokens, mask, first);
  config.documents = DOCUMENTS_MASK, config.alone = true;
  Loader *alone = open_or_fail(*state, "whole.bin", config);
  for (int64_t d = 0, at = 0; d < DOCUMENTS; at += lengths[d++]) first[at] = true;
  assert_int_equal(alone->config.seq, longest - 1);
  check_counted(alone, tokens, mask, first);
}

TEST(data_in_which_no_token_counts_are_refused) {
  const int32_t lengths[2] = {6, 7};
  uint8_t mask[13] = {1, 0, 0, 0, 0, 0, 1}; // each document's first, which is no target
  write_lengths(*state, "none.bin", 1, 2, lengths, mask);
  expect_none(try_open(*state, "none.bin", (LoaderConfig){.batch = 1, .seq = 4}, &err), &err,
              "none.bin' has no token that counts as a target: its mask leaves out all 13");
  mask[6] = 0;
  write_lengths(*state, "none.bin", 1, 2, lengths, mask);
  const LoaderConfig join = {.batch = 1, .seq = 4, .documents = DOCUMENTS_JOIN};
  expect_none(try_open(*state, "none.bin", join, &err), &err,
              "none.bin' has no token that counts as a target: its mask leaves out all 13");
}

// Attention is planned for documents of at most `longest` rows, padding included.
TEST(padding_is_no_longer_than_the_longest_document) {
  enum { T = 32, B = 3 };
  int32_t lengths[DOCUMENTS];
  for (int i = 0; i < DOCUMENTS; i++) lengths[i] = 11;
  write_lengths(*state, "short.bin", 1, 9, lengths, NULL);
  Loader *loader = open_packed(*state, "short.bin", 1, T);
  assert_int_equal(loader->epoch.longest, 10);
  Batch batch = make_batch(B * T);
  must(loader_window(loader, 0, 0, &batch, &err), &err);
  batch_pad(&batch, T, (B - 1) * T, loader->epoch.longest);
  int64_t rows = 0;
  for (int64_t i = 0; i < batch.documents; rows += batch.lengths[i++])
    assert_in_range(batch.lengths[i], 1, loader->epoch.longest);
  assert_int_equal(rows, B * T);
}

TEST(without_ends_windows_are_joined) {
  write_count(*state, "plain.bin", 0, 100);
  Loader *masked = open_packed(*state, "plain.bin", 2, 8);
  assert_false(loader_packs(masked));
  assert_int_equal(masked->epoch.longest, 8);
  assert_int_equal(masked->epoch.most_documents, 1);
}

TEST(documents_of_one_token_have_nothing_to_predict) {
  const int32_t lengths[3] = {1, 1, 1};
  write_lengths(*state, "ones.bin", 1, 3, lengths, NULL);
  expect_none(try_open(*state, "ones.bin", (LoaderConfig){.batch = 1, .seq = 4}, &err), &err,
              "ones.bin' has no token to predict: a document needs two tokens or more");
}

TEST_GROUP(make_folder, NULL);
