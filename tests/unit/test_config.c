// The configuration: what is accepted, what is refused and in which words, that the resolved form
// reads back as the same bytes, and that every file in configs/ is valid.
#include <dirent.h>
#include <unistd.h>

#include "tests/support/config_test.h"
#include "tests/support/test.h"
#include "model/run/backend.h"
#include "tests/support/tiny_run.h"

#define REFUSED(json, ...)                                                                         \
  expect_refusal(json, NULL, (const char *const[]){"c.json", __VA_ARGS__, NULL})
#define OVERRIDE_REFUSED(text, ...)                                                                \
  expect_refusal(MINIMAL, text, (const char *const[]){text, __VA_ARGS__, NULL})

static void expect_refusal(const char *json, const char *override, const char *const *words) {
  Config config;
  Error err = {""};
  char *copy = xstrdup(override ? override : "");
  if (config_parse(&config, "c.json", json, override ? 1 : 0, &copy, &err) == 0)
    fail_msg("accepted: %s %s", json, copy);
  free(copy);
  expect_words(&err, words);
}

static void expect_round_trip(const Config *config) {
  char *json = config_json(config);
  Config again;
  Error err = {""};
  memset(&again, 0xff, sizeof again);
  if (config_parse(&again, "resolved.json", json, 0, NULL, &err)) fail_msg("%s", err.text);
  assert_memory_equal(config, &again, sizeof again);
  free(json);
}

// ---- Accepted

TEST(a_minimal_file_gets_the_defaults) {
  const Config c = parse(MINIMAL);
  assert_int_equal(c.model.num_key_value_heads, 4);
  assert_int_equal(c.model.head_dim, 16);
  assert_int_equal(c.model.max_position_embeddings, 2048);
  assert_true(c.model.rope_theta == 500000 && c.model.rms_norm_eps == 1e-5);
  assert_int_equal(c.model.rope_scaling.type, ROPE_DEFAULT);
  assert_int_equal(c.train.batch_size, 8);
  assert_int_equal(c.train.seed, 1337);
  assert_int_equal(c.optimizer.schedule, SCHEDULE_COSINE);
  assert_true(c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.95 && c.optimizer.eps == 1e-8);
  assert_true(c.data.shuffle);
  assert_string_equal(c.data.val, "");
  assert_string_equal(c.output.dir, "runs/x");
}

TEST(the_resolved_configuration_reads_back_as_the_same_bytes) {
  char *overrides[] = {"optimizer.learning_rate=0.12345678901234567",
                       "optimizer.eps=1e-300",
                       "optimizer.min_learning_rate=4.9e-324",
                       "train.seed=9007199254740991",
                       "model.rope_theta=1234567.0000000002",
                       "data.val=\"a\\\"\\\\\\n\\t\\u00e9/\"",
                       "optimizer.weight_decay=0.1000000000000000055",
                       "optimizer.schedule=wsd",
                       "optimizer.decay_steps=3",
                       "backend.kernels=fused",
                       "model.rope_scaling={\"rope_type\": \"llama3\", " LLAMA3 "}"};
  const Config c = parse_with(MINIMAL, sizeof overrides / sizeof *overrides, overrides);
  assert_true(c.optimizer.learning_rate == 0.12345678901234567);
  assert_int_equal(c.train.seed, 9007199254740991);
  assert_string_equal(c.data.val, "a\"\\\n\t\xc3\xa9/");
  expect_round_trip(&c);
  const Config plain = parse(MINIMAL);
  expect_round_trip(&plain);
}

TEST(every_file_in_configs_is_valid) {
  DIR *folder = opendir("configs");
  assert_non_null(folder);
  int count = 0;
  for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    if (!strstr(entry->d_name, ".json")) continue;
    char *path = xasprintf("configs/%s", entry->d_name);
    Config c;
    // These go on with a Hugging Face folder, which is the user's.
    char *model = "model=tests/fixtures/llama3_rope";
    char *const overrides[] = {model, "train.sequence_length=64"};
    const bool continues =
        strcmp(entry->d_name, "continue.json") == 0 || strcmp(entry->d_name, "finetune.json") == 0;
    if (config_load(&c, path, continues ? 2 : 0, overrides, &err)) fail_msg("%s", err.text);
    expect_round_trip(&c);
    printf("# %s: %.1fM parameters, %.3g TFLOP a step\n", path,
           (double)model_parameters(&c.model, true) / 1e6, flops_per_step(&c) / 1e12);
    free(path);
    count++;
  }
  closedir(folder);
  assert_true(count >= 10);
}

TEST(a_file_on_disk_is_read_with_its_model_beside_it) {
  char folder[] = "/tmp/test-config-XXXXXX";
  assert_non_null(mkdtemp(folder));
  char *model = xasprintf("%s/hf.json", folder), *path = xasprintf("%s/run.json", folder);
  const char *hf = "{\"model_type\": \"llama\", " SIZES "}";
  const char *run = "{\"model\": \"hf.json\", " REST "}";
  assert_int_equal(file_write_atomic(model, hf, strlen(hf), &err), 0);
  assert_int_equal(file_write_atomic(path, run, strlen(run), &err), 0);
  char *overrides[] = {"model.hidden_size=96"};
  Config c;
  if (config_load(&c, path, 1, overrides, &err)) fail_msg("%s", err.text);
  assert_int_equal(c.model.hidden_size, 96);
  assert_int_equal(c.model.head_dim, 24);
  assert_true(c.model.rms_norm_eps == 1e-6 && c.model.rope_theta == 10000); // LlamaConfig's
  assert_int_equal(file_write_atomic(model, "{\"hidden_size\": \"x\"}", 20, &err), 0);
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){model, "hidden_size is \"x\"", NULL});
  assert_int_equal(file_write_atomic(model, "{\"num_attention_heads\": 1}", 26, &err), 0);
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){"hidden_size is missing", NULL});
  assert_int_equal(file_write_atomic(path, "{}\0{}", 5, &err), 0);
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){path, "NUL", "column 3", NULL});
  assert_int_equal(directory_remove(folder, &err), 0);
  free(model);
  free(path);
}

// ---- Refused

TEST(text_that_is_not_json_is_refused_with_line_and_column) {
  REFUSED("", "line 1, column 1", "the end of the file");
  REFUSED("{\n  \"train\": {\n    \"steps\": x\n}}", "line 3, column 14", "'x'");
  REFUSED("{\"train\": {\"steps\": 10,}}", "line 1, column 24", "'}'");
  REFUSED("{\"train\": {\"steps\": 10,\n  seed: 5}}", "line 2, column 3", "'s'");
  REFUSED("{\"train\": {\"steps\": [{}, {}x]}}", "line 1, column 28", "'x'");
  REFUSED(MINIMAL " \n x", "line 2, column 2", "'x'");
  REFUSED(MINIMAL "{}", "text after the JSON value");
  REFUSED("{\"train\\u0000x\": {}}", "NUL");
  REFUSED("[]", "JSON object");
  REFUSED("{\"train\": {\"steps\": NaN}}", "line 1, column 21", "'N'");
  char *deep = xmalloc(200001);
  memset(deep, '[', 200000);
  deep[200000] = '\0';
  REFUSED(deep, "not valid JSON");
  free(deep);
}

TEST(unknown_keys_are_refused_with_the_nearest) {
  REFUSED("{\"trian\": {}}", "trian", "did you mean train?");
  REFUSED("{\"nonsense\": {}}", "nonsense", "optimizer");
  REFUSED("{\"train\": {\"step\": 1}}", "train.step ", "did you mean train.steps?");
  REFUSED("{\"train\": {\"learning_rate\": 1}}", "did you mean optimizer.learning_rate?");
  REFUSED("{\"train\": {\"lr\": 1}}", "did you mean optimizer.learning_rate?");
  REFUSED("{\"lr\": 1}", "lr is not a section; did you mean optimizer.learning_rate?");
  REFUSED("{\"train\": {\"qqqqqq\": 1}}",
          "train.qqqqqq is not a key; ./train --help-config train lists them");
  REFUSED(WITH_MODEL("\"n_head\": 1"), "model.n_head");
  REFUSED(WITH_MODEL("\"architectures\": []"), "model.architectures");
  REFUSED(WITH_MODEL("\"rope_scaling\": {\"factr\": 1}"), "model.rope_scaling.factor");
}

TEST(duplicate_keys_are_refused) {
  REFUSED("{\"train\": {}, \"train\": {}}", "train appears twice");
  REFUSED("{\"train\": {\"steps\": 1, \"seed\": 2, \"steps\": 1}}", "train.steps appears twice");
  REFUSED(WITH_MODEL("\"hidden_size\": 64"), "model.hidden_size appears twice");
  REFUSED(WITH_MODEL("\"rope_scaling\": {\"factor\": 1, \"factor\": 1}"), "factor appears twice");
}

TEST(missing_keys_are_refused_by_name) {
  REFUSED("{" REST "}", "model.hidden_size is missing");
  REFUSED("{\"model\": {" SIZES "}}", "data.train is missing");
  REFUSED("{\"model\": {" SIZES "}, \"data\": {\"train\": \"t\"}}", "train.steps is missing");
}

TEST(values_of_the_wrong_type_or_out_of_range_are_refused) {
  REFUSED("{\"train\": 5}", "train must be an object");
  REFUSED("{\"model\": 5}", "model is 5", "config.json");
  REFUSED("{\"train\": {\"steps\": \"10\"}}", "train.steps is \"10\"", "a whole number from 1");
  REFUSED("{\"train\": {\"steps\": 1.5}}", "train.steps is 1.5", "a whole number");
  REFUSED("{\"train\": {\"steps\": 0}}", "train.steps is 0");
  REFUSED("{\"train\": {\"steps\": null}}", "train.steps is null");
  REFUSED("{\"train\": {\"steps\": 3000000000}}", "train.steps is 3000000000"); // > int
  REFUSED("{\"train\": {\"seed\": 9007199254740993}}", "train.seed", "from 0 to 9007199254740991");
  REFUSED("{\"train\": {\"seed\": 1e999}}", "train.seed is inf");
  REFUSED("{\"train\": {\"seed\": -1}}", "train.seed is -1");
  REFUSED("{\"optimizer\": {\"beta1\": 1}}", "optimizer.beta1 is 1", "at least 0 and below 1");
  REFUSED("{\"optimizer\": {\"eps\": 0}}", "optimizer.eps is 0", "above 0");
  REFUSED("{\"optimizer\": {\"clip_norm\": 1e999}}", "optimizer.clip_norm is inf");
  REFUSED("{\"optimizer\": {\"schedule\": \"cos\"}}",
          "\"constant\", \"cosine\", \"linear\" or \"wsd\"");
  REFUSED("{\"data\": {\"shuffle\": 1}}", "data.shuffle is 1", "true or false");
  REFUSED("{\"data\": {\"train\": \"\"}}", "data.train is \"\"",
          "a string or a list of 1 to 8191 bytes");
  char *json = xasprintf("{\"output\": {\"dir\": \"%01024d\"}}", 0);
  REFUSED(json, "output.dir", "1 to 1023 bytes");
  free(json);
  json = xasprintf("{\"output\": {\"dir\": \"%01023d\"}, \"train\": {\"steps\": 0}}", 0);
  REFUSED(json, "train.steps is 0"); // 1023 bytes were accepted
  free(json);
}

TEST(keys_that_contradict_each_other_are_refused) {
  REFUSED(WITH_MODEL("\"num_key_value_heads\": 3"), "num_key_value_heads is 3", "which is 4");
  REFUSED(WITH_MODEL("\"head_dim\": 15"), "head_dim is 15", "even");
  OVERRIDE_REFUSED("model.hidden_size=62", "hidden_size is 62");
  OVERRIDE_REFUSED("model.hidden_size=60", "head_dim is 15");
  OVERRIDE_REFUSED("train.sequence_length=4096", "max_position_embeddings, which is 2048");
  OVERRIDE_REFUSED("train.loss_chunks=3", "train.loss_chunks is 3");
  OVERRIDE_REFUSED("train.batch_size=16777216", "gradient_accumulation");
  OVERRIDE_REFUSED("optimizer.min_learning_rate=1", "min_learning_rate is 1");
  OVERRIDE_REFUSED("optimizer.schedule=wsd", "decay_steps is 0");
  OVERRIDE_REFUSED("model.rope_scaling.rope_type=llama3", "rope_scaling.factor is missing");
  OVERRIDE_REFUSED("model.rope_scaling={\"rope_type\": \"llama3\", \"factor\": 8, "
                   "\"low_freq_factor\": 4, \"high_freq_factor\": 4, "
                   "\"original_max_position_embeddings\": 8}",
                   "high_freq_factor is 4");
}

// The user's last word on one of the keys, else the file.
TEST(a_contradiction_is_blamed_on_what_was_typed) {
  char *wide[] = {"train.steps=9", "model.max_position_embeddings=16", "train.seed=2"},
       *long_[] = {"model.max_position_embeddings=16", "train.sequence_length=20"},
       *layers[] = {"train.recompute=mlp", "train.recompute_layers=3"},
       *folder[] = {"model=tests/fixtures/llama3_rope", "train.sequence_length=130"};
  const struct {
    char **overrides;
    int count;
    const char *begins;
  } cases[] = {
      {wide, 3, "override 'model.max_position_embeddings=16': train.sequence_length is 32, but"},
      {long_, 2, "override 'train.sequence_length=20': train.sequence_length is 20, but"},
      {layers, 2, "override 'train.recompute_layers=3': train.recompute_layers is 3, but"},
      {folder, 2, "override 'train.sequence_length=130': train.sequence_length is 130, but"},
      {NULL, 0, "c.json: train.loss_chunks is 3, but it must divide train.batch_size x "}};
  const char json[] =
      "{\"model\": {" SIZES "}, \"data\": {\"train\": \"t\"}, \"output\": {\"dir\": \"o\"}, "
      "\"train\": {\"steps\": 10, \"sequence_length\": 32, \"loss_chunks\": 3}}";
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Config c;
    assert_int_equal(config_parse(&c, "c.json", cases[i].count ? MINIMAL : json, cases[i].count,
                                  cases[i].overrides, &err),
                     -1);
    if (strncmp(err.text, cases[i].begins, strlen(cases[i].begins)) != 0) fail_msg("%s", err.text);
  }
}

// Products sum over groups of 16.
TEST(fp8_takes_sizes_in_multiples_of_16) {
#define IN(precision)                                                                              \
  "{\"model\": {" SIZES "}, \"backend\": {\"precision\": \"" precision "\"}, " REST "}"
  static const struct {
    const char *override, *name;
  } odd[] = {{"model.hidden_size=72", "model.hidden_size is 72"},
             {"model.intermediate_size=136", "model.intermediate_size is 136"},
             {"model.head_dim=2", "x model.head_dim is 8"},
             {"train.sequence_length=31", "x train.sequence_length is 248"},
             {"train.loss_chunks=32", "/ train.loss_chunks is 8"}};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    char *override = xstrdup(odd[i].override);
    parse_with(MINIMAL, 1, &override);
    const char *const words[] = {odd[i].name, "\"fp8\"", "a multiple of 16", NULL};
    expect_refusal(IN("fp8"), override, words);
    free(override);
  }
  assert_int_equal(parse(IN("fp8")).backend.precision, PRECISION_FP8);
  assert_int_equal(parse(MINIMAL).backend.precision, PRECISION_BF16);
  REFUSED(IN("fp16"), "backend.precision is \"fp16\"", "\"bf16\" or \"fp8\"");
  REFUSED("{\"model\": {" SIZES ", \"head_dim\": 4, \"num_key_value_heads\": 1}, "
          "\"backend\": {\"precision\": \"fp8\"}, " REST "}",
          "x model.head_dim is 24", "\"bf16\"");
}

// ---- Overrides

TEST(overrides_apply_in_order) {
  char *overrides[] = {"train.steps=20",        "train.steps=30",
                       "output.dir=123",        "data.val=a b*.bin",
                       "train.resume=\"auto\"", "optimizer.schedule=constant",
                       "data.shuffle=false",    "model.tie_word_embeddings=true",
                       "train.init_from=x=y"};
  const Config c = parse_with(MINIMAL, sizeof overrides / sizeof *overrides, overrides);
  assert_int_equal(c.train.steps, 30);
  assert_string_equal(c.output.dir, "123");
  assert_string_equal(c.data.val, "a b*.bin");
  assert_string_equal(c.train.resume, "auto");
  assert_int_equal(c.optimizer.schedule, SCHEDULE_CONSTANT);
  assert_true(!c.data.shuffle && c.model.tie_word_embeddings);
  assert_string_equal(c.train.init_from, "x=y");
}

TEST(a_shorter_text_leaves_nothing_of_a_longer_one) {
  char *twice[] = {"output.dir=a-much-longer-name", "output.dir=b"}, *once[] = {"output.dir=b"};
  const Config a = parse_with(MINIMAL, 2, twice), b = parse_with(MINIMAL, 1, once);
  assert_memory_equal(&a, &b, sizeof a);
}

TEST(a_bad_override_is_refused_by_name) {
  OVERRIDE_REFUSED("train.steps", "is not section.key=value; did you mean train.steps=VALUE?");
  OVERRIDE_REFUSED("train.stesp=5", "did you mean train.steps?");
  OVERRIDE_REFUSED("trian.steps=5", "did you mean train.steps?");
  OVERRIDE_REFUSED("optimizer.lr=1", "did you mean optimizer.learning_rate?");
  OVERRIDE_REFUSED("steps=5", "is not a section; did you mean train.steps?");
  OVERRIDE_REFUSED("train=5", "train.KEY=VALUE");
  OVERRIDE_REFUSED("train.steps=abc", "train.steps is \"abc\"", "a whole number");
  OVERRIDE_REFUSED("train.steps=", "train.steps is \"\"");
  OVERRIDE_REFUSED("train.seed=18446744073709551615", "train.seed is more than 9007199254740991,");
  OVERRIDE_REFUSED("train.seed=9007199254740993", "train.seed is more than 9007199254740991,");
  OVERRIDE_REFUSED("train.seed=-18446744073709551615", "is less than -9007199254740991,");
  OVERRIDE_REFUSED("optimizer.eps=nan", "optimizer.eps is \"nan\"");
  OVERRIDE_REFUSED("data.shuffle=yes", "true or false");
  OVERRIDE_REFUSED("backend.device=gpu", "\"auto\", \"cuda\" or \"cpu\"");
  OVERRIDE_REFUSED("=", "is not a section");
  OVERRIDE_REFUSED("model=/nowhere/config.json", "/nowhere/config.json");
}

TEST(a_checkpoint_may_have_keys_of_another_version) {
  Config config;
  const Config plain = parse(MINIMAL);
  const char old[] = "{\"model\": {" SIZES "}, \"data\": {\"train\": \"t.bin\"},"
                     " \"output\": {\"dir\": \"runs/x\"}, \"train\": {\"steps\": 10,"
                     " \"sequence_length\": 32, \"sample_temperature\": 0.5}}";
  expect_error(config_parse(&config, "c.json", old, 0, NULL, &err), &err,
               "c.json: train.sample_temperature is not a key");
  char *folder = temporary_folder();
  const PathText path = path_text("%s/run.json", folder);
  must(file_write(path.text, old, strlen(old), &err), &err);
  must(config_load_saved(&config, path.text, &err), &err);
  assert_memory_equal(&config, &plain, sizeof config);
  must(directory_remove(folder, &err), &err);
  free(folder);
}

TEST(a_model_override_replaces_a_model_file_that_is_not_there) {
  char *overrides[] = {"model={" SIZES "}", "model.hidden_size=128"};
  const Config c = parse_with("{\"model\": \"/nowhere/config.json\", " REST "}", 2, overrides);
  assert_int_equal(c.model.hidden_size, 128);
}

TEST(a_sequence_is_as_long_as_the_model_allows_by_default) {
  const char *const json = "{\"model\": {" SIZES "}, \"data\": {\"train\": \"t\"},"
                           " \"train\": {\"steps\": 1}, \"output\": {\"dir\": \"o\"}}";
  char *positions[] = {"model.max_position_embeddings=4095", "train.batch_size=1"};
  assert_int_equal(parse_with(json, 2, positions).train.sequence_length, 4095);
  positions[0] = "model.max_position_embeddings=131072";
  assert_int_equal(parse_with(json, 2, positions).train.sequence_length, 4096);
}

// ---- Resume

static Config with(char *override) {
  return parse_with(MINIMAL, 1, &override);
}

TEST(only_keys_that_shape_the_run_must_be_equal_on_resume) {
  const Config saved = parse(MINIMAL);
  char *const free_keys[] = {"train.save_interval=7", "train.eval_interval=7",
                             "train.resume=auto",     "train.keep_checkpoints=9",
                             "output.dir=elsewhere",  "backend.threads=3",
                             "backend.device=cpu",    "train.resume_allow_changes=true",
                             "train.init_from=x",     "train.sample_tokens=9",
                             "backend.precision=fp8", "train.steps=11",
                             "optimizer.beta2=0.5",   "optimizer.learning_rate=1"};
  for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
    const Config now = with(free_keys[i]);
    if (config_compare(&saved, &now, &err)) fail_msg("%s: %s", free_keys[i], err.text);
  }
  char *const shaping[] = {"train.batch_size=2",
                           "train.seed=1",
                           "data.shuffle=false",
                           "model.rope_theta=7",
                           "backend.kernels=fused",
                           "train.sequence_length=16",
                           "train.gradient_accumulation=2",
                           "model.rope_scaling={\"rope_type\": \"llama3\", " LLAMA3 "}"};
  for (size_t i = 0; i < sizeof shaping / sizeof *shaping; i++) {
    const Config now = with(shaping[i]);
    if (config_compare(&saved, &now, &err) == 0) fail_msg("%s was let through", shaping[i]);
  }
  char *both[] = {"train.seed=11", "data.train=u.bin", "train.steps=11", "train.resume=auto"};
  const Config now = parse_with(MINIMAL, 4, both);
  assert_int_equal(config_compare(&saved, &now, &err), -1);
  expect_words(
      &err, (const char *const[]){"train.seed was 1337 and is 11", "resume_allow_changes", NULL});
  assert_null(strstr(err.text, "data.train")); // the tokens are compared, not their path
  char *changes = config_changes(&saved, &now);
  assert_string_equal(changes, "data.train \"t.bin\" -> \"u.bin\", train.steps 10 -> 11, "
                               "train.seed 1337 -> 11");
  free(changes);
}

// Each of them with permission, too; the others with it alone.
TEST(no_permission_is_advised_where_the_weights_would_not_fit) {
  const Config saved = parse(MINIMAL);
  static const struct {
    const char *override;
    bool fits;
  } cases[] = {{"model.hidden_size=32", false},
               {"model.intermediate_size=64", false},
               {"model.num_hidden_layers=3", false},
               {"model.num_attention_heads=8", true},
               {"model.num_attention_heads=2", true},
               {"model.num_key_value_heads=2", false},
               {"model.head_dim=32", false},
               {"model.vocab_size=300", false},
               {"model.tie_word_embeddings=true", false},
               {"model.rms_norm_eps=1e-6", true},
               {"model.rope_theta=7", true},
               {"train.batch_size=2", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *key = xasprintf("%.*s was ", (int)strcspn(cases[i].override, "="), cases[i].override);
    char *overrides[] = {xstrdup(cases[i].override), "train.resume_allow_changes=true"};
    const Config asked = parse_with(MINIMAL, 1, overrides),
                 allowed = parse_with(MINIMAL, 2, overrides);
    assert_int_equal(config_compare(&saved, &asked, &err), -1);
    expect_words(&err, (const char *const[]){key, NULL});
    assert_int_equal(strstr(err.text, "resume_allow_changes") != NULL, cases[i].fits);
    assert_int_equal(config_compare(&saved, &allowed, &err), cases[i].fits ? 0 : -1);
    free(overrides[0]);
    free(key);
  }
}

TEST(the_printed_table_names_every_key_of_a_resolved_configuration) {
  char path[] = "/tmp/test-config-keys-XXXXXX";
  const int file = mkstemp(path), saved = dup(STDOUT_FILENO);
  assert_true(file >= 0 && saved >= 0);
  fflush(stdout);
  dup2(file, STDOUT_FILENO);
  assert_int_equal(config_print_keys("", &err), 0);
  fflush(stdout);
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(file);
  char *table;
  size_t bytes;
  assert_int_equal(file_read(path, 1 << 20, &table, &bytes, &err), 0);
  unlink(path);
  const Config c = parse(WITH_MODEL("\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}"));
  char *json = config_json(&c);
  int keys = 0;
  for (char *line = strtok(json, "\n"); line; line = strtok(NULL, "\n")) {
    char name[64], wanted[80];
    if (sscanf(line, " \"%63[a-z0-9_]\": %*[^{]", name) != 1 || strchr(line, '{')) continue;
    snprintf(wanted, sizeof wanted, ".%s", name);
    const char *at = strstr(table, wanted);
    while (at && !strchr("= ", at[strlen(wanted)])) at = strstr(at + 1, wanted);
    if (!at) fail_msg("%s is not in the table", name);
    keys++;
  }
  free(json);
  free(table);
  printf("# %d keys\n", keys);
  assert_true(keys > 50);
}
