// One process trains in a run's folder. The lock is flock's on RUN/lock, so it ends with its
// process, however that dies; the file alone, which a kill leaves behind, locks nothing. Readers
// (--generate, --eval) take none.
#pragma once
#include "base/error.h"

#define LOCK_FILE "lock"

typedef struct RunLock {
  int fd;     // 0: not held
  char *path; // owned
} RunLock;

// The folder must be there. -1 if another process has the lock, whose id the sentence names. Where
// the file system knows no locks it says so on standard error and goes on without.
int run_lock(RunLock *lock, const char *run_dir, Error *err);
void run_unlock(RunLock *lock); // removes the file; zeros are fine
