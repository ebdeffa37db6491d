#undef _FORTIFY_SOURCE // whose longjmp refuses to leave for another stack
#include "tests/emulated/warp.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>

namespace {

enum { LANES = 32, MAX_WARPS = 32, STACK = 128 << 10 };

struct Fiber {
  ucontext_t start;
  jmp_buf here; // where it goes on
  bool begun, ended;
  int exchanges;
};

struct Warp {
  Fiber lanes[LANES];
  Given given[2][LANES]; // of exchanges in turns: one is read while the next is written
  int count;             // of lanes: fewer in the last warp of some blocks
  int at_barrier;        // lanes that wait there
};

struct Block {
  const std::function<void(int)> *body;
  ucontext_t caller;
  jmp_buf scheduler;
  std::unique_ptr<char[]> stacks{new char[(size_t)MAX_WARPS * LANES * STACK]};
  Warp warps[MAX_WARPS];
  int running;             // thread
  bool last_first = false; // the order of warps
  int any;                 // of __syncthreads_or
};

// Fibers find their block through this; a thread runs one block at a time.
thread_local Block *block;

Fiber &fiber_of(Block *b, int thread) {
  return b->warps[thread / LANES].lanes[thread % LANES];
}

void back_to_scheduler(Block *b) {
  if (!_setjmp(fiber_of(b, b->running).here)) _longjmp(b->scheduler, 1);
}

void thread_main() {
  Block *b = block;
  (*b->body)(b->running);
  fiber_of(b, b->running).ended = true;
  _longjmp(b->scheduler, 1);
}

// Until its next exchange, barrier or end. swapcontext alone would be a system call each time.
void run_thread(Block *b, int thread) {
  Fiber &f = fiber_of(b, thread);
  b->running = thread;
  if (_setjmp(b->scheduler)) return;
  if (f.begun) _longjmp(f.here, 1);
  f.begun = true;
  setcontext(&f.start);
}

// All lanes, from one exchange to the next.
void run_warp(Block *b, int w) {
  Warp &warp = b->warps[w];
  for (int i = 0; i < warp.count; i++) {
    run_thread(b, w * LANES + i);
    if (warp.lanes[i].ended != warp.lanes[0].ended ||
        warp.lanes[i].exchanges != warp.lanes[0].exchanges ||
        (warp.at_barrier != 0 && warp.at_barrier != i + 1)) {
      fprintf(stderr, "lane %d of a warp left an exchange to the others\n", i);
      abort();
    }
  }
}

} // namespace

uint3 blockIdx;
dim3 blockDim, gridDim;
// Of the section shared_memory, where a program has one.
extern char __start_shared_memory[] __attribute__((weak));
extern char __stop_shared_memory[] __attribute__((weak));

void block_run(int threads, const std::function<void(int)> &body) {
  static thread_local std::unique_ptr<Block> own;
  if (!own) own.reset(new Block);
  Block *b = block = own.get();
  b->body = &body;
  b->last_first = !b->last_first;
  for (int i = 0; i < threads; i++) {
    Fiber &f = fiber_of(b, i);
    f.begun = f.ended = false;
    f.exchanges = 0;
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = b->stacks.get() + (size_t)i * STACK;
    f.start.uc_stack.ss_size = STACK;
    f.start.uc_link = NULL;
    makecontext(&f.start, thread_main, 0);
  }
  const int warps = (threads + LANES - 1) / LANES;
  for (int w = 0; w < warps; w++) {
    b->warps[w].count = w < warps - 1 ? (int)LANES : threads - w * LANES;
    b->warps[w].at_barrier = 0;
  }
  for (bool left = true; left;) {
    left = false;
    for (int i = 0; i < warps; i++) {
      const int w = b->last_first ? warps - 1 - i : i;
      while (!b->warps[w].at_barrier && !b->warps[w].lanes[0].ended) run_warp(b, w), left = true;
    }
    for (int w = 0; w < warps; w++) {
      if (b->warps[w].lanes[0].ended != b->warps[0].lanes[0].ended) {
        fprintf(stderr, "warp %d left a barrier to the others, or they to it\n", w);
        abort();
      }
      b->warps[w].at_barrier = 0;
    }
  }
}

void run_grid(dim3 grid, dim3 block, const std::function<void()> &thread) {
  const bool fits = grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= UINT16_MAX &&
                    grid.z == 1 && block.x > 0 && block.x <= MAX_WARPS * LANES && block.y == 1 &&
                    block.z == 1;
  if (!fits) {
    fprintf(stderr, "a launch of %u x %u blocks of %u threads\n", grid.x, grid.y, block.x);
    abort();
  }
  gridDim = grid;
  blockDim = block;
  for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
      if (__start_shared_memory)
        memset(__start_shared_memory, 0xff, (size_t)(__stop_shared_memory - __start_shared_memory));
      block_run((int)block.x, [&](int) { thread(); });
    }
  blockIdx = {};
}

int block_thread() {
  return block->running;
}

const Given *warp_exchange(const Given &mine) {
  Block *b = block;
  Warp &warp = b->warps[b->running / LANES];
  if (warp.count < LANES) {
    fprintf(stderr, "an exchange in a warp of %d lanes\n", warp.count);
    abort();
  }
  const int lane = b->running % LANES, turn = warp.lanes[lane].exchanges++ & 1;
  warp.given[turn][lane] = mine;
  back_to_scheduler(b);
  return warp.given[turn];
}

void block_sync() {
  Block *b = block;
  b->warps[b->running / LANES].at_barrier++;
  back_to_scheduler(b);
}

int __syncthreads_or(int mine) {
  Block *b = block;
  block_sync(); // the call before has been read
  b->any = 0;
  block_sync();
  if (mine) b->any = 1;
  block_sync();
  return b->any;
}
