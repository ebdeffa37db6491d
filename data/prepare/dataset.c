#include "data/prepare/dataset.h"

#include <fnmatch.h>

#include "data/model_folder.h"

// ---- Shards

static PathText shard_path(const Shards *s, int shard) {
  return path_text("%s/%s-%05d.bin", s->dir, s->name, shard);
}

static int begin_shard(Shards *s, Error *err) {
  if (s->count == SHARDS_MAX)
    return error_set(err, "there would be more than %d %s files: use a larger --shard-tokens",
                     SHARDS_MAX, s->name);
  if (token_writer_open(&s->writer, shard_path(s, s->count).text, s->vocab_size, s->tokenizer,
                        err) != 0)
    return -1;
  s->open = true;
  s->count++;
  return 0;
}

int shards_finish(Shards *s, Error *err) {
  if (!s->open) return 0;
  TokenWriter *w = &s->writer;
  int status = token_writer_finish(w, err);
  if (status == 0)
    status = documents_write(&s->documents, shard_path(s, s->count - 1).text, &w->facts, err);
  token_writer_close(w);
  s->open = false;
  documents_writer_free(&s->documents);
  return status;
}

int shards_append(Shards *s, const int32_t *tokens, const uint8_t *mask, int64_t count, bool last,
                  Error *err) {
  if (count == 0 && last) documents_add(&s->documents, 0, NULL, true);
  while (count > 0) {
    if (s->open && s->writer.count == s->limit && shards_finish(s, err) != 0) return -1;
    if (!s->open && begin_shard(s, err) != 0) return -1;
    const int64_t room = s->limit - s->writer.count;
    const int64_t n = count < room ? count : room;
    if (token_writer_append(&s->writer, tokens, n, err) != 0) return -1;
    documents_add(&s->documents, n, mask, last && n == count);
    tokens += n;
    if (mask) mask += n;
    count -= n;
    s->tokens += n;
  }
  return 0;
}

void shards_close(Shards *s) {
  if (s->open) token_writer_close(&s->writer);
  s->open = false;
  documents_writer_free(&s->documents);
}

// ---- The folder

// names: patterns, and NULL behind the last.
static bool matches(const char *name, const char *const *names) {
  while (*names && fnmatch(*names, name, 0) != 0) names++;
  return *names;
}

static bool is_tokenizer(const char *name) {
  static const char *const names[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.json.tmp",
                                      "tokenizer_config.json.tmp",
                                      CHAT_TEMPLATE_FILE,
                                      CHAT_TEMPLATE_FILE ".tmp",
                                      NULL};
  return matches(name, names);
}

#define NUMBER "-[0-9][0-9][0-9][0-9][0-9]"
bool dataset_has(const char *name) {
  static const char *const names[] = {"train" NUMBER ".bin", "train" NUMBER DOCUMENTS_ENDING,
                                      "val" NUMBER ".bin",   "val" NUMBER DOCUMENTS_ENDING,
                                      "dataset.json", // an older ./prepare wrote it
                                      CHECKSUMS_FILE,        NULL};
  return matches(name, names) || is_tokenizer(name);
}

bool dataset_or_run(const char *folder) {
  return (has_file(folder, RUN_CONFIG_FILE) && has_file(folder, "log.jsonl")) ||
         (has_file(folder, "train-00000.bin") && has_file(folder, "train-00000" DOCUMENTS_ENDING));
}

static bool holds_tokenizer(const char *folder, uint64_t fingerprint) {
  Error ignored;
  Tokenizer *there = tokenizer_open(folder, &ignored);
  const bool same = there && tokenizer_facts(there)->fingerprint == fingerprint;
  tokenizer_close(there);
  return same;
}

int dataset_check(const Folder *f, const char *out, const Tokenizer *tokenizer, bool force,
                  Error *err) {
  bool dataset = false;
  for (size_t i = 0; i < f->before.count; i++) {
    const char *name = f->before.files[i].name;
    if (!dataset_has(name))
      return error_set(
          err, "the folder '%s' holds '%.200s', which ./prepare did not write: choose another", out,
          name);
    dataset |= !is_tokenizer(name);
  }
  if (force || f->before.count == 0) return 0;
  if (dataset)
    return error_set(
        err, "the folder '%s' holds a dataset already: choose another, or replace it with --force",
        out);
  if (holds_tokenizer(out, tokenizer_facts(tokenizer)->fingerprint)) return 0;
  return error_set(
      err, "the folder '%s' holds another tokenizer: take that one, another folder, or --force",
      out);
}
