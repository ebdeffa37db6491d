// The CPU backend as a twin of one that keeps bf16: everything that such a backend stores as bf16
// is rounded to it where it is stored, and the arithmetic is fp32. Its error against exact values
// is what bf16 costs by itself: the measure for the errors of a GPU backend.
#pragma once
#include "kernels/ops.h"

// cpu: of backend_cpu_create, before its first use. grads_fp32: the gradients keep fp32.
void bf16_twin(Backend *cpu, bool grads_fp32);
