#define _GNU_SOURCE // renameat2, realpath, program_invocation_short_name
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

static bool is_there(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0;
}

// Its descriptor; -1 where `path` is no folder. A link is none.
static int open_folder(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int is_listed(const struct dirent *entry) {
  const char *name = entry->d_name;
  return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, FOLDER_MARK) != 0;
}

// 0, or errno.
static int list_entries(FolderList *list, int fd) {
  struct dirent **entries;
  struct stat st;
  const int count = fstat(fd, &st) == 0 ? scandirat(fd, ".", &entries, is_listed, alphasort) : -1;
  if (count < 0) return errno;
  int failed = 0;
  list->mode = st.st_mode & 07777;
  list->files = xcalloc((size_t)count, sizeof *list->files);
  for (int i = 0; i < count; free(entries[i++])) {
    const char *name = entries[i]->d_name;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
      list->files[list->count++] = (FolderFile){.name = xstrdup(name),
                                                .inode = st.st_ino,
                                                .bytes = (uint64_t)st.st_size,
                                                .time = st.st_mtim,
                                                .regular = S_ISREG(st.st_mode)};
    else if (errno != ENOENT) // it was not removed just now
      failed = errno;
  }
  free(entries);
  return failed;
}

// `list` starts from zeros, and is to be freed, also after an error. 1: it is a link or a file.
static int list_folder(FolderList *list, const char *path, Error *err) {
  const int fd = open_folder(path);
  if (fd < 0 && errno == ENOENT) return 0;
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP) && is_there(path)) {
    error_set(err, "'%s' is a link or a file, not a folder: move or remove it", path);
    return 1;
  }
  const int failed = fd < 0 ? errno : list_entries(list, fd);
  list->there = fd >= 0;
  if (fd >= 0) close(fd);
  return failed ? error_set(err, "cannot list the folder '%s': %s", path, strerror(failed)) : 0;
}

static bool same_file(const FolderFile *a, const FolderFile *b) {
  return strcmp(a->name, b->name) == 0 && a->inode == b->inode && a->bytes == b->bytes &&
         a->time.tv_sec == b->time.tv_sec && a->time.tv_nsec == b->time.tv_nsec;
}

// The name of the first file that is in one of them alone, or differs; NULL: they are equal.
static const char *first_difference(const FolderList *a, const FolderList *b) {
  for (size_t i = 0; i < a->count || i < b->count; i++) {
    const FolderFile *x = i < a->count ? &a->files[i] : NULL,
                     *y = i < b->count ? &b->files[i] : NULL;
    if (x && y && same_file(x, y)) continue;
    return !y || (x && strcmp(x->name, y->name) < 0) ? x->name : y->name;
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

// NULL: the caller writes all of them.
static const char *first_foreign(const FolderList *list, FolderNames *is_ours) {
  for (size_t i = 0; i < list->count; i++)
    if (!list->files[i].regular || !is_ours(list->files[i].name)) return list->files[i].name;
  return NULL;
}

// The mark goes last, so that what a kill leaves is known. errno is ENOTEMPTY where more came.
static int remove_listed(const char *path, const FolderList *list, Error *err) {
  int failed = 0;
  const int fd = open_folder(path);
  for (size_t i = 0; fd >= 0 && i < list->count; i++)
    if (unlinkat(fd, list->files[i].name, 0) != 0 && errno != ENOENT) failed = errno;
  if (fd < 0 || (!failed && unlinkat(fd, FOLDER_MARK, 0) != 0 && errno != ENOENT)) failed = errno;
  if (fd >= 0) close(fd);
  if (!failed && rmdir(path) != 0) failed = errno;
  if (failed) error_set(err, "cannot remove '%s': %s", path, strerror(failed));
  errno = failed;
  return failed ? -1 : 0;
}

// An empty folder needs no mark: a process may have been killed before it put one.
static int remove_folder(const char *path, const char *last, FolderNames *is_ours, bool needs_mark,
                         Error *err) {
  FolderList list = {0};
  int status = list_folder(&list, path, err);
  const char *foreign = status == 0 ? first_foreign(&list, is_ours) : NULL;
  if (status == 0 && !foreign && needs_mark && list.count > 0 && !is_marked(path))
    foreign = list.files[0].name;
  if (foreign) {
    error_set(err, "'%s' is not for ./%s to remove, as it holds '%.200s': move or remove it", path,
              program_invocation_short_name, foreign);
    status = 1;
  } else if (status == 0 && list.there) {
    status = last ? path_rename(path, last, err) : 0;
    if (status == 0) status = remove_listed(last ? last : path, &list, err);
  }
  list_free(&list);
  return status;
}

int folder_remove(const char *path, const char *last, FolderNames *is_ours, Error *err) {
  return remove_folder(path, last, is_ours, false, err);
}

// The lock goes with the process, however it ends. *fd: -1 where there is no such folder, or no
// lock is needed.
static int take_lock(const Folder *f, const char *path, int *fd, Error *err) {
  *fd = f->alone ? -1 : open_folder(path);
  if (f->alone || (*fd < 0 && errno == ENOENT)) return 0;
  if (*fd < 0) return error_set(err, "cannot open the folder '%s': %s", path, strerror(errno));
  if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 0;
  close(*fd);
  *fd = -1;
  return error_set(err, "another ./%s is writing '%s'; wait for it, or choose another folder",
                   program_invocation_short_name, f->path.text);
}

// Removes PATH.tmp or PATH.old of a killed process.
static int remove_leftover(const Folder *f, const char *path, Error *err) {
  int lock;
  if (take_lock(f, path, &lock, err) != 0) return -1;
  const int status = remove_folder(path, NULL, f->is_ours, !f->alone, err);
  if (lock >= 0) close(lock);
  return status == 0 ? 0 : -1;
}

// ---- Looking

static int follow_link(Folder *f, const char *path, Error *err) {
  struct stat st;
  f->path = path_text("%s", path);
  if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) return 0;
  char *real = realpath(path, NULL);
  if (!real)
    return error_set(err, "'%s' is a link to something that is not there: remove it", path);
  f->path = path_text("%s", real);
  free(real);
  return 0;
}

void folder_alone(Folder *f, const char *path, FolderNames *is_ours) {
  *f = (Folder){.path = path_text("%s", path),
                .temporary = path_text("%s.tmp", path),
                .old = path_text("%s.old", path),
                .is_ours = is_ours,
                .alone = true,
                .lock = -1};
}

int folder_look(Folder *f, const char *path, FolderNames *is_ours, Error *err) {
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
  if (f->alone) return 0;
  if (take_lock(f, path, &f->lock, err) == 0 && put_mark(path, err) == 0) return 0;
  unlink(mark_path(path).text);
  rmdir(path);
  return -1;
}

// Whether PATH.old is only what a killed process left.
static bool has_old(const Folder *f) {
  return f->alone ? is_there(f->path.text) && is_there(f->old.text) : is_marked(f->old.text);
}

int folder_begin(Folder *f, Error *err) {
  const PathText parent = path_parent(f->path.text);
  f->missing = f->alone ? 0 : count_missing(parent.text);
  f->begun = (f->alone || directory_create(parent.text, err) == 0) &&
             (!has_old(f) || remove_leftover(f, f->old.text, err) == 0) &&
             make_temporary(f, err) == 0;
  if (!f->begun) remove_created(parent.text, f->missing);
  return f->begun ? 0 : -1;
}

// ---- Ending

// Somebody changed the folder meanwhile. What was made loses its mark, so that no run removes it.
static int keep_both(Folder *f, const char *changed, Error *err) {
  f->begun = false;
  unlink(mark_path(f->temporary.text).text);
  return error_set(err,
                   "'%s' was changed while ./%s was writing (see '%.200s'): it stays as it is, and "
                   "what was made is in '%s'",
                   f->path.text, program_invocation_short_name, changed, f->temporary.text);
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

// On file systems that cannot exchange two names. 1: something else has one of them.
static int exchange_by_renaming(Folder *f, Error *err) {
  Error ignored;
  int status = rename_free(f->path.text, f->old.text, err);
  if (status != 0) return status;
  status = rename_free(f->temporary.text, f->path.text, err);
  if (status != 0) path_rename(f->old.text, f->path.text, &ignored);
  return status;
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

// now: what is at `path`. It is removed once the new names are on disk; the next writer removes
// what cannot be removed now.
static int take_name(Folder *f, const FolderList *now, Error *err) {
  Error ignored;
  const char *removed = NULL;
  keep_mode(f);
  int status =
      now->there ? exchange(f, &removed, err) : rename_free(f->temporary.text, f->path.text, err);
  if (status > 0) return keep_both(f, f->path.text, err);
  if (status < 0) return -1;
  f->begun = false;
  status = directory_sync(path_parent(f->path.text).text, err);
  if (status != 0 || !removed || first_foreign(now, f->is_ours)) return status;
  if (remove_listed(removed, now, &ignored) != 0 && errno == ENOTEMPTY && !f->alone)
    status = error_set(err, "'%s' is complete, but a file came to the old one: see '%s'",
                       f->path.text, removed);
  return status;
}

// The old folder's lock keeps a second process from it until it is gone.
static int replace(Folder *f, const FolderList *now, Error *err) {
  int lock;
  if (take_lock(f, f->path.text, &lock, err) != 0) return -1;
  if (lock < 0) return keep_both(f, f->path.text, err);
  int status = put_mark(f->path.text, err);
  if (status == 0) status = take_name(f, now, err);
  close(lock);
  return status;
}

static int commit_among_others(Folder *f, const FolderList *now, Error *err) {
  const char *changed = first_difference(&f->before, now);
  const int status = changed      ? keep_both(f, changed, err)
                     : now->there ? replace(f, now, err)
                                  : take_name(f, now, err);
  unlink(mark_path(f->path.text).text);
  return status;
}

int folder_commit(Folder *f, Error *err) {
  Error ignored;
  FolderList now = {0}; // made before anything is exchanged: it needs memory
  if (directory_sync(f->temporary.text, err) != 0) return -1;
  int status = list_folder(&now, f->path.text, f->alone ? &ignored : err);
  if (f->alone) {
    now.there = is_there(f->path.text); // a link, too, or a folder that may not be read
    status = take_name(f, &now, err);
  } else if (status == 0) {
    status = commit_among_others(f, &now, err);
  }
  list_free(&now);
  return status == 0 ? 0 : -1;
}

void folder_close(Folder *f) {
  Error ignored;
  if (f->begun) {
    folder_remove(f->temporary.text, NULL, f->is_ours, &ignored);
    remove_created(path_parent(f->path.text).text, f->missing);
  }
  if (f->lock >= 0) close(f->lock);
  list_free(&f->before);
  *f = (Folder){.lock = -1};
}
