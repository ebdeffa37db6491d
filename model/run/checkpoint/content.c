// Every byte of a checkpoint's tensors is read by all threads, which compute its checksums and test
// its values while it is in the cache. What is loaded later is compared with these checksums.
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/os.h"
#include "model/run/checkpoint/files.h"

// Whether one of [count] values is not finite or (unsigned_) below 0.
static bool bad_f32(const unsigned char *at, size_t count, bool unsigned_) {
  const uint32_t most = unsigned_ ? 0x80000000u : UINT32_MAX; // -0 is not below 0
  uint32_t bad = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t bits; // the data of a file need not be aligned
    memcpy(&bits, at + 4 * i, 4);
    bad |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u) | (uint32_t)(bits > most);
  }
  return bad != 0;
}

// BF16 or F16, whose bits of the exponent these are.
static bool bad_half(const unsigned char *at, size_t count, uint16_t exponent) {
  uint16_t bad = 0;
  for (size_t i = 0; i < count; i++) {
    uint16_t bits;
    memcpy(&bits, at + 2 * i, 2);
    bad |= (uint16_t)((bits & exponent) == exponent);
  }
  return bad != 0;
}

// FP8 scalings: scales are positive, or 0 before the first use, which writes a history of largest
// values.
static bool bad_scaling(const ScalingState *s) {
  bool used = false;
  for (int i = 0; i < SCALE_HISTORY; i++) {
    if (!isfinite(s->history[i]) || s->history[i] < 0) return true;
    used |= s->history[i] > 0;
  }
  return !isfinite(s->scale) || s->scale < 0 || (used && s->scale == 0);
}

bool is_scaling(const SafeTensor *t) {
  return name_ends_with(t->name, ".scalings") || strstr(t->name, ".scalings.");
}

bool is_state(const SafeTensor *t, ParamState state) {
  const ParamTensor by_adamw = {.part_count = 0}; // of which all states are saved
  const char *name = state_saved_as(&by_adamw, state);
  const size_t length = strlen(name);
  return strncmp(t->name, name, length) == 0 && t->name[length] == '.';
}

static bool is_tested(const SafeTensor *t) {
  return (t->dtype == SAFE_F32 || t->dtype == SAFE_BF16 || t->dtype == SAFE_F16) && !is_scaling(t);
}

// Elements of a tensor that follow one another: their place in the file, and how many.
typedef struct Part {
  uint64_t at;
  size_t count;
} Part;

// The elements of the tensor that begin in bytes [at, end) of the file. Bytes before the tensor's
// own may be among these.
static Part part_of(const SafeFile *file, const SafeTensor *t, uint64_t at, uint64_t end) {
  const uint64_t size = safetensors_element(t->dtype), start = file->start + t->begin,
                 stop = file->start + t->end, from = at > start ? at - start : 0,
                 to = (end < stop ? end : stop) - start;
  const uint64_t first = (from + size - 1) / size, last = (to + size - 1) / size;
  return (Part){start + first * size, last > first ? (size_t)(last - first) : 0};
}

// Of bytes [at, end) of the file, which lie in `portion`, the elements that begin there.
static bool bad_part(const SafeFile *file, const SafeTensor *t, const unsigned char *portion,
                     uint64_t at, uint64_t end) {
  const Part part = part_of(file, t, at, end);
  const unsigned char *from = portion + (part.at - at);
  if (t->dtype == SAFE_F32) return bad_f32(from, part.count, is_state(t, STATE_v));
  return bad_half(from, part.count, t->dtype == SAFE_BF16 ? 0x7f80 : 0x7c00);
}

// The first tensor with an impossible value in the portion, which is bytes [at, end) of the file.
static const SafeTensor *bad_tensor(const SafeFile *file, const unsigned char *portion, uint64_t at,
                                    uint64_t end) {
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++)
    if (file->start + t->begin < end && file->start + t->end > at && is_tested(t) &&
        bad_part(file, t, portion, at, end))
      return t;
  return NULL;
}

enum { PORTIONS = CHECKSUM_PIECE / SAFE_PORTION, ROOM = SAFE_PORTION + SAFE_SLACK };

// Reads a piece of the file, portion by portion into `room`: its checksum and the portions' sums.
static int check_piece(const SafeFile *file, size_t piece, unsigned char *room, uint64_t *sums,
                       uint64_t *checksum, const SafeTensor **bad, Error *err) {
  const size_t first = piece * PORTIONS, all = safetensors_portions(file);
  XXH3_state_t *hash = checksum_state();
  int status = 0;
  for (size_t i = first; i < all && i < first + PORTIONS && status == 0; i++) {
    const uint64_t at = (uint64_t)i * SAFE_PORTION, left = file->bytes - at;
    const size_t bytes = left < SAFE_PORTION ? (size_t)left : SAFE_PORTION;
    status = safetensors_read(file, i, room, err);
    if (status != 0) break;
    XXH3_64bits_update(hash, room, bytes);
    sums[i] = XXH3_64bits(room, bytes);
    if (!*bad) *bad = bad_tensor(file, room, at, at + bytes);
  }
  *checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return status;
}

// checksums [pieces]; bad: the first tensor with an impossible value, or NULL.
static int read_pieces(const SafeFile *file, size_t pieces, unsigned char *rooms, uint64_t *sums,
                       uint64_t *checksums, const SafeTensor **bad, Error *err) {
  int status = 0;
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < pieces; i++) {
    Error why;
    const SafeTensor *found = NULL;
    unsigned char *room = rooms + (size_t)omp_get_thread_num() * ROOM;
    const int failed = check_piece(file, i, room, sums, &checksums[i], &found, &why);
#pragma omp critical
    {
      if (failed != 0) status = -1, *err = why;
      if (found && (!*bad || found < *bad)) *bad = found;
    }
  }
  return status;
}

static int check_scalings(const SafeFile *file, Error *err) {
  int status = 0;
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count && status == 0; t++) {
    if (!is_scaling(t) || t->dtype != SAFE_F32 || t->rank == 0 ||
        t->shape[t->rank - 1] != SCALING_FLOATS)
      continue; // another shape is refused by who loads it
    const size_t count = (size_t)(t->end - t->begin) / sizeof(ScalingState);
    ScalingState *states = xcalloc(count + 1, sizeof *states);
    status = content_read(file, t, 0, count * sizeof *states, states, err);
    for (size_t i = 0; i < count && status == 0; i++)
      if (bad_scaling(&states[i]))
        status = error_set(err, "'%s': the tensor '%.200s' has an impossible FP8 scale or history",
                           file->path, t->name);
    free(states);
  }
  return status;
}

static int check_file(SafeFile *file, const FileSums *sums, unsigned char *rooms, Error *err) {
  const size_t pieces = (file->bytes + CHECKSUM_PIECE - 1) / CHECKSUM_PIECE;
  const FileSum *saved = sums_find(sums, strrchr(file->path, '/') + 1);
  const SafeTensor *bad = NULL;
  if (sums->count > 0 && !saved)
    return error_set(err, "'%s' is not among the files of " CHECKSUMS_FILE, file->path);
  free(file->sums);
  file->sums = NULL; // what is read now is not compared with them
  uint64_t *checksums = xcalloc(pieces, sizeof *checksums),
           *found = xcalloc(safetensors_portions(file), sizeof *found);
  int status = read_pieces(file, pieces, rooms, found, checksums, &bad, err);
  file->sums = found;
  if (status == 0 && saved)
    status =
        sums_compare(saved, file->path, file->bytes, checksum_of_pieces(checksums, pieces), err);
  free(checksums);
  if (status == 0 && bad)
    return error_set(err, "'%s': the tensor '%.200s' has a value that is not finite%s", file->path,
                     bad->name, is_state(bad, STATE_v) ? ", or below 0" : "");
  return status == 0 ? check_scalings(file, err) : -1;
}

int content_check(SafeFile *files, int count, const FileSums *sums, Error *err) {
  const int threads = omp_get_max_threads();
  unsigned char *rooms = xmalloc((size_t)threads * ROOM);
  int status = 0;
  thread_team(threads);
  for (int i = 0; i < count && status == 0; i++) status = check_file(&files[i], sums, rooms, err);
  free(rooms);
  return status;
}

// ---- Loading

int content_read(const SafeFile *file, const SafeTensor *t, uint64_t at, size_t bytes, void *to,
                 Error *err) {
  unsigned char *room = xmalloc(SAFE_PORTION + SAFE_SLACK);
  int status = 0;
  at += file->start + t->begin;
  for (size_t done = 0, n; done < bytes && status == 0; done += n) {
    const size_t offset = (size_t)((at + done) % SAFE_PORTION), left = bytes - done;
    n = SAFE_PORTION - offset < left ? SAFE_PORTION - offset : left;
    status = safetensors_read(file, (size_t)((at + done) / SAFE_PORTION), room, err);
    if (status == 0) memcpy((char *)to + done, room + offset, n);
  }
  free(room);
  return status;
}

int content_visit(const SafeFile *file, const SafeTensor *t, ContentVisit *visit, void *context,
                  Error *err) {
  enum { EACH = 1 << 20 }; // whole elements of every dtype
  const uint64_t size = safetensors_element(t->dtype), bytes = t->end - t->begin;
  unsigned char *rooms = xmalloc((size_t)omp_get_max_threads() * EACH);
  int status = 0;
#pragma omp parallel for schedule(static)
  for (uint64_t at = 0; at < bytes; at += EACH) {
    Error own;
    unsigned char *room = rooms + (size_t)omp_get_thread_num() * EACH;
    const size_t n = bytes - at < EACH ? (size_t)(bytes - at) : EACH;
    if (content_read(file, t, at, n, room, &own) == 0) {
      visit(context, room, (int64_t)(at / size), (int64_t)(n / size));
      continue;
    }
#pragma omp critical
    {
      status = -1;
      *err = own;
    }
  }
  free(rooms);
  return status;
}

int content_equal(const SafeFile *a, const SafeTensor *s, const SafeFile *b, const SafeTensor *t,
                  bool *equal, Error *err) {
  enum { EACH = 1 << 20 };
  const uint64_t bytes = s->end - s->begin;
  unsigned char *x = xmalloc(2 * EACH), *y = x + EACH;
  int status = 0;
  *equal = s->dtype == t->dtype && bytes == t->end - t->begin;
  for (uint64_t at = 0; at < bytes && *equal && status == 0; at += EACH) {
    const size_t n = bytes - at < EACH ? (size_t)(bytes - at) : EACH;
    status = content_read(a, s, at, n, x, err);
    if (status == 0) status = content_read(b, t, at, n, y, err);
    *equal = status == 0 && memcmp(x, y, n) == 0;
  }
  free(x);
  return status;
}
