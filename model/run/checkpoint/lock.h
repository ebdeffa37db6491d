// One process trains in a run's folder, and writes into no other. The lock is flock's on RUN/lock,
// so it ends with its process, however that dies; the file alone, which outlives a kill, locks
// nothing. Readers (--generate, --eval) take none.
//
// The folder stays open with its lock: every file below `path` is written into this folder, even if
// its name is another folder's by then.
#pragma once
#include <stdbool.h>
#include "base/error.h"
#include "base/file.h"

#define LOCK_FILE "lock"

typedef struct RunLock {
  bool held;
  int folder, file; // descriptors of RUN and RUN/lock
  PathText given;   // RUN as the user named it, for messages
  PathText path;    // for writing: /proc/self/fd/FOLDER/. or as given, where there is no /proc
} RunLock;

// The folder must be there. -1 if another process has the lock, whose id the sentence names, or if
// RUN/lock is a link or a device, which would have another file overwritten. Where the file system
// knows no locks it says so on standard error and locks nothing.
int run_lock(RunLock *lock, const char *run_dir, Error *err);
// Removes the file, unless its name belongs to another by now; zeros are fine.
void run_unlock(RunLock *lock);

// 0 while RUN/lock is still this run's. -1 and a message where the folder or the lock was moved,
// removed or replaced: nothing may be written there any more. A file system that does not answer
// counts as 0.
int run_lock_check(const RunLock *lock, Error *err);

// A message about files below lock->path becomes one about the folder as the user named it.
void run_lock_name(const RunLock *lock, Error *err);
