// Keeps an eye on the token files of a run: are all ids inside the vocabulary, does each checksum
// hold, and do the files stay what they are?
#pragma once
#include "data/tokens.h"

typedef struct Watch Watch;

// Checks all tokens of files[count], which stay the caller's and open until watch_close: for half a
// second here, then in a thread of its own that gives way to others. Every two seconds from then on
// it looks at each file's time, and where that is another at its size, header and tokens once more.
// NULL: the first look found a fault.
Watch *watch_open(const TokenFile *files, int count, int64_t vocab_size, Error *err);
// -1 with the first fault that the thread found. Costs nothing.
int watch_look(const Watch *watch, Error *err);
void watch_close(Watch *watch); // NULL is fine
