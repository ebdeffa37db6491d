#include "data/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

static int begin_shard(Shards *s, Error *err) {
  if (s->count == SHARDS_MAX)
    return error_set(err, "there would be more than %d %s files: use a larger --shard-tokens",
                     SHARDS_MAX, s->name);
  const PathText path = path_text("%s/%s-%05d.bin", s->dir, s->name, s->count);
  if (token_writer_open(&s->writer, path.text, s->vocab_size, s->tokenizer, err) != 0) return -1;
  s->open = true;
  s->count++;
  return 0;
}

int shards_finish(Shards *s, Error *err) {
  if (!s->open) return 0;
  s->open = false;
  if (token_writer_finish(&s->writer, err) != 0) return -1;
  s->checksums = xrealloc(s->checksums, (size_t)s->count * sizeof *s->checksums);
  s->checksums[s->count - 1] = s->writer.checksum;
  return 0;
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

void shards_close(Shards *s) {
  if (s->open) token_writer_abandon(&s->writer);
  s->open = false;
  free(s->checksums);
  s->checksums = NULL;
}

int shard_index(const char *file, const char *name) {
  const size_t length = strlen(name);
  char digits[6];
  int end = 0;
  if (strncmp(file, name, length) != 0) return -1;
  if (sscanf(file + length, "-%5[0-9].bin%n", digits, &end) != 1 || end != 10) return -1;
  return file[length + 10] == '\0' ? atoi(digits) : -1;
}
