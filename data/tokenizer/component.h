// What the readers of tokenizer.json's components share: an object with a "type" and fields, or a
// Sequence of such.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

// Reads one component that is no Sequence. `into` is the caller's.
typedef int ComponentReader(void *into, const cJSON *component, const char *type, Error *err);

// Calls `read` for the component, or for those of a Sequence, in order. null and NULL are none.
// `what`: "normalizer" and the like, which a sentence begins with; `list`: the key of a Sequence's
// members.
int component_read(const cJSON *component, const char *what, const char *list,
                   ComponentReader *read, void *into, Error *err);

// The sentence for one that is not known, or known and not supported as it is.
int component_refused(const cJSON *component, Error *err);

// Fields. *value must hold what a missing one means.
int component_flag(const cJSON *component, const char *key, bool *value, Error *err);
int component_count(const cJSON *component, const char *key, int64_t *value, Error *err);
// Never missing; NULL is an error. The string belongs to the component.
const char *component_string(const cJSON *component, const char *key, Error *err);
// {"String": "..."} or {"Regex": "..."}.
const char *component_pattern(const cJSON *component, bool *is_regex, Error *err);
// The two texts of a Replace, in fresh memory. A regular expression is refused.
int component_replace(const cJSON *component, char **from, char **to, Error *err);
