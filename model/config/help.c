// What a user reads about keys and configurations: --help-config, the start's table, and what was
// meant by a path that is no configuration.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/memory.h"
#include "data/model_folder.h"
#include "model/config/keys.h"

// ---- A path that is no configuration

static int is_folder(const char *path, Error *err) {
  char *folder = shell_word(path);
  error_set(err, "'%s' is a folder, not a config", path);
  if (has_file(path, RUN_CONFIG_FILE))
    error_append(err, "; to resume the run: ./train %s/" RUN_CONFIG_FILE " train.resume=auto",
                 folder);
  else if (has_file(path, MODEL_CONFIG_FILE))
    error_append(err, "; to train from its weights: ./train configs/continue.json model=%s",
                 folder);
  free(folder);
  return -1;
}

int config_check_path(const char *path, Error *err) {
  if (path_is_directory(path)) return is_folder(path, err);
  return path_exists(path) ? 0 : error_set(err, "there is no config '%s'", path);
}

// ---- Keys with other values than their defaults

void config_print(const Config *config) {
  enum { INDENT = 10, WIDTH = 105, MOST_LINES = 4 };
  const char *section = "";
  int lines = 1, left_out = 0;
  int column = printf("%-*s", INDENT, "config");
  for (const Key *key = config_keys; key->name; key++) {
    if (!key_is_set(key, config)) continue;
    char *value = key_text(key, config);
    const char *name = strrchr(key->name, '.') + 1;
    const int length = (int)(name - 1 - key->name); // of the section
    char *word = strncmp(section, key->name, (size_t)length + 1) == 0
                     ? xasprintf(" %s=%s", name, value)
                     : xasprintf(" %.*s: %s=%s", length, key->name, name, value);
    const bool full = column > INDENT && column + (int)strlen(word) > WIDTH;
    left_out += left_out > 0 || (full && lines == MOST_LINES);
    if (full && left_out == 0) {
      column = printf("\n%*s", INDENT, "") - 1;
      lines++;
    }
    if (left_out == 0) column += printf("%s", word);
    section = key->name;
    free(word);
    free(value);
  }
  if (left_out > 0) printf(" and %d more, as log.jsonl has them", left_out);
  printf("%s\n", column > INDENT ? "" : " the defaults");
}

// ---- --help-config

enum { INDENT = 4, WIDTH = 80 };

// Words in lines of at most WIDTH columns, indented.
static void print_wrapped(const char *text) {
  int column = 0;
  for (; *text; text += strspn(text, " ")) {
    const int length = (int)strcspn(text, " ");
    if (column > 0 && column + 1 + length > WIDTH) column = printf("\n") - 1;
    column += printf("%*s%.*s", column > 0 ? 1 : INDENT, "", length, text);
    text += length;
  }
  printf("\n");
}

// "train.batch_size=8 * (a whole number from 1 to 16777216)", and its meaning below.
static void print_key(const Key *key) {
  const bool derived = key->fallback && strcmp(key->fallback, "null") == 0,
             quoted = key->fallback && key->fallback[0] == '"';
  const char *default_of = key->fallback && !derived ? key->fallback + quoted : NULL;
  const int name = printf("%s%s%.*s%s", key->name, default_of ? "=" : "",
                          default_of ? (int)strlen(default_of) - quoted : 0,
                          default_of ? default_of : "", key->flags & KEY_SHAPES_RUN ? " *" : "");
  const PathText allowed =
      path_text("(%s%s)", key->fallback ? "" : "required: ", key_allowed(key).text);
  if (name + 1 + (int)strlen(allowed.text) > WIDTH)
    printf("\n%*s%s\n", INDENT, "", allowed.text);
  else
    printf(" %s\n", allowed.text);
  print_wrapped(key->meaning);
}

// Whether a word of the text, or several, begin with `words`; "_", "-" and " " are the same.
static bool mentions(const char *text, const char *words) {
  for (const char *at = text; *at; at++) {
    size_t i = 0;
    if (at > text && isalnum((unsigned char)at[-1])) continue;
    while (words[i] && (tolower((unsigned char)at[i]) == tolower((unsigned char)words[i]) ||
                        (strchr("_- ", words[i]) && at[i] && strchr("_- ", at[i]))))
      i++;
    if (!words[i]) return true;
  }
  return false;
}

// Prints the keys whose name begins with `words`, or (anywhere) that have them in name or meaning.
static int print_found(const char *words, bool anywhere) {
  int found = 0;
  for (const Key *key = config_keys; key->name; key++) {
    const bool fits = anywhere ? mentions(key->name, words) || mentions(key->meaning, words)
                               : strncmp(key->name, words, strlen(words)) == 0;
    if (!fits) continue;
    print_key(key);
    found++;
  }
  return found;
}

int config_print_keys(const char *words, Error *err) {
  KeyReader r = {.where = "--help-config", .err = err};
  const Key *near = strchr(words, '.') ? NULL : key_nearest(words); // learning_rate of lr
  if (print_found(words, false) == 0 && print_found(words, true) == 0 &&
      (!near || print_found(strrchr(near->name, '.') + 1, true) == 0))
    return key_unknown(&r, words);
  printf("\nKEY=DEFAULT (values). A run can be resumed only with the same value of a key\n"
         "marked *, unless train.resume_allow_changes is true.\n");
  return 0;
}
