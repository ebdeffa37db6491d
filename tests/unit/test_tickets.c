// The ring of kernels/fused/tickets.h, in a model of a cluster. Warps wait for one another as in
// mainloop.cuh, and which of them goes on is drawn. Warps of low priority go on only where all
// others wait, so that readers are as late as they can be.
#include "base/rng.h"
#include "kernels/fused/tickets.h"
#include "tests/support/test.h"

enum { BLOCKS = 2, CONSUMERS = 2, ROLES = 12 };

typedef struct Shape {
  int stages, turns; // turns: 2 where consumers take turns, else 1
  int columns;       // steps of 64 rows
  int rows;          // of 64, of a consumer's tile
} Shape;

// Those of define.cuh, with steps of 64 and 32 columns; the last three are of promoted programs.
static const Shape shapes[] = {{4, 1, 4, 1}, {4, 1, 8, 1}, {4, 2, 3, 2}, {4, 2, 6, 2}, {5, 2, 2, 2},
                               {5, 2, 4, 2}, {4, 1, 3, 1}, {5, 1, 2, 1}, {5, 1, 4, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct Word {
  int64_t tile;
  bool parity, none;
} Word;

// A mover's walk over the steps of its consumer's tiles; waits: for the tile's word.
typedef struct Walk {
  int64_t tile;
  int step;
  bool waits, left;
} Walk;

typedef struct Role {
  int pc;
  int64_t tile; // the cluster's
  int at;       // stage, step, or store
  bool done;
  Walk loading, storing;
  int refill;
} Role;

typedef struct Cluster {
  Shape shape;
  int words, k_stages, slots;
  int64_t tiles;
  Word ring[BLOCKS][TICKETS];
  int64_t loaded[BLOCKS];              // stages that its operands' warp has sent
  int64_t released[BLOCKS][CONSUMERS]; // stages, of all tiles, up to which it has read its own
  int64_t issued[BLOCKS];              // tiles whose products were issued, where there are turns
  int ahead;                           // tiles whose values fit: 1 only without turns
  int64_t values[BLOCKS];              // tiles that have values of rows, columns
  int64_t used[BLOCKS][CONSUMERS];     // tile whose values it used last, plus one
  int64_t ready[BLOCKS][CONSUMERS], finished[BLOCKS][CONSUMERS]; // steps
  Role operands[BLOCKS], tile_values[BLOCKS], consumers[BLOCKS][CONSUMERS],
      movers[BLOCKS][CONSUMERS];
  bool wrong; // a word was read that was written too early, or not at all
} Cluster;

// ---- The ring

static bool published(Cluster *c, int b, int64_t tile) {
  const Word *w = &c->ring[b][tile % c->words];
  if (w->parity != (tile / c->words & 1)) return false;
  if (w->tile != tile) c->wrong = true;
  return true;
}

static bool exists(const Cluster *c, int b, int64_t tile) {
  return !c->ring[b][tile % c->words].none;
}

static void publish(Cluster *c, int b, int64_t tile) {
  c->ring[b][tile % c->words] =
      (Word){.tile = tile, .parity = tile / c->words & 1, .none = tile >= c->tiles};
}

static void find_again(Cluster *c, int b, int64_t tile) {
  if (!published(c, b, tile)) c->wrong = true;
}

// ---- The roles. Each goes one step on, or returns false: it waits.

static bool was_released(const Cluster *c, int64_t stage) {
  const int64_t tile = stage / c->k_stages;
  for (int b = 0; b < BLOCKS; b++)
    for (int k = 0; k < CONSUMERS; k++)
      if ((c->shape.turns == 1 || tile % 2 == k) && c->released[b][k] <= stage) return false;
  return true;
}

// After the second stage block 0 publishes, a word at a time; after the last tile for each turn.
enum { FIND, LOAD, PUBLISH };
static bool load_operands(Cluster *c, int b) {
  Role *r = &c->operands[b];
  const int few = c->k_stages < 2 ? c->k_stages : 2;
  const int64_t stage = r->tile * c->k_stages + r->at;
  if (r->pc == FIND) {
    if (!published(c, b, r->tile)) return false;
    r->done = !exists(c, b, r->tile);
    r->pc = LOAD;
  } else if (r->pc >= PUBLISH) {
    const int word = r->pc - PUBLISH, more = word / BLOCKS;
    publish(c, word % BLOCKS, r->tile + 1 + more);
    const bool last = r->tile + 1 >= c->tiles;
    r->pc = word + 1 < BLOCKS * (last ? c->shape.turns : 1) ? r->pc + 1 : LOAD;
    if (r->pc == LOAD && r->at == c->k_stages) r->tile++, r->at = 0, r->pc = FIND;
  } else {
    if (stage >= c->shape.stages && !was_released(c, stage - c->shape.stages)) return false;
    c->loaded[b] = stage + 1;
    r->at++;
    if (b == 0 && r->at == few)
      r->pc = PUBLISH;
    else if (r->at == c->k_stages)
      r->tile++, r->at = 0, r->pc = FIND;
  }
  return true;
}

static bool compute_values(Cluster *c, int b) {
  Role *r = &c->tile_values[b];
  for (int k = 0; k < CONSUMERS; k++) {
    const bool of_it = c->shape.turns == 1 || r->tile % 2 == k;
    if (of_it && r->tile >= c->ahead && c->used[b][k] <= r->tile - c->ahead) return false;
  }
  if (!published(c, b, r->tile)) return false;
  r->done = !exists(c, b, r->tile);
  c->values[b] = ++r->tile;
  return true;
}

enum { TURN = FIND + 1, MULTIPLY, LAST, AGAIN, ROWS, STEP };
static bool consume(Cluster *c, int b, int k) {
  Role *r = &c->consumers[b][k];
  const int64_t stage = r->tile * c->k_stages + r->at;
  const Shape *s = &c->shape;
  if (r->pc == FIND) {
    if (!published(c, b, r->tile)) return false;
    r->done = !exists(c, b, r->tile);
    r->at = 0, r->pc = TURN;
  } else if (r->pc == TURN) {
    if (s->turns == 2 && c->issued[b] < r->tile) return false;
    r->pc = MULTIPLY;
  } else if (r->pc == MULTIPLY) {
    if (c->loaded[0] <= stage || c->loaded[1] <= stage) return false;
    if (r->at > 0) c->released[b][k] = stage; // the one before
    if (++r->at < c->k_stages) return true;
    c->issued[b] = r->tile + 1;
    r->pc = LAST;
  } else if (r->pc == LAST) {
    c->released[b][k] = stage;
    r->pc = AGAIN;
  } else if (r->pc == AGAIN) {
    find_again(c, b, r->tile);
    r->pc = ROWS;
  } else if (r->pc == ROWS) {
    if (c->values[b] <= r->tile) return false;
    r->at = 0, r->pc = STEP;
  } else {
    if (c->ready[b][k] <= c->finished[b][k]) return false;
    c->finished[b][k]++;
    if (++r->at % s->columns == 0) find_again(c, b, r->tile);
    if (r->at < s->columns * s->rows) return true;
    c->used[b][k] = r->tile + 1;
    r->tile += s->turns;
    r->pc = FIND;
  }
  return true;
}

static bool walk_waits(Cluster *c, int b, Walk *w) {
  if (!w->waits) return false;
  if (!published(c, b, w->tile)) return true;
  w->left = exists(c, b, w->tile);
  w->waits = false;
  return false;
}

static void walk_on(const Cluster *c, Walk *w) {
  if (++w->step < c->shape.columns * c->shape.rows) return;
  w->step = 0;
  w->tile += c->shape.turns;
  w->waits = true;
}

static void load_chunks(Cluster *c, int b, int k, Walk *w) {
  if (!w->left) return;
  c->ready[b][k]++;
  walk_on(c, w);
}

// at: chunks that were loaded before the first store.
static bool move_chunks(Cluster *c, int b, int k) {
  Role *r = &c->movers[b][k];
  if (walk_waits(c, b, &r->loading) || walk_waits(c, b, &r->storing)) return false;
  if (r->at < c->slots) {
    r->at++;
    load_chunks(c, b, k, &r->loading);
  } else if (!r->storing.left) {
    r->done = true;
  } else {
    const int64_t stored = r->storing.tile / c->shape.turns * c->shape.columns * c->shape.rows;
    if (c->finished[b][k] <= stored + r->storing.step) return false;
    if (r->refill >= 0) load_chunks(c, b, k, &r->loading);
    if (++r->refill == c->slots) r->refill = 0;
    walk_on(c, &r->storing);
  }
  return true;
}

static Role *role_of(Cluster *c, int i) {
  const int b = i & 1;
  return i < 2   ? &c->operands[b]
         : i < 4 ? &c->tile_values[b]
         : i < 8 ? &c->consumers[b][i >> 1 & 1]
                 : &c->movers[b][i >> 1 & 1];
}

static bool go_on(Cluster *c, int i) {
  const int b = i & 1, k = i >> 1 & 1;
  if (role_of(c, i)->done) return false;
  return i < 2   ? load_operands(c, b)
         : i < 4 ? compute_values(c, b)
         : i < 8 ? consume(c, b, k)
                 : move_chunks(c, b, k);
}

// ---- Runs

static void open(Cluster *c, Shape shape, int words, int k_stages, int slots, int64_t tiles) {
  *c = (Cluster){
      .shape = shape, .words = words, .k_stages = k_stages, .slots = slots, .tiles = tiles};
  for (int b = 0; b < BLOCKS; b++) {
    for (int i = 0; i < words; i++) c->ring[b][i] = (Word){.tile = -1, .parity = true};
    publish(c, b, 0);
    for (int k = 0; k < CONSUMERS; k++) {
      const int64_t first = shape.turns == 2 ? k : 0;
      const Walk walk = {.tile = first, .waits = true};
      c->consumers[b][k].tile = first;
      c->movers[b][k] = (Role){.loading = walk, .storing = walk, .refill = slots > 2 ? -1 : 0};
    }
  }
}

// Whether all roles came to their end, each with the words of its tiles. One in `luck` steps is of
// another role than the first that does not wait.
static bool runs(Cluster *c, uint64_t key, uint64_t luck) {
  int order[ROLES] = {0};
  uint64_t drawn = 0;
  for (int i = 0; i < ROLES; i++) {
    const int to = (int)(rng_u64(key, drawn++) % (uint64_t)(i + 1));
    order[i] = order[to];
    order[to] = i;
  }
  for (bool moved = true; moved && !c->wrong;) {
    moved = false;
    const uint64_t draw = luck ? rng_u64(key, drawn++) : 1;
    const int skipped = luck && draw % luck == 0 ? (int)((draw >> 32) % ROLES) : 0;
    for (int i = 0; i < ROLES && !moved; i++) moved = go_on(c, order[(i + skipped) % ROLES]);
  }
  bool all = !c->wrong;
  for (int i = 0; i < ROLES; i++) all &= role_of(c, i)->done;
  return all;
}

// The number of runs, of all shapes and depths, that go wrong with so many words.
static int failures(int words, int draws) {
  static const int64_t lengths[] = {1, 2, 3, 4, 9, 40, 75};
  int count = 0;
  for (int s = 0; s < SHAPES; s++)
    for (int k_stages = 1; k_stages <= 7; k_stages += k_stages < 3 ? 1 : 4)
      for (int slots = 1; slots <= 4; slots++)
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
          for (int draw = 0; draw < draws; draw++) {
            Cluster c;
            open(&c, shapes[s], words, k_stages, slots, lengths[n]);
            c.ahead = shapes[s].turns == 2 || draw % 2 == 0 ? 2 : 1;
            const uint64_t key = (uint64_t)(((s * 8 + k_stages) * 8 + slots) * 8 + (int)n) << 20;
            count += !runs(&c, key + (uint64_t)draw, draw % 3 == 0 ? 0 : draw % 3 == 1 ? 3 : 50);
          }
  return count;
}

TEST(no_word_is_written_before_all_have_read_it) {
  assert_int_equal(failures(TICKETS, first_tier() ? 9 : 60), 0);
  assert_int_equal(failures(LEAST_TICKETS, first_tier() ? 9 : 60), 0);
}

TEST(a_ring_that_is_too_short_is_noticed) {
  int least = TICKETS;
  while (least > 2 && failures(least - 1, 9) == 0) least--;
  printf("# rings of %d words and more did not fail, %d of all runs with %d\n", least,
         failures(least - 1, 9), least - 1);
  assert_in_range(least, 8, LEAST_TICKETS);
}
