#include "tests/support/data_test.h"

#include <unistd.h>
#include <xxhash.h>

#include "tests/support/test.h"

int make_folder(void **state) {
  *state = temporary_folder();
  return 0;
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
  const int name = (int)strlen(token_path) - (name_ends_with(token_path, ".bin") ? 4 : 0);
  unlink(path_text("%.*s.docs", name, token_path).text);
  must(tokens_open(&file, token_path, &err), &err);
  must(tokens_check(&file, &err), &err);
  must(documents_write(w, token_path, &file.documents.facts, &err), &err);
  tokens_close(&file);
  documents_writer_free(w);
}

void make_version_1(const char *docs) {
  unsigned char *bytes;
  size_t size;
  Error err;
  const uint32_t version = 1, largest = 0;
  uint64_t tokens, checksum;
  must(file_read(docs, 1 << 24, (char **)&bytes, &size, &err), &err);
  memcpy(&tokens, bytes + 8, sizeof tokens);
  size -= (size_t)token_blocks((int64_t)tokens) * sizeof(uint64_t);
  memcpy(bytes + 4, &version, sizeof version);
  memcpy(bytes + 36, &largest, sizeof largest);
  memmove(bytes + 40, bytes + 48, size - 48); // its checksum leaves this out
  checksum = XXH3_64bits(bytes, size - 8);
  memmove(bytes + 48, bytes + 40, size - 48);
  memcpy(bytes + 40, &checksum, sizeof checksum);
  must(file_write_atomic(docs, bytes, size, &err), &err);
  free(bytes);
}

void next_batch(Loader *loader, int32_t *tokens, int32_t *targets) {
  Error err;
  Batch batch = {.tokens = tokens, .targets = targets};
  must(loader_next(loader, &batch, &err), &err);
}

void write_count(const char *folder, const char *name, int32_t first, int32_t count) {
  int32_t *tokens = xmalloc((size_t)count * sizeof *tokens);
  for (int32_t i = 0; i < count; i++) tokens[i] = first + i;
  write_tokens(path_text("%s/%s", folder, name).text, tokens, count, COUNTED_VOCAB);
  free(tokens);
}

static void close_loader(void *loader) {
  loader_close(loader);
}

Loader *try_open(const char *folder, const char *name, LoaderConfig config, Error *err) {
  config.pattern = held_text("%s/%s", folder, name);
  if (config.vocab_size == 0) config.vocab_size = COUNTED_VOCAB;
  Loader *loader = loader_open(&config, err);
  return loader ? hold(loader, close_loader) : NULL;
}

Loader *open_loader(const LoaderConfig *config) {
  Error err;
  return hold(must_make(loader_open(config, &err), &err), close_loader);
}

Loader *open_or_fail(const char *folder, const char *name, LoaderConfig config) {
  Error err;
  return must_make(try_open(folder, name, config, &err), &err);
}

Batch make_batch(int64_t rows) {
  const Batch batch = batch_alloc(rows);
  held(batch.tokens);
  return batch;
}

void seek(Loader *loader, uint64_t windows) {
  loader->drawn = (Draws){.windows = windows, .of = {windows}, .since = {windows}};
}

static void delete_json(void *tree) {
  cJSON_Delete(tree);
}

cJSON *hold_json(cJSON *tree, const Error *err) {
  return hold(must_make(tree, err), delete_json);
}

static void close_tokenizer(void *tokenizer) {
  tokenizer_close(tokenizer);
}

Tokenizer *open_tokenizer(const char *path) {
  Error err;
  return hold(must_make(tokenizer_open(path, &err), &err), close_tokenizer);
}

Tokenizer *parse_tokenizer(const char *json) {
  Error err;
  return hold(must_make(tokenizer_parse("some.json", json, strlen(json), &err), &err),
              close_tokenizer);
}

static void close_encoder(void *encoder) {
  encoder_close(encoder);
}

Encoder *open_encoder(const Tokenizer *t) {
  return hold(encoder_open(t), close_encoder);
}

static void close_decoder(void *decoder) {
  decoder_close(decoder);
}

Decoder *open_decoder(const Tokenizer *t) {
  return hold(decoder_open(t), close_decoder);
}
