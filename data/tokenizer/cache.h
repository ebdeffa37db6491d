// The tokens of words that were met before: text repeats. A table of a fixed size, where a word
// takes the place of the one that was there. A word and its tokens fill a cache line.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CACHE_MAX_BYTES = 32, CACHE_MAX_IDS = 7, CACHE_WORDS = 1 << 17, CACHE_LINE = 64 };

typedef struct CachedWord {
  uint64_t key[4]; // the word, by which it is known together with its length
  int32_t ids[CACHE_MAX_IDS];
  uint8_t bytes, count; // bytes is 0 where there is no word
} CachedWord;
_Static_assert(sizeof(CachedWord) == CACHE_LINE, "one look, one line");

static inline uint64_t load_bytes(const char *text, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, text, bytes);
  return value;
}

// The word's key: of up to 16 bytes two loads that overlap, beyond that four. Nothing outside of
// the word is read.
static inline void cache_key(const char *word, size_t bytes, uint64_t key[4]) {
  key[2] = key[3] = 0;
  if (bytes >= 8) {
    key[0] = load_bytes(word, 8);
    if (bytes > 16) {
      key[2] = load_bytes(word + 8, 8);
      key[3] = load_bytes(word + bytes - 16, 8);
    }
    key[1] = load_bytes(word + bytes - 8, 8);
  } else if (bytes >= 4) {
    key[0] = load_bytes(word, 4);
    key[1] = load_bytes(word + bytes - 4, 4);
  } else { // the first, the middle and the last byte
    key[0] = (uint64_t)(unsigned char)word[0] << 8 | (unsigned char)word[bytes / 2];
    key[1] = (unsigned char)word[bytes - 1];
  }
}

// Where the word with this key is, if it is there.
static inline CachedWord *cache_slot(CachedWord *words, const uint64_t key[4], size_t bytes) {
  uint64_t hash = (key[0] ^ key[2] * 0x9fb21c651e98df25) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
  hash = (hash + (key[1] ^ key[3] * 0xc2b2ae3d27d4eb4f) + bytes) * 0xd6e8feb86659fd93;
  return &words[hash >> 47];
}

static inline bool cache_is(const CachedWord *word, const uint64_t key[4], size_t bytes) {
  const uint64_t differs = (word->key[0] ^ key[0]) | (word->key[1] ^ key[1]) |
                           (word->key[2] ^ key[2]) | (word->key[3] ^ key[3]) |
                           (word->bytes ^ bytes);
  return differs == 0;
}
