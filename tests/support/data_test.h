// For the tests of text and token files: a folder for each group, files in it, tokenizers, and what
// a sentence says.
#pragma once
#include <stdint.h>
#include "base/error.h"
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"

// Group setup and teardown: *state is the path of a fresh folder.
int make_folder(void **state);
int remove_folder(void **state);

// Fails the test unless the sentence has these words.
void assert_says(const Error *err, const char *words);

// Writes a token file in two pieces; a failure fails the test.
void write_tokens(const char *path, const int32_t *tokens, int64_t count, int64_t vocab_size);

// Writes NAME.docs beside a token file that is there, and frees the writer.
void write_documents(DocumentsWriter *w, const char *token_path);
// Turns NAME.docs into what older versions of ./prepare wrote.
void make_version_1(const char *docs);
// loader_next, whose failure fails the test.
void next_batch(Loader *loader, int32_t *tokens, int32_t *targets);

// Files whose tokens are first, first + 1, ... below COUNTED_VOCAB: each tells where it comes from.
enum { COUNTED_VOCAB = 100000 };
void write_count(const char *folder, const char *name, int32_t first, int32_t count);
// A loader of FOLDER/NAME; its vocabulary is COUNTED_VOCAB unless config says another.
Loader *try_open(const char *folder, const char *name, LoaderConfig config, Error *err);
Loader *open_or_fail(const char *folder, const char *name, LoaderConfig config);
// As a loader of one source is after so many windows.
void seek(Loader *loader, uint64_t windows);

// tokenizer_open and tokenizer_parse, whose failures fail the test.
Tokenizer *open_tokenizer(const char *path);
Tokenizer *parse_tokenizer(const char *json);
