// The choice of a token on a GPU, or what stands for one, against the CPU's.
#pragma once
#include "kernels/ops.h"

// Chooses from logits [V] of all kinds, flat, peaked, equal, masked and not finite, by all kinds of
// options: the token must be the CPU's, twice. be: with V as its spec has it; of its services
// write, read, token_send and token_take are used. logits [padded_vocab + 16], draw [1], next [1]:
// its memory. A failure fails the test.
void check_choosing(Backend *be, act_t *logits, Draw *draw, int32_t *next);
