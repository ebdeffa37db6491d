#include "tests/support/data_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tokens.h"

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
