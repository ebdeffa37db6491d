// A tokenizer.json that is broken, hostile or not supported ends in one sentence that says why.
#include "data/tokenizer/tokenizer.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define BPE(vocab, merges) "{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges
#define GOOD BPE("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]")
#define MODEL(vocab, merges) "{\"model\":" BPE(vocab, merges) "}}"
#define WITH(more) "{" more ",\"model\":" GOOD "}}"
#define ADDED(id, content) "{\"id\":" #id ",\"content\":\"" content "\",\"special\":true}"
#define SPLIT(regex)                                                                               \
  WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                     \
       "\"},\"behavior\":\"Isolated\"}")

#define MERGED(kind)                                                                               \
  "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"a\"},\"behavior\":\"MergedWithNext\"}"
#define STRIP(stop) "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":" #stop "}"
#define BEHIND_FUSE(decoder)                                                                       \
  "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}," decoder "]}"

static void refused(const char *json, const char *why) {
  Error err = {""};
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (t) fail_msg("it was taken: %.200s", json);
  assert_says(&err, why);
  assert_null(strchr(err.text, '\n'));
}

static void taken(const char *json) {
  Error err = {""};
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (!t) fail_msg("%s", err.text);
  tokenizer_close(t);
}

TEST(what_the_others_are_made_of_is_fine) {
  taken(MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]"));
  taken(MODEL("{\"a\":0,\"b\":7,\"ab\":16777215}", "[[\"a\", \"b\"]]"));
  taken(WITH("\"added_tokens\":[" ADDED(3, "<x>") "," ADDED(1, "b") "]"));
  taken(WITH("\"pre_tokenizer\":" MERGED("String") ",\"decoder\":" BEHIND_FUSE(STRIP(0))));
  taken(SPLIT("[^\\\\s\\\\p{L}]+|\\\\p{N}{1,3}(?i:'s)"));
}

TEST(what_is_no_json_is_named_with_its_place) {
  refused("", "some.json is not valid JSON");
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a git-lfs pointer");
  refused("[]", "no object 'model'");
  refused("{\"model\":3}", "no object 'model'");
  refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0", "line 1, column");
  refused("{\"model\":\n" BPE("{\"a\":0,}", "[]") "}}", "line 2, column 30: a key in quotes");
  refused(MODEL("{\"a\" 0}", "[]"), "a colon is missing");
  refused(MODEL("{\"a\":0]", "[]"), "a comma or } is missing");
  refused(MODEL("{\"a\\q\":0}", "[]"), "there is no such escape");
  refused(MODEL("{\"\\ud800x\":0}", "[]"), "half of a surrogate pair");
  refused(MODEL("{\"a\xff\":0}", "[]"), "this is not UTF-8, at the byte 0xff");
  refused(MODEL("{\"a\":0}", "[") "", "line 1");
  refused("{\"model\":" GOOD ",\"vocab\":{}}}", "vocab");
  refused("{\"model\":" BPE("{\n\"a\":0\n}", "[]") "},\n?}", "line 4, column 1");
}

TEST(ids_are_checked) {
  refused(MODEL("{\"a\":0,\"b\":0}", "[]"), "two tokens have the id 0");
  refused(MODEL("{\"a\":0,\"a\":1}", "[]"), "'a' appears twice, with the ids 0 and 1");
  refused(MODEL("{\"a\":-1}", "[]"), "the id -1, but ids lie in [0, 16777215]");
  refused(MODEL("{\"a\":16777216}", "[]"), "the id 16777216");
  refused(MODEL("{\"a\":2147483648}", "[]"), "the id 2147483648");
  refused(MODEL("{\"a\":99999999999999999999999999}", "[]"), "ids lie in");
  refused(MODEL("{\"a\":1.5}", "[]"), "an id should be a whole number");
  refused(MODEL("{\"a\":\"0\"}", "[]"), "an id should be a whole number");
  refused(MODEL("{}", "[]"), "has no tokens");
  refused(MODEL("[]", "[]"), "model.vocab is missing, or not an object");
  refused(MODEL("{\"a\":0}", "{}"), "model.merges is missing, or not a list");
}

TEST(merges_are_checked) {
  refused(MODEL("{\"a\":0,\"b\":1}", "[\"a c\"]"), "merge 1 names 'c', which the vocabulary");
  refused(MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]"), "merge 1 names 'ab'");
  refused(MODEL("{\"a\":0,\"b\":1}", "[\"ab\"]"), "two tokens with a space between");
  refused(MODEL("{\"a\":0,\"b\":1}", "[\"a b b\"]"), "two tokens with a space between");
  refused(MODEL("{\"a\":0,\"b\":1}", "[[\"a\"]]"), "a merge should have two tokens");
  refused(MODEL("{\"a\":0,\"b\":1}", "[3]"), "a string in quotes is missing");
}

TEST(added_tokens_are_checked) {
  refused(WITH("\"added_tokens\":{}"), "added_tokens is not a list");
  refused(WITH("\"added_tokens\":[" ADDED(5, "<x>") "]"), "the next free one, is 3");
  refused(WITH("\"added_tokens\":[" ADDED(1, "a") "]"), "'a' has the id 1, but its id in the");
  refused(WITH("\"added_tokens\":[" ADDED(0, "a") "," ADDED(0, "a") "]"), "has 'a' twice");
  refused(WITH("\"added_tokens\":[" ADDED(3, "") "]"), "is empty");
  refused(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"single_word\":true}]"),
          "added_tokens: {\"id\":3,\"content\":\"x\",\"single_word\":true} is not supported");
  refused(WITH("\"added_tokens\":[{\"id\":3}]"), "'content' should be a string");
}

TEST(a_component_that_is_not_supported_is_named) {
  refused(WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), "normalizer: {\"type\":\"Lowercase\"}");
  refused(
      WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"),
      "\"Replace\"");
  refused(WITH("\"normalizer\":{}"), "'type' should be a string");
  refused(WITH("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"), "BertPreTokenizer");
  refused(WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
               "\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
          "behind ByteLevel");
  refused(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), "decoder: {\"type\":\"WordPiece\"}");
  refused(WITH("\"normalizer\":{\"type\":\"Strip\"}"),
          "normalizer: {\"type\":\"Strip\"} is not supported: data/README.md lists what is");
  refused(WITH("\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}"),
          "decoder: {\"type\":\"Metaspace\"");
  refused(WITH("\"decoder\":" STRIP(0)), "decoder: {\"type\":\"Strip\"");
  refused(WITH("\"decoder\":" BEHIND_FUSE(STRIP(1))), "decoder: {\"type\":\"Strip\"");
  refused(WITH("\"pre_tokenizer\":" MERGED("Regex")), "pre_tokenizer: {\"type\":\"Split\"");
  refused(WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), "BertProcessing");
  refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "type Unigram is not supported");
  refused("{\"model\":" GOOD ",\"dropout\":0.1}}", "model.dropout is not supported");
  refused("{\"model\":" GOOD ",\"end_of_word_suffix\":\"</w>\"}}", "model.end_of_word_suffix");
  refused("{\"model\":" GOOD ",\"unk_token\":\"<unk>\"}}", "'<unk>' is not in the vocabulary");
  refused(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
               "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}"),
          "'<s>' has no id");
}

TEST(a_regular_expression_is_checked) {
  refused(SPLIT("(a"), "does not compile: missing closing parenthesis");
  refused(SPLIT("\\\\bword"), "has '\\b' at byte 0");
  refused(SPLIT("x[a[b]]"), "has '[b' at byte 3");
  refused(SPLIT("[a&&b]"), "has '&&'");
  refused(SPLIT("(?m:a)"), "has '(?m'");
  refused(SPLIT("a(*UTF)"), "has '(*'");
  refused(SPLIT("\\\\p{N}{1,3}+"), "has '{1,3}+'");
  refused(SPLIT("\\\\p{Klingon}"), "does not compile");
  refused(SPLIT("(?:(?:(?:a{1000}){1000}){1000}){1000}"), "does not compile");
}

TEST(a_match_that_takes_for_ever_ends) {
  const char json[] = SPLIT("(?:a+)+[bc]");
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
