// What a run keeps of a step that was not finite.
#include <cjson/cJSON.h>

#include "tests/support/data_test.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"
#include "tests/support/tiny_training.h"

enum { STEPS = 5 };

typedef struct EvidenceTest {
  Run run;
  StepLine line; // its last step, as if it had not been finite
  uint64_t end;
} EvidenceTest;

static EvidenceTest open_test(const char *folder) {
  EvidenceTest t = {.line = {.step = STEPS, .loss = NAN, .lr = 0.5, .grad_norm = 1.5}};
  const Config config = tiny_training_config(folder, 1000, "");
  tiny_training_open(&t.run, &config);
  for (int i = 0; i < STEPS; i++) tiny_training_step(&t.run);
  t.end = t.run.train_data->cursor;
  t.run.state.nonfinite_row = 1;
  return t;
}

static PathText case_path(const EvidenceTest *t, int64_t step) {
  return path_text("%s/nonfinite-%08d.json", t->run.config.output.dir, (int)step);
}

static bool has_case(const EvidenceTest *t, int64_t step) {
  return path_exists(case_path(t, step).text);
}

static double number(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  if (!cJSON_IsNumber(item)) fail_msg("%s is no number", name);
  return item->valuedouble;
}

TEST_WITH(a_step_that_is_not_finite_leaves_its_batch_and_norms, make_tokens_folder, remove_folder) {
  EvidenceTest t = open_test(*state);
  run_watch_step(&t.run, &t.line, t.end);
  cJSON *tree = json_read(case_path(&t, STEPS).text, 1 << 20, &err);
  if (!tree) fail_msg("%s", err.text);
  assert_true(number(tree, "grad_norm") == 1.5 && number(tree, "step") == STEPS);
  assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(tree, "loss")));

  // The batch: what lies there in the file is what the run was given.
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(tree, "sequences")->child,
              *place = window->child;
  TokenFile file;
  int32_t first;
  must(tokens_open(&file, cJSON_GetObjectItemCaseSensitive(place, "file")->valuestring, &err),
       &err);
  must(tokens_read(&file, (int64_t)number(place, "token"), 1, 11, &first, &err), &err);
  assert_int_equal(first, t.run.batches[0].tokens[0]);
  assert_true(number(place, "rows") == (double)t.run.config.train.sequence_length);
  assert_null(place->next);
  assert_null(window->next);
  tokens_close(&file);

  // On the CPU the norms are the step's own, and add up to that of the whole gradient.
  assert_true(number(tree, "norms_of_step") == STEPS);
  double squares = 0;
  int count = 0;
  const cJSON *tensor = cJSON_GetObjectItemCaseSensitive(tree, "tensors")->child;
  for (; tensor; tensor = tensor->next, count++) {
    squares += pow(number(tensor, "gradient"), 2);
    assert_true(number(tensor, "weight") > 0 && number(tensor, "nonfinite") == 0);
  }
  assert_int_equal(count, t.run.llama.param_count);
  run_close(&t.run);
  char *log, *found;
  size_t bytes;
  must(file_read(path_text("%s/run/log.jsonl", (char *)*state).text, 1 << 20, &log, &bytes, &err),
       &err);
  found = strstr(log, "\"kind\":\"train\",\"step\":5,");
  assert_non_null(found);
  const double norm = strtod(strstr(found, "\"grad_norm\":") + 12, NULL);
  printf("# gradient norm %.9g, from the tensors' %.9g\n", norm, sqrt(squares));
  assert_true(fabs(sqrt(squares) / norm - 1) < 1e-4); // seen: 3e-5, the norm weights have moved
  assert_non_null(strstr(log, "\"kind\":\"evidence\",\"step\":5,\"path\":"));
  free(log);
  cJSON_Delete(tree);
}

TEST_WITH(cases_are_apart, make_tokens_folder, remove_folder) {
  EvidenceTest t = open_test(*state);
  run_watch_step(&t.run, &t.line, t.end);
  t.line.step = STEPS + 1; // another row
  run_watch_step(&t.run, &t.line, t.end);
  assert_false(has_case(&t, STEPS + 1));
  t.line.step = STEPS + 50;
  run_watch_step(&t.run, &t.line, t.end);
  assert_true(has_case(&t, STEPS + 50));
  run_close(&t.run);
}

TEST_WITH(a_gradient_that_is_not_finite_is_counted, make_tokens_folder, remove_folder) {
  EvidenceTest t = open_test(*state);
  const ParamTensor *p = &t.run.llama.tensors[param_index(&t.run.config.model, PARAM_DOWN, 0)];
  float *gradient = (float *)(void *)p->grad; // a real of the CPU's
  gradient[3] = NAN;
  gradient[5] = INFINITY;
  run_watch_step(&t.run, &t.line, t.end);
  t.run.state.nonfinite_row = 2;
  t.line.step = STEPS + 1;
  run_watch_step(&t.run, &t.line, t.end); // the same row
  assert_false(has_case(&t, STEPS + 1));
  t.run.state.nonfinite_row = t.run.config.train.max_nonfinite;
  t.line.step = STEPS + 2;
  run_watch_step(&t.run, &t.line, t.end); // its last one, however near
  assert_true(has_case(&t, STEPS + 2));
  cJSON *tree = json_read(case_path(&t, STEPS).text, 1 << 20, &err);
  if (!tree) fail_msg("%s", err.text);
  const cJSON *tensor = cJSON_GetObjectItemCaseSensitive(tree, "tensors")->child;
  for (; tensor; tensor = tensor->next) {
    const bool down = strcmp(cJSON_GetObjectItemCaseSensitive(tensor, "name")->valuestring,
                             "down weight of layer 0") == 0;
    assert_true(number(tensor, "nonfinite") == (down ? 2 : 0));
  }
  cJSON_Delete(tree);
  run_close(&t.run);
}
