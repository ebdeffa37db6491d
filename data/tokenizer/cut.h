// Where a long document is cut, so that a tokenizer gives the ids that it gives for the whole.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/text.h"

// How many bytes of text[known] to take as a piece: about 1 MiB, up to the last place before that,
// or the first behind it; a character's boundary where none comes within 16 MiB; 0 if more has to
// be known. complete: the document ends there. A place in front of a byte of `joined`, which the
// tokenizer can join with a newline, does not count. *searched says how far it was looked in vain;
// start with 0.
size_t cut_piece(const ByteSet *joined, const char *text, size_t known, bool complete,
                 size_t *searched);
// `at` or up to 3 bytes less, so that text[at] begins a character.
size_t cut_character(const char *text, size_t at);
