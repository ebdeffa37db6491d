#include "kernels/muon_groups.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/minmax.h"

static MuonGroup *group_of(const Muon *muon, int64_t rows, int64_t cols) {
  for (int i = 0; i < muon->group_count; i++)
    if (muon->groups[i].rows == rows && muon->groups[i].cols == cols) return &muon->groups[i];
  return NULL;
}

static int64_t elements_of(const MuonGroup *g) {
  return g->batch * g->rows * g->cols;
}
static int64_t squares_of(const MuonGroup *g) {
  const int64_t n = min_i64(g->rows, g->cols);
  return g->batch * n * n;
}
static bool are_alike(const MuonGroup *a, const MuonGroup *b) {
  return min_i64(a->rows, a->cols) == min_i64(b->rows, b->cols) &&
         muon_is_long(a->rows, a->cols) == muon_is_long(b->rows, b->cols);
}

// Groups that a launch can share are neighbours.
static MuonGroup *add_group(Muon *muon, MuonGroup group) {
  const size_t bytes = ((size_t)muon->group_count + 1) * sizeof *muon->groups;
  muon->groups = xrealloc(muon->groups, bytes);
  int at = muon->group_count;
  for (int i = 0; i < muon->group_count; i++)
    if (are_alike(&muon->groups[i], &group)) at = i + 1;
  for (int i = muon->group_count++; i > at; i--) muon->groups[i] = muon->groups[i - 1];
  muon->groups[at] = group;
  return &muon->groups[at];
}

static void count_part(Muon *muon, int64_t rows, int64_t cols) {
  MuonGroup *group = group_of(muon, rows, cols);
  if (!group) group = add_group(muon, (MuonGroup){.rows = rows, .cols = cols});
  group->count++;
}

int muon_joined(const Muon *muon, int i) {
  int end = i + 1;
  while (end < muon->group_count && muon->groups[end].joins) end++;
  return end - i;
}

size_t muon_lay_out(Muon *muon, char *memory) {
  Arena arena = {.block = memory};
  int64_t all = 0, squares = 0, launch_all = 0, launch_squares = 0;
  for (int i = 0; i < muon->group_count; i++) {
    MuonGroup *g = &muon->groups[i];
    g->X = arena_take(&arena, (size_t)(g->count * g->rows * g->cols) * sizeof *g->X);
    launch_all = elements_of(g) + (g->joins ? launch_all : 0);
    launch_squares = squares_of(g) + (g->joins ? launch_squares : 0);
    if (all < launch_all) all = launch_all;
    if (squares < launch_squares) squares = launch_squares;
  }
  for (int i = 0; i < muon->group_count; i++) {
    MuonGroup *g = &muon->groups[i];
    g->factors = arena_take(&arena, (size_t)g->count * sizeof *g->factors);
  }
  muon->Y = arena_take(&arena, (size_t)all * sizeof *muon->Y);
  for (int i = 0; i < MUON_SQUARES; i++)
    muon->S[i] = arena_take(&arena, (size_t)squares * sizeof *muon->S[i]);
  return arena.used;
}

// A launch's matrices: enough to fill a card many times over.
static const int64_t most_elements = 1 << 28, most_squares = 3 << 25;

// All launches of a group have the same number, for one plan of cuBLASLt.
static int64_t batch_of(const MuonGroup *g) {
  const int64_t n = min_i64(g->rows, g->cols),
                most = max_i64(
                    1, min_i64(most_elements / (g->rows * g->cols), most_squares / (n * n)));
  const int64_t launches = (g->count + most - 1) / most;
  return (g->count + launches - 1) / launches;
}

// Decides which groups, each of one launch, share it.
static void join(Muon *muon) {
  int64_t elements = 0, squares = 0;
  for (int i = 0, shapes = 0; i < muon->group_count; i++) {
    MuonGroup *g = &muon->groups[i];
    const MuonGroup *before = i > 0 ? g - 1 : NULL;
    g->joins = before && are_alike(before, g) && before->batch == before->count &&
               g->batch == g->count && shapes < MUON_SHAPES &&
               elements + elements_of(g) <= most_elements &&
               squares + squares_of(g) <= most_squares;
    if (!g->joins) shapes = 0, elements = squares = 0;
    shapes++, elements += elements_of(g), squares += squares_of(g);
  }
}

Muon muon_plan(const ParamTensor *list, int count) {
  Muon muon = {0};
  for (int i = 0; i < count; i++)
    for (int k = 0; k < list[i].part_count; k++)
      count_part(&muon, list[i].parts[k].rows, list[i].cols);
  for (int i = 0; i < muon.group_count; i++) muon.groups[i].batch = batch_of(&muon.groups[i]);
  join(&muon);
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
  return (MuonPlace){g->X + i * rows * cols, g->factors + i};
}
