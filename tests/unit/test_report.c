// Learning-rate schedules, and what a run writes to its log.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/text.h"
#include "model/run/run.h"
#include "model/optimizer.h"
#include "tests/support/data_test.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"

static OptimizerConfig schedule(Schedule kind, int64_t warmup, int64_t decay) {
  return (OptimizerConfig){.schedule = kind,
                           .learning_rate = 1,
                           .min_learning_rate = 0.1,
                           .warmup_steps = warmup,
                           .decay_steps = decay};
}

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-12)) fail_msg("%.17g is not %.17g", a, b);
}

TEST(warmup_rises_linearly_to_the_peak) {
  for (Schedule kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++) {
    const OptimizerConfig o = schedule(kind, 4, 10);
    near(learning_rate(&o, 0, 100), 0.25);
    near(learning_rate(&o, 2, 100), 0.75);
    near(learning_rate(&o, 3, 100), 1);
    near(learning_rate(&o, 4, 100), 1);
  }
}

static double cosine(double t) {
  return 0.1 + 0.9 * 0.5 * (1 + cos(3.14159265358979323846 * t));
}

TEST(a_cosine_would_reach_the_minimum_after_the_last_step) {
  const OptimizerConfig o = schedule(SCHEDULE_COSINE, 1, 0);
  near(learning_rate(&o, 1, 101), 1);
  near(learning_rate(&o, 51, 101), 0.55);
  near(learning_rate(&o, 26, 101), cosine(0.25));
  near(learning_rate(&o, 100, 101), cosine(0.99));
  near(learning_rate(&o, 101, 101), 0.1);
}

TEST(wsd_is_flat_and_then_falls_linearly) {
  const OptimizerConfig o = schedule(SCHEDULE_WSD, 0, 10);
  near(learning_rate(&o, 0, 100), 1);
  near(learning_rate(&o, 90, 100), 1);
  near(learning_rate(&o, 91, 100), 0.1 + 0.9 * 0.9);
  near(learning_rate(&o, 95, 100), 0.1 + 0.9 * 0.5);
  near(learning_rate(&o, 99, 100), 0.1 + 0.9 * 0.1);
  near(learning_rate(&o, 100, 100), 0.1);
}

TEST(linear_falls_from_the_warmup_to_the_minimum_after_the_last_step) {
  const OptimizerConfig o = schedule(SCHEDULE_LINEAR, 20, 7); // decay_steps is wsd's alone
  near(learning_rate(&o, 9, 100), 0.5);
  near(learning_rate(&o, 20, 100), 1);
  near(learning_rate(&o, 60, 100), 0.1 + 0.9 * 0.5);
  near(learning_rate(&o, 99, 100), 0.1 + 0.9 / 80);
  near(learning_rate(&o, 100, 100), 0.1);
}

// Whatever the schedule and its minimum.
TEST(a_single_step_trains_at_the_peak) {
  for (Schedule kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++)
    for (int64_t warmup = 0; warmup <= 5; warmup += 5) {
      OptimizerConfig o = schedule(kind, warmup, 3);
      o.min_learning_rate = 0;
      near(learning_rate(&o, 0, 1), 1);
    }
}

TEST(a_short_trial_warms_up_for_a_tenth_and_decays_for_a_fifth) {
  OptimizerConfig o = schedule(SCHEDULE_COSINE, 21, 0);
  near(learning_rate(&o, 0, 20), 1. / 3);
  near(learning_rate(&o, 2, 20), 1);
  near(learning_rate(&o, 19, 20), cosine(16. / 17));
  o = schedule(SCHEDULE_WSD, 15, 6);
  near(learning_rate(&o, 2, 20), 1);
  near(learning_rate(&o, 14, 20), 1);
  near(learning_rate(&o, 15, 20), 1);
  near(learning_rate(&o, 16, 20), 0.1 + 0.9 * 4 / 5);
}

TEST(muons_momentum_rises_linearly_from_085) {
  const OptimizerConfig o = {.momentum = 0.95, .momentum_warmup = 10};
  near(muon_momentum(&o, 0, 100), 0.85);
  near(muon_momentum(&o, 5, 100), 0.9);
  near(muon_momentum(&o, 9, 100), 0.94);
  near(muon_momentum(&o, 10, 100), 0.95);
  near(muon_momentum(&o, 99, 100), 0.95);
  near(adamw_at(&o, 5, 100).momentum, 0.9);
}

TEST(a_short_run_warms_its_momentum_up_for_a_third) {
  const OptimizerConfig o = {.momentum = 0.95, .momentum_warmup = 10};
  near(muon_momentum(&o, 3, 20), 0.9);
  near(muon_momentum(&o, 6, 20), 0.95);
  near(muon_momentum(&o, 0, 2), 0.95);
}

TEST(a_momentum_that_needs_no_warmup_stays) {
  const OptimizerConfig low = {.momentum = 0.6, .momentum_warmup = 10}, off = {.momentum = 0.95};
  near(muon_momentum(&low, 0, 100), 0.6);
  near(muon_momentum(&low, 7, 100), 0.6);
  near(muon_momentum(&off, 0, 100), 0.95);
}

TEST(counts_and_times_read_well) {
  assert_string_equal(count_text(950).text, "950");
  assert_string_equal(count_text(21800).text, "21.8k");
  assert_string_equal(count_text(999600).text, "1.00M");
  assert_string_equal(count_text(1.2358e9).text, "1.24B");
  assert_string_equal(time_text(3.21).text, "3.2 s");
  assert_string_equal(time_text(70).text, "1 min 10 s");
  assert_string_equal(time_text(7500).text, "2 h 05 min");
  assert_string_equal(time_text(273600).text, "3 d 04 h");
  assert_string_equal(time_text(NAN).text, "0.0 s");
}

// A log in a folder of its own.
typedef struct LogTest {
  char *dir, *path; // of log.jsonl
  RunLog log;
} LogTest;

static void close_log(void *what) {
  LogTest *t = what;
  log_close(&t->log);
  free(t);
}

// before: what log.jsonl holds when the log is opened.
static LogTest *log_test(const char *before) {
  Error err;
  LogTest *t = xcalloc(1, sizeof *t);
  t->dir = temporary_folder();
  t->path = held_text("%s/log.jsonl", t->dir);
  if (*before) put_file(t->path, before);
  must(log_open(&t->log, t->dir, t->dir, 10, &err), &err);
  return hold(t, close_log);
}

static const char *log_text(const LogTest *t) {
  return file_text(t->path, NULL);
}

static const cJSON *record(const LogTest *t, int index) {
  char *line = file_text(t->path, NULL);
  for (; index > 0; index--) line = strchr(line, '\n') + 1;
  line[strcspn(line, "\n")] = '\0';
  return hold_json(cJSON_Parse(line), &(Error){"no JSON"});
}

static const cJSON *item(const cJSON *object, const char *name) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
  assert_non_null(found);
  return found;
}

TEST(the_log_is_one_json_object_a_line) {
  LogTest *t = log_test("{\"kind\":\"tr"); // a killed run's half line
  log_train(&t->log, &(StepLine){.step = 1,
                                 .result = {.loss = NAN, .grad_norm = INFINITY, .ms = 2},
                                 .lr = 0.5,
                                 .tokens = 64,
                                 .counted = 48,
                                 .mfu = NAN});
  const char sample[] = "a\"\\\n\x01\xff\xe2\x82\xac\xe2\x82\xed\xa0\x80";
  log_sample(&t->log, 1, sample, sizeof sample - 1);
  log_stop(&t->log, 1, "done");

  const cJSON *train = record(t, 0), *said = record(t, 1), *stop = record(t, 2);
  assert_true(cJSON_IsNull(item(train, "loss")));
  assert_true(cJSON_IsNull(item(train, "grad_norm")));
  assert_int_equal(item(train, "counted")->valueint, 48);
  near(item(train, "tokens_per_s")->valuedouble, 32000);
  assert_true(cJSON_IsFalse(item(train, "applied")));
  assert_string_equal(item(said, "text")->valuestring,
                      "a\"\\\n\x01\xef\xbf\xbd\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef"
                      "\xbf\xbd\xef\xbf\xbd");
  assert_string_equal(item(stop, "reason")->valuestring, "done");
}

// As far as log_start looks at it, with bytes in its names that are no UTF-8.
static Config config_of_any_bytes(void) {
  Config config;
  Error err;
  const char json[] =
      "{\"model\": {\"hidden_size\": 16, \"intermediate_size\": 20, \"num_hidden_layers\": 1,"
      " \"num_attention_heads\": 4, \"vocab_size\": 300},"
      " \"data\": {\"train\": \"a\xff/t.bin\"}, \"train\": {\"steps\": 10, \"batch_size\": 4,"
      " \"sequence_length\": 32}, \"output\": {\"dir\": \"\xed\xa0\x80\"}}";
  must(config_parse(&config, "test", json, 0, NULL, &err), &err);
  return config;
}

TEST(the_start_has_the_whole_plan_and_config_in_utf8) {
  LogTest *t = log_test("");
  Backend be = {
      .name = "cpu", .description = "d\xc3", .costs = "c", .spec = {.memory_bytes = 1000}};
  Loader train = {.epoch.tokens = 640, .file_count = 2}, val = {.epoch.tokens = 64};
  char changes[] = "data.tokenizer \"\xff\" -> \"bytes\"";
  Run run = {.state.step = 3,
             .config = config_of_any_bytes(),
             .be = &be,
             .llama.plan = {.count = 2,
                            .total_bytes = 42,
                            .items = {{"x", "[M, D]", 40}, {"logits", "[M, V]", 2}}},
             .saves.plan = {.background = true, .bytes = 7},
             .inputs = {.train = &train, .val = &val},
             .start.changes = changes,
             .log = t->log};
  const Config *config = &run.config;
  run.inputs.tokenizer = open_tokenizer(BYTES_NAME);
  log_start(&run);
  run.start.changes = NULL;
  run.inputs.tokenizer = NULL;
  log_start(&run);
  t->log = run.log;
  assert_int_equal(utf8_valid(log_text(t), strlen(log_text(t))), strlen(log_text(t)));

  const cJSON *start = record(t, 0), *again = record(t, 1);
  const cJSON *memory = item(start, "memory"), *of_train = item(item(start, "config"), "train");
  assert_string_equal(item(start, "kind")->valuestring, "start");
  assert_int_equal(item(start, "step")->valueint, 3);
  assert_int_equal(item(start, "steps")->valueint, 10);
  assert_int_equal(item(start, "tokens_per_step")->valueint, 128);
  near(item(start, "parameters")->valuedouble, (double)model_parameters(&config->model, true));
  near(item(start, "flops_per_step")->valuedouble,
       model_step_flops(&config->model, 4 * 32, 4 * 32 * 32));
  assert_string_equal(item(start, "device")->valuestring, "d\xef\xbf\xbd");
  assert_string_equal(item(start, "costs")->valuestring, "c");
  assert_int_equal(item(item(start, "data"), "train_tokens")->valueint, 640);
  assert_int_equal(item(item(start, "data"), "val_tokens")->valueint, 64);
  assert_string_equal(item(start, "tokenizer")->valuestring, BYTES_NAME);
  assert_true(cJSON_IsNull(item(again, "tokenizer")));
  assert_int_equal(item(memory, "planned")->valueint, 42);
  assert_int_equal(item(memory, "free")->valueint, 1000);
  assert_int_equal(item(memory, "host_copy")->valueint, 7);
  assert_int_equal(cJSON_GetArraySize(item(memory, "items")), 2);
  assert_string_equal(item(item(memory, "items")->child->next, "name")->valuestring, "logits");
  assert_int_equal(item(of_train, "batch_size")->valueint, 4);
  assert_int_equal(item(of_train, "keep_checkpoints")->valueint, 3); // a default
  assert_true(cJSON_IsTrue(item(start, "resumed")));
  assert_string_equal(item(start, "changes")->valuestring,
                      "data.tokenizer \"\xef\xbf\xbd\" -> \"bytes\"");
  assert_true(cJSON_IsFalse(item(again, "resumed")));
  assert_null(cJSON_GetObjectItemCaseSensitive(again, "changes"));
}

TEST(an_end_is_one_of_that_step) {
  assert_false(log_has_end(temporary_folder(), 10)); // no file
  LogTest *t = log_test("");
  log_stop(&t->log, 10, "signal");
  assert_false(log_has_end(t->dir, 10));
  log_stop(&t->log, 10, "done");
  assert_true(log_has_end(t->dir, 10));
  assert_false(log_has_end(t->dir, 1));
  assert_false(log_has_end(t->dir, 20));
}

TEST(the_log_has_where_a_start_took_its_time) {
  LogTest *t = log_test("");
  const Phases phases = {.list = {{"program", 20.5}, {"first step", 100}}, .count = 2};
  log_opened(&t->log, 1, &phases, 123);
  const cJSON *opened = record(t, 0), *list = item(opened, "phases");
  assert_string_equal(item(opened, "kind")->valuestring, "opened");
  near(item(opened, "ms")->valuedouble, 120.5);
  assert_int_equal(item(opened, "memory_taken")->valueint, 123);
  near(item(list, "program")->valuedouble, 20.5);
  near(item(list, "first step")->valuedouble, 100);
}

static int syncs;
static void count_sync(void) {
  syncs++;
}

#define STOP(step) "{\"kind\":\"stop\",\"step\":" #step ",\"reason\":\"x\"}\n"
#define SAVE(step) "{\"kind\":\"save\",\"step\":" #step ",\"path\":\"p\"}\n"

TEST(a_full_disk_leaves_no_part_of_a_line) {
  LogTest *t = log_test(STOP(1));
  const struct rlimit free_disk = {RLIM_INFINITY, RLIM_INFINITY},
                      full_disk = {2 * strlen(STOP(1)) + 5, RLIM_INFINITY};
  signal(SIGXFSZ, SIG_IGN);
  must(setrlimit(RLIMIT_FSIZE, &full_disk), &(Error){"setrlimit"});
  for (int64_t step = 2; step < 5; step++) log_stop(&t->log, step, "x");
  assert_string_equal(log_text(t), STOP(1) STOP(2));
  must(setrlimit(RLIMIT_FSIZE, &free_disk), &(Error){"setrlimit"});
  log_stop(&t->log, 5, "x");
  assert_string_equal(log_text(t), STOP(1) STOP(2) STOP(3) STOP(4) STOP(5));
}

// As a rotation of logs does it, by a new file or by none.
TEST(a_log_that_is_moved_away_gets_a_new_file) {
  for (int made = 0; made < 2; made++) {
    LogTest *t = log_test(STOP(1));
    const PathText moved = path_text("%s.1", t->path);
    log_stop(&t->log, 2, "x");
    must(path_rename(t->path, moved.text, &err), &err);
    if (made) put_file(t->path, STOP(7) "torn");
    log_stop(&t->log, 3, "x");
    assert_string_equal(log_text(t), made ? STOP(7) STOP(3) : STOP(3));
    assert_int_equal(unlink(t->path), 0);
    log_stop(&t->log, 4, "x");
    assert_string_equal(log_text(t), STOP(4));
    must(log_complete(&t->log, &err), &err);
  }
}

// Lines are kept, and never lost without a word.
TEST(a_log_that_is_a_link_is_not_written_to) {
  LogTest *t = log_test(STOP(1));
  const PathText other = path_text("%s/other", t->dir);
  put_file(other.text, "mine");
  assert_int_equal(unlink(t->path), 0);
  assert_int_equal(symlink("other", t->path), 0);
  log_stop(&t->log, 2, "x");
  assert_string_equal(log_text(t), "mine");
  expect_error(log_complete(&t->log, &err), &err, "could not be written");
  RunLog second;
  expect_error(log_open(&second, t->dir, t->dir, 10, &err), &err, "log.jsonl' is a link");
  assert_int_equal(unlink(t->path), 0);
  log_stop(&t->log, 3, "x");
  assert_string_equal(log_text(t), STOP(2) STOP(3));
  must(log_complete(&t->log, &err), &err);
}

TEST(what_a_crash_tore_is_cut_off) {
  enum { LONG = 200000 }; // several blocks
  char *torn = held(xcalloc(LONG + 1, 1)), *before = held_text("%s%s", STOP(1), STOP(2));
  memset(torn, 'x', LONG);
  char *both = held_text("%s%s", before, torn);
  LogTest *t = log_test(both);
  assert_string_equal(log_text(t), before);
  log_stop(&t->log, 3, "x");
  assert_string_equal(log_text(t), STOP(1) STOP(2) STOP(3));
  t = log_test(torn); // no line is whole
  assert_string_equal(log_text(t), "");
}

TEST(a_save_is_synced_and_its_line_comes_once) {
  LogTest *t = log_test(SAVE(1) STOP(20));
  log_saved_before(&t->log, 1, "p");
  assert_string_equal(log_text(t), SAVE(1) STOP(20));
  log_saved_before(&t->log, 2, "p"); // the run was killed before it wrote this
  assert_string_equal(log_text(t), SAVE(1) STOP(20) SAVE(2));
  injected.before_sync = count_sync;
  log_save(&t->log, 3, "p", 2, 1);
  assert_int_equal(syncs, 1);
  log_stop(&t->log, 3, "x");
  assert_int_equal(syncs, 2);
  injected.before_sync = NULL;
}

// What a run in FP8 writes besides: on the progress line only where something was clipped.
TEST(fp8_names_its_peak_and_counts_saturated_tensors) {
  LogTest *t = log_test("");
  const Caught shown = catch_output(STDOUT_FILENO);
  StepLine line = {.step = 1, .result = {.ms = 2, .applied = true}, .tokens = 64, .mfu = 0.25};
  log_train(&t->log, &line);
  line.fp8 = true;
  t->log.printed_ms = 0;
  log_train(&t->log, &line);
  line.result.saturated = 3;
  t->log.printed_ms = 0;
  log_train(&t->log, &line);
  const char *const lines = caught(shown);
  static const double counts[] = {NAN, 0, 3};
  for (int i = 0; i < 3; i++) {
    const cJSON *train = record(t, i);
    const cJSON *saturated = cJSON_GetObjectItemCaseSensitive(train, "saturated");
    assert_true(isnan(counts[i]) ? !saturated : saturated && saturated->valuedouble == counts[i]);
  }
  const char *first = lines, *second = strchr(first, '\n') + 1, *third = strchr(second, '\n') + 1;
  assert_int_equal(strncmp(strstr(first, "25.0%"), "25.0% of peak |", 15), 0);
  assert_int_equal(strncmp(strstr(second, "25.0%"), "25.0% of FP8's peak |", 21), 0);
  assert_ptr_equal(strstr(first, "saturated"), strstr(third, "saturated"));
  assert_non_null(strstr(third, " | 3 saturated\n"));
}

// NAN: null.
static void expect_number(const cJSON *object, const char *name, double value) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  assert_non_null(item);
  if (isnan(value))
    assert_true(cJSON_IsNull(item));
  else
    near(item->valuedouble, value);
}

TEST(a_validation_says_what_is_known_of_it) {
  LogTest *t = log_test("");
  const Caught shown = catch_output(STDOUT_FILENO);
  ValLine val = {.step = 10, .loss = 1.5, .error = 0.125, .bits_per_byte = 2.25, .tokens = 640};
  log_val(&t->log, &val, true);
  val.error = val.bits_per_byte = NAN;
  log_val(&t->log, &val, false);
  val.error = 0;
  val.whole = true;
  log_val(&t->log, &val, false);
  const char *const lines = caught(shown);
  static const struct {
    const char *kind;
    double error, bits;
  } expected[] = {{"val", 0.125, 2.25}, {"val", NAN, NAN}, {"val", 0, NAN}};
  for (int i = 0; i < 3; i++) {
    const cJSON *got = record(t, i);
    assert_string_equal(item(got, "kind")->valuestring, expected[i].kind);
    expect_number(got, "loss", 1.5);
    expect_number(got, "stderr", expected[i].error);
    expect_number(got, "bits_per_byte", expected[i].bits);
    expect_number(got, "tokens", 640);
  }
  assert_string_equal(lines, "step 10 | validation loss 1.5000 +- 0.1250, 2.2500 bits per byte, "
                             "over 640 tokens (best so far)\n"
                             "step 10 | validation loss 1.5000 over 640 tokens\n"
                             "step 10 | validation loss 1.5000 over 640 tokens, all windows\n");
}
