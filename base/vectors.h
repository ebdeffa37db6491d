// A function that is compiled for AVX2 and AVX-512, too, with its loops as vector instructions: the
// CPU's version runs. Nothing is contracted, so all agree but in the order of `omp simd` sums.
// clang 14 would give other files no name to link with.
#pragma once
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif
