// The end of a step: the norm of the gradients, and AdamW. One launch serves all tensors, through
// the tables of table.c.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/update.cuh"
#include "kernels/formats.h"

// ---- The norm of the gradients, in three launches for all tensors. The results of the
// weight-gradient GEMMs are only read:
//   1. gradients: a block a tile of 128 x 256 (or 32768 elements of a tensor that is not folded).
//        partial column sums of dW' W; partial sum of squares of dW = dW' wn (+ the plain use's
//        gradient)
//   2. columns: dwn[k] = sum of the partial column sums of column k, over ascending rows; sum of
//        squares of dwn; a copy of wn, which dW needs after wn's own update
//   3. norm: one block adds all partial sums of squares in order, in double.
// Where gradients are bf16 the column sums are of dW' W', W' the FP8 copy, or the bf16 copy of fp32
// masters, and divided by wn in the end: a quarter or half of the bytes for W, and W' is rounded as
// the operands of dW' are, or as dW' is.
// Norm weights are reached through the matrix that they are folded into; everything else has its
// own tiles. Bytes: a folded matrix reads dW' and W' or the master; others read dW.

enum { THREADS = 256, WARPS = THREADS / 32 };

template <typename Master, int N>
static __device__ __forceinline__ Pack<N> load_master(const DeviceTensor &t, int64_t i) {
  return load_once<N>((const Master *)t.master + i);
}

// True where column sums read W' in place of W: from by_row, which is of W', too, where there is
// one, else from `folded`.
template <typename Grad, typename Master>
static __device__ __forceinline__ bool of_copy(const DeviceTensor &t) {
  return sizeof(Grad) == 2 && (sizeof(Master) == 4 || t.by_row);
}

// N columns of what column sums read, from element i on. Of an FP8 copy they are times its scale:
// of a group of 16 columns, half are two of every four bytes (fp8_column_place).
template <int N, typename Weight>
static __device__ __forceinline__ Pack<N> load_weight(const Weight *from, int64_t i) {
  if constexpr (N == 8 && sizeof(Weight) == 1) {
    const uint4 group = *reinterpret_cast<const uint4 *>(from + (i & ~(int64_t)15));
    const uint32_t words[4] = {group.x, group.y, group.z, group.w};
    Pack<8> p;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 v = __half22float2(half2_of_e4m3((uint16_t)(words[k] >> (i & 8) * 2)));
      p.v[2 * k] = v.x;
      p.v[2 * k + 1] = v.y;
    }
    return p;
  } else if constexpr (sizeof(Weight) > 1) {
    return load_pack<N>(from + i);
  } else {
    return {}; // FP8 copies have whole groups
  }
}

// A lane's N columns of a tile. plain: NULL unless PLAIN.
template <bool PLAIN, int N, typename Grad, typename Weight> struct FoldedColumns {
  const Grad *plain, *folded;
  const Weight *W;
  Pack<N> wn, sum; // sum: of dW' and what W is
  float squares;

  // ROWS rows, `step` elements apart, from element `first` on. Their loads are in flight together:
  // there is no branch between them.
  template <int ROWS> __device__ __forceinline__ void add(int64_t first, int64_t step) {
    Pack<N> g[ROWS], w[ROWS], d[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      g[k] = load_pack<N>(folded + first + k * step);
      w[k] = load_weight<N>(W, first + k * step);
      d[k] = {};
      if (PLAIN) d[k] = load_pack<N>(plain + first + k * step);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        sum.v[i] += g[k].v[i] * w[k].v[i];
        d[k].v[i] += g[k].v[i] * wn.v[i];
      }
      squares += square_sum(d[k]);
    }
  }
};

// Warps process rows in turn. Writes the column sums of each warp; returns the thread's part of the
// sum of squares.
template <bool PLAIN, int N, typename Grad, typename Weight>
static __device__ __forceinline__ float folded_tile(const DeviceTensor &t, const Weight *W,
                                                    int64_t row0, int64_t c0,
                                                    float (&sums)[WARPS][TILE_COLS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rows = (int)min((int64_t)TILE_ROWS, t.rows - row0);
  const int64_t step = WARPS * t.cols;
  FoldedColumns<PLAIN, N, Grad, Weight> columns = {(const Grad *)t.grad,
                                                   (const Grad *)t.grad_folded, W};
  for (int j = lane * N; j < TILE_COLS; j += 32 * N) {
    const int64_t c = c0 + j, first = row0 * t.cols + c;
    columns.sum = {};
    if (c < t.cols) {
      int n = warp;
      columns.wn = load_pack<N>(t.norm + c);
      for (; n + 3 * WARPS < rows; n += 4 * WARPS)
        columns.template add<4>(first + n * t.cols, step);
      for (; n < rows; n += WARPS) columns.template add<1>(first + n * t.cols, step);
    }
    store_pack(&sums[warp][j], columns.sum);
  }
  return columns.squares;
}

// The same of any tensor with a norm.
template <int N, typename Grad, typename Master>
static __device__ __forceinline__ float any_tile(const DeviceTensor &t, int64_t row0, int64_t c0,
                                                 float (&sums)[WARPS][TILE_COLS]) {
  const auto tile = [&](const auto *W) {
    return t.grad ? folded_tile<true, N, Grad>(t, W, row0, c0, sums)
                  : folded_tile<false, N, Grad>(t, W, row0, c0, sums);
  };
  if constexpr (sizeof(Grad) == 2)
    if (t.by_row) return tile(t.by_row);
  if constexpr (sizeof(Grad) == 2 && sizeof(Master) == 4)
    return tile(t.folded);
  else
    return tile((const Master *)t.master);
}

template <typename Grad, typename Master>
static __global__ __launch_bounds__(THREADS, 3) void gradients_kernel(ParamTable table) {
  constexpr int WIDE = 16 / sizeof(Grad);
  __shared__ __align__(16) float sums[WARPS][TILE_COLS];
  __shared__ float scratch[32];
  const auto [tensor, block] = table.gradient_order[blockIdx.x];
  const DeviceTensor t = table.tensors[tensor];
  const int64_t tile = block - t.first_tile;
  float squares = 0;
  if (t.norm) {
    const int64_t across = (t.cols + TILE_COLS - 1) / TILE_COLS;
    const int64_t row_tile = tile / across, c0 = tile % across * TILE_COLS;
    if (t.cols % WIDE == 0)
      squares = any_tile<WIDE, Grad, Master>(t, row_tile * TILE_ROWS, c0, sums);
    else
      squares = any_tile<1, Grad, Master>(t, row_tile * TILE_ROWS, c0, sums);
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
    for (int64_t i = begin + threadIdx.x * WIDE; i + WIDE - 1 < end; i += THREADS * WIDE)
      squares += square_sum(load_pack<WIDE>(grad + i));
    const int64_t rest = end - end % WIDE + threadIdx.x;
    if (rest < end) squares += square_sum(load_pack<1>(grad + rest));
  }
  squares = block_sum(squares, scratch);
  if (threadIdx.x == 0) table.sumsq[block] = squares;
}

// True where W' / wn is not W, in a column whose norm weight is next to nothing: of the FP8 copy
// where weights of 1/64 are below e4m3's normal values.
static __device__ __forceinline__ bool is_lost(const DeviceTensor &t, float wn) {
  return fabsf(wn) < (t.by_row ? 1 / t.scaling->scale : 0x1p-60f);
}

// The sum of every WARPS-th row's dW' W from row `first` on, where W' is lost.
template <typename Grad, typename Master>
static __device__ float sum_of_masters(const DeviceTensor &t, int64_t first, int64_t c) {
  float sum = 0;
  for (int64_t i = first * t.cols + c; i < t.rows * t.cols; i += WARPS * t.cols)
    sum += load_pack<1>((const Grad *)t.grad_folded + i).v[0] * load_master<Master, 1>(t, i).v[0];
  return sum;
}

// Launch: COLUMN_BLOCK columns per block; the 8 threads of a column divide the rows among them.
template <typename Grad, typename Master>
static __global__ __launch_bounds__(THREADS) void columns_kernel(ParamTable table) {
  __shared__ float part[WARPS][COLUMN_BLOCK];
  const DeviceTensor t = table.tensors[table.column_owner[blockIdx.x]];
  const int share = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t c = (blockIdx.x - t.first_column) * COLUMN_BLOCK + lane;
  const int64_t rows = (t.rows + TILE_ROWS - 1) / TILE_ROWS;
  const float wn = c < t.cols ? t.norm[c] : 1;
  const bool copied = of_copy<Grad, Master>(t), lost = copied && is_lost(t, wn);
  float sum = 0;
  if (c < t.cols && lost) {
    sum = sum_of_masters<Grad, Master>(t, share, c);
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
  if (copied && !lost) sum = (t.by_row ? sum * t.scaling->inverse : sum) / wn;
  Pack<1> dwn = {sum};
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

// Calls launch with a null pointer to the type of the matrices' masters.
template <class Launch> static void by_master(const Cuda *c, Launch launch) {
  if (c->base.spec.masters == MASTERS_BF16)
    launch((bf16_bits *)nullptr);
  else
    launch((float *)nullptr);
}

void cuda_grads_finish(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  const cudaStream_t stream = c->gpu.stream;
  by_gradient(table->grads_fp32, [&](auto *grad) {
    by_master(c, [&](auto *master) {
      using Grad = std::remove_pointer_t<decltype(grad)>;
      using Master = std::remove_pointer_t<decltype(master)>;
      gradients_kernel<Grad, Master><<<(unsigned)table->tiles, THREADS, 0, stream>>>(*table);
      LAUNCHED();
      if (table->columns > 0)
        columns_kernel<Grad, Master><<<(unsigned)table->columns, THREADS, 0, stream>>>(*table);
      LAUNCHED();
    });
  });
  norm_kernel<<<1, 1024, 0, stream>>>(table->tiles + table->columns, table->sumsq, c->state);
  LAUNCHED();
  cuda_loans_fetch(c);
}

// ---- FP8 copies of a weight: one pass over W [N, K] writes by_row [N, K], by_col [K, stride].
//
// A block of 8 warps has a tile of 128 x 128. A warp has 16 of its rows, a lane four neighbouring
// columns, of four rows at a time: 2q, 2q + 1, 2q + 8 and 2q + 9, whose values of a column are four
// neighbouring bytes of by_col (kernels/formats.h). So both copies are written as words: those of
// by_row after an exchange between two lanes, since four columns are halves of two such words;
// those of by_col after a transposition of 4 x 4 bytes. The words of by_col stay in shared memory
// until a column's 128 bytes are complete.

enum { WEIGHT_THREADS = 256 };

struct WeightTile {
  const DeviceTensor &t;
  uint32_t (*by_col)[WEIGHT_TILE / 4]; // [WEIGHT_TILE] in shared memory: words of columns
  int64_t row0;                        // of the tile
  int c0;
  int warp, lane;
  float scale;
  uint32_t largest; // bits of the largest |value|; NaN is larger than all

  __device__ __forceinline__ int column() const {
    return c0 + lane * 4;
  }
  // Row k (0 .. 3) of step q (0 .. 3).
  __device__ __forceinline__ int64_t row(int q, int k) const {
    return row0 + warp * 16 + 2 * q + k % 2 + k / 2 * 8;
  }
  __device__ __forceinline__ bool inside(int q, int k) const {
    return column() < t.cols && row(q, k) < t.rows;
  }

  __device__ __forceinline__ void count(float value) {
    largest = max(largest, __float_as_uint(fabsf(value)));
  }
  __device__ __forceinline__ uint32_t convert(const Pack<4> &p) {
    uint32_t two[2];
#pragma unroll
    for (int i = 0; i < 4; i++) count(p.v[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) two[i] = e4m3_two(p.v[2 * i] * scale, p.v[2 * i + 1] * scale);
    return two[0] | two[1] << 16;
  }

  // Four columns of a row. The lane two on has those 8 on; they share two words of by_row, and each
  // stores one. By whole warps.
  __device__ __forceinline__ void store_row(int64_t row, bool inside, uint32_t four) const {
    const bool second = lane & 2;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, second ? four : four >> 16, 2),
                   word = second ? __byte_perm(got, four, 0x7610) : __byte_perm(four, got, 0x5410);
    const int place = column() - lane % 4 * 4 + (lane % 2 * 2 + second) * 4;
    if (inside) *reinterpret_cast<uint32_t *>(t.by_row + row * t.cols + place) = word;
  }

  // Step q: the values of four columns in each of the four rows, 0 past the last.
  __device__ __forceinline__ void store(int q, const Pack<4> (&values)[4]) {
    uint32_t rows[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      rows[k] = convert(values[k]);
      store_row(row(q, k), inside(q, k), rows[k]);
    }
    const uint32_t a = __byte_perm(rows[0], rows[1], 0x5140),
                   b = __byte_perm(rows[2], rows[3], 0x5140),
                   c = __byte_perm(rows[0], rows[1], 0x7362),
                   d = __byte_perm(rows[2], rows[3], 0x7362);
    const int word = (warp * 4 + q) ^ lane; // no bank conflicts, here or in finish
    by_col[lane * 4][word] = __byte_perm(a, b, 0x5410);
    by_col[lane * 4 + 1][word] = __byte_perm(a, b, 0x7632);
    by_col[lane * 4 + 2][word] = __byte_perm(c, d, 0x5410);
    by_col[lane * 4 + 3][word] = __byte_perm(c, d, 0x7632);
  }

  // After all steps, by the whole block.
  __device__ __forceinline__ void finish() const {
    if (!t.by_col) return;
    __syncthreads();
    const int64_t row = row0 + lane * 4, end = fp8_padded(t.rows);
    for (int c = warp; c < WEIGHT_TILE && c0 + c < t.cols; c += WEIGHT_THREADS / 32)
      if (row < end)
        *reinterpret_cast<uint32_t *>(t.by_col + (c0 + c) * t.stride + row) =
            by_col[c][lane ^ (c / 4)];
  }

  // In the tensor's scaling, by whole warps.
  __device__ __forceinline__ void report(int64_t block) const {
    const uint32_t most = __reduce_max_sync(0xffffffffu, largest);
    if (lane == 0) atomicMax(&t.scaling->maxima[(block * 8 + warp) % MAXIMA], most);
  }
};

// The tensor of a block of the update.
static __device__ __forceinline__ WeightTile weight_tile(const DeviceTensor &t, int64_t block,
                                                         uint32_t (*by_col)[WEIGHT_TILE / 4]) {
  const int64_t tile = block - t.first_update, across = (t.cols + WEIGHT_TILE - 1) / WEIGHT_TILE;
  return {t,
          by_col,
          tile / across * WEIGHT_TILE,
          (int)(tile % across) * WEIGHT_TILE,
          (int)threadIdx.x / 32,
          (int)threadIdx.x % 32,
          t.scaling->scale,
          0};
}

// ---- AdamW over all tensors, and the compute copies. arXiv 1711.05101, as torch.optim.AdamW:
//   g' = scale g     m = b1 m + (1 - b1) g'      v = b2 v + (1 - b2) g'^2
//   W = (1 - lr decay) W - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
//   compute = bf16(W)      folded = bf16(W wn), with the wn of this update; or both FP8 copies
// and g = grad + grad_folded wn, with the wn that the forward used (grads_finish copies it). scale
// is gradient_scale times the factor of clipping. Three launches: norm weights first, since the
// folded copies read them; then the tensors with bf16 copies, then those with FP8 copies (a tile
// per block). Before them one thread scales the loss and the norm, decides on the device whether
// the update is applied (both finite), counts it, and computes its factors: so no value has to be
// copied to the host within a step. Bytes an element: 12 + 12 of fp32 state (4 + 4 fewer with bf16
// moments and 2 + 2 with bf16 masters, rounded after the step is made), a gradient of 2 or 4,
// copies of 2 (twice both for a tied embedding; none where the master is the compute weight).
// Launch: UPDATE_BLOCK elements of one tensor, 4 per thread at a time, or a tile per block. What is
// offloaded crosses the bus while other blocks are busy with the GPU's memory (table.c).

static __global__ void factors_kernel(StepState *state) {
  const AdamW a = state->hyper;
  state->loss *= a.gradient_scale;
  state->grad_norm *= a.gradient_scale;
  state->applied = isfinite(state->loss) && isfinite(state->grad_norm);
  if (!state->applied) return;
  const double t = (double)++state->updates;
  const bool clipped = a.clip_norm > 0 && state->grad_norm > a.clip_norm;
  state->scale = (float)(a.gradient_scale * (clipped ? a.clip_norm / state->grad_norm : 1));
  state->step_size = (float)(a.learning_rate / (1 - pow(a.beta1, t)));
  state->per_root = (float)(1 / sqrt(1 - pow(a.beta2, t)));
}

struct Factors {
  float scale, step_size, per_root, keep, beta1, beta2, eps, learning_rate;
  uint32_t key, of_masters; // of the noise of bf16 moments and masters
};

static __device__ __forceinline__ float update(float w, float &m, float &v, float g,
                                               const Factors &f) {
  g *= f.scale;
  m = f.beta1 * m + (1 - f.beta1) * g;
  v = f.beta2 * v + (1 - f.beta2) * g * g;
  return f.keep * w - f.step_size * m / (sqrtf(v) * f.per_root + f.eps);
}

// g: of a tensor with parts Muon's direction, which `rate` multiplies.
template <int N> struct Elements {
  Pack<N> w, m, v, g;
  float rate;
};

// The elements of the tensor from i on, of one row. norm: wn of their columns, as the forward used
// it.
template <typename Grad, typename Moment, typename Master, int N>
static __device__ __forceinline__ Elements<N> load_elements(const DeviceTensor &t, int64_t i,
                                                            const Pack<N> &norm) {
  return {load_master<Master, N>(t, i), load_once<N>((const Moment *)t.m + i),
          load_once<N>((const Moment *)t.v + i), gradient<Grad, N>(t, i, norm), 0};
}

// Of a tensor with parts; the columns from `column` on.
template <typename Master, int N>
static __device__ __forceinline__ Elements<N>
load_direction(const DeviceTensor &t, int64_t i, const PartList &parts, int64_t row, int column) {
  const PartRow at = parts.of(row, t.cols);
  return {load_master<Master, N>(t, i), {}, {}, load_pack<N>(at.direction + column), at.rate};
}

// Stores the weights as they are from now on: rounded in `w`, too.
template <typename Master, int N>
static __device__ __forceinline__ void store_master(const DeviceTensor &t, int64_t i, Pack<N> &w,
                                                    const Factors &f) {
  if constexpr (std::is_same_v<Master, bf16_bits>) {
#pragma unroll
    for (int k = 0; k < N; k++) w.v[k] = master_round(w.v[k], f.of_masters, i + k);
  }
  store_once((Master *)t.master + i, w);
}

// Updates and stores them, and writes the new weights into e.
template <typename Moment, typename Master, int N>
static __device__ __forceinline__ void update_elements(const DeviceTensor &t, int64_t i,
                                                       Elements<N> &e, const Factors &f) {
  if (t.part_count > 0) {
#pragma unroll
    for (int k = 0; k < N; k++)
      e.w.v[k] = f.keep * e.w.v[k] - f.learning_rate * (e.rate * e.g.v[k]);
    store_master<Master>(t, i, e.w, f);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++) e.w.v[k] = update(e.w.v[k], e.m.v[k], e.v.v[k], e.g.v[k], f);
  store_master<Master>(t, i, e.w, f);
  if constexpr (std::is_same_v<Moment, bf16_bits>) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const uint32_t noise = moment_noise(f.key, i + k);
      e.m.v[k] = moment_round(e.m.v[k], noise);
      e.v.v[k] = moment_round(e.v.v[k], noise >> 16);
    }
  }
  store_once((Moment *)t.m + i, e.m);
  store_once((Moment *)t.v + i, e.v);
}

template <int N>
static __device__ __forceinline__ void copy_pack(const DeviceTensor &t, int64_t i, int column,
                                                 const Pack<N> &w) {
  Pack<N> copy = w;
  if (t.compute) store_pack(t.compute + i, copy);
  if (!t.folded) return;
  const Pack<N> wn = at_columns<N>(t.norm, column, (int)t.cols);
#pragma unroll
  for (int k = 0; k < N; k++) copy.v[k] = w.v[k] * wn.v[k];
  store_pack(t.folded + i, copy);
}

// The update and the copies; where Moment is void, only the copies.
template <typename Grad, typename Moment, typename Master, int N>
static __device__ __forceinline__ void step(const DeviceTensor &t, const PartList &parts, int64_t i,
                                            int64_t row, int column, const Factors &f) {
  if constexpr (std::is_void_v<Moment>) {
    copy_pack(t, i, column, load_pack<N>((const Master *)t.master + i));
  } else {
    Pack<N> norm = {};
    if (t.norm) norm = at_columns<N>(t.norm_before, column, (int)t.cols);
    Elements<N> e = t.part_count > 0 ? load_direction<Master, N>(t, i, parts, row, column)
                                     : load_elements<Grad, Moment, Master, N>(t, i, norm);
    update_elements<Moment, Master>(t, i, e, f);
    copy_pack(t, i, column, e.w);
  }
}

static __device__ __forceinline__ Factors factors_of(const DeviceTensor &t,
                                                     const StepState *state) {
  const AdamW &a = state->hyper;
  const float keep = (float)(1 - a.learning_rate * (t.vector ? 0 : a.weight_decay));
  return {state->scale,
          state->step_size * (t.vector ? (float)a.norm_rate : 1),
          state->per_root,
          keep,
          (float)a.beta1,
          (float)a.beta2,
          (float)a.eps,
          (float)a.learning_rate,
          moment_key(state->updates, t.index),
          master_key(state->updates, t.index)};
}

template <typename Grad, typename Moment, typename Master>
static __global__ __launch_bounds__(THREADS) void adamw_kernel(ParamTable table,
                                                               int64_t first_block,
                                                               const StepState *state) {
  __shared__ PartList parts;
  constexpr bool UPDATE = !std::is_void_v<Moment>;
  if (UPDATE && !state->applied) return;
  const auto [tensor, block] = table.update_order[first_block + blockIdx.x];
  const DeviceTensor t = table.tensors[tensor];
  const Factors f = UPDATE ? factors_of(t, state) : Factors{};
  if (UPDATE && t.part_count > 0) parts.fill(t);
  const int64_t begin = (block - t.first_update) * UPDATE_BLOCK,
                end = min(begin + (int64_t)UPDATE_BLOCK, t.rows * t.cols);
  const BlockOfRows rows(t, begin);
  if (t.part_count > 0 && t.cols % 4 != 0) { // four neighbours may be of two rows
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
      step<Grad, Moment, Master, 1>(t, parts, i, rows.row(i), rows.column(i), f);
    return;
  }
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x * 4; i + 3 < end; i += THREADS * 4)
    step<Grad, Moment, Master, 4>(t, parts, i, rows.row(i), rows.column(i), f);
  const int64_t i = end - end % 4 + threadIdx.x; // the last one to three elements of a tensor
  if (i < end) step<Grad, Moment, Master, 1>(t, parts, i, rows.row(i), rows.column(i), f);
}

// Of step q's rows; 0 past the last. Without branches, so that all loads are in flight together.
template <typename Master>
static __device__ __forceinline__ void
load_directions(const WeightTile &tile, const PartList &parts, int q, Elements<4> (&e)[4]) {
  const DeviceTensor &t = tile.t;
  const int column = min(tile.column(), (int)t.cols - 4);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int64_t row = min(tile.row(q, k), t.rows - 1);
    e[k] = load_direction<Master, 4>(t, row * t.cols + column, parts, row, column);
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int c = 0; c < 4; c++) e[k].w.v[c] = tile.inside(q, k) ? e[k].w.v[c] : 0;
}

// For tensors with FP8 copies, a tile per block. A skipped update writes the copies, too, since
// their scales may be new.
template <typename Grad, typename Moment, typename Master>
static __global__ __launch_bounds__(WEIGHT_THREADS,
                                    2) void adamw_fp8_kernel(ParamTable table, int64_t first_block,
                                                             const StepState *state) {
  __shared__ uint32_t by_col[WEIGHT_TILE][WEIGHT_TILE / 4];
  __shared__ PartList parts;
  constexpr bool UPDATE = !std::is_void_v<Moment>;
  const bool update = UPDATE && state->applied;
  const auto [tensor, block] = table.update_order[first_block + blockIdx.x];
  const DeviceTensor t = table.tensors[tensor];
  const Factors f = update ? factors_of(t, state) : Factors{};
  if (update && t.part_count > 0) parts.fill(t);
  WeightTile tile = weight_tile(t, block, by_col);
  const int column = tile.column();
  Pack<4> before = {}, norm = {1, 1, 1, 1};
  if (t.norm && column < t.cols) {
    if (UPDATE) before = load_pack<4>((const float *)t.norm_before + column);
    norm = load_pack<4>(t.norm + column);
  }
#pragma unroll 1
  for (int q = 0; q < 4; q++) {
    Elements<4> e[4] = {};
    if (update && t.part_count > 0) {
      load_directions<Master>(tile, parts, q, e);
    } else {
#pragma unroll
      for (int k = 0; k < 4; k++) { // their loads are in flight together
        const int64_t i = tile.row(q, k) * t.cols + column;
        if (!tile.inside(q, k)) continue;
        if constexpr (UPDATE) {
          if (update) e[k] = load_elements<Grad, Moment, Master, 4>(t, i, before);
        }
        if (!update) e[k].w = load_master<Master, 4>(t, i);
      }
    }
    Pack<4> values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int64_t i = tile.row(q, k) * t.cols + column;
      const bool inside = tile.inside(q, k);
      if constexpr (UPDATE) {
        if (update && inside) update_elements<Moment, Master>(t, i, e[k], f);
      }
#pragma unroll
      for (int c = 0; c < 4; c++) values[k].v[c] = e[k].w.v[c] * norm.v[c];
      if (t.compute && inside) store_pack(t.compute + i, e[k].w);
    }
    tile.store(q, values);
  }
  tile.finish();
  tile.report(block);
}

// The largest values of the tensors that have no scale yet.
template <typename Master>
static __global__
__launch_bounds__(WEIGHT_THREADS) void largest_weight_kernel(ParamTable table,
                                                             int64_t first_block) {
  const auto [tensor, block] = table.update_order[first_block + blockIdx.x];
  const DeviceTensor t = table.tensors[tensor];
  if (t.scaling->scale != 0) return;
  WeightTile tile = weight_tile(t, block, nullptr);
  for (int i = 0; i < 16; i++)
    for (int c = tile.column(); tile.inside(i / 4, i % 4) && c < tile.column() + 4; c++)
      tile.count(load_master<Master, 1>(t, tile.row(i / 4, i % 4) * t.cols + c).v[0] *
                 (t.norm ? t.norm[c] : 1));
  tile.report(block);
}

template <typename Grad, typename Moment, typename Master> static void launch(const Cuda *c) {
  const ParamTable &table = c->table;
  const auto blocks = [&](auto kernel, int threads, int64_t first, int64_t end) {
    if (first == end) return;
    kernel<<<(unsigned)(end - first), threads, 0, c->gpu.stream>>>(table, first, c->state);
    LAUNCHED();
  };
  blocks(adamw_kernel<Grad, Moment, float>, THREADS, 0, table.vector_blocks);
  blocks(adamw_kernel<Grad, Moment, Master>, THREADS, table.vector_blocks, table.plain_blocks);
  blocks(adamw_fp8_kernel<Grad, Moment, Master>, WEIGHT_THREADS, table.plain_blocks,
         table.update_blocks);
}

void cuda_decide(const Cuda *c) {
  factors_kernel<<<1, 1, 0, c->gpu.stream>>>(c->state);
  LAUNCHED();
}

void cuda_adamw(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  if (table->part_count == 0) cuda_decide(c); // else muon did
  if (c->scalings)
    launch_scalings_update(c->scalings, c->base.spec.weight_scalings, c->base.spec.scaling_count,
                           c->state, c->gpu.stream);
  by_gradient(c->table.grads_fp32, [&](auto *grad) {
    by_master(c, [&](auto *master) {
      using Grad = std::remove_pointer_t<decltype(grad)>;
      using Master = std::remove_pointer_t<decltype(master)>;
      if (c->base.spec.moments == MOMENTS_BF16)
        launch<Grad, bf16_bits, Master>(c);
      else
        launch<Grad, float, Master>(c);
    });
  });
}

void cuda_largest_weights(const Cuda *c) {
  const int64_t first = c->table.plain_blocks, blocks = c->table.update_blocks - first;
  by_master(c, [&](auto *master) {
    using Master = std::remove_pointer_t<decltype(master)>;
    largest_weight_kernel<Master>
        <<<(unsigned)blocks, WEIGHT_THREADS, 0, c->gpu.stream>>>(c->table, first);
    LAUNCHED();
  });
}

void cuda_copy_weights(const Cuda *c) {
  by_master(c,
            [&](auto *master) { launch<float, void, std::remove_pointer_t<decltype(master)>>(c); });
}
