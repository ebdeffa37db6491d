// What the norm needs of the weight-gradient GEMMs' results, in three launches for all tensors; the
// results are only read:
//   1. gradients: a block a tile of 128 x 256 (or 32768 elements of a tensor that is not folded).
//        partial column sums of dW' W; partial sum of squares of dW = dW' wn (+ what the plain use
//        has left)
//   2. columns: dwn[k] = sum of the partial column sums of column k, over ascending rows; sum of
//        squares of dwn; a copy of wn, which dW needs after wn's own update
//   3. norm: one block adds all partial sums of squares in order, in double.
// Where gradients are bf16 the column sums are of dW' W', W' the bf16 copy, and divided by wn in
// the end: half of the bytes for W, and W' is rounded as dW' is.
// Norm weights are reached through the matrix that they are folded into; everything else has its
// own tiles. Bytes: a folded matrix reads dW' and W' or the fp32 master; others read dW.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tensors.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

// Whether column sums have W' for W.
template <typename Grad> static __device__ __forceinline__ bool of_copy(const DeviceTensor &t) {
  return sizeof(Grad) == sizeof(bf16_bits) && t.folded;
}

// N columns a lane, warps take rows in turn, four of them at a time, so that a thread's loads are
// under way together. Leaves the column sums of each warp; returns the thread's part of the sum of
// squares.
template <typename Grad, int N>
static __device__ __forceinline__ float folded_tile(const DeviceTensor &t, int64_t row0, int64_t c0,
                                                    float (&sums)[WARPS][TILE_COLS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rows = (int)min((int64_t)TILE_ROWS, t.rows - row0);
  const Grad *plain = (const Grad *)t.grad, *folded = (const Grad *)t.grad_folded;
  float squares = 0;
  for (int j = lane * N; j < TILE_COLS; j += 32 * N) {
    const int64_t c = c0 + j;
    Pack<N> column_sum = {};
    if (c < t.cols) {
      const Pack<N> wn = load_pack<N>(t.norm + c);
      for (int n0 = warp; n0 < rows; n0 += 4 * WARPS) {
        const int64_t first = (row0 + n0) * t.cols + c, step = WARPS * t.cols;
        Pack<N> g[4], w[4], d[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (n0 + k * WARPS < rows) {
            g[k] = load_pack<N>(folded + first + k * step);
            w[k] = of_copy<Grad>(t) ? load_pack<N>((const bf16_bits *)t.folded + first + k * step)
                                    : load_once<N>(t.master + first + k * step);
            if (plain) d[k] = load_pack<N>(plain + first + k * step);
          }
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (n0 + k * WARPS < rows) {
#pragma unroll
            for (int i = 0; i < N; i++) {
              column_sum.v[i] += g[k].v[i] * w[k].v[i];
              d[k].v[i] += g[k].v[i] * wn.v[i];
            }
            squares += square_sum(d[k]);
          }
      }
    }
    store_pack(&sums[warp][j], column_sum);
  }
  return squares;
}

template <typename Grad>
static __global__ __launch_bounds__(THREADS, 3) void gradients_kernel(ParamTable table) {
  __shared__ __align__(16) float sums[WARPS][TILE_COLS];
  __shared__ float scratch[32];
  const DeviceTensor t = table.tensors[table.tile_owner[blockIdx.x]];
  const int64_t tile = blockIdx.x - t.first_tile;
  float squares = 0;
  if (t.norm) {
    const int64_t across = (t.cols + TILE_COLS - 1) / TILE_COLS;
    const int64_t row_tile = tile / across, c0 = tile % across * TILE_COLS;
    if (t.cols % 4 == 0)
      squares = folded_tile<Grad, 4>(t, row_tile * TILE_ROWS, c0, sums);
    else
      squares = folded_tile<Grad, 1>(t, row_tile * TILE_ROWS, c0, sums);
    __syncthreads();
    const int64_t c = c0 + threadIdx.x;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
    if (c < t.cols) t.column_partials[row_tile * t.cols + c] = sum;
  } else {
    const Grad *grad = (const Grad *)t.grad;
    const int64_t begin = tile * TILE_ELEMENTS,
                  end = min(begin + (int64_t)TILE_ELEMENTS, t.rows * t.cols);
#pragma unroll 8
    for (int64_t i = begin + threadIdx.x * 4; i + 3 < end; i += THREADS * 4)
      squares += square_sum(load_pack<4>(grad + i));
    const int64_t rest = end - end % 4 + threadIdx.x;
    if (rest < end) squares += square_sum(load_pack<1>(grad + rest));
  }
  squares = block_sum(squares, scratch);
  if (threadIdx.x == 0) table.sumsq[blockIdx.x] = squares;
}

// The sum of every WARPS-th row's dW' W from row `first` on: where W' / wn is not W, in a column
// whose norm weight is next to nothing.
template <typename Grad>
static __device__ float sum_of_masters(const DeviceTensor &t, int64_t first, int64_t c) {
  float sum = 0;
  for (int64_t i = first * t.cols + c; i < t.rows * t.cols; i += WARPS * t.cols)
    sum += load_pack<1>((const Grad *)t.grad_folded + i).v[0] * t.master[i];
  return sum;
}

// Launch: a block COLUMN_BLOCK columns; 8 threads a column share out the rows.
template <typename Grad>
static __global__ __launch_bounds__(THREADS) void columns_kernel(ParamTable table) {
  __shared__ float part[WARPS][COLUMN_BLOCK];
  const DeviceTensor t = table.tensors[table.column_owner[blockIdx.x]];
  const int share = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t c = (blockIdx.x - t.first_column) * COLUMN_BLOCK + lane;
  const int64_t rows = (t.rows + TILE_ROWS - 1) / TILE_ROWS;
  const float wn = c < t.cols ? t.norm[c] : 1;
  const bool tiny = fabsf(wn) < 0x1p-60f;
  float sum = 0;
  if (c < t.cols && of_copy<Grad>(t) && tiny) {
    sum = sum_of_masters<Grad>(t, share, c);
  } else if (c < t.cols) {
#pragma unroll 8
    for (int64_t n = share; n < rows; n += WARPS) sum += t.column_partials[n * t.cols + c];
  }
  part[share][lane] = sum;
  __syncthreads();
  if (share > 0) return;
  sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) sum += part[i][lane];
  Pack<1> dwn = {of_copy<Grad>(t) && !tiny ? sum / wn : sum};
  if (c < t.cols) {
    store_pack((Grad *)t.norm_grad + c, dwn);
    t.norm_before[c] = wn;
  }
  const float squares = warp_sum(c < t.cols ? square_sum(dwn) : 0.0f);
  if (lane == 0) table.sumsq[table.tiles + blockIdx.x] = squares;
}

static __global__ void norm_kernel(int64_t count, const float *sumsq, StepState *state) {
  const double sum = sum_by_block<8>(count, sumsq);
  if (threadIdx.x == 0) state->grad_norm = sqrt(sum);
}

// Four elements a thread at a time.
static __global__ __launch_bounds__(THREADS) void round_gradient_kernel(int64_t count,
                                                                        const float *from,
                                                                        bf16_bits *to) {
  const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x,
                all = (int64_t)gridDim.x * THREADS;
#pragma unroll 4
  for (int64_t i = thread * 4; i + 3 < count; i += all * 4)
    store_once(to + i, load_once<4>(from + i));
  const int64_t rest = count - count % 4 + thread;
  if (rest < count) store_once(to + rest, load_once<1>(from + rest));
}

void cuda_round_gradient(const Cuda *c, int64_t count, const stat_t *from, grad_t *to) {
  enum { MOST_BLOCKS = 1 << 14 };
  const int64_t blocks = blocks_for(count, 16 * THREADS);
  round_gradient_kernel<<<(unsigned)min(blocks, (int64_t)MOST_BLOCKS), THREADS, 0, c->gpu.stream>>>(
      count, (const float *)from, (bf16_bits *)to);
  LAUNCHED();
}

void cuda_grads_finish(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  const cudaStream_t stream = c->gpu.stream;
  by_gradient(table->grads_fp32, [&](auto *grad) {
    using Grad = std::remove_pointer_t<decltype(grad)>;
    gradients_kernel<Grad><<<(unsigned)table->tiles, THREADS, 0, stream>>>(*table);
    LAUNCHED();
    if (table->columns > 0)
      columns_kernel<Grad><<<(unsigned)table->columns, THREADS, 0, stream>>>(*table);
    LAUNCHED();
  });
  norm_kernel<<<1, 1024, 0, stream>>>(table->tiles + table->columns, table->sumsq, c->state);
  LAUNCHED();
}
