#include "data/tokenizer/pre_tokenizer.h"

#include <ctype.h>
#include <stdlib.h>

#include "base/text.h"
#include "data/tokenizer/component.h"

// ---- Reading

static CutStep *push(PreTokenizer *p, CutStep step) {
  p->steps = xrealloc(p->steps, ((size_t)p->count + 1) * sizeof *p->steps);
  p->steps[p->count] = step;
  return &p->steps[p->count++];
}

static int push_split(PreTokenizer *p, const char *pattern, int behavior, bool invert, Error *err) {
  CutStep *step = push(p, (CutStep){.kind = CUT_SPLIT, .invert = invert});
  step->behavior = behavior;
  step->pattern = xstrdup(pattern);
  step->regex = regex_open(pattern, err);
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

static int read_behavior(const cJSON *component, int *behavior, Error *err) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name = component_string(component, "behavior", err);
  if (!name) return -1;
  for (*behavior = 0; *behavior < 5; ++*behavior)
    if (strcmp(name, names[*behavior]) == 0) return 0;
  return component_refused(component, err);
}

static int read_split(PreTokenizer *p, const cJSON *component, Error *err) {
  bool is_regex, invert = false;
  int behavior;
  const char *text = component_pattern(component, &is_regex, err);
  if (!text || read_behavior(component, &behavior, err) != 0 ||
      component_flag(component, "invert", &invert, err) != 0)
    return -1;
  if (*text == '\0') return component_refused(component, err);
  char *pattern = is_regex ? xstrdup(text) : quote(text);
  const int result = push_split(p, pattern, behavior, invert, err);
  free(pattern);
  return result;
}

static int read_byte_level(PreTokenizer *p, const cJSON *component, Error *err) {
  bool prefix = true, regex = true;
  if (component_flag(component, "add_prefix_space", &prefix, err) != 0 ||
      component_flag(component, "use_regex", &regex, err) != 0)
    return -1;
  p->byte_level = true;
  if (prefix) push(p, (CutStep){.kind = CUT_PREFIX, .prefix = xstrdup(" ")});
  return regex ? push_split(p, GPT2_PATTERN, SPLIT_ISOLATED, false, err) : 0;
}

static int read_metaspace(PreTokenizer *p, const cJSON *component, Error *err) {
  bool split = true, prefix = true;
  const char *mark = component_string(component, "replacement", err);
  if (!mark || component_flag(component, "split", &split, err) != 0 ||
      component_flag(component, "add_prefix_space", &prefix, err) != 0)
    return -1;
  if (*mark == '\0' || utf8_length(mark, strlen(mark)) != strlen(mark))
    return component_refused(component, err);
  const bool named = cJSON_HasObjectItem(component, "prepend_scheme");
  const char *scheme = !prefix ? "never" : "always";
  if (named && !(scheme = component_string(component, "prepend_scheme", err))) return -1;
  CutStep *step = push(p, (CutStep){.kind = CUT_META, .prefix = xstrdup(mark)});
  if (strcmp(scheme, "never") == 0)
    step->scheme = PREFIX_NEVER;
  else if (strcmp(scheme, "first") == 0)
    step->scheme = PREFIX_FIRST;
  else if (strcmp(scheme, "always") != 0)
    return component_refused(component, err);
  if (!prefix && step->scheme != PREFIX_NEVER) return component_refused(component, err);
  if (!split) return 0;
  char *pattern = quote(mark);
  const int result = push_split(p, pattern, SPLIT_MERGED_WITH_NEXT, false, err);
  free(pattern);
  return result;
}

static int read_step(void *into, const cJSON *component, const char *type, Error *err) {
  PreTokenizer *p = into;
  bool each = false;
  int behavior;
  if (p->byte_level) // what follows would see GPT-2's alphabet
    return error_set(err, "a component behind ByteLevel is not supported");
  if (strcmp(type, "Split") == 0) return read_split(p, component, err);
  if (strcmp(type, "ByteLevel") == 0) return read_byte_level(p, component, err);
  if (strcmp(type, "Metaspace") == 0) return read_metaspace(p, component, err);
  if (strcmp(type, "WhitespaceSplit") == 0) return push_split(p, "\\s", SPLIT_REMOVED, false, err);
  if (strcmp(type, "Digits") == 0) {
    if (component_flag(component, "individual_digits", &each, err) != 0) return -1;
    return push_split(p, "\\p{N}", each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, err);
  }
  if (strcmp(type, "Punctuation") == 0) {
    if (read_behavior(component, &behavior, err) != 0) return -1;
    return push_split(p, "[\\p{P}!-\\/:-@\\[-`{-~]", behavior, false, err);
  }
  return component_refused(component, err);
}

int pre_tokenizer_read(PreTokenizer *p, const cJSON *component, Error *err) {
  return component_read(component, "pre_tokenizer", "pretokenizers", read_step, p, err);
}

void pre_tokenizer_close(PreTokenizer *p) {
  for (int i = 0; i < p->count; i++) {
    free(p->steps[i].prefix);
    free(p->steps[i].pattern);
    regex_close(p->steps[i].regex);
  }
  free(p->steps);
}

// ---- Cutting

void cutter_open(Cutter *c, const PreTokenizer *rules) {
  const size_t count = (size_t)rules->count;
  *c = (Cutter){.rules = rules,
                .buffers = xcalloc(count, sizeof *c->buffers),
                .scans = xcalloc(count, sizeof(RegexScan *))};
  for (size_t i = 0; i < count; i++)
    if (rules->steps[i].regex) c->scans[i] = regex_scan_open(rules->steps[i].regex);
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
  const CutStep *step = &way->cutter->rules->steps[number];
  Text *buffer = &way->cutter->buffers[number];
  const size_t bytes = strlen(step->prefix);
  buffer->bytes = 0;
  bool wanted = !(piece.first && piece.continues);
  if (step->kind == CUT_META) {
    wanted &= step->scheme == PREFIX_ALWAYS || (step->scheme == PREFIX_FIRST && piece.first);
    wanted &= piece.text[0] != ' ';
  }
  if (piece.bytes >= bytes && memcmp(piece.text, step->prefix, bytes) == 0) wanted = false;
  if (step->kind == CUT_PREFIX && !wanted) return go_on(way, number + 1, piece);
  if (wanted) text_append(buffer, step->prefix, bytes);
  const char *at = piece.text, *const end = piece.text + piece.bytes;
  while (at < end) {
    const char *space = step->kind == CUT_META ? memchr(at, ' ', (size_t)(end - at)) : NULL;
    text_append(buffer, at, (size_t)((space ? space : end) - at));
    if (space) text_append(buffer, step->prefix, bytes);
    at = space ? space + 1 : end;
  }
  piece.text = buffer->data;
  piece.bytes = buffer->bytes;
  return go_on(way, number + 1, piece);
}

// What a Split makes of matches and of what lies between them.
typedef struct Split {
  const Way *way;
  int number; // of the step
  Piece whole;
  size_t begin, end; // the piece that may grow yet
  bool waiting;      // there is one
  bool ends;         // no step comes behind this one
  bool last;         // what came last was a match
} Split;

static inline int emit(const Split *s, size_t begin, size_t end) {
  const Way *way = s->way;
  if (begin == end) return 0;
  const Piece piece = {s->whole.text + begin, end - begin, s->whole.first && begin == 0,
                       s->whole.continues};
  return s->ends ? way->take(way->to, piece.text, piece.bytes, way->err)
                 : go_on(way, s->number + 1, piece);
}

// Emits what waits, and lets [begin, end) wait.
static int wait_with(Split *s, size_t begin, size_t end) {
  if (s->waiting && emit(s, s->begin, s->end) != 0) return -1;
  s->begin = begin, s->end = end, s->waiting = true;
  return 0;
}

static int join(Split *s, size_t begin, size_t end, bool match) {
  const CutStep *step = &s->way->cutter->rules->steps[s->number];
  match ^= step->invert;
  const bool last = s->last;
  s->last = match;
  bool grows = s->waiting;
  switch (step->behavior) {
  case SPLIT_ISOLATED:
    grows = false;
    break;
  case SPLIT_REMOVED:
    return match ? 0 : emit(s, begin, end);
  case SPLIT_MERGED_WITH_PREVIOUS:
    grows &= match && !last;
    break;
  case SPLIT_MERGED_WITH_NEXT:
    grows &= !match && last;
    break;
  case SPLIT_CONTIGUOUS:
    grows &= match == last;
    break;
  }
  if (!grows) return wait_with(s, begin, end);
  s->end = end;
  return 0;
}

// Nearly every tokenizer's Split is an isolated one.
static inline int split_next(Split *s, bool isolated, size_t begin, size_t end, bool match) {
  return isolated ? emit(s, begin, end) : join(s, begin, end, match);
}

static int split(const Way *way, int number, Piece piece) {
  const PreTokenizer *rules = way->cutter->rules;
  const bool isolated = rules->steps[number].behavior == SPLIT_ISOLATED;
  Split s = {.way = way, .number = number, .whole = piece, .ends = number + 1 == rules->count};
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
    if (done != begin && split_next(&s, isolated, done, begin, false) != 0) return -1;
    if (split_next(&s, isolated, begin, end, true) != 0) return -1;
    at = done = end;
    any = true;
  }
  if (done != piece.bytes && split_next(&s, isolated, done, piece.bytes, false) != 0) return -1;
  return s.waiting ? emit(&s, s.begin, s.end) : 0;
}

static int go_on(const Way *way, int step, Piece piece) {
  if (step == way->cutter->rules->count)
    return way->take(way->to, piece.text, piece.bytes, way->err);
  if (way->cutter->rules->steps[step].kind == CUT_SPLIT) return split(way, step, piece);
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
    size_t broken = 0;
    while (at + broken < end && utf8_length(piece.text + broken, end - at - broken) == 0) broken++;
    if (broken > 0 && take(to, piece.text, broken, err) != 0) return -1;
    at += broken;
    piece.text += broken;
    piece.first = false;
  }
  return 0;
}
