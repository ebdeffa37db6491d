// Faults at system calls, and memory that is refused. The calls that change files and those that
// allocate are wrapped by the linker (WRAP_FAULTS in tests.mk) and counted.
#pragma once
#include "tests/support/test.h"

typedef enum Fault {
  NO_FAULT,
  FAIL_EIO,
  FAIL_ENOSPC,
  FAIL_SHORT,
  DIE,
  DIE_SHORT,
  FAULTS,        // the number of those above
  NO_MEMORY,     // in threads beside the main one: from allocation `at` on
  NO_MEMORY_ONCE // in the main thread: allocation `at` alone
} Fault;
extern const char *const fault_names[FAULTS];

enum { EXIT_KILLED = 77 }; // of a process that a fault ended

// From a call that fails to the next that does: each one, and in the first tier every seventh.
static inline int fault_stride(void) {
  return first_tier() ? 7 : 1;
}

// What the wrapped calls do. Global because their signatures are the system's.
extern struct Injected {
  Fault fault;
  int at;             // the call that fails, from 1
  int calls;          // so far
  const char *struck; // the name of the call that failed; NULL: none did
  bool disk_full;     // a short write happened
  bool no_exchange;   // renameat2 as on file systems without it
  bool no_links;      // symlink likewise
  bool always_short;  // every write takes half of what it is given
  bool log;
  void (*before_sync)(void); // called before each, by the thread that asks for it; NULL: nothing
  char events[2048];         // where log: "sync NAME" and "rename FROM TO", a line each
} injected;
