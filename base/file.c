#define _GNU_SOURCE
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

enum { WRITER_BUFFER_BYTES = 1 << 20 };

static int open_for_reading(const char *path, size_t *bytes, Error *err) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return error_set(err, "cannot open '%s': %s", path, strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0) {
    error_set(err, "cannot look at '%s': %s", path, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    error_set(err, "'%s' is not a regular file", path);
  } else {
    *bytes = (size_t)st.st_size;
    return fd;
  }
  close(fd);
  return -1;
}

int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, Error *err) {
  size_t size = 0;
  const int fd = open_for_reading(path, &size, err);
  if (fd < 0) return -1;
  if (size > max_bytes) {
    close(fd);
    return error_set(err, "'%s' has %s, more than the %s allowed here", path, size_text(size).text,
                     size_text(max_bytes).text);
  }
  char *buffer = xmalloc(size + 1);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(fd, buffer + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_set(err, "cannot read '%s': %s", path, n < 0 ? strerror(errno) : "it became shorter");
      free(buffer);
      close(fd);
      return -1;
    }
    done += (size_t)n;
  }
  close(fd);
  buffer[size] = '\0';
  *data = buffer;
  *bytes = size;
  return 0;
}

int file_map(MappedFile *map, const char *path, Error *err) {
  *map = (MappedFile){NULL, 0};
  size_t size = 0;
  const int fd = open_for_reading(path, &size, err);
  if (fd < 0) return -1;
  if (size > 0) {
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      error_set(err, "cannot map '%s': %s", path, strerror(errno));
      close(fd);
      return -1;
    }
    *map = (MappedFile){p, size};
  }
  close(fd);
  return 0;
}

void file_unmap(MappedFile *map) {
  if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
  *map = (MappedFile){NULL, 0};
}

static int writer_fail(FileWriter *w, const char *what, Error *err) {
  error_set(&w->error, "cannot %s '%s': %s", what, w->path ? w->path : "?", strerror(errno));
  *err = w->error;
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
  return -1;
}

int writer_open(FileWriter *w, const char *path, Error *err) {
  *w = (FileWriter){.fd = -1, .path = xstrdup(path)};
  w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (w->fd < 0) {
    writer_fail(w, "create", err);
    writer_abandon(w);
    return -1;
  }
  w->buffer = xmalloc(WRITER_BUFFER_BYTES);
  return 0;
}

static int write_all(FileWriter *w, const unsigned char *data, size_t bytes, Error *err) {
  while (bytes > 0) {
    const ssize_t n = write(w->fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return writer_fail(w, "write to", err);
    }
    data += n;
    bytes -= (size_t)n;
  }
  return 0;
}

static int writer_flush(FileWriter *w, Error *err) {
  const size_t used = w->used;
  w->used = 0;
  return write_all(w, w->buffer, used, err);
}

int writer_append(FileWriter *w, const void *data, size_t bytes, Error *err) {
  if (w->fd < 0) {
    *err = w->error;
    return -1;
  }
  w->total += bytes;
  if (w->used + bytes > WRITER_BUFFER_BYTES && writer_flush(w, err) != 0) return -1;
  if (bytes >= WRITER_BUFFER_BYTES) return write_all(w, data, bytes, err);
  memcpy(w->buffer + w->used, data, bytes);
  w->used += bytes;
  return 0;
}

int writer_patch(FileWriter *w, uint64_t offset, const void *data, size_t bytes, Error *err) {
  if (w->fd < 0) {
    *err = w->error;
    return -1;
  }
  if (writer_flush(w, err) != 0) return -1;
  if (lseek(w->fd, (off_t)offset, SEEK_SET) < 0) return writer_fail(w, "seek in", err);
  if (write_all(w, data, bytes, err) != 0) return -1;
  if (lseek(w->fd, 0, SEEK_END) < 0) return writer_fail(w, "seek in", err);
  return 0;
}

int writer_finish(FileWriter *w, Error *err) {
  int status = 0;
  if (w->fd < 0) {
    *err = w->error;
    status = -1;
  } else if (writer_flush(w, err) != 0) {
    status = -1;
  } else if (fsync(w->fd) != 0) {
    status = writer_fail(w, "sync", err);
  } else if (close(w->fd) != 0) {
    w->fd = -1;
    status = writer_fail(w, "close", err);
  }
  if (status == 0) w->fd = -1;
  writer_abandon(w);
  return status;
}

void writer_abandon(FileWriter *w) {
  if (w->fd >= 0) close(w->fd);
  free(w->buffer);
  free(w->path);
  const Error error = w->error;
  *w = (FileWriter){.fd = -1, .error = error};
}

static char *parent_of(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return xstrdup(".");
  if (slash == path) return xstrdup("/");
  char *parent = xstrdup(path);
  parent[slash - path] = '\0';
  return parent;
}

int file_write_atomic(const char *path, const void *data, size_t bytes, Error *err) {
  char *temporary = xasprintf("%s.tmp", path);
  char *parent = parent_of(path);
  FileWriter w;
  int status = writer_open(&w, temporary, err);
  if (status == 0) {
    status = writer_append(&w, data, bytes, err);
    if (status == 0)
      status = writer_finish(&w, err);
    else
      writer_abandon(&w);
    if (status == 0) status = path_rename(temporary, path, err);
    if (status != 0)
      unlink(temporary);
    else
      status = directory_sync(parent, err);
  }
  free(parent);
  free(temporary);
  return status;
}

int file_check_writable(const char *path, Error *err) {
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) // a rename would replace /dev/null
    return error_set(err, "'%s' is not a regular file: name one, or one that is not there yet",
                     path);
  char *temporary = xasprintf("%s.tmp", path);
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const int status = fd >= 0 ? 0
                             : error_set(err,
                                         "cannot write to '%s': %s; name a file in a folder "
                                         "that is there and may be written to",
                                         path, strerror(errno));
  if (fd >= 0) {
    close(fd);
    unlink(temporary);
  }
  free(temporary);
  return status;
}

int directory_create(const char *path, Error *err) {
  char *partial = xstrdup(path);
  int status = 0;
  for (char *p = partial + 1; status == 0; p++) {
    if (*p != '/' && *p != '\0') continue;
    const char end = *p;
    *p = '\0';
    if (mkdir(partial, 0755) != 0 && !(errno == EEXIST && path_is_directory(partial)))
      status = error_set(err, "cannot create the folder '%s': %s", partial, strerror(errno));
    *p = end;
    if (end == '\0') break;
  }
  free(partial);
  return status;
}

int directory_sync(const char *path, Error *err) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return error_set(err, "cannot open the folder '%s': %s", path, strerror(errno));
  const int failed = fsync(fd);
  const int why = errno;
  close(fd);
  return failed ? error_set(err, "cannot sync the folder '%s': %s", path, strerror(why)) : 0;
}

int directory_remove(const char *path, Error *err) {
  DIR *dir = opendir(path);
  if (!dir)
    return errno == ENOENT
               ? 0
               : error_set(err, "cannot open the folder '%s': %s", path, strerror(errno));
  int status = 0;
  for (struct dirent *entry; status == 0 && (entry = readdir(dir));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char *child = xasprintf("%s/%s", path, entry->d_name);
    struct stat st;
    if (lstat(child, &st) == 0 && S_ISDIR(st.st_mode))
      status = directory_remove(child, err);
    else if (unlink(child) != 0)
      status = error_set(err, "cannot remove '%s': %s", child, strerror(errno));
    free(child);
  }
  closedir(dir);
  if (status == 0 && rmdir(path) != 0)
    status = error_set(err, "cannot remove '%s': %s", path, strerror(errno));
  return status;
}

int path_rename(const char *from, const char *to, Error *err) {
  if (rename(from, to) == 0) return 0;
  return error_set(err, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
}

int path_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

int path_is_directory(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
