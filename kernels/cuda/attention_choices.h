// Which of cuDNN's ways to run attention was the fastest, remembered from one start to the next: a
// file of base/choices.h with a line a choice. It holds for one GPU, driver and cuDNN. Needs no
// CUDA.
#pragma once
#include <stdbool.h>
#include "kernels/cuda/attention_graph.h"

typedef enum AttentionDirection { ATTENTION_FORWARD, ATTENTION_BACKWARD } AttentionDirection;

// What was to be chosen: as in AttentionOptions.
typedef struct AttentionQuestion {
  AttentionShape shape;
  AttentionDirection direction;
  bool deterministic, both_forms;
  bool first; // ATTENTION_FIRST instead of ATTENTION_FASTEST
} AttentionQuestion;

typedef struct AttentionChoice {
  AttentionQuestion question;
  bool deterministic;     // of a backward: its form
  int number;             // of those that cuDNN offers for the form, from 0
  int64_t engine, kernel; // cuDNN's ids
  double milliseconds;    // of one call; 0: it was not timed, and nothing is remembered
  double other_form;      // likewise, of the fastest of the other form; 0: not timed
} AttentionChoice;

typedef struct AttentionChoices {
  char *path, *first; // of the file, NULL: there is none; its first line
  AttentionChoice *list;
  int count;
  bool changed; // since the file was read or written
} AttentionChoices;

// Reads the file; one that cannot be read or trusted is an empty one. path may be NULL; `first`
// ends with a newline. Both are copied.
void attention_choices_open(AttentionChoices *all, const char *path, const char *first);
void attention_choices_close(AttentionChoices *all); // zeros are fine

// NULL where nothing is known. Lives until the next choice is kept.
const AttentionChoice *attention_choices_find(const AttentionChoices *all,
                                              const AttentionQuestion *question);
// Takes the place of what was known. One that was not timed, or that cannot answer its question, is
// not kept: what is chosen where equal bits are asked for never follows from a file.
void attention_choices_keep(AttentionChoices *all, const AttentionChoice *choice);
// Writes what has changed. A file that cannot be written is no failure: the next start times anew.
void attention_choices_save(AttentionChoices *all);
