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

static void expect_refusal(const char *json, const char *override, const char *const *words) {
  Config config;
  Error err = {""};
  char *copy = held(xstrdup(override ? override : ""));
  if (config_parse(&config, "c.json", json, override ? 1 : 0, &copy, &err) == 0)
    fail_msg("accepted: %s %s", json, copy);
  expect_words(&err, words);
}

static void expect_round_trip(const Config *config) {
  char *json = held(config_json(config));
  Config again;
  Error err = {""};
  memset(&again, 0xff, sizeof again);
  must(config_parse(&again, "resolved.json", json, 0, NULL, &err), &err);
  assert_memory_equal(config, &again, sizeof again);
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
  assert_true(c.optimizer.norm_rate == 1);
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
    char *path = held_text("configs/%s", entry->d_name);
    Config c;
    // These go on with a Hugging Face folder, which is the user's.
    char *model = "model=tests/fixtures/llama3_rope";
    char *const overrides[] = {model, "train.sequence_length=64"};
    const bool continues = strcmp(entry->d_name, "continue.json") == 0 ||
                           strncmp(entry->d_name, "finetune", strlen("finetune")) == 0;
    must(config_load(&c, path, continues ? 2 : 0, overrides, &err), &err);
    expect_round_trip(&c);
    printf("# %s: %.1fM parameters, %.3g TFLOP a step\n", path,
           (double)model_parameters(&c.model, true) / 1e6, flops_per_step(&c) / 1e12);
    count++;
  }
  closedir(folder);
  assert_true(count >= 10);
}

TEST(a_file_on_disk_is_read_with_its_model_beside_it) {
  const char *const folder = temporary_folder();
  char *model = held_text("%s/hf.json", folder), *path = held_text("%s/run.json", folder);
  const char *hf = "{\"model_type\": \"llama\", " SIZES "}";
  const char *run = "{\"model\": \"hf.json\", " REST "}";
  put_file(model, hf);
  put_file(path, run);
  char *overrides[] = {"model.hidden_size=96"};
  Config c;
  must(config_load(&c, path, 1, overrides, &err), &err);
  assert_int_equal(c.model.hidden_size, 96);
  assert_int_equal(c.model.head_dim, 24);
  assert_true(c.model.rms_norm_eps == 1e-6 && c.model.rope_theta == 10000); // LlamaConfig's
  put_file(model, "{\"hidden_size\": \"x\"}");
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){model, "hidden_size is \"x\"", NULL});
  put_file(model, "{\"num_attention_heads\": 1}");
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){"hidden_size is missing", NULL});
  must(file_write_atomic(path, "{}\0{}", 5, &err), &err);
  assert_int_equal(config_load(&c, path, 0, NULL, &err), -1);
  expect_words(&err, (const char *const[]){path, "NUL", "column 3", NULL});
}

// ---- Refused

// Most of it is in rows of tests/fixtures/messages.txt.
TEST(what_is_deep_or_long_is_refused) {
  char *deep = held(xmalloc(200001));
  memset(deep, '[', 200000);
  deep[200000] = '\0';
  REFUSED(deep, "not valid JSON");
  REFUSED(held_text("{\"output\": {\"dir\": \"%01024d\"}}", 0), "output.dir", "1 to 1023 bytes");
  REFUSED(held_text("{\"output\": {\"dir\": \"%01023d\"}, \"train\": {\"steps\": 0}}", 0),
          "train.steps is 0"); // 1023 bytes were accepted
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
    char *override = held(xstrdup(odd[i].override));
    parse_with(MINIMAL, 1, &override);
    const char *const words[] = {odd[i].name, "\"fp8\"", "a multiple of 16", NULL};
    expect_refusal(IN("fp8"), override, words);
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
  put_file(path.text, old);
  must(config_load_saved(&config, path.text, &err), &err);
  assert_memory_equal(&config, &plain, sizeof config);
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
  expect_words(&err, (const char *const[]){"train.seed 1337 -> 11", "resume_allow_changes", NULL});
  assert_null(strstr(err.text, "data.train")); // the tokens are compared, not their path
  char *changes = held(config_changes(&saved, &now));
  assert_string_equal(changes, "data.train \"t.bin\" -> \"u.bin\", train.steps 10 -> 11, "
                               "train.seed 1337 -> 11");
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
    char *key = held_text("%.*s ", (int)strcspn(cases[i].override, "="), cases[i].override);
    char *overrides[] = {xstrdup(cases[i].override), "train.resume_allow_changes=true"};
    const Config asked = parse_with(MINIMAL, 1, overrides),
                 allowed = parse_with(MINIMAL, 2, overrides);
    assert_int_equal(config_compare(&saved, &asked, &err), -1);
    expect_words(&err, (const char *const[]){key, NULL});
    assert_int_equal(strstr(err.text, "resume_allow_changes") != NULL, cases[i].fits);
    assert_int_equal(config_compare(&saved, &allowed, &err), cases[i].fits ? 0 : -1);
    free(overrides[0]);
  }
}

TEST(the_printed_table_names_every_key_of_a_resolved_configuration) {
  const Caught printed = catch_output(STDOUT_FILENO);
  must(config_print_keys("", &err), &err);
  const char *table = caught(printed);
  const Config c = parse(WITH_MODEL("\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}"));
  char *json = held(config_json(&c));
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
  printf("# %d keys\n", keys);
  assert_true(keys > 50);
}
