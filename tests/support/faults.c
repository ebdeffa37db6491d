#define _GNU_SOURCE
#include "tests/support/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const fault_names[FAULTS] = {
    "none", "EIO", "ENOSPC", "a short write, then ENOSPC", "death", "death after a short write"};

struct Injected injected;

// True if this call is to fail; errno is set.
static bool strikes(const char *call) {
  if (injected.fault == NO_FAULT || injected.fault >= NO_MEMORY) return false;
  if (++injected.calls != injected.at) return false;
  injected.struck = call;
  if (injected.fault == DIE || injected.fault == DIE_SHORT) _exit(EXIT_KILLED);
  errno = injected.fault == FAIL_EIO ? EIO : ENOSPC;
  return true;
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
int __real_open(const char *path, int flags, ...);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t bytes);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_symlink(const char *target, const char *path);
int __real_mkdir(const char *path, mode_t mode);
int __real_unlink(const char *path);
int __real_unlinkat(int dir, const char *path, int flags);
int __real_rmdir(const char *path);

ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
  const bool half = injected.fault == FAIL_SHORT || injected.fault == DIE_SHORT;
  if (injected.disk_full) {
    errno = ENOSPC;
    return -1;
  }
  if (half && injected.calls + 1 == injected.at) {
    if (__real_write(fd, data, bytes / 2) < 0) return -1;
    strikes("write");
    injected.disk_full = true;
    return (ssize_t)(bytes / 2);
  }
  if (strikes("write")) return -1;
  return __real_write(fd, data, injected.always_short && bytes > 1 ? bytes / 2 : bytes);
}

int __wrap_open(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
  va_end(args);
  const bool to_remove = flags & O_DIRECTORY && flags & O_NOFOLLOW; // base/folder.c
  return strikes(to_remove ? "unlink" : "open") ? -1 : __real_open(path, flags, mode);
}

static void log_event(const char *what, const char *a, const char *b) {
  if (!injected.log) return;
  const size_t used = strlen(injected.events);
  snprintf(injected.events + used, sizeof injected.events - used, "%s %s%s%s\n", what, basename(a),
           b[0] ? " " : "", basename(b));
}

int __wrap_fsync(int fd) { // not done: these tests pull no plug, and it is slow
  char link[64], path[1024] = "";
  if (injected.before_sync) injected.before_sync();
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) < 0) return -1;
  log_event("sync", path, "");
  return strikes("fsync") ? -1 : 0;
}

int __wrap_rename(const char *from, const char *to) {
  log_event("rename", from, to);
  return strikes("rename") ? -1 : __real_rename(from, to);
}

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
  if (injected.no_exchange) {
    errno = EINVAL;
    return -1;
  }
  return strikes("renameat2") ? -1 : __real_renameat2(from_dir, from, to_dir, to, flags);
}

int __wrap_symlink(const char *target, const char *path) {
  if (injected.no_links) {
    errno = EPERM; // as on exFAT
    return -1;
  }
  return strikes("symlink") ? -1 : __real_symlink(target, path);
}

int __wrap_mkdir(const char *path, mode_t mode) {
  return strikes("mkdir") ? -1 : __real_mkdir(path, mode);
}

int __wrap_unlink(const char *path) {
  return strikes("unlink") ? -1 : __real_unlink(path);
}

int __wrap_unlinkat(int dir, const char *path, int flags) {
  return strikes("unlink") ? -1 : __real_unlinkat(dir, path, flags);
}

int __wrap_rmdir(const char *path) {
  return strikes("rmdir") ? -1 : __real_rmdir(path);
}

static bool refuses_memory(void) {
  const bool main_thread = gettid() == getpid(), once = injected.fault == NO_MEMORY_ONCE;
  if (injected.fault < NO_MEMORY || main_thread != once) return false;
  injected.calls++;
  if (injected.calls < injected.at || (once && injected.calls > injected.at)) return false;
  errno = ENOMEM;
  return true;
}

void *__wrap_malloc(size_t bytes) {
  return refuses_memory() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t size) {
  return refuses_memory() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t bytes) {
  return refuses_memory() ? NULL : __real_realloc(old, bytes);
}
