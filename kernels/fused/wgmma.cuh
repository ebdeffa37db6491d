// The tensor core instruction of sm_90a: D[64, N] += A[64, k] B[N, k]^T, operands in shared memory,
// bf16 with k = 16 or FP8 with k = 32, fp32 accumulators in the registers of a warpgroup. "PTX ISA:
// Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
//
// Thread t of the warpgroup (warp w = t / 32, lane l = t % 32) holds in d[4j + 2h + e] the element
//     row 16 w + l / 4 + 8 h,  column 8 j + 2 (l % 4) + e.
#pragma once
#include "kernels/fused/program.h"
#include "kernels/fused/ptx.cuh"

// The layout of an operand in shared memory: rows of 128 bytes along K, for a matrix stored [rows,
// K]; or, for bf16 only, along the rows, for a matrix stored [K, rows].
enum Major { MAJOR_K, MAJOR_MN };

// wgmma.fence: before the first wgmma, and after registers of accumulators were touched
static DEVICE void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// wgmma.commit_group
static DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// wgmma.wait_group: all but the newest GROUPS are complete
template <int GROUPS> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

// "Matrix Descriptor Format": start address, leading and stride byte offset in units of 16 bytes,
// and in bits 62-63 the 128-byte swizzle (1). The stride offset is the step of 8 rows (MAJOR_K) or
// of 8 along K (MAJOR_MN), 1024 bytes. The leading offset, the step of 64 rows, counts only for
// MAJOR_MN: with MAJOR_K an operand is one swizzle atom wide.
static DEVICE uint64_t wgmma_descriptor(uint32_t address, Major major) {
  const uint64_t leading = major == MAJOR_MN ? 8192 >> 4 : 1;
  return (uint64_t)((address & 0x3ffff) >> 4) | leading << 16 | (uint64_t)(1024 >> 4) << 32 |
         1ull << 62;
}

#define D_8(i)                                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),      \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define D_32(i) D_8(i), D_8(i + 8), D_8(i + 16), D_8(i + 24)
#define D_64 D_32(0), D_32(32)
#define D_96 D_64, D_32(64)
#define D_128 D_96, D_32(96)

#define NAMES_64                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96                                                                                   \
  NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "    \
           "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128                                                                                  \
  NAMES_96                                                                                         \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "     \
  "%127"

// wgmma.mma_async; the number of accumulators gives N. `accumulate` = 0: D is overwritten. The
// operands after the accumulators: descriptors of A and B, the predicate, the transpositions.
#define WGMMA(N, ACCUMULATORS, NAMES, OPERANDS, A, B, P, TA, TB)                                   \
  template <int TRANSPOSE_A, int TRANSPOSE_B>                                                      \
  static DEVICE void wgmma_bf16(float(&d)[ACCUMULATORS], uint64_t a, uint64_t b, int accumulate) { \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " P ", 0;\n\t"                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, " A ", " B \
                 ", p, 1, 1, " TA ", " TB ";\n\t}"                                                 \
                 : OPERANDS                                                                        \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));           \
  }
#define WGMMA_FP8(N, ACCUMULATORS, NAMES, OPERANDS, A, B, P)                                       \
  static DEVICE void wgmma_e4m3(float(&d)[ACCUMULATORS], uint64_t a, uint64_t b, int accumulate) { \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " P ", 0;\n\t"                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, " A ", " B \
                 ", p, 1, 1;\n\t}"                                                                 \
                 : OPERANDS                                                                        \
                 : "l"(a), "l"(b), "r"(accumulate));                                               \
  }
WGMMA(128, 64, NAMES_64, D_64, "%64", "%65", "%66", "%67", "%68")
WGMMA(192, 96, NAMES_96, D_96, "%96", "%97", "%98", "%99", "%100")
WGMMA(256, 128, NAMES_128, D_128, "%128", "%129", "%130", "%131", "%132")
WGMMA_FP8(128, 64, NAMES_64, D_64, "%64", "%65", "%66")
WGMMA_FP8(192, 96, NAMES_96, D_96, "%96", "%97", "%98")
WGMMA_FP8(256, 128, NAMES_128, D_128, "%128", "%129", "%130")

#undef D_8
#undef D_32
#undef D_64
#undef D_96
#undef D_128
#undef NAMES_64
#undef NAMES_96
#undef NAMES_128
#undef WGMMA
#undef WGMMA_FP8

template <GemmFormats FORMATS, Major A_MAJOR, Major B_MAJOR, int ACCUMULATORS>
static DEVICE void wgmma(float (&d)[ACCUMULATORS], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (FORMATS == GEMM_BF16)
    wgmma_bf16<A_MAJOR, B_MAJOR>(d, a, b, accumulate);
  else
    wgmma_e4m3(d, a, b, accumulate);
}
