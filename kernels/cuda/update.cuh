// What the kernels of an update share: the gradient of W, Muon's direction, rows of a block.
#pragma once
#include "kernels/cuda/common.cuh"

// Of a vector over the columns of a matrix, from one column on; past the last one comes the first.
template <int N>
static __device__ __forceinline__ Pack<N> at_columns(const float *vector, int column, int cols) {
  if (N > 1 && cols % N == 0) return load_pack<N>(vector + column);
  Pack<N> values;
#pragma unroll
  for (int k = 0; k < N; k++) values.v[k] = vector[(column + k) % cols];
  return values;
}

// g = grad + grad_folded wn of the elements from i on. norm: wn of their columns, as the forward
// used it.
template <typename Grad, int N>
static __device__ __forceinline__ Pack<N> gradient(const DeviceTensor &t, int64_t i,
                                                   const Pack<N> &norm) {
  Pack<N> g = {};
  if (t.grad) g = load_pack<N>((const Grad *)t.grad + i);
  if (!t.grad_folded) return g;
  const Pack<N> folded = load_pack<N>((const Grad *)t.grad_folded + i);
#pragma unroll
  for (int k = 0; k < N; k++) g.v[k] += folded.v[k] * norm.v[k];
  return g;
}

// A row of a part: its first element of Muon's direction, and the step along that, as a multiple of
// the learning rate.
struct PartRow {
  int slot;
  float rate;
  bf16_bits *direction;
};

// The parts of a block's tensor, in shared memory. A row finds its own without a loop or a chain of
// loads, which would keep other rows' loads waiting.
struct PartList {
  int first[MOST_PARTS], rows[MOST_PARTS], shift[MOST_PARTS];
  float rate[MOST_PARTS];
  bf16_bits *direction[MOST_PARTS];

  // By the whole block. While the momentum is made, the factors are those of the step before.
  __device__ __forceinline__ void fill(const DeviceTensor &t) {
    const int k = (int)threadIdx.x;
    if (k < t.part_count) {
      const DevicePart part = t.parts[k];
      first[k] = (int)part.first;
      rows[k] = (int)part.rows;
      shift[k] = part.shift;
      rate[k] = part.rate * *part.factor;
      direction[k] = part.direction;
    } else if (k < MOST_PARTS) {
      first[k] = rows[k] = shift[k] = 0;
    }
    __syncthreads();
  }
  __device__ __forceinline__ PartRow of(int64_t row, int64_t cols) const {
    int slot = 0, in_slot = 0;
#pragma unroll
    for (int k = 0; k < MOST_PARTS; k++) {
      const int from_first = (int)row - first[k], in_part = from_first >> shift[k];
      const bool is_there =
          from_first >= 0 && in_part << shift[k] == from_first && in_part < rows[k];
      slot = is_there ? k : slot;
      in_slot = is_there ? in_part : in_slot;
    }
    return {slot, rate[slot], direction[slot] + in_slot * cols};
  }
};

// The rows and columns of the UPDATE_BLOCK elements of a tensor from `begin` on.
struct BlockOfRows {
  int64_t begin, first_row;
  int first_column, cols;

  __device__ __forceinline__ BlockOfRows(const DeviceTensor &t, int64_t begin_)
      : begin(begin_), first_row(begin_ / t.cols), first_column((int)(begin_ % t.cols)),
        cols((int)t.cols) {}
  __device__ __forceinline__ int from_first_row(int64_t i) const {
    return first_column + (int)(i - begin);
  }
  __device__ __forceinline__ int64_t row(int64_t i) const {
    return first_row + from_first_row(i) / cols;
  }
  __device__ __forceinline__ int column(int64_t i) const {
    return from_first_row(i) % cols;
  }
};
