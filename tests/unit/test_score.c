// --score: sums and decisions against lm-evaluation-harness' and, for CORE, nanochat's rule
// (tests/support/make_scores.py), with and without documents. tests/fixtures/messages.txt has what
// is wrong with tasks' files.
#include <signal.h>

#include "base/json.h"
#include "data/tasks/tasks.h"
#include "model/run/commands.h"
#include "model/run/scorer.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define SCORES "tests/fixtures/scores"

typedef struct Rig {
  LoadedModel loaded;
  Scorer *scorer;
} Rig;

static void close_rig(void *what) {
  Rig *rig = what;
  scorer_destroy(rig->scorer);
  loaded_close(&rig->loaded);
  free(rig);
}

static void copy_file(const char *from, const char *folder, const char *name) {
  size_t bytes;
  Error err;
  const char *data = file_text(path_text("%s/%s", from, name).text, &bytes);
  must(file_write(path_text("%s/%s", folder, name).text, data, bytes, &err), &err);
}

// The model, with this tokenizer.
static Rig *open_rig(const char *tokenizer) {
  Error err;
  const char *folder = temporary_folder();
  const PathText of_tokenizer = path_text(SCORES "/%s", tokenizer);
  copy_file(SCORES "/model", folder, "config.json");
  copy_file(SCORES "/model", folder, "model.safetensors");
  copy_file(of_tokenizer.text, folder, "tokenizer.json");
  copy_file(of_tokenizer.text, folder, "tokenizer_config.json");
  Rig *rig = hold(xcalloc(1, sizeof *rig), close_rig);
  must(loaded_open(&rig->loaded, folder, &err), &err);
  const int64_t positions = rig->loaded.model.max_position_embeddings;
  rig->scorer = must_make(scorer_create(rig->loaded.tokenizer, rig->loaded.model.vocab_size,
                                        positions, 2 * positions, &err),
                          &err);
  return rig;
}

static void add(Rig *rig, const char *word) {
  Error err;
  must(scorer_add(rig->scorer, word, 0, &err), &err);
}

static void run(Rig *rig, bool documents, int64_t batch, int64_t chunks) {
  static const volatile sig_atomic_t never = 0;
  Error err;
  Spec asked = scorer_spec(rig->scorer, documents, 1, batch * 400);
  asked.loss_chunks = chunks;
  must(loaded_load(&rig->loaded, asked, "", &err), &err);
  assert_int_equal(scorer_run(rig->scorer, &rig->loaded.llama, &never, false, &err), 1);
}

static const cJSON *result(const Rig *rig, int i) {
  Error err;
  JsonWriter w = {0};
  scorer_json(rig->scorer, i, &w);
  held(w.text);
  return hold_json(json_parse("result", w.text, w.used, &err), &err);
}

static const cJSON *expectations(void) {
  Error err;
  return hold_json(json_read(SCORES "/expected.json", 1 << 20, &err), &err);
}

static const cJSON *in(const cJSON *tree, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(tree, key);
  if (!item) fail_msg("no '%s'", key);
  return item;
}

// ---- Against the harness

static double compare_sums(const char *task, const cJSON *answers, const cJSON *expected) {
  double worst = 0;
  assert_int_equal(cJSON_GetArraySize(answers), cJSON_GetArraySize(in(expected, "sums")));
  for (int q = 0; q < cJSON_GetArraySize(answers); q++) {
    const cJSON *sums = in(cJSON_GetArrayItem(answers, q), "sums"),
                *wanted = cJSON_GetArrayItem(in(expected, "sums"), q);
    assert_int_equal(cJSON_GetArraySize(sums), cJSON_GetArraySize(wanted));
    for (int i = 0; i < cJSON_GetArraySize(sums); i++) {
      const double got = cJSON_GetArrayItem(sums, i)->valuedouble,
                   want = cJSON_GetArrayItem(wanted, i)->valuedouble;
      if (!(fabs(got - want) <= 1e-4)) fail_msg("%s %d %d: %.9g, not %.9g", task, q, i, got, want);
      worst = fmax(worst, fabs(got - want));
    }
    const cJSON *greedy = cJSON_GetObjectItemCaseSensitive(expected, "greedy");
    if (greedy)
      assert_true(cJSON_Compare(in(cJSON_GetArrayItem(answers, q), "greedy"),
                                cJSON_GetArrayItem(greedy, q), true));
    const cJSON *line = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(expected, "lines"), q);
    if (line)
      assert_int_equal(in(cJSON_GetArrayItem(answers, q), "line")->valueint, line->valueint);
  }
  return worst;
}

// Results are means of decisions, so equal ones mean equal decisions. The harness' error of a
// perplexity is a bootstrap's.
static void compare_results(const char *task, const cJSON *got, const cJSON *wanted) {
  const cJSON *w;
  int compared = 0;
  cJSON_ArrayForEach(w, wanted) {
    if (strcmp(w->string, "perplexity_stderr") == 0) continue;
    const double value = in(got, w->string)->valuedouble;
    if (!(fabs(value - w->valuedouble) <= 1e-6 * fmax(1, w->valuedouble)))
      fail_msg("%s of %s: %.9g, not %.9g", w->string, task, value, w->valuedouble);
    compared++;
  }
  assert_true(compared > 0);
}

static const char *const files[] = {
    "hellaswag",      "piqa",  "arc_easy", "arc_challenge", "openbookqa", "winogrande",
    "lambada_openai", "blimp", "boolq",    "sciq",          "mmlu"};
enum { FILES = sizeof files / sizeof *files, CORE_TASKS = 3 };

static void compare_all(const char *tokenizer, bool documents, int64_t batch, int64_t chunks) {
  Rig *rig = open_rig(tokenizer);
  const cJSON *expected = in(expectations(), tokenizer);
  double worst = 0;
  for (int i = 0; i < FILES; i++)
    add(rig, path_text("%s=" SCORES "/%s.jsonl", files[i], files[i]).text);
  add(rig, "mmlu=" SCORES "/mmlu.jsonl," SCORES "/mmlu-dev.jsonl");
  add(rig, "core=" SCORES "/core");
  run(rig, documents, batch, chunks);
  for (int i = 0; i < FILES + 1 + CORE_TASKS; i++) {
    const cJSON *got = result(rig, i);
    const char *task = i == FILES ? "mmlu5" : in(got, "task")->valuestring;
    const cJSON *wanted = in(expected, task);
    worst = fmax(worst, compare_sums(task, in(got, "answers"), wanted));
    compare_results(task, got, in(wanted, "results"));
  }
  printf("# %s: sums are at most %.1e apart\n", tokenizer, worst);
}

TEST(byte_level_without_bos) {
  compare_all("gpt2", true, 1, 1);
}
TEST(metaspace_with_bos) {
  compare_all("llama2", true, 2, 3);
}
TEST(byte_level_with_bos) {
  compare_all("llama3", true, 1, 2);
}
// All but the first question of a window are branches.
TEST(without_documents_sums_are_the_same) {
  compare_all("gpt2", false, 1, 2);
  compare_all("llama3", false, 3, 1);
}

TEST(means_of_several_files) {
  Rig *rig = open_rig("gpt2");
  TaskResult r, first, second;
  add(rig, "piqa=" SCORES "/piqa.jsonl");
  add(rig, "core=" SCORES "/core");
  add(rig, "piqa=" SCORES "/piqa.jsonl");
  run(rig, true, 1, 1);
  assert_true(scorer_result(rig->scorer, 0, &first) && scorer_result(rig->scorer, 4, &second));
  assert_true(scorer_result(rig->scorer, 5, &r));
  assert_string_equal(r.task, "piqa");
  assert_null(r.path);
  assert_int_equal(r.questions, 8);
  assert_true(fabs(r.acc.mean - first.acc.mean) < 1e-12);
  assert_true(fabs(r.acc.error - first.acc.error / sqrt(2)) < 1e-12); // the two are independent
  double sum = 0;
  for (int i = 1; i <= CORE_TASKS; i++) {
    assert_true(scorer_result(rig->scorer, i, &second));
    sum += second.centered;
  }
  assert_true(scorer_result(rig->scorer, 6, &r));
  assert_string_equal(r.task, "core");
  assert_true(fabs(r.centered - sum / CORE_TASKS) < 1e-12 && isnan(r.acc.mean));
  assert_false(scorer_result(rig->scorer, 7, &r));
}

TEST(a_folder_is_read_by_its_files_names) {
  Rig *rig = open_rig("gpt2");
  const char *folder = temporary_folder();
  copy_file(SCORES, folder, "piqa.jsonl");
  copy_file(SCORES, folder, "sciq.jsonl");
  copy_file(SCORES, folder, "mmlu.jsonl");
  copy_file(SCORES, folder, "mmlu-dev.jsonl");
  put_file(path_text("%s/readme.txt", folder).text, "not a task");
  must(directory_create(path_text("%s/blimp", folder).text, &err), &err);
  copy_file(SCORES, path_text("%s/blimp", folder).text, "blimp.jsonl");
  add(rig, folder);
  run(rig, true, 1, 1);
  static const char *const tasks[] = {"blimp", "mmlu", "piqa", "sciq"};
  for (int i = 0; i < 4; i++)
    assert_string_equal(in(result(rig, i), "task")->valuestring, tasks[i]);
  const cJSON *with_examples = in(in(expectations(), "gpt2"), "mmlu5");
  compare_sums("mmlu5", in(result(rig, 1), "answers"), with_examples);
}

TEST(a_sample_is_spread_and_the_same_every_time) {
  QuestionSet set;
  static const int64_t lines[] = {3, 9, 16, 21};
  const char *path = held_text("%s/many.jsonl", temporary_folder());
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 24; i++) fprintf(file, "{\"text\": \"%d is a number\"}\n", i);
  fclose(file);
  must(questions_read(&set, "lambada_openai", path, NULL, &err), &err);
  questions_sample(&set, 4);
  assert_int_equal(set.count, 4);
  for (int i = 0; i < 4; i++) assert_true(set.list[i].line - lines[i] < 2);
  questions_free(&set);
}

// ---- Documents

static int read_text(QuestionSet *set, const char *task, const char *text, Error *err) {
  const char *path = held_text("%s/task.jsonl", temporary_folder());
  put_file(path, text);
  return questions_read(set, task, path, NULL, err);
}

TEST(labels_may_be_numbers_or_texts) {
  static const char *const labels[] = {"1", "\"1\"", "\" 1 \"", "true", "\"yes\""};
  for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
    QuestionSet set;
    must(read_text(&set, "boolq",
                   held_text("{\"question\": \"a\", \"passage\": \"b\", \"label\": %s}", labels[i]),
                   &err),
         &err);
    assert_int_equal(set.list[0].gold, 1);
    questions_free(&set);
  }
}

TEST(hellaswags_texts_are_the_harness) {
  QuestionSet set;
  must(read_text(&set, "hellaswag",
                 "{\"activity_label\": \"[header] A\", \"ctx_a\": \" b [title] c [step]\", "
                 "\"ctx_b\": \"ÉTÉ\", "
                 "\"endings\": [\" d  e [x] f\", \"[g]\"], \"label\": \"1\"}",
                 &err),
       &err);
  const Choice *c = set.list[0].choices;
  assert_string_equal(c[0].context, " A: b. c Été");
  assert_string_equal(c[0].continuation, " d e f");
  assert_int_equal(c[0].characters, 5);
  assert_string_equal(c[1].continuation, " ");
  assert_int_equal(c[1].characters, 0);
  questions_free(&set);
}

TEST(a_choice_beyond_the_window_is_refused) {
  Rig *rig = open_rig("gpt2");
  char words[4000] = "{\"text\": \"a ";
  for (int i = 0; i < 1500; i++) strcat(words, "xq");
  const char *path = held_text("%s/long.jsonl", temporary_folder());
  put_file(path, held_text("%s\"}", words));
  expect_error(scorer_add(rig->scorer, held_text("lambada_openai=%s", path), 0, &err), &err,
               "is beyond the 256 positions");
  expect_error(scorer_add(rig->scorer, "piqa=/there/is/none.jsonl", 0, &err), &err,
               "there is no file '/there/is/none.jsonl'");
  expect_error(scorer_add(rig->scorer, SCORES "/model", 0, &err), &err, "is no TASK=FILES");
}

TEST(tokens_beyond_the_vocabulary_are_refused) {
  const Rig *rig = open_rig("llama2");
  Scorer *small = must_make(scorer_create(rig->loaded.tokenizer, 200, 256, 256, &err), &err);
  expect_error(scorer_add(small, "piqa=" SCORES "/piqa.jsonl", 0, &err), &err,
               "piqa.jsonl', line 1: it gives token ");
  assert_says(&err, "beyond the model's vocab_size of 200");
  scorer_destroy(small);
  expect_none(scorer_create(rig->loaded.tokenizer, 1, 256, 256, &err), &err,
              "no BOS or EOS within the model's vocab_size of 1");
}
