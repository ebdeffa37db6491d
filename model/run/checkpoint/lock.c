#define _GNU_SOURCE // gethostname beside flock
#include "model/run/checkpoint/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// Whether this path names the lock file that is open; true where the file system does not answer.
static bool is_named(const RunLock *lock, int folder, const char *path) {
  struct stat held, named;
  if (fstatat(folder, path, &named, AT_SYMLINK_NOFOLLOW) != 0)
    return errno != ENOENT && errno != ENOTDIR && errno != ESTALE;
  return fstat(lock->file, &held) != 0 ||
         (held.st_dev == named.st_dev && held.st_ino == named.st_ino);
}

// A holder removes the file before it lets go, so one that was just opened may have no name left.
static bool still_there(const RunLock *lock) {
  return is_named(lock, lock->folder, LOCK_FILE);
}

static int refuse(const RunLock *lock, Error *err) {
  char holder[128] = "";
  const ssize_t n = read(lock->file, holder, sizeof holder - 1);
  holder[n > 0 ? n : 0] = '\0';
  holder[strcspn(holder, "\n")] = '\0';
  return error_set(err,
                   "output.dir '%s' is in use: %s trains there; wait until it ends, stop it, or "
                   "choose another output.dir",
                   lock->given.text, holder[0] ? holder : "another process");
}

static void write_holder(const RunLock *lock) {
  char host[64] = "", text[128];
  gethostname(host, sizeof host - 1);
  const int n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
  // A write that fails only makes another process' sentence shorter.
  if (ftruncate(lock->file, 0) != 0 || write(lock->file, text, (size_t)n) != n) return;
}

static int open_file(RunLock *lock, Error *err) {
  struct stat st;
  lock->file =
      openat(lock->folder, LOCK_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (lock->file < 0 && errno != ELOOP && errno != EISDIR && errno != ENXIO)
    return error_set(err, "cannot create '%s/" LOCK_FILE "': %s", lock->given.text, errno_text());
  if (lock->file >= 0 && fstat(lock->file, &st) == 0 && S_ISREG(st.st_mode)) return 0;
  if (lock->file >= 0) close(lock->file);
  return error_set(err,
                   "'%s/" LOCK_FILE "' is not a regular file but a link, folder or device, and a "
                   "run would write into it: remove it",
                   lock->given.text);
}

static int take_lock(RunLock *lock, Error *err) {
  for (;;) {
    if (open_file(lock, err) != 0) return -1;
    const bool locked = flock(lock->file, LOCK_EX | LOCK_NB) == 0;
    const int why = errno;
    if (locked && !still_there(lock)) {
      close(lock->file);
      continue;
    }
    if (!locked && why == EWOULDBLOCK) {
      refuse(lock, err);
      close(lock->file);
      return -1;
    }
    if (!locked)
      fprintf(stderr, "'%s' cannot be locked (%s): see to it that no other process trains there\n",
              lock->given.text, strerror(why));
    write_holder(lock);
    return 0;
  }
}

int run_lock(RunLock *lock, const char *run_dir, Error *err) {
  *lock = (RunLock){.folder = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                    .given = path_text("%s", run_dir)};
  if (lock->folder < 0)
    return error_set(err, "cannot open the folder '%s': %s", run_dir, errno_text());
  lock->path = path_text("/proc/self/fd/%d/.", lock->folder);        // no other path begins so
  if (!path_is_directory(lock->path.text)) lock->path = lock->given; // there is no /proc
  lock->held = take_lock(lock, err) == 0;
  if (lock->held) return 0;
  close(lock->folder);
  return -1;
}

void run_unlock(RunLock *lock) {
  if (!lock->held) return;
  if (still_there(lock)) unlinkat(lock->folder, LOCK_FILE, 0);
  close(lock->file);
  close(lock->folder);
  *lock = (RunLock){.held = false};
}

int run_lock_check(const RunLock *lock, Error *err) {
  const char *given = lock->given.text;
  if (is_named(lock, AT_FDCWD, path_text("%s/" LOCK_FILE, given).text)) return 0;
  return error_set(err,
                   "output.dir '%s', or '" LOCK_FILE
                   "' in it, was moved, removed or replaced while "
                   "the run trained there",
                   given);
}

void run_lock_name(const RunLock *lock, Error *err) {
  const Error old = *err;
  const char *path = lock->path.text, *from = old.text;
  err->text[0] = '\0';
  for (const char *found; (found = strstr(from, path)); from = found + strlen(path))
    error_append(err, "%.*s%s", (int)(found - from), from, lock->given.text);
  error_append(err, "%s", from);
}
