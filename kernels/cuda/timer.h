// Timing of what a plan is chosen by, and the data that it is timed on.
#pragma once
#include <cuda_runtime_api.h>
#include "base/error.h"

enum { MAX_TIMED_RUNS = 8 };

// Launches; 0, or -1 and why not.
typedef int TimedCall(const void *context, Error *err);

// Sorts the times.
double median(double *times, int count);

// The median of `runs` calls, one behind the other after warm_up calls, in milliseconds. Fails
// where a call does.
int time_calls(TimedCall *call, const void *context, int warm_up, int runs, cudaStream_t stream,
               double *milliseconds, Error *err);

// Fills device memory with random normal values, bf16, times scale: the clock that a GPU holds
// depends on the data, and on zeros it runs faster than on a model's.
void fill_random(void *to, size_t bytes, double scale, cudaStream_t stream);
// The same in e4m3, with a standard deviation of 1; read as e5m2 its values are finite, too.
void fill_random_fp8(void *to, size_t bytes, cudaStream_t stream);
