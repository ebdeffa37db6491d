// Prompts as token ids, and what a model writes as text.
#include "base/text.h"
#include "model/run/token_text.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

// Byte-level, with the vocabulary of tiny_run: the bytes of e with an acute accent (2, 3) and of
// the euro sign (7, 8, 9) are tokens of their own. POST stands for the post-processor.
#define VOCABULARY                                                                                 \
  "{\"<s>\": 0, \"</s>\": 1, \"\u00c3\": 2, \"\u00a9\": 3, \"a\": 4, \"\u0120\": 5, \"c\": 6, "    \
  "\"\u00e2\": 7, \"\u0124\": 8, \"\u00ac\": 9, \"d\": 10}"
#define ADDED(id, content)                                                                         \
  "{\"id\": " #id ", \"content\": \"" content "\", \"single_word\": false, \"lstrip\": false, "    \
  "\"rstrip\": false, \"normalized\": false, \"special\": true}"
#define BEGINS                                                                                     \
  "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", "          \
  "\"type_id\": "                                                                                  \
  "0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": "     \
  "\"A\", "                                                                                        \
  "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": "       \
  "{\"<s>\": "                                                                                     \
  "{\"id\": \"<s>\", \"ids\": [0], \"tokens\": [\"<s>\"]}}}"

static Tokenizer *tokenizer_with(const char *post_processor) {
  return parse_tokenizer(held_text(
      "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [%s, %s], "
      "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
      "false, \"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": %s, \"decoder\": "
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
      "\"use_regex\": "
      "true}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
      "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
      "\"byte_fallback\": false, \"vocab\": %s, \"merges\": []}}",
      ADDED(0, "<s>"), ADDED(1, "</s>"), post_processor, VOCABULARY));
}

static void expect_ids(const Tokenizer *t, const char *text, const int32_t *ids, int64_t count) {
  Error err;
  TokenIds got = {0};
  must(prompt_ids(t, text, strlen(text), &got, &err), &err);
  assert_int_equal(got.count, count);
  assert_memory_equal(got.ids, ids, (size_t)count * sizeof *ids);
  free(got.ids);
}
#define EXPECT_IDS(t, text, ...)                                                                   \
  expect_ids(t, text, (const int32_t[]){__VA_ARGS__},                                              \
             sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

TEST(a_prompt_begins_once) {
  Tokenizer *begins = tokenizer_with(BEGINS), *plain = tokenizer_with("null");
  EXPECT_IDS(begins, "ad", 0, 4, 10);
  EXPECT_IDS(begins, "", 0);
  EXPECT_IDS(begins, "<s>ad", 0, 4, 10); // as chat templates write it
  EXPECT_IDS(begins, "<s><s>ad", 0, 0, 4, 10);
  EXPECT_IDS(begins, "a</s><s>d", 0, 4, 1, 0, 10);
  EXPECT_IDS(begins, "\xc3\xa9 \xe2\x82\xac", 0, 2, 3, 5, 7, 8, 9);
  EXPECT_IDS(plain, "ad", 4, 10);
  EXPECT_IDS(plain, "", 1); // where the document before would stop
  Tokenizer *bytes = open_tokenizer(BYTES_NAME);
  EXPECT_IDS(bytes, "a\xff", TOKEN_BOS, 'a', 255);
}

// What was shown, and where a piece ended.
typedef struct Shown {
  char text[512];
  bool ends[512]; // after so many bytes
  size_t bytes;
  int pieces, most_pieces;
} Shown;

static int show(void *shown_, const char *text, size_t bytes, Error *err) {
  Shown *s = shown_;
  assert_true(bytes > 0 && s->bytes + bytes < sizeof s->text);
  memcpy(s->text + s->bytes, text, bytes);
  s->bytes += bytes;
  s->ends[s->bytes] = true;
  if (++s->pieces == s->most_pieces) return error_set(err, "that is enough");
  return 0;
}

// How many characters came in parts.
static int divided(const Shown *s) {
  int count = 0;
  for (size_t at = 0, length; at < s->bytes; at += length) {
    length = utf8_length(s->text + at, s->bytes - at);
    if (length == 0) length = 1;
    for (size_t i = 1; i < length; i++) count += s->ends[at + i];
  }
  return count;
}

// The text of the ids.
static size_t decode(const Tokenizer *t, const int32_t *ids, int64_t count, char *text) {
  Decoder *d = open_decoder(t);
  const char *piece;
  size_t bytes = 0, n;
  for (int64_t i = 0; i < count; i++, bytes += n) {
    n = decoder_next(d, ids[i], &piece);
    memcpy(text + bytes, piece, n);
  }
  n = decoder_end(d, &piece);
  memcpy(text + bytes, piece, n);
  return bytes + n;
}

typedef struct Setting {
  Tokenizer *tokenizer;
  Generator *generator;
} Setting;

static Setting setting_open(void) {
  TinyRun *run = tiny_run_drawn("\"initializer_range\": 0.1", 1);
  return (Setting){tokenizer_with(BEGINS), tiny_generator(run)};
}

TEST(text_is_shown_in_whole_characters) {
  static const char *const prompts[] = {"", "ad", "\xc3\xa9", "a\xc3", "a\xe2\x82", "\xe2"};
  enum { PROMPTS = sizeof prompts / sizeof *prompts, TOKENS = 20, SEEDS = 100 };
  const Setting s = setting_open();
  const volatile sig_atomic_t stop = 0;
  int completed = 0; // prompts that end in a part of a character, which the model went on from
  for (int p = 0; p < PROMPTS; p++)
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
      Shown shown = {.bytes = 0};
      TokenIds ids = {0};
      TextGeneration w = {
          .generator = s.generator,
          .tokenizer = s.tokenizer,
          .options = {.temperature = 1, .top_p = 1, .seed = seed, .max_tokens = TOKENS},
          .stop = &stop,
          .show = show,
          .context = &shown};
      const size_t bytes = strlen(prompts[p]);
      must(prompt_ids(s.tokenizer, prompts[p], bytes, &ids, &err), &err);
      must(text_generate(&w, prompts[p], bytes, &ids, &err), &err);
      must(generator_start(s.generator, ids.ids, ids.count, &w.options, &err), &err);
      int32_t id;
      while (generator_next(s.generator, &id, &err) == 1) token_ids_push(&ids, id);
      char expected[512];
      const size_t all = decode(s.tokenizer, ids.ids, ids.count, expected);
      assert_memory_equal(shown.text, prompts[p], bytes);
      assert_int_equal(shown.bytes, all);
      assert_memory_equal(shown.text, expected, all);
      const size_t begun = utf8_begun(prompts[p], bytes);
      completed += begun > 0 && utf8_length(shown.text + bytes - begun, all - bytes + begun) > 0;
      assert_int_equal(divided(&shown), 0);
      free(ids.ids);
    }
  assert_true(completed > 10);
}

TEST(showing_may_end_it_and_so_may_a_signal) {
  const Setting s = setting_open();
  Shown shown = {.most_pieces = 3};
  TokenIds ids = {0};
  volatile sig_atomic_t stop = 0;
  TextGeneration w = {.generator = s.generator,
                      .options = {.temperature = 1, .top_p = 1, .max_tokens = 20},
                      .stop = &stop,
                      .show = show,
                      .context = &shown};
  must(prompt_ids(s.tokenizer, "ad", 2, &ids, &err), &err);
  expect_error(text_generate(&w, "0 4 10", 6, &ids, &err), &err, "enough");
  assert_int_equal(shown.pieces, 3);
  assert_memory_equal(shown.text, "0 4 10 ", 7); // without a tokenizer: ids
  stop = 1;
  shown = (Shown){.bytes = 0};
  must(text_generate(&w, "0 4 10", 6, &ids, &err), &err);
  assert_int_equal(shown.pieces, 1);
  free(ids.ids);
}

// However a text is cut into windows, in the middle of characters, too, their bytes are its own.
TEST(bytes_are_counted_wherever_a_text_is_cut) {
  static const char text[] = "a\u00e9 \u20ac\xff\u00e9\U0001f600d\xe2\x82";
  TokenIds ids = {0};
  Tokenizer *t = open_tokenizer(BYTES_NAME);
  const int32_t begin = tokenizer_facts(t)->bos, end = tokenizer_facts(t)->eos;
  must(prompt_ids(t, text, sizeof text - 1, &ids, &err), &err);
  token_ids_push(&ids, end);
  for (int64_t first = 0; first < ids.count; first++)
    for (int64_t last = first + 1; last <= ids.count; last++) {
      TextBytes bytes;
      text_bytes_open(&bytes, t);
      text_bytes_targets(&bytes, ids.ids + first, ids.ids + first + 1, last - first - 1);
      int64_t expected = 0;
      for (int64_t i = first + 1; i < last; i++)
        expected += ids.ids[i] != begin && ids.ids[i] != end;
      assert_int_equal(bytes.count, expected);
      text_bytes_close(&bytes);
    }
  assert_true(bits_per_byte(8 * log(2), 4) == 2);
  assert_true(isnan(bits_per_byte(1, 0)));
  free(ids.ids);
}
