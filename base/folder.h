// A folder that appears whole, or not at all. Its files are written into PATH.tmp, which takes the
// name PATH once all of them are on disk. What was at PATH before is then removed, if the caller
// allows that.
//
// Nothing else is removed: no file that came to PATH after folder_look, and nothing behind a link.
// PATH.tmp and PATH.old of a killed process are known by a file in them, FOLDER_MARK; without it
// they are somebody else's, and stay.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "base/error.h"
#include "base/file.h"

// In PATH.tmp while it is filled, and in what PATH was while it is replaced.
#define FOLDER_MARK ".unfinished"

typedef struct FolderFile {
  char *name; // owned
  uint64_t inode, bytes;
  struct timespec time; // of its last change
} FolderFile;

typedef struct FolderList {
  bool there;        // the folder is
  unsigned mode;     // its permissions
  FolderFile *files; // [count], by name; without FOLDER_MARK
  size_t count;
} FolderList;

typedef struct Folder {
  PathText path; // if a link was named: the folder that it points to
  PathText temporary, old;
  bool (*is_ours)(const char *name); // the files that the caller writes
  FolderList before;                 // at `path`, when it was looked at
  int missing;                       // folders above it that were made
  int lock;                          // on `temporary`, against a second process; -1: none
  bool begun;                        // `temporary` is there, and folder_close removes it
} Folder;

// Looks at `path`, and writes nothing. is_ours: whether the caller writes files of this name. An
// error where `path` is a file, a link to nothing, or was lost when a process was killed. What may
// be in folder->before is the caller's to say, before folder_begin. folder_close afterwards, also
// after an error.
int folder_look(Folder *folder, const char *path, bool (*is_ours)(const char *name), Error *err);
// Makes folder->temporary, empty, and removes what a killed process left. An error where another
// process is writing there, or somebody else's files are in the way.
int folder_begin(Folder *folder, Error *err);
// Syncs it and gives it its name, with the permissions of the folder that was there. An error where
// `path` is not as folder_look found it: then both folders stay.
int folder_commit(Folder *folder, Error *err);
// Frees the memory. Without a commit, also removes folder->temporary and the folders above it that
// were made.
void folder_close(Folder *folder);
