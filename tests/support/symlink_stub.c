// A library for LD_PRELOAD: a file system without symbolic links, as network drives and exFAT are.
#include <errno.h>
#include <unistd.h>

__attribute__((visibility("default"))) int symlink(const char *target, const char *path) {
  (void)target;
  (void)path;
  errno = EOPNOTSUPP;
  return -1;
}
