// The words of a text and how often each comes, for training a tokenizer: a pattern cuts the text,
// on several threads.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

// ---- Different words (byte strings), numbered in the order of their coming

typedef struct Word {
  int64_t count;
  uint32_t start; // in the table's bytes
  uint32_t length;
} Word;

// Starts from zeros. At most UINT32_MAX words and bytes of words: the caller sees to it.
typedef struct WordTable {
  Word *words; // [count]
  size_t count, capacity;
  char *bytes; // of all words, in their order
  size_t bytes_used, bytes_capacity;
  uint64_t *slots; // [slot_count] a hash table: the word's number + 1, and 32 bits of its hash
  size_t slot_count;
} WordTable;

void words_free(WordTable *table);
// Counts a word `times` more; returns its number.
size_t words_add(WordTable *table, const char *word, size_t length, int64_t times);
// Adds all of another table, which is left empty.
void words_absorb(WordTable *table, WordTable *from);
// Forgets the words that came fewer than `least` times. The others keep their order.
void words_drop_rare(WordTable *table, int64_t least);

// ---- Counting

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
// Counts the rest and gives the words, in any order. The same pieces of text give the same words,
// however many threads count.
int counter_finish(WordCounter *counter, WordTable *words, Error *err);
int64_t counter_bytes(const WordCounter *counter); // that were added
