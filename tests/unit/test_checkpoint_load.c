// Files that other programs or older versions wrote, or that are not what the model needs: which
// weights, moments and FP8 scalings are loaded, passed over and refused.

#include "data/safetensors.h"
#include "model/run/checkpoint/files.h"
#include "model/tensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char weights_file[] = "latest/" WEIGHTS_FILE,
                  optimizer_file[] = "latest/" OPTIMIZER_FILE;
static const TinyKind *const fp8 = &tiny_kinds[3], *const tied = &tiny_kinds[0];

// ---- The tensors of a file, to be changed and written again

typedef struct Bag {
  int count;
  struct {
    SafeTensor t;
    float *values;
    int64_t elements;
  } items[256];
} Bag;

static void bag_add(Bag *bag, const char *name, const SafeTensor *like, const void *values) {
  int64_t n = 1;
  for (int i = 0; i < like->rank; i++) n *= like->shape[i];
  const int at = bag->count++;
  bag->items[at].t = *like;
  bag->items[at].t.name = held_text("%s", name);
  bag->items[at].elements = n;
  bag->items[at].values = held(xmalloc((size_t)n * sizeof(float)));
  memcpy(bag->items[at].values, values, (size_t)n * sizeof(float));
}

// The F32 tensors of a file.
static Bag bag_read(const TinyTest *t, const char *name) {
  SafeFile file;
  Bag bag = {0};
  safe_open(&file, tiny_test_path(t, name).text);
  for (const SafeTensor *s = file.tensors; s < file.tensors + file.count; s++)
    if (s->dtype == SAFE_F32) bag_add(&bag, s->name, s, safe_data(&file, s));
  safetensors_close(&file);
  return bag;
}

static int bag_find(const Bag *bag, const char *name) {
  for (int i = 0; i < bag->count; i++)
    if (strcmp(bag->items[i].t.name, name) == 0) return i;
  fail_msg("no tensor %s", name);
  return -1;
}

static void bag_remove(Bag *bag, int at) {
  bag->items[at] = bag->items[--bag->count];
}

static void bag_rename(Bag *bag, const char *from, const char *to) {
  const int at = bag_find(bag, from);
  bag_add(bag, to, &bag->items[at].t, bag->items[at].values);
  bag_remove(bag, at);
}

static void bag_dtype(Bag *bag, SafeDtype dtype) {
  for (int i = 0; i < bag->count; i++) bag->items[i].t.dtype = dtype;
}

// Items [first, last) in one file; BF16 takes the upper halves, other dtypes the bytes as they are.
static void bag_write(const TinyTest *t, const char *name, const Bag *bag, int first, int last) {
  Error err = {""};
  SafeWriter w;
  SafeTensor tensors[256];
  for (int i = first; i < last; i++) tensors[i] = bag->items[i].t;
  must(safetensors_create(&w, tiny_test_path(t, name).text, 1, last - first, tensors + first, &err),
       &err);
  for (int i = first; i < last; i++)
    for (int64_t j = 0; j < bag->items[i].elements; j++) {
      const char *bytes = (const char *)&bag->items[i].values[j];
      const bool half = tensors[i].dtype == SAFE_BF16;
      must(safetensors_append(&w, bytes + (half ? 2 : 0), half ? 2 : 4, &err), &err);
    }
  must(safetensors_finish(&w, &err), &err);
}

// With checksums of what the test has made of the files.
static int load(TinyTest *t, bool with_optimizer, Error *err) {
  tiny_test_sign(t, "latest", 1);
  return tiny_load(tiny_test_path(t, "latest").text, &t->loaded->llama, with_optimizer, err);
}

static int load_bag(TinyTest *t, const char *file, const Bag *bag, Error *err) {
  bag_write(t, file, bag, 0, bag->count);
  return load(t, true, err);
}

static TinyTest *open_saved(const TinyKind *kind) {
  TinyTest *t = tiny_test_open_kind(kind);
  tiny_test_save(t, 1, 1, 1);
  tiny_run_fill(t->loaded, 2);
  return t;
}

// Nothing was touched.
static void expect_untouched(const TinyTest *t) {
  assert_int_equal(tiny_run_differs(t->loaded, 2), 0);
  assert_int_equal(tiny_scalings.written, 0);
}

// ---- One change

typedef enum Change { REMOVED, ADDED, RENAMED, RESHAPED, RETYPED } Change;

TEST(what_the_model_does_not_need_is_refused_by_name) {
  static const struct {
    const char *file;
    Change change;
    const char *tensor, *name; // name: a new one
    SafeDtype dtype;
    const char *words;
  } cases[] = {
      {weights_file, REMOVED, "lm_head.weight", NULL, SAFE_F32,
       "lacks the tensor 'lm_head.weight' of shape [11, 16]; if the model shares it with its "
       "embedding, tie_word_embeddings must be true"},
      {optimizer_file, REMOVED, "exp_avg_sq.model.layers.1.self_attn.k_proj.weight", NULL, SAFE_F32,
       "lacks the tensor 'exp_avg_sq.model.layers.1.self_attn.k_proj.weight'"},
      {weights_file, ADDED, "model.norm.weight", "model.layers.0.self_attn.q_proj.bias", SAFE_F32,
       "has the tensor 'model.layers.0.self_attn.q_proj.bias'"},
      {weights_file, RESHAPED, "model.layers.1.mlp.down_proj.weight", NULL, SAFE_F32,
       "'model.layers.1.mlp.down_proj.weight' has the shape [20, 16], but this model's has "
       "[16, 20]"},
      {weights_file, RETYPED, NULL, NULL, SAFE_I32, "is not F32, BF16 or F16"},
      {optimizer_file, RETYPED, NULL, NULL, SAFE_BF16, "is not F32"},
      {optimizer_file, RENAMED, "fp8.scalings.y of layer 0", "fp8.scalings.w of layer 0", SAFE_F32,
       "'fp8.scalings.w of layer 0', for which this model has no place"},
      {optimizer_file, RENAMED, "fp8.scalings.y of layer 0", "fp4.scalings.y of layer 0", SAFE_F32,
       "a scale of 0 for the y of layer 0, or none"}, // of another precision
      {optimizer_file, REMOVED, "fp8.scalings.y of layer 0", NULL, SAFE_F32,
       "a scale of 0 for the y of layer 0, or none"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    TinyTest *t = open_saved(fp8);
    Bag bag = bag_read(t, cases[i].file);
    const int at = cases[i].tensor ? bag_find(&bag, cases[i].tensor) : 0;
    if (cases[i].change == ADDED)
      bag_add(&bag, cases[i].name, &bag.items[at].t, bag.items[at].values);
    if (cases[i].change == RENAMED) bag_rename(&bag, cases[i].tensor, cases[i].name);
    if (cases[i].change == REMOVED) bag_remove(&bag, at);
    if (cases[i].change == RETYPED) bag_dtype(&bag, cases[i].dtype);
    if (cases[i].change == RESHAPED) {
      const int64_t rows = bag.items[at].t.shape[0];
      bag.items[at].t.shape[0] = bag.items[at].t.shape[1];
      bag.items[at].t.shape[1] = rows;
    }
    expect_error(load_bag(t, cases[i].file, &bag, &err), &err, cases[i].words);
    expect_untouched(t);
  }
}

TEST(a_tied_model_takes_an_equal_lm_head_only) {
  TinyTest *t = open_saved(tied);
  Bag bag = bag_read(t, weights_file);
  const int at = bag_find(&bag, "model.embed_tokens.weight");
  bag_add(&bag, "lm_head.weight", &bag.items[at].t, bag.items[at].values);
  must(load_bag(t, weights_file, &bag, &err), &err);
  assert_int_equal(tiny_test_differs(t, 1), 0);
  bag.items[bag.count - 1].values[175] += 1;
  expect_error(load_bag(t, weights_file, &bag, &err), &err, "lm_head.weight differs");
}

TEST(rotary_buffers_of_old_files_are_passed_over) {
  TinyTest *t = open_saved(tied);
  Bag bag = bag_read(t, weights_file);
  const SafeTensor like = {.rank = 1, .shape = {2}};
  bag_add(&bag, "model.layers.0.self_attn.rotary_emb.inv_freq", &like, (const float[]){1, 2});
  must(load_bag(t, weights_file, &bag, &err), &err);
  assert_int_equal(tiny_test_differs(t, 1), 0);
}

TEST(bf16_weights_are_read) {
  TinyTest *t = open_saved(&tiny_kinds[3]);
  Bag bag = bag_read(t, weights_file);
  bag_dtype(&bag, SAFE_BF16);
  bag_write(t, weights_file, &bag, 0, bag.count);
  must(load(t, false, &err), &err);
  const int at = bag_find(&bag, "model.norm.weight");
  const int param = param_index(&t->run->config.model, PARAM_FINAL_NORM, -1);
  float values[16];
  t->loaded->be->services.read_master(t->loaded->be, values, &t->loaded->llama.tensors[param], 0,
                                      16);
  for (int i = 0; i < 16; i++) {
    uint32_t expected, found;
    memcpy(&expected, &bag.items[at].values[i], 4);
    memcpy(&found, &values[i], 4);
    assert_int_equal(found, expected & 0xffff0000u);
  }
}

TEST(sharded_weights_are_read) {
  static const char index[] = "latest/" WEIGHTS_INDEX_FILE;
  static const struct {
    const char *json, *words;
  } wrong[] = {{"{\"weight_map\": {\"a\": \"../one.safetensors\"}}", "not a file's name"},
               {"{\"weight_map\": {\"a\": \"three.safetensors\"}}", "three.safetensors"},
               {"{\"weight_map\": []}", "no object 'weight_map'"}};
  TinyTest *t = open_saved(fp8);
  Bag bag = bag_read(t, weights_file);
  bag_write(t, "latest/one.safetensors", &bag, 0, 5);
  bag_write(t, "latest/two.safetensors", &bag, 5, bag.count);
  tiny_test_remove(t, weights_file);
  expect_error(load(t, true, &err), &err, "has no weights");
  tiny_test_write(t, index,
                  "{\"metadata\": {}, \"weight_map\": {\"a\": \"one.safetensors\", "
                  "\"b\": \"two.safetensors\", \"c\": \"one.safetensors\"}}");
  must(load(t, true, &err), &err);
  assert_int_equal(tiny_test_differs(t, 1), 0);
  bag_write(t, "latest/two.safetensors", &bag, 4, bag.count);
  expect_error(load(t, true, &err), &err, "two shards have the tensor");
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tiny_test_write(t, index, wrong[i].json);
    expect_error(load(t, true, &err), &err, wrong[i].words);
  }
}

// ---- FP8 scalings

TEST(tensors_are_known_by_name_and_not_by_position) {
  TinyTest *t = open_saved(fp8);
  Bag bag = bag_read(t, optimizer_file), reversed = {0};
  for (int i = bag.count; i-- > 0;)
    bag_add(&reversed, bag.items[i].t.name, &bag.items[i].t, bag.items[i].values);
  must(load_bag(t, optimizer_file, &reversed, &err), &err);
  assert_int_equal(tiny_test_differs(t, 1), 0);
  for (int i = 0; i < tiny_scalings.count; i++)
    for (int j = 0; j < i; j++)
      assert_string_not_equal(scaling_name(&t->run->config.model, i).text,
                              scaling_name(&t->run->config.model, j).text);
}

// Whoever goes on in another precision, or has no scales yet, calibrates.
TEST(scalings_of_another_precision_are_passed_over) {
  for (int i = 0; i < 3; i++) {
    TinyTest *t = tiny_test_open_kind(fp8);
    t->run->llama.spec.fp8 = i != 0;
    t->loaded->llama.spec.fp8 = i != 1;
    t->run->be->calibrating = i == 2;
    tiny_test_save(t, 1, 1, 1);
    must(load(t, true, &err), &err);
    assert_int_equal(tiny_scalings.written, 0);
    assert_true(t->loaded->be->calibrating);
  }
}

// In the form of older versions: one tensor.
static int load_old_form(TinyTest *t, SafeDtype dtype, int64_t rows, int64_t cols,
                         const ScalingState *states, Error *err) {
  Bag bag = bag_read(t, optimizer_file);
  for (int i = bag.count; i-- > 0;)
    if (is_scaling(&bag.items[i].t)) bag_remove(&bag, i);
  const SafeTensor like = {.dtype = dtype, .rank = 2, .shape = {rows, cols}};
  bag_add(&bag, "fp8.scalings", &like, states);
  return load_bag(t, optimizer_file, &bag, err);
}

TEST(scalings_in_the_older_form_are_read_by_position) {
  TinyTest *t = open_saved(fp8);
  const int count = tiny_scalings.count;
  const struct {
    SafeDtype dtype;
    int64_t rows, cols;
  } wrong[] = {{SAFE_F32, count + 1, SCALING_FLOATS},
               {SAFE_F32, count, SCALING_FLOATS - 1},
               {SAFE_BF16, count, SCALING_FLOATS}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    expect_error(
        load_old_form(t, wrong[i].dtype, wrong[i].rows, wrong[i].cols, tiny_scalings.saved, &err),
        &err, "fp8.scalings");
    expect_untouched(t);
  }
  must(load_old_form(t, SAFE_F32, count, SCALING_FLOATS, tiny_scalings.saved, &err), &err);
  assert_int_equal(tiny_test_differs(t, 1), 0);
}

// Loads with one value of the scaling of `at` in place of its own: 0 its scale, from 1 on its
// history; -1: its scale, and a history of zeros.
static int load_with(TinyTest *t, int at, int value, float is, Error *err) {
  ScalingState states[TINY_SCALINGS];
  memcpy(states, tiny_scalings.saved, sizeof states);
  if (value < 0) states[at] = (ScalingState){.scale = is};
  if (value == 0) states[at].scale = is;
  if (value > 0) states[at].history[value - 1] = is;
  return load_old_form(t, SAFE_F32, tiny_scalings.count, SCALING_FLOATS, states, err);
}

static int scaling_named(const ModelConfig *model, const char *name) {
  int i = 0;
  while (strcmp(scaling_name(model, i).text, name) != 0) i++;
  return i;
}

TEST(scales_that_cannot_be_are_refused_before_anything_is_written) {
  TinyTest *t = open_saved(fp8);
  const ModelConfig *c = &t->run->config.model;
  const int used = scaling_named(c, "y of layer 0"), never = scaling_named(c, "dx of layer 0");
  const float bad[] = {-1, -INFINITY, INFINITY, NAN, 0};
  for (int i = 0; i < 5; i++) {
    expect_error(load_with(t, used, 0, bad[i], &err), &err, "fp8.scalings");
    expect_error(load_with(t, never, 0, bad[i], &err), &err, "fp8.scalings");
    if (bad[i] != 0) // before the history is full
      expect_error(load_with(t, used, SCALE_HISTORY, bad[i], &err), &err, "fp8.scalings");
  }
  // Nobody has looked for a scale: right where no product needs one.
  expect_error(load_with(t, used, -1, 0, &err), &err, "a scale of 0 for the y of layer 0");
  expect_untouched(t);
  must(load_with(t, never, -1, 0, &err), &err);
  must(load_with(t, used, SCALE_HISTORY, 0, &err), &err);
  assert_int_equal(tiny_scalings.written, 2);
}
