// Checkpoints for other programs: weights in bf16 and in shards, ids and tokenizer, what is carried
// over from the folder that the run started from.
#include "base/json.h"
#include "data/safetensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

static const char untied[] = "\"tie_word_embeddings\": false";

static void save(TinyTest *t, int64_t step, uint64_t version, const Export *export) {
  Error err = {""};
  tiny_run_fill(t->run, version);
  const TrainState state = tiny_state(step, version);
  must(tiny_run_save(t->run, t->dir, export, &state, 9, &err), &err);
}

static cJSON *read_json(const TinyTest *t, const char *name) {
  Error err = {""};
  return hold_json(json_read(tiny_test_path(t, name).text, 1 << 20, &err), &err);
}

static void expect_field(const TinyTest *t, const char *file, const char *name, const char *json) {
  cJSON *tree = read_json(t, file);
  char *text = held(cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(tree, name)));
  if (!text || strcmp(text, json) != 0)
    fail_msg("%s: %s is %s, not %s", file, name, text ? text : "not there", json);
}

// ---- Weights

TEST(a_bf16_value_is_the_nearest_one) {
  TinyTest *t = tiny_test_open(untied);
  const float values[] = {1.0f,      0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -0x1.01p0f,
                          0x1p-149f, INFINITY,  -0.0f,     NAN,           0x1.fffffep127f};
  const uint16_t expected[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80,
                               0,      0x7f80, 0x8000, 0x7fc0, 0x7f80};
  enum { COUNT = sizeof values / sizeof *values };
  SafeTensor tensor = {.name = "x", .dtype = SAFE_BF16, .rank = 1, .shape = {COUNT}};
  SafeWriter w;
  SafeFile file;
  must(safetensors_create(&w, tiny_test_path(t, "x").text, -1, 1, &tensor, &err), &err);
  must(safetensors_append_f32(&w, SAFE_BF16, values, COUNT, &err), &err);
  must(safetensors_finish(&w, &err), &err);
  safe_open(&file, tiny_test_path(t, "x").text);
  assert_memory_equal(safe_data(&file, file.tensors), expected, sizeof expected);
  safetensors_close(&file);
}

TEST(large_weights_are_sharded_and_indexed) {
  TinyTest *t = tiny_test_open(untied);
  const Export export = {.shard_bytes = 4000};
  save(t, 7, 1, NULL);
  SafeFile whole;
  must(safetensors_open(&whole, tiny_test_path(t, "latest/model.safetensors").text, &err), &err);
  uint64_t total = 0;
  for (int i = 0; i < whole.count; i++) total += whole.tensors[i].end - whole.tensors[i].begin;

  save(t, 8, 2, &export);
  assert_false(tiny_test_has(t, "latest/model.safetensors"));
  cJSON *index = read_json(t, "latest/model.safetensors.index.json");
  const cJSON *map = cJSON_GetObjectItem(index, "weight_map"),
              *size = cJSON_GetObjectItem(cJSON_GetObjectItem(index, "metadata"), "total_size");
  assert_int_equal(cJSON_GetArraySize(map), whole.count);
  assert_int_equal((uint64_t)size->valuedouble, total);
  int most = 0;
  for (const cJSON *item = map->child; item; item = item->next) {
    if (item->next) assert_true(strcmp(item->string, item->next->string) < 0);
    int shard, shards;
    assert_int_equal(sscanf(item->valuestring, "model-%5d-of-%5d", &shard, &shards), 2);
    assert_in_range(shard, 1, shards);
    if (shard > most) most = shard;
    SafeFile file;
    const PathText path = path_text("%s/latest/%s", t->dir, item->valuestring);
    must(safetensors_open(&file, path.text, &err), &err);
    if (!safetensors_find(&file, item->string)) fail_msg("%s lacks %s", path.text, item->string);
    const uint64_t bytes = file.tensors[file.count - 1].end;
    if (bytes > 4000 && file.count > 1) fail_msg("%s has %d bytes", path.text, (int)bytes);
    safetensors_close(&file);
  }
  assert_in_range(most, 3, whole.count);
  assert_true(
      tiny_test_has(t, path_text("latest/model-%05d-of-%05d.safetensors", most, most).text));
  safetensors_close(&whole);

  tiny_test_remove(t, path_text("latest/model-00002-of-%05d.safetensors", most).text);
  // Not complete any more.
  assert_string_equal(tiny_newest(t->dir).text, tiny_test_path(t, "step-00000007").text);
}

TEST(a_folder_without_safetensors_says_what_it_has) {
#define POINTER "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
  static const struct {
    const char *file, *text, *words; // each stands beside those before it
  } cases[] = {{"config.json", "{}", "has no weights"},
               {"pytorch_model.bin", "PK", "has its weights in pytorch_model.bin only"},
               {"model.safetensors.index.json", POINTER, "git-lfs pointer"},
               {"model.safetensors", POINTER, "git lfs pull"}};
  TinyTest *t = tiny_test_open(untied);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tiny_test_write(t, cases[i].file, cases[i].text);
    expect_error(tiny_test_load(t, false, &err), &err, cases[i].words);
  }
}

// ---- The tokenizer, and what is carried over

static Tokenizer *bytes_tokenizer(void) {
  Error err = {""};
  return must_make(tokenizer_open(BYTES_NAME, &err), &err);
}

TEST(a_checkpoint_names_the_tokens_around_a_document) {
  TinyTest *t = tiny_test_open(untied);
  Export export;
  Tokenizer *tokenizer = bytes_tokenizer();
  save(t, 1, 1, NULL);
  expect_field(t, "latest/config.json", "bos_token_id", "null");
  assert_false(tiny_test_has(t, "latest/generation_config.json"));
  must(export_open(&export, tokenizer, "", &err), &err);
  save(t, 2, 1, &export);
  for (int i = 0; i < 2; i++) {
    const char *file = i ? "latest/generation_config.json" : "latest/config.json";
    expect_field(t, file, "bos_token_id", "256");
    expect_field(t, file, "eos_token_id", "257");
  }
  export_close(&export);
  tokenizer_close(tokenizer);
}

static const char generation[] = "{ \"temperature\": 0.6, \"eos_token_id\": [1, 2]}";

TEST(what_the_run_started_from_is_carried_over) {
  TinyTest *t = tiny_test_open(untied);
  tiny_test_write(t, "config.json",
                  "{\"pad_token_id\": 3, \"eos_token_id\": [1, 2], \"x\": \"y\"}");
  tiny_test_write(t, "generation_config.json", generation);
  static const char *const carried[] = {"special_tokens_map.json", "tokenizer.json",
                                        "tokenizer.model", "chat_template.jinja"};
  for (int i = 0; i < 4; i++) tiny_test_write(t, carried[i], "{{ not one to be read }}");
  tiny_test_write(t, "README.md", "not ours to tell");
  Export export;
  const PathText first = tiny_test_path(t, "step-00000001");
  const char *from = t->dir;
  for (int step = 1; step <= 2; step++) { // the second time from our own checkpoint
    must(export_open(&export, NULL, from, &err), &err);
    save(t, step, 1, &export);
    export_close(&export);
    expect_field(t, "latest/config.json", "pad_token_id", "3");
    expect_field(t, "latest/config.json", "eos_token_id", "[1,2]");
    expect_field(t, "latest/config.json", "x", "\"y\"");
    expect_field(t, "latest/config.json", "hidden_size", "16");
    size_t bytes;
    char *text = tiny_test_read(t, "latest/generation_config.json", &bytes);
    assert_string_equal(text, generation); // byte for byte
    for (int i = 0; i < 4; i++)
      assert_true(tiny_test_has(t, path_text("latest/%s", carried[i]).text));
    assert_false(tiny_test_has(t, "latest/README.md"));
    from = first.text;
  }
}

// Fields of another tokenizer's folder are kept, but its ids and files would be wrong.
TEST(another_tokenizers_files_are_not_carried_over) {
  TinyTest *t = tiny_test_open(untied);
  Tokenizer *tokenizer = bytes_tokenizer();
  tiny_test_write(t, "config.json", "{\"pad_token_id\": 3, \"eos_token_id\": [1, 2]}");
  tiny_test_write(t, "generation_config.json", generation);
  tiny_test_write(t, "tokenizer.json", "{}");
  tiny_test_write(t, "tokenizer.model", "binary");
  Export export;
  must(export_open(&export, tokenizer, t->dir, &err), &err);
  save(t, 1, 1, &export);
  export_close(&export);
  expect_field(t, "latest/config.json", "pad_token_id", "3");
  expect_field(t, "latest/config.json", "eos_token_id", "257");
  expect_field(t, "latest/generation_config.json", "eos_token_id", "257");
  assert_false(tiny_test_has(t, "latest/tokenizer.model"));
  tokenizer_close(tokenizer);
}

TEST(what_cannot_be_carried_over_is_refused) {
  static const struct {
    const char *file, *text, *words; // NULL: the folder is empty
  } cases[] = {{NULL, NULL, "config.json"},
               {"config.json", "[1]", "not a JSON object"},
               {"config.json", "{\"a\": 1", "not valid JSON"},
               {"config.json", "{}", NULL},
               {"tokenizer.model", POINTER, "git-lfs pointer"}};
  Export export;
  TinyTest *t = tiny_test_open(untied);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (cases[i].file) tiny_test_write(t, cases[i].file, cases[i].text);
    if (!cases[i].words) continue;
    expect_error(export_open(&export, NULL, t->dir, &err), &err, cases[i].words);
  }
}
