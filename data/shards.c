#include "data/shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static const char TEMPORARY[] = ".tmp";

static PathText shard_path(const Shards *s, int index, const char *suffix) {
  return path_text("%s/%s-%05d.bin%s", s->dir, s->name, index, suffix);
}

static int begin_shard(Shards *s, Error *err) {
  if (s->count == SHARDS_MAX)
    return error_set(err, "'%s' would hold more than %d %s files: use a larger --shard-tokens",
                     s->dir, SHARDS_MAX, s->name);
  const PathText path = shard_path(s, s->count, TEMPORARY);
  if (token_writer_open(&s->writer, path.text, s->vocab_size, 0, err) != 0) return -1;
  s->open = true;
  s->count++;
  return 0;
}

int shards_finish(Shards *s, Error *err) {
  if (!s->open) return 0;
  s->open = false;
  return token_writer_finish(&s->writer, err);
}

int shards_append(Shards *s, const int32_t *tokens, int64_t count, Error *err) {
  while (count > 0) {
    if (s->open && s->writer.count == s->limit && shards_finish(s, err) != 0) return -1;
    if (!s->open && begin_shard(s, err) != 0) return -1;
    const int64_t room = s->limit - s->writer.count;
    const int64_t n = count < room ? count : room;
    if (token_writer_append(&s->writer, tokens, n, err) != 0) return -1;
    tokens += n;
    count -= n;
    s->tokens += n;
  }
  return 0;
}

// The number in NAME-ddddd.bin, with or without the temporary suffix; -1 for any other name.
static int shard_index(const Shards *s, const char *file) {
  const size_t length = strlen(s->name);
  char digits[6];
  int end = 0;
  if (strncmp(file, s->name, length) != 0) return -1;
  if (sscanf(file + length, "-%5[0-9].bin%n", digits, &end) != 1 || end != 10) return -1;
  const char *suffix = file + length + end;
  return suffix[0] == '\0' || strcmp(suffix, TEMPORARY) == 0 ? atoi(digits) : -1;
}

static int remove_stale(const Shards *s, Error *err) {
  DIR *dir = opendir(s->dir);
  if (!dir) return error_set(err, "cannot open the folder '%s': %s", s->dir, strerror(errno));
  int status = 0;
  for (struct dirent *entry; status == 0 && (entry = readdir(dir));) {
    if (shard_index(s, entry->d_name) < s->count) continue;
    const PathText path = path_text("%s/%s", s->dir, entry->d_name);
    if (unlink(path.text) != 0)
      status =
          error_set(err, "cannot remove '%s' of an earlier run: %s", path.text, strerror(errno));
  }
  closedir(dir);
  return status;
}

int shards_commit(Shards *s, Error *err) {
  for (int i = 0; i < s->count; i++)
    if (path_rename(shard_path(s, i, TEMPORARY).text, shard_path(s, i, "").text, err) != 0)
      return -1;
  return remove_stale(s, err) == 0 ? directory_sync(s->dir, err) : -1;
}

void shards_discard(Shards *s) {
  if (s->open) token_writer_abandon(&s->writer);
  s->open = false;
  for (int i = 0; i < s->count; i++) unlink(shard_path(s, i, TEMPORARY).text);
}
