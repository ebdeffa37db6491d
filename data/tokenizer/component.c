#include "data/tokenizer/component.h"

#include <string.h>

#include "base/json.h"
#include "base/memory.h"

enum { MAX_DEPTH = 16 };

static int read_component(const cJSON *component, const char *list, int depth,
                          ComponentReader *read, void *into, Error *err) {
  if (!component || cJSON_IsNull(component)) return 0;
  const char *type = component_string(component, "type", err);
  if (!type) return -1;
  if (strcmp(type, "Sequence") != 0) return read(into, component, type, err);
  const cJSON *members = cJSON_GetObjectItemCaseSensitive(component, list);
  if (!cJSON_IsArray(members)) return error_set(err, "a Sequence without its list '%s'", list);
  if (depth == MAX_DEPTH) return error_set(err, "Sequences lie in each other too deep");
  for (const cJSON *member = members->child; member; member = member->next)
    if (read_component(member, list, depth + 1, read, into, err) != 0) return -1;
  return 0;
}

int component_read(const cJSON *component, const char *what, const char *list,
                   ComponentReader *read, void *into, Error *err) {
  if (read_component(component, list, 0, read, into, err) == 0) return 0;
  return error_prefix(err, "%s", what);
}

int component_refused(const cJSON *component, Error *err) {
  return error_set(err, "%s is not supported", json_shown(component).text);
}

static int wrong_field(const cJSON *component, const char *key, const char *what, Error *err) {
  return error_set(err, "'%s' should be %s in %s", key, what, json_shown(component).text);
}

int component_flag(const cJSON *component, const char *key, bool *value, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  if (!field || cJSON_IsNull(field)) return 0;
  if (!cJSON_IsBool(field)) return wrong_field(component, key, "true or false", err);
  *value = cJSON_IsTrue(field);
  return 0;
}

int component_count(const cJSON *component, const char *key, int64_t *value, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  if (!field) return 0;
  if (json_integer(field, value) == 0 && *value >= 0 && *value <= INT32_MAX) return 0;
  return wrong_field(component, key, "a whole number from 0 on", err);
}

const char *component_string(const cJSON *component, const char *key, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  if (cJSON_IsString(field)) return field->valuestring;
  wrong_field(component, key, "a string", err);
  return NULL;
}

const char *component_pattern(const cJSON *component, bool *is_regex, Error *err) {
  const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(component, "pattern");
  *is_regex = cJSON_HasObjectItem(pattern, "Regex");
  return component_string(pattern, *is_regex ? "Regex" : "String", err);
}

int component_replace(const cJSON *component, char **from, char **to, Error *err) {
  bool is_regex;
  const char *pattern = component_pattern(component, &is_regex, err);
  const char *content = pattern ? component_string(component, "content", err) : NULL;
  if (!content) return -1;
  if (is_regex || *pattern == '\0') return component_refused(component, err);
  *from = xstrdup(pattern);
  *to = xstrdup(content);
  return 0;
}
