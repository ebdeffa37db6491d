// Training a tokenizer: the merges of an obvious trainer, the same file for any number of threads,
// text that is hostile, and what is refused.
#include "base/json.h"
#include "base/rng.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/train.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

// ---- Support

static void close_trainer(void *trainer) {
  bpe_trainer_close(trainer);
}

static BpeTrainer *counter_for(const char *pattern, int64_t vocab_size, CountLimits limits,
                               int threads) {
  Error err;
  const BpeOptions options = {
      .vocab_size = vocab_size, .pattern = pattern, .threads = threads, .limits = limits};
  return hold(must_make(bpe_trainer_open(&options, &err), &err), close_trainer);
}
static BpeTrainer *trainer_for(const char *pattern, int64_t vocab_size, int threads) {
  return counter_for(pattern, vocab_size, (CountLimits){0}, threads);
}

static void add(BpeTrainer *trainer, const char *text, size_t bytes) {
  Error err;
  must(bpe_trainer_add(trainer, text, bytes, &err), &err);
}

static void train(BpeTrainer *trainer) {
  Error err;
  int status;
  while ((status = bpe_trainer_step(trainer, 7, &err)) > 0) continue;
  must(status, &err);
}

// Trains, and returns the tokenizer.json that it saved.
static char *trained(BpeTrainer *trainer, const char *folder) {
  Error err;
  train(trainer);
  must(bpe_trainer_save(trainer, folder, &err), &err);
  const PathText path = path_text("%s/tokenizer.json", folder);
  return file_text(path.text, NULL);
}

static cJSON *parsed(const char *json) {
  Error err;
  return hold_json(json_parse("tokenizer.json", json, strlen(json), &err), &err);
}

static const cJSON *model_part(const cJSON *tree, const char *name) {
  const cJSON *part = cJSON_GetObjectItem(cJSON_GetObjectItem(tree, "model"), name);
  assert_non_null(part);
  return part;
}

// ---- Against a trainer that counts all pairs anew for every merge

enum { WORDS = 300, LONGEST = 24, IDS = 600 };

typedef struct Obvious {
  int symbols[WORDS][LONGEST], lengths[WORDS];
  char names[IDS][2 * LONGEST];
  int tokens;
  int pairs[IDS][IDS];
} Obvious;

// A word is up to 24 of the letters a and b, so that there are many ties and runs of one
// letter.
static int make_word(uint64_t seed, int w, char *word) {
  const int length = 1 + (int)(rng_u64(seed, (uint64_t)w * 32) % LONGEST);
  for (int i = 0; i < length; i++)
    word[i] = (char)('a' + rng_u64(seed, (uint64_t)(w * 32 + i + 1)) % 2);
  return length;
}

static void count_pairs(Obvious *o) {
  memset(o->pairs, 0, sizeof o->pairs);
  for (int w = 0; w < WORDS; w++)
    for (int i = 1; i < o->lengths[w]; i++) o->pairs[o->symbols[w][i - 1]][o->symbols[w][i]]++;
}

static int token_named(Obvious *o, const char *name) {
  for (int i = 0; i < o->tokens; i++)
    if (strcmp(o->names[i], name) == 0) return i;
  strcpy(o->names[o->tokens], name);
  return o->tokens++;
}

static void merge_all(Obvious *o, int left, int right, int joined) {
  for (int w = 0; w < WORDS; w++) {
    int *s = o->symbols[w], kept = 0;
    for (int i = 0; i < o->lengths[w]; i++) {
      const bool here = s[i] == left && i + 1 < o->lengths[w] && s[i + 1] == right;
      s[kept++] = here ? joined : s[i];
      i += here;
    }
    o->lengths[w] = kept;
  }
}

// The next merge as tokenizer.json has it.
static char *obvious_merge(Obvious *o) {
  int left = 0, right = 0;
  count_pairs(o);
  for (int a = 0; a < o->tokens; a++)
    for (int b = 0; b < o->tokens; b++)
      if (o->pairs[a][b] > o->pairs[left][right]) left = a, right = b;
  assert_true(o->pairs[left][right] > 1);
  char *merge = held_text("%s %s", o->names[left], o->names[right]);
  char joined[2 * LONGEST];
  snprintf(joined, sizeof joined, "%s%s", o->names[left], o->names[right]);
  merge_all(o, left, right, token_named(o, joined));
  return merge;
}

static Obvious *make_obvious(uint64_t seed) {
  Obvious *o = xcalloc(1, sizeof *o);
  for (int c = '!'; c <= '~'; c++) o->names[c - '!'][0] = (char)c;
  for (int i = '~' - '!' + 1; i < 256; i++) snprintf(o->names[i], 16, "?%d", i);
  o->tokens = 256;
  for (int w = 0; w < WORDS; w++) {
    char word[LONGEST];
    o->lengths[w] = make_word(seed, w, word);
    for (int i = 0; i < o->lengths[w]; i++) o->symbols[w][i] = word[i] - '!';
  }
  return o;
}

TEST(merges_are_those_of_an_obvious_trainer) {
  enum { SEEDS = 12, VOCAB = 258 + 120 };
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    BpeTrainer *trainer = trainer_for("[ab]+", VOCAB, 1 + (int)seed % 3);
    for (int w = 0; w < WORDS; w++) {
      char word[LONGEST];
      add(trainer, word, (size_t)make_word(seed, w, word));
      add(trainer, " ", 1);
    }
    cJSON *tree = parsed(trained(trainer, *state));
    assert_int_equal(cJSON_GetArraySize(model_part(tree, "merges")), VOCAB - 258);
    Obvious *o = make_obvious(seed);
    const cJSON *merge;
    cJSON_ArrayForEach(merge, model_part(tree, "merges")) {
      assert_string_equal(merge->valuestring, obvious_merge(o));
    }
    assert_int_equal(o->tokens, VOCAB - 2);
    free(o);
  }
}

// ---- The file

TEST(bytes_and_special_tokens_have_llama_3s_places) {
  BpeTrainer *trainer = trainer_for(LLAMA3_PATTERN, 259, 1);
  add(trainer, "ab ab", 5);
  cJSON *tree = parsed(trained(trainer, *state));
  const cJSON *vocab = model_part(tree, "vocab");
  assert_int_equal(cJSON_GetArraySize(vocab), 257);
  assert_int_equal(cJSON_GetObjectItem(vocab, "!")->valueint, 0);
  assert_int_equal(cJSON_GetObjectItem(vocab, "\u0100")->valueint, 188);
  assert_int_equal(cJSON_GetObjectItem(vocab, "\u0143")->valueint, 255);
  assert_int_equal(cJSON_GetObjectItem(vocab, "ab")->valueint, 256);
  const cJSON *added = cJSON_GetObjectItem(tree, "added_tokens");
  assert_int_equal(cJSON_GetArraySize(added), 2);
  for (int i = 0; i < 2; i++) {
    const cJSON *token = cJSON_GetArrayItem(added, i);
    assert_int_equal(cJSON_GetObjectItem(token, "id")->valueint, 257 + i);
    assert_string_equal(cJSON_GetObjectItem(token, "content")->valuestring,
                        i == 0 ? "<|begin_of_text|>" : "<|end_of_text|>");
  }
}

// Text of words with a Zipf-like frequency, some with broken UTF-8 in them.
static size_t make_document(uint64_t number, char *text, size_t room) {
  size_t used = 0;
  for (uint64_t i = 0; used + 16 < room; i++) {
    const double u = rng_uniform(number, i);
    const uint64_t word = rng_mix((uint64_t)(1 / (u + 1e-4)));
    for (uint64_t k = 0; k <= word % 7; k++)
      text[used++] = (char)('a' + (word >> (8 + 4 * k)) % 16);
    text[used++] = word % 31 == 0 ? (char)0xe9 : word % 5 == 0 ? '\n' : ' ';
  }
  return used;
}

static char *trained_by(int threads, const char *folder) {
  enum { DOCUMENTS = 400, ROOM = 4096 };
  BpeTrainer *trainer = trainer_for(LLAMA3_PATTERN, 600, threads);
  char text[ROOM];
  for (uint64_t d = 0; d < DOCUMENTS; d++) add(trainer, text, make_document(d, text, ROOM));
  return trained(trainer, folder);
}

TEST(any_number_of_threads_gives_the_same_file) {
  char *one = trained_by(1, *state);
  for (int threads = 0; threads <= 3; threads++) {
    assert_string_equal(one, trained_by(threads, *state));
  }
}

// What the trainer made of its text is what the encoder makes of it, broken UTF-8 included.
TEST(the_saved_tokenizer_encodes_as_it_was_trained) {
  enum { DOCUMENTS = 50, ROOM = 4096 };
  char text[ROOM];
  BpeTrainer *trainer = trainer_for(LLAMA3_PATTERN, 500, 1);
  for (uint64_t d = 0; d < DOCUMENTS; d++) add(trainer, text, make_document(d, text, ROOM));
  train(trainer);
  const int64_t expected = bpe_trainer_text_tokens(trainer);
  trained(trainer, *state);
  Tokenizer *tokenizer = open_tokenizer(*state);
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  assert_int_equal(facts->vocab_size, 500);
  assert_int_equal(facts->bos, 498);
  assert_int_equal(facts->eos, 499);
  Encoder *encoder = open_encoder(tokenizer);
  Decoder *decoder = open_decoder(tokenizer);
  int64_t count = 0;
  for (uint64_t d = 0; d < DOCUMENTS; d++) {
    const size_t bytes = make_document(d, text, ROOM);
    TokenIds ids = {0};
    must(encoder_append(encoder, text, bytes, false, &ids, &err), &err);
    count += ids.count;
    size_t at = 0, n;
    const char *back;
    for (int64_t i = 0; i <= ids.count; i++, at += n) {
      n = i < ids.count ? decoder_next(decoder, ids.ids[i], &back) : decoder_end(decoder, &back);
      assert_true(at + n <= bytes);
      assert_memory_equal(back, text + at, n);
    }
    assert_int_equal(at, bytes);
    free(ids.ids);
  }
  assert_int_equal(count, expected);
}

TEST(progress_is_told) {
  BpeTrainer *trainer = trainer_for("[a-z]+", 260, 1);
  add(trainer, "aaaa bb aaaa bb bb", 18);
  BpeProgress p = bpe_trainer_progress(trainer);
  assert_int_equal(p.bytes, 18);
  assert_int_equal(p.tokens, 0);
  assert_int_equal(bpe_trainer_step(trainer, 0, &err), 1);
  p = bpe_trainer_progress(trainer);
  assert_int_equal(p.words, 3);
  assert_int_equal(p.tokens, 258);
  assert_int_equal(bpe_trainer_text_tokens(trainer), 18);
  assert_int_equal(bpe_trainer_step(trainer, 1, &err), 1); // "aa": it comes six times
  assert_int_equal(bpe_trainer_text_tokens(trainer), 14);
  must(bpe_trainer_step(trainer, 100, &err), &err); // "bb": three times
  p = bpe_trainer_progress(trainer);
  assert_int_equal(p.tokens, 260);
  assert_int_equal(p.vocab_size, 260);
  assert_int_equal(bpe_trainer_text_tokens(trainer), 11);
}

// ---- Hostile text

// Thirteen merges leave it in two pieces. The next would join them, but "ab" is joined instead.
TEST(no_merge_makes_a_special_token) {
  BpeTrainer *trainer = trainer_for("[^;]+", 258 + 14, 1);
  for (int i = 0; i < 3; i++) add(trainer, BPE_END ";", sizeof BPE_END);
  for (int i = 0; i < 2; i++) add(trainer, "ab", 2);
  cJSON *tree = parsed(trained(trainer, *state));
  const cJSON *merges = model_part(tree, "merges");
  assert_int_equal(cJSON_GetArraySize(merges), 14);
  assert_string_equal(cJSON_GetArrayItem(merges, 13)->valuestring, "a b");
  assert_null(cJSON_GetObjectItem(model_part(tree, "vocab"), BPE_END));
}

TEST(broken_utf8_counts_as_bytes) {
  BpeTrainer *trainer = trainer_for(LLAMA3_PATTERN, 260, 1);
  for (int i = 0; i < 2; i++)
    add(trainer,
        "a\xff\xfe"
        "b\xc3",
        5);
  for (int i = 0; i < 2; i++)
    add(trainer,
        "\xff\xfe"
        "bb",
        4);
  cJSON *tree = parsed(trained(trainer, *state));
  const cJSON *merges = model_part(tree, "merges");
  assert_string_equal(cJSON_GetArrayItem(merges, 0)->valuestring, "\u00ff \u00fe");
  assert_string_equal(cJSON_GetArrayItem(merges, 1)->valuestring, "b b");
}

TEST(a_run_of_spaces_without_end_is_no_error) {
  enum { BYTES = 40 << 20 };
  char *text = held(xmalloc(BYTES));
  memset(text, ' ', BYTES);
  BpeTrainer *trainer = trainer_for(LLAMA3_PATTERN, 258 + 8, 0);
  add(trainer, text, BYTES);
  train(trainer); // 2, 4, ..., 256 spaces
  assert_int_equal(bpe_trainer_text_tokens(trainer), BYTES / 256);
}

// ---- What is refused

static void assert_refused(int64_t vocab_size, const char *pattern, const char *words) {
  Error err;
  const BpeOptions options = {.vocab_size = vocab_size, .pattern = pattern, .threads = 1};
  expect_none(bpe_trainer_open(&options, &err), &err, words);
}

TEST(wrong_options_are_refused) {
  assert_refused(257, "a", "from 258 to 1048576 tokens");
  assert_refused(1048577, "a", "not 1048577");
  assert_refused(300, "(", "the regular expression does not compile");
}

TEST(too_little_text_says_how_many_tokens_it_gives) {
  BpeTrainer *trainer = trainer_for("[a-z]+", 300, 1);
  add(trainer, "abc abc", 7);
  expect_error(bpe_trainer_step(trainer, 1000, &err), &err,
               "the text is too little for 300 tokens: it gives 260");
  trainer = trainer_for("[a-z]+", 259, 1);
  assert_int_equal(bpe_trainer_step(trainer, 1000, &err), -1); // no text at all
  assert_says(&err, "it gives 258");
}

TEST(a_pattern_that_backtracks_for_ever_is_an_error) {
  enum { BYTES = 1000 };
  char text[BYTES];
  memset(text, 'a', BYTES);
  BpeTrainer *trainer = trainer_for("(a+)+b|((a*)*)*c", 300, 2);
  for (int i = 0; i < 3; i++) add(trainer, text, BYTES);
  expect_error(bpe_trainer_step(trainer, 1, &err), &err, "backtrack for ever");
}

TEST(a_failed_save_leaves_nothing) {
  BpeTrainer *trainer = trainer_for("[a-z]+", 258, 1);
  train(trainer);
  expect_error(bpe_trainer_save(trainer, "/nowhere", &err), &err,
               "/nowhere/tokenizer_config.json.tmp");
  const PathText folder = path_text("%s/taken", (char *)*state);
  const PathText taken = path_text("%s/tokenizer.json", folder.text);
  must(directory_create(taken.text, &err), &err);
  expect_error(bpe_trainer_save(trainer, folder.text, &err), &err, "is a folder");
  assert_false(path_exists(path_text("%s/tokenizer_config.json", folder.text).text));
  assert_false(path_exists(path_text("%s/tokenizer_config.json.tmp", folder.text).text));
}

// ---- Counting words: how text is cut, and what is forgotten

static WordTable *counted(BpeTrainer *trainer) {
  Error err;
  return must_make(bpe_trainer_words(trainer, &err), &err);
}

static int64_t count_of(WordTable *words, const char *word, size_t length) {
  return words->words[words_add(words, word, length, 0)].count;
}

static const CountLimits small = {
    .longest_word = 8, .batch_bytes = 1 << 20, .max_words = 1000, .max_words_bytes = 1000};

TEST(long_words_are_cut_between_characters) {
  BpeTrainer *trainer = counter_for("\\p{L}+", 300, small, 1);
  add(trainer, "aaaaaaa\u00e9xyz", 12); // the eighth byte is the first of two
  add(trainer, "\x80\x80\x80\x80\x80\x80\x80\x80\x80", 9);
  add(trainer, "a b", 3);
  WordTable *words = counted(trainer);
  assert_int_equal(words->count, 7);
  assert_int_equal(count_of(words, "aaaaaaa", 7), 1);
  assert_int_equal(count_of(words, "\u00e9xyz", 5), 1);
  assert_int_equal(count_of(words, "\x80\x80\x80\x80\x80\x80\x80\x80", 8), 1);
  assert_int_equal(count_of(words, "\x80", 1), 1);
  assert_int_equal(count_of(words, " ", 1), 1);
  assert_int_equal(words->count, 7);
}

TEST(a_pattern_may_match_nothing_at_all) {
  BpeTrainer *trainer = counter_for("x*", 300, small, 1);
  add(trainer, "xx\u00e9yxx", 7); // "xx", then nothing before each character, then "xx"
  WordTable *words = counted(trainer);
  assert_int_equal(words->count, 3);
  assert_int_equal(count_of(words, "xx", 2), 2);
  assert_int_equal(count_of(words, "\u00e9", 2), 1);
  assert_int_equal(count_of(words, "y", 1), 1);
}

// Every batch brings 20,000 words that never come again, and 100 that do.
static BpeTrainer *count_noise(int threads) {
  enum { BATCHES = 6, NEW = 20000, OFTEN = 100, BATCH = 1 << 20 };
  const CountLimits limits = {
      .longest_word = 64, .batch_bytes = BATCH, .max_words = 30000, .max_words_bytes = 1 << 20};
  BpeTrainer *trainer = counter_for("\\w+", 300, limits, threads);
  for (int i = 0; i < BATCHES * NEW; i++) {
    char text[64] = "", spaces[32];
    memset(spaces, ' ', sizeof spaces); // so that these words fill the batch
    snprintf(text, sizeof text, "new%d often%d", i, i % OFTEN);
    add(trainer, text, strlen(text));
    add(trainer, spaces, sizeof spaces);
  }
  return trainer;
}

TEST(rare_words_are_forgotten_where_there_are_too_many) {
  WordTable *one = counted(count_noise(1));
  assert_true(one->count < 30000 + 25000 && one->count > 100);
  for (int i = 0; i < 100; i++) {
    char word[24];
    snprintf(word, sizeof word, "often%d", i);
    assert_int_equal(count_of(one, word, strlen(word)), 1200);
  }
  for (int threads = 2; threads <= 3; threads++) {
    const WordTable *other = counted(count_noise(threads));
    assert_int_equal(other->count, one->count);
    for (size_t i = 0; i < other->count; i++) {
      const Word *w = &other->words[i];
      assert_int_equal(count_of(one, other->bytes + w->start, w->length), w->count);
    }
    assert_int_equal(other->count, one->count); // count_of would have added what is missing
  }
}

TEST_GROUP(make_folder, NULL);
