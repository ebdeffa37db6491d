// A training run: everything train.c's loop needs around the model's own steps.
#pragma once
#include <signal.h>
#include "data/loader.h"
#include "model/run/checkpoint/checkpoint.h"
#include "model/run/checkpoint/lock.h"
#include "model/generate.h"
#include "model/run/backend.h"
#include "model/run/log.h"
#include "model/run/scorer.h"
#include "model/run/token_text.h"

// A step that was launched and whose result was not read yet.
typedef struct PendingStep {
  double learning_rate;
  Draws drawn;     // the loader's, after the step's batches
  int64_t counted; // tokens with a target
  double flops;    // of the model
} PendingStep;

typedef struct SavesPlan {
  bool background; // training continues during a save
  size_t bytes;    // of the copy on the host that this needs; 0: the config does not ask for it
  size_t left;     // bytes that the host has free
} SavesPlan;

// The best validation of a run, as TrainState has it.
typedef struct BestLoss {
  double loss;
  int64_t step;
} BestLoss;

// Checkpoints of output.dir that are of later steps than the one that the run resumes from.
typedef struct LaterSteps {
  int count;
  int64_t last;
  bool best; // `best` names one of them
} LaterSteps;

// The windows of the validation split that a run reads.
//
// The same windows in every validation of a run and in every process. Where not all are read, they
// are spread evenly over the split, and batch i has every `batches`-th of them from the i-th on. So
// each batch is an even sample of the split by itself (interpenetrating samples: Mahalanobis, J. R.
// Stat. Soc. 1946), and the spread of the batches' means says how much a mean depends on the choice
// of the windows. Texts of one kind that stand together do not change that.
typedef struct ValWindows {
  int64_t split;   // windows in the split, at least 1
  int64_t read;    // of them
  int64_t batch;   // windows in a batch; fewer in the last one where all of the split is read
  int64_t batches; // in a validation
} ValWindows;

// What it learns from and is validated on.
typedef struct Inputs {
  Loader *train;
  Loader *val; // NULL: no validation
  ValWindows windows;
  int64_t val_bytes;    // of the text that the windows predict; -1 before a validation counted them
  Tokenizer *tokenizer; // NULL: none is known
  Scorer *scorer;       // of the tasks that validations score; NULL: there are none
  Batch *batches;       // [gradient_accumulation]: the step's
} Inputs;

// What it starts from.
typedef struct Start {
  Checkpoint from; // until it is loaded; path "": random weights
  bool resumed;
  char *changes;    // keys that differ from the checkpoint's; NULL where there is none
  bool lr_changed;  // with them the schedule has another rate at this step
  bool val_changed; // validation reads other windows, so the best loss was forgotten
  LaterSteps later; // checkpoints in output.dir that the run will replace
  ShortText was_on; // the checkpoint's backend, where it is another; else empty
} Start;

// The steps of this process.
typedef struct RunSteps {
  PendingStep pending[MAX_RESULTS]; // a ring
  int64_t asked, booked;
  int64_t paused;        // the step that was validated, sampled and saved last; -1: none
  int saturated_first;   // FP8, last step: the first tensor with values beyond its scale, or -1
  int64_t saturated_row; // how many steps in a row it is that
  bool profiling;        // the profilers' window is open
} RunSteps;

// Its folder and its saves.
typedef struct Saves {
  RunLock lock;     // on output.dir, and the folder itself
  double looked_ms; // when run_check_folder last looked
  Export export;    // the checkpoints' other files
  SavesPlan plan;
  BackgroundSave *background; // NULL: training waits for a save
  double longest_ms;          // 0 before the first
  int64_t step;               // of the newest checkpoint, -1: none yet
  PathText path;              // its folder
  Error remarks;              // about that save, which were printed
  bool best_is_new;           // state.best_val_loss is not in that checkpoint
  BestLoss best_saved;        // of the newest checkpoint
  BestLoss best_saving;       // of the save under way
} Saves;

struct Run {
  Config config;
  // Not 0 once the user asked the run to stop. Validation and sampling look at it between batches
  // and tokens.
  const volatile sig_atomic_t *stop;
  double deadline_ms; // now_ms() that train.max_minutes ends at
  bool finished;      // found at its end: nothing but the lock, the data and `saves` is open
  bool done;          // ended, by its last step or because it was asked to stop
  bool left_out;      // a signal prevented the last step's validation or sample
  Phases phases;      // of this process until its first step was booked
  Inputs inputs;
  Start start;
  Backend *be;
  Llama llama;
  Generator *generator; // NULL: no samples
  TrainState state;     // after the last booked step
  RunSteps steps;
  double last_val_loss; // of this process; NAN: none
  Saves saves;
  RunLog log;
};

// Checks and opens everything: data, backend, memory, weights (random, from init_from, or resumed),
// log. Prints the start-up table, at most twelve lines, once the memory is allocated; before it a
// line if train.resume=auto found no checkpoint. A run that has already ended is `finished`, and
// prints nothing. On an error nothing stays open, and nothing was written.
int run_open(Run *run, const Config *config, const volatile sig_atomic_t *stop, Error *err);
void run_close(Run *run);

// For run_open: what the run starts from, checked against its configuration, data and tokenizer.
// The folder's newest checkpoint that can be read, train.init_from, or random weights.
int run_find_start(Run *run, Error *err);
// For run_open: the start-up table.
void run_print_start(const Run *run);
// For that table and --plan. Prints how long warm-up and decay are, where the configuration has
// them longer than the run; warns of more CPU threads than processors; and, unless the run is
// resumed, of each key that is far from configs/RECIPE.md.
void recipe_print(const Config *config, bool gpu, bool resumed);

// What a run prints at its end: the model, its last and its best validation, and the command that
// generates text or resumes. path, overrides: its command line. The second is for a `finished` run.
void run_print_end(const Run *run, const char *path, int override_count, char *const *overrides);
void run_print_finished(const Run *run);

// For run_open: the tokenizer of a run. It is the one that data.tokenizer names; else the one in
// the folder of the training files; else the one in `from`, the folder that the run starts from
// ("": none), if it can be read; else bytes, where the files say so or say nothing and
// model.vocab_size is theirs. *tokenizer = NULL where none is known: token files that do not say
// who made them train all the same.
//
// An error: a training or validation file (val may be NULL) was made with another tokenizer, or
// model.vocab_size is more than SPARE_TOKENS above the tokenizer's; it may be where data.tokenizer
// is set. It may be below the tokenizer's, as in a model whose tokenizer got one more token: the
// ids in the files decide.
enum { SPARE_TOKENS = 1024 };
int run_tokenizer(Tokenizer **tokenizer, const Config *config, const Loader *train,
                  const Loader *val, const char *from, Error *err);
// -1 where one of the files was made with another tokenizer; tokenizer NULL: with any.
int check_token_files(const Loader *loader, const Tokenizer *tokenizer, Error *err);

// How often the whole run reads its training data.
static inline double run_epochs(const Run *run) {
  const TrainConfig *t = &run->config.train;
  return (double)(t->steps * t->batch_size * t->gradient_accumulation) /
         (double)run->inputs.train->epoch.windows;
}

// ---- Around a step, in this order. Its log line and its place in the state come when its result
// is there, be->steps_ahead steps later: the GPU never waits for the host.

// Sets AdamW's parameters of the next step. Reads the step's batches, so that bad data are found
// before any call of the step: an error is for run_bad_data. Opens the profilers' window
// where it is due.
int run_step_begin(Run *run, AdamW *hyper, Error *err);
// An error means: too many skipped updates in a row.
int run_step_end(Run *run, Error *err);

// Steps done when all launched ones are.
static inline int64_t run_steps_asked(const Run *run) {
  return run->state.step + (run->steps.asked - run->steps.booked);
}
// Waits for all steps asked for and books them. Comes before validating, sampling and saving.
int run_settle(Run *run, Error *err);

// ---- Between steps (pause.c)

// Whether anything is to be done before the next step: a validation, a sample or a save is due, a
// save has ended, the folder was not looked at for a second, or the run was asked to stop.
bool run_pause_due(const Run *run);
// Does it, and sets the alarm of train.max_minutes.
int run_pause(Run *run, Error *err);

// 1: it was done, or there is nothing to validate on; 0: the run was asked to stop before; -1: the
// data are bad, for run_bad_data.
int run_validate(Run *run, Error *err);

// ---- Validation

// eval_batches: 0 reads the whole split, as do more batches than it has.
ValWindows val_windows(int64_t split, int64_t batch, int64_t eval_batches);
// How many windows batch i has, and its row-th one: a number below `split`.
int64_t val_batch_size(const ValWindows *w, int64_t i);
int64_t val_window(const ValWindows *w, int64_t i, int64_t row);
// Two losses can be compared where this is the same; never 0. data: Loader.fingerprint of the
// split.
uint64_t val_fingerprint(const ValWindows *w, uint64_t data, int64_t sequence_length);

// The mean over all tokens that count, from batch to batch. Batches may have different numbers of
// them, so it is a ratio of two sums.
typedef struct ValMean {
  int64_t batches;
  double nats, tokens;                          // sums over the batches
  double nats_squared, product, tokens_squared; // sums of the batches' own
} ValMean;
void val_mean_add(ValMean *m, double nats, double tokens);
double val_mean(const ValMean *m);
// Its standard error as an estimate of the split's mean, that of a ratio (Cochran, Sampling
// Techniques, 1977, 6.4): 0 where all of it was read, NAN where one batch says nothing of its
// spread.
double val_standard_error(const ValMean *m, const ValWindows *w);

// Forwards over windows of a loader with one source, batch by batch.
typedef struct WindowsPass {
  ValWindows windows;
  const Loader *loader;
  Llama *llama;
  Batch batch;    // room for windows.batch windows; of the last one that was read
  TextBytes text; // of the windows so far
} WindowsPass;
// The sum of the losses of batch i, in nats, and of batch.counted tokens.
int windows_losses(WindowsPass *p, int64_t i, double *nats, Error *err);

// ---- Saving

bool run_folder_due(const Run *run); // run_check_folder has not looked for a second
// Checks that the folder is still the run's own: once a second, or `now`. If it is not, the run
// writes nothing any more, neither saves nor log lines, and -1 ends training: the message names the
// last checkpoint.
int run_check_folder(Run *run, bool now, Error *err);
// Begins a save, or writes it at once where run->saves.background is NULL; the one before has
// ended. Nothing where the step is saved already or train.save_interval says never.
int run_save(Run *run, Error *err);
// A run's last save, of settled steps: waits for it.
int run_save_last(Run *run, Error *err);
// Where the data turned out to be bad, as err says: saves the steps that were done, and adds that
// to the message. Always -1.
int run_bad_data(Run *run, Error *err);
// Comes before an update, which changes the tensors that a background save copies.
void run_save_copied(Run *run);
// Reports a save that has ended: in the log, or by its error. wait: one under way, too.
int run_save_end(Run *run, bool wait, Error *err);
// How long it will take at most, as far as one can know, until the steps asked for are done and
// saved, and the process has ended.
double run_end_ms(const Run *run);

// For run_open, run_close and --plan. Decides whether to save in the background: the config enables
// it, and the host has enough memory free besides the run_bytes that the run still takes of it.
SavesPlan saves_plan(const Config *config, const Spec *spec, size_t run_bytes);
void saves_open(Run *run); // if it fails, training waits for saves, and a line says so
void saves_close(Run *run);

// ---- Signals, standard streams and the libraries' settings of the process

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
