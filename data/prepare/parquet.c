#define _GNU_SOURCE // pipe2, F_SETPIPE_SZ
#include "data/prepare/parquet.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/embed.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "data/prepare/stream.h"

EMBED(parquet_to_jsonl, "scripts/parquet_to_jsonl.py");

// One process converts some 200 MB/s, as much as four cores or more encode.
enum { MIN_PROCESSES = 2, MAX_PROCESSES = 8, CORES_OF_PROCESS = 4, PIPE_BYTES = 1 << 20 };

typedef struct Process {
  pid_t id; // 0: it is not there
  int pipe; // -1: none
} Process;

struct ParquetReader {
  const char *const *files;
  const char *python;
  size_t file; // that is read
  Process processes[MAX_PROCESSES];
  int count, turn; // the next batch comes from processes[turn]
  int64_t left;    // bytes of the batch
  uint64_t position;
};

// ---- Processes

static int start(ParquetReader *p, int which, char **arguments, Error *err) {
  Process *process = &p->processes[which];
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error_set(err, "no pipe: %s", errno_text());
  process->pipe = ends[0];
  fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES); // where it is refused, a pipe holds less
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t all; // Ctrl-C is for this process, which ends the others
  sigfillset(&all);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  int failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  if (!failed) failed = posix_spawnattr_setsigmask(&attributes, &all);
  if (!failed)
    failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!failed) failed = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (!failed)
    failed = posix_spawnp(&process->id, p->python, &actions, &attributes, arguments, environ);
  if (failed) process->id = 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (!failed) return 0;
  return error_set(err,
                   "'%s' is read by Python and its package pyarrow, but %s cannot be started: %s; "
                   "install both, or name the Python that has them in PYTHON",
                   p->files[0], p->python, strerror(failed));
}

ParquetReader *parquet_open(const char *const *files, size_t count, bool whole, const char *column,
                            Error *err) {
  ParquetReader *p = xcalloc(1, sizeof *p);
  const char *python = getenv("PYTHON");
  const bool chat = whole && column;
  p->files = files;
  p->python = python && *python ? python : "python3";
  p->count = (int)max_i64(MIN_PROCESSES, processors_usable("") / CORES_OF_PROCESS);
  p->count = (int)min_i64(p->count, MAX_PROCESSES);
  for (int i = 0; i < MAX_PROCESSES; i++) p->processes[i].pipe = -1;
  char **arguments = xcalloc(count + 9, sizeof *arguments);
  char *field = xasprintf("--field=%s", column ? column : "");
  int status = 0;
  for (int i = 0; status == 0 && i < p->count; i++) {
    char *part = xasprintf("--part=%d/%d", i, p->count);
    const char *const first[] = {
        p->python, "-c", parquet_to_jsonl, part, chat ? "--chat" : whole ? "--all" : field, "--"};
    memcpy(arguments, first, sizeof first);
    memcpy(arguments + sizeof first / sizeof *first, files, count * sizeof *files);
    status = start(p, i, arguments, err);
    free(part);
  }
  free(field);
  free(arguments);
  if (status == 0) return p;
  parquet_close(p);
  return NULL;
}

void parquet_close(ParquetReader *p) {
  if (!p) return;
  for (int i = 0; i < p->count; i++) {
    const Process *process = &p->processes[i];
    if (process->pipe >= 0) close(process->pipe);
    if (process->id > 0) kill(process->id, SIGKILL);
    if (process->id > 0) waitpid(process->id, NULL, 0);
  }
  free(p);
}

// ---- What they write

// A process has closed its pipe before the end of a batch.
static int ended_early(ParquetReader *p, Error *err) {
  Process *process = &p->processes[p->turn];
  int status = 0;
  const pid_t ended = waitpid(process->id, &status, 0);
  process->id = 0;
  error_set(err, "'%s' was not read to its end: %s, which reads it, ", p->files[p->file],
            p->python);
  if (ended > 0 && WIFSIGNALED(status))
    return error_append(err, "was ended by signal %d (%s)", WTERMSIG(status),
                        strsignal(WTERMSIG(status)));
  return error_append(err, "ended with status %d", WEXITSTATUS(status));
}

// Some of the next bytes of the batch.
static ssize_t take_some(ParquetReader *p, void *data, size_t bytes, Error *err) {
  const ssize_t n = stream_wait(p->processes[p->turn].pipe, p->files[p->file], data, bytes, err);
  return n == 0 ? ended_early(p, err) : n;
}

static int take(ParquetReader *p, void *data, size_t bytes, Error *err) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = take_some(p, (char *)data + done, bytes - done, err);
    if (n < 0) return -1;
    done += (size_t)n;
  }
  return 0;
}

static int take_error(ParquetReader *p, int64_t bytes, Error *err) {
  char text[sizeof err->text] = "";
  if (take(p, text, (size_t)min_i64(bytes, sizeof text - 1), err) != 0) return -1;
  return error_set(err, "%s", text);
}

ssize_t parquet_read(ParquetReader *p, char *buffer, size_t bytes, Error *err) {
  if (p->left == 0) { // in front of a batch stand its bytes, and how far it reaches
    int64_t head[2];
    if (take(p, head, sizeof head, err) != 0) return -1;
    if (head[0] < 0) return take_error(p, -head[0], err);
    p->left = head[0];
    p->position = (uint64_t)head[1];
  }
  const bool ends = p->left == 0;
  ssize_t n = 0;
  if (!ends) n = take_some(p, buffer, (size_t)min_i64(p->left, (int64_t)bytes), err);
  if (n < 0) return -1;
  p->left -= n;
  if (p->left == 0) p->turn = (p->turn + 1) % p->count;
  p->file += ends;
  return n;
}

uint64_t parquet_position(const ParquetReader *p) {
  return p->position;
}
