// What a user reads about keys and configurations: --help-config, the start's table, and what was
// meant by a path that is no configuration.
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/memory.h"
#include "data/model_folder.h"
#include "model/config/keys.h"

// ---- A path that is no configuration

// The .json file of the folder that looks most like `name`, "" where none does.
static PathText nearest_file(const char *folder, const char *name) {
  enum { MOST_NAMES = 256 };
  char *names[MOST_NAMES];
  int count = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && count < MOST_NAMES && (entry = readdir(dir));)
    if (name_ends_with(entry->d_name, ".json")) names[count++] = xstrdup(entry->d_name);
  if (dir) closedir(dir);
  const char *near = nearest_name(name, (const char *const *)names, count);
  const PathText found = path_text("%s%s%s", near ? folder : "", near ? "/" : "", near ? near : "");
  for (int i = 0; i < count; i++) free(names[i]);
  return found;
}

static int is_folder(const char *path, Error *err) {
  const size_t length = strlen(path);
  char *folder = shell_word(
      path_text("%.*s", (int)length - (length > 1 && path[length - 1] == '/'), path).text);
  error_set(err, "'%s' is a folder, not a config", path);
  if (has_file(path, RUN_CONFIG_FILE))
    error_append(err,
                 "; to resume the run: ./train %s/" RUN_CONFIG_FILE
                 " train.resume=auto; to write with it: "
                 "./train --generate %s",
                 folder, folder);
  else if (has_file(path, MODEL_CONFIG_FILE))
    error_append(
        err,
        "; to train from its weights: ./train configs/continue.json model=%s; to write with it: "
        "./train --generate %s",
        folder, folder);
  free(folder);
  return -1;
}

int config_check_path(const char *path, Error *err) {
  if (path_is_directory(path)) return is_folder(path, err);
  if (path_exists(path)) return 0;
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  PathText near = nearest_file(path_parent(path).text, name);
  if (!near.text[0]) near = nearest_file("configs", name);
  error_set(err, "there is no config '%s'", path);
  return near.text[0] ? error_append(err, "; did you mean %s?", near.text) : -1;
}

// ---- Keys with other values than their defaults

// Whether the key has a default, and the configuration another value.
static bool is_set(const Key *key, const Config *config) {
  Error ignored;
  Config defaults = {0};
  KeyReader r = {.config = &defaults, .where = "", .err = &ignored};
  return key->fallback && strcmp(key->fallback, "null") != 0 &&
         key_set_json(&r, key, key->fallback) == 0 && !key_equal(key, &defaults, config);
}

void config_print(const Config *config) {
  enum { INDENT = 10, WIDTH = 105, MOST_LINES = 4 };
  const char *section = "";
  int lines = 1, left_out = 0;
  int column = printf("%-*s", INDENT, "config");
  for (const Key *key = config_keys; key->name; key++) {
    if (!is_set(key, config)) continue;
    char *value = key_text(key, config);
    char *word = strcmp(section, key->section) == 0
                     ? xasprintf(" %s=%s", key->name, value)
                     : xasprintf(" %s: %s=%s", key->section, key->name, value);
    const bool full = column > INDENT && column + (int)strlen(word) > WIDTH;
    left_out += left_out > 0 || (full && lines == MOST_LINES);
    if (full && left_out == 0) {
      column = printf("\n%*s", INDENT, "") - 1;
      lines++;
    }
    if (left_out == 0) column += printf("%s", word);
    section = key->section;
    free(word);
    free(value);
  }
  if (left_out > 0) printf(" and %d more, as log.jsonl has them", left_out);
  printf("%s\n", column > INDENT ? "" : " the defaults");
}

// ---- --help-config

// Words in lines of at most 100 columns, indented.
static void print_wrapped(const char *text) {
  enum { INDENT = 4, WIDTH = 100 };
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
  printf("%s.%s", key->section, key->name);
  if (key->fallback && !derived)
    printf("=%.*s", (int)strlen(key->fallback) - (quoted ? 2 : 0), key->fallback + quoted);
  printf("%s (%s%s)\n", key->flags & KEY_SHAPES_RUN ? " *" : "",
         key->fallback ? "" : "required: ", key_allowed(key).text);
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

typedef enum Search { BEGINNINGS, WORDS } Search;

static int print_found(const char *words, Search search) {
  int found = 0;
  for (const Key *key = config_keys; key->name; key++) {
    const PathText name = path_text("%s.%s", key->section, key->name);
    const bool fits = search == BEGINNINGS
                          ? strncmp(name.text, words, strlen(words)) == 0
                          : mentions(name.text, words) || mentions(key->meaning, words);
    if (!fits) continue;
    print_key(key);
    found++;
  }
  return found;
}

int config_print_keys(const char *words, Error *err) {
  KeyReader r = {.where = "--help-config", .err = err};
  const char *dot = strrchr(words, '.');
  const Key *near = dot ? NULL : key_nearest("", words); // learning_rate of lr
  if (print_found(words, BEGINNINGS) == 0 && print_found(words, WORDS) == 0 &&
      (!near || print_found(near->name, WORDS) == 0)) {
    const PathText section = path_text("%.*s", dot ? (int)(dot - words) : 0, words);
    return key_unknown(&r, section.text, dot ? dot + 1 : words);
  }
  printf("\nKEY=DEFAULT (values). A run can be resumed only with the same value of a key marked *, "
         "unless\ntrain.resume_allow_changes is true.\n");
  return 0;
}
