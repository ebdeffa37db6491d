// The windows of the validation split that a run reads, and how far their mean may be from the
// whole split's.
#pragma once
#include "data/loader.h"
#include "model/llama.h"
#include "model/run/token_text.h"

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
