// Which windows a validation reads, how sure their mean is said to be, and what attention it needs.
#include <unistd.h>

#include "base/rng.h"
#include "model/run/run.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"
#include "tests/support/tiny_training.h"

static const struct {
  int64_t split, batch, eval_batches;
} shapes[] = {{1, 1, 1},     {1, 8, 20},      {7, 8, 20},  {160, 8, 20}, {161, 8, 20},
              {159, 8, 20},  {13, 5, 0},      {13, 5, 1},  {10, 4, 2},   {1000, 1, 999},
              {7000, 8, 20}, {100000, 6, 40}, {13, 40, 0}, {41, 40, 1},  {99999, 3, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static ValWindows windows_of(int shape) {
  return val_windows(shapes[shape].split, shapes[shape].batch, shapes[shape].eval_batches);
}

TEST(every_window_comes_at_most_once) {
  for (int s = 0; s < SHAPES; s++) {
    const ValWindows w = windows_of(s);
    char *seen = held(xcalloc((size_t)w.split, 1));
    int64_t total = 0;
    for (int64_t i = 0; i < w.batches; i++) {
      const int64_t windows = val_batch_size(&w, i);
      assert_in_range(windows, 1, w.batch);
      total += windows;
      for (int64_t row = 0; row < windows; row++) {
        const int64_t window = val_window(&w, i, row);
        assert_in_range(window, 0, w.split - 1);
        assert_int_equal(seen[window]++, 0);
      }
    }
    assert_int_equal(total, w.read);
    const int64_t asked = shapes[s].eval_batches * shapes[s].batch;
    assert_int_equal(w.read, asked > 0 && asked < w.split ? asked : w.split);
  }
}

// The row-th window of a batch of B lies in the row-th part of B of the split.
TEST(every_batch_is_spread_over_the_split) {
  int sampled = 0;
  for (int s = 0; s < SHAPES; s++) {
    const ValWindows w = windows_of(s);
    for (int64_t i = 0; w.read < w.split && i < w.batches; i++)
      for (int64_t row = 0; row < w.batch; row++, sampled++) {
        const double place = (double)val_window(&w, i, row) * (double)w.batch / (double)w.split;
        const double window = (double)w.batch / (double)w.split;
        if (!(place > (double)row - window && place < (double)row + 1 + window))
          fail_msg("shape %d: row %lld of batch %lld is at %f", s, (long long)row, (long long)i,
                   place);
      }
  }
  assert_true(sampled > 1000);
}

enum { SPLIT = 7000, KINDS = 7, SPLITS = 1000, BATCH = 8, BATCHES = 20 };

// Losses of a split: one kind of text after the other, whose means have the deviation `kinds`, and
// windows that have the deviation 1 beside it.
static double fill_split(double *losses, uint64_t number, double kinds) {
  double sum = 0;
  for (int i = 0; i < SPLIT; i++) {
    const uint64_t kind = (uint64_t)(i / (SPLIT / KINDS));
    losses[i] = kinds * rng_normal(number, kind) + rng_normal(number, 1000 + (uint64_t)i);
    sum += losses[i];
  }
  return sum / SPLIT;
}

static ValMean mean_of(const ValWindows *w, const double *losses) {
  ValMean mean = {0};
  for (int64_t i = 0; i < w->batches; i++) {
    double sum = 0;
    for (int64_t row = 0; row < val_batch_size(w, i); row++) sum += losses[val_window(w, i, row)];
    val_mean_add(&mean, sum, val_batch_size(w, i));
  }
  return mean;
}

// How far the sample's mean is from the split's, in standard errors: squared, and averaged over
// many splits, it is (n - 1) / (n - 3) = 1.12 for n = 20 batches of independent windows; observed
// 1.01. Where the split has parts, the sample shares them more evenly than a batch does, so the
// error said is the larger one; observed 0.58. 3 standard errors are passed in 0.7 % of the cases;
// observed 0.2 and 0.1 %.
TEST(the_error_is_as_large_as_it_says) {
  const ValWindows w = val_windows(SPLIT, BATCH, BATCHES);
  double *losses = held(xcalloc(SPLIT, sizeof *losses));
  for (int kinds = 0; kinds <= 3; kinds += 3) {
    double squares = 0;
    int far = 0;
    for (uint64_t number = 0; number < SPLITS; number++) {
      const double whole = fill_split(losses, number, kinds);
      const ValMean mean = mean_of(&w, losses);
      const double z = (val_mean(&mean) - whole) / val_standard_error(&mean, &w);
      squares += z * z / SPLITS;
      far += fabs(z) > 3;
    }
    printf("# kinds %d apart: mean square %.3f, %d of %d beyond 3\n", kinds, squares, far, SPLITS);
    assert_true(squares > (kinds > 0 ? 0.3 : 0.8) && squares < 1.4);
    assert_true(far <= SPLITS / 50);
  }
}

TEST(its_error_is_that_of_the_batches_means) {
  const ValWindows w = val_windows(1000, 2, 4);
  static const double means[] = {1, 2, 4, 5};
  ValMean mean = {0};
  for (int i = 0; i < 4; i++) {
    val_mean_add(&mean, 2 * means[i], 2);
    if (i == 0) assert_true(isnan(val_standard_error(&mean, &w)));
  }
  const double error = sqrt((4 + 1 + 1 + 4) / 3. / 4 * (1 - 8 / 1000.));
  assert_true(fabs(val_mean(&mean) - 3) < 1e-12);
  assert_true(fabs(val_standard_error(&mean, &w) - error) < 1e-12);
}

TEST(a_whole_split_has_no_error_and_a_last_batch_its_own_weight) {
  const ValWindows w = val_windows(7, 3, 0);
  static const double losses[] = {1, 2, 3, 4, 5, 6, 70};
  const ValMean mean = mean_of(&w, losses);
  assert_int_equal(mean.batches, 3);
  assert_true(fabs(val_mean(&mean) - 91 / 7.) < 1e-12);
  assert_true(val_standard_error(&mean, &w) == 0);
}

// Windows of which a part counts, from 5 % to all, and the easier the less of it: the mean is over
// tokens, not over windows, and its error as large as it says. Mean square, as above: observed
// 1.07.
TEST(a_mean_over_what_counts_is_weighted_so) {
  enum { T = 64 };
  const ValWindows w = val_windows(SPLIT, BATCH, BATCHES);
  double squares = 0, of_windows = 0;
  for (uint64_t number = 0; number < SPLITS; number++) {
    static double tokens[SPLIT], nats[SPLIT];
    double all_tokens = 0, all_nats = 0, windows = 0;
    for (int i = 0; i < SPLIT; i++) {
      const double part = 0.05 + 0.95 * rng_uniform(number, (uint64_t)i);
      tokens[i] = ceil(T * part);
      nats[i] = tokens[i] * (2 + part + 0.3 * rng_normal(number, SPLIT + (uint64_t)i));
      all_tokens += tokens[i];
      all_nats += nats[i];
      windows += nats[i] / tokens[i] / SPLIT;
    }
    ValMean mean = {0};
    for (int64_t i = 0; i < w.batches; i++) {
      double batch_tokens = 0, batch_nats = 0;
      for (int64_t row = 0; row < val_batch_size(&w, i); row++) {
        batch_tokens += tokens[val_window(&w, i, row)];
        batch_nats += nats[val_window(&w, i, row)];
      }
      val_mean_add(&mean, batch_nats, batch_tokens);
    }
    const double whole = all_nats / all_tokens, error = val_standard_error(&mean, &w),
                 z = (val_mean(&mean) - whole) / error;
    squares += z * z / SPLITS;
    of_windows += (whole - windows) / error / SPLITS;
  }
  printf("# mean square %.3f; a mean over windows is %.1f errors away\n", squares, of_windows);
  assert_true(squares > 0.8 && squares < 1.4);
  assert_true(of_windows > 3);
}

// Equal losses have no spread, whatever rounding says.
TEST(batches_that_agree_have_an_error_of_0) {
  const ValWindows w = val_windows(1000, 2, 4);
  ValMean mean = {0};
  for (int i = 1; i <= 4; i++) val_mean_add(&mean, 1.1 * i, i);
  const double error = val_standard_error(&mean, &w);
  printf("# error %.1e\n", error);
  assert_true(error >= 0 && error < 1e-7);
}

TEST(other_windows_have_another_fingerprint) {
  const ValWindows few = val_windows(1000, 8, 20), fewer = val_windows(1000, 8, 10),
                   in_other_batches = val_windows(1000, 4, 40), whole = val_windows(1000, 8, 0);
  const uint64_t print = val_fingerprint(&few, 7, 64);
  assert_true(print != 0);
  assert_true(print == val_fingerprint(&in_other_batches, 7, 64));
  assert_true(print != val_fingerprint(&fewer, 7, 64));
  assert_true(print != val_fingerprint(&whole, 7, 64));
  assert_true(print != val_fingerprint(&few, 8, 64));
  assert_true(print != val_fingerprint(&few, 7, 32));
}

// ---- Documents in training, in validation, in both

// The 200 tokens of NAME.bin are documents of 5, or their ends are not known.
static void set_ends(const char *folder, const char *name, bool known) {
  const PathText path = path_text("%s/%s.bin", folder, name);
  DocumentsWriter w = {0};
  unlink(path_text("%s/%s.docs", folder, name).text);
  for (int i = 0; i < 40; i++) documents_add(&w, 5, NULL, true);
  if (known)
    write_documents(&w, path.text);
  else
    documents_writer_free(&w);
}

// Training's recorded steps and its plan of attention serve validation too, and what they do not
// serve is planned from the start.
TEST(validation_adds_no_documents_and_its_whole_windows_are_planned) {
  const char *folder = *state;
  const PathText val = path_text("%s/val.bin", folder);
  int32_t tokens[200];
  for (int i = 0; i < 200; i++) tokens[i] = i % 11;
  write_tokens(val.text, tokens, 200, 11);
  for (int ends = 0; ends < 4; ends++) {
    const bool train = ends & 1, validation = ends & 2;
    set_ends(folder, "tokens", train);
    set_ends(folder, "val", validation);
    Config config = tiny_training_config(folder, 1, "");
    config.data.documents = DOCUMENTS_MASK;
    config.train.save_interval = -1;
    snprintf(config.data.val, sizeof config.data.val, "%s", val.text);
    Run run;
    tiny_training_open(&run, &config);
    const Spec *shape = &run.llama.spec;
    assert_int_equal(shape->usual_documents > 0, train);
    if (train) assert_int_equal(shape->whole_windows, !validation);
    assert_int_equal(run.inputs.val->apart, validation);
    run_close(&run);
  }
}

TEST_GROUP(make_tokens_folder, NULL);
