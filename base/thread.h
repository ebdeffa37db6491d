// Threads beside the main one.
#pragma once
#include <pthread.h>
#include "base/error.h"

// Starts one that gets no signals: those are the main thread's. name: for tools, at most 15 bytes.
int thread_start(pthread_t *thread, const char *name, void *(*work)(void *), void *context,
                 Error *err);

// Has OpenMP start its threads, `threads` with this one, which this thread's next parallel regions
// of as many run on. out_of_memory where the system refuses them: OpenMP itself would end the
// process.
void thread_team(int threads);
