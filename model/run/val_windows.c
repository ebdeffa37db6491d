#include "model/run/val_windows.h"

#include <math.h>

#include "base/rng.h"

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

void val_mean_add(ValMean *m, double batch_sum, int64_t windows) {
  const double mean = batch_sum / (double)windows, before = mean - m->mean;
  m->sum += batch_sum;
  m->windows += windows;
  m->batches++;
  m->mean += before / (double)m->batches;
  m->squares += before * (mean - m->mean);
}

double val_mean(const ValMean *m) {
  return m->sum / (double)m->windows;
}

double val_standard_error(const ValMean *m, const ValWindows *w) {
  if (w->read == w->split) return 0;
  if (m->batches < 2) return NAN;
  const double variance = m->squares / (double)(m->batches - 1) / (double)m->batches;
  return sqrt(variance * (1 - (double)w->read / (double)w->split));
}
