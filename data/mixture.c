#include "data/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

bool mixture_is_list(const char *text) {
  const char *space = " \t\r\n";
  text += strspn(text, space);
  if (*text != '[') return false;
  text += 1 + strspn(text + 1, space);
  return *text == '"' || *text == '{' || *text == ']';
}

static void add_text(MixtureSource *source, const char *path) {
  source->paths = xrealloc(source->paths, (size_t)(source->count + 1) * sizeof *source->paths);
  source->paths[source->count++] = xstrdup(path);
}

static int add_path(MixtureSource *source, const cJSON *path, Error *err) {
  const char *text = cJSON_GetStringValue(path);
  if (!text || !*text)
    return error_set(err, "%s is not a path of token files", json_shown(path).text);
  add_text(source, text);
  return 0;
}

static int add_weighted(Mixture *m, const cJSON *item, Error *err) {
  static const char *const names[] = {"path", "weight"};
  const cJSON *fields[2];
  if (!cJSON_IsObject(item))
    return error_set(err,
                     "%s has no weight: write {\"path\": ..., \"weight\": ...} for each path, or "
                     "paths alone",
                     json_shown(item).text);
  if (json_fields(item, names, 2, fields, err) != 0)
    return error_prefix(err, "%s", json_shown(item).text);
  const double weight = cJSON_IsNumber(fields[1]) ? fields[1]->valuedouble : 0;
  if (!(weight > 0) || !isfinite(weight))
    return error_set(err, "the weight of %s is %s, but it must be a number above 0",
                     json_shown(fields[0]).text,
                     cJSON_IsNull(fields[1]) ? "null or beyond 1e308" : json_shown(fields[1]).text);
  if (m->count == MOST_SOURCES)
    return error_set(err, "there are more than %d paths with a weight", MOST_SOURCES);
  m->sources[m->count].weight = weight;
  return add_path(&m->sources[m->count++], fields[0], err);
}

// The weights are divided by the largest first, so that no sum overflows.
static int normalise(Mixture *m, Error *err) {
  double most = 0, sum = 0;
  for (int i = 0; i < m->count; i++) most = fmax(most, m->sources[i].weight);
  for (int i = 0; i < m->count; i++) sum += m->sources[i].weight / most;
  for (int i = 0; i < m->count; i++) {
    m->sources[i].weight = m->sources[i].weight / most / sum;
    if (m->sources[i].weight < 1e-9)
      return error_set(err, "the weight of '%s' is less than a billionth of all: leave it out",
                       m->sources[i].paths[0]);
  }
  return 0;
}

static int read_list(Mixture *m, const cJSON *list, Error *err) {
  const bool weighted = cJSON_IsObject(list->child);
  if (!list->child) return error_set(err, "the list of token files is empty");
  if (!weighted) m->sources[m->count++].weight = 1;
  for (const cJSON *item = list->child; item; item = item->next)
    if ((weighted ? add_weighted(m, item, err) : add_path(&m->sources[0], item, err)) != 0)
      return -1;
  return normalise(m, err);
}

int mixture_parse(Mixture *m, const char *text, Error *err) {
  *m = (Mixture){.count = 0};
  if (!mixture_is_list(text)) {
    m->sources[m->count++].weight = 1;
    add_text(&m->sources[0], text);
    return 0;
  }
  cJSON *list = json_parse("the list of token files", text, strlen(text), err);
  const int status = list ? read_list(m, list, err) : -1;
  cJSON_Delete(list);
  if (status != 0) mixture_free(m);
  return status;
}

void mixture_free(Mixture *m) {
  for (MixtureSource *s = m->sources; s < m->sources + m->count; s++) {
    for (int i = 0; i < s->count; i++) free(s->paths[i]);
    free(s->paths);
  }
  *m = (Mixture){.count = 0};
}

// A window is due at the draw at which the source's share reaches it. To take those that are behind
// in the order in which they are due meets every date that can be met (Baruah, Cohen, Plaxton,
// Varvel: Proportionate progress, Algorithmica 1996).
int mixture_next(const double *weights, int count, const uint64_t *since) {
  uint64_t total = 1; // the next one, too
  int next = 0;
  double earliest = INFINITY;
  for (int i = 0; i < count; i++) total += since[i];
  for (int i = 0; i < count; i++) {
    const double drawn = (double)since[i], due = (drawn + 1) / weights[i];
    if (drawn >= weights[i] * (double)total || due >= earliest) continue;
    next = i;
    earliest = due;
  }
  return next;
}
