// What a GPU's data sheet promises.
#pragma once

// Dense bf16 FLOP/s with fp32 accumulation at `hertz`, the highest clock of the card; 0 where no
// data sheet is known. name: as the driver says it.
double gpu_peak_flops(const char *name, int major, int minor, int sm_count, double hertz);
