// For the tests of token files: a folder for each group, files in it, and what a sentence says.
#pragma once
#include <stdint.h>
#include "base/error.h"

// Group setup and teardown: *state is the path of a fresh folder.
int make_folder(void **state);
int remove_folder(void **state);

// Fails the test unless the sentence has these words.
void assert_says(const Error *err, const char *words);

// Writes a token file in two pieces; a failure fails the test.
void write_tokens(const char *path, const int32_t *tokens, int64_t count, int64_t vocab_size);
