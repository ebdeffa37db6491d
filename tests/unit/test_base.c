// What everything stands on: JSON both ways, memory in pieces, sentences, paths.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "base/json.h"
#include "base/command.h"
#include "base/text.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

static void write_all_kinds(JsonWriter *w) {
  json_open(w, NULL, '{');
  json_string(w, "s", "a\"\\\n\t\x7f\xff");
  json_bytes(w, "b", "\n\x7f\xc3\xa9\xff\0", 6);
  json_number(w, "third", 1.0 / 3, JSON_EXACT);
  json_number(w, "rounded", 1.0 / 3, 9);
  json_number(w, "none", NAN, 9);
  json_whole(w, "\"\\\n", INT64_MIN);
  json_open(w, "list", '[');
  json_bool(w, NULL, true);
  json_raw(w, NULL, "{}");
  json_close(w, ']');
  json_close(w, '}');
}

TEST(a_line_of_json_is_written_with_its_escapes) {
  JsonWriter w = {0};
  for (int i = 0; i < 2; i++) { // the second time in the same memory
    w.used = 0;
    write_all_kinds(&w);
    assert_string_equal(w.text, "{\"s\":\"a\\\"\\\\\\n\\u0009\x7f\xff\","
                                "\"b\":\"\\u000a\\u007f\xc3\xa9\\ufffd\\u0000\","
                                "\"third\":0.3333333333333333,\"rounded\":0.333333333,"
                                "\"none\":null,\"\\\"\\\\\\n\":-9223372036854775808,"
                                "\"list\":[true,{}]}");
  }
  free(w.text);
}

TEST(indented_json_has_a_value_a_line) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "a", 1);
  json_open(&w, "b", '[');
  json_whole(&w, NULL, 2);
  json_whole(&w, NULL, 3);
  json_close(&w, ']');
  json_close(&w, '}');
  assert_string_equal(w.text, "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3\n  ]\n}\n");
  free(w.text);
}

TEST(numbers_are_as_short_as_their_bits_allow) {
  const struct {
    double value;
    const char *text;
  } cases[] = {{500000, "500000"}, {0.1, "0.1"},      {1e-5, "1e-05"},
               {-0.0, "-0"},       {1e15, "1e+15"},   {0x1p-1074, "5e-324"},
               {INFINITY, "inf"},  {1e300, "1e+300"}, {0.1 + 0.2, "0.30000000000000004"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_string_equal(number_text(cases[i].value).text, cases[i].text);
}

TEST(a_duplicate_key_is_named_with_where_it_is) {
  const char *text = "{\"a\": [1, {\"b\": {\"k\": 1, \"\\u006b\": 2}}]}";
  assert_null(json_parse("x.json", text, strlen(text), &err));
  assert_string_equal(err.text, "x.json: a.b.k appears twice; keep one of them");
}

TEST(characters_are_those_of_rfc_3629) {
  const struct {
    const char *text;
    size_t bytes, length;
  } cases[] = {{"a", 1, 1},
               {"\xc3\xa9", 2, 2},
               {"\xe2\x82\xac", 3, 3},
               {"\xf0\x9f\x8e\xad", 4, 4},
               {"\xf4\x8f\xbf\xbf", 4, 4},
               {"\xe2\x82\xac", 2, 0},     // cut
               {"\x80", 1, 0},             // no first byte
               {"\xc0\x80", 2, 0},         // overlong
               {"\xe0\x9f\xbf", 3, 0},     // overlong
               {"\xf0\x8f\xbf\xbf", 4, 0}, // overlong
               {"\xed\xa0\x80", 3, 0},     // a surrogate
               {"\xf4\x90\x80\x80", 4, 0}, // beyond U+10FFFF
               {"\xe2\x82\x28", 3, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(utf8_length(cases[i].text, cases[i].bytes), cases[i].length);
}

TEST(an_arena_counts_first_and_gives_aligned_pieces_then) {
  Arena count = {0};
  assert_null(arena_take(&count, 1));
  assert_null(arena_take(&count, 256));
  assert_null(arena_take(&count, 0));
  assert_null(arena_take(&count, 257));
  assert_int_equal(count.used, 256 + 256 + 512);
  char block[1];
  Arena a = {.block = block};
  assert_ptr_equal(arena_take(&a, 0), block);
  assert_ptr_equal(arena_take(&a, 1), block);
  assert_int_equal(a.used, 256);
}

TEST(a_path_that_is_too_long_is_refused_and_not_cut_to_another) {
  char *tail = held(xmalloc(5001));
  memset(tail, 'a', 5000);
  for (int i = 1; i < 5000; i += 2) tail[i] = '/';
  tail[5000] = '\0';
  const PathText path = path_text("/tmp/%s", tail);
  assert_int_equal(strlen(path.text), 4096);
  assert_int_equal(access(path.text, F_OK), -1);
  assert_int_equal(errno, ENAMETOOLONG);
  assert_string_equal(path_parent("a/b/c").text, "a/b");
  assert_string_equal(path_parent("a").text, ".");
  assert_string_equal(path_parent("/a").text, "/");
}

// A test that waits for a writer would hang.
TEST(a_pipe_by_name_is_refused_at_once) {
  const PathText path = path_text("%s/pipe", (char *)*state);
  size_t bytes;
  char *data;
  assert_int_equal(mkfifo(path.text, 0600), 0);
  expect_error(file_read(path.text, 100, &data, &bytes, &err), &err, "it is not a regular file");
}

TEST(a_file_that_became_shorter_ends_in_a_sentence) {
  const PathText path = path_text("%s/short", (char *)*state);
  size_t bytes;
  char back[6];
  put_file(path.text, "0123456789");
  const int fd = file_open(path.text, &bytes, &err);
  assert_int_equal(bytes, 10);
  must(file_read_at(fd, path.text, 3, back, 6, &err), &err);
  assert_memory_equal(back, "345678", 6);
  assert_int_equal(truncate(path.text, 7), 0);
  expect_error(file_read_at(fd, path.text, 3, back, 6, &err), &err,
               "/short' became shorter while it was in use: it has no byte 7 any more");
  close(fd);
}

TEST(a_writer_keeps_its_first_error) {
  Error first = {""}, later = {""};
  FileWriter w;
  assert_int_equal(writer_open(&w, "/tmp/no/such/folder/x", &first), -1);
  assert_says(&first, "cannot create '/tmp/no/such/folder/x'");
  assert_int_equal(writer_append(&w, "x", 1, &later), -1);
  assert_string_equal(later.text, first.text);
  assert_int_equal(writer_finish(&w, &later), -1);
  assert_string_equal(later.text, first.text);
  writer_abandon(&w);
}

TEST(sentences_grow_at_both_ends_and_are_cut) {
  assert_int_equal(error_set(&err, "%d", 1), -1);
  assert_int_equal(error_append(&err, ", %s", "two"), -1);
  assert_int_equal(error_prefix(&err, "x"), -1);
  assert_string_equal(err.text, "x: 1, two");
  for (int i = 0; i < 1000; i++) error_append(&err, "12345");
  assert_int_equal(strlen(err.text), sizeof err.text - 1);
  assert_string_equal(size_text(1023).text, "1023 B");
  assert_string_equal(size_text(3 << 19).text, "1.50 MiB");
}

TEST(words_for_a_shell_are_quoted_where_they_must) {
  static const char *const words[][2] = {{"runs/a-b_1.json", "runs/a-b_1.json"},
                                         {"", "''"},
                                         {"my runs", "'my runs'"},
                                         {"it's", "'it'\\''s'"},
                                         {"$HOME", "'$HOME'"},
                                         {"~", "'~'"},
                                         {"''", "''\\'''\\'''"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    char *word = shell_word(words[i][0]);
    assert_string_equal(word, words[i][1]);
    free(word);
  }
}

TEST(a_name_that_was_meant_is_found) {
  static const char *const options[] = {"--prompt", "--tokens", "--temperature",
                                        "--top-k",  "--top-p",  "--seed"};
  static const char *const keys[] = {"schedule",     "learning_rate", "min_learning_rate",
                                     "warmup_steps", "weight_decay",  "clip_norm",
                                     "eps",          "epsilon",       "sequence_length"};
  static const struct {
    const char *name, *option, *key;
  } cases[] = {{"--temp", "--temperature", NULL},
               {"--temprature", "--temperature", NULL},
               {"--tok", "--tokens", NULL},
               {"--top_k", "--top-k", NULL},
               {"lr", NULL, "learning_rate"},
               {"min_lr", NULL, "min_learning_rate"},
               {"minlr", NULL, "min_learning_rate"},
               {"wd", NULL, "weight_decay"},
               {"warmup", NULL, "warmup_steps"},
               {"seq_len", NULL, "sequence_length"},
               {"weigth_decay", NULL, "weight_decay"},
               {"eps", NULL, "eps"}, // and not epsilon
               {"rate", NULL, NULL}, // the first word has no letter
               {"zebra", NULL, NULL},
               {"--", NULL, NULL},
               {"", NULL, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *const *names = cases[i].key ? keys : options, *const near = cases[i].name;
    const int count =
        cases[i].key ? (int)(sizeof keys / sizeof *keys) : (int)(sizeof options / sizeof *options);
    const char *expected = cases[i].key ? cases[i].key : cases[i].option;
    const char *found = nearest_name(near, names, count);
    if (!expected && found) fail_msg("'%s' is taken for %s", near, found);
    if (expected && (!found || strcmp(found, expected) != 0))
      fail_msg("'%s' is taken for %s, not %s", near, found ? found : "nothing", expected);
  }
}

TEST(an_unknown_option_is_named_without_its_value) {
  double temperature;
  const Option list[] = {{.name = "--temperature", .high = 1, .number = &temperature}};
  char *argv[] = {"--temp=0.5", NULL};
  int at = 0;
  assert_int_equal(option_read(list, 1, "--generate", 1, argv, &at, &err), -1);
  assert_string_equal(err.text,
                      "unknown option '--temp' of --generate; did you mean --temperature?");
}

// What one line of progress says after a second.
TEST(amounts_are_told_in_their_unit) {
  static const struct {
    const char *unit;
    double in_unit;
    uint64_t amount;
    const char *words;
  } cases[] = {{"MB", 1e6, 8500000, "8 MB, 4.2 MB/s"},
               {"MB", 1e6, 1000000000, "1000 MB, 500 MB/s"},
               {"tokens", 1, 5, "5 tokens, 2.5 tokens/s"},
               {"tokens", 1, 4000, "4000 tokens, 2000 tokens/s"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const Caught said = catch_output(STDERR_FILENO);
    Progress p = progress_begin(cases[i].unit, cases[i].in_unit);
    p.start -= 2; // seconds
    progress_show(&p, 1, 4, cases[i].amount);
    const char *line = caught(said);
    if (!strstr(line, cases[i].words)) fail_msg("'%s' is not in: %s", cases[i].words, line);
    assert_non_null(strstr(line, " 25 %"));
  }
}

TEST(a_character_that_is_not_whole_is_found_at_the_end) {
  static const struct {
    const char *text;
    size_t begun;
  } cases[] = {{"", 0},
               {"a", 0},
               {"\xc3\xa9", 0},
               {"a\xc3", 1},
               {"\xe2\x82", 2},
               {"\xe2", 1},
               {"\xe2\x82\xac", 0},
               {"\xf0\x9f\x98", 3},
               {"\xf0\x9f", 2},
               {"\x82\xac", 0},
               {"\x80\x80\x80", 0},
               {"\xff", 0},
               {"\xc3\x80\x80", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(utf8_begun(cases[i].text, strlen(cases[i].text)), cases[i].begun);
}

TEST(a_run_learns_how_much_memory_there_is) {
  const size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  assert_in_range(memory_available(), 64 << 20, all);
}

TEST(a_limit_of_memory_is_a_size_with_its_unit) {
  static const struct {
    const char *text;
    size_t bytes; // 0: refused
  } cases[] = {{"24GB", 24000000000},
               {"80GB", 80000000000},
               {"512MiB", 512 << 20},
               {"1.5GiB", 3 << 29},
               {"7MB", 7000000},
               {"24", 0},
               {"", 0},
               {"-1GB", 0},
               {"0GB", 0},
               {"24 GB", 0},
               {"nanGB", 0},
               {"1e99GB", 0},
               {"24GBs", 0},
               {"GB", 0}};
  size_t limit;
  assert_int_equal(unsetenv("CODA_MEMORY_LIMIT"), 0);
  must(memory_limit(&limit, &err), &err);
  assert_true(limit == SIZE_MAX);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(setenv("CODA_MEMORY_LIMIT", cases[i].text, 1), 0);
    assert_int_equal(memory_limit(&limit, &err), cases[i].bytes > 0 ? 0 : -1);
    if (cases[i].bytes > 0) assert_int_equal(limit, cases[i].bytes);
    if (cases[i].bytes == 0) assert_non_null(strstr(err.text, "such as 24GB or 512MiB"));
  }
  assert_int_equal(unsetenv("CODA_MEMORY_LIMIT"), 0);
}

static void *see_signals(void *mask) {
  pthread_sigmask(SIG_BLOCK, NULL, mask);
  return NULL;
}

TEST(threads_leave_signals_to_the_main_one) {
  pthread_t thread;
  sigset_t of_thread, of_main;
  must(thread_start(&thread, "signals", see_signals, &of_thread, &err), &err);
  pthread_join(thread, NULL);
  see_signals(&of_main);
  assert_true(sigismember(&of_thread, SIGTERM) && sigismember(&of_thread, SIGINT));
  assert_false(sigismember(&of_main, SIGTERM) || sigismember(&of_main, SIGINT));
}

static void sleep_ms(long ms) {
  assert_int_equal(nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL), 0);
}

TEST(phases_follow_one_another_and_are_the_whole) {
  const double began = now_ms();
  Phases all = {.since_ms = began}, inner = {.since_ms = 0};
  sleep_ms(3);
  phase_end(&all, "first");
  sleep_ms(2); // before the inner ones begin: a part of "rest"
  inner.since_ms = now_ms();
  sleep_ms(5);
  phase_end(&inner, "inside");
  sleep_ms(2);
  phases_join(&all, &inner, "rest");
  assert_int_equal(all.count, 3);
  assert_string_equal(all.list[1].name, "inside");
  assert_true(all.list[0].ms >= 3 && all.list[1].ms >= 5 && all.list[2].ms >= 4);
  assert_true(fabs(phases_sum(&all) - (all.since_ms - began)) < 1e-3);
  assert_true(all.since_ms <= now_ms());
}

TEST(phases_without_a_place_are_left_out) {
  Phases p = {.since_ms = now_ms()};
  for (int i = 0; i < MAX_PHASES + 2; i++) phase_end(&p, "one");
  assert_int_equal(p.count, MAX_PHASES);
}

// To a hundredth of a second, and this process is younger than a run of all tests.
TEST(a_process_knows_when_it_began) {
  const double age = now_ms() - process_began_ms();
  sleep_ms(30);
  const double later = now_ms() - process_began_ms();
  assert_true(age >= 0 && age < 3600e3);
  assert_true(later - age >= 15);
}

TEST_GROUP(make_folder, NULL);
