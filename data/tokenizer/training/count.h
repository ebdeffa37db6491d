// Text -> words and how often each comes: a pattern cuts it, on several threads.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "data/tokenizer/training/words.h"

typedef struct WordCounter WordCounter;

typedef struct CountLimits {
  size_t longest_word;    // bytes; longer ones are cut
  size_t batch_bytes;     // of text that waits until all threads count; 1 MiB at least
  size_t max_words;       // different words. Where there are more after a batch,
  size_t max_words_bytes; // or more bytes of them, the rarest are forgotten, to half of it
} CountLimits;

// threads = 0: one for each core. NULL if the pattern is wrong.
WordCounter *counter_open(const char *pattern, const CountLimits *limits, int threads, Error *err);
void counter_close(WordCounter *counter); // NULL is fine

// As bpe_trainer_add of train.h.
int counter_add(WordCounter *counter, const char *text, size_t bytes, Error *err);
// Counts what waits and gives the words, in any order. The same pieces of text give the same words,
// however many threads count.
int counter_finish(WordCounter *counter, WordTable *words, Error *err);
int64_t counter_bytes(const WordCounter *counter); // that were added
