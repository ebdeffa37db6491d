#include "data/watch.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/os.h"
#include "base/memory.h"

enum { FIRST_LOOK_MS = 500, LOOK_SECONDS = 2, NICE = 10 };

// What is known of a file.
typedef struct Seen {
  struct timespec time; // when it was last written to, before it was read
  uint64_t checksum;    // of its tokens, where they were checked
  bool checked;
} Seen;

struct Watch {
  const TokenFile *files;
  int count;
  int64_t vocab_size;
  Seen *seen;           // [count]
  int at;               // the file that is being checked
  TokenCheck check;     // how far
  struct timespec time; // of the file when that began
  int status;           // of the last look
  pthread_t thread;
  bool running;
  sem_t stop;         // posted once, by watch_close
  atomic_bool failed; // set after `error`, which nobody writes any more
  Error error;
};

static bool is_new(const Watch *w, struct timespec time) {
  const Seen *s = &w->seen[w->at];
  return !s->checked || time.tv_sec != s->time.tv_sec || time.tv_nsec != s->time.tv_nsec;
}

// All tokens of file `at` were read: they are right, and are they those that were there before?
static int end_file(Watch *w, Error *err) {
  const TokenFile *file = &w->files[w->at];
  Seen *s = &w->seen[w->at];
  if (s->checked && s->checksum != w->check.checksum)
    return error_set(err,
                     "'%s' was changed while it was in use: its tokens are others; make or copy it "
                     "again",
                     file->path);
  s->checked = true;
  s->time = w->time;
  s->checksum = w->check.checksum;
  return 0;
}

// Checks on from where it stands. 0: all files are right, -1: one is not, 1: the time came, or the
// thread is to stop.
static int check_files(Watch *w, double until_ms, Error *err) {
  for (; w->at < w->count; w->at++) {
    const TokenFile *file = &w->files[w->at];
    const struct timespec time = tokens_time(file);
    if (!is_new(w, time)) continue;
    if (w->check.next == 0) w->time = time;
    if (tokens_check_header(file, err) != 0) return -1;
    int more;
    while ((more = tokens_check(file, w->vocab_size, &w->check, err)) == 1)
      if (now_ms() > until_ms || sem_trywait(&w->stop) == 0) return 1;
    if (more != 0 || end_file(w, err) != 0) return -1;
  }
  w->at = 0;
  return 0;
}

// Waits until the next look. False: the thread is to stop.
static bool pause_watch(Watch *w) {
  struct timespec next;
  clock_gettime(CLOCK_REALTIME, &next);
  next.tv_sec += LOOK_SECONDS;
  int status;
  while ((status = sem_timedwait(&w->stop, &next)) != 0 && errno == EINTR) continue;
  return status != 0;
}

static void check_all(void *watch) {
  Watch *w = watch;
  w->status = check_files(w, INFINITY, &w->error);
}

static void *keep_watch(void *watch) {
  Watch *w = watch;
  Error none;
  setpriority(PRIO_PROCESS, 0, NICE); // of this thread alone; a tenth of a busy processor
  do
    if (!memory_try(check_all, w, &none)) w->status = 0; // from where it stands at the next look
  while (w->status == 0 && pause_watch(w));
  if (w->status < 0) atomic_store(&w->failed, true);
  return NULL;
}

Watch *watch_open(const TokenFile *files, int count, int64_t vocab_size, Error *err) {
  Watch *w = xcalloc(1, sizeof *w);
  w->files = files;
  w->count = count;
  w->vocab_size = vocab_size;
  w->seen = xcalloc((size_t)count, sizeof *w->seen);
  sem_init(&w->stop, 0, 0);
  if (check_files(w, now_ms() + FIRST_LOOK_MS, err) >= 0)
    w->running = thread_start(&w->thread, "watch", keep_watch, w, err) == 0;
  if (w->running) return w;
  watch_close(w);
  return NULL;
}

int watch_look(const Watch *watch, Error *err) {
  if (!atomic_load(&watch->failed)) return 0;
  *err = watch->error;
  return -1;
}

void watch_close(Watch *w) {
  if (!w) return;
  sem_post(&w->stop);
  if (w->running) pthread_join(w->thread, NULL);
  sem_destroy(&w->stop);
  token_check_end(&w->check);
  free(w->seen);
  free(w);
}
