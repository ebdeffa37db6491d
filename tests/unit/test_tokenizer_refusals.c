// A tokenizer.json that is hostile, or not there, ends in one sentence that says why. Those that are
// broken or not supported are rows of tests/fixtures/messages.txt.
#include "data/tokenizer/tokenizer.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define GOOD "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define WITH(more) "{" more ",\"model\":" GOOD "}}"

static void refused(const char *json, const char *why) {
  Error err = {""};
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (t) fail_msg("it was taken: %.200s", json);
  assert_says(&err, why);
  assert_null(strchr(err.text, '\n'));
}

TEST(what_is_no_utf8_is_refused) {
  refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\xff\":0},\"merges\":[]}}",
          "this is not UTF-8, at the byte 0xff");
}

TEST(a_match_that_takes_for_ever_ends) {
  const char json[] = WITH(
      "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a+)+[bc]\"},\"behavior\":"
      "\"Isolated\"}");
  char text[100];
  memset(text, 'a', sizeof text);
  text[1] = 'b'; // what comes before the failure must not stay
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (!t) fail_msg("%s", err.text);
  Encoder *encoder = encoder_open(t);
  TokenIds ids = {0};
  assert_int_equal(encoder_append(encoder, "ab", 2, false, &ids, &err), 0);
  assert_int_equal(ids.count, 1);
  assert_int_equal(encoder_append(encoder, text, sizeof text, false, &ids, &err), -1);
  assert_says(&err, "it may backtrack for ever");
  assert_int_equal(ids.count, 1);
  free(ids.ids);
  encoder_close(encoder);
  tokenizer_close(t);
}

static char *repeat(const char *before, const char *text, size_t times, const char *after) {
  const size_t bytes = strlen(text), head = strlen(before);
  char *out = xmalloc(head + times * bytes + strlen(after) + 1);
  memcpy(out, before, head);
  for (size_t i = 0; i < times; i++) memcpy(out + head + i * bytes, text, bytes);
  strcpy(out + head + times * bytes, after);
  return out;
}

TEST(what_is_deep_or_large_is_refused) {
  char *json = repeat("{\"model\":", "[", 100000, "");
  refused(json, "not valid JSON");
  free(json);
  json = repeat("{\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[", 20,
                "{\"type\":\"NFC\"}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]},\"model\":" GOOD "}}");
  refused(json, "Sequences lie in each other too deep");
  free(json);
  json = repeat("{\"model\":" GOOD "},\"padding\":[", "1,", 3 << 20, "1]}");
  refused(json, "beside its vocabulary and merges, more than the 4.00 MiB");
  free(json);
  json = repeat("{\"model\":{\"type\":\"BPE\",\"merges\":[", "[", 1 << 20, "");
  refused(json, "line 1");
  free(json);
}

#define TEN "aaaaaaaaaa"
#define LONGER "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"" TEN TEN "\"}"
#define SIX LONGER "," LONGER "," LONGER "," LONGER "," LONGER "," LONGER

// Of one byte these six would make 64 MB, and of a word gigabytes.
TEST(replaced_text_does_not_grow_without_a_bound) {
  const char *const json = WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" SIX
                                "]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" SIX "]}");
  const char *text;
  TokenIds ids = {0};
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (!t) fail_msg("%s", err.text);
  Encoder *encoder = encoder_open(t);
  assert_int_equal(encoder_append(encoder, "abab", 4, false, &ids, &err), -1);
  assert_says(&err, "normalizer makes more than 1.00 MiB of 4 B of text");
  assert_int_equal(encoder_append(encoder, "bb", 2, false, &ids, &err), 0);
  assert_int_equal(ids.count, 2);
  Decoder *decoder = decoder_open(t);
  assert_int_equal(decoder_next(decoder, 0, &text), 1 << 20);
  assert_int_equal(decoder_next(decoder, 1, &text), 1);
  decoder_close(decoder);
  encoder_close(encoder);
  tokenizer_close(t);
  free(ids.ids);
}

TEST(every_beginning_of_a_file_is_refused) {
  char *json;
  size_t bytes;
  assert_int_equal(
      file_read("tests/fixtures/tokenizers/qwen/tokenizer.json", 1 << 20, &json, &bytes, &err), 0);
  while (bytes > 0 && json[bytes - 1] != '}') bytes--;
  for (size_t n = 0; n < bytes; n += 7) {
    Tokenizer *t = tokenizer_parse("cut.json", json, n, &err);
    if (t) fail_msg("the first %zu bytes are taken", n);
  }
  free(json);
}

TEST(files_that_are_not_there_are_named) {
  char *missing = xasprintf("%s/missing.json", (char *)*state);
  assert_null(tokenizer_open(missing, &err));
  assert_says(&err, "missing.json");
  assert_null(tokenizer_open(*state, &err));
  assert_says(&err, "has no tokenizer.json");
  Tokenizer *t = tokenizer_open(BYTES_NAME, &err);
  assert_non_null(t);
  assert_int_equal(tokenizer_save(t, missing, &err), -1);
  assert_says(&err, "missing.json/tokenizer.json");
  assert_int_equal(tokenizer_save(t, *state, &err), 0);
  tokenizer_close(t);
  char *config = xasprintf("%s/tokenizer_config.json", (char *)*state);
  assert_int_equal(file_write(config, "{\"eos_token\":", 13, &err), 0);
  assert_null(tokenizer_open(*state, &err));
  assert_says(&err, "tokenizer_config.json is not valid JSON");
  free(config);
  free(missing);
}

TEST(sentencepiece_is_named_with_a_way_out) {
  static const char model[] = "\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03<s>\x15";
  char *folder = xasprintf("%s/spm", (char *)*state),
       *path = xasprintf("%s/tokenizer.model", folder);
  assert_int_equal(directory_create(folder, &err), 0);
  assert_int_equal(file_write(path, model, sizeof model - 1, &err), 0);
  const char *const names[] = {folder, path};
  for (int i = 0; i < 2; i++) {
    assert_null(tokenizer_open(names[i], &err));
    assert_says(&err, "tokenizer.model' is a SentencePiece model");
    assert_says(&err, "T.from_pretrained('");
  }
  // Another program's of that name, such as tiktoken's.
  assert_int_equal(file_write(path, "IQ== 0\nIg== 1\n", 14, &err), 0);
  assert_null(tokenizer_open(folder, &err));
  assert_null(strstr(err.text, "SentencePiece"));
  free(path);
  free(folder);
}

TEST_GROUP(make_folder, remove_folder);
