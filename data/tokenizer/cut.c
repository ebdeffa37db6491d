#include "data/tokenizer/cut.h"

#include <stdlib.h>

// ---- A document into pieces

// LOOK: bytes behind a place that decide whether it is safe.
enum { PIECE_BYTES = 1 << 20, MOST_BYTES = 16 << 20, LOOK = 4 };

size_t cut_character(const char *text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at; back++)
    if (((unsigned char)text[at - back] & 0xc0) != 0x80) return at - back;
  return at;
}

// Is the character at text[0] white space, or one of the blocks of characters that hold some?
static bool may_be_white(const char *text, size_t bytes) {
  const unsigned char *c = (const unsigned char *)text;
  if (c[0] < 0xc2) return c[0] <= ' ' || c[0] == 0x7f;
  if (bytes < LOOK) return c[0] <= 0xe3;
  return (c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0)) ||
         (c[0] == 0xe1 && (c[1] == 0x9a || c[1] == 0xa0)) ||
         (c[0] == 0xe2 && (c[1] == 0x80 || c[1] == 0x81)) ||
         (c[0] == 0xe3 && c[1] == 0x80 && c[2] == 0x80);
}

// Behind a newline with no white space on either side: there every pre-tokenizer that we know of
// begins a new word, and no normal form reaches across.
static bool is_safe(const ByteSet *joined, const char *text, size_t at, size_t known) {
  if (at < 2 || text[at - 1] != '\n' || may_be_white(text + at, known - at) ||
      byte_set_has(joined, text[at]))
    return false;
  const size_t left = cut_character(text, at - 2);
  return !may_be_white(text + left, known - left);
}

size_t cut_piece(const ByteSet *joined, const char *text, size_t known, bool complete,
                 size_t *searched) {
  if (complete && known <= PIECE_BYTES) return known;
  if (known < PIECE_BYTES + LOOK && !complete) return 0;
  const size_t end = complete ? known : known - LOOK;
  for (size_t at = PIECE_BYTES; *searched == 0 && at > 0; at--)
    if (is_safe(joined, text, at, known)) return at;
  if (*searched < PIECE_BYTES) *searched = PIECE_BYTES;
  while (*searched < end && *searched < MOST_BYTES) {
    const char *newline = memchr(text + *searched, '\n', end - *searched);
    *searched = newline ? (size_t)(newline - text) + 1 : end;
    if (*searched > MOST_BYTES || *searched == end) break;
    if (newline && is_safe(joined, text, *searched, known)) return *searched;
  }
  if (known >= MOST_BYTES + LOOK) return cut_character(text, MOST_BYTES);
  return complete ? known : 0;
}

// ---- A piece into pre-tokens

void cutter_open(Cutter *c, const Steps *rules) {
  const size_t count = (size_t)rules->count;
  *c = (Cutter){.rules = rules,
                .buffers = xcalloc(count, sizeof *c->buffers),
                .scans = xcalloc(count, sizeof(RegexScan *))};
  for (size_t i = 0; i < count; i++)
    if (rules->list[i].regex) c->scans[i] = regex_scan_open(rules->list[i].regex);
}

void cutter_close(Cutter *c) {
  for (int i = 0; i < c->rules->count; i++) {
    regex_scan_close(c->scans[i]);
    free(c->buffers[i].data);
  }
  free(c->buffers);
  free(c->scans);
}

// A piece on its way through the steps.
typedef struct Way {
  Cutter *cutter;
  PieceTaker *take;
  void *to;
  Error *err;
} Way;

static int go_on(const Way *way, int step, Piece piece);

static int put_in_front(const Way *way, int number, Piece piece) {
  const Step *step = &way->cutter->rules->list[number];
  Text *buffer = &way->cutter->buffers[number];
  const size_t bytes = strlen(step->to);
  buffer->bytes = 0;
  bool wanted = !(piece.first && piece.continues);
  if (step->kind == CUT_META) {
    wanted &= step->scheme == PREFIX_ALWAYS || (step->scheme == PREFIX_FIRST && piece.first);
    wanted &= piece.text[0] != ' ';
  }
  if (piece.bytes >= bytes && memcmp(piece.text, step->to, bytes) == 0) wanted = false;
  if (step->kind == CUT_PREFIX && !wanted) return go_on(way, number + 1, piece);
  if (wanted) text_append(buffer, step->to, bytes);
  const char *at = piece.text, *const end = piece.text + piece.bytes;
  while (at < end) {
    const char *space = step->kind == CUT_META ? memchr(at, ' ', (size_t)(end - at)) : NULL;
    text_append(buffer, at, (size_t)((space ? space : end) - at));
    if (space) text_append(buffer, step->to, bytes);
    at = space ? space + 1 : end;
  }
  piece.text = buffer->data;
  piece.bytes = buffer->bytes;
  return go_on(way, number + 1, piece);
}

static inline int emit(const Way *way, int next, const Piece *whole, size_t begin, size_t end) {
  if (begin == end) return 0;
  const Piece piece = {whole->text + begin, end - begin, whole->first && begin == 0,
                       whole->continues};
  // The last step's piece, which is most of them, without another call.
  return next == way->cutter->rules->count ? way->take(way->to, piece.text, piece.bytes, way->err)
                                           : go_on(way, next, piece);
}

static int split(const Way *way, int number, Piece piece) {
  const Step *step = &way->cutter->rules->list[number];
  const bool removes = step->behavior == SPLIT_REMOVED;
  const bool matches = !removes || step->invert, rest = !removes || !step->invert; // are kept
  RegexScan *scan = way->cutter->scans[number];
  size_t at = 0, done = 0, begin, end; // done: behind the last match
  bool any = false;                    // there was one
  while (at <= piece.bytes) {
    const int found = regex_next(scan, piece.text, piece.bytes, at, &begin, &end, way->err);
    if (found < 0) return -1;
    if (found == 0) break;
    if (begin == end && any && end == done) { // no empty match right behind a match
      at += at < piece.bytes ? utf8_length(piece.text + at, piece.bytes - at) : 1;
      continue;
    }
    if (rest && emit(way, number + 1, &piece, done, begin) != 0) return -1;
    if (matches && emit(way, number + 1, &piece, begin, end) != 0) return -1;
    at = done = end;
    any = true;
  }
  return rest ? emit(way, number + 1, &piece, done, piece.bytes) : 0;
}

static int go_on(const Way *way, int step, Piece piece) {
  if (step == way->cutter->rules->count)
    return way->take(way->to, piece.text, piece.bytes, way->err);
  if (way->cutter->rules->list[step].kind == CUT_SPLIT) return split(way, step, piece);
  return put_in_front(way, step, piece);
}

int cutter_cut(Cutter *c, Piece piece, PieceTaker *take, void *to, Error *err) {
  const Way way = {c, take, to, err};
  const size_t end = piece.bytes;
  for (size_t at = 0; at < end;) {
    piece.bytes = utf8_valid(piece.text, end - at);
    if (piece.bytes > 0 && go_on(&way, 0, piece) != 0) return -1;
    at += piece.bytes;
    piece.text += piece.bytes;
    size_t broken = 0;
    while (at + broken < end && utf8_length(piece.text + broken, end - at - broken) == 0) broken++;
    if (broken > 0 && take(to, piece.text, broken, err) != 0) return -1;
    at += broken;
    piece.text += broken;
    piece.first = false;
  }
  return 0;
}
