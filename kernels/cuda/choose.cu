// Choosing the next token (ChooseOp), as kernels/cpu/choose.c does. Compiled without fused
// multiply-adds (kernels.mk), so that weights have the host's bits.
//
// Launch: one cluster of blocks, or one block where there are no clusters. Each thread has
// neighbouring tokens. Where not all tokens are kept, it also has neighbouring bins, of each value
// of bf16 one, in falling order: they count the tokens with that logit, so that sums in the order
// of falling logits need no sort.
#include "base/rng.h"
#include "kernels/choose.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { CHOOSE_THREADS = 1024, CHOOSE_BLOCKS = 8, CHOOSE_WARPS = CHOOSE_THREADS / 32 };
static const uint32_t NOT_FINITE = UINT32_MAX, MINUS_INFINITY = 0x007f; // in 16 bits of logit_order

struct ChooseArgs {
  int64_t V;
  const bf16_bits *logits;
  Draw *draw;
  int32_t *next, *to_host; // [1], [MAX_RESULTS]
  unsigned *bins;          // [LOGIT_BINS]
  uint64_t *found;         // [2]
};

// A thread among all of the cluster.
struct Worker {
  int rank, blocks, turn, slot; // slot: of to_host
  int64_t index, first, end;    // its number; its tokens
};

// What each block gives, in their order: `mine`, which all threads of a block know. Of two buffers
// that alternate: a block that writes one again has passed a barrier that its readers reached. What
// the cluster's threads wrote before is visible to all.
static __device__ __forceinline__ const uint64_t *exchange(Worker &w, uint64_t mine) {
  __shared__ uint64_t of_block[2][CHOOSE_BLOCKS];
  w.turn ^= 1;
  uint64_t *const values = of_block[w.turn];
  if (w.blocks > 1) {
    if ((int)threadIdx.x < w.blocks) *in_block(&values[w.rank], (int)threadIdx.x) = mine;
    __syncwarp();
    cluster_sync();
  } else {
    if (threadIdx.x == 0) values[0] = mine;
    __syncthreads();
  }
  return values;
}

// Calls of(id, logit) for the thread's tokens. The first-level cache may be older than the logits.
template <class Of>
static __device__ __forceinline__ void each_token(const ChooseArgs &s, const Worker &w, Of of) {
  for (int64_t i = w.first; i < w.end; i += 8) {
    const Pack<8> p = widen(__ldcg(reinterpret_cast<const uint4 *>(s.logits + i)));
#pragma unroll
    for (int e = 0; e < 8; e++)
      if (i + e < w.end) of(i + e, p.v[e]);
  }
}

static __device__ __forceinline__ uint32_t key_of(float logit) {
  return logit_order(logit) >> 16;
}
static __device__ __forceinline__ float logit_of(uint32_t key) {
  return bf16_to_float((uint16_t)(key & 0x8000 ? key ^ 0x8000 : ~key));
}

// The largest key of all tokens.
static __device__ __forceinline__ uint32_t largest_key(const ChooseArgs &s, Worker &w) {
  __shared__ uint32_t of_warp[CHOOSE_WARPS];
  uint32_t largest = 0;
  each_token(s, w, [&](int64_t, float logit) {
    largest = max(largest, logit < INFINITY ? key_of(logit) : NOT_FINITE);
  });
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < CHOOSE_WARPS; i++) largest = max(largest, of_warp[i]);
  const uint64_t *of_block = exchange(w, largest);
  for (int i = 0; i < w.blocks; i++) largest = max(largest, (uint32_t)of_block[i]);
  return largest;
}

// The sum of what the threads before this one have, and of what all have.
struct Span {
  uint64_t before, all;
};
static __device__ __forceinline__ Span span_of(Worker &w, uint64_t mine) {
  __shared__ uint64_t of_warp[CHOOSE_WARPS];
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  uint64_t with_mine = mine, of_this = 0;
  for (int by = 1; by < 32; by *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, with_mine, by);
    if (lane >= by) with_mine += other;
  }
  if (lane == 31) of_warp[warp] = with_mine;
  __syncthreads();
  Span span = {with_mine - mine, 0};
  for (int i = 0; i < CHOOSE_WARPS; i++) {
    if (i < warp) span.before += of_warp[i];
    of_this += of_warp[i];
  }
  const uint64_t *of_block = exchange(w, of_this);
  for (int i = 0; i < w.blocks; i++) {
    if (i < w.rank) span.before += of_block[i];
    span.all += of_block[i];
  }
  return span;
}

// Chooses the token, in the order of ids, at which the sum of its weights first exceeds the target
// that is made of the sum of all.
template <class Weight, class Target>
static __device__ __forceinline__ void choose_by_id(const ChooseArgs &s, Worker &w, Weight weight,
                                                    Target target_of) {
  uint64_t mine = 0;
  each_token(s, w, [&](int64_t, float logit) { mine += weight(logit); });
  const Span span = span_of(w, mine);
  uint64_t left = target_of(span.all) - span.before;
  if (left >= mine) return; // also where others before have it
  each_token(s, w, [&](int64_t i, float logit) {
    const uint64_t one = weight(logit);
    if (left < one) *s.next = s.to_host[w.slot] = (int32_t)i;
    left = left < one ? UINT64_MAX : left - one;
  });
}

// The tokens in the bins before `bin` and the first `tokens` in it.
struct Kept {
  int64_t bin;
  uint64_t tokens;
};
struct Found {
  int64_t bin;
  uint64_t left; // of the target
};

// The bin in which the sum of the kept tokens' weights first exceeds the target.
template <class Weight, class Target>
static __device__ __forceinline__ Found find_bin(const ChooseArgs &s, Worker &w, Kept kept,
                                                 Weight weight, Target target_of) {
  const int64_t own = LOGIT_BINS / (w.blocks * CHOOSE_THREADS), first = w.index * own;
  const auto of_bin = [&](int64_t i) -> uint64_t {
    const uint64_t count = i < kept.bin ? __ldcg(s.bins + i) : i == kept.bin ? kept.tokens : 0;
    return count > 0 ? count * weight(i) : 0;
  };
  uint64_t mine = 0;
  for (int64_t i = first; i < first + own; i++) mine += of_bin(i);
  const Span span = span_of(w, mine);
  uint64_t left = target_of(span.all) - span.before;
  for (int64_t i = first; left < mine && i < first + own; i++) {
    const uint64_t of_this = of_bin(i);
    if (left < of_this) {
      s.found[0] = (uint64_t)i;
      s.found[1] = left;
      break;
    }
    left -= of_this;
  }
  exchange(w, 0);
  return {(int64_t)__ldcg(s.found), __ldcg(s.found + 1)};
}

// Among the top_k and top_p tokens.
template <class Weight>
static __device__ __forceinline__ void choose_by_logit(const ChooseArgs &s, Worker &w,
                                                       const Draw &d, double u, Weight weight) {
  each_token(s, w, [&](int64_t, float logit) {
    if (logit > -INFINITY) atomicAdd(s.bins + (LOGIT_BINS - 1 - key_of(logit)), 1u);
  });
  exchange(w, 0);
  const auto of_bin = [&](int64_t i) { return weight(logit_of((uint32_t)(LOGIT_BINS - 1 - i))); };
  Kept kept = {LOGIT_BINS, 0};
  if (d.top_k > 0 && d.top_k < s.V) {
    const Found last = find_bin(
        s, w, kept, [](int64_t) { return (uint64_t)1; },
        [&](uint64_t all) { return min((uint64_t)d.top_k, all) - 1; });
    kept = {last.bin, last.left + 1};
  }
  if (d.top_p < 1) {
    const Found last =
        find_bin(s, w, kept, of_bin, [&](uint64_t all) { return top_p_target(all, d.top_p); });
    kept = {last.bin, last.left / of_bin(last.bin) + 1};
  }
  const Found drawn =
      find_bin(s, w, kept, of_bin, [&](uint64_t all) { return draw_target(all, u); });
  const int64_t own = LOGIT_BINS / (w.blocks * CHOOSE_THREADS);
  for (int64_t i = w.index * own; i < (w.index + 1) * own; i++) s.bins[i] = 0;
  const uint32_t key = (uint32_t)(LOGIT_BINS - 1 - drawn.bin);
  const uint64_t before = drawn.left / of_bin(drawn.bin); // tokens with that logit
  choose_by_id(
      s, w, [&](float logit) { return (uint64_t)(key_of(logit) == key); },
      [&](uint64_t) { return before; });
}

static __global__ __launch_bounds__(CHOOSE_THREADS) void choose_kernel(ChooseArgs s) {
  take_turn();
  Worker w = {(int)blockIdx.x, (int)gridDim.x, 0, 0, 0, 0, 0};
  const int64_t threads = (int64_t)w.blocks * CHOOSE_THREADS,
                own = (s.V + threads * 8 - 1) / (threads * 8) * 8;
  w.index = (int64_t)w.rank * CHOOSE_THREADS + threadIdx.x;
  w.first = min(w.index * own, s.V);
  w.end = min(w.first + own, s.V);
  if (w.blocks > 1) cluster_sync(); // all blocks run: their shared memory may be written
  const Draw d = *s.draw;
  w.slot = (int)(d.index % MAX_RESULTS);
  const uint32_t largest = largest_key(s, w);
  const int bits = weight_bits(s.V);
  const auto weight = [&](float logit) {
    return token_weight((logit - logit_of(largest)) * d.scale, bits);
  };
  if (w.index == 0) { // all have read it
    s.draw->position = d.position + d.rows;
    s.draw->rows = 1;
    s.draw->index = d.index + 1;
  }
  if (largest == NOT_FINITE || largest == MINUS_INFINITY) {
    if (w.index > 0) return;
    s.to_host[w.slot] = -1;
    *s.next = 0;
  } else if (d.scale == 0) {
    choose_by_id(
        s, w, [&](float logit) { return (uint64_t)(key_of(logit) == largest); },
        [](uint64_t) { return (uint64_t)0; });
  } else {
    const double u = rng_uniform(d.seed, d.index);
    if ((d.top_k > 0 && d.top_k < s.V) || d.top_p < 1)
      choose_by_logit(s, w, d, u, weight);
    else
      choose_by_id(s, w, weight, [&](uint64_t all) { return draw_target(all, u); });
  }
}

void cuda_choose(Backend *be, const act_t *logits, Draw *draw, int32_t *next) {
  const Cuda *c = cuda_of(be);
  const int blocks = c->gpu.compiled_for >= 90 ? CHOOSE_BLOCKS : 1;
  const ChooseArgs args = {c->base.spec.V,
                           bits(logits),
                           draw,
                           next,
                           c->tokens_to_host,
                           c->logit_bins,
                           reinterpret_cast<uint64_t *>(c->logit_bins + LOGIT_BINS)};
  launch_early(&c->gpu, dim3((unsigned)blocks), CHOOSE_THREADS, blocks, choose_kernel, args);
}
