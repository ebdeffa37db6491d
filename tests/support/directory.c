#define _GNU_SOURCE // nftw
#include <errno.h>
#include <ftw.h>

#include "tests/support/test.h"

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st, (void)kind, (void)at;
  return remove(path);
}

int directory_remove(const char *path, Error *err) {
  if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return 0;
  return error_set(err, "cannot remove '%s': %s", path, strerror(errno));
}
