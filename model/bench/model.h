// The model of a bench: random weights fast, one set of memory for both kinds of kernels, and one
// operation at a time.
#pragma once
#include "model/llama.h"

// Normal weights, moments zero, compute copies written. Not those of a run: large tensors repeat a
// pattern of four million values, each tensor its own, so that billions are there in seconds.
void bench_weights(Llama *llama, uint64_t seed);

// `to` becomes the same model on another backend of the same GPU: all memory is shared but the
// statistics of rows, which backends leave in different numbers of parts, so that each one's stay
// what its own operations left. bench_unshare gives those back; the rest is `llama`'s.
int bench_share(Llama *to, const Llama *llama, Backend *be, Error *err);
void bench_unshare(Llama *to);

// In a step the sum of lm_head's gradient over the loss' chunks lies where other gradients come
// later. Out of order it would overwrite them: it gets memory of its own, which the caller releases
// (llama->lm_head->part_sum). `bytes`: how many, 0 where there is no such sum.
int bench_sum_apart(Llama *llama, size_t *bytes, Error *err);

// A micro-batch and its update by the model's own functions, but of one layer and one chunk of the
// loss, which `index` runs through: every operation of a step once. accumulate: onto gradients that
// are there.
void issue_slice(Llama *llama, int index, bool accumulate);
// The same with all operations but one left out.
void issue_alone(Llama *llama, Operation operation, int index, bool accumulate);
// The calls of issue_slice, one for each operation, in their order. The caller destroys it.
Recorder *record_slice(const Llama *llama);
// One of those calls, recorded in their place.
const OperationCall *record_alone(Recorder *recorder, const Llama *llama, Operation operation,
                                  int index);

// The call that must come first each time: it leaves what call i finds and overwrites, what each
// backend leaves in its own way (HeadGradient), or FP8 copies whose place others take; -1: none.
int prepared_by(const OperationCall *calls, int i);
// The same of each operation of a slice: makers[operation] is the one to call before it; -1: none.
void list_makers(const Recorder *slice, int makers[OPERATION_COUNT]);
// Out of order an operation finds what others have left: this makes again what it cannot use. In
// FP8 layers take turns in the place of their copies, whose row scales are a layer's own; with
// another layer's, attention's scores are hundreds, and no exponential of them is finite. The
// recorder is record_slice's; its calls are overwritten.
void issue_inputs(Llama *llama, Recorder *recorder, const int makers[OPERATION_COUNT],
                  Operation operation, int index);
