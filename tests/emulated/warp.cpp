#include "tests/emulated/warp.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>

namespace {

enum { LANES = 32, STACK = 128 << 10 };

struct Warp {
  const std::function<void(int)> *body;
  ucontext_t caller, lanes[LANES];
  std::unique_ptr<char[]> stacks{new char[(size_t)LANES * STACK]};
  float given[2][LANES]; // of exchanges in turns: one is read while the next is written
  int exchanges[LANES];
  bool ended[LANES];
  int running;
};

// Fibers find their warp through this; a thread runs one warp at a time.
thread_local Warp *warp;

void lane_main() {
  Warp *w = warp;
  const int lane = w->running;
  (*w->body)(lane);
  w->ended[lane] = true;
}

} // namespace

void warp_run(const std::function<void(int)> &body) {
  static thread_local std::unique_ptr<Warp> own;
  if (!own) own.reset(new Warp);
  Warp *w = warp = own.get();
  w->body = &body;
  for (int i = 0; i < LANES; i++) {
    w->exchanges[i] = 0;
    w->ended[i] = false;
    getcontext(&w->lanes[i]);
    w->lanes[i].uc_stack.ss_sp = w->stacks.get() + (size_t)i * STACK;
    w->lanes[i].uc_stack.ss_size = STACK;
    w->lanes[i].uc_link = &w->caller;
    makecontext(&w->lanes[i], lane_main, 0);
  }
  do
    for (int i = 0; i < LANES; i++) {
      w->running = i;
      swapcontext(&w->caller, &w->lanes[i]);
      if (w->ended[i] != w->ended[0] || w->exchanges[i] != w->exchanges[0]) {
        fprintf(stderr, "lane %d of a warp left an exchange to the others\n", i);
        abort();
      }
    }
  while (!w->ended[0]);
}

float warp_exchange(float value, int mask) {
  Warp *w = warp;
  const int lane = w->running, turn = w->exchanges[lane]++ & 1;
  w->given[turn][lane] = value;
  swapcontext(&w->lanes[lane], &w->caller);
  return w->given[turn][lane ^ mask];
}
