#define _GNU_SOURCE // pthread_setname_np
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

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
  pthread_setname_np(*thread, name); // a name that is refused is no loss
  return 0;
}

static void *wait_for_lock(void *lock) {
  pthread_mutex_lock(lock);
  pthread_mutex_unlock(lock);
  return NULL;
}

// As many threads are tried first: all are there at once, since none ends before the last is there.
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
  {}
}
