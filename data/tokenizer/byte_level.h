// GPT-2's alphabet: every byte as one printable character, so that a vocabulary of bytes can be
// written as text. A byte that is a printable character of Latin-1 stands for itself; the others
// become U+0100, U+0101 and so on, in order.
#pragma once
#include <stddef.h>
#include <stdint.h>

// The character of a byte.
uint32_t byte_level_character(unsigned char byte);
// text[bytes] in UTF-8 -> out[at most bytes], not NUL-terminated. Returns how many bytes, or -1 if
// a character is none of the alphabet's.
ptrdiff_t byte_level_decode(const char *text, size_t bytes, char *out);
// text[bytes] -> out[2 * bytes] at most, UTF-8, not NUL-terminated. Returns how many bytes.
size_t byte_level_encode(const char *text, size_t bytes, char *out);
