// Signals, standard streams and the libraries' settings of a ./train process.
#pragma once
#include <signal.h>
#include <stdbool.h>

// First in main. Opens standard streams that are closed (base/os.h). Starts the program over where
// OpenMP needs another setting.
void process_start(char **argv);

// Why the process is to stop; the last two may be followed by signals that would kill.
enum { STOP_BY_SIGNAL = 1, STOP_BY_NOTICE, STOP_BY_TIME };
// SIGINT and SIGTERM ask to stop; a second one kills. The value is 0 until one came.
const volatile sig_atomic_t *process_catch_signals(void);
// Also SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and SIGALRM, which never kill. SIGPIPE is ignored, so that
// a run outlives its console, and so is SIGXFSZ: a file's limit is the error of a write.
// has_time_limit: the kernel's SIGALRM is process_alarm's.
const volatile sig_atomic_t *process_catch_signals_of_training(bool has_time_limit);
// STOP_BY_TIME comes after `ms` milliseconds, at once if ms is not above 0.
void process_alarm(double ms);
