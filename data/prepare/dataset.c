#define _GNU_SOURCE // realpath
#include "data/prepare/dataset.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"

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
  json_string(&w, "val", d->whole_documents ? "whole documents" : "the tail of each document");
  json_number(&w, "fraction", d->val_fraction, JSON_EXACT);
  json_whole(&w, "seed", d->seed);
  json_close(&w, '}');
  json_close(&w, '}');
  const int status = file_write(path_text("%s/%s", folder, DATASET_FILE).text, w.text, w.used, err);
  free(w.text);
  return status;
}

// ---- The contents of a folder

typedef struct Contents {
  bool dataset, tokenizer; // files of one
  PathText other;          // a file that is neither; empty: none
} Contents;

static bool is_tokenizer(const char *name) {
  static const char *const names[] = {"tokenizer.json",     "tokenizer_config.json",
                                      "tokenizer.json.tmp", "tokenizer_config.json.tmp",
                                      CHAT_TEMPLATE_FILE,   CHAT_TEMPLATE_FILE ".tmp"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

static int look_into(const char *folder, Contents *c, Error *err) {
  *c = (Contents){0};
  DIR *dir = opendir(folder);
  if (!dir && errno == ENOENT) return 0;
  if (!dir) return error_set(err, "cannot open the folder '%s': %s", folder, strerror(errno));
  for (struct dirent *entry; (entry = readdir(dir));) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    const bool tokens = shard_index(name, "train") >= 0 || shard_index(name, "val") >= 0;
    if (tokens || strcmp(name, DATASET_FILE) == 0 || strcmp(name, OUT_SPOOL) == 0)
      c->dataset = true;
    else if (is_tokenizer(name))
      c->tokenizer = true;
    else
      c->other = path_text("%s", name);
  }
  closedir(dir);
  return 0;
}

static bool holds_tokenizer(const char *folder, uint64_t fingerprint) {
  Error ignored;
  Tokenizer *there = tokenizer_open(folder, &ignored);
  const bool same = there && tokenizer_facts(there)->fingerprint == fingerprint;
  tokenizer_close(there);
  return same;
}

int out_check(const char *out, const Tokenizer *tokenizer, bool force, Error *err) {
  Contents c;
  const PathText old = path_text("%s.old", out);
  if (!path_exists(out) && path_exists(old.text))
    return error_set(err,
                     "'%s' is what '%s' was when a run was killed: rename it back, or remove it",
                     old.text, out);
  if (look_into(out, &c, err) != 0) return -1;
  if (*c.other.text)
    return error_set(err,
                     "the folder '%s' holds '%.200s', which ./prepare did not write: choose "
                     "another one with --out",
                     out, c.other.text);
  if (force) return 0;
  if (c.dataset)
    return error_set(err,
                     "the folder '%s' holds a dataset already: choose another one with --out, or "
                     "replace it with --force",
                     out);
  if (!c.tokenizer || holds_tokenizer(out, tokenizer_facts(tokenizer)->fingerprint)) return 0;
  return error_set(err,
                   "the folder '%s' holds another tokenizer: use it with --tokenizer '%s', choose "
                   "another folder with --out, or replace it with --force",
                   out, out);
}

// ---- Making the folder

// How many folders of the path are not there.
static int count_missing(const char *path) {
  int missing = 0;
  for (PathText at = path_text("%s", path); !path_exists(at.text); missing++)
    at = path_parent(at.text);
  return missing;
}

// Removes those folders again, from the innermost out, as far as they are empty.
static void remove_created(const char *path, int missing) {
  PathText at = path_text("%s", path);
  for (; missing > 0 && rmdir(at.text) == 0; missing--) at = path_parent(at.text);
}

// Removes the leftovers of a killed run, unless other files are there.
static int remove_leftover(const char *path, Error *err) {
  Contents c;
  if (look_into(path, &c, err) != 0) return -1;
  if (!*c.other.text) return directory_remove(path, err);
  return error_set(err, "'%s' is in the way, and holds '%.200s', which ./prepare did not write",
                   path, c.other.text);
}

// The lock goes with the process, however it ends.
static int take_lock(OutFolder *f, Error *err) {
  f->lock = open(f->temporary.text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (f->lock < 0) {
    if (errno == ENOENT) return 0;
    return error_set(err, "cannot open the folder '%s': %s", f->temporary.text, strerror(errno));
  }
  if (flock(f->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 0;
  close(f->lock);
  return error_set(err, "another ./prepare is writing '%s'; wait for it, or choose another folder",
                   f->path.text);
}

static int make_temporary(OutFolder *f, Error *err) {
  if (take_lock(f, err) != 0) return -1;
  const int left = f->lock;
  int status = left >= 0 ? remove_leftover(f->temporary.text, err) : 0;
  if (left >= 0) close(left);
  f->lock = -1;
  if (status == 0 && mkdir(f->temporary.text, 0755) != 0)
    status =
        error_set(err, "cannot create the folder '%s': %s", f->temporary.text, strerror(errno));
  if (status != 0 || take_lock(f, err) == 0) return status;
  rmdir(f->temporary.text);
  return -1;
}

int out_begin(OutFolder *f, const char *out, Error *err) {
  *f = (OutFolder){.path = path_text("%s", out), .lock = -1};
  char *real = path_exists(out) ? realpath(out, NULL) : NULL; // a link stays, its folder changes
  if (real) f->path = path_text("%s", real);
  free(real);
  f->temporary = path_text("%s.tmp", f->path.text);
  f->old = path_text("%s.old", f->path.text);
  const PathText parent = path_parent(f->path.text);
  f->missing = count_missing(parent.text);
  if (directory_create(parent.text, err) == 0 && remove_leftover(f->old.text, err) == 0 &&
      make_temporary(f, err) == 0)
    return 0;
  remove_created(parent.text, f->missing);
  return -1;
}

int out_commit(OutFolder *f, Error *err) {
  if (directory_sync(f->temporary.text, err) != 0 ||
      path_exchange(f->temporary.text, f->path.text, f->old.text, err) != 0 ||
      directory_sync(path_parent(f->path.text).text, err) != 0)
    return -1;
  close(f->lock);
  Error ignored; // the next run removes the rest
  directory_remove(f->temporary.text, &ignored);
  directory_remove(f->old.text, &ignored);
  return 0;
}

void out_discard(OutFolder *f) {
  Error ignored;
  directory_remove(f->temporary.text, &ignored);
  close(f->lock);
  remove_created(path_parent(f->path.text).text, f->missing);
}
