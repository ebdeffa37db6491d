#define _GNU_SOURCE // pthread_setname_np, CLOCK_BOOTTIME
#include "base/os.h"

#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/memory.h"

// ---- Threads

int thread_start(pthread_t *thread, const char *name, void *(*work)(void *), void *context,
                 Error *err) {
  sigset_t all, before;
  sigfillset(&all);
  int failed = pthread_sigmask(SIG_SETMASK, &all, &before); // a thread starts with its maker's mask
  if (failed == 0) {
    failed = pthread_create(thread, NULL, work, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  if (failed) return error_set(err, "no thread can be started: %s", strerror(failed));
  pthread_setname_np(*thread, name); // a refused name does no harm
  return 0;
}

static void *wait_for_lock(void *lock) {
  pthread_mutex_lock(lock);
  pthread_mutex_unlock(lock);
  return NULL;
}

// As many threads are tried first: all run at once, since none ends before the last has started.
void thread_team(int threads) {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_t *tried = xmalloc((size_t)threads * sizeof *tried);
  int count = 0;
  Error err;
  pthread_mutex_lock(&lock);
  while (count < threads - 1 &&
         thread_start(&tried[count], "trial", wait_for_lock, &lock, &err) == 0)
    count++;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < count; i++) pthread_join(tried[i], NULL);
  free(tried);
  if (count < threads - 1)
    out_of_memory("of %d threads the system gives %d; set OMP_NUM_THREADS to fewer", threads,
                  count + 1);
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() > 0) {
    sigset_t all; // the main thread gets them, on a stack of their own
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
  }
}

// OpenMP knows which processors the process may run on, but nothing of a quota, under which more
// threads only wait for one another.
static ThreadsAsked threads_of_machine(const char *root) {
  const int processors = omp_get_num_procs();
  const double quota = ceil(control_group_cpus(root));
  if (quota < processors) return (ThreadsAsked){(int)quota, "as the control group's quota allows"};
  return (ThreadsAsked){processors, "one for each processor"};
}

int processors_usable(const char *root) {
  return threads_of_machine(root).count;
}

// OpenMP itself may have been set to another number by a backend before this one.
ThreadsAsked threads_asked(const char *root) {
  enum { MOST_THREADS = 4096 };
  const char *asked = getenv("OMP_NUM_THREADS");
  const long threads = asked ? strtol(asked, NULL, 10) : 0;
  if (threads > 0 && threads <= MOST_THREADS)
    return (ThreadsAsked){(int)threads, "as OMP_NUM_THREADS asks"};
  return threads_of_machine(root);
}

ShortText cpu_name(void) {
  ShortText name = {""};
#ifdef __x86_64__
  uint32_t words[12];
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t *w = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, w, w + 1, w + 2, w + 3)) return name;
  }
  memcpy(name.text, words, sizeof words);
#endif
  return name;
}

// ---- Standard streams

void streams_fill(void) {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
  if (fd >= 0) close(fd);
}

// ---- Signals

static const int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
enum { STOPPING = sizeof stopping / sizeof *stopping };

void signals_hold(void) {
  sigset_t held;
  sigemptyset(&held);
  for (size_t i = 0; i < STOPPING; i++) {
    struct sigaction action;
    if (sigaction(stopping[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
      sigaddset(&held, stopping[i]);
  }
  sigprocmask(SIG_BLOCK, &held, NULL);
  signal(SIGXFSZ, SIG_IGN);
}

bool signals_came(void) {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  for (size_t i = 0; i < STOPPING; i++)
    if (sigismember(&pending, stopping[i]) == 1) return true;
  return false;
}

// ---- Time

static void add(Phases *p, const char *name, double ms) {
  if (p->count < MAX_PHASES) p->list[p->count++] = (PhaseTime){name, ms};
}

void phase_end(Phases *p, const char *name) {
  const double now = now_ms();
  if (p->count == MAX_PHASES) return;
  add(p, name, now - p->since_ms);
  p->since_ms = now;
}

void phases_join(Phases *p, const Phases *inner, const char *name) {
  const double known = phases_sum(inner);
  for (int i = 0; i < inner->count; i++) add(p, inner->list[i].name, inner->list[i].ms);
  p->since_ms += known;
  phase_end(p, name);
}

double phases_sum(const Phases *p) {
  double ms = 0;
  for (int i = 0; i < p->count; i++) ms += p->list[i].ms;
  return ms;
}

// /proc/self/stat: the 22nd number is the start in clock ticks since the machine's. The second, in
// parentheses, is the program's name, which may hold spaces.
double process_began_ms(void) {
  char text[1024];
  unsigned long long ticks;
  struct timespec t;
  FILE *in = fopen("/proc/self/stat", "r");
  const size_t bytes = in ? fread(text, 1, sizeof text - 1, in) : 0;
  if (in) fclose(in);
  text[bytes] = '\0';
  const char *rest = strrchr(text, ')');
  const double now = now_ms(), per_second = (double)sysconf(_SC_CLK_TCK);
  if (!rest || per_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &t) != 0 ||
      sscanf(rest + 1,
             " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &ticks) != 1)
    return now;
  const double age =
      (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6 - (double)ticks / per_second * 1e3;
  return age > 0 ? now - age : now;
}
