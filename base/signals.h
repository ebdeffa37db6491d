// The signals that end a program, held back while files are half written: the program looks for
// them at places where it can clean up.
#pragma once
#include <stdbool.h>

// Blocks SIGINT, SIGTERM, SIGHUP and, which batch systems send before a job's end, SIGUSR1 and
// SIGUSR2 for this thread and those that it starts; one that is ignored, as under nohup, stays so.
// A limit on file sizes becomes an error of write.
void signals_hold(void);
bool signals_came(void); // one of them waits
