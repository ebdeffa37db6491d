// Training a byte-level BPE tokenizer: text is counted first, then the merges are found.
//
// Words are the matches of the pattern, and the text between them; bytes that
// are not UTF-8 are words as they are. Words longer than BPE_LONGEST_WORD bytes are cut again. Of
// more than 16 million different words the rarest are forgotten, so that memory stays bounded. The
// same pieces of text give the same tokenizer, however many threads count.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "data/tokenizer/json.h"

enum { BPE_MIN_VOCAB = 258, BPE_MAX_VOCAB = 1 << 20, BPE_LONGEST_WORD = 256, BPE_MARKERS = 4 };

// What bounds the memory while words are counted.
typedef struct CountLimits {
  size_t longest_word;    // bytes; longer ones are cut
  size_t batch_bytes;     // of text that waits until all threads count; 1 MiB at least
  size_t max_words;       // different words. Where there are more after a batch,
  size_t max_words_bytes; // or more bytes of them, the rarest are forgotten, to half of it
} CountLimits;

typedef struct BpeOptions {
  // All ids: 256 bytes, the merges' tokens, BPE_BEGIN, BPE_END, the markers.
  int64_t vocab_size;
  const char *pattern; // the caller's until the trainer is closed
  int threads;         // that count; 0: one for each core
  // More special tokens, of a chat template and up to a NULL, and its text; NULL: no template. All
  // are the caller's until the trainer is closed.
  const char *markers[BPE_MARKERS];
  const char *chat_template;
  CountLimits limits; // zeros: those above
} BpeOptions;

typedef struct BpeTrainer BpeTrainer;

// NULL if an option is wrong.
BpeTrainer *bpe_trainer_open(const BpeOptions *options, Error *err);
void bpe_trainer_close(BpeTrainer *trainer); // NULL is fine

// Takes a document, or a piece of one that ends where a word does. Of more than 1 MiB at once every
// MiB is cut off, wherever that is. An error: the pattern ran into PCRE2's limits.
int bpe_trainer_add(BpeTrainer *trainer, const char *text, size_t bytes, Error *err);

// Makes at most this many more tokens; no text can be added then. 1: there is more to do, 0: done,
// -1: the text is too little for the vocabulary, or an error as of bpe_trainer_add.
int bpe_trainer_step(BpeTrainer *trainer, int64_t tokens, Error *err);

typedef struct BpeProgress {
  int64_t bytes;      // of text so far
  int64_t words;      // different ones; known when the first step is done
  int64_t tokens;     // made so far, bytes and special tokens among them
  int64_t vocab_size; // to be made
} BpeProgress;
BpeProgress bpe_trainer_progress(const BpeTrainer *trainer);
// How many tokens the text has with those made so far, without BOS and EOS. After a first step.
int64_t bpe_trainer_text_tokens(const BpeTrainer *trainer);

// When it is done: writes tokenizer.json and tokenizer_config.json into the folder, which must be
// there. They are synced, and take their names when both are complete.
int bpe_trainer_save(const BpeTrainer *trainer, const char *folder, Error *err);

// ---- The words of the text and how often each comes. Different words (byte strings) are numbered
// in the order of their coming

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

// Counts a word `times` more; returns its number.
size_t words_add(WordTable *table, const char *word, size_t length, int64_t times);
// Counts the rest and gives the words so far, the trainer's; NULL on error, as of bpe_trainer_add.
WordTable *bpe_trainer_words(BpeTrainer *trainer, Error *err);
