#include "kernels/muon_groups.h"

#include <stdlib.h>

#include "base/memory.h"

static int64_t at_least_one(int64_t value) {
  return value > 1 ? value : 1;
}
static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static MuonGroup *group_of(const Muon *muon, int64_t rows, int64_t cols) {
  for (int i = 0; i < muon->group_count; i++)
    if (muon->groups[i].rows == rows && muon->groups[i].cols == cols) return &muon->groups[i];
  return NULL;
}

static void count_part(Muon *muon, int64_t rows, int64_t cols) {
  MuonGroup *group = group_of(muon, rows, cols);
  if (!group) {
    const size_t bytes = ((size_t)muon->group_count + 1) * sizeof *muon->groups;
    muon->groups = xrealloc(muon->groups, bytes);
    group = &muon->groups[muon->group_count++];
    *group = (MuonGroup){.rows = rows, .cols = cols};
  }
  group->count++;
}

size_t muon_lay_out(Muon *muon, char *memory) {
  Arena arena = {.block = memory};
  int64_t all = 0, squares = 0;
  for (int i = 0; i < muon->group_count; i++) {
    MuonGroup *g = &muon->groups[i];
    const int64_t n = smaller(g->rows, g->cols);
    g->X = arena_take(&arena, (size_t)(g->count * g->rows * g->cols) * sizeof *g->X);
    g->factors = arena_take(&arena, (size_t)g->count * sizeof *g->factors);
    if (all < g->batch * g->rows * g->cols) all = g->batch * g->rows * g->cols;
    if (squares < g->batch * n * n) squares = g->batch * n * n;
  }
  muon->Y = arena_take(&arena, (size_t)all * sizeof *muon->Y);
  for (int i = 0; i < MUON_SQUARES; i++)
    muon->S[i] = arena_take(&arena, (size_t)squares * sizeof *muon->S[i]);
  return arena.used;
}

// A launch's matrices: enough to fill a card. All have the same number, for one plan of cuBLASLt.
static int64_t batch_of(const MuonGroup *g) {
  const int64_t elements = 1 << 27, most = at_least_one(elements / (g->rows * g->cols));
  const int64_t launches = (g->count + most - 1) / most;
  return (g->count + launches - 1) / launches;
}

Muon muon_plan(const ParamTensor *list, int count) {
  Muon muon = {0};
  for (int i = 0; i < count; i++)
    for (int k = 0; k < list[i].part_count; k++)
      count_part(&muon, list[i].parts[k].rows, list[i].cols);
  for (int i = 0; i < muon.group_count; i++) muon.groups[i].batch = batch_of(&muon.groups[i]);
  if (muon.group_count > 0) muon.bytes = muon_lay_out(&muon, NULL);
  return muon;
}

size_t muon_bytes(const ParamTensor *list, int count) {
  Muon muon = muon_plan(list, count);
  const size_t bytes = muon.bytes;
  muon_free(&muon);
  return bytes;
}

void muon_free(Muon *muon) {
  free(muon->groups);
  *muon = (Muon){0};
}

MuonPlace muon_place(Muon *muon, int64_t rows, int64_t cols) {
  MuonGroup *g = group_of(muon, rows, cols);
  const int64_t i = g->placed++;
  if (!g->X) return (MuonPlace){0};
  return (MuonPlace){g->X + i * rows * cols, g->factors + i};
}

void muon_places_reset(Muon *muon) {
  for (int i = 0; i < muon->group_count; i++) muon->groups[i].placed = 0;
}
