#include "base/signals.h"

#include <signal.h>
#include <stddef.h>

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
