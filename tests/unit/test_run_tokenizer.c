// Which tokenizer a run gets, and which token files and vocabularies it refuses.
#include "base/json.h"
#include "model/run/run.h"
#include "tests/support/config_test.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

enum { OTHERS = 12345 }; // a fingerprint that no tokenizer here has

static uint64_t fingerprint(const char *path) {
  return tokenizer_facts(open_tokenizer(path))->fingerprint;
}

// A folder with a tokenizer of `letters` tokens and an end.
static char *folder_with_tokenizer(int letters) {
  Error err = {""};
  char *folder = temporary_folder();
  JsonWriter w = {0};
  json_open(&w, NULL, '{');
  json_raw(&w, "version", "\"1.0\"");
  char *end = held_text("[{\"id\":%d,\"content\":\"<|endoftext|>\",\"single_word\":false,"
                        "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                        "\"special\":true}]",
                        letters);
  json_raw(&w, "added_tokens", end);
  json_raw(&w, "pre_tokenizer",
           "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}");
  json_raw(&w, "decoder", "{\"type\":\"ByteLevel\"}");
  json_open(&w, "model", '{');
  json_raw(&w, "type", "\"BPE\"");
  json_raw(&w, "merges", "[]");
  json_open(&w, "vocab", '{');
  for (int i = 0; i < letters; i++) json_whole(&w, (char[]){(char)('a' + i), '\0'}, i);
  json_close(&w, '}');
  json_close(&w, '}');
  json_close(&w, '}');
  must(file_write(path_text("%s/tokenizer.json", folder).text, w.text, w.used, &err), &err);
  free(w.text);
  return folder;
}

// A token file of 100 tokens that says `maker` made it.
static Loader *loader_of(const char *folder, const char *name, uint64_t maker) {
  Error err = {""};
  TokenWriter w;
  int32_t tokens[100];
  for (int i = 0; i < 100; i++) tokens[i] = i;
  const PathText path = path_text("%s/%s", folder, name);
  must(token_writer_open(&w, path.text, BYTE_VOCAB, maker, &err), &err);
  must(token_writer_append(&w, tokens, 100, &err), &err);
  must(token_writer_finish(&w, &err), &err);
  token_writer_close(&w);
  return open_loader(&(LoaderConfig){.pattern = path.text, .batch = 1, .seq = 8});
}

typedef struct Case {
  uint64_t train, val; // who made them; 0: they do not say
  const char *tokenizer, *from;
  int64_t vocab_size;
  const char *name;     // of the tokenizer that is chosen, NULL: none
  const char *words[5]; // the last is NULL
} Case;

static void check_case(const char *folder, const Case *c) {
  Error err = {""};
  Config config = parse(MINIMAL);
  config.model.vocab_size = c->vocab_size;
  strcpy(config.data.tokenizer, c->tokenizer);
  Loader *train = loader_of(folder, "train.bin", c->train),
         *val = loader_of(folder, "val.bin", c->val);
  Tokenizer *tokenizer;
  const int status = run_tokenizer(&tokenizer, &config, train, val, c->from ? c->from : "", &err);
  if ((status != 0) != (c->words[0] != NULL)) fail_msg("status %d: '%s'", status, err.text);
  expect_words(&err, c->words);
  if (status == 0 && (tokenizer != NULL) != (c->name != NULL))
    fail_msg("the tokenizer is %s, not %s", tokenizer ? tokenizer_facts(tokenizer)->name : "none",
             c->name);
  if (tokenizer && !strstr(tokenizer_facts(tokenizer)->name, c->name))
    fail_msg("the tokenizer is %s, not %s", tokenizer_facts(tokenizer)->name, c->name);
  tokenizer_close(tokenizer);
}

TEST(files_and_vocabulary_must_be_the_tokenizers) {
  const uint64_t bytes = fingerprint(BYTES_NAME);
  const Case cases[] = {
      {0, 0, "", "", 258, "bytes", {NULL}},
      {0, 0, "", "", 300, NULL, {NULL}},
      {bytes, 0, "", "", 258, "bytes", {NULL}},
      {bytes, bytes, "", "", 258 + SPARE_TOKENS, "bytes", {NULL}},
      {bytes, bytes, "", "", 259 + SPARE_TOKENS, "", {"is 1283", "'bytes' has 258", ".tokenizer"}},
      {bytes, bytes, "", "", 32000, "", {"model.vocab_size is 32000", "'bytes' has 258 tokens"}},
      {bytes, bytes, "bytes", "", 32000, "bytes", {NULL}},
      {0, 0, "bytes", "", 32000, "bytes", {NULL}},
      {bytes, bytes, "bytes", "", 257, "bytes", {NULL}}, // the ids in the files decide
      {bytes, bytes, "", "", 3000, "", {"model.vocab_size is 3000", "258 tokens: set it to that"}},
      {OTHERS, 0, "", "", 258, "", {"train.bin", "not in its folder", "data.tokenizer"}},
      {bytes, OTHERS, "", "", 258, "", {"val.bin", "than 'bytes'"}},
      {OTHERS, OTHERS, "bytes", "", 258, "", {"train.bin", "than 'bytes'", "./prepare"}},
      {bytes, bytes, "/no/such/folder", "", 258, "", {"data.tokenizer: ", "/no/such/folder"}},
  };
  char *folder = temporary_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(folder, &cases[i]);
}

TEST(the_data_name_their_tokenizer_before_the_model_does) {
  char *data = folder_with_tokenizer(20), *model = folder_with_tokenizer(25),
       *plain = temporary_folder();
  const uint64_t bytes = fingerprint(BYTES_NAME), datas = fingerprint(data),
                 models = fingerprint(model);
  assert_true(datas != models && datas != bytes);
  const Case beside[] = {
      {datas, datas, "", "", 21, data, {NULL}},
      {0, 0, "", model, 100, data, {NULL}},
      {datas, 0, model, "", 100, "", {"than '", model}},
      {models, 0, "", model, 100, "", {"than '", data}},
      {datas, models, model, "", 100, "", {"train.bin", "than '", model}},
      {bytes, 0, "", "", 258, "", {"than '", data}},
      {datas, datas, "", "", 20, data, {NULL}},
      {datas, datas, "", model, 3000, "", {"is 3000", data, "has 21 tokens: take the model's"}},
  };
  const Case alone[] = {
      {0, 0, "", model, 26, model, {NULL}},
      {0, 0, "", model, 258, model, {NULL}}, // more than bytes, which are guessed
      {models, models, "", model, 26, model, {NULL}},
      {models, models, model, "", 26, model, {NULL}},
      {bytes, 0, "", model, 258, "", {"than '", model}},
  };
  for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) check_case(data, &beside[i]);
  for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) check_case(plain, &alone[i]);
  // One of a kind that cannot be read, where only the model has it, is as good as none.
  const char unigram[] = "{\"model\": {\"type\": \"Unigram\"}}";
  must(file_write(path_text("%s/tokenizer.json", model).text, unigram, strlen(unigram), &err),
       &err);
  check_case(plain, &(Case){0, 0, "", model, 100, NULL, {NULL}});
  check_case(plain, &(Case){models, 0, "", model, 100, "", {"not in its folder"}});
  check_case(plain, &(Case){0, 0, model, "", 100, "", {"data.tokenizer: ", "Unigram"}});
}
