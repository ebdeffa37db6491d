#include "model/run/scorer.h"

#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "data/batch.h"
#include "data/tasks/tasks.h"

// A choice as token ids. Its context has at least one: it predicts the first of the choice.
typedef struct Asked {
  int64_t context, before; // ids[context] is the first of `before` tokens ...
  int64_t choice, count;   // ... and ids[choice] the first of `count` behind them
  int64_t characters;
  int64_t row; // in the micro-batch: of the first token that is predicted
  double sum;  // of log-probabilities, in nats
  bool greedy; // each token is the likeliest
} Asked;

typedef struct Posed {
  int64_t first, line; // of its choices
  int count, gold;
} Posed;

typedef struct ScoredTask {
  char *task, *path;
  int metrics;
  bool core;
  double chance;
  int64_t first, count; // of its questions
} ScoredTask;

struct Scorer {
  Encoder *encoder;
  int32_t begin, empty; // in front of a text, or NO_TOKEN; in front of one without a context
  int64_t vocab_size, positions, window, most; // most: questions of a file, 0: all
  int64_t longest;                             // rows that stay together
  TokenIds ids;
  Asked *choices;
  Posed *questions;
  ScoredTask *tasks;
  int64_t choice_count, choice_capacity, question_count, question_capacity;
  int task_count, task_capacity;
  // A micro-batch
  Batch batch;
  Branch *branches;
  RowScore *scores;
  int64_t branch_count;
};

Scorer *scorer_create(const Tokenizer *tokenizer, int64_t vocab_size, int64_t positions,
                      int64_t window, Error *err) {
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  const int32_t empty = facts->bos_token != NO_TOKEN ? facts->bos_token
                        : facts->bos != NO_TOKEN     ? facts->bos
                                                     : facts->eos;
  if (empty == NO_TOKEN || empty >= vocab_size) {
    error_set(err, "the tokenizer '%s' has no BOS or EOS within the model's vocab_size of %lld",
              facts->name, (long long)vocab_size);
    return NULL;
  }
  Scorer *s = xcalloc(1, sizeof *s);
  *s = (Scorer){.encoder = encoder_open(tokenizer),
                .begin = facts->bos,
                .empty = empty,
                .vocab_size = vocab_size,
                .positions = positions,
                .window = window};
  return s;
}

void scorer_destroy(Scorer *s) {
  if (!s) return;
  for (int i = 0; i < s->task_count; i++) free(s->tasks[i].task), free(s->tasks[i].path);
  encoder_close(s->encoder);
  batch_free(&s->batch);
  free(s->branches);
  free(s->scores);
  free(s->ids.ids);
  free(s->choices);
  free(s->questions);
  free(s->tasks);
  free(s);
}

// ---- Token ids

// Appends them. begin: stands in front, unless the text begins with it; or NO_TOKEN.
static int encode(Scorer *s, int32_t begin, const char *text, size_t bytes, Error *err) {
  TokenIds *ids = &s->ids;
  if (begin != NO_TOKEN) token_ids_push(ids, begin);
  const int64_t at = ids->count;
  if (encoder_append(s->encoder, text, bytes, false, ids, err) != 0) return -1;
  for (int64_t i = at; i < ids->count; i++)
    if (ids->ids[i] >= s->vocab_size)
      return error_set(err, "it gives token %d, which is beyond the model's vocab_size of %lld",
                       ids->ids[i], (long long)s->vocab_size);
  if (begin != NO_TOKEN && ids->count > at && ids->ids[at] == begin) token_ids_remove(ids, at);
  return 0;
}

// The ids of context and choice together, without as many as the context has: a choice's first
// characters may belong to the context's last token. White space that ends a context is the
// choice's.
static int encode_choice(Scorer *s, int32_t begin, const Choice *c, const Asked *first, Asked *a,
                         Error *err) {
  TokenIds *ids = &s->ids;
  const Span context = text_strip(span_of(c->context), false, true);
  char *whole = xasprintf("%s%s", c->context, c->continuation);
  *a = (Asked){.context = ids->count, .characters = c->characters};
  const bool alone = context.bytes == 0;
  int status = 0;
  if (first)
    a->context = first->context, a->before = first->before;
  else if (alone)
    token_ids_push(ids, s->empty), a->before = 1;
  else if ((status = encode(s, begin, context.text, context.bytes, err)) == 0)
    a->before = ids->count - a->context;
  a->choice = ids->count;
  if (status == 0) status = encode(s, alone ? NO_TOKEN : begin, whole, strlen(whole), err);
  free(whole);
  if (status != 0) return -1;
  if (alone && ids->count > a->choice && ids->ids[a->choice] == s->empty)
    token_ids_remove(ids, a->choice);
  const int64_t skipped = alone ? 0 : a->before;
  a->count = ids->count - a->choice - skipped;
  if (a->count <= 0)
    return error_set(err, "the choice '%.80s' adds no token to its context", c->continuation);
  memmove(ids->ids + a->choice, ids->ids + a->choice + skipped,
          (size_t)a->count * sizeof *ids->ids);
  ids->count = a->choice + a->count;
  return 0;
}

// How many ids all choices begin with (step 1), or end with (step -1).
static int64_t common_ids(const Scorer *s, const Asked *a, int count, int step) {
  int64_t most = a->count;
  for (int i = 1; i < count; i++) {
    const int32_t *x = s->ids.ids + a[0].choice, *y = s->ids.ids + a[i].choice;
    if (step < 0) x += a[0].count - 1, y += a[i].count - 1;
    int64_t same = 0;
    while (same < most && same < a[i].count && x[step * same] == y[step * same]) same++;
    most = same;
  }
  return most;
}

// Whole texts, which are split where their ids differ. A beginning that all share is kept once.
static int encode_wholes(Scorer *s, const Question *q, Split split, Asked *a, Error *err) {
  TokenIds *ids = &s->ids;
  for (int i = 0; i < q->count; i++) {
    const char *text = q->choices[i].continuation;
    a[i] = (Asked){.context = ids->count, .choice = ids->count};
    if (encode(s, s->empty, text, strlen(text), err) != 0) return -1;
    a[i].count = ids->count - a[i].choice;
  }
  const int64_t common = common_ids(s, a, q->count, split == SPLIT_PREFIX ? 1 : -1);
  int64_t end = a[0].context;
  for (int i = 0; i < q->count; i++) {
    a[i].before = max_i64(split == SPLIT_PREFIX ? common : a[i].count - common, 1);
    a[i].choice += a[i].before;
    a[i].count -= a[i].before;
    if (split != SPLIT_PREFIX) continue;
    if (i == 0) end += a[i].before;
    memmove(ids->ids + end, ids->ids + a[i].choice, (size_t)a[i].count * sizeof *ids->ids);
    a[i].context = a[0].context;
    a[i].choice = end;
    end += a[i].count;
  }
  if (split == SPLIT_PREFIX) ids->count = end;
  return 0;
}

// The last tokens that the model has positions for.
static int cut(const Scorer *s, bool core, Asked *a, Error *err) {
  const int64_t over = a->before + a->count - s->positions - (core ? 0 : 1);
  if (over <= 0) return 0;
  if (over >= a->before)
    return error_set(err, "a choice of %lld tokens is beyond the %lld positions that there are",
                     (long long)a->count, (long long)s->positions);
  a->context += over;
  a->before -= over;
  return 0;
}

// Rows of the choices [first, *end), which have one context and fit into a window together.
static int64_t block_rows(const Scorer *s, int64_t window, int64_t first, int64_t *end) {
  const Asked *a = &s->choices[first];
  int64_t rows = a->before - 1 + a->count;
  for (*end = first + 1; *end < s->choice_count && a->before > 1; ++*end) {
    const Asked *b = &s->choices[*end];
    if (b->context != a->context || b->before != a->before || rows + b->count > window) break;
    rows += b->count;
  }
  return rows;
}

static int add_question(Scorer *s, const QuestionSet *set, const Question *q, Error *err) {
  const int32_t begin = set->core ? s->empty : s->begin;
  int status = 0;
  for (int i = 0; i < q->count; i++) LIST_ROOM(s->choices, s->choice_count + i, s->choice_capacity);
  LIST_ROOM(s->questions, s->question_count, s->question_capacity);
  Asked *a = s->choices + s->choice_count;
  if (set->split != SPLIT_CONTEXT) status = encode_wholes(s, q, set->split, a, err);
  for (int i = 0; i < q->count && status == 0 && set->split == SPLIT_CONTEXT; i++) {
    const Choice *c = &q->choices[i];
    const bool same = i > 0 && c->context == q->choices->context && *c->context;
    status = encode_choice(s, begin, c, same ? a : NULL, &a[i], err);
  }
  for (int i = 0; i < q->count && status == 0; i++) status = cut(s, set->core, &a[i], err);
  if (status != 0) return error_prefix(err, "'%s', line %lld", set->path, (long long)q->line);
  s->questions[s->question_count++] = (Posed){s->choice_count, q->line, q->count, q->gold};
  s->choice_count += q->count;
  int64_t end = s->choice_count - q->count;
  while (end < s->choice_count)
    s->longest = max_i64(s->longest, block_rows(s, s->window, end, &end));
  return 0;
}

// ---- Tasks

static int add_set(void *scorer, QuestionSet *set, Error *err) {
  Scorer *s = scorer;
  LIST_ROOM(s->tasks, s->task_count, s->task_capacity);
  ScoredTask *t = &s->tasks[s->task_count++];
  questions_sample(set, s->most);
  *t = (ScoredTask){.task = xstrdup(set->task),
                    .path = xstrdup(set->path),
                    .metrics = set->metrics,
                    .core = set->core,
                    .chance = set->chance / 100,
                    .first = s->question_count,
                    .count = set->count};
  for (int64_t i = 0; i < set->count; i++)
    if (add_question(s, set, &set->list[i], err) != 0) return -1;
  return 0;
}

static int add_file(Scorer *s, const char *task, const char *path, const char *examples,
                    Error *err) {
  QuestionSet set;
  int status = questions_read(&set, task, path, examples, err);
  if (status == 0) status = add_set(s, &set, err);
  questions_free(&set);
  return status;
}

static int add_files(Scorer *s, const char *task, const char *files, Error *err) {
  const char *comma = strchr(files, ',');
  char *examples = comma ? xstrdup(comma + 1) : NULL;
  char *pattern = xasprintf("%.*s", comma ? (int)(comma - files) : (int)strlen(files), files);
  const bool folder = path_is_directory(pattern);
  PathText path = path_text("%s%s", pattern, folder ? "/*.jsonl" : "");
  glob_t found = {0};
  int missing = glob(path.text, 0, NULL, &found);
  if (missing && folder) {
    path = path_text("%s/*.parquet", pattern);
    missing = glob(path.text, 0, NULL, &found);
  }
  int status = 0;
  if (strcmp(task, CORE_TASK) == 0) {
    status = core_read(files, add_set, s, err);
  } else if (missing) { // GLOB_NOMATCH, for which errno is not set
    status = error_set(err, "there is no file '%s'", path.text);
  }
  for (size_t i = 0; i < found.gl_pathc && status == 0; i++)
    status = add_file(s, task, found.gl_pathv[i], examples, err);
  globfree(&found);
  free(examples);
  free(pattern);
  return status;
}

static int add_folder(Scorer *s, const char *folder, Error *err) {
  struct dirent **entries;
  const int count = scandir(folder, &entries, NULL, alphasort), before = s->task_count;
  int status = 0;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name, *task = task_of_file(name), *ending = strrchr(name, '.');
    if (task && status == 0 && strncmp(name + strlen(task), "-dev", 4) != 0) {
      const PathText path = path_text("%s/%s", folder, name),
                     examples = path_text("%s/%s-dev%s", folder, task, ending ? ending : ".jsonl");
      const bool with = path_exists(examples.text);
      char *files = xasprintf("%s%s%s", path.text, with ? "," : "", with ? examples.text : "");
      status = add_files(s, task, files, err);
      free(files);
    }
    free(entries[i]);
  }
  if (count >= 0) free(entries);
  if (status != 0 || s->task_count > before) return status;
  return error_set(err,
                   "'%s' is no TASK=FILES and no folder with files whose names begin with a "
                   "task's: %s",
                   folder, task_names().text);
}

int scorer_add(Scorer *s, const char *word, int64_t most, Error *err) {
  const char *equals = strchr(word, '=');
  s->most = most;
  if (!equals) return add_folder(s, word, err);
  char *task = xasprintf("%.*s", (int)(equals - word), word);
  const int status = add_files(s, task, equals + 1, err);
  free(task);
  return status;
}

// ---- Micro-batches

static void add_branch(Scorer *s, int64_t prefix, int64_t prefix_rows, int64_t first,
                       int64_t rows) {
  s->branches[s->branch_count++] =
      (Branch){(int32_t)prefix, (int32_t)prefix_rows, (int32_t)first, (int32_t)rows};
}

// From row `at` on: the context but its last token, then for each choice that token and the
// choice's but its last. apart: no rows are in front of it in its document.
static void place_block(Scorer *s, int64_t at, int64_t first, int64_t end, bool apart) {
  const Asked *a = &s->choices[first];
  const int64_t shared = a->before - 1;
  const int32_t *ids = s->ids.ids;
  int32_t *tokens = s->batch.tokens, *targets = s->batch.targets;
  for (int64_t i = 0; i < shared; i++) {
    tokens[at + i] = ids[a->context + i];
    targets[at + i] = NO_TARGET;
  }
  if (!apart && shared + a->count > 0) add_branch(s, at, 0, at, shared + a->count);
  for (int64_t i = first, row = at + shared; i < end; row += s->choices[i++].count) {
    Asked *c = &s->choices[i];
    c->row = row;
    for (int64_t k = 0; k < c->count; k++) {
      tokens[row + k] = ids[k == 0 ? c->context + shared : c->choice + k - 1];
      targets[row + k] = ids[c->choice + k];
    }
    if (i > first && c->count > 0) add_branch(s, at, shared, row, c->count);
  }
}

// Fills a micro-batch with the choices from `first` on. Returns the first that is not in it. A
// training run's longest document may be too short.
static int64_t fill(Scorer *s, const Spec *spec, int64_t first) {
  const bool documents = spec->usual_documents > 0 && spec->longest_document >= s->longest;
  const int64_t T = spec->seq, longest = documents ? spec->longest_document : 0;
  int64_t end;
  batch_clear(&s->batch);
  s->branch_count = 0;
  for (int64_t at = 0, stop = T; at < batch_rows(spec); stop += T) {
    for (int64_t rows; first < s->choice_count; at += rows, first = end) {
      rows = block_rows(s, T, first, &end);
      if (rows > stop - at) break;
      place_block(s, at, first, end, longest > 0 || at + T == stop);
      if (longest > 0 && rows > 0) s->batch.lengths[s->batch.documents++] = (int32_t)rows;
    }
    batch_pad(&s->batch, at, stop - at, longest);
    at = stop;
  }
  return first;
}

// Documents of a micro-batch: a quarter more than in the mean one, since a backend takes more, too.
Spec scorer_spec(const Scorer *s, bool documents, int64_t window, int64_t rows) {
  Spec asked = {.seq = max_i64(s->longest, window), .scores = true};
  int64_t blocks = 0, all = 0, end;
  for (int64_t i = 0; i < s->choice_count; i = end, blocks++)
    all += block_rows(s, s->window, i, &end);
  asked.batch = max_i64(rows / asked.seq, 1);
  if (!documents) return asked;
  asked.longest_document = s->longest;
  asked.usual_documents =
      min_i64(batch_rows(&asked), 2 + 5 * batch_rows(&asked) * blocks / (4 * max_i64(all, 1)));
  return asked;
}

static int collect(const Scorer *s, int64_t first, int64_t end, Error *err) {
  for (int64_t i = first; i < end; i++) {
    Asked *a = &s->choices[i];
    a->sum = 0;
    a->greedy = true;
    for (int64_t k = 0; k < a->count; k++) {
      a->sum -= (double)s->scores[a->row + k].loss;
      a->greedy &= s->scores[a->row + k].likeliest != 0;
    }
    if (!isfinite(a->sum))
      return error_set(err,
                       "the log-probability of a choice is not finite: the model has diverged");
  }
  return 0;
}

static bool same_ids(const Scorer *s, const Asked *a, const Asked *b) {
  const int32_t *ids = s->ids.ids;
  return a->before == b->before && a->count == b->count &&
         memcmp(ids + a->context, ids + b->context, (size_t)a->before * sizeof *ids) == 0 &&
         memcmp(ids + a->choice, ids + b->choice, (size_t)a->count * sizeof *ids) == 0;
}

// Choices that are the same have the same sum, to the bit, so that the first of them wins.
static void settle_ties(Scorer *s) {
  for (const Posed *q = s->questions; q < s->questions + s->question_count; q++)
    for (Asked *a = s->choices + q->first, *b = a + 1; b < a + q->count; b++)
      for (const Asked *earlier = a; earlier < b; earlier++)
        if (same_ids(s, earlier, b)) b->sum = earlier->sum, b->greedy = earlier->greedy;
}

int scorer_run(Scorer *s, Llama *llama, const volatile sig_atomic_t *stop, bool shows, Error *err) {
  const size_t rows = (size_t)batch_rows(&llama->spec);
  Progress progress = progress_begin("choices", 1);
  int status = 0;
  if (!s->batch.tokens) {
    s->batch = batch_alloc((int64_t)rows);
    s->branches = xcalloc(rows, sizeof *s->branches);
    s->scores = xcalloc(rows, sizeof *s->scores);
  }
  for (int64_t i = 0, end; i < s->choice_count && status == 0 && !*stop; i = end) {
    end = fill(s, &llama->spec, i);
    llama_score(llama, &s->batch, s->branches, s->branch_count, s->scores);
    status = collect(s, i, end, err);
    if (shows) progress_show(&progress, (uint64_t)end, (uint64_t)s->choice_count, (uint64_t)end);
  }
  progress_end(&progress);
  settle_ties(s);
  return status != 0 ? -1 : *stop ? 0 : 1;
}

// ---- Results

// The choice of the largest sum, by `how` a unit; the first of equal ones.
static int best_choice(const Scorer *s, const Posed *q, int how) {
  double largest = 0;
  int best = 0;
  for (int i = 0; i < q->count; i++) {
    const Asked *a = &s->choices[q->first + i];
    const double of = how == ACC_NORM ? (double)a->characters : (double)a->count,
                 value = how == ACC ? a->sum : a->sum / of;
    if (i == 0 || value > largest) largest = value, best = i;
  }
  return best;
}

static double question_value(const Scorer *s, const Posed *q, int how) {
  const Asked *only = &s->choices[q->first];
  if (how == PERPLEXITY) return only->sum;
  return q->count == 1 ? only->greedy : best_choice(s, q, how) == q->gold;
}

// Whether the task is one of those that a result is about: one file, or all with its name's
// beginning.
static bool is_of(const ScoredTask *t, const char *task, const char *path) {
  const size_t bytes = strlen(task);
  if (path) return t->path == path;
  return strncmp(t->task, task, bytes) == 0 && (t->task[bytes] == '\0' || t->task[bytes] == '/');
}

// The mean over all questions, and its standard error with each file's own deviation.
static Estimate estimate(const Scorer *s, const TaskResult *r, int how) {
  double sum = 0, squares = 0, n = 0, files = 0;
  for (int i = 0; i < s->task_count; i++) {
    const ScoredTask *t = &s->tasks[i];
    double mine = 0, mine_squared = 0;
    if (!is_of(t, r->task, r->path)) continue;
    if (!(t->metrics & how)) return (Estimate){NAN, NAN};
    for (int64_t q = 0; q < t->count; q++) {
      const double value = question_value(s, &s->questions[t->first + q], how);
      mine += value;
      mine_squared += value * value;
    }
    sum += mine;
    squares += mine_squared - mine * mine / (double)t->count;
    n += (double)t->count;
    files++;
  }
  return (Estimate){sum / n, sqrt(fmax(squares, 0) / (n - files) / n)};
}

static double centered(const Scorer *s, const TaskResult *r) {
  double sum = 0, count = 0;
  for (int i = 0; i < s->task_count; i++) {
    const ScoredTask *t = &s->tasks[i];
    if (!t->core || !is_of(t, r->task, r->path)) continue;
    const TaskResult one = {.task = t->task, .path = t->path};
    sum += (estimate(s, &one, t->metrics).mean - t->chance) / (1 - t->chance);
    count++;
  }
  return count > 0 ? sum / count : NAN;
}

// The task's name without what a file adds to it; NULL: another file before this has it, or none
// behind it.
static const char *group_at(const Scorer *s, int at) {
  static const char core[] = CORE_TASK;
  const char *name = s->tasks[at].core ? core : s->tasks[at].task;
  int files = 0;
  for (int i = 0; i < s->task_count; i++) {
    if (!is_of(&s->tasks[i], name, NULL)) continue;
    if (i < at) return NULL;
    files++;
  }
  return files > 1 ? name : NULL;
}

bool scorer_result(const Scorer *s, int i, TaskResult *r) {
  *r = (TaskResult){.task = NULL};
  if (i < s->task_count) {
    r->task = s->tasks[i].task;
    r->path = s->tasks[i].path;
  }
  for (int at = 0, group = s->task_count; at < s->task_count && !r->task; at++)
    if (group_at(s, at) && group++ == i) r->task = group_at(s, at);
  if (!r->task) return false;
  for (int k = 0; k < s->task_count; k++)
    if (is_of(&s->tasks[k], r->task, r->path)) r->questions += s->tasks[k].count;
  r->acc = estimate(s, r, ACC);
  if (isnan(r->acc.mean)) r->acc = estimate(s, r, ACC_MEAN);
  r->acc_norm = estimate(s, r, ACC_NORM);
  r->centered = centered(s, r);
  const Estimate nats = estimate(s, r, PERPLEXITY);
  r->perplexity = (Estimate){exp(-nats.mean), exp(-nats.mean) * nats.error};
  return true;
}

static void write_estimate(JsonWriter *w, const char *name, Estimate e) {
  if (isnan(e.mean)) return;
  char *error = xasprintf("%s_stderr", name);
  json_number(w, name, e.mean, JSON_EXACT);
  json_number(w, error, e.error, JSON_EXACT);
  free(error);
}

static void write_question(const Scorer *s, const Posed *q, JsonWriter *w) {
  json_open(w, NULL, '{');
  json_whole(w, "line", q->line);
  json_whole(w, "gold", q->gold);
  json_open(w, "sums", '[');
  for (int i = 0; i < q->count; i++) json_number(w, NULL, s->choices[q->first + i].sum, 9);
  json_close(w, ']');
  json_open(w, "tokens", '[');
  for (int i = 0; i < q->count; i++) json_whole(w, NULL, s->choices[q->first + i].count);
  json_close(w, ']');
  json_open(w, "greedy", '[');
  for (int i = 0; i < q->count; i++) json_bool(w, NULL, s->choices[q->first + i].greedy);
  json_close(w, ']');
  json_close(w, '}');
}

void scorer_fields(const TaskResult *r, JsonWriter *w) {
  json_string(w, "task", r->task);
  if (r->path)
    json_string(w, "file", r->path);
  else
    json_raw(w, "file", "null");
  json_whole(w, "questions", r->questions);
  write_estimate(w, "acc", r->acc);
  write_estimate(w, "acc_norm", r->acc_norm);
  write_estimate(w, "perplexity", r->perplexity);
  if (!isnan(r->centered)) json_number(w, "centered", r->centered, JSON_EXACT);
}

void scorer_json(const Scorer *s, int i, JsonWriter *w) {
  TaskResult r;
  if (!scorer_result(s, i, &r)) return;
  json_open(w, NULL, '{');
  scorer_fields(&r, w);
  if (r.path) {
    const ScoredTask *t = &s->tasks[i];
    json_open(w, "answers", '[');
    for (int64_t q = 0; q < t->count; q++) write_question(s, &s->questions[t->first + q], w);
    json_close(w, ']');
  }
  json_close(w, '}');
}
