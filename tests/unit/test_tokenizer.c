// The tokenizer against what the Python package tokenizers gives, by small tokenizers of every kind
// that people have (scripts/check_tokenizers.py --fixtures makes them), and its own promises.
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

#define FIXTURES "tests/fixtures/tokenizers/"

static TokenIds encode_with(Encoder *encoder, const char *text, size_t bytes) {
  TokenIds ids = {0};
  Error err;
  must(encoder_append(encoder, text, bytes, false, &ids, &err), &err);
  held(ids.ids);
  return ids;
}

static TokenIds encode(const Tokenizer *t, const char *text, size_t bytes) {
  Encoder *encoder = encoder_open(t);
  const TokenIds ids = encode_with(encoder, text, bytes);
  encoder_close(encoder);
  return ids;
}

// Every part but the last is whole characters, as far as the text has any.
static Text decode(const Tokenizer *t, const TokenIds *ids, bool whole) {
  Decoder *decoder = decoder_open(t);
  Text text = {0};
  const char *part;
  text_room(&text, 1);
  for (int64_t i = 0; i < ids->count; i++) {
    const size_t n = decoder_next(decoder, ids->ids[i], &part);
    if (whole) assert_int_equal(utf8_valid(part, n), n);
    text_append(&text, part, n);
  }
  const size_t rest = decoder_end(decoder, &part);
  text_append(&text, part, rest);
  decoder_close(decoder);
  held(text.data);
  return text;
}

static void expect_text(Text text, const char *expected, size_t bytes) {
  assert_int_equal(text.bytes, bytes);
  assert_memory_equal(text.data, expected, bytes);
}

static Text from_base64(const char *text) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Text b = {0};
  text_room(&b, 1);
  unsigned bits = 0, value = 0;
  for (; *text && *text != '='; text++) {
    value = value << 6 | (unsigned)(strchr(digits, *text) - digits);
    if ((bits += 6) >= 8) text_append(&b, &(char){(char)(value >> (bits -= 8))}, 1);
  }
  held(b.data);
  return b;
}

// ---- Against the Python package

// The Python package shows a byte that is no character as U+FFFD. Here that is a byte at a time: an
// added token of Latin-1's letters, which a byte-level decoder takes for bytes.
static Text shown(const Text *text) {
  Text out = {0};
  text_room(&out, 1);
  for (size_t i = 0, n; i < text->bytes; i += n ? n : 1) {
    n = utf8_length(text->data + i, text->bytes - i);
    text_append(&out, n ? text->data + i : "\xef\xbf\xbd", n ? n : 3);
  }
  held(out.data);
  return out;
}

static void check_case(const Tokenizer *t, Encoder *encoder, const cJSON *expected,
                       const char *name, int number) {
  Text text = from_base64(cJSON_GetObjectItem(expected, "text")->valuestring);
  Text decoded = from_base64(cJSON_GetObjectItem(expected, "decoded")->valuestring);
  const cJSON *list = cJSON_GetObjectItem(expected, "ids"), *id = list->child;
  TokenIds ids = encode_with(encoder, text.data, text.bytes);
  if (ids.count != cJSON_GetArraySize(list))
    fail_msg("%s, text %d: %lld ids instead of %d", name, number, (long long)ids.count,
             cJSON_GetArraySize(list));
  for (int64_t i = 0; i < ids.count; i++, id = id->next)
    if (ids.ids[i] != id->valueint)
      fail_msg("%s, text %d: id %lld is %d instead of %d", name, number, (long long)i, ids.ids[i],
               id->valueint);
  Text bytes = decode(t, &ids, false), ours = shown(&bytes);
  if (ours.bytes != decoded.bytes || memcmp(ours.data, decoded.data, ours.bytes) != 0)
    fail_msg("%s, text %d: decodes to '%.*s'", name, number, (int)ours.bytes, ours.data);
}

// How many bytes, but for white space, can be joined with a newline before them.
static int joined_count(const Tokenizer *t) {
  int count = 0;
  for (int c = '!'; c < 256; c++) count += byte_set_has(&tokenizer_facts(t)->joined, (char)c);
  return count;
}

static void check_fixture(const char *name, int begin, int end) {
  char *folder = held_text(FIXTURES "%s", name), *path = held_text("%s/expected.json", folder);
  Tokenizer *t = open_tokenizer(folder);
  Error err;
  cJSON *cases = hold_json(json_read(path, 1 << 20, &err), &err);
  assert_true(cJSON_GetArraySize(cases) > 20);
  Encoder *encoder = open_encoder(t);
  int number = 0;
  for (const cJSON *c = cases->child; c; c = c->next) check_case(t, encoder, c, name, number++);
  assert_int_equal(tokenizer_facts(t)->bos, begin);
  assert_int_equal(tokenizer_facts(t)->eos, end);
  assert_string_equal(tokenizer_facts(t)->name, path_text("%s/tokenizer.json", folder).text);
  assert_true(joined_count(t) <= 1); // two of them have "\n|"
}

static void expect_joined(const char *more, const char *token, int count) {
  enum { ALL = 256 - '!' };
  char *json =
      held_text("{%s\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"a\","
                "\"vocab\":{\"a\":0,\"<0x0A>\":1,\"%s\":2,\"\\n\\n\":3},\"merges\":[%s]}}",
                more, token, strcmp(token, "<0x0A>a") == 0 ? "[\"<0x0A>\",\"a\"]" : "");
  Tokenizer *t = parse_tokenizer(json);
  if (joined_count(t) != (count < 0 ? ALL : count))
    fail_msg("%d bytes are joined by %s", joined_count(t), json);
}

#define NORMAL(type, more) "\"normalizer\":{\"type\":\"" type "\"" more "},"
#define REPLACE(from) NORMAL("Replace", ",\"pattern\":{\"String\":\"" from "\"},\"content\":\"_\"")

TEST(it_is_known_what_a_token_reaches_across_a_newline) {
  static const char *const changes[] = {NORMAL("NFC", ""), REPLACE("b"), REPLACE("b ")};
  expect_joined("", "ab", 0);
  expect_joined("", "a\\n", 0);
  expect_joined("", "a\\nb\\nc", 2);
  expect_joined(REPLACE(" "), "a\\nb", 1);
  expect_joined("", "<0x0A>a", -1);
  for (int i = 0; i < 3; i++) {
    expect_joined(changes[i], "ab", 0);
    expect_joined(changes[i], "a\\nb", -1);
  }
  expect_joined(REPLACE("\\n"), "ab", -1);
  expect_joined(REPLACE(" \\n"), "ab", -1);
  expect_joined("\"added_tokens\":[{\"id\":4,\"content\":\"x\\ny\"}],", "ab", 1);
}

TEST(ids_and_text_are_those_of_the_python_package) {
  check_fixture("llama3", 310, NO_TOKEN);
  check_fixture("gpt2", NO_TOKEN, NO_TOKEN);
  check_fixture("smollm", NO_TOKEN, NO_TOKEN);
  check_fixture("qwen", 300, NO_TOKEN);
  check_fixture("llama2", 1, 2);
  check_fixture("mistral", 1, 2);
}

static void expect_pieces(const char *behavior, bool invert, const char *pieces) {
  char *json = held_text(
      "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},"
      "\"behavior\":\"%s\",\"invert\":%s},\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,"
      "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"-\":3,\"a-\":4,\"b-\":5,\"-b\":6,\"-c\":7,\"--\":8},"
      "\"merges\":[]}}",
      behavior, invert ? "true" : "false");
  Tokenizer *t = parse_tokenizer(json);
  TokenIds ids = encode(t, "a-b--c", 6);
  Text text = decode(t, &ids, true); // without a decoder there are spaces between tokens
  if (text.bytes != strlen(pieces) || memcmp(text.data, pieces, text.bytes) != 0)
    fail_msg("%s: '%.*s' instead of '%s'", behavior, (int)text.bytes, text.data, pieces);
}

TEST(a_split_cuts_as_its_behavior_says) {
  for (int invert = 0; invert < 2; invert++) {
    expect_pieces("Isolated", invert, "a - b - - c");
    expect_pieces("Contiguous", invert, "a - b -- c");
    expect_pieces("Removed", invert, invert ? "- - -" : "a b c");
    expect_pieces(invert ? "MergedWithNext" : "MergedWithPrevious", invert, "a- b- - c");
    expect_pieces(invert ? "MergedWithPrevious" : "MergedWithNext", invert, "a -b - -c");
  }
}

// ---- Bytes

static void check_bytes_come_back(const char *path) {
  Tokenizer *t = open_tokenizer(path);
  char text[5000];
  uint32_t random = 12345;
  for (size_t i = 0; i < sizeof text; i++) {
    random = random * 1664525 + 1013904223;
    text[i] = i % 700 < 300 ? (char)(random >> 24) : "ab \n"[random >> 24 & 3];
  }
  Encoder *encoder = open_encoder(t);
  for (size_t bytes = 0; bytes < sizeof text; bytes += bytes < 300 ? 1 : 977) {
    TokenIds ids = encode_with(encoder, text, bytes);
    expect_text(decode(t, &ids, false), text, bytes);
  }
}

TEST(broken_utf8_comes_back) {
  check_bytes_come_back(BYTES_NAME);
  check_bytes_come_back(FIXTURES "llama3");
  check_bytes_come_back(FIXTURES "smollm");
}

TEST(the_byte_tokenizer_is_bytes) {
  Tokenizer *t = open_tokenizer(BYTES_NAME);
  const TokenizerFacts *facts = tokenizer_facts(t);
  assert_string_equal(facts->name, BYTES_NAME);
  assert_int_equal(facts->vocab_size, BYTE_VOCAB);
  assert_int_equal(facts->bos, TOKEN_BOS);
  assert_int_equal(facts->eos, TOKEN_EOS);
  char text[256];
  for (int i = 0; i < 256; i++) text[i] = (char)i;
  TokenIds ids = encode(t, text, 256);
  assert_int_equal(ids.count, 256);
  for (int i = 0; i < 256; i++) assert_int_equal(ids.ids[i], i);
}

// What a decoder shows at once, and what it holds back.
TEST(a_decoder_gives_whole_characters) {
  Tokenizer *t = open_tokenizer(BYTES_NAME);
  Decoder *d = open_decoder(t);
  const char *text;
  const unsigned char bytes[] = {'a', 0xe2, 0x82, 0xac, 0xf0, 0x9f, 'b', 0xed, 0xa0, 0xc3};
  const size_t shown[] = {1, 0, 0, 3, 0, 0, 3, 0, 2, 0};
  for (size_t i = 0; i < sizeof bytes; i++)
    assert_int_equal(decoder_next(d, bytes[i], &text), shown[i]);
  assert_int_equal(decoder_end(d, &text), 1);
  assert_memory_equal(text, "\xc3", 1);
  assert_int_equal(decoder_next(d, TOKEN_BOS, &text), 0);
  assert_int_equal(decoder_next(d, -1, &text), 0);
  assert_int_equal(decoder_next(d, INT32_MAX, &text), 0);
  assert_int_equal(decoder_next(d, 'x', &text), 1);
  assert_int_equal(decoder_end(d, &text), 0);
}

// ---- Pieces of a text

TEST(a_piece_that_continues_has_nothing_in_front) {
  const char *const kinds[] = {FIXTURES "gpt2", FIXTURES "llama2", FIXTURES "mistral"};
  for (int i = 0; i < 3; i++) {
    Tokenizer *t = open_tokenizer(kinds[i]);
    Encoder *encoder = open_encoder(t);
    TokenIds ids = {0};
    must(encoder_append(encoder, "the line\n", 9, false, &ids, &err), &err);
    const int64_t first = ids.count;
    must(encoder_append(encoder, "the next", 8, true, &ids, &err), &err);
    const char *expected = i == 0 ? " the line\nthe next" : "the line\nthe next";
    expect_text(decode(t, &ids, true), expected, strlen(expected));
    TokenIds whole = encode(t, "the line\nthe next", 17);
    assert_true(ids.count >= whole.count && ids.count > first);
    free(ids.ids);
  }
}

// A word of a megabyte must not take hours: the same letter, and what can never be merged.
TEST(a_long_word_is_encoded_in_time) {
  enum { BYTES = 1 << 20 };
  const char *const kinds[] = {FIXTURES "llama3", FIXTURES "llama2", FIXTURES "qwen"};
  char *text = held(xmalloc(BYTES));
  for (int i = 0; i < 6; i++) {
    memset(text, i % 2 ? ' ' : 'e', BYTES);
    Tokenizer *t = open_tokenizer(kinds[i / 2]);
    TokenIds ids = encode(t, text, BYTES);
    expect_text(decode(t, &ids, true), text, BYTES);
  }
}

// Marks in a row are sorted by their class, however many there are.
TEST(a_million_marks_are_normalized_in_time) {
  enum { PAIRS = 250000 };
  Tokenizer *t = open_tokenizer(FIXTURES "qwen");
  Text text = {0};
  text_append(&text, "x", 1);
  for (int i = 0; i < PAIRS; i++) text_append(&text, "\u0301\u0323", 4); // above, below
  TokenIds ids = encode(t, text.data, text.bytes);
  Text back = decode(t, &ids, true);
  assert_int_equal(back.bytes, text.bytes);
  for (int i = 0; i < 2 * PAIRS; i++)
    assert_memory_equal(back.data + 1 + 2 * i, i < PAIRS ? "\u0323" : "\u0301", 2);
  free(text.data);
}

// A byte-level tokenizer of letters and digits, where eight x are one token.
static Tokenizer *open_eights(void) {
  Text json = {0};
  static const char head[] =
      "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
      "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"model\":{\"type\":\"BPE\",\"vocab\":{";
  static const char tail[] = "\"xx\":0,\"xxxx\":1,\"xxxxxxxx\":2},"
                             "\"merges\":[\"x x\",\"xx xx\",\"xxxx xxxx\"]}}";
  text_append(&json, head, sizeof head - 1);
  for (int c = '0'; c <= 'z'; c++) {
    char token[32];
    const int bytes = snprintf(token, sizeof token, "\"%s%c\":%d,", c == '\\' ? "\\" : "", c, c);
    text_append(&json, token, (size_t)bytes);
  }
  text_append(&json, tail, sizeof tail); // with its NUL
  Tokenizer *t = parse_tokenizer(json.data);
  free(json.data);
  return t;
}

// The words that a cache holds must not change what comes out. Here many thousand words differ from
// each other in three letters at one place alone, and take each other's places.
TEST(an_encoder_mixes_no_words_up) {
  static const struct {
    size_t bytes, place;
  } shapes[] = {{7, 4}, {7, 0}, {11, 8}, {11, 0}, {31, 0}, {31, 8}, {31, 16}, {31, 28}};
  Tokenizer *t = open_eights();
  Encoder *warm = open_encoder(t);
  for (int i = 0; i < 400000; i++) {
    char text[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    const size_t bytes = shapes[i & 7].bytes;
    for (size_t k = 0, n = (size_t)i / 8; k < 3; k++, n /= 40)
      text[shapes[i & 7].place + k] = (char)('0' + n % 40);
    TokenIds ids = encode_with(warm, text, bytes);
    assert_in_range(ids.count, 2, 7);
    Text back = decode(t, &ids, true);
    expect_text(back, text, bytes);
    let_go(back.data);
    let_go(ids.ids);
  }
}

// ---- Saving

static void check_same_file(const char *a, const char *b) {
  size_t x_bytes, y_bytes;
  const char *x = file_text(a, &x_bytes), *y = file_text(b, &y_bytes);
  assert_int_equal(x_bytes, y_bytes);
  assert_memory_equal(x, y, x_bytes);
}

TEST(what_was_read_is_saved_byte_for_byte) {
  Tokenizer *t = open_tokenizer(FIXTURES "llama2");
  char *folder = held_text("%s/saved", (char *)*state);
  must(directory_create(folder, &err), &err);
  must(tokenizer_save(t, folder, &err), &err);
  char *path = held_text("%s/tokenizer.json", folder);
  check_same_file(FIXTURES "llama2/tokenizer.json", path);
  path = held_text("%s/tokenizer_config.json", folder);
  cJSON *config = hold_json(json_read(path, 1 << 20, &err), &err);
  assert_string_equal(cJSON_GetObjectItem(config, "bos_token")->valuestring, "<s>");
  assert_string_equal(cJSON_GetObjectItem(config, "eos_token")->valuestring, "</s>");
  const char own[] = "{ \"eos_token\": {\"content\": \"<s>\"}, \"mine\": 1}";
  put_file(path, own);
  Tokenizer *again = open_tokenizer(folder);
  assert_int_equal(tokenizer_facts(again)->eos, 1);
  assert_true(tokenizer_facts(again)->fingerprint == tokenizer_facts(t)->fingerprint);
  char *second = held_text("%s/second", (char *)*state);
  must(directory_create(second, &err), &err);
  must(tokenizer_save(again, second, &err), &err);
  char *copy = held_text("%s/tokenizer_config.json", second);
  check_same_file(path, copy);
}

TEST(the_byte_tokenizer_is_saved_and_opened) {
  Tokenizer *t = open_tokenizer(BYTES_NAME);
  must(tokenizer_save(t, *state, &err), &err);
  Tokenizer *again = open_tokenizer(*state);
  assert_true(tokenizer_facts(again)->fingerprint == tokenizer_facts(t)->fingerprint);
  assert_int_equal(tokenizer_facts(again)->bos, TOKEN_BOS);
  assert_int_equal(tokenizer_facts(again)->eos, TOKEN_EOS);
}

// ---- Files that are hostile, or not there. Those that are broken or not supported are rows of
// tests/fixtures/messages.txt

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
  Tokenizer *t = parse_tokenizer(json);
  Encoder *encoder = open_encoder(t);
  TokenIds ids = encode_with(encoder, "ab", 2);
  assert_int_equal(ids.count, 1);
  expect_error(encoder_append(encoder, text, sizeof text, false, &ids, &err), &err,
               "it may backtrack for ever");
  assert_int_equal(ids.count, 1);
}

static char *repeat(const char *before, const char *text, size_t times, const char *after) {
  const size_t bytes = strlen(text), head = strlen(before);
  char *out = held(xmalloc(head + times * bytes + strlen(after) + 1));
  memcpy(out, before, head);
  for (size_t i = 0; i < times; i++) memcpy(out + head + i * bytes, text, bytes);
  strcpy(out + head + times * bytes, after);
  return out;
}

TEST(what_is_deep_or_large_is_refused) {
  char *json = repeat("{\"model\":", "[", 100000, "");
  refused(json, "not valid JSON");
  json = repeat("{\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[", 20,
                "{\"type\":\"NFC\"}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]},\"model\":" GOOD "}}");
  refused(json, "Sequences lie in each other too deep");
  json = repeat("{\"model\":" GOOD "},\"padding\":[", "1,", 3 << 20, "1]}");
  refused(json, "beside its vocabulary and merges, more than the 4.00 MiB");
  json = repeat("{\"model\":{\"type\":\"BPE\",\"merges\":[", "[", 1 << 20, "");
  refused(json, "line 1");
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
  Tokenizer *t = parse_tokenizer(json);
  Encoder *encoder = open_encoder(t);
  expect_error(encoder_append(encoder, "abab", 4, false, &ids, &err), &err,
               "normalizer makes more than 1.00 MiB of 4 B of text");
  must(encoder_append(encoder, "bb", 2, false, &ids, &err), &err);
  assert_int_equal(ids.count, 2);
  Decoder *decoder = open_decoder(t);
  assert_int_equal(decoder_next(decoder, 0, &text), 1 << 20);
  assert_int_equal(decoder_next(decoder, 1, &text), 1);
  free(ids.ids);
}

TEST(every_beginning_of_a_file_is_refused) {
  size_t bytes;
  const char *json = file_text(FIXTURES "qwen/tokenizer.json", &bytes);
  while (bytes > 0 && json[bytes - 1] != '}') bytes--;
  for (size_t n = 0; n < bytes; n += 7) {
    Tokenizer *t = tokenizer_parse("cut.json", json, n, &err);
    if (t) fail_msg("the first %zu bytes are taken", n);
  }
}

TEST(files_that_are_not_there_are_named) {
  const PathText folder = path_text("%s/other", (char *)*state),
                 missing = path_text("%s/missing.json", folder.text),
                 config = path_text("%s/tokenizer_config.json", folder.text);
  must(directory_create(folder.text, &err), &err);
  expect_none(tokenizer_open(missing.text, &err), &err, "missing.json");
  expect_none(tokenizer_open(folder.text, &err), &err, "has no tokenizer.json");
  Tokenizer *t = open_tokenizer(BYTES_NAME);
  expect_error(tokenizer_save(t, missing.text, &err), &err, "missing.json/tokenizer.json");
  must(tokenizer_save(t, folder.text, &err), &err);
  put_file(config.text, "{\"eos_token\":");
  expect_none(tokenizer_open(folder.text, &err), &err, "tokenizer_config.json is not valid JSON");
}

TEST(sentencepiece_is_named_with_a_way_out) {
  static const char model[] = "\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03<s>\x15";
  char *folder = held_text("%s/spm", (char *)*state),
       *path = held_text("%s/tokenizer.model", folder);
  must(directory_create(folder, &err), &err);
  put_file(path, model);
  const char *const names[] = {folder, path};
  for (int i = 0; i < 2; i++) {
    expect_none(tokenizer_open(names[i], &err), &err, "tokenizer.model' is a SentencePiece model");
    assert_says(&err, "T.from_pretrained('");
  }
  // Another program's of that name, such as tiktoken's.
  put_file(path, "IQ== 0\nIg== 1\n");
  assert_null(tokenizer_open(folder, &err));
  assert_null(strstr(err.text, "SentencePiece"));
}

TEST_GROUP(make_folder, NULL);
