// One way to report an error: a function that can fail returns 0 or -1 and writes one sentence (the
// error, the place, the advice) into the caller's Error. Nothing below train.c prints it or
// exits.
#pragma once

typedef struct Error {
  char text[2048]; // NUL-terminated sentence without a trailing newline; empty when nothing failed
} Error;

// These write printf style, cut a sentence that is too long for the buffer, and return -1, so that
// callers write `return error_set(err, ...)`. err may not be NULL.
int error_set(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Puts "prefix: " in front of the sentence that is there.
int error_prefix(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Appends to the sentence that is there.
int error_append(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// strerror(errno), and where the process has too many files open, how to allow more.
const char *errno_text(void);

// The name in names[count] that the user probably meant by `name`: one that begins with it, else
// one that it abbreviates, else one that differs in at most a third of its letters; else NULL. An
// abbreviation has the beginning of each word, or of the first few: lr for learning_rate, min_lr
// for min_learning_rate. Of several names the nearest by edit distance wins.
const char *nearest_name(const char *name, const char *const *names, int count);
