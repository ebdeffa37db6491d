#define _GNU_SOURCE // vasprintf
#include <unistd.h>

#include "tests/support/test.h"

// Global because cmocka hands a test nothing else that outlives its longjmp.
static struct Held {
  void *what;
  void (*release)(void *);
  struct Held *before;
} * newest, *kept;

void *hold(void *what, void (*release)(void *)) {
  struct Held *h = xmalloc(sizeof *h);
  *h = (struct Held){what, release, newest};
  newest = h;
  return what;
}

static void release_at(struct Held **at) {
  struct Held *h = *at;
  *at = h->before;
  h->release(h->what);
  free(h);
}

void let_go(void *what) {
  struct Held **at = &newest;
  while (*at && (*at)->what != what) at = &(*at)->before;
  if (!*at) fail_msg("what is let go was not held");
  release_at(at);
}

void release_held(void) {
  while (newest != kept) release_at(&newest);
}

void keep_held(void) {
  kept = newest;
}

void release_all(void) {
  kept = NULL;
  release_held();
}

void *held(void *memory) {
  return hold(memory, free);
}

char *held_text(const char *format, ...) {
  char *text;
  va_list values;
  va_start(values, format);
  const int bytes = vasprintf(&text, format, values);
  va_end(values);
  if (bytes < 0) fail_msg("no memory for '%s'", format);
  return held(text);
}

char *file_text(const char *path, size_t *bytes) {
  Error err;
  char *text;
  size_t count;
  must(file_read(path, SIZE_MAX, &text, bytes ? bytes : &count, &err), &err);
  return held(text);
}

Caught catch_output(int fd) {
  const Caught c = {fd, dup(fd), tmpfile()};
  assert_non_null(c.file);
  fflush(NULL);
  assert_int_equal(dup2(fileno(c.file), fd), fd);
  return c;
}

char *caught(Caught c) {
  fflush(NULL);
  dup2(c.before, c.fd);
  close(c.before);
  const size_t bytes = (size_t)lseek(fileno(c.file), 0, SEEK_END);
  char *text = held(xcalloc(bytes + 1, 1));
  rewind(c.file);
  assert_int_equal(fread(text, 1, bytes, c.file), bytes);
  fclose(c.file);
  return text;
}

void put_file(const char *path, const char *text) {
  Error err;
  must(file_write(path, text, strlen(text), &err), &err);
}

static void remove_folder_of(void *path) {
  Error err;
  must(directory_remove(path, &err), &err);
  free(path);
}

char *temporary_folder(void) {
  const char *parent = getenv("TMPDIR");
  char *path = xasprintf("%s/coda-test.XXXXXX", parent ? parent : "/tmp");
  if (!mkdtemp(path)) fail_msg("cannot create the folder %s", path);
  return hold(path, remove_folder_of);
}

void must(int status, const Error *err) {
  if (status != 0) fail_msg("%s", err->text);
}

void *must_make(void *made, const Error *err) {
  if (!made) fail_msg("%s", err->text);
  return made;
}

void expect_error(int status, const Error *err, const char *word) {
  if (status != -1) fail_msg("no error, where '%s' was expected", word);
  assert_says(err, word);
}

void expect_none(const void *made, const Error *err, const char *words) {
  expect_error(made ? 0 : -1, err, words);
}

void assert_says(const Error *err, const char *words) {
  if (!strstr(err->text, words)) fail_msg("'%s' does not say '%s'", err->text, words);
}
