#define _GNU_SOURCE // renameat2, realpath, program_invocation_short_name
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

// ---- What is in a folder

static void list_free(FolderList *list) {
  for (size_t i = 0; i < list->count; i++) free(list->files[i].name);
  free(list->files);
  *list = (FolderList){0};
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const FolderFile *)a)->name, ((const FolderFile *)b)->name);
}

// Its descriptor; -1 where `path` is no folder. A link is none.
static int open_folder(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int list_entries(FolderList *list, DIR *dir) {
  struct dirent *entry;
  while (errno = 0, (entry = readdir(dir))) {
    struct stat st;
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, FOLDER_MARK) == 0)
      continue;
    if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue; // it was removed just now
      return -1;
    }
    char *copy = xstrdup(name); // first: it may not return
    list->files = xrealloc(list->files, (list->count + 1) * sizeof *list->files);
    list->files[list->count++] = (FolderFile){
        .name = copy, .inode = st.st_ino, .bytes = (uint64_t)st.st_size, .time = st.st_mtim};
  }
  return errno ? -1 : 0;
}

// `list` starts from zeros, and is to be freed, also after an error.
static int list_folder(FolderList *list, const char *path, Error *err) {
  const int fd = open_folder(path);
  if (fd < 0 && errno == ENOENT) return 0;
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  if (!dir) {
    error_set(err, "cannot open the folder '%s': %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  struct stat st;
  list->there = true;
  const int failed = fstat(fd, &st) != 0 || list_entries(list, dir) != 0;
  const int why = errno;
  closedir(dir);
  if (failed) return error_set(err, "cannot list the folder '%s': %s", path, strerror(why));
  list->mode = st.st_mode & 07777;
  if (list->count > 0) qsort(list->files, list->count, sizeof *list->files, by_name);
  return 0;
}

static bool same_file(const FolderFile *a, const FolderFile *b) {
  return strcmp(a->name, b->name) == 0 && a->inode == b->inode && a->bytes == b->bytes &&
         a->time.tv_sec == b->time.tv_sec && a->time.tv_nsec == b->time.tv_nsec;
}

// The name of the first file that is in one of them alone, or differs; NULL: they are equal.
static const char *first_difference(const FolderList *a, const FolderList *b) {
  for (size_t i = 0; i < a->count || i < b->count; i++) {
    if (i == a->count) return b->files[i].name;
    if (i == b->count) return a->files[i].name;
    const FolderFile *x = &a->files[i], *y = &b->files[i];
    if (!same_file(x, y)) return strcmp(x->name, y->name) > 0 ? y->name : x->name;
  }
  return NULL;
}

// ---- The mark

static PathText mark_path(const char *folder) {
  return path_text("%s/" FOLDER_MARK, folder);
}

static int put_mark(const char *folder, Error *err) {
  const PathText path = mark_path(folder);
  const int fd = open(path.text, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return error_set(err, "cannot create '%s': %s", path.text, strerror(errno));
  close(fd);
  return directory_sync(folder, err);
}

// True of a folder, not of a link to one.
static bool is_marked(const char *folder) {
  struct stat st, mark;
  return lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) &&
         lstat(mark_path(folder).text, &mark) == 0;
}

// ---- Removing

// Removes the listed files from the folder, then the mark and the folder itself. A folder that
// holds more stays, with its mark if a file could not be removed: errno is then not ENOTEMPTY.
static int remove_files(const char *path, const FolderList *list) {
  const int fd = open_folder(path);
  if (fd < 0) return -1;
  int failed = 0;
  for (size_t i = 0; i < list->count; i++)
    if (unlinkat(fd, list->files[i].name, 0) != 0 && errno != ENOENT) failed = errno;
  if (!failed && unlinkat(fd, FOLDER_MARK, 0) != 0 && errno != ENOENT) failed = errno;
  close(fd);
  if (!failed && rmdir(path) != 0) failed = errno;
  errno = failed;
  return failed ? -1 : 0;
}

// Leaves those files in the list that the caller writes. Returns the name of another, which stays
// valid, or NULL.
static const char *keep_ours(const Folder *f, FolderList *list) {
  const char *other = NULL;
  size_t ours = 0;
  for (size_t i = 0; i < list->count; i++) {
    const FolderFile file = list->files[i];
    list->files[i] = list->files[ours];
    list->files[ours] = file;
    if (f->is_ours(file.name))
      ours++;
    else
      other = file.name;
  }
  list->count = ours;
  return other;
}

static int busy(const Folder *f, Error *err) {
  return error_set(err, "another ./%s is writing '%s'; wait for it, or choose another folder",
                   program_invocation_short_name, f->path.text);
}

// The lock goes with the process, however it ends. *fd: -1 where there is no such folder.
static int take_lock(const Folder *f, const char *path, int *fd, Error *err) {
  *fd = open_folder(path);
  if (*fd < 0 && errno == ENOENT) return 0;
  if (*fd < 0) return error_set(err, "cannot open the folder '%s': %s", path, strerror(errno));
  if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 0;
  close(*fd);
  *fd = -1;
  return busy(f, err);
}

// Removes PATH.tmp or PATH.old of a killed process. An empty folder has no mark yet.
static int remove_leftover(const Folder *f, const char *path, Error *err) {
  int lock;
  FolderList list = {0};
  if (take_lock(f, path, &lock, err) != 0) return -1;
  if (lock < 0) return 0;
  int status = list_folder(&list, path, err);
  const size_t count = list.count;
  const char *other = status == 0 ? keep_ours(f, &list) : NULL;
  if (status == 0 && (other || (count > 0 && !is_marked(path))))
    status = error_set(err,
                       "'%s' is in the way, and holds '%.200s', which no unfinished ./%s left: "
                       "move or remove it",
                       path, other ? other : list.files[0].name, program_invocation_short_name);
  if (status == 0 && remove_files(path, &list) != 0)
    status = error_set(err, "cannot remove '%s': %s", path, strerror(errno));
  list.count = count;
  list_free(&list);
  close(lock);
  return status;
}

// ---- Looking

static int follow_link(Folder *f, const char *path, Error *err) {
  struct stat st;
  char target[PATH_MAX];
  f->path = path_text("%s", path);
  if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) return 0;
  char *real = realpath(path, NULL);
  if (real) f->path = path_text("%s", real);
  free(real);
  if (real) return 0;
  const ssize_t length = readlink(path, target, sizeof target - 1);
  target[length > 0 ? length : 0] = '\0';
  return error_set(err, "'%s' is a link to '%.1000s', which is not there: remove it", path, target);
}

int folder_look(Folder *f, const char *path, bool (*is_ours)(const char *name), Error *err) {
  *f = (Folder){.is_ours = is_ours, .lock = -1};
  if (follow_link(f, path, err) != 0) return -1;
  f->temporary = path_text("%s.tmp", f->path.text);
  f->old = path_text("%s.old", f->path.text);
  if (list_folder(&f->before, f->path.text, err) != 0) return -1;
  if (f->before.there || !is_marked(f->old.text)) return 0;
  return error_set(err, "'%s' is what '%s' was when a run was killed: rename it back, or remove it",
                   f->old.text, f->path.text);
}

// ---- Beginning

// How many folders of the path are not there.
static int count_missing(const char *path) {
  int missing = 0;
  for (PathText at = path_text("%s", path); !path_exists(at.text); missing++)
    at = path_parent(at.text);
  return missing;
}

// Removes those folders again, from the innermost out, as far as they are empty.
static void remove_created(const char *path, int missing) {
  PathText at = path_text("%s", path);
  for (; missing > 0 && rmdir(at.text) == 0; missing--) at = path_parent(at.text);
}

static int make_temporary(Folder *f, Error *err) {
  const char *path = f->temporary.text;
  if (remove_leftover(f, path, err) != 0) return -1;
  if (mkdir(path, 0755) != 0)
    return error_set(err, "cannot create the folder '%s': %s", path, strerror(errno));
  int status = take_lock(f, path, &f->lock, err);
  if (status == 0) status = put_mark(path, err);
  if (status == 0) return 0;
  unlink(mark_path(path).text);
  rmdir(path);
  return -1;
}

int folder_begin(Folder *f, Error *err) {
  const PathText parent = path_parent(f->path.text);
  f->missing = count_missing(parent.text);
  f->begun = directory_create(parent.text, err) == 0 &&
             (!is_marked(f->old.text) || remove_leftover(f, f->old.text, err) == 0) &&
             make_temporary(f, err) == 0;
  if (!f->begun) remove_created(parent.text, f->missing);
  return f->begun ? 0 : -1;
}

// ---- Ending

// Somebody changed the folder meanwhile. What was made loses its mark, so that no run removes it.
static int keep_both(Folder *f, const char *name, Error *err) {
  f->begun = false;
  unlink(mark_path(f->temporary.text).text);
  return error_set(err,
                   "'%s' was changed while ./%s was writing%s%.200s%s: it stays as it is, and what "
                   "was made is in '%s'",
                   f->path.text, program_invocation_short_name, name ? " (see '" : "",
                   name ? name : "", name ? "')" : "", f->temporary.text);
}

// The mode is that of the folder that was there. A refused change does no harm.
static void keep_mode(const Folder *f) {
  if (f->before.there && f->lock >= 0 && fchmod(f->lock, f->before.mode) != 0) return;
}

// 1 where something has the name `to` that rename(2) does not replace: it replaces an empty folder.
static int rename_free(const char *from, const char *to, Error *err) {
  if (rename(from, to) == 0) return 0;
  if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) return 1;
  return error_set(err, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
}

static int take_free_name(Folder *f, Error *err) {
  keep_mode(f);
  const int status = rename_free(f->temporary.text, f->path.text, err);
  if (status != 0) return status > 0 ? keep_both(f, NULL, err) : -1;
  f->begun = false;
  return directory_sync(path_parent(f->path.text).text, err);
}

// On file systems that cannot exchange two names.
static int exchange_by_renaming(Folder *f, Error *err) {
  Error ignored;
  int status = rename_free(f->path.text, f->old.text, err);
  if (status > 0) return keep_both(f, NULL, err);
  if (status < 0) return -1;
  status = rename_free(f->temporary.text, f->path.text, err);
  if (status == 0) return 0;
  path_rename(f->old.text, f->path.text, &ignored);
  return status > 0 ? keep_both(f, NULL, err) : -1;
}

// *removed: where the old folder is now.
static int exchange(Folder *f, const char **removed, Error *err) {
  const char *from = f->temporary.text, *to = f->path.text;
  *removed = from;
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS)
    return error_set(err, "cannot exchange '%s' and '%s': %s", from, to, strerror(errno));
  *removed = f->old.text;
  return exchange_by_renaming(f, err);
}

// The old folder's lock keeps a second process from it until it is gone.
static int replace(Folder *f, Error *err) {
  int lock;
  const char *removed = NULL;
  if (take_lock(f, f->path.text, &lock, err) != 0) return -1;
  if (lock < 0) return keep_both(f, NULL, err);
  int status = put_mark(f->path.text, err);
  if (status == 0) {
    keep_mode(f);
    status = exchange(f, &removed, err);
    if (status != 0) unlink(mark_path(f->path.text).text);
  }
  if (status == 0) {
    f->begun = false;
    status = directory_sync(path_parent(f->path.text).text, err);
    // The next run removes what cannot be removed now, but nothing that came there just now.
    if (remove_files(removed, &f->before) != 0 && errno == ENOTEMPTY)
      status = error_set(err, "'%s' is complete, but a file came to the old one: see '%s'",
                         f->path.text, removed);
  }
  close(lock);
  return status;
}

int folder_commit(Folder *f, Error *err) {
  FolderList now = {0};
  if (directory_sync(f->temporary.text, err) != 0) return -1;
  int status = list_folder(&now, f->path.text, err);
  const char *changed = status == 0 ? first_difference(&f->before, &now) : NULL;
  if (changed) status = keep_both(f, changed, err);
  const bool replaces = now.count > 0;
  list_free(&now);
  if (status == 0) status = replaces ? replace(f, err) : take_free_name(f, err);
  if (!f->begun) unlink(mark_path(f->path.text).text);
  return status;
}

void folder_close(Folder *f) {
  Error ignored;
  FolderList list = {0};
  if (f->begun) {
    list_folder(&list, f->temporary.text, &ignored);
    const size_t count = list.count;
    keep_ours(f, &list);
    remove_files(f->temporary.text, &list);
    list.count = count;
    remove_created(path_parent(f->path.text).text, f->missing);
  }
  list_free(&list);
  if (f->lock >= 0) close(f->lock);
  list_free(&f->before);
  *f = (Folder){.lock = -1};
}
