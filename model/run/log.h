// A run's progress lines on stdout, and the same as JSON lines in RUN/log.jsonl. Each record has a
// "kind":
//   start  step, steps, parameters, tokens_per_step, flops_per_step (the model's), backend, device
//          (hardware and libraries), costs (of equal bits, or ""), data (an object: train_tokens,
//          train_files, val_tokens, train_counted and val_counted: tokens that count as targets in
//          an epoch, epochs that the whole run reads; where documents are packed also documents,
//          cut: of these longer than a sequence, padding: a share; where data are mixed also
//          sources, a list of {path, share of the tokens that count, weight: the share of the
//          sequences that follows, tokens, counted, sequences an epoch}), tokenizer (null where it
//          is not known), memory (an object of bytes: planned, free, host_copy for
//          saves, and items, a list of {name, shape, bytes}), config (an object: all keys),
//          resumed, changes (of the configuration, where it was resumed)
//   opened step, ms (from the command to the end of the first step), phases (an object of ms, by
//          name: they follow one another and are the whole), memory_taken (bytes of the GPU by the
//          driver's count; 0: the backend does not count)
//   train  step, loss, lr, grad_norm, ms, tokens_per_s, counted (tokens with a target, where that
//          is not all), mfu (null where the peak is not known), applied; in FP8 also saturated:
//          tensors with values beyond their scale's reach
//   val    step, loss, stderr (its standard error as the mean of the whole split: of the choice of
//          windows; 0 where all were read, null where one batch was), bits_per_byte (null where the
//          tokenizer is not known), tokens
//   score  step, task, file (null: of several files together), questions, and where the task has
//          such a result acc, acc_stderr, acc_norm, acc_norm_stderr, perplexity, perplexity_stderr,
//          centered
//   sample step, text
//   save   step, path, ms (until it was in place), waited_ms (of them training stood still)
//   sources  step, shares: a list, the share of all sequences so far that each source of
//          data.train gave; before each save, where data are mixed
//   stop   step, reason
// Numbers that are not finite are null. A resumed run appends; a step that is repeated has its
// later record count.
//
// A line is in the file as a whole or not at all: a line that a crash tore is cut off when the run
// resumes, and lines that a full disk refuses wait for the next one. Where log.jsonl was moved away
// or removed, as a rotation of logs does, the next line begins a new one. All lines are synced
// before a checkpoint takes its place, after it, and at the end.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "data/loader.h"
#include "model/run/checkpoint/checkpoint.h"
#include "model/run/scorer.h"
#include "model/tensors.h"

typedef struct Run Run; // model/run/run.h

typedef struct RunLog {
  bool opened, abandoned;
  int fd;
  PathText path;                // it is opened by
  PathText name;                // for messages
  off_t bytes;                  // of the lines in the file
  JsonWriter lines;             // that are not in the file yet
  bool failed;                  // the last write did, and that was said
  bool lost;                    // lines were dropped, as too many waited
  bool torn;                    // the last write left a part of a line
  int64_t steps;                // of the whole run, for "step/total"
  double ms_mean;               // running mean of a step's time, for the time left
  double opened_ms, printed_ms; // when the log was opened, and the last progress line printed
} RunLog;

typedef struct StepLine {
  int64_t step; // 1-based: steps done
  StepResult result;
  double lr;
  int64_t tokens, counted; // in the step, and those with a target
  double mfu;              // fraction of peak, NAN where not known
  bool fp8;                // of whose peak mfu is a part, and where tensors may be saturated
} StepLine;

typedef struct ValLine {
  int64_t step;
  double loss, error; // nats a token, and its standard error: 0 of the whole split, NAN: not known
  double bits_per_byte; // NAN where not known
  int64_t tokens;
  bool whole; // of all windows of the split
} ValLine;

// run_dir: to open the file in; name: the same folder as the user knows it. A file that is a link
// is an error.
int log_open(RunLog *log, const char *run_dir, const char *name, int64_t steps, Error *err);
void log_close(RunLog *log); // zeros are fine
// Writes nothing any more: the file may be another run's.
void log_abandon(RunLog *log);
// Writes the waiting lines, and syncs the file.
void log_sync(RunLog *log);
// -1 and a message where lines of the run are not in the file.
int log_complete(const RunLog *log, Error *err);
// Whether the run in this folder ended at this step, with its validation and sample.
bool log_has_end(const char *run_dir, int64_t step);
void log_start(Run *run); // once all is open
void log_opened(RunLog *log, int64_t step, const Phases *phases, size_t memory_taken);
// Prints the progress line of the first and the last step, of one that was skipped, and otherwise
// once a second, after a minute once in ten.
void log_train(RunLog *log, const StepLine *line);
void log_val(RunLog *log, const ValLine *line, bool best);
void log_score(RunLog *log, int64_t step, const TaskResult *result);
void log_sample(RunLog *log, int64_t step, const char *text, size_t bytes);
void log_save(RunLog *log, int64_t step, const char *path, double ms, double waited_ms);
// A run resumes from this checkpoint: if it was killed before it could say so, the line comes now.
void log_saved_before(RunLog *log, int64_t step, const char *path);
// Of the sequences so far, the share that was drawn of each source of a mixture.
void log_sources(RunLog *log, const TrainState *state);
void log_stop(RunLog *log, int64_t step, const char *reason);

// "3.2 s", "1 min 10 s", "2 h 05 min", "3 d 04 h".
ShortText time_text(double seconds);
// "950", "21.8k", "2.75M", "1.24B".
ShortText count_text(double count);
// "2.75M parameters: 4 layers, hidden 192, ...".
ShortText model_text(const ModelConfig *model);
