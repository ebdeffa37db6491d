// Every byte of a checkpoint's tensors is read once, by all threads, which compute its checksum and
// test its values while it is in the cache.
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/os.h"
#include "model/checkpoint/files.h"

typedef struct Piece {
  const SafeFile *file;
  size_t first, bytes; // of the file
  uint64_t checksum;
  int next;              // of the file's tensors, the first that was not tested to its end
  const SafeTensor *bad; // the first with an impossible value; NULL: there is none
} Piece;

// Whether one of [count] values is not finite or (unsigned_) below 0. An exponent of ones carries
// into the sign's place when its last bit is added.
static bool bad_f32(const unsigned char *at, size_t count, bool unsigned_) {
  uint32_t carries = 0, signs = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t bits; // the data of a file need not be aligned
    memcpy(&bits, at + 4 * i, 4);
    carries |= (bits & 0x7f800000u) + 0x00800000u;
    signs |= bits;
  }
  if (carries >> 31) return true;
  if (!unsigned_ || signs >> 31 == 0) return false;
  for (size_t i = 0; i < count; i++) {
    float value;
    memcpy(&value, at + 4 * i, 4);
    if (value < 0) return true;
  }
  return false;
}

// BF16 or F16, whose bits of the exponent these are.
static bool bad_half(const unsigned char *at, size_t count, uint16_t exponent) {
  uint32_t carries = 0;
  const uint32_t lowest = exponent & (~exponent + 1u); // its last bit
  for (size_t i = 0; i < count; i++) {
    uint16_t bits;
    memcpy(&bits, at + 2 * i, 2);
    carries |= (uint32_t)(bits & exponent) + lowest;
  }
  return (carries & 0x8000u) != 0;
}

// The elements of the tensor that begin in bytes [from, to) of its data.
static bool bad_part(const SafeTensor *t, uint64_t from, uint64_t to) {
  const size_t size = t->dtype == SAFE_F32 ? 4 : 2;
  const uint64_t first = (from + size - 1) / size, last = (to + size - 1) / size;
  const unsigned char *at = t->data + first * size;
  if (t->dtype == SAFE_F32)
    return bad_f32(at, (size_t)(last - first), strncmp(t->name, "exp_avg_sq.", 11) == 0);
  return bad_half(at, (size_t)(last - first), t->dtype == SAFE_BF16 ? 0x7f80 : 0x7c00);
}

// FP8 scalings: scales are positive, or 0 before the first use, which writes a history of largest
// values.
static bool bad_scalings(const SafeTensor *t) {
  if (t->dtype != SAFE_F32 || t->rank != 2 || t->shape[1] != SCALING_FLOATS)
    return false; // refused for its shape
  for (int64_t row = 0; row < t->shape[0]; row++) {
    ScalingState s;
    bool used = false;
    memcpy(&s, t->data + (uint64_t)row * sizeof s, sizeof s);
    for (int i = 0; i < SCALE_HISTORY; i++) {
      if (!isfinite(s.history[i]) || s.history[i] < 0) return true;
      used |= s.history[i] > 0;
    }
    if (!isfinite(s.scale) || s.scale < 0 || (used && s.scale == 0)) return true;
  }
  return false;
}

static bool is_scalings(const SafeTensor *t) {
  return name_ends_with(t->name, SCALINGS) != 0;
}

static bool is_tested(const SafeTensor *t) {
  return (t->dtype == SAFE_F32 || t->dtype == SAFE_BF16 || t->dtype == SAFE_F16) && !is_scalings(t);
}

static void test_values(void *piece_, const void *portion, size_t bytes) {
  Piece *piece = piece_;
  const SafeFile *file = piece->file;
  const unsigned char *at = portion, *end = at + bytes;
  for (; piece->next < file->count; piece->next++) {
    const SafeTensor *t = &file->tensors[piece->next];
    const unsigned char *stop = t->data + (t->end - t->begin);
    if (t->data >= end) return;
    if (stop > at && !piece->bad && is_tested(t) &&
        bad_part(t, at > t->data ? (uint64_t)(at - t->data) : 0,
                 (uint64_t)((stop < end ? stop : end) - t->data)))
      piece->bad = t;
    if (stop > end) return;
  }
}

static int refuse_value(const Piece *piece, Error *err) {
  return error_set(err, "'%s': the tensor '%.200s' has a value that is not finite%s",
                   piece->file->path, piece->bad->name,
                   strncmp(piece->bad->name, "exp_avg_sq.", 11) == 0 ? ", or below 0" : "");
}

// pieces[count]: those of the file.
static int check_file(const SafeFile *file, const Piece *pieces, size_t count, const FileSums *sums,
                      Error *err) {
  const char *slash = strrchr(file->path, '/');
  const FileSum *saved = sums_find(sums, slash ? slash + 1 : file->path);
  if (sums->count > 0 && !saved)
    return error_set(err, "'%s' is not among the files of " CHECKSUMS_FILE, file->path);
  uint64_t *checksums = xcalloc(count, sizeof *checksums);
  for (size_t i = 0; i < count; i++) checksums[i] = pieces[i].checksum;
  const uint64_t checksum = checksum_of_pieces(checksums, count);
  free(checksums);
  if (saved && sums_compare(saved, file->path, file->map.bytes, checksum, err) != 0) return -1;
  for (size_t i = 0; i < count; i++)
    if (pieces[i].bad) return refuse_value(&pieces[i], err);
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++)
    if (is_scalings(t) && bad_scalings(t))
      return error_set(err, "'%s': the tensor '%.200s' has an impossible FP8 scale or history",
                       file->path, t->name);
  return 0;
}

static size_t piece_count(const SafeFile *file) {
  return (file->map.bytes + CHECKSUM_PIECE - 1) / CHECKSUM_PIECE;
}

int content_check(const SafeFile *files, int count, const FileSums *sums, Error *err) {
  size_t total = 0, n = 0;
  for (int i = 0; i < count; i++) total += piece_count(&files[i]);
  Piece *pieces = xcalloc(total, sizeof *pieces);
  for (int i = 0; i < count; i++)
    for (size_t at = 0; at < files[i].map.bytes; at += CHECKSUM_PIECE) {
      const size_t left = files[i].map.bytes - at;
      pieces[n++] = (Piece){
          .file = &files[i], .first = at, .bytes = left < CHECKSUM_PIECE ? left : CHECKSUM_PIECE};
    }
  thread_team(omp_get_max_threads());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < total; i++) {
    Piece *p = &pieces[i];
    p->checksum = checksum_piece(p->file->map.data + p->first, p->bytes, test_values, p);
  }
  int status = 0;
  n = 0;
  for (int i = 0; i < count && status == 0; n += piece_count(&files[i++]))
    status = check_file(&files[i], pieces + n, piece_count(&files[i]), sums, err);
  free(pieces);
  return status;
}
