// The evidence that is kept of a step that was not finite.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/run/run.h"
#include "model/tensors.h"

enum {
  CHUNK = 1 << 20, // values of a tensor that are read at a time; a longer row is read whole
  STEPS_APART = 50 // between two cases, so that a run that goes to and fro does not fill the disk
};

// ---- Norms of tensors

typedef struct Norms {
  double weight, gradient; // L2
  int64_t nonfinite;       // values of the gradient that are not finite
} Norms;

// Where element `index` of values of so many bytes lies.
static const void *at(const void *values, int64_t index, size_t bytes) {
  return (const char *)values + (size_t)index * bytes;
}

// The rows [row, row + rows) of a tensor. wn: [cols] of its norm weight.
static void add_rows(Norms *n, const Run *run, const ParamTensor *p, const float *wn, int64_t row,
                     int64_t rows, float *values, float *folded) {
  Backend *be = run->be;
  const int64_t first = row * p->cols, count = rows * p->cols;
  be->services.read_master(be, values, p, first, count);
  for (int64_t i = 0; i < count; i++) n->weight += (double)values[i] * values[i];
  memset(values, 0, (size_t)count * sizeof *values);
  if (p->grad) be->services.read_grad(be, values, at(p->grad, first, be->grad_bytes), count);
  if (p->grad_folded)
    be->services.read_grad(be, folded, at(p->grad_folded, first, be->grad_bytes), count);
  for (int64_t i = 0; i < count; i++) {
    const double g = values[i] + (p->grad_folded ? (double)folded[i] * wn[i % p->cols] : 0);
    n->gradient += g * g;
    n->nonfinite += !isfinite(g);
  }
}

static Norms tensor_norms(const Run *run, const ParamTensor *p) {
  const int64_t fit = CHUNK / p->cols > 0 ? CHUNK / p->cols : 1;
  float *values = xmalloc((size_t)(2 * fit * p->cols) * sizeof *values), *wn = NULL;
  Norms n = {0};
  if (p->grad_folded) {
    wn = xmalloc((size_t)p->cols * sizeof *wn);
    run->be->services.read_master(run->be, wn, &run->llama.tensors[p->norm], 0, p->cols);
  }
  for (int64_t row = 0; row < p->rows; row += fit) {
    const int64_t rows = p->rows - row < fit ? p->rows - row : fit;
    add_rows(&n, run, p, wn, row, rows, values, values + fit * p->cols);
  }
  free(values);
  free(wn);
  n.weight = sqrt(n.weight);
  n.gradient = sqrt(n.gradient);
  return n;
}

static void put_tensors(JsonWriter *w, const Run *run) {
  json_open(w, "tensors", '[');
  for (int i = 0; i < run->llama.param_count; i++) {
    const Norms n = tensor_norms(run, &run->llama.tensors[i]);
    json_open(w, NULL, '{');
    json_string(w, "name", scaling_name(&run->config.model, i).text);
    json_number(w, "weight", n.weight, 9);
    json_number(w, "gradient", n.gradient, 9);
    json_whole(w, "nonfinite", n.nonfinite);
    json_close(w, '}');
  }
  json_close(w, ']');
}

// ---- The file

// Where its documents lie, one after the other.
static void put_window(JsonWriter *w, LoaderPlace place) {
  WindowPiece piece;
  json_open(w, NULL, '[');
  for (int64_t i = 0; (piece = source_piece(place.source, place.position, i)).rows > 0; i++) {
    const char *path = place.source->files[piece.file].path;
    json_open(w, NULL, '{');
    json_bytes(w, "file", path, strlen(path));
    json_whole(w, "token", piece.first);
    json_whole(w, "rows", piece.rows);
    json_close(w, '}');
  }
  json_close(w, ']');
}

static void put_batch(JsonWriter *w, const Run *run, uint64_t end) {
  const TrainConfig *c = &run->config.train;
  const uint64_t count = (uint64_t)(c->batch_size * c->gradient_accumulation);
  char digits[24];
  snprintf(digits, sizeof digits, "%" PRIu64, end - count);
  json_string(w, "cursor", digits);
  json_open(w, "sequences", '[');
  for (uint64_t i = end - count; i < end; i++) {
    put_window(w, loader_place(run->train_data, i));
  }
  json_close(w, ']');
}

static char *case_json(const Run *run, const StepLine *line, uint64_t end) {
  JsonWriter w = {.indent = 1};
  json_open(&w, NULL, '{');
  json_string(&w, "kind", "nonfinite");
  json_whole(&w, "step", line->step);
  json_number(&w, "loss", line->loss, 9);
  json_number(&w, "grad_norm", line->grad_norm, 9);
  json_number(&w, "lr", line->lr, 9);
  put_batch(&w, run, end);
  json_whole(&w, "norms_of_step", run_steps_asked(run));
  put_tensors(&w, run);
  json_close(&w, '}');
  return w.text;
}

static void write_case(Run *run, const StepLine *line, uint64_t end) {
  Error err;
  const PathText file = path_text("nonfinite-%08" PRId64 ".json", line->step),
                 path = path_text("%s/%s", run->lock.given.text, file.text),
                 to = path_text("%s/%s", run->lock.path.text, file.text);
  char *json = case_json(run, line, end);
  run->evidence_step = line->step;
  fflush(stdout);
  if (run_lock_check(&run->lock, &err) == 0 &&
      file_write_atomic(to.text, json, strlen(json), &err) == 0) {
    fprintf(stderr,
            "step %lld: the loss or the gradient norm is not finite; norms and the batch are in "
            "'%s'\n",
            (long long)line->step, path.text);
    log_evidence(&run->log, line->step, path.text);
  } else {
    run_lock_name(&run->lock, &err);
    fprintf(stderr, "step %lld: no evidence: %s\n", (long long)line->step, err.text);
  }
  free(json);
}

// ---- Steps with evidence

void run_watch_step(Run *run, const StepLine *line, uint64_t end) {
  const int64_t row = run->state.nonfinite_row;
  const bool apart = run->evidence_step == 0 || line->step - run->evidence_step >= STEPS_APART;
  if ((row == 1 && apart) || row >= run->config.train.max_nonfinite) write_case(run, line, end);
}
