// The operating system's services besides files and memory: threads, signals, the clock.
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include "base/error.h"
#include "base/memory.h"

// ---- Threads other than the main one

// Starts a thread that gets no signals: the main thread gets them. name: for tools, at most 15
// bytes.
int thread_start(pthread_t *thread, const char *name, void *(*work)(void *), void *context,
                 Error *err);

// Has OpenMP start its threads, `threads` with this one; this thread's next parallel regions of as
// many run on them, and those get no signals. out_of_memory where the system refuses them: OpenMP
// itself would end the process.
void thread_team(int threads);

// The number of threads where no config sets it, and its reason. root: of the files with quotas, as
// in base/memory.h.
typedef struct ThreadsAsked {
  int count;
  const char *why; // "as OMP_NUM_THREADS asks"
} ThreadsAsked;
ThreadsAsked threads_asked(const char *root);
// The processors that the process may use at once: by its affinity, and by the control group.
int processors_usable(const char *root);

// "Intel(R) Xeon(R) Processor", empty where the CPU does not say.
ShortText cpu_name(void);

// ---- Standard streams

// Opens /dev/null for streams that are closed, so that no other file gets their number: reads find
// nothing, writes fail. First in main.
void streams_fill(void);

// ---- The signals that end a program, held back while files are half written: the program looks
// for them at places where it can clean up

// Blocks SIGINT, SIGTERM, SIGHUP and, which batch systems send before a job's end, SIGUSR1 and
// SIGUSR2 for this thread and those that it starts; an ignored signal, as under nohup, stays
// ignored.
// A limit on file sizes becomes an error of write.
void signals_hold(void);
bool signals_came(void); // one of them waits

// ---- Time

// Milliseconds that pass, for measuring.
static inline double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// The times of a start's parts, one after another, for a table.
enum { MAX_PHASES = 24 };

typedef struct PhaseTime {
  const char *name;
  double ms;
} PhaseTime;

// All zero but for since_ms: no phase yet.
typedef struct Phases {
  PhaseTime list[MAX_PHASES];
  int count;
  double since_ms; // now_ms() when the last one ended
} Phases;

// Ends the phase that began when the last one ended. More than MAX_PHASES are dropped.
void phase_end(Phases *p, const char *name);
// Adds inner's phases, which ran since p's last one. The rest of the time belongs to `name`.
void phases_join(Phases *p, const Phases *inner, const char *name);
double phases_sum(const Phases *p);

// now_ms() when this process began, before its libraries were loaded; now where the system does not
// say. To a hundredth of a second.
double process_began_ms(void);
