// Weights that other programs wrote, or that are not what the model needs: what is loaded, what is
// passed over and what is refused.
#include <unistd.h>

#include "data/safetensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char tied[] = "\"tie_word_embeddings\": true";
static const char untied[] = "\"tie_word_embeddings\": false";

// The tensors of a file, to be changed and written again.
typedef struct Bag {
  int count;
  struct {
    SafeTensor t;
    float *values;
    int64_t elements;
  } items[64];
} Bag;

static void bag_add(Bag *bag, const char *name, const SafeTensor *like, const float *values) {
  int64_t n = 1;
  for (int i = 0; i < like->rank; i++) n *= like->shape[i];
  const int at = bag->count++;
  bag->items[at].t = *like;
  bag->items[at].t.name = xstrdup(name);
  bag->items[at].elements = n;
  bag->items[at].values = xmalloc((size_t)n * sizeof *values);
  memcpy(bag->items[at].values, values, (size_t)n * sizeof *values);
}

static Bag bag_read(const TinyTest *t, const char *name) {
  SafeFile file;
  Bag bag = {0};
  char *path = xasprintf("%s/%s", t->dir, name);
  safe_open(&file, path);
  for (int i = 0; i < file.count; i++)
    bag_add(&bag, file.tensors[i].name, &file.tensors[i],
            (const float *)(const void *)(file.tensors[i].data));
  safetensors_close(&file);
  free(path);
  return bag;
}

static int bag_find(const Bag *bag, const char *name) {
  for (int i = 0; i < bag->count; i++)
    if (strcmp(bag->items[i].t.name, name) == 0) return i;
  fail_msg("no tensor %s", name);
  return -1;
}

static void bag_remove(Bag *bag, const char *name) {
  const int at = bag_find(bag, name);
  free(bag->items[at].t.name);
  free(bag->items[at].values);
  bag->items[at] = bag->items[--bag->count];
}

static void bag_free(Bag *bag) {
  while (bag->count > 0) bag_remove(bag, bag->items[0].t.name);
}

// Items [first, last) in one file; BF16 takes the upper halves, other dtypes the bytes as they are.
static void bag_write(const TinyTest *t, const char *name, const Bag *bag, int first, int last,
                      SafeDtype dtype) {
  Error err = {""};
  SafeWriter w;
  SafeTensor tensors[64];
  for (int i = first; i < last; i++) {
    tensors[i] = bag->items[i].t;
    tensors[i].dtype = dtype;
  }
  char *path = xasprintf("%s/%s", t->dir, name);
  must(safetensors_create(&w, path, 1, last - first, tensors + first, &err), &err);
  for (int i = first; i < last; i++)
    for (int64_t j = 0; j < bag->items[i].elements; j++) {
      const char *bytes = (const char *)&bag->items[i].values[j];
      if (dtype == SAFE_BF16)
        must(safetensors_append(&w, bytes + 2, 2, &err), &err);
      else
        must(safetensors_append(&w, bytes, 4, &err), &err);
    }
  must(safetensors_finish(&w, &err), &err);
  free(path);
}

static const char weights_name[] = "latest/model.safetensors";

// With checksums of what the test has made of the files.
static int load(TinyTest *t, bool with_optimizer, Error *err) {
  tiny_test_sign(t, "latest", 1);
  char *path = xasprintf("%s/latest", t->dir);
  const int status = tiny_load(path, &t->loaded.llama, with_optimizer, err);
  free(path);
  return status;
}

TEST(a_missing_tensor_is_named) {
  TinyTest t = tiny_test_open(untied);
  tiny_test_save(&t, 1, 1, 1);
  tiny_run_fill(&t.loaded, 2);
  Bag bag = bag_read(&t, weights_name);
  bag_remove(&bag, "lm_head.weight");
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  expect_error(load(&t, true, &err), &err, "'lm_head.weight' of shape [11, 16]");
  expect_error(-1, &err, "tie_word_embeddings");
  bag_free(&bag);

  tiny_test_save(&t, 1, 1, 1);
  bag = bag_read(&t, "latest/optimizer.safetensors");
  bag_remove(&bag, "exp_avg_sq.model.layers.1.self_attn.k_proj.weight");
  bag_write(&t, "latest/optimizer.safetensors", &bag, 0, bag.count, SAFE_F32);
  expect_error(load(&t, true, &err), &err, "'exp_avg_sq.model.layers.1.self_attn.k_proj.weight'");
  assert_int_equal(tiny_run_differs(&t.loaded, 2), 0); // nothing was touched
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(an_unknown_tensor_is_named) {
  TinyTest t = tiny_test_open(untied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  const int at = bag_find(&bag, "model.norm.weight");
  bag_add(&bag, "model.layers.0.self_attn.q_proj.bias", &bag.items[at].t, bag.items[at].values);
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  expect_error(load(&t, false, &err), &err, "'model.layers.0.self_attn.q_proj.bias'");
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(a_wrong_shape_or_dtype_is_named) {
  TinyTest t = tiny_test_open(untied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  const int at = bag_find(&bag, "model.layers.1.mlp.down_proj.weight");
  assert_int_equal(bag.items[at].t.shape[0], 16);
  bag.items[at].t.shape[0] = 20;
  bag.items[at].t.shape[1] = 16;
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  expect_error(load(&t, false, &err), &err,
               "'model.layers.1.mlp.down_proj.weight' has the shape [20, 16], but this model's has "
               "[16, 20]");
  bag.items[at].t.shape[0] = 16;
  bag.items[at].t.shape[1] = 20;
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_I32);
  expect_error(load(&t, false, &err), &err, "is not F32, BF16 or F16");
  bag_free(&bag);

  tiny_test_save(&t, 1, 1, 1);
  bag = bag_read(&t, "latest/optimizer.safetensors");
  bag_write(&t, "latest/optimizer.safetensors", &bag, 0, bag.count, SAFE_BF16);
  expect_error(load(&t, true, &err), &err, "is not F32");
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(a_tied_model_takes_an_equal_lm_head_only) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  const int at = bag_find(&bag, "model.embed_tokens.weight");
  bag_add(&bag, "lm_head.weight", &bag.items[at].t, bag.items[at].values);
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  must(load(&t, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 1), 0);
  bag.items[bag.count - 1].values[175] += 1;
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  expect_error(load(&t, true, &err), &err, "lm_head.weight differs");
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(rotary_buffers_of_old_files_are_passed_over) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  const SafeTensor like = {.rank = 1, .shape = {2}};
  bag_add(&bag, "model.layers.0.self_attn.rotary_emb.inv_freq", &like, (const float[]){1, 2});
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_F32);
  must(load(&t, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 1), 0);
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(bf16_weights_are_read) {
  TinyTest t = tiny_test_open(untied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  bag_write(&t, weights_name, &bag, 0, bag.count, SAFE_BF16);
  must(load(&t, false, &err), &err);
  const int at = bag_find(&bag, "model.norm.weight");
  const int param = param_index(&t.run.config.model, PARAM_FINAL_NORM, -1);
  float values[16];
  t.loaded.be->services.read_master(t.loaded.be, values, &t.loaded.llama.tensors[param], 0, 16);
  for (int i = 0; i < 16; i++) {
    uint32_t expected, found;
    memcpy(&expected, &bag.items[at].values[i], 4);
    memcpy(&found, &values[i], 4);
    assert_int_equal(found, expected & 0xffff0000u);
  }
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(sharded_weights_are_read) {
  TinyTest t = tiny_test_open(untied);
  tiny_test_save(&t, 1, 1, 1);
  Bag bag = bag_read(&t, weights_name);
  bag_write(&t, "latest/one.safetensors", &bag, 0, 5, SAFE_F32);
  bag_write(&t, "latest/two.safetensors", &bag, 5, bag.count, SAFE_F32);
  tiny_test_remove(&t, weights_name);
  expect_error(load(&t, true, &err), &err, "has no weights");
  const char *index = "latest/model.safetensors.index.json";
  tiny_test_write(&t, index,
                  "{\"metadata\": {}, \"weight_map\": {\"a\": \"one.safetensors\", "
                  "\"b\": \"two.safetensors\", \"c\": \"one.safetensors\"}}");
  must(load(&t, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 1), 0);

  bag_write(&t, "latest/two.safetensors", &bag, 4, bag.count, SAFE_F32);
  expect_error(load(&t, true, &err), &err, "two shards have the tensor");
  tiny_test_write(&t, index, "{\"weight_map\": {\"a\": \"../one.safetensors\"}}");
  expect_error(load(&t, true, &err), &err, "not a file's name");
  tiny_test_write(&t, index, "{\"weight_map\": {\"a\": \"three.safetensors\"}}");
  expect_error(load(&t, true, &err), &err, "three.safetensors");
  tiny_test_write(&t, index, "{\"weight_map\": []}");
  expect_error(load(&t, true, &err), &err, "no object 'weight_map'");
  bag_free(&bag);
  tiny_test_close(&t);
}

TEST(a_damaged_weights_file_is_refused) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 1, 1, 1);
  char *path = xasprintf("%s/%s", t.dir, weights_name);
  if (truncate(path, 1000) != 0) fail_msg("cannot cut %s", path);
  expect_error(load(&t, true, &err), &err, "model.safetensors");
  free(path);
  tiny_test_close(&t);
}
