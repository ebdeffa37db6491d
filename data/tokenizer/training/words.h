// Different words (byte strings), numbered in the order of their coming, and how often each came.
#pragma once
#include <stddef.h>
#include <stdint.h>

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
