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

// The part to which a row of a tensor belongs, and its row there.
struct PartRow {
  const DevicePart *part;
  int64_t row;
};
static __device__ __forceinline__ PartRow part_of(const DeviceTensor &t, int64_t row) {
  const DevicePart *part = t.parts;
  for (;; part++) {
    const int64_t from_first = row - part->first, in_part = from_first >> part->shift;
    if (from_first >= 0 && in_part << part->shift == from_first && in_part < part->rows)
      return {part, in_part};
  }
}

// The step of a row's elements from `column` on, as a multiple of the learning rate.
template <int N>
static __device__ __forceinline__ Pack<N> direction(const DeviceTensor &t, int64_t row,
                                                    int column) {
  const PartRow at = part_of(t, row);
  const float rate = at.part->rate * *at.part->factor;
  Pack<N> g = load_pack<N>(at.part->direction + at.row * t.cols + column);
#pragma unroll
  for (int k = 0; k < N; k++) g.v[k] *= rate;
  return g;
}

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
