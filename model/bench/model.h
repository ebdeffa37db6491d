// The model of a bench: random weights fast, and one set of memory for both kinds of kernels.
#pragma once
#include "model/llama.h"

// Normal weights, moments zero, compute copies written. Not those of a run: large tensors repeat a
// pattern of four million values, each tensor its own, so that billions are there in seconds.
void bench_weights(Llama *llama, uint64_t seed);

// twin becomes the same model on another backend of the same GPU: all memory is shared but the
// statistics of rows, which backends leave in different numbers of parts, so that each one's stay
// what its own operations left. bench_unshare gives those back; the rest is `llama`'s.
int bench_share(Llama *twin, const Llama *llama, Backend *be, Error *err);
void bench_unshare(Llama *twin);
