// A folder for targets whose readers take files, in memory where the system has such a place. It is
// removed at the end, after a failing input, too.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static char fuzz_path[128];

static void fuzz_remove(void) {
  DIR *dir = opendir(fuzz_path);
  for (struct dirent *e; dir && (e = readdir(dir));) unlinkat(dirfd(dir), e->d_name, 0);
  if (dir) closedir(dir);
  rmdir(fuzz_path);
}

static inline const char *fuzz_folder(void) {
  if (fuzz_path[0]) return fuzz_path;
  const char *parent = getenv("TMPDIR")                ? getenv("TMPDIR")
                       : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                       : "/tmp";
  snprintf(fuzz_path, sizeof fuzz_path, "%s/coda-fuzz-XXXXXX", parent);
  if (!mkdtemp(fuzz_path)) abort();
  atexit(fuzz_remove);
  return fuzz_path;
}

static inline void fuzz_write(const char *name, const void *bytes, size_t count) {
  const int fd =
      open(path_text("%s/%s", fuzz_folder(), name).text, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, bytes, count) != (ssize_t)count || close(fd) != 0) abort();
}
