// Which tokenizer a run gets, and which token files and vocabularies it refuses.
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/run/tokenizer.h"
#include "tests/support/config_test.h"
#include "tests/support/tiny_run.h"

enum { OTHERS = 12345 }; // a fingerprint that no tokenizer here has

static uint64_t fingerprint(const char *path) {
  Error err = {""};
  Tokenizer *tokenizer = tokenizer_open(path, &err);
  if (!tokenizer) fail_msg("%s", err.text);
  const uint64_t value = tokenizer_facts(tokenizer)->fingerprint;
  tokenizer_close(tokenizer);
  return value;
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
  Loader *loader = loader_open(&(LoaderConfig){.pattern = path.text, .batch = 1, .seq = 8}, &err);
  if (!loader) fail_msg("%s", err.text);
  return loader;
}

typedef struct Case {
  uint64_t train, val; // who made them; 0: they do not say
  const char *tokenizer;
  int64_t vocab_size;
  const char *name; // of the tokenizer that is chosen, NULL: none
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
  const int status = run_tokenizer(&tokenizer, &config, train, val, "", &err);
  if ((status != 0) != (c->words[0] != NULL)) fail_msg("status %d: '%s'", status, err.text);
  expect_words(&err, c->words);
  if (status == 0 && (tokenizer != NULL) != (c->name != NULL))
    fail_msg("the tokenizer is %s, not %s", tokenizer ? tokenizer_facts(tokenizer)->name : "none",
             c->name);
  if (tokenizer) assert_string_equal(tokenizer_facts(tokenizer)->name, c->name);
  tokenizer_close(tokenizer);
  loader_close(val);
  loader_close(train);
}

static void files_and_vocabulary_must_be_the_tokenizers(void **state) {
  (void)state;
  const uint64_t bytes = fingerprint(BYTES_NAME);
  const Case cases[] = {
      {0, 0, "", 258, "bytes", {NULL}},
      {0, 0, "", 300, NULL, {NULL}},
      {bytes, 0, "", 258, "bytes", {NULL}},
      {bytes, bytes, "", 258 + SPARE_TOKENS, "bytes", {NULL}},
      {bytes, bytes, "", 259 + SPARE_TOKENS, "", {"is 1283", "'bytes' has 258", "unused"}},
      {bytes, bytes, "", 32000, "", {"model.vocab_size is 32000", "'bytes' has 258 tokens"}},
      {bytes, bytes, "bytes", 32000, "bytes", {NULL}},
      {0, 0, "bytes", 32000, "bytes", {NULL}},
      {bytes, bytes, "bytes", 257, "", {"model.vocab_size is 257", "258 tokens: set it to that"}},
      {OTHERS, 0, "", 258, "", {"train.bin", "fingerprint 0000000000003039", "data.tokenizer"}},
      {bytes, OTHERS, "", 258, "", {"val.bin", "3039", "the run's tokenizer is 'bytes'"}},
      {OTHERS, OTHERS, "bytes", 258, "", {"train.bin", "3039", "is 'bytes'", "./prepare"}},
      {bytes, bytes, "/no/such/folder", 258, "", {"data.tokenizer: ", "/no/such/folder"}},
  };
  Error err = {""};
  char *folder = temporary_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(folder, &cases[i]);
  must(directory_remove(folder, &err), &err);
  free(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_and_vocabulary_must_be_the_tokenizers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
