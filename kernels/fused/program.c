// Launching programs: tensor maps, clusters, shared memory.
#include "kernels/fused/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/gpu.h"

#define ROW(NAME, file) extern const Program fused_program_##file;
FUSED_PROGRAMS(ROW)
#undef ROW

const Program *fused_program(ProgramName name) {
  static const Program *const programs[PROGRAMS] = {
#define ROW(NAME, file) [PROGRAM_##NAME] = &fused_program_##file,
      FUSED_PROGRAMS(ROW)
#undef ROW
  };
  return programs[name];
}

// ---- Set-up

// On a GPU without code compiled for it the kernels are empty.
static bool has_wgmma(const Gpu *gpu) {
  return gpu->major == 9 && gpu->minor == 0 && gpu->compiled_for == 90;
}

int fused_mainloop(Mainloop asked, const Gpu *gpu, Mainloop *taken, Error *err) {
  if (asked == MAINLOOP_WGMMA && !has_wgmma(gpu))
    return error_set(
        err,
        "backend.mainloop \"wgmma\" needs a GPU of compute capability 9.0 (Hopper), and "
        "this one has %d.%d; take \"auto\"",
        gpu->major, gpu->minor);
  *taken = asked != MAINLOOP_AUTO ? asked : has_wgmma(gpu) ? MAINLOOP_WGMMA : MAINLOOP_MMA_SYNC;
  return 0;
}

static int find_encode(PFN_cuTensorMapEncodeTiled_v12000 *encode, Error *err) {
  void *entry = NULL;
  enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  CUDA_TRY(err, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                 cudaEnableDefault, &found));
#else
  CUDA_TRY(err,
           cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess)
    return error_set(err, "the driver has no cuTensorMapEncodeTiled; update it to 525 or later");
  memcpy(encode, &entry, sizeof entry);
  return 0;
}

// The second is programmatic dependent launch: a block is set up while the last ones of the kernel
// before still run, and waits for that kernel's end before it reads anything (mainloop.cuh).
static const cudaLaunchAttribute attributes[] = {
    {.id = cudaLaunchAttributeClusterDimension, .val.clusterDim = {.x = CLUSTER, .y = 1, .z = 1}},
    {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
     .val.programmaticStreamSerializationAllowed = 1}};

static cudaLaunchConfig_t launch_config(const ProgramKernel *k, int64_t clusters) {
  return (cudaLaunchConfig_t){.gridDim = {.x = (unsigned)clusters * CLUSTER, .y = 1, .z = 1},
                              .blockDim = {.x = BLOCK_THREADS, .y = 1, .z = 1},
                              .dynamicSmemBytes = (size_t)k->shared_bytes,
                              .attrs = (cudaLaunchAttribute *)(uintptr_t)attributes,
                              .numAttrs = sizeof attributes / sizeof *attributes};
}

static int open_wgmma(OpenProgram *open, const Gpu *gpu, Error *err) {
  const Program *program = open->program;
  if (find_encode(&open->encode, err)) return -1;
  for (int tile = 0; tile < WGMMA_SHAPES; tile++) {
    const ProgramKernel *k = &program->kernels[tile];
    if (!k->kernel) continue;
    CUDA_TRY(err, cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       k->shared_bytes));
    cudaLaunchConfig_t config = launch_config(k, gpu->sm_count / CLUSTER);
    config.numAttrs = 1; // the cluster's size
    CUDA_TRY(err, cudaOccupancyMaxActiveClusters(&open->clusters[tile], k->kernel, &config));
    if (open->clusters[tile] < 1)
      return error_set(err, "the GPU cannot run the fused kernel \"%s\" (%d x %d)", program->name,
                       (int)k->rows, (int)k->cols);
  }
  return 0;
}

// 48 KB of shared memory need no request. Fails where the program was built only for other GPUs.
static int open_mma_sync(OpenProgram *open, const Gpu *gpu, Error *err) {
  const ProgramKernel *k = &open->program->kernels[TILE_64x64];
  struct cudaFuncAttributes here;
  if (!k->kernel || (open->program->formats != GEMM_BF16 && gpu->compiled_for < 89)) return 0;
  CUDA_TRY(err, cudaFuncGetAttributes(&here, k->kernel));
  open->mma_sync = true;
  return 0;
}

int fused_program_open(OpenProgram *open, const Program *program, Mainloop mainloop, const Gpu *gpu,
                       Error *err) {
  *open = (OpenProgram){.program = program};
  if (mainloop != MAINLOOP_MMA_SYNC && has_wgmma(gpu) && open_wgmma(open, gpu, err)) return -1;
  return mainloop != MAINLOOP_WGMMA ? open_mma_sync(open, gpu, err) : 0;
}

int fused_kernels_open(FusedKernels *kernels, Mainloop mainloop, const Gpu *gpu, Error *err) {
  kernels->mainloop = mainloop;
  for (int name = 0; name < PROGRAMS; name++)
    if (fused_program_open(&kernels->programs[name], fused_program((ProgramName)name), mainloop,
                           gpu, err))
      return -1;
  return 0;
}

TileShape fused_tile(const OpenProgram *open, int64_t M, int64_t N, int64_t K) {
  const Program *p = open->program;
  bool has[WGMMA_SHAPES], some = false;
  for (int tile = 0; tile < WGMMA_SHAPES; tile++) some |= has[tile] = fused_runs_in(open, tile);
  if (!some) return TILE_64x64;
  int32_t cols = p->copy_cols; // two copies, of half the bytes
  for (int i = 0; i < MAX_TILES; i++) cols += p->load_cols[i] + p->store_cols[i];
  const double chunks = (double)cols / p->columns * (p->formats == GEMM_BF16 ? 1 : 2);
  return tile_without_figures(has, chunks, M, N, K);
}

// ---- Launching

static void fail_call(const Program *program, const char *why) {
  fprintf(stderr, "fused kernel \"%s\": %s\n", program->name, why);
  exit(EXIT_FAILURE);
}

// Boxes of box_rows x box_cols elements of `bytes` each, 1 or 2, of a matrix whose rows are
// `stride` elements apart, 0 = cols. A box's rows are as wide as the swizzle: 128, 64 or 32 bytes.
// batch: 0, or so many matrices, one behind the other.
static CUtensorMap tensor_map(const OpenProgram *open, Matrix matrix, int64_t stride, int32_t bytes,
                              int32_t box_rows, int32_t box_cols, int64_t batch) {
  const int64_t row = (stride ? stride : matrix.cols) * bytes;
  const cuuint64_t dims[3] = {(cuuint64_t)matrix.cols, (cuuint64_t)matrix.rows, (cuuint64_t)batch};
  const cuuint64_t strides[2] = {(cuuint64_t)row, (cuuint64_t)(matrix.rows * row)};
  const cuuint32_t box[3] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows, 1}, steps[3] = {1, 1, 1};
  const int32_t atom = box_cols * bytes;
  CUtensorMap map;
  const CUresult status = open->encode(
      &map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      batch > 0 ? 3 : 2, (void *)(uintptr_t)matrix.data, dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      atom == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
      : atom == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                   : CU_TENSOR_MAP_SWIZZLE_32B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail_call(open->program,
              "a matrix is not as the copy engine takes it: pointer or rows not at 16-byte "
              "boundaries, or a size of 2^32");
  return map;
}

// The tiles of the epilogue.
static EpilogueOperands epilogue_operands(const OpenProgram *open, const ProgramCall *call) {
  const Program *program = open->program;
  EpilogueOperands operands = {.args = call->args};
  for (int i = 0; i < MAX_TILES; i++) {
    if (program->load_cols[i])
      operands.loads[i] =
          tensor_map(open, call->loads[i], 0, 2, 64, program->load_cols[i], call->batch);
    if (program->store_cols[i] && !(program->symmetric && i == 1)) // the mirror is of the first
      operands.stores[i] =
          tensor_map(open, call->stores[i], 0, 2, 64, program->store_cols[i], call->batch);
  }
  for (int i = 0; i < 2; i++) {
    const int32_t sides[2] = {64, program->copy_cols};
    operands.copied[i] = program->copy_cols && call->copies[i].data;
    if (operands.copied[i])
      operands.copies[i] = tensor_map(open, call->copies[i], i == 0 ? 0 : call->by_col_stride, 1,
                                      sides[i], sides[1 - i], 0);
  }
  return operands;
}

static void launch_wgmma(const OpenProgram *open, TileShape tile, const ProgramCall *call,
                         cudaStream_t stream) {
  const Program *program = open->program;
  const ProgramKernel *k = &program->kernels[tile];
  // K-major operands come in one box a stage (B in two halves), others in boxes of 64 x 64.
  const int32_t depth = program->depth, bytes = DEPTH_BYTES / depth;
  const Matrix A = {call->A, call->M, call->K}, A_across = {call->A, call->K, call->M},
               B = {call->B, call->N, call->K}, B_across = {call->B, call->K, call->N};
  const CUtensorMap a =
      program->form == GEMM_TN
          ? tensor_map(open, A_across, call->stride_a, bytes, depth, 64, call->batch)
          : tensor_map(open, A, call->stride_a, bytes, k->rows, depth, call->batch);
  const CUtensorMap b =
      program->form == GEMM_NT
          ? tensor_map(open, B, call->stride_b, bytes, k->cols / CLUSTER, depth, call->batch)
          : tensor_map(open, B_across, call->stride_b, bytes, depth, 64, call->batch);
  EpilogueOperands operands = epilogue_operands(open, call);

  operands.tiles = tile_clusters(tile, call->M, call->N, program->symmetric);
  operands.batch = (int32_t)call->batch;
  const int64_t tiles = operands.tiles * (call->batch > 0 ? call->batch : 1);
  const int64_t clusters = tiles < open->clusters[tile] ? tiles : open->clusters[tile];
  cudaLaunchConfig_t config = launch_config(k, clusters);
  config.stream = stream;
  int M = (int)call->M, N = (int)call->N, K = (int)call->K;
  void *parameters[] = {(void *)(uintptr_t)&a, (void *)(uintptr_t)&b, &operands, &M, &N, &K};
  CUDA_CHECK(cudaLaunchKernelExC(&config, k->kernel, parameters));
}

static bool in_units(const void *data, int64_t stride, int64_t bytes) {
  return (uintptr_t)data % 16 == 0 && stride * bytes % 16 == 0;
}

static void launch_mma_sync(const OpenProgram *open, const ProgramCall *call, cudaStream_t stream) {
  enum { SIDE = 128, THREADS = 128 }; // of a block's tile
  const Program *program = open->program;
  const ProgramKernel *k = &program->kernels[TILE_64x64];
  const int64_t of_a = program->form == GEMM_TN ? call->M : call->K,
                of_b = program->form == GEMM_NT ? call->K : call->N;
  const int64_t bytes = program->formats == GEMM_BF16 ? 2 : 1;
  bool fits = in_units(call->A, call->stride_a ? call->stride_a : of_a, bytes) &&
              in_units(call->B, call->stride_b ? call->stride_b : of_b, bytes) &&
              in_units(NULL, call->by_col_stride, 1);
  for (int i = 0; i < MAX_TILES; i++)
    fits = fits && in_units(call->loads[i].data, call->loads[i].cols, 2) &&
           in_units(call->stores[i].data, call->stores[i].cols, 2) &&
           in_units(call->copies[i].data, call->copies[i].cols, 1);
  if (!fits) fail_call(program, "a matrix's pointer or rows are not at 16-byte boundaries");
  const int64_t tiles = (call->M + SIDE - 1) / SIDE * ((call->N + SIDE - 1) / SIDE);
  if (tiles > INT32_MAX) fail_call(program, "the product has 2^31 tiles or more");
  void *parameters[] = {(void *)(uintptr_t)call};
  CUDA_CHECK(cudaLaunchKernel(k->kernel, (dim3){.x = (unsigned)tiles, .y = 1, .z = 1},
                              (dim3){.x = THREADS, .y = 1, .z = 1}, parameters,
                              (size_t)k->shared_bytes, stream));
}

void fused_launch(const OpenProgram *open, TileShape tile, const ProgramCall *call,
                  cudaStream_t stream) {
  const Program *program = open->program;
  if (!fused_runs_in(open, tile))
    fail_call(program, "it was not opened in this tile shape; ask fused_tile");
  if (program->batched != (call->batch > 0))
    fail_call(program, "a batch is for batched programs, and they need one");
  if (call->M <= 0 || call->N <= 0 || call->K <= 0) return;
  if (call->M > INT32_MAX - 512 || call->N > INT32_MAX - 512 || call->K > INT32_MAX - 512)
    fail_call(program, "a side of the product is not below 2^31 - 512");
  if (tile == TILE_64x64)
    launch_mma_sync(open, call, stream);
  else
    launch_wgmma(open, tile, call, stream);
}
