// For the tests of text and token files: a folder for each group, files in it, tokenizers, and what
// a sentence says.
#pragma once
#include <stdint.h>
#include "base/error.h"
#include "base/json.h"
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"

// A set-up: *state is the path of a fresh folder.
int make_folder(void **state);

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
// A loader of FOLDER/NAME, which the test holds; its vocabulary is COUNTED_VOCAB unless config says
// another.
Loader *try_open(const char *folder, const char *name, LoaderConfig config, Error *err);
Loader *open_loader(const LoaderConfig *config);
Loader *open_or_fail(const char *folder, const char *name, LoaderConfig config);
// As a loader of one source is after so many windows.
void seek(Loader *loader, uint64_t windows);

// A tree that was read, which the test holds. NULL fails it.
cJSON *hold_json(cJSON *tree, const Error *err);

// What tokenizer_open, tokenizer_parse, encoder_open and decoder_open make, and a batch; the test
// holds them. A failure fails it.
Tokenizer *open_tokenizer(const char *path);
Tokenizer *parse_tokenizer(const char *json);
Encoder *open_encoder(const Tokenizer *t);
Decoder *open_decoder(const Tokenizer *t);
Batch make_batch(int64_t rows);
