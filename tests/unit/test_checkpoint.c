// Checkpoints of every kind: what is saved is loaded bit for bit, with and without its optimizer;
// which folders are found and kept; state.json.
#include "data/safetensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char tied[] = "\"tie_word_embeddings\": true";
static const char untied[] = "\"tie_word_embeddings\": false";
static const char muon[] = "\"tie_word_embeddings\": true}, \"optimizer\": {\"kind\": \"muon\"";

// ---- Saved and loaded

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The nearer of the two bf16 numbers around a float; of two that are as near, the even one.
static uint32_t nearest_bf16(float value) {
  const uint32_t below = bits_of(value) >> 16, rest = bits_of(value) & 0xffff;
  return rest > 0x8000 || (rest == 0x8000 && below % 2) ? below + 1 : below;
}

// What other programs see: the weights as they were saved. The moments are zeros.
static void check_weights_alone(TinyTest *t, bool bf16) {
  Backend *be = t->loaded->be;
  int rounded = 0;
  for (int i = 0; i < t->run->llama.param_count; i++) {
    const ParamTensor *saved = &t->run->llama.tensors[i], *p = &t->loaded->llama.tensors[i];
    const int64_t n = p->rows * p->cols;
    float *masters = held(xmalloc(2 * (size_t)n * sizeof *masters)), *found = masters + n;
    t->run->be->services.read_master(t->run->be, masters, saved, 0, n);
    be->services.read_master(be, found, p, 0, n);
    for (int64_t j = 0; j < n; j++) {
      const uint32_t expected = bf16 ? nearest_bf16(masters[j]) << 16 : bits_of(masters[j]);
      assert_int_equal(bits_of(found[j]), expected);
      rounded += found[j] != masters[j];
    }
    for (int j = 0; j < (p->v ? 2 : 1); j++) {
      be->services.read_moments(be, found, j ? p->v : p->m, n);
      for (int64_t k = 0; k < n; k++) assert_int_equal(bits_of(found[k]), 0);
    }
  }
  printf("# %d values were rounded\n", rounded);
  assert_int_equal(rounded > 0, bf16);
}

static void check_config(const TinyTest *t, const char *path) {
  Error err = {""};
  Config saved;
  ModelConfig hf;
  must(checkpoint_read_config(path, &saved, &err), &err);
  assert_string_equal(saved.train.resume, "");
  must(config_compare(&saved, &t->run->config, &err), &err);
  size_t bytes;
  char *text = tiny_test_read(t, "latest/config.json", &bytes);
  must(model_config_parse(&hf, "config.json", text, &err), &err);
  assert_int_equal(hf.tie_word_embeddings, t->run->config.model.tie_word_embeddings);
  assert_int_equal(hf.num_key_value_heads, 2);
  const bool bf16 = t->run->config.output.save_dtype == SAVE_BF16;
  assert_non_null(
      strstr(text, bf16 ? "\"torch_dtype\": \"bfloat16\"" : "\"torch_dtype\": \"float32\""));
}

TEST(every_kind_is_loaded_bit_for_bit) {
  for (const TinyKind *kind = tiny_kinds; kind < tiny_kinds + TINY_KINDS; kind++) {
    TinyTest *t = tiny_test_open_kind(kind);
    printf("# %s\n", kind->name);
    strcpy(t->run->config.train.resume, "auto");
    tiny_test_save(t, 7, 1, 1);
    const PathText path = tiny_newest(t->dir);
    must(tiny_load(path.text, &t->loaded->llama, true, &err), &err);
    assert_int_equal(tiny_test_differs(t, 1), 0);
    assert_int_equal(tiny_scalings.written, kind->fp8);
    assert_int_equal(t->loaded->be->calibrating, !kind->fp8);
    check_config(t, path.text);
    must(tiny_load(path.text, &t->loaded->llama, false, &err), &err);
    check_weights_alone(t, kind->dtype == SAVE_BF16);
    assert_int_equal(tiny_scalings.written, kind->fp8); // whoever has weights alone calibrates
    t->run->config.output.save_dtype = kind->dtype == SAVE_BF16 ? SAVE_FP32 : SAVE_BF16; // and back
    tiny_test_save(t, 8, 2, 1);
    must(tiny_test_load(t, true, &err), &err);
    assert_int_equal(tiny_test_differs(t, 2), 0);
  }
}

TEST(what_muon_updates_has_no_second_moment_in_a_file) {
  TinyTest *t = tiny_test_open(muon);
  SafeFile file;
  TinyRun *adamw = tiny_run_open(tied);
  tiny_test_save(t, 7, 1, 1);
  must(safetensors_open(&file, tiny_test_path(t, "latest/optimizer.safetensors").text, &err), &err);
  assert_non_null(safetensors_find(&file, "exp_avg.model.layers.1.mlp.down_proj.weight"));
  assert_null(safetensors_find(&file, "exp_avg_sq.model.layers.1.mlp.down_proj.weight"));
  assert_null(safetensors_find(&file, "exp_avg_sq.model.layers.0.self_attn.k_proj.weight"));
  assert_non_null(safetensors_find(&file, "exp_avg_sq.model.layers.0.input_layernorm.weight"));
  assert_non_null(safetensors_find(&file, "exp_avg_sq.model.embed_tokens.weight"));
  safetensors_close(&file);
  expect_error(tiny_load(t->dir, &adamw->llama, true, &err), &err,
               "lacks the tensor 'exp_avg_sq.model.layers.0.mlp.down_proj.weight'");
  const TrainState later = tiny_state(8, 2);
  tiny_run_fill(adamw, 2);
  must(tiny_run_save(adamw, t->dir, NULL, &later, 1, &err), &err);
  expect_error(tiny_load(t->dir, &t->loaded->llama, true, &err), &err,
               "has the tensor 'exp_avg_sq.model.layers.0.mlp.down_proj.weight'");
}

// Initial weights are drawn by Hugging Face's name and element: the file must have them in order.
TEST(weights_stand_in_hugging_faces_order) {
  TinyTest *t = tiny_test_open(untied);
  const ModelConfig *c = &t->run->config.model;
  llama_init_weights(&t->run->llama, 5);
  const TrainState start = tiny_state(3, 1);
  must(tiny_run_save(t->run, t->dir, NULL, &start, 1, &err), &err);
  SafeFile file;
  safe_open(&file, tiny_test_path(t, "latest/model.safetensors").text);
  int count;
  HfTensor *list = held(hf_tensor_list(c, &count));
  assert_int_equal(file.count, count);
  for (int i = 0; i < count; i++) {
    const int64_t n = list[i].rows * list[i].cols;
    float *expected = held(xmalloc((size_t)n * sizeof *expected));
    param_init(c, 5, &list[i], 0, n, expected);
    const SafeTensor *found = safetensors_find(&file, list[i].name);
    if (!found) fail_msg("the file lacks %s", list[i].name);
    assert_memory_equal(safe_data(&file, found), expected, (size_t)n * sizeof *expected);
  }
  safetensors_close(&file);
}

// It is a checkpoint of its step, whose weights every reader takes; a resume does not.
TEST(a_model_alone_is_loaded_but_not_resumed) {
  TinyTest *t = tiny_test_open(untied);
  TrainState saved_state;
  tiny_test_save(t, 6, 2, 2);
  t->run->config.output.save_optimizer = false;
  tiny_test_save(t, 7, 1, 2);
  const PathText path = tiny_newest(t->dir);
  must(checkpoint_read_state(path.text, &saved_state, &err), &err);
  assert_true(saved_state.step == 7 && saved_state.model_alone);
  expect_error(tiny_load(path.text, &t->loaded->llama, true, &err), &err,
               "without the optimizer's moments");
  must(tiny_load(path.text, &t->loaded->llama, false, &err), &err);
  check_weights_alone(t, false);
  must(tiny_load(t->dir, &t->loaded->llama, true, &err), &err); // passes it over: step 6 is whole
  assert_int_equal(tiny_run_differs(t->loaded, 2), 0);
}

// ---- Which folders

static void expect_found(const TinyTest *t, const char *name) {
  const PathText path = tiny_newest(t->dir);
  assert_string_equal(path.text, name[0] ? tiny_test_path(t, name).text : "");
}

TEST(the_latest_checkpoint_is_found) {
  TinyTest *t = tiny_test_open(tied);
  assert_string_equal(tiny_newest("/tmp/no/such/run").text, "");
  expect_found(t, "");
  expect_error(tiny_load(t->dir, &t->loaded->llama, true, &err), &err, "no weights");
  expect_error(tiny_load(t->dir, &t->loaded->llama, false, &err), &err, "neither a checkpoint");
  tiny_test_save(t, 9, 1, 9);
  tiny_test_save(t, 10, 2, 9);
  tiny_test_save(t, 123456789, 3, 9);
  expect_found(t, "step-123456789");
  tiny_test_remove(t, "step-123456789/optimizer.safetensors");
  expect_found(t, "step-00000010"); // latest points at something incomplete
  tiny_test_remove(t, "latest");
  expect_found(t, "step-00000010");
  tiny_test_write(t, "step-00000010/state.json", "{");
  expect_found(t, "step-00000009");
}

TEST(an_older_checkpoint_that_latest_points_at_wins) {
  TinyTest *t = tiny_test_open(tied);
  tiny_test_save(t, 20, 1, 3);
  tiny_test_save(t, 10, 2, 3); // the run was taken back
  assert_true(tiny_test_has(t, "step-00000020"));
  expect_found(t, "step-00000010");
}

TEST(the_newest_are_kept_and_foreign_folders_left_alone) {
  TinyTest *t = tiny_test_open(tied);
  static const char *const foreign[] = {"samples", "step-1", "step-00000001x", "step-00000002",
                                        "my.tmp"};
  enum { FOREIGN = sizeof foreign / sizeof *foreign };
  for (int i = 0; i < FOREIGN; i++)
    must(directory_create(tiny_test_path(t, foreign[i]).text, &err), &err);
  must(directory_create(tiny_test_path(t, "step-00000004.tmp").text, &err), &err);
  tiny_test_write(t, "step-00000004.tmp/model.safetensors", "half");
  for (int step = 10; step <= 14; step++) tiny_test_save(t, step, (uint64_t)step, 2);
  for (int i = 0; i < FOREIGN; i++)
    if (!tiny_test_has(t, foreign[i])) fail_msg("the folder %s was removed", foreign[i]);
  assert_false(tiny_test_has(t, "step-00000004.tmp"));
  assert_false(tiny_test_has(t, "step-00000012"));
  assert_true(tiny_test_has(t, "step-00000013"));
  assert_true(tiny_test_has(t, "step-00000014"));
}

TEST(saving_a_step_again_replaces_it) {
  TinyTest *t = tiny_test_open(tied);
  tiny_test_save(t, 10, 1, 1);
  tiny_test_save(t, 10, 2, 1);
  expect_found(t, "step-00000010");
  must(tiny_test_load(t, true, &err), &err);
  assert_int_equal(tiny_run_differs(t->loaded, 2), 0);
  assert_false(tiny_test_has(t, "step-00000010.tmp"));
}

// ---- state.json

TEST(every_state_is_read_back) {
  TinyTest *t = tiny_test_open(tied);
  const TrainState states[] = {
      {.step = 0, .best_val_loss = NAN},
      {.step = INT64_C(1) << 52,
       .updates = 5,
       .sequences = UINT64_MAX,
       .nonfinite = 3,
       .nonfinite_row = 2,
       .best_val_loss = 0.1,
       .best_val_step = 77},
      {.step = 1, .best_val_loss = 0x1.fffffffffffffp-1},
      {.step = 1, .best_val_loss = 0x1p-1074},
      {.step = 3,
       .tokenizer = UINT64_MAX - 4,
       .data = UINT64_MAX - 5,
       .validation = UINT64_MAX - 6,
       .tokens = UINT64_MAX - 7,
       .backend = short_text("cpu: 2 threads")},
      {.step = 9,
       .sequences = UINT64_MAX,
       .best_val_loss = 1,
       .source_count = 2,
       .sources = {{.data = UINT64_MAX, .weight = 0.1, .drawn = UINT64_MAX - 5, .since = 7},
                   {.data = 0, .weight = 0.9, .drawn = 5, .since = 5}}},
  };
  for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
    TrainState back;
    must(tiny_run_save(t->run, t->dir, NULL, &states[i], 9, &err), &err);
    const PathText path = tiny_newest(t->dir);
    must(checkpoint_read_state(path.text, &back, &err), &err);
    if (isnan(states[i].best_val_loss)) {
      assert_true(isnan(back.best_val_loss));
      back.best_val_loss = states[i].best_val_loss; // the bits of a NaN may differ
    }
    assert_memory_equal(&back, &states[i], sizeof back);
  }
}

// Those that are refused are rows of tests/fixtures/messages.txt.
TEST(the_state_of_an_older_version_is_read_and_one_must_be_there) {
  TinyTest *t = tiny_test_open(tied);
  TrainState back;
  tiny_test_write(t, "state.json", // which a resume had planned anew
                  "{\"version\":1,\"updates\":1,\"nonfinite\":0,\"nonfinite_row\":0,"
                  "\"best_val_step\":0,\"step\":1,\"sequences\":\"1\",\"best_val_loss\":1,"
                  "\"schedule\":{\"from\":1,\"warmup\":0,\"rate\":0,\"peak\":1}}");
  must(checkpoint_read_state(t->dir, &back, &err), &err);
  tiny_test_remove(t, "state.json");
  expect_error(checkpoint_read_state(t->dir, &back, &err), &err, "train.init_from");
}
