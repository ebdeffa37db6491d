#include "data/tokenizer/steps.h"

#include <ctype.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "data/tokenizer/json.h"

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
