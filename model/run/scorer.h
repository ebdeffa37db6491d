// What a model scores on tasks (data/tasks/tasks.h): the sums of the log-probabilities of their
// choices, as lm-evaluation-harness and, for CORE, nanochat compute them.
//
// The tokens of a question that its choices share are in a window once: the rows of its choices
// follow, the first one's in order, the others as branches (kernels/ops.h). Questions are packed
// one after another, each a document; where the backend has no documents, all but the first of a
// window are branches, too.
#pragma once
#include <signal.h>
#include "base/json.h"
#include "data/tokenizer/tokenizer.h"
#include "model/llama.h"

// Tasks as token ids, and their sums.
typedef struct Scorer Scorer;

// positions: tokens that a choice may have with its context; a longer one is cut at its beginning.
// window: rows of a window, at least `positions`.
Scorer *scorer_create(const Tokenizer *tokenizer, int64_t vocab_size, int64_t positions,
                      int64_t window, Error *err);
void scorer_destroy(Scorer *s); // NULL is fine
// Adds the tasks that `word` names: TASK=FILES, mmlu=FILES,EXAMPLES, core=FOLDER, or a folder with
// files and folders that begin with tasks' names, where TASK-dev.jsonl has examples. FILES: a file,
// a folder, or a pattern with *.
// most: questions of each file, 0: all.
int scorer_add(Scorer *s, const char *word, int64_t most, Error *err);

// A micro-batch for scorer_run: windows of `window` rows, or as many as a question needs, about
// `rows` together.
Spec scorer_spec(const Scorer *s, bool documents, int64_t window, int64_t rows);
// Sums of all tasks, by forwards of llama's micro-batches. 1; 0: it was to stop; -1: a sum is not
// finite. shows: its progress.
int scorer_run(Scorer *s, Llama *llama, const volatile sig_atomic_t *stop, bool shows, Error *err);

// A task's result: means over its questions, and their standard errors; NAN where it has no such.
typedef struct Estimate {
  double mean, error;
} Estimate;
typedef struct TaskResult {
  const char *task, *path; // path NULL: of several files together
  int64_t questions;
  Estimate acc, acc_norm, perplexity;
  double centered; // CORE: (acc - chance) / (1 - chance)
} TaskResult;
// Result i, from 0 on: first of all files in their order, then means of tasks with several. CORE's
// mean is of `centered` alone. False: there are fewer.
bool scorer_result(const Scorer *s, int i, TaskResult *result);
// Its fields in an open object: task, file, questions, and what it has of acc, acc_stderr, ...
void scorer_fields(const TaskResult *result, JsonWriter *w);
// Result i as an object, which there is, with every question's sums.
void scorer_json(const Scorer *s, int i, JsonWriter *w);
