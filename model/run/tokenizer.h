// Which tokenizer a run has.
#pragma once
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/config/config.h"

// The one that data.tokenizer names; else the one in the folder of the training files; else the one
// in `from`, the folder that the run starts from ("": none), if it can be read; else bytes, where
// the files say so or say nothing and model.vocab_size is theirs. *tokenizer = NULL where none is
// known: token files that do not say who made them train all the same.
//
// An error: a training or validation file (val may be NULL) was made with another tokenizer, or
// model.vocab_size is not the tokenizer's. It may have SPARE_TOKENS more, and any number more where
// data.tokenizer is set.
enum { SPARE_TOKENS = 1024 };
int run_tokenizer(Tokenizer **tokenizer, const Config *config, const Loader *train,
                  const Loader *val, const char *from, Error *err);
