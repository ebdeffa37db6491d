// The table of configuration keys and the functions of one key. Internal to model/config: the rest
// of the program sees config.h.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "model/config/config.h"
#include "base/file.h"
#include "base/json.h"

typedef enum KeyType {
  KEY_BOOL,
  KEY_INTEGER,
  KEY_NUMBER,
  KEY_TEXT,
  KEY_CHOICE,
  KEY_SOURCES
} KeyType;

enum {
  KEY_SHAPES_RUN = 1, // a resumed run must have the same value
  KEY_ABOVE_MIN = 2,  // min itself is not allowed
  KEY_BELOW_MAX = 4,  // max itself is not allowed
  KEY_OF_PROCESS = 8, // about one process' beginning or end, not about the run
};

typedef struct Key {
  const char *name; // "train.steps", "model.rope_scaling.factor"
  KeyType type;
  size_t offset, size; // of the field in Config, bytes
  double min, max; // numbers: the range; KEY_TEXT, KEY_SOURCES: the least number of bytes, and 0
  const char *const *choices; // KEY_CHOICE: names by enum value, NULL at the end
  const char *fallback;       // the default as JSON; "null" = from other keys; NULL = required
  unsigned flags;
  const char *meaning;
} Key;

enum { MAX_KEYS = 88, SECTION_COUNT = 6, CONFIG_MAX_BYTES = 1 << 20 };
extern const Key config_keys[]; // at most MAX_KEYS; the last has no name
extern const char *const config_sections[SECTION_COUNT];
#define SECTIONS "model, data, train, optimizer, backend, output"

#define ROPE "model.rope_scaling"

// Values on their way into a Config.
typedef struct KeyReader {
  Config *config;
  bool given[MAX_KEYS];
  const char *where; // a file's path, or "override 'train.steps=5'"
  bool hugging_face; // a config.json: messages name keys without "model."
  PathText folder;   // that the user named for the model; "" where it was no folder
  bool folder_has_tokenizer;
  bool of_checkpoint; // keys that are unknown here are ignored
  Error *err;
} KeyReader;

const Key *key_find(const char *name); // by its whole name; NULL: there is none
bool key_given(const KeyReader *r, const char *name);
// The key's name as the file that is read has it.
const char *key_shown(const KeyReader *r, const char *name);
// Sets the section and those inside it back to their values before any read.
void keys_forget(KeyReader *r, const char *section);

// Checks type and range and stores the value.
int key_set(KeyReader *r, const Key *key, const cJSON *value);
int key_set_json(KeyReader *r, const Key *key, const char *json);
// The key that the user may have meant, of any section, or NULL.
const Key *key_nearest(const char *name);
// -1 and a message that names it and, if there is one, the nearest key.
int key_unknown(KeyReader *r, const char *name);
// Gives every key that was not given its default; a missing required key is an error.
int keys_fill_defaults(KeyReader *r, bool model_only);

bool key_equal(const Key *key, const Config *a, const Config *b);
// Whether the key has a default, and the configuration another value.
bool key_is_set(const Key *key, const Config *config);
// The value as JSON on one line, in fresh memory.
char *key_text(const Key *key, const Config *config);
// "a whole number from 1 to 8"
ShortText key_allowed(const Key *key);
// The keys of a section with their values; "model" includes rope_scaling.
void keys_write_section(JsonWriter *w, const char *section, const Config *config);

// ---- hugging_face.c
// Reads a model object: ours, where an unknown key is an error, or (r->hugging_face) a config.json,
// where keys that do not concern the shape are skipped and an unsupported value is an error.
int model_read(KeyReader *r, const cJSON *object);
// The same of a whole config.json (r->hugging_face); frees the tree. NULL fails: its maker said
// why.
int model_read_tree(KeyReader *r, cJSON *tree);
// Reads the value of rope_scaling, which transformers 5 calls rope_parameters.
int model_read_rope(KeyReader *r, const cJSON *value);

// ---- Keys against each other
// Fills in the model's keys that follow from others, then checks them.
int model_resolve(KeyReader *r);
// "KEY is VALUE, but it must be at most OTHER, which is LIMIT".
int key_conflict(const KeyReader *r, const char *name, double value, const char *must,
                 const char *other, double limit);
