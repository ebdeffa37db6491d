// Drives the tokenizer for scripts that compare it with the Python packages.
//   tokenize texts TOKENIZER      standard input: texts, each a uint32 of its length and its bytes;
//                                 standard output, for each: the number of ids (uint32), the ids
//                                 (int32), the length of what they decode to (uint32), and that
//   tokenize time TOKENIZER FILE [SECONDS]
//                                 seconds to load, and user seconds to encode the file in pieces of
//                                 about 10 kB that end with a line: the best of runs that fill the
//                                 time. Prints: load best bytes tokens
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tokenizer/tokenizer.h"

enum { PIECE = 10000 };

static void must(bool fine, const Error *err) {
  if (fine) return;
  fprintf(stderr, "tokenize: %s\n", err->text);
  exit(1);
}

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void put(const void *data, size_t size, size_t count) {
  if (fwrite(data, size, count, stdout) != count) exit(1);
}

static void answer_text(Encoder *encoder, Decoder *decoder, const char *text, size_t bytes) {
  Error err;
  TokenIds ids = {0};
  must(encoder_append(encoder, text, bytes, false, &ids, &err) == 0, &err);
  const uint32_t count = (uint32_t)ids.count;
  put(&count, sizeof count, 1);
  put(ids.ids, sizeof *ids.ids, count);
  char *decoded = NULL;
  uint32_t length = 0;
  for (int64_t i = 0; i <= ids.count; i++) {
    const char *part;
    const size_t n =
        i < ids.count ? decoder_next(decoder, ids.ids[i], &part) : decoder_end(decoder, &part);
    decoded = xrealloc(decoded, length + n + 1);
    memcpy(decoded + length, part, n);
    length += (uint32_t)n;
  }
  put(&length, sizeof length, 1);
  put(decoded, 1, length);
  free(decoded);
  free(ids.ids);
}

static void answer_texts(const Tokenizer *tokenizer) {
  Encoder *encoder = encoder_open(tokenizer);
  Decoder *decoder = decoder_open(tokenizer);
  uint32_t bytes;
  while (fread(&bytes, sizeof bytes, 1, stdin) == 1) {
    char *text = xmalloc(bytes);
    if (fread(text, 1, bytes, stdin) != bytes) exit(1);
    answer_text(encoder, decoder, text, bytes);
    free(text);
  }
  encoder_close(encoder);
  decoder_close(decoder);
}

static void time_file(const Tokenizer *tokenizer, const char *path, double seconds, double load) {
  Error err;
  MappedFile map;
  must(file_map(&map, path, &err) == 0, &err);
  const char *const text = (const char *)map.data;
  double best = 1e9;
  TokenIds ids = {0};
  for (const double start = cpu_seconds(); best > 1e8 || cpu_seconds() - start < seconds;) {
    Encoder *encoder = encoder_open(tokenizer); // with an empty cache
    const double begin = cpu_seconds();
    ids.count = 0;
    for (size_t at = 0, end; at < map.bytes; at = end) {
      end = at + PIECE < map.bytes ? at + PIECE : map.bytes;
      while (end < map.bytes && text[end - 1] != '\n') end++;
      must(encoder_append(encoder, text + at, end - at, false, &ids, &err) == 0, &err);
    }
    const double took = cpu_seconds() - begin;
    if (took < best) best = took;
    encoder_close(encoder);
  }
  printf("%.4f %.4f %zu %lld\n", load, best, map.bytes, (long long)ids.count);
  free(ids.ids);
  file_unmap(&map);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  Error err;
  const double start = cpu_seconds();
  Tokenizer *tokenizer = tokenizer_open(words[2], &err);
  must(tokenizer != NULL, &err);
  const double load = cpu_seconds() - start;
  if (strcmp(words[1], "texts") == 0) answer_texts(tokenizer);
  if (strcmp(words[1], "time") == 0 && count > 3)
    time_file(tokenizer, words[3], count > 4 ? atof(words[4]) : 3, load);
  tokenizer_close(tokenizer);
  return 0;
}
