// A validation: which windows it reads, their mean, and a pass over them.
#include <math.h>

#include "base/range.h"
#include "base/rng.h"
#include "model/run/run.h"

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

// A batch with fewer windows than B is filled up, so that every forward has the one shape that the
// backend has prepared and recorded, and FP8's groups of rows are whole.
int windows_losses(WindowsPass *p, int64_t i, double *nats, Error *err) {
  const int64_t T = p->loader->config.seq, windows = val_batch_size(&p->windows, i);
  batch_clear(&p->batch);
  for (int64_t row = 0; row < windows; row++) {
    const uint64_t window = (uint64_t)val_window(&p->windows, i, row);
    if (loader_window(p->loader, window, row, &p->batch, err) != 0) return -1;
  }
  text_bytes_batch(&p->text, &p->batch, windows, T);
  loader_pad(p->loader, &p->batch, windows * T, (p->windows.batch - windows) * T);
  *nats = llama_sum_of_losses(p->llama, &p->batch);
  return 0;
}

// As run_validate, where there is something to validate on.
static int validate(Run *run, ValMean *mean, Error *err) {
  Inputs *inputs = &run->inputs;
  WindowsPass pass = {.windows = inputs->windows,
                      .loader = inputs->val,
                      .llama = &run->llama,
                      .batch = inputs->batches[0]};
  int finished = 1;
  text_bytes_open(&pass.text, inputs->val_bytes < 0 ? inputs->tokenizer : NULL);
  range_push("evaluation");
  for (int64_t i = 0; i < inputs->windows.batches && finished == 1; i++) {
    double nats = 0;
    finished = *run->stop ? 0 : windows_losses(&pass, i, &nats, err) == 0 ? 1 : -1;
    if (finished == 1) val_mean_add(mean, nats, (double)pass.batch.counted);
  }
  range_pop();
  if (finished == 1 && inputs->val_bytes < 0) inputs->val_bytes = pass.text.count;
  text_bytes_close(&pass.text);
  // A forward that trains nothing is no part of training's scales.
  if (run->llama.spec.fp8) run->be->services.scalings_discard(run->be);
  return finished;
}

int run_validate(Run *run, Error *err) {
  TrainState *state = &run->state;
  ValMean mean = {0};
  if (!run->inputs.val) return 1;
  const int finished = *run->stop ? 0 : validate(run, &mean, err);
  if (finished != 1) return finished;
  const double loss = run->last_val_loss = val_mean(&mean);
  const bool best = !(loss >= state->best_val_loss) && isfinite(loss);
  if (best) {
    state->best_val_loss = loss;
    state->best_val_step = state->step;
    run->saves.best_is_new = true;
  }
  log_val(&run->log,
          &(ValLine){.step = state->step,
                     .loss = loss,
                     .error = val_standard_error(&mean, &run->inputs.windows),
                     .bits_per_byte = bits_per_byte(mean.nats, run->inputs.val_bytes),
                     .tokens = (int64_t)mean.tokens,
                     .whole = run->inputs.windows.read == run->inputs.windows.split},
          best);
  return 1;
}
