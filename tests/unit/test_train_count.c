// Counting words for the training of a tokenizer: how text is cut, and what is forgotten.
#include "data/tokenizer/train.h"
#include "tests/support/test.h"

static void count(WordCounter *counter, const char *text, size_t bytes) {
  Error err;
  if (counter_add(counter, text, bytes, &err) != 0) fail_msg("%s", err.text);
}

static WordTable counted(WordCounter *counter) {
  Error err;
  WordTable words;
  if (counter_finish(counter, &words, &err) != 0) fail_msg("%s", err.text);
  counter_close(counter);
  return words;
}

static int64_t count_of(WordTable *words, const char *word, size_t length) {
  return words->words[words_add(words, word, length, 0)].count;
}

static WordCounter *small_counter(const char *pattern) {
  Error err;
  const CountLimits limits = {
      .longest_word = 8, .batch_bytes = 1 << 20, .max_words = 1000, .max_words_bytes = 1000};
  WordCounter *counter = counter_open(pattern, &limits, 1, &err);
  assert_non_null(counter);
  return counter;
}

TEST(long_words_are_cut_between_characters) {
  WordCounter *counter = small_counter("\\p{L}+");
  count(counter, "aaaaaaa\u00e9xyz", 12); // the eighth byte is the first of two
  count(counter, "\x80\x80\x80\x80\x80\x80\x80\x80\x80", 9);
  count(counter, "a b", 3);
  WordTable words = counted(counter);
  assert_int_equal(words.count, 7);
  assert_int_equal(count_of(&words, "aaaaaaa", 7), 1);
  assert_int_equal(count_of(&words, "\u00e9xyz", 5), 1);
  assert_int_equal(count_of(&words, "\x80\x80\x80\x80\x80\x80\x80\x80", 8), 1);
  assert_int_equal(count_of(&words, "\x80", 1), 1);
  assert_int_equal(count_of(&words, " ", 1), 1);
  assert_int_equal(words.count, 7);
  words_free(&words);
}

TEST(a_pattern_may_match_nothing_at_all) {
  WordCounter *counter = small_counter("x*");
  count(counter, "xx\u00e9yxx", 7); // "xx", then nothing before each character, then "xx"
  WordTable words = counted(counter);
  assert_int_equal(words.count, 3);
  assert_int_equal(count_of(&words, "xx", 2), 2);
  assert_int_equal(count_of(&words, "\u00e9", 2), 1);
  assert_int_equal(count_of(&words, "y", 1), 1);
  words_free(&words);
}

// Every batch brings 20,000 words that never come again, and 100 that do.
static WordTable noise_counted(int threads) {
  enum { BATCHES = 6, NEW = 20000, OFTEN = 100, BATCH = 1 << 20 };
  Error err;
  const CountLimits limits = {
      .longest_word = 64, .batch_bytes = BATCH, .max_words = 30000, .max_words_bytes = 1 << 20};
  WordCounter *counter = counter_open("\\w+", &limits, threads, &err);
  assert_non_null(counter);
  for (int i = 0; i < BATCHES * NEW; i++) {
    char text[64] = "", spaces[32];
    memset(spaces, ' ', sizeof spaces); // so that these words fill the batch
    snprintf(text, sizeof text, "new%d often%d", i, i % OFTEN);
    count(counter, text, strlen(text));
    count(counter, spaces, sizeof spaces);
  }
  return counted(counter);
}

TEST(rare_words_are_forgotten_where_there_are_too_many) {
  WordTable one = noise_counted(1);
  assert_true(one.count < 30000 + 25000 && one.count > 100);
  for (int i = 0; i < 100; i++) {
    char word[24];
    snprintf(word, sizeof word, "often%d", i);
    assert_int_equal(count_of(&one, word, strlen(word)), 1200);
  }
  for (int threads = 2; threads <= 3; threads++) {
    WordTable other = noise_counted(threads);
    assert_int_equal(other.count, one.count);
    for (size_t i = 0; i < other.count; i++) {
      const Word *w = &other.words[i];
      assert_int_equal(count_of(&one, other.bytes + w->start, w->length), w->count);
    }
    assert_int_equal(other.count, one.count); // count_of would have added what is missing
    words_free(&other);
  }
  words_free(&one);
}
