#define _GNU_SOURCE // pthread_setname_np
#include "base/thread.h"

#include <signal.h>
#include <string.h>

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
