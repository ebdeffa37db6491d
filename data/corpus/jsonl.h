// One line of a .jsonl file: an object, one field of which is the text of a document.
#pragma once
#include <stddef.h>
#include "base/error.h"

// line[bytes] must be one JSON object (RFC 8259, strictly) with the string `field`: a key, or keys
// with dots between them for objects inside each other. Unescapes in place, so that the line is
// spoilt and text[text_bytes] lies in it. "\u0000" is a NUL; half of a surrogate pair becomes
// U+FFFD; bytes that are no UTF-8 stay. The sentence is about "it", the line, and has the column.
int jsonl_text(char *line, size_t bytes, const char *field, char **text, size_t *text_bytes,
               Error *err);
