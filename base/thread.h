// Threads beside the main one.
#pragma once
#include <pthread.h>
#include "base/error.h"

// Starts one that gets no signals: those are the main thread's. name: for tools, at most 15 bytes.
int thread_start(pthread_t *thread, const char *name, void *(*work)(void *), void *context,
                 Error *err);

// Has OpenMP start its threads, `threads` with this one, on which this thread's next parallel
// regions run. -1 where the system refuses them, which OpenMP itself would not survive.
int thread_team(int threads, Error *err);
