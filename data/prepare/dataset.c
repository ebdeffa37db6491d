#include "data/prepare/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
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
    status =
        documents_write(&s->documents, shard_path(s, s->count - 1).text, &w->sums, w->largest, err);
  const ShardSums sums = {w->sums.whole, s->documents.checksum};
  token_writer_close(w);
  s->open = false;
  if (status != 0) return -1;
  s->checksums = xrealloc(s->checksums, (size_t)s->count * sizeof *s->checksums);
  s->checksums[s->count - 1] = sums;
  documents_writer_free(&s->documents);
  return 0;
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
  free(s->checksums);
  s->checksums = NULL;
}

int shard_index(const char *file, const char *name) {
  const size_t length = strlen(name);
  char digits[6];
  int end = 0;
  if (strncmp(file, name, length) != 0) return -1;
  if (sscanf(file + length, "-%5[0-9]%n", digits, &end) != 1 || end != 6) return -1;
  const char *ending = file + length + end;
  const bool shard = strcmp(ending, ".bin") == 0 || strcmp(ending, DOCUMENTS_ENDING) == 0;
  return shard ? atoi(digits) : -1;
}

// ---- dataset.json

enum { FORMAT = 1 };

// Numbers of 64 bits are hexadecimal text: JSON's are exact up to 2^53 only.
static void put_part(JsonWriter *w, const char *name, const DatasetPart *part) {
  json_open(w, name, '{');
  json_whole(w, "files", part->files);
  json_whole(w, "tokens", part->tokens);
  json_whole(w, "documents", part->documents);
  json_whole(w, "bytes", part->bytes);
  json_open(w, "xxh3", '[');
  for (int i = 0; i < part->files; i++)
    json_string(w, NULL, hex_text(part->checksums[i].tokens).text);
  json_close(w, ']');
  json_open(w, "documents_xxh3", '[');
  for (int i = 0; i < part->files; i++)
    json_string(w, NULL, hex_text(part->checksums[i].documents).text);
  json_close(w, ']');
  json_close(w, '}');
}

static void put_token(JsonWriter *w, const char *name, int32_t id) {
  if (id == NO_TOKEN)
    json_raw(w, name, "null");
  else
    json_whole(w, name, id);
}

const char *dataset_split_name(DatasetSplit split) {
  static const char *const names[] = {[SPLIT_TAILS] = "the tail of each document",
                                      [SPLIT_DOCUMENTS] = "whole documents",
                                      [SPLIT_FILES] = "files of its own",
                                      [SPLIT_NONE] = "none"};
  return names[split];
}

int dataset_write(const Dataset *d, const char *folder, Error *err) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "format", FORMAT);
  json_open(&w, "tokenizer", '{');
  json_bytes(&w, "name", d->tokenizer, strlen(d->tokenizer));
  json_string(&w, "fingerprint", hex_text(d->fingerprint).text);
  json_whole(&w, "vocab_size", d->vocab_size);
  put_token(&w, "begin", d->begin);
  put_token(&w, "end", d->end);
  json_close(&w, '}');
  put_part(&w, "train", &d->train);
  put_part(&w, "val", &d->val);
  json_open(&w, "split", '{');
  json_string(&w, "val", dataset_split_name(d->split));
  json_number(&w, "fraction", d->val_fraction, JSON_EXACT);
  json_whole(&w, "seed", d->seed);
  json_close(&w, '}');
  json_close(&w, '}');
  const int status = file_write(path_text("%s/%s", folder, DATASET_FILE).text, w.text, w.used, err);
  free(w.text);
  return status;
}

// ---- The folder

static bool is_tokenizer(const char *name) {
  static const char *const names[] = {"tokenizer.json",     "tokenizer_config.json",
                                      "tokenizer.json.tmp", "tokenizer_config.json.tmp",
                                      CHAT_TEMPLATE_FILE,   CHAT_TEMPLATE_FILE ".tmp"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

bool dataset_has(const char *name) {
  return shard_index(name, "train") >= 0 || shard_index(name, "val") >= 0 ||
         strcmp(name, DATASET_FILE) == 0 || strcmp(name, CHECKSUMS_FILE) == 0 ||
         strcmp(name, OUT_SPOOL) == 0 || is_tokenizer(name);
}

bool dataset_or_run(const char *folder) {
  enum { MAX_BYTES = 64 << 20 };
  Error ignored;
  const PathText path = path_text("%s/" DATASET_FILE, folder);
  if (has_file(folder, RUN_CONFIG_FILE) && has_file(folder, "log.jsonl")) return true;
  cJSON *tree = path_exists(path.text) ? json_read(path.text, MAX_BYTES, &ignored) : NULL;
  const cJSON *tokenizer = cJSON_GetObjectItemCaseSensitive(tree, "tokenizer");
  const bool ours = cJSON_HasObjectItem(tokenizer, "fingerprint");
  cJSON_Delete(tree);
  return ours;
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
      return error_set(err,
                       "the folder '%s' holds '%.200s', which ./prepare did not write: choose "
                       "another one with --out",
                       out, name);
    dataset |= !is_tokenizer(name);
  }
  if (force || f->before.count == 0) return 0;
  if (dataset)
    return error_set(err,
                     "the folder '%s' holds a dataset already: choose another one with --out, or "
                     "replace it with --force",
                     out);
  if (holds_tokenizer(out, tokenizer_facts(tokenizer)->fingerprint)) return 0;
  return error_set(err,
                   "the folder '%s' holds another tokenizer: use it with --tokenizer '%s', choose "
                   "another folder with --out, or replace it with --force",
                   out, out);
}
