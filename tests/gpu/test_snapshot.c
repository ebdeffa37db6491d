// Copies of the GPU's memory on the host, beside what it computes: whole, of the moment that they
// were asked for, and how fast.
#define _GNU_SOURCE
#include <sys/mman.h>

#include "base/os.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/shapes.h"

static Backend *open_gpu(void) {
  Error err = {""};
  const Spec spec = {SPEC_SHAPE(64, 128, 1, 1, 64, 64, 64, 64), .rms_norm_eps = 1e-5,
                     .kernels = KERNELS_UNFUSED, .train = true};
  Backend *be = gpu_backend(spec);
  must(be->services.snapshot_open(be, &err), &err);
  return be;
}

static char *on_gpu(Backend *be, size_t bytes) {
  char *memory = be->services.alloc(be, bytes);
  if (!memory) fail_msg("the GPU has no %zu bytes left", bytes);
  return memory;
}

// Bytes that differ from piece to piece, and along each.
static void fill(unsigned char *to, size_t bytes, unsigned piece) {
  for (size_t k = 0; k < bytes; k++) to[k] = (unsigned char)(k * 31 + k / 4096 + piece);
}

// Of no byte, of whole and broken parts that threads copy, and of more parts than threads.
TEST(pieces_of_all_sizes_are_whole) {
  const size_t sizes[] = {1, 0, 8 << 20, (8 << 20) + 1, (8 << 20) - 1, 4096, 200 << 20, 3};
  enum { PIECES = sizeof sizes / sizeof *sizes };
  Backend *be = open_gpu();
  SnapshotPiece list[PIECES];
  unsigned char *expected[PIECES];
  for (int i = 0; i < PIECES; i++) {
    list[i] = (SnapshotPiece){xcalloc(sizes[i] + 1, 1), on_gpu(be, sizes[i]), sizes[i], false};
    expected[i] = xmalloc(sizes[i] + 1);
  }
  for (unsigned round = 0; round < 3; round++) {
    for (unsigned i = 0; i < PIECES; i++) {
      fill(expected[i], sizes[i], i + round);
      be->services.write(be, (void *)(uintptr_t)list[i].from, expected[i], sizes[i]);
    }
    be->services.snapshot_begin(be, list, PIECES);
    assert_true(be->services.snapshot_wait(be) >= 0);
    for (int i = 0; i < PIECES; i++) {
      assert_memory_equal(list[i].to_host, expected[i], sizes[i]);
      assert_int_equal(((char *)list[i].to_host)[sizes[i]], 0);
    }
  }
  assert_true(be->services.snapshot_wait(be) == 0); // nothing is under way
  for (int i = 0; i < PIECES; i++) {
    be->services.release(be, (void *)(uintptr_t)list[i].from);
    free(list[i].to_host);
    free(expected[i]);
  }
  be->services.destroy(be);
}

static void *fresh_pages(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

// A copy that does not wait for the GPU finds what was there before it got to the last memset.
TEST(what_was_asked_for_earlier_is_in_it) {
  const size_t bytes = (size_t)1 << 30;
  Backend *be = open_gpu();
  char *memory = on_gpu(be, bytes), *other = on_gpu(be, bytes);
  unsigned char *mark = xmalloc(1 << 20), *copy = fresh_pages(bytes);
  memset(mark, 0xff, 1 << 20);
  for (size_t at = 0; at < bytes; at += 1 << 20) be->services.write(be, memory + at, mark, 1 << 20);
  be->services.read(be, mark, memory, 1 << 20);                      // it is there
  for (int i = 0; i < 200; i++) be->services.zero(be, other, bytes); // some 50 ms
  be->services.zero(be, memory, bytes);
  const SnapshotPiece piece = {copy, memory, bytes, false};
  be->services.snapshot_begin(be, &piece, 1);
  be->services.snapshot_wait(be);
  for (size_t k = 0; k < bytes; k++)
    if (copy[k] != 0) fail_msg("byte %zu is of before", k);
  munmap(copy, bytes);
  free(mark);
  be->services.release(be, memory);
  be->services.release(be, other);
  be->services.destroy(be);
}

// How fast is printed: beside a step only what is left of it shows.
TEST(gigabytes_are_copied) {
  const size_t bytes = (size_t)4 << 30;
  Backend *be = open_gpu();
  char *memory = on_gpu(be, bytes), *copy = fresh_pages(bytes);
  const SnapshotPiece piece = {copy, memory, bytes, false};
  for (int round = 0; round < 3; round++) {
    be->services.zero(be, memory, bytes);
    const double from_ms = now_ms();
    be->services.snapshot_begin(be, &piece, 1);
    const double idle_ms = be->services.snapshot_wait(be), ms = now_ms() - from_ms;
    printf("# %s in %.0f ms, %.1f GB/s%s\n", size_text(bytes).text, ms, (double)bytes / ms / 1e6,
           round == 0 ? ", into fresh pages" : "");
    assert_true(idle_ms > 0 && idle_ms <= ms);
    for (size_t k = 0; k < bytes; k += 4096) assert_int_equal(copy[k], 0);
    memset(copy, 1, bytes);
  }
  munmap(copy, bytes);
  be->services.release(be, memory);
  be->services.destroy(be);
}
