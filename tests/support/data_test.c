#include "tests/support/data_test.h"
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
}

int check_tokens(const TokenFile *file, int64_t vocab_size, Error *err) {
  TokenCheck check = {0};
  int status;
  while ((status = tokens_check(file, vocab_size, &check, err)) == 1) continue;
  token_check_end(&check);
  return status;
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
