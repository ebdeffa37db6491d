// What the log.jsonl of a run says (log.h), for --page and --compare.
#pragma once
#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

// How far a run was: after this step, with these tokens, after these seconds of training steps.
// Validation, samples and saves take no seconds here.
typedef struct HistoryPlace {
  int64_t step;
  double tokens, seconds;
} HistoryPlace;

// Numbers that are not there, or were not finite, are NAN.
typedef struct HistoryStep {
  HistoryPlace at;
  double loss, lr, grad_norm, mfu;
} HistoryStep;

typedef struct HistoryVal {
  HistoryPlace at;
  double loss, error, bits; // error: loss's standard error; bits: per byte
} HistoryVal;

typedef struct HistoryScore {
  HistoryPlace at;
  char *task; // owned
  // Accuracy, by character where the task has that; of CORE what is above chance.
  double value, error;
} HistoryScore;

typedef struct HistorySample {
  int64_t step;
  char *text; // owned
} HistorySample;

// Of a resumed run: from the step where it resumed, what it said later.
typedef struct History {
  const char *path; // as it was named; the caller's
  char *name;       // without what all paths have in common
  HistoryStep *steps;
  size_t step_count, step_room;
  HistoryVal *vals;
  size_t val_count, val_room;
  HistoryScore *scores; // of a task with several files their mean
  size_t score_count, score_room;
  HistorySample *samples;
  size_t sample_count, sample_room;
  cJSON *start, *opened; // the last such lines; NULL: none
  char *reason;          // it stopped for; NULL: it has not said so
  int64_t skipped;       // updates, as the loss or the gradient was not finite
  int64_t unreadable;    // lines
} History;

// Reads runs[which] of runs[count], which are folders or log files. An error where it has neither a
// training nor a validation line. history_close afterwards, also after an error.
int history_open(History *history, int count, char *const *runs, int which, Error *err);
void history_close(History *history); // zeros are fine

// An item of the start line, such as "config" or "steps"; NULL where it is not there.
const cJSON *history_start(const History *h, const char *name);
// The last score of this task; NULL where there is none.
const HistoryScore *history_score(const History *h, const char *task);
// The end of the run so far; zeros where nothing is known.
HistoryPlace history_end(const History *h);
