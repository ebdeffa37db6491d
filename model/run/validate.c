// A validation: which windows it reads, their mean, and a pass over them.
#include "model/run/validate.h"

#include <math.h>
#include <string.h>

#include "base/range.h"
#include "base/rng.h"
#include "model/run/run.h"
#include "model/run/token_text.h"

// ---- Windows

ValWindows val_windows(int64_t split, int64_t batch, int64_t eval_batches) {
  const int64_t whole = (split + batch - 1) / batch;
  if (eval_batches == 0 || eval_batches >= whole)
    return (ValWindows){.split = split, .read = split, .batch = batch, .batches = whole};
  return (ValWindows){
      .split = split, .read = eval_batches * batch, .batch = batch, .batches = eval_batches};
}

int64_t val_batch_size(const ValWindows *w, int64_t i) {
  const int64_t left = w->read - i * w->batch;
  return left < w->batch ? left : w->batch;
}

// The k-th of the windows that are read is about (k + 1/2) split / read.
int64_t val_window(const ValWindows *w, int64_t i, int64_t row) {
  if (w->read == w->split) return i * w->batch + row;
  const int64_t k = row * w->batches + i, every = w->split / w->read, rest = w->split % w->read;
  return k * every + every / 2 + (2 * k + 1) * rest / (2 * w->read);
}

uint64_t val_fingerprint(const ValWindows *w, uint64_t data, int64_t sequence_length) {
  const uint64_t shape = rng_u64((uint64_t)sequence_length, (uint64_t)w->read);
  const uint64_t print = rng_u64(data, shape);
  return print > 0 ? print : 1;
}

void val_mean_add(ValMean *m, double nats, double tokens) {
  m->batches++;
  m->nats += nats;
  m->tokens += tokens;
  m->nats_squared += nats * nats;
  m->product += nats * tokens;
  m->tokens_squared += tokens * tokens;
}

double val_mean(const ValMean *m) {
  return m->nats / m->tokens;
}

double val_standard_error(const ValMean *m, const ValWindows *w) {
  const double n = (double)m->batches, mean = val_mean(m), of_batch = m->tokens / n;
  if (w->read == w->split) return 0;
  if (m->batches < 2) return NAN;
  // Of nats - mean tokens, the deviation of each batch.
  const double squares = m->nats_squared - 2 * mean * m->product + mean * mean * m->tokens_squared;
  const double variance = fmax(squares, 0) / (n - 1) / n / (of_batch * of_batch);
  return sqrt(variance * (1 - (double)w->read / (double)w->split));
}

// ---- A pass over them

// A validation under way.
typedef struct Validation {
  Run *run;
  Batch batch;
  ValMean mean;
  TextBytes text; // without a decoder where the bytes are known, or never will be
} Validation;

static int read_batch(Validation *v, int64_t i, int64_t windows, Error *err) {
  Run *run = v->run;
  batch_clear(&v->batch);
  for (int64_t row = 0; row < windows; row++) {
    const int64_t window = val_window(&run->inputs.windows, i, row);
    if (loader_window(run->inputs.val, (uint64_t)window, row, &v->batch, err) != 0) return -1;
  }
  text_bytes_batch(&v->text, &v->batch, windows, run->config.train.sequence_length);
  return 0;
}

// A batch with fewer windows than B is filled up, so that every forward has the one shape that the
// backend has prepared and recorded, and FP8's groups of rows are whole.
static int validate_batch(Validation *v, int64_t i, Error *err) {
  const int64_t B = v->run->inputs.windows.batch,
                windows = val_batch_size(&v->run->inputs.windows, i);
  if (*v->run->stop) return 0;
  if (read_batch(v, i, windows, err) != 0) return -1;
  const int64_t T = v->run->config.train.sequence_length;
  loader_pad(v->run->inputs.val, &v->batch, windows * T, (B - windows) * T);
  val_mean_add(&v->mean, llama_sum_of_losses(&v->run->llama, &v->batch), (double)v->batch.counted);
  return 1;
}

static int validate_batches(Validation *v, Error *err) {
  Run *run = v->run;
  int finished = 1;
  text_bytes_open(&v->text, run->inputs.val_counted ? NULL : run->inputs.tokenizer);
  range_push("evaluation");
  for (int64_t i = 0; i < run->inputs.windows.batches && finished == 1; i++)
    finished = validate_batch(v, i, err);
  range_pop();
  if (finished == 1 && !run->inputs.val_counted) {
    run->inputs.val_counted = true;
    run->inputs.val_bytes = v->text.count;
  }
  text_bytes_close(&v->text);
  // A forward that trains nothing is no part of training's scales.
  if (run->llama.spec.fp8) run->be->services.scalings_discard(run->be);
  return finished;
}

// Only where there is something to validate on.
static int validate(Run *run, ValLine *line, Error *err) {
  Validation v = {.run = run, .batch = run->inputs.batches[0]};
  const int finished = validate_batches(&v, err);
  if (finished != 1) return finished;
  const double loss = val_mean(&v.mean);
  const int64_t tokens = (int64_t)v.mean.tokens;
  *line = (ValLine){.step = run->state.step,
                    .loss = loss,
                    .error = val_standard_error(&v.mean, &run->inputs.windows),
                    .bits_per_byte = bits_per_byte(loss * (double)tokens, run->inputs.val_bytes),
                    .tokens = tokens,
                    .whole = run->inputs.windows.read == run->inputs.windows.split};
  return 1;
}

int run_validate(Run *run, Error *err) {
  ValLine line;
  if (!run->inputs.val) return 1;
  const int finished = *run->stop ? 0 : validate(run, &line, err);
  if (finished != 1) return finished;
  run->last_val_loss = line.loss;
  const bool best = !(line.loss >= run->state.best_val_loss) && isfinite(line.loss);
  if (best) {
    run->state.best_val_loss = line.loss;
    run->state.best_val_step = run->state.step;
    run->saves.best_is_new = true;
  }
  log_val(&run->log, &line, best);
  return 1;
}
