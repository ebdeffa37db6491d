// SentencePiece's tokenizer.model, which is not read here: saying so.
#pragma once
#include <stddef.h>
#include "base/error.h"

// -1 where these bytes of the file `path` are a SentencePiece model; the sentence says how to make
// a tokenizer.json of it.
int sentencepiece_refuse(const char *path, const void *data, size_t bytes, Error *err);
