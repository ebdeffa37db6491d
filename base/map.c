// Mapped files, and what happens when one of them is cut while it is read.
#define _GNU_SOURCE // program_invocation_short_name
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

// A mutable global: a signal handler can reach nothing else. A slot is free where `data` is NULL.
enum { MOST_MAPPED = 256 };
static struct Mapped {
  const unsigned char *volatile data;
  size_t bytes;
  char *path; // owned
} mapped[MOST_MAPPED];

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

// A page of a mapping has no file behind it any more. No one can go on without it, and what is
// mapped is read before there is anything to save.
static void on_bus_error(int number, siginfo_t *info, void *context) {
  (void)context;
  const unsigned char *at = info->si_addr;
  for (const struct Mapped *m = mapped; m < mapped + MOST_MAPPED; m++) {
    if (!m->data || at < m->data || at >= m->data + m->bytes) continue;
    say(program_invocation_short_name);
    say(": '");
    say(m->path);
    say("' became shorter while it was read, or its disk failed: make or copy it again\n");
    _exit(1);
  }
  signal(number, SIG_DFL); // another's: back to where it comes once more
}

static void remember(const MappedFile *map, const char *path) {
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, NULL);
  for (struct Mapped *m = mapped; m < mapped + MOST_MAPPED; m++) {
    if (m->data) continue;
    m->bytes = map->bytes;
    m->path = xstrdup(path);
    m->data = map->data;
    break;
  }
}

int file_map(MappedFile *map, const char *path, Error *err) {
  *map = (MappedFile){NULL, 0};
  size_t size = 0;
  const int fd = file_open(path, &size, err);
  if (fd < 0) return -1;
  void *p = size > 0 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  const int why = errno;
  close(fd);
  // A checkpoint is not to be passed over for want of memory.
  if (p == MAP_FAILED && why == ENOMEM)
    out_of_memory("the system refused %s to map '%s'", size_text(size).text, path);
  if (p == MAP_FAILED) return error_set(err, "cannot map '%s': %s", path, strerror(why));
  *map = (MappedFile){p, size};
  if (p) remember(map, path);
  return 0;
}

void file_unmap(MappedFile *map) {
  for (struct Mapped *m = mapped; map->data && m < mapped + MOST_MAPPED; m++) {
    if (m->data != map->data) continue;
    m->data = NULL;
    free(m->path);
  }
  if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
  *map = (MappedFile){NULL, 0};
}
