// A Hugging Face folder as the model: what the configuration takes from it, what init_from checks,
// and what our config.json carries over from another one.
#include "base/json.h"
#include "tests/support/config_test.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define HF_CONFIG "{\"model_type\": \"llama\", " SIZES ", \"rope_theta\": 7e5"

static void put(const char *folder, const char *name, const char *text) {
  put_file(path_text("%s/%s", folder, name).text, text);
}

// A folder with a config.json.
static char *folder_with(const char *config) {
  char *folder = temporary_folder();
  put(folder, "config.json", config);
  return folder;
}

static Config parse_folder(const char *folder, const char *extra) {
  char *json = held_text("{\"model\": \"%s\", \"data\": {\"train\": \"t.bin\"}, "
                         "\"train\": {\"steps\": 10, \"sequence_length\": 32%s}, "
                         "\"output\": {\"dir\": \"runs/x\"}}",
                         folder, extra);
  return parse(json);
}

TEST(a_folder_gives_sizes_weights_and_tokenizer) {
  char *folder = folder_with(HF_CONFIG "}");
  Config c = parse_folder(folder, "");
  assert_int_equal(c.model.hidden_size, 64);
  assert_true(c.model.rope_theta == 7e5 && c.model.rms_norm_eps == 1e-6);
  assert_string_equal(c.train.init_from, folder);
  assert_string_equal(c.data.tokenizer, ""); // it has none
  put(folder, "tokenizer.json", "{}");
  c = parse_folder(folder, "");
  assert_string_equal(c.data.tokenizer, folder);
  assert_string_equal(parse_folder(folder, ", \"init_from\": \"\"").train.init_from, "");
  char *json = held(config_json(&c)); // needs the folder no more
  const Config again = parse(json);
  assert_memory_equal(&c, &again, sizeof c);
}

TEST(an_override_may_be_a_folder_or_a_file) {
  char *folder = folder_with(HF_CONFIG "}");
  char *as_folder = held_text("model=%s", folder);
  char *as_file = held_text("model=%s/config.json", folder);
  char *own = "train.init_from=elsewhere";
  Config c = parse_with(MINIMAL, 1, &as_folder);
  assert_true(c.model.rope_theta == 7e5);
  assert_string_equal(c.train.init_from, folder);
  c = parse_with(MINIMAL, 2, (char *[]){own, as_folder});
  assert_string_equal(c.train.init_from, "elsewhere");
  c = parse_with(MINIMAL, 1, &as_file); // the sizes alone
  assert_true(c.model.rope_theta == 7e5);
  assert_string_equal(c.train.init_from, "");
  c = parse_with(MINIMAL, 2, (char *[]){as_folder, as_file});
  assert_string_equal(c.train.init_from, "");
}

TEST(a_folder_is_looked_for_beside_the_config_first) {
  Config c;
  char *folder = temporary_folder(), *base = held_text("%s/base", folder);
  must(directory_create(base, &err), &err);
  put(base, "config.json", HF_CONFIG "}");
  put(folder, "c.json", "{\"model\": \"base\", " REST "}");
  must(config_load(&c, path_text("%s/c.json", folder).text, 0, NULL, &err), &err);
  assert_string_equal(c.train.init_from, base);
  put(folder, "c.json", "{\"model\": \"tests/fixtures/gqa_untied\", " REST "}");
  must(config_load(&c, path_text("%s/c.json", folder).text, 0, NULL, &err), &err);
  assert_string_equal(c.train.init_from, "tests/fixtures/gqa_untied");
}

TEST(a_folder_without_config_json_is_refused) {
  char *folder = temporary_folder(), *json = held_text("{\"model\": \"%s\", " REST "}", folder);
  Config c;
  expect_error(config_parse(&c, "c.json", json, 0, NULL, &err), &err, "config.json");
  expect_words(&err, (const char *const[]){"c.json: model", folder, NULL});
  const ModelConfig model = {0};
  expect_error(model_config_check(&model, folder, &err), &err, "has no config.json");
  put(folder, "config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  expect_error(model_config_check(&model, folder, &err), &err, "git-lfs pointer");
}

// ---- train.init_from beside a model section

TEST(init_from_is_checked_field_by_field) {
  const struct {
    const char *theirs, *words[3]; // no words: accepted
  } cases[] = {
      {"", {NULL}},
      {", \"initializer_range\": 0.5", {NULL}},
      {", \"max_position_embeddings\": 32", {NULL}}, // ours is 2048
      {", \"max_position_embeddings\": 4096", {"max_position_embeddings 4096 -> 2048"}},
      {", \"rms_norm_eps\": 1e-5", {"model.rms_norm_eps 1e-05 -> 1e-06", "FOLDER"}},
      {", \"num_key_value_heads\": 2, \"head_dim\": 8",
       {"num_key_value_heads 2 -> 4", "head_dim 8 -> 16"}},
      {", \"tie_word_embeddings\": true", {"tie_word_embeddings true -> false"}},
      {", \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}",
       {"rope_type \"llama3\" -> \"default\"", "factor 8.0 -> 0.0"}},
      {", \"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2}",
       {"config.json", "rope_type is \"dynamic\""}},
      {", \"attention_bias\": true", {"attention_bias is true"}},
  };
  char *ours = folder_with(HF_CONFIG "}");
  const Config c = parse_folder(ours, "");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *json = held_text(HF_CONFIG "%s}", cases[i].theirs), *folder = folder_with(json);
    const int status = model_config_check(&c.model, folder, &err);
    if ((status != 0) != (cases[i].words[0] != NULL)) fail_msg("%s: '%s'", json, err.text);
    expect_words(&err, cases[i].words);
  }
  put(ours, "config.json", "{\"model_type\": \"qwen2\", " SIZES "}");
  expect_error(model_config_check(&c.model, ours, &err), &err, "model_type is \"qwen2\"");
}

// ---- What our config.json carries over

static const char foreign[] =
    "{\n  \"_name_or_path\": \"x\\\"y\", \"architectures\": [\"Other\"], \"bos_token_id\": 1,\n"
    "  \"eos_token_id\": [2, 3], \"pad_token_id\": 0, \"dtype\": \"float16\", \"hidden_size\": 9,\n"
    "  \"rope_parameters\": {\"rope_theta\": 1.0, \"rope_type\": \"default\"}, \"use_cache\": "
    "false, \"sliding_window\": 9,"
    "\n  \"a \\\"key\\\"\": {\"b\": [1.0, 1e-7, \"}\", null]}, \"float\": 3.0,\n"
    "  \"attention_bias\": false, \"hidden_act\": \"silu\"}\n";

static cJSON *written(const ConfigExtras *extras) {
  const Config c = parse(MINIMAL);
  Error err = {""};
  ModelConfig again;
  char *json = held(model_config_json(&c.model, extras));
  must(model_config_parse(&again, "written", json, &err), &err);
  assert_memory_equal(&again, &c.model, sizeof again);
  return hold_json(json_parse("written", json, strlen(json), &err), &err);
}

static void expect_field(const cJSON *tree, const char *name, const char *json) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(tree, name);
  char *text = item ? cJSON_PrintUnformatted(item) : xstrdup("nothing");
  assert_string_equal(text, json);
  free(text);
}

TEST(fields_that_we_do_not_set_are_carried_over) {
  ConfigExtras x = {.bos = 256, .eos = 257, .dtype = SAVE_BF16, .carried = foreign};
  for (int carry = 0; carry < 2; carry++) {
    x.carry_ids = carry;
    cJSON *tree = written(&x);
    expect_field(tree, "bos_token_id", carry ? "1" : "256");
    expect_field(tree, "eos_token_id", carry ? "[2,3]" : "257");
    expect_field(tree, "pad_token_id", "0");
    expect_field(tree, "_name_or_path", "\"x\\\"y\"");
    expect_field(tree, "a \"key\"", "{\"b\":[1,1e-07,\"}\",null]}");
    expect_field(tree, "use_cache", "false");
    expect_field(tree, "torch_dtype", "\"bfloat16\"");
    expect_field(tree, "hidden_size", "64");
    expect_field(tree, "architectures", "[\"LlamaForCausalLM\"]");
    expect_field(tree, "dtype", "nothing");
    expect_field(tree, "rope_parameters", "nothing");
    expect_field(tree, "sliding_window", "nothing");
  }
  const Config c = parse(MINIMAL);
  char *json = held(model_config_json(&c.model, &x));
  assert_non_null(strstr(json, "\"float\": 3.0")); // an integer would be another type
}

TEST(carried_ids_that_are_not_there_come_from_the_tokenizer) {
  const ConfigExtras x = {.bos = -1, .eos = 5, .carried = "{}", .carry_ids = true};
  cJSON *tree = written(&x);
  expect_field(tree, "bos_token_id", "null");
  expect_field(tree, "eos_token_id", "5");
  expect_field(tree, "use_cache", "true");
  expect_field(tree, "torch_dtype", "\"float32\"");
}

// A resumed run carries over what it has written itself.
TEST(what_we_wrote_is_carried_over_in_the_same_bytes) {
  const Config c = parse(MINIMAL);
  const char *const from[] = {NULL, foreign, "{}"};
  for (int i = 0; i < 6; i++) {
    ConfigExtras x = {.bos = -1, .eos = 257, .carried = from[i / 2], .carry_ids = i % 2};
    char *whole = held(model_config_json(&c.model, &x));
    x.carried = whole;
    x.carry_ids = true;
    char *resumed = held(model_config_json(&c.model, &x));
    assert_string_equal(resumed, whole);
  }
}
