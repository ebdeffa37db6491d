#include "data/tokenizer/training/train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/training/count.h"
#include "data/tokenizer/training/merges.h"

enum { SPECIAL_TOKENS = 2 };
static const char *const special_tokens[SPECIAL_TOKENS] = {BPE_BEGIN, BPE_END};

// 1 GB of noise, of which every word is another, must fit into 8 GB of memory.
static const CountLimits limits = {.longest_word = BPE_LONGEST_WORD,
                                   .batch_bytes = 1 << 24,
                                   .max_words = 1 << 24,
                                   .max_words_bytes = 1 << 27};

struct BpeTrainer {
  BpeOptions options;
  WordCounter *counter;
  Merger *merger; // from the first step on
  int64_t words;
};

BpeTrainer *bpe_trainer_open(const BpeOptions *options, Error *err) {
  const int64_t size = options->vocab_size;
  if (size < BPE_MIN_VOCAB || size > BPE_MAX_VOCAB) {
    error_set(err,
              "a tokenizer can have from %d to %d tokens (256 bytes, merges, and the special "
              "tokens %s and %s), not %" PRId64,
              BPE_MIN_VOCAB, BPE_MAX_VOCAB, BPE_BEGIN, BPE_END, size);
    return NULL;
  }
  WordCounter *counter = counter_open(options->pattern, &limits, options->threads, err);
  if (!counter) return NULL;
  BpeTrainer *t = xcalloc(1, sizeof *t);
  t->options = *options;
  t->counter = counter;
  return t;
}

void bpe_trainer_close(BpeTrainer *t) {
  if (!t) return;
  counter_close(t->counter);
  merger_close(t->merger);
  free(t);
}

int bpe_trainer_add(BpeTrainer *t, const char *text, size_t bytes, Error *err) {
  return counter_add(t->counter, text, bytes, err);
}

static int64_t tokens_made(const BpeTrainer *t) {
  return t->merger ? (int64_t)merger_tokens(t->merger)->count + SPECIAL_TOKENS : 0;
}

static int begin_merging(BpeTrainer *t, Error *err) {
  WordTable words;
  if (counter_finish(t->counter, &words, err) != 0) return -1;
  t->words = (int64_t)words.count;
  t->merger = merger_open(&words, special_tokens, SPECIAL_TOKENS);
  return 0;
}

int bpe_trainer_step(BpeTrainer *t, int64_t tokens, Error *err) {
  if (!t->merger && begin_merging(t, err) != 0) return -1;
  const int64_t size = t->options.vocab_size, made = tokens_made(t);
  const int64_t until = size - made < tokens ? size : made + tokens;
  while (tokens_made(t) < until)
    if (!merger_step(t->merger))
      return error_set(err,
                       "the text is too little for %" PRId64 " tokens: it gives %" PRId64
                       "; add text or ask for fewer tokens",
                       size, tokens_made(t));
  return tokens_made(t) < size;
}

BpeProgress bpe_trainer_progress(const BpeTrainer *t) {
  return (BpeProgress){.bytes = counter_bytes(t->counter),
                       .words = t->words,
                       .tokens = tokens_made(t),
                       .vocab_size = t->options.vocab_size};
}

int64_t bpe_trainer_text_tokens(const BpeTrainer *t) {
  return merger_text_tokens(t->merger);
}

// ---- The files

static char *tokenizer_json(const BpeTrainer *t) {
  const WordTable *tokens = merger_tokens(t->merger);
  size_t *offsets = xmalloc((tokens->count + 1) * sizeof *offsets);
  for (size_t i = 0; i < tokens->count; i++) offsets[i] = tokens->words[i].start;
  offsets[tokens->count] = tokens->bytes_used;
  BpeExport bpe = {.bytes = tokens->bytes,
                   .offsets = offsets,
                   .count = (int32_t)tokens->count,
                   .pattern = t->options.pattern,
                   .begin = BPE_BEGIN,
                   .end = BPE_END};
  bpe.merges = merger_merges(t->merger, &bpe.merge_count);
  char *json = export_tokenizer(&bpe);
  free(offsets);
  return json;
}

// Both under their temporary names first; then the names, that of tokenizer.json last.
static int write_both(const char *folder, const char *const texts[2], Error *err) {
  static const char *const names[2] = {"tokenizer_config.json", "tokenizer.json"};
  PathText temporary[2], final[2];
  int status = 0;
  for (int i = 0; i < 2; i++) {
    final[i] = path_text("%s/%s", folder, names[i]);
    temporary[i] = path_text("%s/%s.tmp", folder, names[i]);
    if (path_is_directory(final[i].text))
      return error_set(err, "'%s' is a folder: a file is to take this name", final[i].text);
  }
  for (int i = 0; i < 2 && status == 0; i++)
    status = file_write(temporary[i].text, texts[i], strlen(texts[i]), err);
  for (int i = 0; i < 2 && status == 0; i++)
    status = path_rename(temporary[i].text, final[i].text, err);
  if (status == 0) return directory_sync(folder, err);
  for (int i = 0; i < 2; i++) unlink(temporary[i].text);
  return -1;
}

int bpe_trainer_save(const BpeTrainer *t, const char *folder, Error *err) {
  char *json = tokenizer_json(t), *config = export_tokenizer_config(BPE_BEGIN, BPE_END);
  const int status = write_both(folder, (const char *const[2]){config, json}, err);
  free(json);
  free(config);
  return status;
}
