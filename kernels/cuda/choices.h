// A file that remembers from one start to the next what was found out about a GPU, such as the
// fastest algorithms. It is text: a line that names its GPU, driver and library, a line for each
// choice (the question, then the answer), and a checksum of everything before it. A file that
// differs in the first line or in the checksum counts as empty. Needs no CUDA.
#pragma once
#include <stddef.h>

typedef struct Choices {
  char *path, *first; // of the file, NULL where there is none; its first line
  char *lines;        // "QUESTION = ANSWER\n", one a choice, as the file had them
  char *kept;         // the same, kept since the file was read or written
} Choices;

// ${XDG_CACHE_HOME:-~/.cache}/coda/KIND-GPU-DRIVER-LIBRARY.txt in fresh memory, or NULL where there
// is no home. Other characters in the GPU's name than letters and digits become '-'.
char *choices_path(const char *kind, const char *gpu, int driver, size_t library);

// Reads the file; one that cannot be read or trusted is an empty one. path may be NULL; `first`
// ends with a newline. Both are copied.
void choices_open(Choices *c, const char *path, const char *first);
void choices_close(Choices *c); // zeros are fine

// The answer, up to the line's newline; NULL where none is known. Lives until the next choice is
// kept.
const char *choices_find(const Choices *c, const char *question);
// Replaces the known answer.
void choices_keep(Choices *c, const char *question, const char *answer);
// Writes the file, atomically, if a choice was kept. Choices that other processes wrote meanwhile
// stay, except for questions that were answered here. A file that cannot be written (a read-only
// home) is not an error: the next start times the candidates again.
void choices_save(Choices *c);
