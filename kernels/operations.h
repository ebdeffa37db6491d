// The operations by name (kernels/ops.def declares them), and the choices of a configuration about
// kernels.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define OP(name, ...) OP_##name,
typedef enum Operation {
#include "kernels/ops.def"
  OPERATION_COUNT
} Operation;
#undef OP

static inline const char *operation_name(Operation operation) {
#define OP(name, ...) #name,
  static const char *const names[OPERATION_COUNT] = {
#include "kernels/ops.def"
  };
#undef OP
  return names[operation];
}

// The program that runs it fused, in bf16 or FP8, as kernels/fused/programs.h names it; "NONE".
static inline const char *operation_program(Operation operation, bool fp8) {
#define OP(name, type, function, program, fp8_program, ...) {#program, #fp8_program},
  static const char *const names[OPERATION_COUNT][2] = {
#include "kernels/ops.def"
  };
#undef OP
  return names[operation][fp8];
}

// True for the operations of every training step: a validation has a loss of its own, and only
// layers that are recomputed in FP8 are requantized.
static inline int operation_trains(Operation operation) {
  return operation != OP_validation_loss && operation != OP_requantize;
}

// Bits of operations.
typedef uint32_t OperationSet;

// The operations that have to run on the same kind of kernels as this one, itself among them:
// down_dgrad reads z as gate_up stored it, and the losses share memory.
static inline OperationSet operations_with(Operation operation) {
  const OperationSet self = (OperationSet)1 << operation,
                     mlp = (OperationSet)1 << OP_gate_up | (OperationSet)1 << OP_down_dgrad,
                     loss = (OperationSet)1 << OP_validation_loss | (OperationSet)1 << OP_head_loss;
  return self & mlp ? mlp : self & loss ? loss : self;
}

// The kernels that run an operation. A fused backend runs an operation on the unfused kernels where
// there is nothing to fuse, or where they are faster.
typedef enum KernelKind { KERNEL_CPU, KERNEL_UNFUSED, KERNEL_FUSED } KernelKind;

// The kernels that a run on a GPU asks for: auto uses the programs that are faster, and the unfused
// kernels for the other operations; fused uses every program that can run.
typedef enum KernelChoice { KERNELS_AUTO, KERNELS_FUSED, KERNELS_UNFUSED } KernelChoice;

// The GEMM that fused programs run on: wgmma's is Hopper's, mma.sync's runs on every GPU; auto is
// the faster one.
typedef enum Mainloop { MAINLOOP_AUTO, MAINLOOP_WGMMA, MAINLOOP_MMA_SYNC } Mainloop;

// The precision of the CPU's products; auto is the faster one.
typedef enum CpuProducts { PRODUCTS_FP32, PRODUCTS_BF16, PRODUCTS_AUTO } CpuProducts;

// The type of the optimizer's moments.
typedef enum MomentType { MOMENTS_FP32, MOMENTS_BF16 } MomentType;

// The type of master weights.
typedef enum MasterType { MASTERS_FP32, MASTERS_BF16 } MasterType;

// The type of gradients; auto: bf16, and fp32 where micro-batches add up.
typedef enum GradientType { GRADIENTS_AUTO, GRADIENTS_BF16 } GradientType;

// Activations that the backward recomputes instead of keeping them: the MLP's z and y (one more
// gate_up GEMM a layer), or all of a layer but its input (one more forward).
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_MLP, RECOMPUTE_LAYER } Recompute;

// What is kept in the host's memory. Each value includes the one before. Of the gradients only the
// layers' matrices'.
typedef enum Offload { OFFLOAD_NONE, OFFLOAD_MOMENTS, OFFLOAD_MASTERS, OFFLOAD_GRADIENTS } Offload;

// Row-major GEMMs, by how A and B are stored; the result is [M, N].
//   GEMM_NT: A [M, K], B [N, K]     GEMM_NN: A [M, K], B [K, N]     GEMM_TN: A [K, M], B [K, N]
typedef enum GemmForm { GEMM_NT, GEMM_NN, GEMM_TN } GemmForm;
