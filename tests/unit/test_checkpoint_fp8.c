// The FP8 scalings of a run in its checkpoints: what is saved comes back, of the same precision
// alone, and nothing else takes their place.
#include "model/checkpoint/files.h"
#include "model/tensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

enum { MOST = 64 };

// A backend whose scalings are an array: `written` counts what came from a checkpoint.
static ScalingState kept[MOST];
static int count, written;

static void read_kept(Backend *be, ScalingState *to_host) {
  (void)be;
  memcpy(to_host, kept, (size_t)count * sizeof *kept);
}

static void write_kept(Backend *be, const ScalingState *from_host) {
  memcpy(kept, from_host, (size_t)count * sizeof *kept);
  be->calibrating = false;
  written++;
}

static void fill_kept(void) {
  for (int i = 0; i < count; i++) {
    kept[i].scale = (float)(1 << i % 20);
    for (int j = 0; j < SCALE_HISTORY; j++) kept[i].history[j] = (float)i + 1 / (float)(j + 3);
  }
}

// In bf16 memory, but with a shape that says otherwise: only the scalings are looked at.
static TinyTest test_open(bool saved, bool loaded, bool scaled) {
  TinyTest t = tiny_test_open("\"tie_word_embeddings\": false");
  t.run.llama.shape.fp8 = saved;
  t.run.be->calibrating = !scaled;
  t.loaded.be->calibrating = true;
  t.loaded.llama.shape.fp8 = loaded;
  t.run.be->services.scalings_read = read_kept;
  t.loaded.be->services.scalings_write = write_kept;
  count = scaling_count(&t.run.config.model);
  assert_in_range(count, 1, MOST);
  fill_kept();
  written = 0;
  tiny_test_save(&t, 7, 1, 1);
  return t;
}

static int load(TinyTest *t, bool with_optimizer, Error *err) {
  char *path = xasprintf("%s/latest", t->dir);
  const int status = tiny_load(path, &t->loaded.llama, with_optimizer, err);
  free(path);
  return status;
}

TEST(scalings_come_back_in_every_bit) {
  TinyTest t = test_open(true, true, true);
  ScalingState expected[MOST];
  memcpy(expected, kept, sizeof kept);
  memset(kept, 0, sizeof kept);
  must(load(&t, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 1), 0);
  assert_int_equal(written, 1);
  assert_false(t.loaded.be->calibrating);
  assert_memory_equal(kept, expected, (size_t)count * sizeof *kept);
  tiny_test_close(&t);
}

// Whoever starts from weights alone, goes on in another precision or has no scales yet calibrates.
TEST(other_scalings_are_passed_over) {
  const struct {
    bool saved, loaded, scaled, with_optimizer;
  } cases[] = {{false, true, true, true},
               {true, false, true, true},
               {true, true, false, true},
               {true, true, true, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    TinyTest t = test_open(cases[i].saved, cases[i].loaded, cases[i].scaled);
    must(load(&t, cases[i].with_optimizer, &err), &err);
    assert_int_equal(written, 0);
    assert_true(t.loaded.be->calibrating);
    tiny_test_close(&t);
  }
}

// The same file in the older form, one tensor, with the scalings in another shape, as another
// dtype, or with other values; NULL: zeros.
static void replace_scalings(const TinyTest *t, SafeDtype dtype, int64_t rows, int64_t cols,
                             const ScalingState *states) {
  Error err = {""};
  SafeFile file;
  SafeWriter w;
  char *path = xasprintf("%s/latest/optimizer.safetensors", t->dir);
  safe_open(&file, path);
  int others = 0;
  SafeTensor *list = xcalloc((size_t)file.count, sizeof *list);
  for (const SafeTensor *s = file.tensors; s < file.tensors + file.count; s++)
    if (!is_scaling(s)) list[others++] = *s;
  SafeTensor *last = &list[others];
  *last = (SafeTensor){
      .name = (char[]){"fp8.scalings"}, .dtype = dtype, .rank = 2, .shape = {rows, cols}};
  char *other = xasprintf("%s.other", path);
  must(safetensors_create(&w, other, file.step, others + 1, list, &err), &err);
  for (int i = 0; i < others; i++)
    must(safetensors_append(&w, list[i].data, list[i].end - list[i].begin, &err), &err);
  uint64_t bytes;
  must(safetensors_bytes(last, &bytes, &err), &err);
  void *zeros = xcalloc(1, bytes);
  must(safetensors_append(&w, states ? (const void *)states : zeros, bytes, &err), &err);
  must(safetensors_finish(&w, &err), &err);
  safetensors_close(&file);
  must(path_rename(other, path, &err), &err);
  tiny_test_sign(t, "latest", 7);
  free(zeros);
  free(list);
  free(other);
  free(path);
}

TEST(scalings_of_another_shape_are_refused_before_anything_is_written) {
  TinyTest t = test_open(true, true, true);
  const struct {
    SafeDtype dtype;
    int64_t rows, cols;
  } wrong[] = {{SAFE_F32, count + 1, 1 + SCALE_HISTORY},
               {SAFE_F32, count, SCALE_HISTORY},
               {SAFE_BF16, count, 1 + SCALE_HISTORY}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tiny_run_fill(&t.loaded, 2);
    replace_scalings(&t, wrong[i].dtype, wrong[i].rows, wrong[i].cols, NULL);
    expect_error(load(&t, true, &err), &err, "fp8.scalings");
    assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
    assert_int_equal(written, 0);
  }
  fill_kept();
  replace_scalings(&t, SAFE_F32, count, 1 + SCALE_HISTORY, kept);
  must(load(&t, true, &err), &err);
  assert_int_equal(written, 1);
  tiny_test_close(&t);
}

// Loads with one value of the scaling of `at` in place of its own.
static int load_with(TinyTest *t, int at, int value, float is, Error *err) {
  fill_kept();
  if (value < 0) kept[at] = (ScalingState){.scale = is};
  if (value == 0) kept[at].scale = is;
  if (value > 0) kept[at].history[value - 1] = is;
  replace_scalings(t, SAFE_F32, count, 1 + SCALE_HISTORY, kept);
  return load(t, true, err);
}

TEST(scales_that_cannot_be_are_refused_before_anything_is_written) {
  TinyTest t = test_open(true, true, true);
  const ModelConfig *c = &t.run.config.model;
  const int used = scaling_index(c, 0, TENSOR_y), never = scaling_index(c, 0, TENSOR_dx);
  const float bad[] = {-1, -INFINITY, INFINITY, NAN, 0};
  for (int i = 0; i < 5; i++) {
    tiny_run_fill(&t.loaded, 2);
    expect_error(load_with(&t, used, 0, bad[i], &err), &err, "fp8.scalings");
    expect_error(load_with(&t, never, 0, bad[i], &err), &err, "fp8.scalings");
    if (bad[i] != 0) // before the history is full
      expect_error(load_with(&t, used, SCALE_HISTORY, bad[i], &err), &err, "fp8.scalings");
    assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
    assert_int_equal(written, 0);
  }
  // Nobody has looked for a scale: right where no product needs one.
  expect_error(load_with(&t, used, -1, 0, &err), &err, "a scale of 0 for the y of layer 0");
  assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
  must(load_with(&t, never, -1, 0, &err), &err);
  must(load_with(&t, used, SCALE_HISTORY, 0, &err), &err);
  assert_int_equal(written, 2);
  tiny_test_close(&t);
}

// ---- By name

// The same file with its tensors from the last to the first, and `name` in place of a scaling's.
static void reverse(const TinyTest *t, const char *instead_of, const char *name) {
  Error err = {""};
  SafeFile file;
  SafeWriter w;
  const PathText path = path_text("%s/latest/optimizer.safetensors", t->dir),
                 other = path_text("%s.other", path.text);
  safe_open(&file, path.text);
  SafeTensor *list = xcalloc((size_t)file.count, sizeof *list);
  for (int i = 0; i < file.count; i++) {
    list[i] = file.tensors[file.count - 1 - i];
    if (strcmp(list[i].name, instead_of) == 0) list[i].name = (char *)(uintptr_t)name;
  }
  must(safetensors_create(&w, other.text, file.step, file.count, list, &err), &err);
  for (int i = 0; i < file.count; i++)
    must(safetensors_append(&w, list[i].data, list[i].end - list[i].begin, &err), &err);
  must(safetensors_finish(&w, &err), &err);
  safetensors_close(&file);
  free(list);
  must(path_rename(other.text, path.text, &err), &err);
  tiny_test_sign(t, "latest", 7);
}

TEST(every_scaling_has_a_name_of_its_own) {
  TinyTest t = test_open(true, true, true);
  for (int i = 0; i < count; i++)
    for (int j = 0; j < i; j++)
      assert_string_not_equal(scaling_name(&t.run.config.model, i).text,
                              scaling_name(&t.run.config.model, j).text);
  tiny_test_close(&t);
}

TEST(scalings_are_known_by_name_and_not_by_position) {
  TinyTest t = test_open(true, true, true);
  ScalingState expected[MOST];
  memcpy(expected, kept, sizeof kept);
  memset(kept, 0, sizeof kept);
  reverse(&t, "", "");
  must(load(&t, true, &err), &err);
  assert_int_equal(written, 1);
  assert_memory_equal(kept, expected, (size_t)count * sizeof *kept);
  tiny_run_fill(&t.loaded, 2);
  reverse(&t, "fp8.scalings.y of layer 0", "fp8.scalings.w of layer 0");
  expect_error(load(&t, true, &err), &err, "'fp8.scalings.w of layer 0', for which this model has");
  reverse(&t, "fp8.scalings.w of layer 0", "fp4.scalings.y of layer 0"); // of another precision
  expect_error(load(&t, true, &err), &err, "a scale of 0 for the y of layer 0, or none");
  assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
  assert_int_equal(written, 1);
  tiny_test_close(&t);
}
