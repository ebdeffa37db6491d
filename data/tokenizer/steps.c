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
static void push_split(Steps *steps, const char *pattern, int behavior, bool invert, Error *err) {
  Step *step = push(steps, (Step){.kind = CUT_SPLIT, .behavior = behavior, .invert = invert});
  step->from = xstrdup(pattern);
  char *pieces = merges(behavior)
                     ? merged(pattern, (behavior == SPLIT_MERGED_WITH_PREVIOUS) ^ invert)
                 : behavior == SPLIT_CONTIGUOUS ? xasprintf("(?:%s)+", pattern)
                                                : xstrdup(pattern);
  step->regex = regex_open(pieces, err);
  free(pieces);
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
  const char *text = component_string(pattern, *is_regex ? "Regex" : "String", err);
  if (*text == '\0') component_refused(component, err);
  return text;
}

// The number of the name in names[count] that the field has.
static int read_name(const cJSON *component, const char *key, const char *const *names, int count,
                     Error *err) {
  const char *name = component_string(component, key, err);
  for (int i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) return i;
  component_refused(component, err);
  return 0;
}

static int read_behavior(const cJSON *component, Error *err) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  return read_name(component, "behavior", names, 5, err);
}

static bool is_character(const char *text) {
  return *text && utf8_length(text, strlen(text)) == strlen(text);
}

static void read_replace(Steps *steps, int kind, const cJSON *component, Error *err) {
  bool is_regex;
  const char *pattern = read_pattern(component, &is_regex, err);
  const char *content = component_string(component, "content", err);
  if (is_regex) component_refused(component, err);
  push(steps, (Step){.kind = kind, .from = xstrdup(pattern), .to = xstrdup(content)});
}

static void read_split(Steps *steps, const cJSON *component, Error *err) {
  bool is_regex;
  const char *text = read_pattern(component, &is_regex, err);
  const int behavior = read_behavior(component, err);
  if (merges(behavior) && is_regex) component_refused(component, err);
  if (err->text[0]) return;
  char *pattern = is_regex ? xstrdup(text) : quote(text);
  push_split(steps, pattern, behavior, component_flag(component, "invert", false, err), err);
  free(pattern);
}

static void read_byte_level(Steps *steps, const cJSON *component, Error *err) {
  steps->byte_level = true;
  if (component_flag(component, "add_prefix_space", true, err))
    push(steps, (Step){.kind = CUT_PREFIX, .to = xstrdup(" ")});
  if (component_flag(component, "use_regex", true, err))
    push_split(steps, GPT2_PATTERN, SPLIT_ISOLATED, false, err);
}

static void read_metaspace(Steps *steps, const cJSON *component, Error *err) {
  static const char *const schemes[] = {"always", "first", "never"};
  const bool prefix = component_flag(component, "add_prefix_space", true, err);
  const char *mark = component_string(component, "replacement", err);
  int scheme = prefix ? PREFIX_ALWAYS : PREFIX_NEVER;
  if (cJSON_HasObjectItem(component, "prepend_scheme"))
    scheme = read_name(component, "prepend_scheme", schemes, 3, err);
  if (!is_character(mark) || (!prefix && scheme != PREFIX_NEVER)) component_refused(component, err);
  push(steps, (Step){.kind = CUT_META, .to = xstrdup(mark), .scheme = scheme});
  if (!component_flag(component, "split", true, err) || err->text[0]) return;
  char *pattern = quote(mark);
  push_split(steps, pattern, SPLIT_MERGED_WITH_NEXT, false, err);
  free(pattern);
}

// Behind Fuse alone, where it strips the whole text, whose end is not known before it comes.
static void read_strip(Steps *steps, const cJSON *component, Error *err) {
  const char *content = component_string(component, "content", err);
  const int64_t left = component_count(component, "start", 0, err);
  if (!is_character(content) || !steps->fused || component_count(component, "stop", 0, err) > 0)
    component_refused(component, err);
  push(steps, (Step){.kind = DECODE_STRIP, .from = xstrdup(content), .left = left});
}

static void read_normalizer(Steps *steps, const cJSON *component, const char *type, Error *err) {
  static const struct {
    const char *name;
    int options; // utf8proc's
  } forms[] = {{"NFC", UTF8PROC_COMPOSE},
               {"NFD", UTF8PROC_DECOMPOSE},
               {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
               {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  int i = 0;
  while (i < 4 && strcmp(type, forms[i].name) != 0) i++;
  if (i < 4)
    push(steps, (Step){.kind = NORMALIZE_FORM, .form = forms[i].options | UTF8PROC_STABLE});
  else if (strcmp(type, "Prepend") == 0)
    push(steps, (Step){.kind = NORMALIZE_PREPEND,
                       .to = xstrdup(component_string(component, "prepend", err))});
  else if (strcmp(type, "Replace") == 0)
    read_replace(steps, NORMALIZE_REPLACE, component, err);
  else
    component_refused(component, err);
}

static void read_cut(Steps *steps, const cJSON *component, const char *type, Error *err) {
  if (steps->byte_level) // the step would see GPT-2's alphabet
    error_set(err, "a component behind ByteLevel is not supported");
  else if (strcmp(type, "Split") == 0)
    read_split(steps, component, err);
  else if (strcmp(type, "ByteLevel") == 0)
    read_byte_level(steps, component, err);
  else if (strcmp(type, "Metaspace") == 0)
    read_metaspace(steps, component, err);
  else if (strcmp(type, "WhitespaceSplit") == 0)
    push_split(steps, "\\s", SPLIT_REMOVED, false, err);
  else if (strcmp(type, "Digits") == 0) {
    const bool each = component_flag(component, "individual_digits", false, err);
    push_split(steps, "\\p{N}", each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, err);
  } else if (strcmp(type, "Punctuation") == 0)
    push_split(steps, "[\\p{P}!-\\/:-@\\[-`{-~]", read_behavior(component, err), false, err);
  else
    component_refused(component, err);
}

static void read_decoder(Steps *steps, const cJSON *component, const char *type, Error *err) {
  const bool bytes = strcmp(type, "ByteLevel") == 0;
  if (strcmp(type, "Strip") == 0)
    read_strip(steps, component, err);
  else if (steps->fused && strcmp(type, "Fuse") != 0)
    component_refused(component, err);
  else if (bytes || strcmp(type, "ByteFallback") == 0)
    push(steps, (Step){.kind = bytes ? DECODE_BYTE_LEVEL : DECODE_BYTE_FALLBACK});
  else if (strcmp(type, "Replace") == 0)
    read_replace(steps, DECODE_REPLACE, component, err);
  else if (strcmp(type, "Fuse") != 0)
    component_refused(component, err);
  steps->fused |= bytes || strcmp(type, "Fuse") == 0;
}

static void read_step(void *into, const cJSON *component, const char *type, Error *err) {
  Steps *steps = into;
  (steps->stage == NORMALIZE ? read_normalizer
   : steps->stage == CUT     ? read_cut
                             : read_decoder)(steps, component, type, err);
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
