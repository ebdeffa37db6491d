#include "base/shell.h"

#include <string.h>

#include "base/memory.h"

char *shell_word(const char *text) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                              "_./,:=@%+-";
  if (text[0] != '\0' && text[strspn(text, plain)] == '\0') return xstrdup(text);
  char *word = xmalloc(4 * strlen(text) + 3), *at = word;
  *at++ = '\'';
  for (; *text; text++) {
    const size_t bytes = *text == '\'' ? 4 : 1; // out of the quotes, a quote, into them again
    memcpy(at, bytes > 1 ? "'\\''" : text, bytes);
    at += bytes;
  }
  memcpy(at, "'", 2);
  return word;
}
