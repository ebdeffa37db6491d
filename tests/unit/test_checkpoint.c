// Checkpoints: what is saved is loaded bit for bit, which folders are found, kept and removed.
#include "data/safetensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char tied[] = "\"tie_word_embeddings\": true";
static const char untied[] = "\"tie_word_embeddings\": false";
static const char muon[] = "\"tie_word_embeddings\": true}, \"optimizer\": {\"kind\": \"muon\"";

// ---- Saved and loaded

static void check_round_trip(const char *model, SaveDtype dtype) {
  Error err = {""};
  TinyTest t = tiny_test_open(model);
  t.run.config.output.save_dtype = dtype;
  strcpy(t.run.config.train.resume, "auto");
  tiny_test_save(&t, 7, 1, 1);
  char path[PATH_CHARS];
  must(checkpoint_find(t.dir, path, &err), &err);
  must(tiny_load(path, &t.loaded.llama, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 1), 0);
  Config saved;
  must(checkpoint_read_config(path, &saved, &err), &err);
  assert_string_equal(saved.train.resume, "");
  must(config_compare(&saved, &t.run.config, &err), &err);

  char *text, *name = xasprintf("%s/config.json", path);
  size_t bytes;
  ModelConfig hf;
  must(file_read(name, 1 << 16, &text, &bytes, &err), &err);
  must(model_config_parse(&hf, name, text, &err), &err);
  assert_int_equal(hf.tie_word_embeddings, t.run.config.model.tie_word_embeddings);
  assert_int_equal(hf.num_key_value_heads, 2);
  assert_true((strstr(text, "\"eos_token_id\": 257") != NULL) == (hf.vocab_size == 258));
  free(text);
  free(name);
  tiny_test_close(&t);
}

TEST(a_tied_model_is_loaded_bit_for_bit) {
  check_round_trip(tied, SAVE_FP32);
}

TEST(an_untied_model_is_loaded_bit_for_bit) {
  check_round_trip(untied, SAVE_FP32);
}

TEST(muons_momentum_is_loaded_bit_for_bit) {
  check_round_trip(muon, SAVE_FP32);
  check_round_trip(muon, SAVE_BF16);
}

TEST(what_muon_updates_has_no_second_moment_in_a_file) {
  TinyTest t = tiny_test_open(muon);
  TinyRun adamw;
  SafeFile file;
  tiny_run_open(&adamw, tied);
  tiny_test_save(&t, 7, 1, 1);
  char *path = xasprintf("%s/latest/optimizer.safetensors", t.dir);
  must(safetensors_open(&file, path, &err), &err);
  assert_non_null(safetensors_find(&file, "exp_avg.model.layers.1.mlp.down_proj.weight"));
  assert_null(safetensors_find(&file, "exp_avg_sq.model.layers.1.mlp.down_proj.weight"));
  assert_null(safetensors_find(&file, "exp_avg_sq.model.layers.0.self_attn.k_proj.weight"));
  assert_non_null(safetensors_find(&file, "exp_avg_sq.model.layers.0.input_layernorm.weight"));
  assert_non_null(safetensors_find(&file, "exp_avg_sq.model.embed_tokens.weight"));
  safetensors_close(&file);
  expect_error(tiny_load(t.dir, &adamw.llama, true, &err), &err,
               "lacks the tensor 'exp_avg_sq.model.layers.0.mlp.down_proj.weight'");
  const TrainState later = tiny_state(8, 2);
  tiny_run_fill(&adamw, 2);
  must(tiny_run_save(&adamw, t.dir, NULL, &later, 1, &err), &err);
  expect_error(tiny_load(t.dir, &t.loaded.llama, true, &err), &err,
               "has the tensor 'exp_avg_sq.model.layers.0.mlp.down_proj.weight'");
  free(path);
  tiny_run_close(&adamw);
  tiny_test_close(&t);
}

// Initial weights are drawn by Hugging Face's name and element: the file must have them in order.
TEST(weights_stand_in_hugging_faces_order) {
  TinyTest t = tiny_test_open(untied);
  const ModelConfig *c = &t.run.config.model;
  llama_init_weights(&t.run.llama, 5);
  const TrainState start = tiny_state(3, 1);
  must(tiny_run_save(&t.run, t.dir, NULL, &start, 1, &err), &err);
  SafeFile file;
  char *path = xasprintf("%s/latest/model.safetensors", t.dir);
  safe_open(&file, path);
  int count;
  HfTensor *list = hf_tensor_list(c, &count);
  assert_int_equal(file.count, count);
  for (int i = 0; i < count; i++) {
    const int64_t n = list[i].rows * list[i].cols;
    float *expected = xmalloc((size_t)n * sizeof *expected);
    param_init(c, 5, &list[i], 0, n, expected);
    const SafeTensor *found = safetensors_find(&file, list[i].name);
    if (!found) fail_msg("the file lacks %s", list[i].name);
    assert_memory_equal(found->data, expected, (size_t)n * sizeof *expected);
    free(expected);
  }
  free(list);
  safetensors_close(&file);
  free(path);
  tiny_test_close(&t);
}

// It is a checkpoint of its step, whose weights every reader takes; a resume does not.
TEST(a_model_alone_is_loaded_but_not_resumed) {
  TinyTest t = tiny_test_open(untied);
  TrainState saved_state;
  char path[PATH_CHARS];
  tiny_test_save(&t, 6, 2, 2);
  t.run.config.output.save_optimizer = false;
  tiny_test_save(&t, 7, 1, 2);
  must(checkpoint_find(t.dir, path, &err), &err);
  must(checkpoint_read_state(path, &saved_state, &err), &err);
  assert_true(saved_state.step == 7 && saved_state.model_alone);
  expect_error(tiny_load(path, &t.loaded.llama, true, &err), &err,
               "without the optimizer's moments");
  must(tiny_load(path, &t.loaded.llama, false, &err), &err);
  for (int i = 0; i < t.run.llama.param_count; i++) {
    const ParamTensor *saved = &t.run.llama.tensors[i], *loaded = &t.loaded.llama.tensors[i];
    assert_memory_equal(saved->master, loaded->master,
                        (size_t)(saved->rows * saved->cols) * t.run.be->master_bytes);
  }
  must(tiny_load(t.dir, &t.loaded.llama, true, &err), &err); // passes it over: step 6 is whole
  assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
  tiny_test_close(&t);
}

TEST(without_the_optimizer_moments_become_zero) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 7, 1, 1);
  tiny_run_fill(&t.loaded, 2);
  char *path = xasprintf("%s/latest", t.dir);
  must(tiny_load(path, &t.loaded.llama, false, &err), &err);
  const ParamTensor *p = &t.loaded.llama.tensors[2];
  float values[16], weights[16];
  t.loaded.be->services.read_master(t.loaded.be, weights, p, 0, 16);
  t.run.be->services.read_master(t.run.be, values, &t.run.llama.tensors[2], 0, 16);
  assert_memory_equal(weights, values, sizeof values);
  const float zeros[16] = {0};
  t.loaded.be->services.read_moments(t.loaded.be, values, p->m, 16);
  assert_memory_equal(values, zeros, sizeof zeros);
  t.loaded.be->services.read_moments(t.loaded.be, values, p->v, 16);
  assert_memory_equal(values, zeros, sizeof zeros);
  free(path);
  tiny_test_close(&t);
}

// ---- Which folders

static void expect_found(const TinyTest *t, const char *name) {
  Error err = {""};
  char path[PATH_CHARS];
  must(checkpoint_find(t->dir, path, &err), &err);
  char *expected = name[0] ? xasprintf("%s/%s", t->dir, name) : xstrdup("");
  assert_string_equal(path, expected);
  free(expected);
}

TEST(the_latest_checkpoint_is_found) {
  char path[PATH_CHARS];
  TinyTest t = tiny_test_open(tied);
  must(checkpoint_find("/tmp/no/such/run", path, &err), &err);
  assert_string_equal(path, "");
  expect_found(&t, "");
  expect_error(tiny_load(t.dir, &t.loaded.llama, true, &err), &err, "no weights");
  expect_error(tiny_load(t.dir, &t.loaded.llama, false, &err), &err, "neither a checkpoint");
  tiny_test_save(&t, 9, 1, 9);
  tiny_test_save(&t, 10, 2, 9);
  tiny_test_save(&t, 123456789, 3, 9);
  expect_found(&t, "step-123456789");
  tiny_test_remove(&t, "step-123456789/optimizer.safetensors");
  expect_found(&t, "step-00000010"); // latest points at something incomplete
  tiny_test_remove(&t, "latest");
  expect_found(&t, "step-00000010");
  tiny_test_write(&t, "step-00000010/state.json", "{");
  expect_found(&t, "step-00000009");
  tiny_test_close(&t);
}

TEST(an_older_checkpoint_that_latest_points_at_wins) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 20, 1, 3);
  tiny_test_save(&t, 10, 2, 3); // the run was taken back
  assert_true(tiny_test_has(&t, "step-00000020"));
  expect_found(&t, "step-00000010");
  tiny_test_close(&t);
}

TEST(the_newest_are_kept_and_foreign_folders_left_alone) {
  TinyTest t = tiny_test_open(tied);
  static const char *const foreign[] = {"samples", "step-1", "step-00000001x", "step-00000002",
                                        "my.tmp"};
  enum { FOREIGN = sizeof foreign / sizeof *foreign };
  for (int i = 0; i < FOREIGN; i++) {
    char *path = xasprintf("%s/%s", t.dir, foreign[i]);
    must(directory_create(path, &err), &err);
    free(path);
  }
  char *stale = xasprintf("%s/step-00000004.tmp", t.dir);
  must(directory_create(stale, &err), &err);
  free(stale);
  tiny_test_write(&t, "step-00000004.tmp/model.safetensors", "half");
  for (int step = 10; step <= 14; step++) tiny_test_save(&t, step, (uint64_t)step, 2);
  for (int i = 0; i < FOREIGN; i++)
    if (!tiny_test_has(&t, foreign[i])) fail_msg("the folder %s was removed", foreign[i]);
  assert_false(tiny_test_has(&t, "step-00000004.tmp"));
  assert_false(tiny_test_has(&t, "step-00000012"));
  assert_true(tiny_test_has(&t, "step-00000013"));
  assert_true(tiny_test_has(&t, "step-00000014"));
  tiny_test_close(&t);
}

TEST(saving_a_step_again_replaces_it) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_save(&t, 10, 1, 1);
  tiny_test_save(&t, 10, 2, 1);
  expect_found(&t, "step-00000010");
  char *path = xasprintf("%s/latest", t.dir);
  must(tiny_load(path, &t.loaded.llama, true, &err), &err);
  assert_int_equal(tiny_run_differs(&t.loaded, 2), 0);
  assert_false(tiny_test_has(&t, "step-00000010.tmp"));
  free(path);
  tiny_test_close(&t);
}

TEST(a_run_folder_that_cannot_be_made_is_an_error) {
  TinyTest t = tiny_test_open(tied);
  tiny_test_write(&t, "file", "");
  char *path = xasprintf("%s/file/run", t.dir);
  const TrainState start = tiny_state(1, 1);
  expect_error(tiny_run_save(&t.run, path, NULL, &start, 1, &err), &err, "Not a directory");
  free(path);
  tiny_test_close(&t);
}

// ---- state.json

TEST(every_state_is_read_back) {
  TinyTest t = tiny_test_open(tied);
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
      {.step = 9,
       .sequences = UINT64_MAX,
       .best_val_loss = 1,
       .source_count = 2,
       .sources = {{.data = UINT64_MAX, .weight = 0.1, .drawn = UINT64_MAX - 5, .since = 7},
                   {.data = 0, .weight = 0.9, .drawn = 5, .since = 5}}},
  };
  for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
    TrainState back;
    char path[PATH_CHARS];
    must(tiny_run_save(&t.run, t.dir, NULL, &states[i], 9, &err), &err);
    must(checkpoint_find(t.dir, path, &err), &err);
    must(checkpoint_read_state(path, &back, &err), &err);
    if (isnan(states[i].best_val_loss)) {
      assert_true(isnan(back.best_val_loss));
      back.best_val_loss = states[i].best_val_loss; // the bits of a NaN may differ
    }
    assert_memory_equal(&back, &states[i], sizeof back);
  }
  tiny_test_close(&t);
}

TEST(a_malformed_state_is_refused_with_the_reason) {
#define COUNTS                                                                                     \
  "\"version\":1,\"updates\":1,\"nonfinite\":0,\"nonfinite_row\":0,\"best_val_step\":0,"
#define SOURCES(list)                                                                              \
  "{" COUNTS "\"step\":1,\"sequences\":\"9\",\"best_val_loss\":null,\"sources\":[" list "]}"
#define SOURCE(weight, drawn, since)                                                               \
  "{\"data\":\"1\",\"weight\":" weight ",\"drawn\":\"" drawn "\",\"since\":\"" since "\"}"
  static const struct {
    const char *json, *word;
  } malformed[] = {
      {"", "JSON"},
      {"{", "JSON"},
      {"[]", "not an object"},
      {"{}", "'version' is missing"},
      {"{" COUNTS "\"sequences\":\"1\",\"best_val_loss\":null}", "'step' is missing"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":null,\"x\":1}",
       "'x' is unknown"},
      {"{" COUNTS "\"step\":1,\"step\":1,\"best_val_loss\":null}", "step appears twice"},
      {"{" COUNTS "\"step\":-1,\"sequences\":\"1\",\"best_val_loss\":null}",
       "'step' is not a whole"},
      {"{" COUNTS "\"step\":1.5,\"sequences\":\"1\",\"best_val_loss\":null}",
       "'step' is not a whole"},
      {"{" COUNTS "\"step\":9007199254740992,\"sequences\":\"1\",\"best_val_loss\":null}",
       "'step' is not a whole"},
      {"{" COUNTS "\"step\":\"1\",\"sequences\":\"1\",\"best_val_loss\":null}",
       "'step' is not a whole"},
      {"{" COUNTS "\"step\":0,\"sequences\":\"1\",\"best_val_loss\":null}", "cannot be"},
      {"{" COUNTS "\"step\":1,\"sequences\":1,\"best_val_loss\":null}", "string of digits"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"\",\"best_val_loss\":null}", "string of digits"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"-1\",\"best_val_loss\":null}", "string of digits"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"18446744073709551616\",\"best_val_loss\":null}",
       "string of digits"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":\"1\"}",
       "not a number or null"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":1e999}",
       "not a number or null"},
      {"{\"version\":3}", "'version' is not one of 1 to 2"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":null,\"data\":7}",
       "'data' is not a string of digits"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":null,\"backend\":7}",
       "'backend' is not a short text"},
      {"{" COUNTS "\"step\":1,\"sequences\":\"9\",\"best_val_loss\":null,\"sources\":7}",
       "'sources' is not a list of at most 64"},
      {SOURCES("{\"data\":\"1\",\"weight\":1,\"drawn\":\"9\"}"), "'since' is missing"},
      {SOURCES(SOURCE("0", "9", "9")), "a source's weight is not above 0"},
      {SOURCES(SOURCE("1.5", "9", "9")), "a source's weight is not above 0"},
      {SOURCES(SOURCE("1", "8", "9")), "its 'since' is above its 'drawn'"},
      {SOURCES(SOURCE("1", "-8", "9")), "string of digits"},
      {SOURCES(SOURCE("1", "5", "5") "," SOURCE("1", "5", "5")), "more sequences were drawn"},
  };
  TinyTest t = tiny_test_open(tied);
  for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
    TrainState back;
    tiny_test_write(&t, "state.json", malformed[i].json);
    expect_error(checkpoint_read_state(t.dir, &back, &err), &err, malformed[i].word);
    expect_error(-1, &err, "state.json");
  }
  TrainState back;
  tiny_test_write(&t, "state.json", // an older version's, which a resume had planned anew
                  "{" COUNTS "\"step\":1,\"sequences\":\"1\",\"best_val_loss\":1,\"schedule\":"
                  "{\"from\":1,\"warmup\":0,\"rate\":0,\"peak\":1}}");
  must(checkpoint_read_state(t.dir, &back, &err), &err);
  tiny_test_remove(&t, "state.json");
  expect_error(checkpoint_read_state(t.dir, &back, &err), &err, "train.init_from");
  tiny_test_close(&t);
}
