// CORE: 22 tasks with their examples, as nanochat evaluates them.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/tasks/tasks.h"

// ---- Python's random.Random: a Mersenne Twister (Matsumoto and Nishimura 1998), MT19937

enum { WORDS = 624, MIDDLE = 397 };

typedef struct Random {
  uint32_t state[WORDS];
  int used;
} Random;

static Random random_of(uint32_t seed) {
  Random r = {.used = WORDS};
  uint32_t *s = r.state;
  s[0] = 19650218;
  for (uint32_t i = 1; i < WORDS; i++) s[i] = 1812433253u * (s[i - 1] ^ s[i - 1] >> 30) + i;
  uint32_t i = 1;
  for (int k = 0; k < WORDS; k++) {
    s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + seed;
    if (++i == WORDS) s[0] = s[WORDS - 1], i = 1;
  }
  for (int k = 0; k < WORDS - 1; k++) {
    s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
    if (++i == WORDS) s[0] = s[WORDS - 1], i = 1;
  }
  s[0] = 0x80000000u;
  return r;
}

static uint32_t random_word(Random *r) {
  uint32_t *s = r->state;
  for (int i = 0; i < WORDS && r->used == WORDS; i++) {
    const uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % WORDS] & 0x7fffffffu);
    s[i] = s[(i + MIDDLE) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
  }
  if (r->used == WORDS) r->used = 0;
  uint32_t y = s[r->used++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

static int64_t random_below(Random *r, int64_t n) {
  int bits = 0;
  while (n >> bits > 0) bits++;
  int64_t value;
  do value = random_word(r) >> (32 - bits);
  while (value >= n);
  return value;
}

// `count` different numbers below n.
static void random_sample(Random *r, int64_t n, int count, int64_t *sample) {
  int64_t few = 21;
  if (count > 5) few += (int64_t)pow(4, ceil(log(count * 3) / log(4)));
  int64_t *pool = xmalloc((size_t)n * sizeof *pool);
  for (int64_t i = 0; i < n; i++) pool[i] = i;
  for (int i = 0; i < count; i++) {
    const int64_t left = n <= few ? n - i : n;
    int64_t j = random_below(r, left);
    while (pool[j] < 0) j = random_below(r, left); // drawn already
    sample[i] = pool[j];
    pool[j] = n <= few ? pool[left - 1] : -1;
  }
  free(pool);
}

// ---- A task of core.yaml

typedef struct CoreTask {
  char *label, *file, *type, *between;
  int shots; // the first that is named; -1: none yet
} CoreTask;

static void task_free(CoreTask *t) {
  free(t->label), free(t->file), free(t->type), free(t->between);
  *t = (CoreTask){.shots = -1};
}

// A scalar in fresh memory: plain, in 'single' or in "double" quotes with \n, up to a comment.
static char *scalar(const char *text) {
  const char quote = *text == '"' || *text == '\'' ? *text : '\0';
  Text made = {0};
  for (const char *at = text + (quote != '\0'); *at && *at != quote; at++) {
    if (quote == '\0' && at[0] == ' ' && at[1] == '#') break;
    const bool escape = quote == '"' && at[0] == '\\' && at[1];
    if (escape) at++;
    text_append(&made, escape && *at == 'n' ? "\n" : escape && *at == 't' ? "\t" : at, 1);
  }
  const Span span =
      quote ? (Span){made.data, made.bytes} : text_strip((Span){made.data, made.bytes}, true, true);
  char *value = xasprintf("%.*s", (int)span.bytes, span.bytes > 0 ? span.text : "");
  free(made.data);
  return value;
}

static void set_key(CoreTask *t, const char *key, size_t bytes, const char *text) {
  const struct {
    const char *key;
    char **value;
  } keys[] = {{"label", &t->label},
              {"dataset_uri", &t->file},
              {"icl_task_type", &t->type},
              {"continuation_delimiter", &t->between}};
  const char *number = text + strcspn(text, "0123456789");
  const bool shots = span_is((Span){key, bytes}, "num_fewshot") && *number;
  if (shots && t->shots < 0) t->shots = atoi(number);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (span_is((Span){key, bytes}, keys[i].key)) {
      free(*keys[i].value);
      *keys[i].value = scalar(text);
    }
}

// ---- Its questions

// A line of its file: what stands in front of each choice, and the choice.
typedef struct CoreRow {
  char **before, **choices; // [count]
  int count, gold;
  int64_t line;
} CoreRow;

typedef struct CoreRows {
  const CoreTask *task;
  bool schema, language; // of the task's type; neither: multiple_choice
  CoreRow *list;
  int64_t count, capacity;
} CoreRows;

static int read_row(void *rows, const cJSON *document, int64_t line, Error *err) {
  CoreRows *r = rows;
  const char *name = r->schema ? "context_options" : "choices", *text, *rest = "";
  const cJSON *list = NULL, *gold = NULL;
  if (document_text(document,
                    r->schema     ? "continuation"
                    : r->language ? "context"
                                  : "query",
                    &text, err) ||
      (r->language && document_text(document, "continuation", &rest, err)) ||
      (!r->language && document_field(document, name, &list, err)) ||
      (!r->language && document_field(document, "gold", &gold, err)))
    return -1;
  const int count = r->language ? 1 : cJSON_GetArraySize(list);
  const Span trimmed = text_strip(span_of(text), r->language, r->language);
  LIST_ROOM(r->list, r->count, r->capacity);
  CoreRow *row = &r->list[r->count++];
  *row = (CoreRow){.count = count, .line = line, .gold = gold ? gold->valueint : 0};
  row->before = xcalloc((size_t)count + 1, sizeof *row->before);
  row->choices = xcalloc((size_t)count + 1, sizeof *row->choices);
  for (int i = 0; i < count; i++) {
    const cJSON *item = list ? cJSON_GetArrayItem(list, i) : NULL;
    if (list && !cJSON_IsString(item)) return error_set(err, "\"%s\" must hold texts", name);
    const char *choice = list ? item->valuestring : rest;
    row->before[i] = r->schema
                         ? xasprintf("%s%s", choice, r->task->between)
                         : xasprintf("%.*s%s", (int)trimmed.bytes, trimmed.text, r->task->between);
    row->choices[i] = xstrdup(r->schema ? text : choice);
  }
  if (row->gold >= 0 && row->gold < count && (!gold || cJSON_IsNumber(gold))) return 0;
  return error_set(err, "\"gold\" is none of its %d choices", count);
}

static void rows_free(CoreRows *r) {
  while (r->count > 0) {
    CoreRow *row = &r->list[--r->count];
    for (int i = 0; i < row->count; i++) free(row->before[i]), free(row->choices[i]);
    free(row->before), free(row->choices);
  }
  free(r->list);
}

static void shuffle(CoreRows *r) {
  Random random = random_of(1337);
  for (int64_t i = r->count - 1; i > 0; i--) {
    const int64_t j = random_below(&random, i + 1);
    const CoreRow row = r->list[i];
    r->list[i] = r->list[j];
    r->list[j] = row;
  }
}

static void append_text(Text *to, const char *text) {
  text_append(to, text, strlen(text));
}

static void append_examples(Text *to, const CoreRows *r, int64_t at) {
  enum { MOST_SHOTS = 64 };
  int64_t sample[MOST_SHOTS];
  const int64_t others = r->count - 1;
  int shots = r->task->shots < MOST_SHOTS ? r->task->shots : MOST_SHOTS;
  if (shots > others) shots = (int)others;
  Random random = random_of((uint32_t)(1234 + at));
  if (shots > 0) random_sample(&random, others, shots, sample);
  for (int i = 0; i < shots; i++) {
    const CoreRow *row = &r->list[sample[i] + (sample[i] >= at)];
    append_text(to, row->before[row->gold]);
    append_text(to, row->choices[row->gold]);
    append_text(to, "\n\n");
  }
}

// The space that ends a language model's context belongs to what it is to say.
static void ask(QuestionSet *set, const CoreRows *r, int64_t at) {
  const CoreRow *row = &r->list[at];
  Question *q = questions_add(set, row->count, row->line);
  Text examples = {0};
  q->gold = row->gold;
  append_examples(&examples, r, at);
  for (int i = 0; i < row->count; i++) {
    Text whole = {0};
    text_append(&whole, examples.data, examples.bytes);
    append_text(&whole, row->before[i]);
    const Span context = text_strip((Span){whole.data, whole.bytes}, true, true);
    const size_t cut = r->language ? (size_t)(context.text - whole.data) + context.bytes : 0;
    append_text(&whole, row->choices[i]);
    q->choices[i] = (Choice){xasprintf("%.*s", r->language ? (int)context.bytes : 0, context.text),
                             xasprintf("%.*s", (int)(whole.bytes - cut), whole.data + cut), 0};
    free(whole.data);
  }
  free(examples.data);
}

static int read_task(QuestionSet *set, const CoreTask *t, const char *folder, Error *err) {
  CoreRows rows = {.task = t};
  if (!t->label || !t->file || !t->type)
    return error_set(err, "task '%s' has no label, dataset_uri or icl_task_type",
                     t->label ? t->label : "");
  rows.schema = strcmp(t->type, "schema") == 0;
  rows.language = strcmp(t->type, "language_modeling") == 0;
  if (!rows.schema && !rows.language && strcmp(t->type, "multiple_choice") != 0)
    return error_set(err,
                     "icl_task_type of %s is '%s', but must be multiple_choice, schema or "
                     "language_modeling",
                     t->label, t->type);
  set->path = xasprintf("%s/eval_data/%s", folder, t->file);
  set->task = xasprintf(CORE_TASK "/%s", t->label);
  set->core = true;
  set->metrics = rows.language ? ACC : ACC_MEAN;
  set->split = rows.schema ? SPLIT_SUFFIX : rows.language ? SPLIT_CONTEXT : SPLIT_PREFIX;
  const int status = documents_read(set->path, read_row, &rows, err);
  if (status == 0) shuffle(&rows);
  for (int64_t i = 0; i < rows.count && status == 0; i++) ask(set, &rows, i);
  rows_free(&rows);
  return status;
}

// ---- eval_meta_data.csv

// The field of a line of CSV, which a comma or the line's end follows, in fresh memory.
static char *csv_field(const char **line) {
  Text made = {0};
  bool quoted = false;
  const char *at = *line;
  for (; *at && *at != '\n' && *at != '\r' && (quoted || *at != ','); at++) {
    if (*at == '"') quoted = !quoted;
    if (*at != '"' || (quoted && at > *line && at[-1] == '"')) text_append(&made, at, 1);
  }
  *line = at + (*at == ',');
  *text_room(&made, 1) = '\0';
  return made.data;
}

// The row and column of these names; NAN where one is missing.
static double csv_number(const char *csv, const char *row, const char *column) {
  int task_at = -1, column_at = -1;
  double found = NAN;
  for (bool heads = true; *csv; heads = false) {
    double value = NAN;
    bool here = false;
    for (int i = 0; *csv && *csv != '\n' && *csv != '\r'; i++) {
      char *field = csv_field(&csv);
      if (heads && strcmp(field, "Eval Task") == 0) task_at = i;
      if (heads && strcmp(field, column) == 0) column_at = i;
      here |= i == task_at && strcmp(field, row) == 0;
      if (i == column_at) value = strtod(field, NULL);
      free(field);
    }
    if (here && isnan(found)) found = value;
    csv += strspn(csv, "\r\n");
  }
  return found;
}

// ---- The bundle

typedef struct Bundle {
  const char *folder, *csv;
  int (*use)(void *context, QuestionSet *set, Error *err);
  void *context;
} Bundle;

static int use_task(const Bundle *b, CoreTask *t, Error *err) {
  QuestionSet set = {0};
  if (!t->between) t->between = xstrdup(" ");
  int status = read_task(&set, t, b->folder, err);
  if (status == 0) set.chance = csv_number(b->csv, t->label, "Random baseline");
  if (status == 0 && isnan(set.chance))
    status = error_set(err, "eval_meta_data.csv has no \"Random baseline\" of %s", t->label);
  if (status == 0) status = b->use(b->context, &set, err);
  questions_free(&set);
  return status;
}

// A task's keys follow its label. A number on a line of its own is of the list of the key before.
static int use_tasks(const Bundle *b, char *yaml, Error *err) {
  CoreTask task = {.shots = -1};
  int status = 0;
  const char *key = "";
  size_t bytes = 0;
  for (char *line = yaml, *end; line && status == 0; line = end) {
    if ((end = strchr(line, '\n'))) *end++ = '\0';
    const char *at = line + strspn(line, "- \r"), *value = at;
    const bool has_key = *at != '#' && strchr(at, ':');
    if (has_key) {
      key = at;
      bytes = strcspn(at, ":");
      value += bytes + 1 + strspn(at + bytes + 1, " ");
    }
    if (has_key && task.label && span_is((Span){key, bytes}, "label")) {
      status = use_task(b, &task, err);
      task_free(&task);
    }
    if (has_key || isdigit((unsigned char)*at)) set_key(&task, key, bytes, value);
  }
  if (status == 0 && task.label) status = use_task(b, &task, err);
  task_free(&task);
  return status;
}

int core_read(const char *folder, int (*use)(void *context, QuestionSet *set, Error *err),
              void *context, Error *err) {
  enum { MOST_BYTES = 1 << 20 };
  const PathText yaml_path = path_text("%s/core.yaml", folder),
                 csv_path = path_text("%s/eval_meta_data.csv", folder);
  char *yaml = NULL, *csv = NULL;
  size_t bytes;
  int status = file_read(yaml_path.text, MOST_BYTES, &yaml, &bytes, err) ||
                       file_read(csv_path.text, MOST_BYTES, &csv, &bytes, err)
                   ? -1
                   : 0;
  if (status == 0)
    status = use_tasks(&(Bundle){.folder = folder, .csv = csv, .use = use, .context = context},
                       yaml, err);
  free(yaml);
  free(csv);
  return status == 0 ? 0 : error_prefix(err, "CORE's bundle '%s'", folder);
}
