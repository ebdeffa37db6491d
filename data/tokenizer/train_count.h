// Text -> words and how often each comes: a pattern cuts it, on several threads.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "data/tokenizer/train_words.h"

typedef struct WordCounter WordCounter;

// No word gets longer than longest_word bytes. NULL if the pattern is wrong.
WordCounter *counter_open(const char *pattern, size_t longest_word, int threads, Error *err);
void counter_close(WordCounter *counter); // NULL is fine

// As bpe_trainer_add of train.h.
int counter_add(WordCounter *counter, const char *text, size_t bytes, Error *err);
// Counts what waits and gives the words, in no order that is worth anything.
int counter_finish(WordCounter *counter, WordTable *words, Error *err);
int64_t counter_bytes(const WordCounter *counter); // that were added
