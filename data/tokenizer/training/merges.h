// The merges of byte-pair encoding: the pair of neighbouring tokens that is the most frequent in
// all words becomes a token, and so on.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/tokenizer/training/words.h"

typedef struct Merger Merger;

// Every byte is a token, in the order of GPT-2's alphabet; ids count on from there. The words are
// taken over, and the table is left empty: at most INT32_MAX bytes of words. No merge makes one of
// the texts in reserved[reserved_count], which are special tokens' and the caller's.
Merger *merger_open(WordTable *words, const char *const *reserved, int reserved_count);
void merger_close(Merger *merger); // NULL is fine

// Joins the most frequent pair to a new token; of equally frequent ones that with the smaller left
// id, then right id. False: no pair is left that comes twice.
bool merger_step(Merger *merger);

// The tokens in the order of their ids, as words without a count; and the merges, one for each
// token from 256 on. Valid until the next step.
const WordTable *merger_tokens(const Merger *merger);
const int32_t (*merger_merges(const Merger *merger, int64_t *count))[2];
// Tokens that the words now are, each word as often as it came.
int64_t merger_text_tokens(const Merger *merger);
