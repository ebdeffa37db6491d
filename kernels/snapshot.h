// Copies of a backend's state on the host, made beside the operations that follow: what a
// checkpoint is written from while training goes on.
#pragma once
#include <stddef.h>
#include "base/error.h"

typedef struct Backend Backend;

// A piece of the backend's memory, and where on the host its copy goes.
typedef struct SnapshotPiece {
  void *to_host;
  const void *from;
  size_t bytes;
} SnapshotPiece;

// Comes once, before the first step, and takes the memory and the threads that copies need.
typedef int SnapshotOpen(Backend *be, Error *err);
// Starts to copy list[count], once all is done that was asked for earlier. The list and what is
// copied stay as they are until SnapshotWait has returned: an update comes after it.
typedef void SnapshotBegin(Backend *be, const SnapshotPiece *list, int count);
// Waits until all is copied. Returns the ms in which the backend had nothing else to do.
typedef double SnapshotWait(Backend *be);
