#include "data/tokenizer/steps.h"

#include <ctype.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "data/tokenizer/json.h"

// ---- Reading

static Step *push(Steps *steps, Step step) {
  steps->list = xrealloc(steps->list, ((size_t)steps->count + 1) * sizeof *steps->list);
  steps->list[steps->count] = step;
  return &steps->list[steps->count++];
}

static bool merges(int behavior) {
  return behavior == SPLIT_MERGED_WITH_PREVIOUS || behavior == SPLIT_MERGED_WITH_NEXT;
}

// A regular expression for the pieces of a Split that merges: the text between two matches,
// together with the match after it or before it. The caller frees it.
static char *merged(const char *match, bool with_previous) {
  char *rest = xasprintf("(?:(?!%s)\\p{Any})", match);
  char *pieces = with_previous ? xasprintf("%s++(?:%s)?|%s", rest, match, match)
                               : xasprintf("%s%s*+|%s++", match, rest, rest);
  free(rest);
  return pieces;
}

// Step.regex finds the pieces, so that cutting needs to know of no behavior but Removed.
static int push_split(Steps *steps, const char *pattern, int behavior, bool invert, Error *err) {
  Step *step = push(steps, (Step){.kind = CUT_SPLIT, .behavior = behavior, .invert = invert});
  step->from = xstrdup(pattern);
  char *pieces = merges(behavior)
                     ? merged(pattern, (behavior == SPLIT_MERGED_WITH_PREVIOUS) ^ invert)
                 : behavior == SPLIT_CONTIGUOUS ? xasprintf("(?:%s)+", pattern)
                                                : xstrdup(pattern);
  step->regex = regex_open(pieces, err);
  free(pieces);
  return step->regex ? 0 : -1;
}

// A regular expression for exactly this string. The caller frees it.
static char *quote(const char *string) {
  char *pattern = xmalloc(2 * strlen(string) + 1), *end = pattern;
  for (const char *p = string; *p; p++) {
    if (ispunct((unsigned char)*p)) *end++ = '\\';
    *end++ = *p;
  }
  *end = '\0';
  return pattern;
}

// {"String": "..."} or {"Regex": "..."}.
static const char *read_pattern(const cJSON *component, bool *is_regex, Error *err) {
  const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(component, "pattern");
  *is_regex = cJSON_HasObjectItem(pattern, "Regex");
  return component_string(pattern, *is_regex ? "Regex" : "String", err);
}

static int read_behavior(const cJSON *component, int *behavior, Error *err) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name = component_string(component, "behavior", err);
  if (!name) return -1;
  for (*behavior = 0; *behavior < 5; ++*behavior)
    if (strcmp(name, names[*behavior]) == 0) return 0;
  return component_refused(component, err);
}

static bool is_character(const char *text) {
  return *text && utf8_length(text, strlen(text)) == strlen(text);
}

// One reader for each type. kind: of the row in `types`, or its other number.
typedef int StepReader(Steps *steps, int kind, const cJSON *component, Error *err);

static int read_form(Steps *steps, int form, const cJSON *component, Error *err) {
  (void)component, (void)err;
  push(steps, (Step){.kind = NORMALIZE_FORM, .form = form | UTF8PROC_STABLE});
  return 0;
}

static int read_prepend(Steps *steps, int kind, const cJSON *component, Error *err) {
  const char *to = component_string(component, "prepend", err);
  if (to) push(steps, (Step){.kind = kind, .to = xstrdup(to)});
  return to ? 0 : -1;
}

static int read_replace(Steps *steps, int kind, const cJSON *component, Error *err) {
  bool is_regex;
  const char *pattern = read_pattern(component, &is_regex, err);
  const char *content = pattern ? component_string(component, "content", err) : NULL;
  if (!content) return -1;
  if (is_regex || *pattern == '\0') return component_refused(component, err);
  push(steps, (Step){.kind = kind, .from = xstrdup(pattern), .to = xstrdup(content)});
  return 0;
}

static int read_split(Steps *steps, int kind, const cJSON *component, Error *err) {
  bool is_regex, invert = false;
  int behavior;
  (void)kind;
  const char *text = read_pattern(component, &is_regex, err);
  if (!text || read_behavior(component, &behavior, err) != 0 ||
      component_flag(component, "invert", &invert, err) != 0)
    return -1;
  if (*text == '\0' || (merges(behavior) && is_regex)) return component_refused(component, err);
  char *pattern = is_regex ? xstrdup(text) : quote(text);
  const int result = push_split(steps, pattern, behavior, invert, err);
  free(pattern);
  return result;
}

static int read_byte_level(Steps *steps, int kind, const cJSON *component, Error *err) {
  bool prefix = true, regex = true;
  if (component_flag(component, "add_prefix_space", &prefix, err) != 0 ||
      component_flag(component, "use_regex", &regex, err) != 0)
    return -1;
  steps->byte_level = true;
  if (prefix) push(steps, (Step){.kind = kind, .to = xstrdup(" ")});
  return regex ? push_split(steps, GPT2_PATTERN, SPLIT_ISOLATED, false, err) : 0;
}

static int read_metaspace(Steps *steps, int kind, const cJSON *component, Error *err) {
  static const char *const schemes[] = {"always", "first", "never"};
  bool split = true, prefix = true;
  const char *mark = component_string(component, "replacement", err);
  if (!mark || component_flag(component, "split", &split, err) != 0 ||
      component_flag(component, "add_prefix_space", &prefix, err) != 0)
    return -1;
  if (!is_character(mark)) return component_refused(component, err);
  const bool named = cJSON_HasObjectItem(component, "prepend_scheme");
  const char *scheme = !prefix ? "never" : "always";
  if (named && !(scheme = component_string(component, "prepend_scheme", err))) return -1;
  int number = 0;
  while (number < 3 && strcmp(scheme, schemes[number]) != 0) number++;
  if (number == 3 || (!prefix && number != PREFIX_NEVER)) return component_refused(component, err);
  push(steps, (Step){.kind = kind, .to = xstrdup(mark), .scheme = number});
  if (!split) return 0;
  char *pattern = quote(mark);
  const int result = push_split(steps, pattern, SPLIT_MERGED_WITH_NEXT, false, err);
  free(pattern);
  return result;
}

static int read_white_space(Steps *steps, int kind, const cJSON *component, Error *err) {
  (void)kind, (void)component;
  return push_split(steps, "\\s", SPLIT_REMOVED, false, err);
}

static int read_digits(Steps *steps, int kind, const cJSON *component, Error *err) {
  bool each = false;
  (void)kind;
  if (component_flag(component, "individual_digits", &each, err) != 0) return -1;
  return push_split(steps, "\\p{N}", each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, err);
}

static int read_punctuation(Steps *steps, int kind, const cJSON *component, Error *err) {
  int behavior;
  (void)kind;
  if (read_behavior(component, &behavior, err) != 0) return -1;
  return push_split(steps, "[\\p{P}!-\\/:-@\\[-`{-~]", behavior, false, err);
}

static int read_fuse(Steps *steps, int kind, const cJSON *component, Error *err) {
  (void)kind, (void)component, (void)err;
  steps->fused = true;
  return 0;
}

static int read_decode_bytes(Steps *steps, int kind, const cJSON *component, Error *err) {
  (void)component, (void)err;
  push(steps, (Step){.kind = kind});
  if (kind == DECODE_BYTE_LEVEL) steps->fused = true;
  return 0;
}

// Behind Fuse alone, where it strips the whole text, whose end is not known before it comes.
static int read_strip(Steps *steps, int kind, const cJSON *component, Error *err) {
  const char *content = component_string(component, "content", err);
  int64_t left = 0, right = 0;
  if (!content || component_count(component, "start", &left, err) != 0 ||
      component_count(component, "stop", &right, err) != 0)
    return -1;
  if (!is_character(content) || !steps->fused || right > 0)
    return component_refused(component, err);
  push(steps, (Step){.kind = kind, .from = xstrdup(content), .left = left});
  return 0;
}

static const struct {
  Stage stage;
  const char *name;
  int kind; // or a form's options
  StepReader *read;
} types[] = {
    {NORMALIZE, "NFC", UTF8PROC_COMPOSE, read_form},
    {NORMALIZE, "NFD", UTF8PROC_DECOMPOSE, read_form},
    {NORMALIZE, "NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT, read_form},
    {NORMALIZE, "NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, read_form},
    {NORMALIZE, "Prepend", NORMALIZE_PREPEND, read_prepend},
    {NORMALIZE, "Replace", NORMALIZE_REPLACE, read_replace},
    {CUT, "Split", CUT_SPLIT, read_split},
    {CUT, "ByteLevel", CUT_PREFIX, read_byte_level},
    {CUT, "Metaspace", CUT_META, read_metaspace},
    {CUT, "WhitespaceSplit", CUT_SPLIT, read_white_space},
    {CUT, "Digits", CUT_SPLIT, read_digits},
    {CUT, "Punctuation", CUT_SPLIT, read_punctuation},
    {DECODE, "Fuse", 0, read_fuse},
    {DECODE, "ByteLevel", DECODE_BYTE_LEVEL, read_decode_bytes},
    {DECODE, "ByteFallback", DECODE_BYTE_FALLBACK, read_decode_bytes},
    {DECODE, "Replace", DECODE_REPLACE, read_replace},
    {DECODE, "Strip", DECODE_STRIP, read_strip},
};

static int read_step(void *into, const cJSON *component, const char *type, Error *err) {
  Steps *steps = into;
  if (steps->stage == CUT && steps->byte_level) // the step would see GPT-2's alphabet
    return error_set(err, "a component behind ByteLevel is not supported");
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (types[i].stage != steps->stage || strcmp(type, types[i].name) != 0) continue;
    const bool whole = types[i].read == read_fuse || types[i].read == read_strip;
    if (steps->fused && !whole) break;
    return types[i].read(steps, types[i].kind, component, err);
  }
  return component_refused(component, err);
}

int steps_read(Steps *steps, Stage stage, const cJSON *component, Error *err) {
  static const char *const names[] = {"normalizer", "pre_tokenizer", "decoder"};
  static const char *const lists[] = {"normalizers", "pretokenizers", "decoders"};
  *steps = (Steps){.stage = stage, .missing = !component || cJSON_IsNull(component)};
  return component_read(component, names[stage], lists[stage], read_step, steps, err);
}

void steps_close(Steps *steps) {
  for (int i = 0; i < steps->count; i++) {
    free(steps->list[i].from);
    free(steps->list[i].to);
    regex_close(steps->list[i].regex);
  }
  free(steps->list);
}

// ---- Normalizing

bool normalizer_keeps_lines(const Steps *n) {
  for (int i = 0; i < n->count; i++) {
    const Step *s = &n->list[i];
    if (s->kind == NORMALIZE_REPLACE && strchr(s->from, '\n')) return false;
  }
  return true;
}

bool normalizer_keeps_characters(const Steps *n) {
  for (int i = 0; i < n->count; i++) {
    const Step *s = &n->list[i];
    if (s->kind == NORMALIZE_FORM || (s->kind == NORMALIZE_REPLACE && s->from[0] != ' '))
      return false;
  }
  return true;
}

void normalizer_buffers_close(NormalizerBuffers *b) {
  free(b->now.data);
  free(b->next.data);
  free(b->characters);
}

// Unicode's White_Space at text[0], in bytes; 0 if there is none.
static size_t white_space(const char *text, size_t bytes) {
  const unsigned char *p = (const unsigned char *)text;
  if (p[0] < 0x80) return p[0] == ' ' || (p[0] >= '\t' && p[0] <= '\r');
  if (bytes >= 2 && p[0] == 0xc2) return p[1] == 0x85 || p[1] == 0xa0 ? 2 : 0;
  if (bytes < 3) return 0;
  const unsigned c = (unsigned)p[0] << 16 | (unsigned)p[1] << 8 | p[2];
  const bool is = c == 0xe19a80 ||                    // U+1680
                  (c >= 0xe28080 && c <= 0xe2808a) || // U+2000 to U+200A
                  c == 0xe280a8 || c == 0xe280a9 ||   // U+2028, U+2029
                  c == 0xe280af || c == 0xe2819f ||   // U+202F, U+205F
                  c == 0xe38080;                      // U+3000
  return is ? 3 : 0;
}

size_t white_space_at_start(const char *text, size_t bytes) {
  size_t at = 0, n = 1;
  while (at < bytes && n > 0) at += n = white_space(text + at, bytes - at);
  return at;
}

size_t white_space_at_end(const char *text, size_t bytes) {
  size_t end = bytes, n = 1;
  while (end > 0 && n > 0) {
    n = 0;
    for (size_t length = 1; length <= 3 && length <= end && n == 0; length++)
      if (white_space(text + end - length, length) == length) n = length;
    end -= n;
  }
  return bytes - end;
}

// The steps: each makes b->next of b->now.

static int class_of(int character) {
  return utf8proc_get_property(character)->combining_class;
}

// Sorts marks[count] by combining class and keeps the order of those of one class. A text may have
// a million marks in a row, for which utf8proc's own way takes hours. scratch: [count].
static void sort_marks(int *marks, size_t count, int *scratch) {
  size_t places[257] = {0};
  bool sorted = true;
  for (size_t i = 0; i < count; i++) {
    places[class_of(marks[i]) + 1]++;
    sorted &= i == 0 || class_of(marks[i - 1]) <= class_of(marks[i]);
  }
  if (sorted) return;
  for (int c = 0; c < 256; c++) places[c + 1] += places[c];
  for (size_t i = 0; i < count; i++) scratch[places[class_of(marks[i])]++] = marks[i];
  memcpy(marks, scratch, count * sizeof *marks);
}

static void order_characters(int *characters, size_t count, int *scratch) {
  for (size_t i = 0, marks; i < count; i += marks + 1) {
    for (marks = 0; i + marks < count && class_of(characters[i + marks]) > 0;) marks++;
    if (marks > 1) sort_marks(characters + i, marks, scratch);
  }
}

// One of the four forms of text[bytes], which is UTF-8.
static int append_form(NormalizerBuffers *b, int form, const char *text, size_t bytes, Error *err) {
  enum { LONGEST = 32 }; // a character becomes 18 at most
  const utf8proc_uint8_t *const at = (const utf8proc_uint8_t *)text;
  size_t count = 0;
  utf8proc_ssize_t n = 0;
  int unused = 0;
  for (size_t i = 0; i < bytes && n >= 0; i += (size_t)n) {
    if (b->capacity < 2 * (count + LONGEST)) { // half of it is for sorting
      b->capacity = 4 * (count + LONGEST);
      b->characters = xrealloc(b->characters, b->capacity * sizeof *b->characters);
    }
    utf8proc_int32_t character;
    n = utf8proc_iterate(at + i, (utf8proc_ssize_t)(bytes - i), &character);
    if (n < 0) break;
    const utf8proc_ssize_t more = utf8proc_decompose_char(character, b->characters + count, LONGEST,
                                                          (utf8proc_option_t)form, &unused);
    if (more < 0 || more > LONGEST) n = UTF8PROC_ERROR_OVERFLOW;
    count += (size_t)more;
  }
  if (n >= 0) {
    order_characters(b->characters, count, b->characters + b->capacity / 2);
    n = utf8proc_reencode(b->characters, (utf8proc_ssize_t)count, (utf8proc_option_t)form);
  }
  if (n < 0) return error_set(err, "the text cannot be normalized: %s", utf8proc_errmsg(n));
  text_append(&b->next, (const char *)b->characters, (size_t)n);
  return 0;
}

static size_t ascii_length(const char *text, size_t bytes) {
  size_t n = 0;
  while (n < bytes && (unsigned char)text[n] < 0x80) n++;
  return n;
}

// Bytes of the characters beyond ASCII at text[0].
static size_t wide_length(const char *text, size_t bytes) {
  size_t n = 0;
  while (n < bytes && (unsigned char)text[n] >= 0x80) {
    const size_t length = utf8_length(text + n, bytes - n);
    if (length == 0) break;
    n += length;
  }
  return n;
}

// ASCII stays as it is in every form, but for the last character of a run of it, to which marks
// may follow. Nothing in front of an ASCII character composes with it.
static int apply_form(NormalizerBuffers *b, int form, Error *err) {
  for (size_t at = 0; at < b->now.bytes;) {
    const char *const text = b->now.data + at;
    const size_t left = b->now.bytes - at, ascii = ascii_length(text, left);
    const size_t wide = wide_length(text + ascii, left - ascii);
    // Where no character follows, it is the end, or a byte that is none.
    const size_t plain = wide > 0 ? ascii - (ascii > 0) : ascii + (ascii < left);
    text_append(&b->next, text, plain);
    at += wide > 0 ? ascii + wide : plain;
    if (wide > 0 && append_form(b, form, text + plain, ascii - plain + wide, err) != 0) return -1;
  }
  return 0;
}

void text_replace(const Text *in, Text *out, const char *from, const char *to, size_t most) {
  const size_t from_bytes = strlen(from), to_bytes = strlen(to);
  const char *at = in->data, *const end = at + in->bytes;
  while (at < end && out->bytes <= most) {
    const char *found = memchr(at, from[0], (size_t)(end - at));
    if (!found || (size_t)(end - found) < from_bytes) break;
    const bool is = memcmp(found, from, from_bytes) == 0;
    text_append(out, at, (size_t)(found - at) + !is);
    if (is) text_append(out, to, to_bytes);
    at = found + (is ? from_bytes : 1);
  }
  text_append(out, at, (size_t)(end - at));
}

static int apply_step(const Step *step, NormalizerBuffers *b, bool continues, size_t most,
                      Error *err) {
  const Text *now = &b->now;
  switch (step->kind) {
  case NORMALIZE_FORM:
    return apply_form(b, step->form, err);
  case NORMALIZE_PREPEND:
    if (now->bytes > 0 && !continues) text_append(&b->next, step->to, strlen(step->to));
    text_append(&b->next, now->data, now->bytes);
    return 0;
  case NORMALIZE_REPLACE:
    text_replace(now, &b->next, step->from, step->to, most);
    return 0;
  }
  return 0;
}

// Where the first `ahead` bytes of b->now end after the step: as far as they reach alone.
static int move_position(const Step *step, NormalizerBuffers *b, bool continues, size_t most,
                         ptrdiff_t *ahead, Error *err) {
  const size_t bytes = b->now.bytes;
  if (*ahead <= 0) return 0;
  if ((size_t)*ahead < bytes) b->now.bytes = (size_t)*ahead;
  const int status = apply_step(step, b, continues, most, err);
  *ahead = (ptrdiff_t)b->next.bytes;
  b->next.bytes = 0;
  b->now.bytes = bytes;
  return status;
}

int normalizer_apply(const Steps *n, NormalizerBuffers *b, const char *text, size_t bytes,
                     bool continues, ptrdiff_t *ahead, Error *err) {
  const size_t most = NORMALIZER_GROWTH * bytes + NORMALIZER_MORE_BYTES;
  b->now.bytes = 0;
  text_append(&b->now, text, bytes);
  for (int i = 0; i < n->count; i++) {
    b->next.bytes = 0;
    text_room(&b->now, 1); // so that it is never NULL
    if (ahead && move_position(&n->list[i], b, continues, most, ahead, err) != 0) return -1;
    if (apply_step(&n->list[i], b, continues, most, err) != 0) return -1;
    if (b->next.bytes > most)
      return error_set(err,
                       "the tokenizer's normalizer makes more than %s of %s of text, so its steps "
                       "cannot be meant: look at what its Replace and Prepend write",
                       size_text(most).text, size_text(bytes).text);
    const Text now = b->now;
    b->now = b->next;
    b->next = now;
  }
  return 0;
}

// ---- Cutting

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
  ptrdiff_t grown = (ptrdiff_t)buffer->bytes; // by as much the first `ahead` bytes are longer
  const char *at = piece.text, *const end = piece.text + piece.bytes;
  while (at < end) {
    const char *space = step->kind == CUT_META ? memchr(at, ' ', (size_t)(end - at)) : NULL;
    text_append(buffer, at, (size_t)((space ? space : end) - at));
    if (space) text_append(buffer, step->to, bytes);
    if (space && space - piece.text < piece.ahead) grown += (ptrdiff_t)bytes - 1;
    at = space ? space + 1 : end;
  }
  if (piece.ahead > 0) piece.ahead += grown;
  piece.text = buffer->data;
  piece.bytes = buffer->bytes;
  return go_on(way, number + 1, piece);
}

static inline int emit(const Way *way, int next, const Piece *whole, size_t begin, size_t end) {
  if (begin == end) return 0;
  const Piece piece = {whole->text + begin, end - begin, whole->first && begin == 0,
                       whole->continues, whole->ahead - (ptrdiff_t)begin};
  return next == way->cutter->rules->count
             ? way->take(way->to, piece.text, piece.bytes, piece.ahead, way->err)
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
    return way->take(way->to, piece.text, piece.bytes, piece.ahead, way->err);
  if (way->cutter->rules->list[step].kind == CUT_SPLIT) return split(way, step, piece);
  return put_in_front(way, step, piece);
}

int cutter_cut(Cutter *c, Piece piece, bool valid, PieceTaker *take, void *to, Error *err) {
  const Way way = {c, take, to, err};
  const size_t end = piece.bytes;
  for (size_t at = 0; at < end;) {
    piece.bytes = valid ? end : utf8_valid(piece.text, end - at);
    if (piece.bytes > 0 && go_on(&way, 0, piece) != 0) return -1;
    at += piece.bytes;
    piece.text += piece.bytes;
    piece.ahead -= (ptrdiff_t)piece.bytes;
    size_t broken = 0;
    while (at + broken < end && utf8_length(piece.text + broken, end - at - broken) == 0) broken++;
    if (broken > 0 && take(to, piece.text, broken, piece.ahead, err) != 0) return -1;
    at += broken;
    piece.text += broken;
    piece.ahead -= (ptrdiff_t)broken;
    piece.first = false;
  }
  return 0;
}
