#include "data/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

#define CHECKSUM_KEY "xxh3"

// Of a file without tensors: a tokenizer's have some 10 MB.
enum { SUMS_MAX_BYTES = 1 << 20, SMALL_MAX_BYTES = 256 << 20 };

bool has_file(const char *folder, const char *file) {
  const PathText name = path_text("%s/%s", folder, file);
  return path_exists(name.text) && !path_is_directory(name.text);
}

// ---- checksums.json

void sums_add(FileSums *sums, const char *name, uint64_t bytes, uint64_t checksum) {
  sums->files = xrealloc(sums->files, (size_t)(sums->count + 1) * sizeof *sums->files);
  FileSum *sum = &sums->files[sums->count++];
  *sum = (FileSum){.bytes = bytes, .checksum = checksum};
  snprintf(sum->name, sizeof sum->name, "%s", name);
}

const FileSum *sums_find(const FileSums *sums, const char *name) {
  for (int i = 0; i < sums->count; i++)
    if (strcmp(sums->files[i].name, name) == 0) return &sums->files[i];
  return NULL;
}

void sums_free(FileSums *sums) {
  free(sums->files);
  *sums = (FileSums){0};
}

static uint64_t checksum_of(const char *data, size_t bytes) {
  Checksum c;
  checksum_begin(&c);
  checksum_add(&c, data, bytes);
  return checksum_end(&c);
}

static int small_checksum(const char *path, uint64_t *bytes, uint64_t *checksum, Error *err) {
  char *data;
  size_t count;
  if (file_read(path, SMALL_MAX_BYTES, &data, &count, err) != 0) return -1;
  *checksum = checksum_of(data, count);
  *bytes = count;
  free(data);
  return 0;
}

// ---- checksums.json: writing

// Token files and their documents hold checksums of their own. What begins with a dot is no part of
// the folder: it comes and goes.
static int is_listed(const struct dirent *entry) {
  const char *name = entry->d_name;
  return name[0] != '.' && !name_ends_with(name, ".bin") && !name_ends_with(name, ".docs");
}

static int add_others(FileSums *sums, const char *folder, Error *err) {
  struct dirent **entries;
  const int count = scandir(folder, &entries, is_listed, NULL);
  if (count < 0) return error_set(err, "cannot list the folder '%s': %s", folder, errno_text());
  int status = 0;
  for (int i = 0; i < count; free(entries[i++])) {
    const char *name = entries[i]->d_name;
    const PathText path = path_text("%s/%s", folder, name);
    uint64_t bytes, checksum;
    if (status != 0 || sums_find(sums, name) || path_is_directory(path.text)) continue;
    status = small_checksum(path.text, &bytes, &checksum, err);
    if (status == 0) sums_add(sums, name, bytes, checksum);
  }
  free(entries);
  return status;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const FileSum *)a)->name, ((const FileSum *)b)->name);
}

int sums_write(FileSums *sums, const char *folder, Error *err) {
  if (add_others(sums, folder, err) != 0) return -1;
  qsort(sums->files, (size_t)sums->count, sizeof *sums->files, by_name);
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "step", sums->step);
  json_open(&w, "files", '{');
  for (int i = 0; i < sums->count; i++) {
    json_open(&w, sums->files[i].name, '{');
    json_whole(&w, "bytes", (int64_t)sums->files[i].bytes);
    json_string(&w, CHECKSUM_KEY, hex_text(sums->files[i].checksum).text);
    json_close(&w, '}');
  }
  json_close(&w, '}');
  json_string(&w, CHECKSUM_KEY, hex_text(checksum_of(w.text, w.used)).text);
  json_close(&w, '}');
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  const int status = file_write(path.text, w.text, w.used, err);
  free(w.text);
  return status;
}

// ---- checksums.json: reading

static bool read_tree(FileSums *sums, const cJSON *root) {
  static const char *const names[] = {"step", "files"};
  const cJSON *fields[2];
  Error ignored;
  if (json_fields(root, names, 2, fields, &ignored) != 0 ||
      json_integer(fields[0], &sums->step) != 0)
    return false;
  for (const cJSON *entry = fields[1]->child; entry; entry = entry->next) {
    int64_t bytes;
    const char *name = entry->string,
               *checksum =
                   cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, CHECKSUM_KEY));
    if (json_integer(cJSON_GetObjectItemCaseSensitive(entry, "bytes"), &bytes) != 0 || bytes < 0 ||
        !name || strlen(name) > NAME_BYTES || strchr(name, '/') || !checksum ||
        strspn(checksum, "0123456789abcdef") != 16 || checksum[16])
      return false;
    sums_add(sums, name, (uint64_t)bytes, strtoull(checksum, NULL, 16));
  }
  return sums->count > 0;
}

// The text must end with this checksum of all that comes before it, as sums_write put it there.
static bool ends_with_own(const char *text, size_t bytes, const cJSON *own) {
  const PathText end = path_text(",\n  \"" CHECKSUM_KEY "\": \"%s\"\n}\n",
                                 cJSON_IsString(own) ? own->valuestring : "");
  const size_t length = strlen(end.text);
  return bytes >= length && memcmp(text + bytes - length, end.text, length) == 0 &&
         strcmp(hex_text(checksum_of(text, bytes - length)).text, own->valuestring) == 0;
}

// None where there is no checksums.json. sums_free afterwards, also after an error.
static int sums_read(FileSums *sums, const char *folder, Error *err) {
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  char *text;
  size_t bytes;
  *sums = (FileSums){0};
  if (!path_exists(path.text)) return 0;
  if (file_read(path.text, SUMS_MAX_BYTES, &text, &bytes, err) != 0) return -1;
  cJSON *root = json_parse(path.text, text, bytes, err);
  cJSON *own = cJSON_DetachItemFromObjectCaseSensitive(root, CHECKSUM_KEY);
  const bool good = root && read_tree(sums, root) && (!own || ends_with_own(text, bytes, own));
  if (root && !good) error_set(err, "'%s' is not as it was saved", path.text);
  cJSON_Delete(own);
  cJSON_Delete(root);
  free(text);
  if (good) return 0;
  return error_append(err, " (without it the folder's other files are taken unchecked)");
}

int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err) {
  if (saved->bytes == bytes && saved->checksum == checksum) return 0;
  return error_set(err,
                   "'%s' is not what was saved: it has %llu bytes and the checksum %s, not %llu "
                   "and %s (if it was changed on purpose, remove " CHECKSUMS_FILE " beside it)",
                   path, (unsigned long long)bytes, hex_text(checksum).text,
                   (unsigned long long)saved->bytes, hex_text(saved->checksum).text);
}

// Reads and compares every file that they name, but for files of tensors. whole: also run.json and
// state.json.
static int sums_check_small(const FileSums *sums, const char *folder, bool whole, Error *err) {
  for (int i = 0; i < sums->count; i++) {
    const FileSum *sum = &sums->files[i];
    const PathText path = path_text("%s/%s", folder, sum->name);
    const bool of_run =
        strcmp(sum->name, RUN_CONFIG_FILE) == 0 || strcmp(sum->name, STATE_FILE) == 0;
    uint64_t bytes, checksum;
    if (name_ends_with(sum->name, ".safetensors") || (of_run && !whole)) continue;
    if (!path_exists(path.text))
      return error_set(err, "'%s' has no %s, with which it was saved", folder, sum->name);
    if (small_checksum(path.text, &bytes, &checksum, err) != 0 ||
        sums_compare(sum, path.text, bytes, checksum, err) != 0)
      return -1;
  }
  return 0;
}

// ---- Names of checkpoints

PathText step_path(const char *run_dir, int64_t step, const char *suffix) {
  return path_text("%s/step-%08" PRId64 "%s", run_dir, step, suffix);
}

// The step in "step-00000100SUFFIX", or a negative number if the name is not exactly one that
// step_path gives.
static int64_t step_with_suffix(const char *name, const char *suffix) {
  if (strncmp(name, "step-", 5) != 0) return -1;
  const int64_t step = strtoll(name + 5, NULL, 10);
  return strcmp(name, step_path(".", step, suffix).text + 2) == 0 ? step : -1;
}

int64_t step_in_name(const char *folder) {
  const char *name = path_name(folder);
  return step_with_suffix(name, name_ends_with(name, ".old") ? ".old" : "");
}

// The target of a symbolic link; "" where the path is none.
static PathText link_target(const char *path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path, target, sizeof target - 1);
  target[length > 0 ? length : 0] = '\0';
  return path_text("%s", target);
}

int64_t link_step(const char *run_dir, const char *link) {
  return step_in_name(link_target(path_text("%s/%s", run_dir, link).text).text);
}

static int descending(const void *a, const void *b) {
  const int64_t s = *(const int64_t *)a, t = *(const int64_t *)b;
  return s < t ? 1 : s > t ? -1 : 0;
}

int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err) {
  struct dirent **entries;
  const int all = scandir(run_dir, &entries, NULL, NULL);
  *steps = NULL;
  *count = 0;
  if (all < 0 && errno == ENOENT) return 0;
  if (all < 0) return error_set(err, "cannot list the folder '%s': %s", run_dir, errno_text());
  *steps = xmalloc((size_t)all * sizeof **steps);
  for (int i = 0; i < all; free(entries[i++])) {
    const int64_t step = step_with_suffix(entries[i]->d_name, suffix);
    if (step >= 0) (*steps)[(*count)++] = step;
  }
  free(entries);
  qsort(*steps, (size_t)*count, sizeof **steps, descending);
  return 0;
}

// ---- The checkpoints of a run

static int in_order(const void *a, const void *b) {
  const RunCheckpoint *x = a, *y = b;
  if (x->later != y->later) return x->later ? 1 : -1;
  if (x->has_checksums != y->has_checksums) return x->has_checksums ? -1 : 1;
  if (x->step != y->step) return x->step < y->step ? 1 : -1;
  return (int)x->old - (int)y->old;
}

static int add_checkpoints(RunCheckpoints *c, const char *run_dir, bool old, Error *err) {
  const char *suffix = old ? ".old" : "";
  int64_t *steps;
  int count;
  const int status = step_list(run_dir, suffix, &steps, &count, err);
  c->list = xrealloc(c->list, (size_t)(c->count + count + 1) * sizeof *c->list);
  for (int i = 0; i < count; i++) {
    RunCheckpoint *found = &c->list[c->count++];
    *found = (RunCheckpoint){.path = step_path(run_dir, steps[i], suffix),
                             .step = steps[i],
                             .later = c->latest >= 0 && steps[i] > c->latest,
                             .old = old};
    found->has_checksums = has_file(found->path.text, CHECKSUMS_FILE);
  }
  free(steps);
  return status;
}

int run_checkpoints(RunCheckpoints *c, const char *run_dir, Error *err) {
  *c = (RunCheckpoints){.latest = link_step(run_dir, LATEST_LINK)};
  if (add_checkpoints(c, run_dir, false, err) != 0 || add_checkpoints(c, run_dir, true, err) != 0)
    return -1;
  qsort(c->list, (size_t)c->count, sizeof *c->list, in_order);
  return 0;
}

// ---- Reading one folder

// Zeros where there is none.
static struct stat state_of(const char *folder) {
  struct stat st;
  return stat(folder, &st) == 0 ? st : (struct stat){0};
}

typedef struct Reader {
  FolderRead read;
  void *context;
  bool whole;
} Reader;

// 1 where the folder was removed or replaced meanwhile, also after a success: what was read may be
// of two folders, or lack a file that is there no more.
static int read_folder(const char *folder, const Reader *r, Error *err) {
  FileSums sums;
  const struct stat before = state_of(folder);
  int status = sums_read(&sums, folder, err);
  if (status == 0) status = sums_check_small(&sums, folder, r->whole, err);
  if (status == 0 && r->read) status = r->read(r->context, folder, &sums, err);
  sums_free(&sums);
  const struct stat now = state_of(folder);
  return before.st_dev == now.st_dev && before.st_ino == now.st_ino ? status : 1;
}

// ---- Reading a run's

// Warns about newer checkpoints that were skipped because they have no checksums.json.
static void tell_passed_over(const RunCheckpoints *c, int at) {
  const RunCheckpoint *taken = &c->list[at];
  for (int i = at + 1; i < c->count; i++) {
    const RunCheckpoint *other = &c->list[i];
    if (other->later == taken->later && other->step > taken->step)
      fprintf(stderr, "checkpoint '%s' is passed over: it has no " CHECKSUMS_FILE ", as '%s' has\n",
              other->path.text, taken->path.text);
  }
}

// 1 where the run has saved since the list was made.
static int read_one_of(const RunCheckpoints *c, const char *run_dir, const Reader *r, Error *err) {
  for (int i = 0; i < c->count; i++) {
    const char *path = c->list[i].path.text;
    const int status = read_folder(path, r, err);
    if (status == 0) tell_passed_over(c, i);
    if (status == 0) return 0;
    if (status == 1 || link_step(run_dir, LATEST_LINK) != c->latest) return 1;
    if (c->count > 1) fprintf(stderr, "checkpoint '%s' is passed over: %s\n", path, err->text);
  }
  return c->count == 1 ? -1 : error_set(err, "'%s' has no checkpoint left to read", run_dir);
}

enum { MOST_TRIES = 1000 }; // of a run that saves without a pause

static int changes_too_fast(const char *path, Error *err) {
  return error_set(err, "'%s' changes too fast to be read", path);
}

int run_folder_read(const char *run_dir, bool whole, FolderRead read, void *context, Error *err) {
  const Reader r = {read, context, whole};
  for (int i = 0; i < MOST_TRIES; i++) {
    RunCheckpoints c;
    int status = run_checkpoints(&c, run_dir, err);
    const bool none = status == 0 && c.count == 0;
    if (status == 0 && !none) status = read_one_of(&c, run_dir, &r, err);
    free(c.list);
    if (none || status <= 0) return none ? 1 : status;
  }
  return changes_too_fast(run_dir, err);
}

// ---- Reading what the user named

// Where RUN/latest or RUN/best points; any other folder as it is, but for slashes at its end.
static PathText resolve(const char *named) {
  size_t length = strlen(named);
  while (length > 1 && named[length - 1] == '/') length--;
  const PathText folder = path_text("%.*s", (int)length, named), target = link_target(folder.text);
  if (strchr(target.text, '/') || step_in_name(target.text) < 0) return folder;
  if (!strchr(folder.text, '/')) return target;
  return path_text("%s/%s", path_parent(folder.text).text, target.text);
}

static int read_named(const char *named, const Reader *r, Error *err) {
  for (int i = 0; i < MOST_TRIES; i++) {
    const PathText folder = resolve(named);
    const int status = read_folder(folder.text, r, err);
    if (status == 0) return 0;
    if (status < 0 && strcmp(resolve(named).text, folder.text) == 0) return -1;
  }
  return changes_too_fast(named, err);
}

// ---- The tokens that end a text

// Some models write -1 for none.
static int add_end(int32_t *ids, int *count, int most, const cJSON *item) {
  int64_t id;
  if (json_integer(item, &id) != 0 || id > INT32_MAX || *count == most) return -1;
  if (id >= 0) ids[(*count)++] = (int32_t)id;
  return 0;
}

static int read_ends(const char *path, int32_t *ids, int most, Error *err) {
  cJSON *tree = json_read(path, SUMS_MAX_BYTES, err);
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(tree, "eos_token_id");
  int count = 0, bad = 0;
  if (cJSON_IsArray(value))
    for (const cJSON *item = value->child; item; item = item->next)
      bad |= add_end(ids, &count, most, item);
  else if (value && !cJSON_IsNull(value))
    bad = add_end(ids, &count, most, value);
  if (bad)
    error_set(err, "%s: eos_token_id is %s, but must be a token id, at most %d in a list, or null",
              path, json_shown(value).text, most);
  cJSON_Delete(tree);
  return tree && !bad ? count : -1;
}

int folder_ends(const char *folder, int32_t *ids, int most, Error *err) {
  static const char *const names[] = {"generation_config.json", "config.json"};
  int count = 0;
  for (int i = 0; i < 2 && count == 0; i++)
    if (has_file(folder, names[i]))
      count = read_ends(path_text("%s/%s", folder, names[i]).text, ids, most, err);
  return count;
}

// ---- Models in forms that are not read here

// What a file of this name says about the folder, or NULL.
static const char *other_form(const char *name) {
  static const struct {
    const char *ending, *what;
  } forms[] = {
      {"adapter_config.json", "a LoRA adapter, not a model: merge it into its base model with "
                              "peft's merge_and_unload, and save that"},
      {"consolidated.safetensors", "a model in Mistral's own form: take the one in transformers' "
                                   "form, with " WEIGHTS_FILE},
      {"consolidated.00.pth", "a model in Meta's own form: take the one in transformers' form, "
                              "with " WEIGHTS_FILE},
      {".gguf", "a model in llama.cpp's form: take the Hugging Face folder that it was made of"}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    if (name_ends_with(name, forms[i].ending)) return forms[i].what;
  return NULL;
}

// Puts what the folder holds behind the sentence about what it lacks; returns -1.
static int tell_other_form(const char *folder, Error *err) {
  const char *what = NULL;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && !what && (entry = readdir(dir));)
    what = other_form(entry->d_name);
  if (dir) closedir(dir);
  return what ? error_append(err, "; it holds %s", what) : -1;
}

int model_folder_check(const char *file, Error *err) {
  const char *what = name_ends_with(file, ".gguf") ? other_form(file) : NULL;
  if (what) return error_set(err, "'%s' is %s", file, what);
  return read_named(path_parent(file).text, &(Reader){0}, err);
}

int model_folder_read(const char *named, bool whole, FolderRead read, void *context, Error *err) {
  const Reader r = {read, context, whole};
  if (!path_exists(named)) return error_set(err, "there is no folder '%s'", named);
  if (!path_is_directory(named)) {
    const char *what = other_form(named);
    return what ? error_set(err, "'%s' is %s", named, what)
                : error_set(err, "'%s' is not a folder; give a checkpoint's folder or a run's",
                            named);
  }
  if (has_file(named, WEIGHTS_FILE) || has_file(named, WEIGHTS_INDEX_FILE))
    return read_named(named, &r, err);
  int status = run_folder_read(resolve(named).text, whole, read, context, err);
  if (status == 1) status = read_named(named, &r, err);
  return status == 0 ? 0 : tell_other_form(named, err);
}
