// How long the parts of a start take, one after another, for a table of where the time went.
#pragma once

enum { MAX_PHASES = 24 };

typedef struct PhaseTime {
  const char *name;
  double ms;
} PhaseTime;

// Zeros, but for since_ms, are none yet.
typedef struct Phases {
  PhaseTime list[MAX_PHASES];
  int count;
  double since_ms; // now_ms() when the last one ended
} Phases;

// Ends what began when the last one ended. Past MAX_PHASES nothing is kept any more.
void phase_end(Phases *p, const char *name);
// Takes over what took place since p's last one. The rest of the time until now belongs to `name`.
void phases_join(Phases *p, const Phases *inner, const char *name);
double phases_sum(const Phases *p);

// now_ms() when this process began, before its libraries were loaded; now where the system does not
// say. To a hundredth of a second.
double process_began_ms(void);
