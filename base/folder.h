// A folder that appears whole, or not at all. Its files are written into PATH.tmp, which takes the
// name PATH once all of them are on disk. If something has that name, both change places in one
// step, and then the old folder is removed. A file system that cannot do this keeps the old folder
// as PATH.old; a process killed at that moment leaves PATH.old and no PATH.
//
// Only files that the caller writes are removed, and nothing behind a link: a folder with anything
// else in it stays.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "base/error.h"
#include "base/file.h"

// In PATH.tmp while it is filled, and in what PATH was while it is replaced: without this file the
// PATH.tmp and PATH.old of folder_look are somebody else's, and stay.
#define FOLDER_MARK ".unfinished"

typedef bool FolderNames(const char *name); // whether the caller writes files of this name

typedef struct FolderFile {
  char *name; // owned
  uint64_t inode, bytes;
  struct timespec time; // of its last change
  bool regular;         // a file, not a link or a folder
} FolderFile;

typedef struct FolderList {
  bool there;        // the folder is
  unsigned mode;     // its permissions
  FolderFile *files; // [count], by name; without FOLDER_MARK
  size_t count;
} FolderList;

typedef struct Folder {
  PathText path; // of folder_look, if a link was named: the folder that it points to
  PathText temporary, old;
  FolderNames *is_ours;
  FolderList before; // at `path`, when it was looked at
  int missing;       // folders above it that were made
  int lock;          // on `temporary`, against a second process; -1: none
  bool alone;        // nobody else writes there: no marks and locks
  bool begun;        // `temporary` is there, and folder_close removes it
} Folder;

// For a folder inside another one, which exists and which the caller has locked. folder_commit then
// replaces whatever has the name `path`, even a link. Writes nothing. folder_close afterwards.
void folder_alone(Folder *folder, const char *path, FolderNames *is_ours);
// For a folder where others may write. Looks at `path`, and writes nothing. An error where `path`
// is a file, a link to nothing, or was lost when a process was killed. The caller decides, before
// folder_begin, whether it may replace folder->before. folder_close afterwards, also after an
// error.
int folder_look(Folder *folder, const char *path, FolderNames *is_ours, Error *err);
// Makes folder->temporary, empty, and removes what a killed process left. An error where another
// process is writing there, or somebody else's files are in the way.
int folder_begin(Folder *folder, Error *err);
// Syncs it and gives it its name. After folder_look it gets the permissions of the folder that was
// there, and an error where `path` has changed since leaves both.
int folder_commit(Folder *folder, Error *err);
// Frees the memory. Without a commit, also removes folder->temporary and the folders above it that
// were made.
void folder_close(Folder *folder);

// Removes a folder of which the caller wrote every file. First gives it the name `last`, so that no
// half of it has its own name; NULL: none. Fine if it is not there. 1 and the reason: it is a link
// or holds more, and stays. -1: the system refused.
int folder_remove(const char *path, const char *last, FolderNames *is_ours, Error *err);
