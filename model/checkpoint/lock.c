#define _GNU_SOURCE // gethostname beside flock
#include "model/checkpoint/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

// Its holder removes the file before it lets go, so that what was opened here may have no name.
static bool still_there(const RunLock *lock) {
  struct stat held, named;
  return fstat(lock->fd, &held) == 0 && stat(lock->path, &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

static int refuse(const RunLock *lock, const char *run_dir, Error *err) {
  char holder[128] = "";
  const ssize_t n = read(lock->fd, holder, sizeof holder - 1);
  holder[n > 0 ? n : 0] = '\0';
  holder[strcspn(holder, "\n")] = '\0';
  return error_set(err,
                   "output.dir '%s' is in use: %s trains there; wait until it ends, stop it, or "
                   "choose another output.dir",
                   run_dir, holder[0] ? holder : "another process");
}

static void write_holder(const RunLock *lock) {
  char host[64] = "", text[128];
  gethostname(host, sizeof host - 1);
  const int n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
  // What cannot be written only makes another's sentence shorter.
  if (ftruncate(lock->fd, 0) != 0 || write(lock->fd, text, (size_t)n) != n) return;
}

int run_lock(RunLock *lock, const char *run_dir, Error *err) {
  *lock = (RunLock){.path = xasprintf("%s/" LOCK_FILE, run_dir)};
  for (;;) {
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock->fd < 0) {
      error_set(err, "cannot create '%s': %s", lock->path, strerror(errno));
      break;
    }
    const bool locked = flock(lock->fd, LOCK_EX | LOCK_NB) == 0;
    if (locked && !still_there(lock)) {
      close(lock->fd);
      continue;
    }
    if (!locked && errno == EWOULDBLOCK) {
      refuse(lock, run_dir, err);
      close(lock->fd);
      break;
    }
    if (!locked)
      fprintf(stderr, "'%s' cannot be locked (%s): see to it that no other process trains there\n",
              run_dir, strerror(errno));
    write_holder(lock);
    return 0;
  }
  free(lock->path);
  *lock = (RunLock){0};
  return -1;
}

void run_unlock(RunLock *lock) {
  if (!lock->path) return;
  unlink(lock->path);
  close(lock->fd);
  free(lock->path);
  *lock = (RunLock){0};
}
