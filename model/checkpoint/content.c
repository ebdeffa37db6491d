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
#include "model/checkpoint/files.h"

typedef struct Piece {
  SafeFile *file;
  size_t first, portions;   // of the file
  uint64_t checksum, *sums; // of the whole; [of the file's portions] to be filled in
  int next;                 // of the file's tensors, the first that was not tested to its end
  const SafeTensor *bad;    // the first with an impossible value; NULL: there is none
  bool failed;
  Error error; // of reading
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

static int bad_scalings(const SafeFile *file, const SafeTensor *t, bool *bad, Error *err) {
  const int64_t count = (int64_t)((t->end - t->begin) / sizeof(ScalingState));
  *bad = false;
  if (t->dtype != SAFE_F32 || t->rank == 0 || t->shape[t->rank - 1] != SCALING_FLOATS)
    return 0; // refused for its shape
  ScalingState *states = xcalloc((size_t)count + 1, sizeof *states);
  const int status = content_read(file, t, 0, (size_t)count * sizeof *states, states, err);
  for (int64_t row = 0; row < count && status == 0; row++) *bad |= bad_scaling(&states[row]);
  free(states);
  return status;
}

bool is_scaling(const SafeTensor *t) {
  return name_ends_with(t->name, SCALINGS) || strstr(t->name, SCALINGS ".");
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

// Of bytes [at, end) of the file, which lie in `portion`, the elements that begin there.
static bool bad_part(const SafeFile *file, const SafeTensor *t, const unsigned char *portion,
                     uint64_t at, uint64_t end) {
  const ContentPart part = content_part(file, t, at, end);
  const unsigned char *from = portion + (part.at - at);
  if (t->dtype == SAFE_F32) return bad_f32(from, (size_t)part.count, is_state(t, STATE_v));
  return bad_half(from, (size_t)part.count, t->dtype == SAFE_BF16 ? 0x7f80 : 0x7c00);
}

static void test_values(Piece *piece, const unsigned char *portion, uint64_t at, uint64_t end) {
  const SafeFile *file = piece->file;
  for (; piece->next < file->count; piece->next++) {
    const SafeTensor *t = &file->tensors[piece->next];
    if (file->start + t->begin >= end) return;
    if (!piece->bad && is_tested(t) && bad_part(file, t, portion, at, end)) piece->bad = t;
    if (file->start + t->end > end) return;
  }
}

// Its portions one after the other, each into `room`.
static void check_piece(Piece *piece, unsigned char *room) {
  XXH3_state_t *hash = checksum_state();
  SafeFile *file = piece->file;
  for (size_t i = piece->first; i < piece->first + piece->portions && !piece->failed; i++) {
    const uint64_t at = (uint64_t)i * SAFE_PORTION, left = file->bytes - at;
    const size_t bytes = left < SAFE_PORTION ? (size_t)left : SAFE_PORTION;
    piece->failed = safetensors_read(file, i, room, &piece->error) != 0;
    if (piece->failed) break;
    XXH3_64bits_update(hash, room, bytes);
    piece->sums[i] = XXH3_64bits(room, bytes);
    test_values(piece, room, at, at + bytes);
  }
  piece->checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
}

static int refuse_value(const Piece *piece, Error *err) {
  return error_set(err, "'%s': the tensor '%.200s' has a value that is not finite%s",
                   piece->file->path, piece->bad->name,
                   is_state(piece->bad, STATE_v) ? ", or below 0" : "");
}

// pieces[count]: those of the file.
static int check_file(SafeFile *file, const Piece *pieces, size_t count, const FileSums *sums,
                      Error *err) {
  const char *slash = strrchr(file->path, '/');
  const FileSum *saved = sums_find(sums, slash ? slash + 1 : file->path);
  if (sums->count > 0 && !saved)
    return error_set(err, "'%s' is not among the files of " CHECKSUMS_FILE, file->path);
  for (size_t i = 0; i < count; i++)
    if (pieces[i].failed) {
      *err = pieces[i].error;
      return -1;
    }
  uint64_t *checksums = xcalloc(count, sizeof *checksums);
  for (size_t i = 0; i < count; i++) checksums[i] = pieces[i].checksum;
  const uint64_t checksum = checksum_of_pieces(checksums, count);
  free(checksums);
  if (saved && sums_compare(saved, file->path, file->bytes, checksum, err) != 0) return -1;
  for (size_t i = 0; i < count; i++)
    if (pieces[i].bad) return refuse_value(&pieces[i], err);
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++) {
    bool bad = false;
    if (is_scaling(t) && bad_scalings(file, t, &bad, err) != 0) return -1;
    if (bad)
      return error_set(err, "'%s': the tensor '%.200s' has an impossible FP8 scale or history",
                       file->path, t->name);
  }
  return 0;
}

static int read_and_check(SafeFile *file, const FileSums *sums, unsigned char *rooms, Error *err) {
  enum { EACH = CHECKSUM_PIECE / SAFE_PORTION };
  const size_t portions = safetensors_portions(file),
               count = (file->bytes + CHECKSUM_PIECE - 1) / CHECKSUM_PIECE;
  Piece *pieces = xcalloc(count, sizeof *pieces);
  uint64_t *found = xcalloc(portions, sizeof *found);
  free(file->sums);
  file->sums = NULL;
  for (size_t i = 0, at = 0; i < count; i++, at += EACH)
    pieces[i] = (Piece){.file = file,
                        .first = at,
                        .portions = portions - at < EACH ? portions - at : EACH,
                        .sums = found};
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < count; i++)
    check_piece(&pieces[i], rooms + (size_t)omp_get_thread_num() * CONTENT_ROOM);
  file->sums = found;
  const int status = check_file(file, pieces, count, sums, err);
  free(pieces);
  return status;
}

int content_check(SafeFile *files, int count, const FileSums *sums, Error *err) {
  const int threads = omp_get_max_threads();
  unsigned char *rooms = xmalloc((size_t)threads * CONTENT_ROOM);
  int status = 0;
  thread_team(threads);
  for (int i = 0; i < count && status == 0; i++)
    status = read_and_check(&files[i], sums, rooms, err);
  free(rooms);
  return status;
}

// ---- Loading

ContentPart content_part(const SafeFile *file, const SafeTensor *t, uint64_t at, uint64_t end) {
  const uint64_t size = safetensors_element(t->dtype), start = file->start + t->begin,
                 stop = file->start + t->end, from = at > start ? at - start : 0,
                 to = (end < stop ? end : stop) - start;
  const uint64_t first = (from + size - 1) / size, last = (to + size - 1) / size;
  return (ContentPart){.at = start + first * size,
                       .first = (int64_t)first,
                       .count = last > first ? (int64_t)(last - first) : 0};
}

// Of a portion, and of the bytes behind it that an element across the border needs: they are
// the next portion's own.
static int read_part(const SafeFile *file, size_t i, bool across, unsigned char *room, Error *err) {
  unsigned char *next = room + SAFE_PORTION + SAFE_SLACK;
  if (across && safetensors_read(file, i + 1, next, err) != 0) return -1;
  if (safetensors_read(file, i, room, err) != 0) return -1;
  if (across) memcpy(room + SAFE_PORTION, next, SAFE_SLACK);
  return 0;
}

int content_visit(const SafeFile *file, const SafeTensor *t, unsigned char *rooms,
                  void (*visit)(void *context, const unsigned char *from, ContentPart part),
                  void *context, Error *err) {
  const uint64_t start = file->start + t->begin, stop = file->start + t->end,
                 size = safetensors_element(t->dtype);
  const size_t first = (size_t)(start / SAFE_PORTION),
               last = (size_t)((stop + SAFE_PORTION - 1) / SAFE_PORTION);
  int status = 0;
  if (start == stop) return 0;
#pragma omp parallel for schedule(static)
  for (size_t i = first; i < last; i++) {
    Error own;
    unsigned char *room = rooms + (size_t)omp_get_thread_num() * CONTENT_ROOM;
    const uint64_t at = (uint64_t)i * SAFE_PORTION, end = at + SAFE_PORTION;
    const ContentPart part = content_part(file, t, at, end);
    const bool across = part.at + (uint64_t)part.count * size > end;
    if (read_part(file, i, across, room, &own) == 0) {
      visit(context, room + (part.at - at), part);
      continue;
    }
#pragma omp critical
    {
      status = -1;
      *err = own;
    }
  }
  return status;
}

// Bytes [at, at + bytes) of the file.
static int copy_bytes(const SafeFile *file, uint64_t at, size_t bytes, unsigned char *to,
                      unsigned char *room, Error *err) {
  for (size_t done = 0, n; done < bytes; done += n) {
    const size_t offset = (size_t)((at + done) % SAFE_PORTION), left = bytes - done;
    n = SAFE_PORTION - offset < left ? SAFE_PORTION - offset : left;
    if (safetensors_read(file, (size_t)((at + done) / SAFE_PORTION), room, err) != 0) return -1;
    memcpy(to + done, room + offset, n);
  }
  return 0;
}

int content_read(const SafeFile *file, const SafeTensor *t, size_t at, size_t bytes, void *to,
                 Error *err) {
  unsigned char *room = xmalloc(CONTENT_ROOM);
  const int status = copy_bytes(file, file->start + t->begin + at, bytes, to, room, err);
  free(room);
  return status;
}

int content_equal(const SafeFile *a, const SafeTensor *s, const SafeFile *b, const SafeTensor *t,
                  bool *equal, Error *err) {
  enum { EACH = 1 << 20 };
  const uint64_t bytes = s->end - s->begin;
  unsigned char *room = xmalloc(CONTENT_ROOM + 2 * EACH), *x = room + CONTENT_ROOM, *y = x + EACH;
  int status = 0;
  *equal = s->dtype == t->dtype && bytes == t->end - t->begin;
  for (uint64_t at = 0; at < bytes && *equal && status == 0; at += EACH) {
    const size_t n = bytes - at < EACH ? (size_t)(bytes - at) : EACH;
    status = copy_bytes(a, a->start + s->begin + at, n, x, room, err) ||
                     copy_bytes(b, b->start + t->begin + at, n, y, room, err)
                 ? -1
                 : 0;
    *equal = status == 0 && memcmp(x, y, n) == 0;
  }
  free(room);
  return status;
}
