// Checksums and values of files that have several pieces, by any number of threads.
#include <fcntl.h>
#include <omp.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/rng.h"
#include "model/run/checkpoint/files.h"
#include "tests/support/test.h"

// What saved checkpoints were made with: another number makes all of them damaged ones.
enum { PIECE = 16777216 };

// bytes <= 3 * PIECE
static uint64_t as_described(const unsigned char *data, size_t bytes) {
  uint64_t pieces[3];
  size_t count = 0;
  for (size_t at = 0; at < bytes; at += PIECE)
    pieces[count++] = XXH3_64bits(data + at, bytes - at < PIECE ? bytes - at : PIECE);
  return XXH3_64bits(pieces, 8 * count);
}

TEST(portions_of_any_size_give_the_checksum) {
  enum { MOST = 2 * PIECE + 5 };
  const size_t sizes[] = {0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, MOST};
  const size_t portions[] = {1021, 65536, PIECE - 1, PIECE, PIECE + 1, MOST};
  unsigned char *data = held(xmalloc(MOST + 8));
  for (size_t i = 0; i < MOST; i += 8) memcpy(data + i, &(uint64_t){rng_u64(1, i)}, 8);
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t p = 0; p < sizeof portions / sizeof *portions; p++) {
      Checksum c;
      checksum_begin(&c);
      for (size_t at = 0, n; at < sizes[s]; at += n) {
        n = sizes[s] - at < portions[p] ? sizes[s] - at : portions[p];
        checksum_add(&c, data + at, n);
      }
      if (checksum_end(&c) != as_described(data, sizes[s]))
        fail_msg("%zu bytes in portions of %zu", sizes[s], portions[p]);
    }
}

// ---- Two files: one of two pieces and a half whose floats lie across the borders of pieces, and
// one of two whole pieces.

enum { FILES = 2, STEP = 7 };
typedef struct Saved {
  char *folder;
  FileSums sums;
  SafeFile files[FILES];
  int fds[FILES];
} Saved;

// `half`: a BF16 before the floats puts them at 2 bytes past multiples of 4. Returns the bytes
// before the floats.
static size_t write_file(Saved *s, const char *name, bool half, int64_t floats) {
  Error err = {""};
  SafeWriter w;
  const SafeTensor tensors[] = {
      {.name = (char[]){"half"}, .dtype = SAFE_BF16, .rank = 1, .shape = {half}},
      {.name = (char[]){"floats"}, .dtype = SAFE_F32, .rank = 1, .shape = {floats}}};
  const PathText path = path_text("%s/%s", s->folder, name);
  must(safetensors_create(&w, path.text, STEP, 2, tensors, &err), &err);
  float *values = held(xmalloc((size_t)floats * sizeof *values));
  for (int64_t i = 0; i < floats; i++) values[i] = (float)rng_u64(2, (uint64_t)i);
  must(safetensors_append_f32(&w, SAFE_BF16, values, half, &err), &err);
  must(safetensors_append_f32(&w, SAFE_F32, values, floats, &err), &err);
  must(safetensors_finish(&w, &err), &err);
  sums_add(&s->sums, name, w.header + w.expected, w.checksum);
  return (size_t)w.header + 2 * half;
}

static int save(void **state) {
  Saved *s = held(xcalloc(1, sizeof *s));
  Error err = {""};
  *s = (Saved){.folder = temporary_folder(), .sums.step = STEP};
  const char *const names[FILES] = {"across", "whole"};
  write_file(s, names[0], true, 5 * (PIECE / 8));
  // The header of the second has the same bytes for both numbers of floats.
  const size_t before = write_file(s, names[1], false, 2 * (PIECE / 4) - 64);
  s->sums.count = 1;
  write_file(s, names[1], false, (int64_t)(2 * PIECE - before) / 4);
  for (int i = 0; i < FILES; i++) {
    const PathText path = path_text("%s/%s", s->folder, names[i]);
    must(safetensors_open(&s->files[i], path.text, &err), &err);
    s->fds[i] = open(path.text, O_RDWR);
  }
  *state = s;
  return s->files[0].bytes / PIECE == 2 && s->files[1].bytes == 2 * PIECE ? 0 : -1;
}

static int forget(void **state) {
  Saved *s = *state;
  for (int i = 0; i < FILES; i++) {
    safetensors_close(&s->files[i]);
    close(s->fds[i]);
  }
  sums_free(&s->sums);
  return 0;
}

TEST(what_was_saved_is_taken_by_any_number_of_threads) {
  Saved *s = *state;
  for (int threads = 1; threads <= 5; threads++) {
    omp_set_num_threads(threads);
    must(content_check(s->files, FILES, &s->sums, &err), &err);
  }
}

// Puts bytes [at, at + count) of a file in place of others, which go to `bytes`.
static void exchange(const Saved *s, int file, size_t at, void *bytes, size_t count) {
  unsigned char was[4];
  assert_true(pread(s->fds[file], was, count, (off_t)at) == (ssize_t)count);
  assert_true(pwrite(s->fds[file], bytes, count, (off_t)at) == (ssize_t)count);
  memcpy(bytes, was, count);
}

// The header that was parsed counts, so a flip there is found by who opens the file.
static void expect_flip_found(Saved *s, int file, size_t at) {
  Error err = {""};
  SafeFile again;
  unsigned char byte;
  assert_int_equal(pread(s->fds[file], &byte, 1, (off_t)at), 1);
  byte ^= 1;
  exchange(s, file, at, &byte, 1);
  int status = safetensors_open(&again, s->files[file].path, &err);
  const bool opened = status == 0;
  if (opened) status = content_check(&again, 1, &s->sums, &err);
  if (opened) safetensors_close(&again);
  exchange(s, file, at, &byte, 1);
  if (status == 0) fail_msg("byte %zu of file %d", at, file);
  if (opened) expect_error(status, &err, "bytes and the checksum");
  expect_error(status, &err, s->files[file].path);
}

TEST(a_flip_in_any_piece_is_found) {
  Saved *s = *state;
  for (int threads = 1; threads <= 4; threads += 3) {
    omp_set_num_threads(threads);
    for (int file = 0; file < FILES; file++)
      for (size_t at = 0, end; at < s->files[file].bytes; at = end) {
        end = at + PIECE < s->files[file].bytes ? at + PIECE : s->files[file].bytes;
        expect_flip_found(s, file, at);
        expect_flip_found(s, file, end - 1);
      }
  }
}

// Without checksums, as in folders of other programs.
static void expect_nan_found(Saved *s, int file, size_t at) {
  Error err = {""};
  unsigned char nan[4] = {0, 0, 0xc0, 0x7f};
  exchange(s, file, at, nan, 4);
  const int status = content_check(s->files, FILES, &(FileSums){0}, &err);
  exchange(s, file, at, nan, 4);
  if (status == 0) fail_msg("a NaN at byte %zu of file %d", at, file);
  expect_error(status, &err, "'floats' has a value that is not finite");
  expect_error(status, &err, s->files[file].path);
}

TEST(a_nan_in_any_piece_is_found) {
  Saved *s = *state;
  omp_set_num_threads(4);
  must(content_check(s->files, FILES, &(FileSums){0}, &err), &err);
  for (int file = 0; file < FILES; file++) {
    const SafeTensor *floats = safetensors_find(&s->files[file], "floats");
    const size_t bytes = s->files[file].bytes;
    expect_nan_found(s, file, (size_t)(s->files[file].start + floats->begin));
    expect_nan_found(s, file, bytes - 4);
    for (size_t border = PIECE; border < bytes; border += PIECE)
      for (size_t k = 0; k < 3; k++) expect_nan_found(s, file, border - 4 + 4 * k - bytes % 4);
  }
}

// ---- What is loaded is what was checked

static void collect(void *values, const unsigned char *from, int64_t first, int64_t count) {
  safetensors_floats(SAFE_F32, from, count, (float *)values + first);
}

static int load_floats(const Saved *s, int file, float *values, Error *err) {
  const SafeTensor *t = safetensors_find(&s->files[file], "floats");
  return content_visit(&s->files[file], t, collect, values, err);
}

TEST(what_is_loaded_is_what_was_checked) {
  Saved *s = *state;
  omp_set_num_threads(3);
  must(content_check(s->files, FILES, &s->sums, &err), &err);
  float *values = held(xmalloc(3 * PIECE));
  for (int file = 0; file < FILES; file++) {
    const SafeTensor *t = safetensors_find(&s->files[file], "floats");
    const size_t first = (size_t)(s->files[file].start + t->begin),
                 end = (size_t)(s->files[file].start + t->end);
    must(load_floats(s, file, values, &err), &err);
    for (int64_t i = 0; i < t->shape[0]; i++)
      assert_true(values[i] == (float)rng_u64(2, (uint64_t)i));
    const size_t places[] = {first,     first + 1,     SAFE_PORTION - 1,   SAFE_PORTION, PIECE - 1,
                             PIECE + 3, 2 * PIECE - 1, end - SAFE_PORTION, end - 1025,   end - 1};
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
      unsigned char byte;
      assert_int_equal(pread(s->fds[file], &byte, 1, (off_t)places[k]), 1);
      byte ^= 4; // a value as good as the one before
      exchange(s, file, places[k], &byte, 1);
      const int status = load_floats(s, file, values, &err);
      exchange(s, file, places[k], &byte, 1);
      if (status == 0) fail_msg("byte %zu of file %d was loaded", places[k], file);
      expect_error(status, &err, "was changed while it was read");
    }
    must(load_floats(s, file, values, &err), &err);
  }
}

// The last: what is cut stays cut.
TEST(a_file_that_was_cut_is_found) {
  Saved *s = *state;
  SafeFile cut;
  float *values = held(xmalloc(3 * PIECE));
  for (int file = 0; file < FILES; file++) {
    const size_t bytes = s->files[file].bytes;
    const size_t left[] = {bytes - 1, bytes - 4, (bytes - 1) / PIECE * PIECE, PIECE, PIECE - 1};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
      assert_int_equal(ftruncate(s->fds[file], (off_t)left[i]), 0);
      expect_error(safetensors_open(&cut, s->files[file].path, &err), &err, s->files[file].path);
      expect_error(load_floats(s, file, values, &err), &err, "became shorter");
    }
  }
}

TEST_GROUP(save, forget);
