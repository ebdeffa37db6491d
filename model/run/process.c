// Signals, standard streams and the libraries' settings of a ./train process.
#define _GNU_SOURCE // program_invocation_short_name
#include "model/run/run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/os.h"

// ---- The start

// OpenMP's threads wait for work by spinning. Asleep they are better on two cores (41 ms for 58,
// configs/shakespeare-cpu.json alone on the machine) and much better beside other programs (94 ms
// for 1900 beside two compilers). The library reads its policy before main, so it is set by
// starting over; a user's own setting stays.
static void start_over_with_threads_asleep(char **argv) {
  if (!getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT") &&
      setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
    execv("/proc/self/exe", argv);                   // no /proc: stay as it is
  prctl(PR_SET_NAME, program_invocation_short_name); // "exe" where the program started over
}

void process_start(char **argv) {
  streams_fill();
  start_over_with_threads_asleep(argv);
}

// ---- Signals

// A mutable global: a signal handler can reach nothing else.
static volatile sig_atomic_t stop_requested = 0;

// The second one kills.
static void on_signal(int number) {
  if (stop_requested == STOP_BY_SIGNAL) {
    signal(number, SIG_DFL);
    raise(number);
  }
  stop_requested = STOP_BY_SIGNAL;
}

// Never kills: a closing terminal may send several SIGHUPs, and a batch system its signal well
// before SIGTERM.
static void on_notice(int number) {
  (void)number;
  if (!stop_requested) stop_requested = STOP_BY_NOTICE;
}

// The kernel's SIGALRM is process_alarm's; anybody else's is a notice.
static void on_alarm(int number, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_code != SI_KERNEL)
    on_notice(number);
  else if (!stop_requested)
    stop_requested = STOP_BY_TIME;
}

static void catch_signal(int number, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, NULL);
}

const volatile sig_atomic_t *process_catch_signals(void) {
  // oneDNN's code for AVX-512 keeps values below the stack pointer, where a handler's frame would
  // overwrite them. So handlers have a stack of their own, which lives as long as the process.
  static char room[64 << 10];
  const stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
  sigaltstack(&stack, NULL);
  catch_signal(SIGINT, on_signal, 0);
  catch_signal(SIGTERM, on_signal, 0);
  return &stop_requested;
}

const volatile sig_atomic_t *process_catch_signals_of_training(bool has_time_limit) {
  static const int notices[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM};
  for (size_t i = 0; i < sizeof notices / sizeof *notices; i++) {
    struct sigaction before; // a signal that is ignored, as by nohup, stays so
    if (sigaction(notices[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      catch_signal(notices[i], on_notice, SA_RESTART);
  }
  struct sigaction alarm = {.sa_sigaction = on_alarm,
                            .sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&alarm.sa_mask);
  if (has_time_limit) sigaction(SIGALRM, &alarm, NULL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); // a file's limit is the error of a write
  return process_catch_signals();
}

void process_alarm(double ms) {
  const double left_ms = fmax(1, ms);
  const struct itimerval alarm = {.it_value = {.tv_sec = (time_t)(left_ms / 1000),
                                               .tv_usec = (suseconds_t)fmod(left_ms, 1000) * 1000}};
  setitimer(ITIMER_REAL, &alarm, NULL);
}
