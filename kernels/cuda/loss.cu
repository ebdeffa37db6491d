// Cross entropy: one pass over the logits that computes the loss and writes the gradient in place.
// With z = r logit,
//   lse = log sum exp z         loss = lse - z_target
//   dlogits' = f (p - onehot)   with p = exp(z - lse), f = r grad_scale
//   s = row sum of dlogits' z = f (sum p z - z_target)
// so one sweep that keeps (largest z, sum of exp, sum of exp z) has all inputs of the second sweep.
// A row without a target has a loss and an f of 0.
//
// A row stays in registers between the sweeps, 8 vectors of 16 bytes a thread: each logit is read
// once and written once. A row of V = 128256 is the whole register file of a multiprocessor, so on
// Hopper and later a cluster of 2 to 8 blocks shares it and trades three numbers through
// distributed shared memory; several rows are then in flight on a multiprocessor and the loads of
// one cover the arithmetic of another. Longer rows, and rows over 64 Ki elements on older GPUs, are
// read twice (cross_entropy_loop_kernel), the second time from the second-level cache as far as it
// holds them.
//
// Elements after a row's last whole vector of 16 bytes, at most 7, are taken singly by the first
// threads.
//
// exp is ex2.approx of z log2(e), about 2 units in the last place. A NaN or infinite logit makes
// the loss NaN.
#include "kernels/cuda/common.cuh"

// Measured on an H200: 8 vectors in blocks of 512 beat 4 vectors in blocks of 512 by a fifth and 8
// in blocks of 256 by 2 %.
enum { VECTORS = 8, MAX_THREADS = 512, BLOCKS_AN_SM = 2, MAX_CLUSTER = 8 };

// State of a sweep over stored logits x, in powers of two: u = c x = z log2(e).
struct Sweep {
  float largest; // of u; finite also before the first value
  float sum;     // of 2^(u - largest)
  float dot;     // of 2^(u - largest) x
};

static __device__ __forceinline__ Sweep sweep_empty(void) {
  return {-1e30f, 0.0f, 0.0f};
}

static __device__ __forceinline__ Sweep sweep_join(Sweep a, Sweep b) {
  const float largest = fmaxf(a.largest, b.largest);
  const float x = exp2_fast(a.largest - largest), y = exp2_fast(b.largest - largest);
  return {largest, a.sum * x + b.sum * y, a.dot * x + b.dot * y};
}

// largest must not be below c x.
static __device__ __forceinline__ void sweep_add(Sweep &a, float x, float c) {
  const float e = exp2_fast(fmaf(x, c, -a.largest));
  a.sum += e;
  a.dot = fmaf(e, x, a.dot);
}

static __device__ __forceinline__ uint32_t max_vector(const uint4 &v) {
  return max_two(max_two(v.x, v.y), max_two(v.z, v.w));
}

static __device__ __forceinline__ void sweep_vector(Sweep &a, const uint4 &v, float c) {
  const Pack<8> p = widen(v);
#pragma unroll
  for (int i = 0; i < 8; i++) sweep_add(a, p.v[i], c);
}

static __device__ __forceinline__ Sweep sweep_warp(Sweep a) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    a = sweep_join(a, {__shfl_xor_sync(0xffffffffu, a.largest, offset),
                       __shfl_xor_sync(0xffffffffu, a.sum, offset),
                       __shfl_xor_sync(0xffffffffu, a.dot, offset)});
  return a;
}

// Over a block; thread 0's warp has it.
static __device__ __forceinline__ Sweep sweep_block(Sweep a, Sweep *scratch /* [32] */) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  a = sweep_warp(a);
  if (lane == 0) scratch[warp] = a;
  __syncthreads();
  if (warp > 0) return a;
  return sweep_warp(lane < warps ? scratch[lane] : sweep_empty());
}

static __device__ __forceinline__ bf16_bits *row_of(const CrossEntropy &args, int64_t m) {
  return reinterpret_cast<bf16_bits *>(args.logits) + m * args.stride;
}
static __device__ __forceinline__ uint4 *vector_at(bf16_bits *row, int i) {
  return reinterpret_cast<uint4 *>(row) + i;
}
static __device__ __forceinline__ int whole_vectors(const CrossEntropy &args) {
  return (int)(args.V / 8);
}

// The column of the single element, after the whole vectors, that this thread takes of each row:
// of a logit below V, of padding below the stride. Only the first block of a row has such.
static __device__ __forceinline__ int edge_column(const CrossEntropy &args, bool first_block) {
  return first_block ? whole_vectors(args) * 8 + (int)threadIdx.x : INT32_MAX;
}
static __device__ __forceinline__ float edge_logit(const CrossEntropy &args, const bf16_bits *row,
                                                   int column) {
  return column < args.V ? bf16_to_float(row[column]) : 0.0f;
}
static __device__ __forceinline__ Sweep sweep_with_edge(Sweep a, const CrossEntropy &args,
                                                        int column, float logit, float c) {
  return column < args.V ? sweep_join(a, {c * logit, 1, logit}) : a;
}

// The inputs of the second sweep.
struct RowGradient {
  float c;      // u = c * stored logit
  float lse;    // in powers of two
  float factor; // r * grad_scale
};

// Gradients of a vector whose first column is `column`.
static __device__ __forceinline__ uint4 gradient_vector(const uint4 &v, const RowGradient &g,
                                                        int column, int target) {
  Pack<8> d = widen(v);
#pragma unroll
  for (int i = 0; i < 8; i++) d.v[i] = g.factor * exp2_fast(fmaf(d.v[i], g.c, -g.lse));
  if ((unsigned)(target - column) < 8u) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (column + i == target) d.v[i] -= g.factor;
  }
  return narrow(d);
}

static __device__ __forceinline__ void store_edge(const CrossEntropy &args, bf16_bits *row,
                                                  int column, float logit, const RowGradient &g,
                                                  int target) {
  if (column >= args.stride) return;
  const float d = g.factor * exp2_fast(fmaf(logit, g.c, -g.lse));
  row[column] = bf16_from_float(column >= args.V ? 0 : column == target ? d - g.factor : d);
}

// The stored logit of a row's target; of a row without one it is not used.
static __device__ __forceinline__ float target_logit(const bf16_bits *row, int target) {
  return target < 0 ? 0 : bf16_to_float(row[target]);
}

// Stores the row's results, by one thread. logit: the stored one of its target.
static __device__ __forceinline__ RowGradient finish_row(const CrossEntropy &args, int64_t m,
                                                         const Sweep &row, float r, int target,
                                                         float logit, bool stores) {
  const bool counts = target >= 0;
  const RowGradient g = {r * LOG2_E, row.largest + log2f(row.sum),
                         counts ? r * args.grad_scale : 0};
  const float scale = LN_2 * g.c; // z = scale * stored logit
  if (stores) args.row_loss[m] = counts ? LN_2 * g.lse - scale * logit : 0;
  if (stores && args.s) args.s[m] = counts ? g.factor * scale * (row.dot / row.sum - logit) : 0;
  return g;
}

// ---- One read. Launch: a cluster takes every n-th row of n clusters; a block of it holds threads
// * VECTORS vectors. A register that has given its gradient is filled from the next row at once, so
// that the loads of a row pass under the arithmetic of the one before.

// The blocks of a cluster exchange their sweeps. of_block: this row's buffer, one of two that
// alternate, so that one barrier per row is enough: a block that writes it two rows later has
// passed a barrier that the buffer's readers reached.
static __device__ __forceinline__ Sweep sweep_cluster(Sweep a, Sweep *of_block, int rank,
                                                      int cluster_size) {
  if (cluster_size > 1) {
    if ((int)threadIdx.x < cluster_size) *in_block(&of_block[rank], (int)threadIdx.x) = a;
    cluster_sync();
  } else {
    if (threadIdx.x == 0) of_block[rank] = a;
    __syncthreads();
  }
  Sweep row = of_block[0];
  for (int i = 1; i < cluster_size; i++) row = sweep_join(row, of_block[i]);
  return row;
}

// A thread's part of a row: the vectors first, first + step, ...
static __device__ __forceinline__ void load_held(uint4 (&held)[VECTORS], bf16_bits *row,
                                                 int vectors, int first, int step) {
#pragma unroll
  for (int j = 0; j < VECTORS; j++)
    if (first + j * step < vectors) held[j] = *vector_at(row, first + j * step);
}
static __device__ __forceinline__ Sweep sweep_held(const uint4 (&held)[VECTORS], int vectors,
                                                   int first, int step, float c) {
  Sweep a = sweep_empty();
  uint32_t largest = 0xff80ff80u; // two times -infinity
#pragma unroll
  for (int j = 0; j < VECTORS; j++)
    if (first + j * step < vectors) largest = max_two(largest, max_vector(held[j]));
  a.largest = fmaxf(a.largest, c * fmaxf(bf16_low(largest), bf16_high(largest)));
#pragma unroll
  for (int j = 0; j < VECTORS; j++)
    if (first + j * step < vectors) sweep_vector(a, held[j], c);
  return a;
}

// row_rstd, from a warp's shares.
static __device__ __forceinline__ float row_factor(const CrossEntropy &args, int64_t m,
                                                   float share) {
  const float r = rstd_from_shares(args.r, share, 32);
  return args.r.q && m < args.M ? r / args.r.q[m] : r;
}

template <bool GRADIENT>
static __global__ __launch_bounds__(MAX_THREADS,
                                    BLOCKS_AN_SM) void cross_entropy_kernel(CrossEntropy args,
                                                                            int cluster_size) {
  __shared__ Sweep scratch[32];
  __shared__ Sweep of_block[2][MAX_CLUSTER];
  const int rank = (int)(blockIdx.x % (unsigned)cluster_size);
  const int64_t clusters = gridDim.x / (unsigned)cluster_size;
  const int step = cluster_size * (int)blockDim.x;
  int first = rank * (int)blockDim.x + (int)threadIdx.x;
  if (cluster_size > 1) cluster_sync(); // all blocks run: their shared memory may be written
  int64_t m = blockIdx.x / (unsigned)cluster_size;
  const int vectors = whole_vectors(args), edge = edge_column(args, rank == 0);
  bf16_bits *logits = row_of(args, m);
  uint4 held[VECTORS];
  load_held(held, logits, vectors, first, step);
  const int lane = (int)(threadIdx.x % 32);
  float r = row_factor(args, m, row_share(args.r.sumsq, m, m < args.M, lane, 32));

  for (int turn = 0; m < args.M; turn ^= 1) {
    // Otherwise the compiler keeps all vectors' addresses in registers, and spills them.
    asm volatile("" : "+r"(first));
    const int target = args.targets[m];
    const float at_edge = edge_logit(args, logits, edge);
    // Read before any block overwrites it.
    const float at_target = first == 0 ? target_logit(logits, target) : 0.0f;
    const int64_t next = m + clusters;
    const float next_share = row_share(args.r.sumsq, next, next < args.M, lane, 32);

    const float c = r * LOG2_E;
    const Sweep a =
        sweep_with_edge(sweep_held(held, vectors, first, step, c), args, edge, at_edge, c);
    bf16_bits *next_logits = row_of(args, next);
    const int next_vectors = next < args.M ? vectors : 0;
    if (!GRADIENT) load_held(held, next_logits, next_vectors, first, step);
    const float next_r = row_factor(args, next, next_share);

    const Sweep row = sweep_cluster(sweep_block(a, scratch), of_block[turn], rank, cluster_size);
    const RowGradient g = finish_row(args, m, row, r, target, at_target, first == 0);
    if (GRADIENT) {
      store_edge(args, logits, edge, at_edge, g, target);
#pragma unroll
      for (int j = 0; j < VECTORS; j++) {
        const int i = first + j * step;
        if (i < vectors) *vector_at(logits, i) = gradient_vector(held[j], g, i * 8, target);
        if (i < next_vectors) held[j] = *vector_at(next_logits, i);
      }
    }
    m = next;
    logits = next_logits;
    r = next_r;
  }
}

// ---- Two reads. Launch: a block a row.
static __global__ __launch_bounds__(1024) void cross_entropy_loop_kernel(CrossEntropy args) {
  __shared__ Sweep scratch[32];
  __shared__ Sweep of_row;
  const int64_t m = blockIdx.x;
  bf16_bits *logits = row_of(args, m);
  const int target = args.targets[m], vectors = whole_vectors(args), edge = edge_column(args, true);
  const float r = row_rstd(args.r, m), c = r * LOG2_E;
  const float at_edge = edge_logit(args, logits, edge);
  const float at_target = target_logit(logits, target);

  Sweep a = sweep_with_edge(sweep_empty(), args, edge, at_edge, c);
#pragma unroll 4
  for (int i = (int)threadIdx.x; i < vectors; i += (int)blockDim.x) {
    const uint4 v = *vector_at(logits, i);
    const uint32_t two = max_vector(v);
    const float largest = c * fmaxf(bf16_low(two), bf16_high(two));
    if (largest > a.largest) a = sweep_join(a, {largest, 0.0f, 0.0f});
    sweep_vector(a, v, c);
  }
  a = sweep_block(a, scratch);
  if (threadIdx.x == 0) of_row = a;
  __syncthreads(); // also: every thread has read its single elements and the target
  const RowGradient g = finish_row(args, m, of_row, r, target, at_target, threadIdx.x == 0);
  if (!args.s) return;
  store_edge(args, logits, edge, at_edge, g, target);
#pragma unroll 4
  for (int i = (int)threadIdx.x; i < vectors; i += (int)blockDim.x)
    *vector_at(logits, i) = gradient_vector(*vector_at(logits, i), g, i * 8, target);
}

static void launch_clusters(const CrossEntropy *args, int64_t cluster, cudaStream_t stream) {
  const int64_t vectors = (args->V + 7) / 8;
  const unsigned warps = blocks_for(blocks_for(vectors, cluster), VECTORS * 32);
  // Rows a cluster: enough to hide its start, few enough for several clusters in turn on each
  // multiprocessor.
  const int64_t fair = args->M * cluster / (4 * BLOCKS_AN_SM * args->multiprocessors);
  const int64_t rows = fair < 1 ? 1 : fair > 16 ? 16 : fair;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {(unsigned)cluster, 1, 1};
  const dim3 grid(blocks_for(args->M, rows) * (unsigned)cluster), block(warps * 32);
  const cudaLaunchConfig_t config = {grid, block, 0, stream, &attribute, cluster > 1 ? 1u : 0u};
  CUDA_CHECK(cudaLaunchKernelEx(&config,
                                args->s ? cross_entropy_kernel<true> : cross_entropy_kernel<false>,
                                *args, (int)cluster));
}

void launch_cross_entropy(const CrossEntropy *args, cudaStream_t stream) {
  const int64_t vectors = (args->V + 7) / 8, most = args->clusters ? MAX_CLUSTER : 1;
  int64_t cluster = 1;
  while (cluster < most && vectors > cluster * MAX_THREADS * VECTORS) cluster *= 2;
  if (vectors <= cluster * MAX_THREADS * VECTORS) {
    launch_clusters(args, cluster, stream);
  } else {
    cross_entropy_loop_kernel<<<(unsigned)args->M, 1024, 0, stream>>>(*args);
    LAUNCHED();
  }
}

// ---- Scores. Launch: a block a row; the row of a target alone is read.
static __global__ __launch_bounds__(MAX_THREADS) void score_rows_kernel(CrossEntropy args,
                                                                        RowScore *scores) {
  __shared__ Sweep scratch[32];
  const int64_t m = blockIdx.x;
  const int target = args.targets[m], V = (int)args.V;
  if (target < 0) return;
  const bf16_bits *logits = row_of(args, m);
  const float c = row_rstd(args.r, m) * LOG2_E, at_target = target_logit(logits, target);
  Sweep a = sweep_empty();
  bool beaten = false;
  for (int v = (int)threadIdx.x; v < V; v += (int)blockDim.x) {
    const float logit = bf16_to_float(logits[v]);
    beaten |= logit > at_target || (logit == at_target && v < target);
    if (c * logit > a.largest) a = sweep_join(a, {c * logit, 0.0f, 0.0f});
    sweep_add(a, logit, c);
  }
  a = sweep_block(a, scratch);
  beaten = __syncthreads_or(beaten) != 0;
  if (threadIdx.x == 0)
    scores[m] = {LN_2 * (a.largest + log2f(a.sum) - c * at_target), beaten ? 0 : 1};
}

void launch_score_rows(const CrossEntropy *args, RowScore *scores, cudaStream_t stream) {
  score_rows_kernel<<<(unsigned)args->M, MAX_THREADS, 0, stream>>>(*args, scores);
  LAUNCHED();
}

// ---- The sum over rows. Launch: one block, which alone has little but its loads to hide them.
static __global__ void add_loss_kernel(int64_t M, const float *row_loss, double scale,
                                       StepState *state) {
  const double sum = sum_by_block<32>(M, row_loss);
  if (threadIdx.x == 0) state->loss += scale * sum;
}

void launch_add_loss(int64_t M, const float *row_loss, double scale, StepState *state,
                     cudaStream_t stream) {
  add_loss_kernel<<<1, 1024, 0, stream>>>(M, row_loss, scale, state);
  LAUNCHED();
}
