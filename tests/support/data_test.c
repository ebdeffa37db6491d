#include "tests/support/data_test.h"

#include <unistd.h>
#include <xxhash.h>

#include "tests/support/test.h"

int make_folder(void **state) {
  char *folder = xstrdup("/tmp/token_files.XXXXXX");
  *state = folder;
  return mkdtemp(folder) ? 0 : -1;
}

int remove_folder(void **state) {
  Error err;
  const int status = directory_remove(*state, &err);
  free(*state);
  return status;
}

void assert_says(const Error *err, const char *words) {
  if (!strstr(err->text, words)) fail_msg("'%s' does not say '%s'", err->text, words);
}

void write_tokens(const char *path, const int32_t *tokens, int64_t count, int64_t vocab_size) {
  Error err;
  TokenWriter w;
  const int64_t first = count / 3;
  if (token_writer_open(&w, path, vocab_size, 0, &err) != 0 ||
      token_writer_append(&w, tokens, first, &err) != 0 ||
      token_writer_append(&w, tokens + first, count - first, &err) != 0 ||
      token_writer_finish(&w, &err) != 0)
    fail_msg("%s", err.text);
  token_writer_close(&w);
}

void write_documents(DocumentsWriter *w, const char *token_path) {
  Error err;
  TokenFile file;
  TokenFacts facts;
  const int name = (int)strlen(token_path) - (name_ends_with(token_path, ".bin") ? 4 : 0);
  unlink(path_text("%.*s.docs", name, token_path).text);
  if (tokens_open(&file, token_path, &err) != 0 || tokens_check(&file, &facts, &err) != 0)
    fail_msg("%s", err.text);
  const BlockSums sums = {.sums = file.documents.token_sums,
                          .count = token_blocks(file.count),
                          .whole = facts.checksum};
  if (documents_write(w, token_path, &sums, facts.largest, &err) != 0) fail_msg("%s", err.text);
  tokens_close(&file);
  documents_writer_free(w);
}

void make_version_1(const char *docs) {
  unsigned char *bytes;
  size_t size;
  Error err;
  const uint32_t version = 1, largest = 0;
  uint64_t tokens, checksum;
  if (file_read(docs, 1 << 24, (char **)&bytes, &size, &err) != 0) fail_msg("%s", err.text);
  memcpy(&tokens, bytes + 8, sizeof tokens);
  size -= (size_t)token_blocks((int64_t)tokens) * sizeof(uint64_t);
  memcpy(bytes + 4, &version, sizeof version);
  memcpy(bytes + 36, &largest, sizeof largest);
  memmove(bytes + 40, bytes + 48, size - 48); // its checksum leaves this out
  checksum = XXH3_64bits(bytes, size - 8);
  memmove(bytes + 48, bytes + 40, size - 48);
  memcpy(bytes + 40, &checksum, sizeof checksum);
  if (file_write_atomic(docs, bytes, size, &err) != 0) fail_msg("%s", err.text);
  free(bytes);
}

void next_batch(Loader *loader, int32_t *tokens, int32_t *targets) {
  Error err;
  Batch batch = {.tokens = tokens, .targets = targets};
  if (loader_next(loader, &batch, &err) != 0) fail_msg("%s", err.text);
}

void write_count(const char *folder, const char *name, int32_t first, int32_t count) {
  int32_t *tokens = xmalloc((size_t)count * sizeof *tokens);
  for (int32_t i = 0; i < count; i++) tokens[i] = first + i;
  char *path = xasprintf("%s/%s", folder, name);
  write_tokens(path, tokens, count, COUNTED_VOCAB);
  free(path);
  free(tokens);
}

Loader *try_open(const char *folder, const char *name, LoaderConfig config, Error *err) {
  char *pattern = xasprintf("%s/%s", folder, name);
  config.pattern = pattern;
  if (config.vocab_size == 0) config.vocab_size = COUNTED_VOCAB;
  Loader *loader = loader_open(&config, err);
  free(pattern);
  return loader;
}

Loader *open_or_fail(const char *folder, const char *name, LoaderConfig config) {
  Error err;
  Loader *loader = try_open(folder, name, config, &err);
  if (!loader) fail_msg("%s", err.text);
  return loader;
}

void seek(Loader *loader, uint64_t windows) {
  loader->drawn = (Draws){.windows = windows, .of = {windows}, .since = {windows}};
}

Tokenizer *open_tokenizer(const char *path) {
  Error err;
  Tokenizer *t = tokenizer_open(path, &err);
  if (!t) fail_msg("%s", err.text);
  return t;
}

Tokenizer *parse_tokenizer(const char *json) {
  Error err;
  Tokenizer *t = tokenizer_parse("some.json", json, strlen(json), &err);
  if (!t) fail_msg("%s", err.text);
  return t;
}
