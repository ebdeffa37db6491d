// The window that profilers record: which steps it holds, that it is closed however a run ends, and
// what it does to recorded steps.
#include "model/run/run.h"
#include "tests/support/test.h"
#include "tests/support/tiny_training.h"

// What a backend was asked for. It gets no context to keep this in.
static struct Window {
  const Run *run;
  int64_t before, after; // steps asked for when it was opened and closed, -1: it was not
  int opened, closed;
} window;

static void note(Backend *be, bool open) {
  (void)be;
  *(open ? &window.before : &window.after) = run_steps_asked(window.run);
  *(open ? &window.opened : &window.closed) += 1;
}

// Trains for so many steps, saves where asked, and leaves what happened in `window`.
static void train(const Config *config, int steps, bool save) {
  Error err = {""};
  Run run;
  tiny_training_open(&run, config);
  run.be->services.profile = note;
  window = (struct Window){.run = &run, .before = -1, .after = -1};
  for (int i = 0; i < steps; i++) tiny_training_step(&run);
  must(run_settle(&run, &err), &err);
  if (save) must(run_save(&run, &err), &err);
  run_close(&run);
}

static void expect_window(int64_t before, int64_t after) {
  assert_int_equal(window.before, before);
  assert_int_equal(window.after, after);
  assert_int_equal(window.opened, before >= 0);
  assert_int_equal(window.closed, after >= 0);
}

enum { STEPS = PROFILE_START + 2 };

TEST_WITH(it_holds_the_steps_asked_for, make_tokens_folder, NULL) {
  for (int steps = 1; steps <= 3; steps++) {
    char output[40];
    snprintf(output, sizeof output, ", \"profile_steps\": %d", steps);
    const Config config = tiny_training_config(*state, STEPS, output);
    train(&config, STEPS, false);
    expect_window(PROFILE_START - 1, PROFILE_START - 1 + steps);
  }
}

TEST_WITH(it_stays_closed_where_none_is_asked_for, make_tokens_folder, NULL) {
  const Config none = tiny_training_config(*state, STEPS, "");
  train(&none, STEPS, false);
  expect_window(-1, -1);
}

TEST_WITH(it_is_closed_when_a_run_is_interrupted_inside, make_tokens_folder, NULL) {
  const Config config = tiny_training_config(*state, STEPS, ", \"profile_steps\": 3");
  train(&config, PROFILE_START, false);
  expect_window(PROFILE_START - 1, PROFILE_START);
}

TEST_WITH(a_resumed_run_warms_up_again, make_tokens_folder, NULL) {
  Config config = tiny_training_config(*state, 2 * STEPS, ", \"profile_steps\": 1");
  train(&config, STEPS, true);
  expect_window(PROFILE_START - 1, PROFILE_START);
  strcpy(config.train.resume, "auto");
  train(&config, STEPS, false);
  expect_window(STEPS + PROFILE_START - 1, STEPS + PROFILE_START);
}

TEST(a_window_beyond_the_run_is_refused) {
  static const char json[] =
      "{\"model\": {\"hidden_size\": 16, \"intermediate_size\": 20, \"num_hidden_layers\": 1,"
      " \"num_attention_heads\": 4, \"vocab_size\": 11}, \"data\": {\"train\": \"t.bin\"},"
      " \"train\": {\"steps\": 12, \"sequence_length\": 8}, \"output\": {\"dir\": \"d\"}}";
  Config config;
  char fits[] = "output.profile_steps=3", beyond[] = "output.profile_steps=4";
  char *overrides[] = {fits};
  must(config_parse(&config, "test", json, 1, overrides, &err), &err);
  overrides[0] = beyond;
  expect_error(config_parse(&config, "test", json, 1, overrides, &err), &err,
               "is 13, but it must be at most train.steps, which is 12");
}

static bool run_graphs(const Config *config) {
  return spec_again(config, run_spec(config)).graphs;
}

TEST_WITH(steps_are_not_recorded_beside_a_window, make_tokens_folder, NULL) {
  Config config = tiny_training_config(*state, STEPS, "");
  assert_true(run_graphs(&config));
  config.output.profile_steps = 1;
  assert_false(run_graphs(&config));
  config.output.profile_steps = 0;
  config.backend.graphs = false;
  assert_false(run_graphs(&config));
}
