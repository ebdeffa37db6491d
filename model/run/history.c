#include "model/run/history.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

// ---- Lines

// The kinds of scores and their errors take turns; the last one that a task has counts.
enum {
  KIND,
  STEP,
  LOSS,
  LR,
  NORM,
  MS,
  RATE,
  MFU,
  APPLIED,
  ERROR,
  BITS,
  TEXT,
  REASON,
  TASK,
  ACC,
  ACC_ERROR,
  ACC_NORM,
  ACC_NORM_ERROR,
  CENTERED,
  CENTERED_ERROR,
  MEMBERS
};
static const char *const names[MEMBERS] = {[KIND] = "kind",
                                           [STEP] = "step",
                                           [LOSS] = "loss",
                                           [LR] = "lr",
                                           [NORM] = "grad_norm",
                                           [MS] = "ms",
                                           [MFU] = "mfu",
                                           [APPLIED] = "applied",
                                           [RATE] = "tokens_per_s",
                                           [ERROR] = "stderr",
                                           [TEXT] = "text",
                                           [REASON] = "reason",
                                           [BITS] = "bits_per_byte",
                                           [TASK] = "task",
                                           [ACC] = "acc",
                                           [ACC_ERROR] = "acc_stderr",
                                           [ACC_NORM] = "acc_norm",
                                           [ACC_NORM_ERROR] = "acc_norm_stderr",
                                           [CENTERED] = "centered",
                                           [CENTERED_ERROR] = "centered_stderr"};

// NAN where it is no number.
static double number(const JsonMember *members, int which) {
  const char *at = members[which].value.at, *end = members[which].value.end;
  const bool is = at && at < end && (*at == '-' || (*at >= '0' && *at <= '9'));
  return is ? strtod(at, NULL) : NAN;
}

static HistoryPlace place_before(const History *h) {
  return h->step_count > 0 ? h->steps[h->step_count - 1].at : (HistoryPlace){0};
}

// A run that resumed repeats steps.
static void forget_from(History *h, int64_t step) {
  while (h->step_count > 0 && h->steps[h->step_count - 1].at.step >= step) h->step_count--;
}

static void add_step(History *h, int64_t step, const JsonMember *m) {
  forget_from(h, step);
  LIST_ROOM(h->steps, h->step_count, h->step_room);
  HistoryPlace at = place_before(h);
  const double ms = number(m, MS), tokens = number(m, RATE) * ms / 1000;
  // Of a log whose beginning was moved away, the steps before are as this one.
  const double steps = (double)(h->step_count > 0 ? 1 : step);
  if (isfinite(ms)) at.seconds += steps * ms / 1000;
  if (isfinite(tokens)) at.tokens += steps * nearbyint(tokens);
  at.step = step;
  h->steps[h->step_count++] = (HistoryStep){.at = at,
                                            .loss = number(m, LOSS),
                                            .lr = number(m, LR),
                                            .grad_norm = number(m, NORM),
                                            .mfu = number(m, MFU)};
  const char *applied = m[APPLIED].value.at;
  h->skipped += applied && *applied == 'f';
}

static void add_val(History *h, int64_t step, const JsonMember *m) {
  while (h->val_count > 0 && h->vals[h->val_count - 1].at.step >= step) h->val_count--;
  LIST_ROOM(h->vals, h->val_count, h->val_room);
  HistoryPlace at = place_before(h);
  at.step = step;
  h->vals[h->val_count++] = (HistoryVal){
      .at = at, .loss = number(m, LOSS), .error = number(m, ERROR), .bits = number(m, BITS)};
}

// A task's mean over its files comes behind them. CORE's tasks are left out for their mean.
static void add_score(History *h, int64_t step, const JsonMember *m) {
  const Span task = m[TASK].string;
  HistoryScore score = {.at = place_before(h), .value = NAN};
  size_t kept = 0;
  for (int kind = ACC; kind <= CENTERED; kind += 2)
    if (isfinite(number(m, kind))) score.value = number(m, kind), score.error = number(m, kind + 1);
  if (!task.text || memchr(task.text, '/', task.bytes) || isnan(score.value)) return;
  for (size_t i = 0; i < h->score_count; i++) {
    if (h->scores[i].at.step >= step && span_is(task, h->scores[i].task))
      free(h->scores[i].task);
    else
      h->scores[kept++] = h->scores[i];
  }
  h->score_count = kept;
  LIST_ROOM(h->scores, h->score_count, h->score_room);
  score.at.step = step;
  score.task = xasprintf("%.*s", (int)task.bytes, task.text);
  h->scores[h->score_count++] = score;
}

static void add_sample(History *h, int64_t step, Span text) {
  while (h->sample_count > 0 && h->samples[h->sample_count - 1].step >= step)
    free(h->samples[--h->sample_count].text);
  LIST_ROOM(h->samples, h->sample_count, h->sample_room);
  h->samples[h->sample_count++] =
      (HistorySample){step, xasprintf("%.*s", (int)text.bytes, text.text)};
}

static void keep(cJSON **kept, const char *line, size_t bytes) {
  cJSON_Delete(*kept);
  *kept = cJSON_ParseWithLength(line, bytes);
}

// A run starts at this step: what an earlier start said of later ones is of no run any more.
static void forget_after(History *h, int64_t step) {
  forget_from(h, step + 1);
  while (h->val_count > 0 && h->vals[h->val_count - 1].at.step > step) h->val_count--;
  while (h->score_count > 0 && h->scores[h->score_count - 1].at.step > step)
    free(h->scores[--h->score_count].task);
  while (h->sample_count > 0 && h->samples[h->sample_count - 1].step > step)
    free(h->samples[--h->sample_count].text);
}

// False where the line is none of a log. Spoils it.
static bool add_line(History *h, char *line, size_t bytes) {
  JsonScan s = {.at = line, .end = line + bytes, .halves = true, .nuls = true};
  JsonMember m[MEMBERS];
  if (!json_members(&s, names, MEMBERS, m) || !json_take_end(&s)) return false;
  const double step = number(m, STEP);
  const Span kind = m[KIND].string;
  if (!kind.text || !(step >= 0 && step <= (double)JSON_MAX_INTEGER)) return false;
  const int64_t n = (int64_t)step;
  if (span_is(kind, "train")) add_step(h, n, m);
  if (span_is(kind, "val")) add_val(h, n, m);
  if (span_is(kind, "score")) add_score(h, n, m);
  if (span_is(kind, "sample") && m[TEXT].string.text) add_sample(h, n, m[TEXT].string);
  if (span_is(kind, "start")) forget_after(h, n), keep(&h->start, line, bytes);
  if (span_is(kind, "opened")) keep(&h->opened, line, bytes);
  if (span_is(kind, "start") || span_is(kind, "stop")) {
    free(h->reason);
    const Span why = m[REASON].string;
    h->reason = why.text ? xasprintf("%.*s", (int)why.bytes, why.text) : NULL;
  }
  return true;
}

// ---- Files

static int read_log(History *h, Error *err) {
  const PathText inside = path_text("%s/log.jsonl", h->path);
  const char *path = path_is_directory(h->path) ? inside.text : h->path;
  size_t size = 0, room = 0;
  const int fd = file_open(path, &size, err);
  FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
  char *line = NULL;
  if (fd < 0)
    return error_append(err, "; name a run's folder (output.dir of its config), or its log.jsonl");
  if (!file) return error_set(err, "cannot read '%s': %s", path, errno_text());
  for (ssize_t n; (n = getline(&line, &room, file)) > 0;)
    h->unreadable += !add_line(h, line, (size_t)n);
  free(line);
  fclose(file);
  if (h->step_count + h->val_count > 0) return 0;
  return error_set(err, "'%s' has no line of training or validation%s", path,
                   h->unreadable > 0 ? ": is it a run's log?" : " yet");
}

// Bytes of the path without what every run's has at its end.
static size_t run_length(const char *path) {
  static const char log[] = "/log.jsonl";
  size_t length = strlen(path);
  if (name_ends_with(path, log)) length -= sizeof log - 1;
  while (length > 1 && path[length - 1] == '/') length--;
  return length;
}

// Bytes of the folders that all paths begin with; of a single one, of those around it.
static size_t common_folders(int count, char *const *runs) {
  size_t common = 0;
  for (size_t i = 0; i + 1 < run_length(runs[0]); i++) {
    for (int r = 1; r < count; r++)
      if (i + 1 >= run_length(runs[r]) || runs[r][i] != runs[0][i]) return common;
    if (runs[0][i] == '/') common = i + 1;
  }
  return common;
}

int history_open(History *h, int count, char *const *runs, int which, Error *err) {
  *h = (History){.path = runs[which]};
  const size_t common = common_folders(count, runs);
  h->name = xasprintf("%.*s", (int)(run_length(runs[which]) - common), runs[which] + common);
  return read_log(h, err);
}

void history_close(History *h) {
  for (size_t i = 0; i < h->sample_count; i++) free(h->samples[i].text);
  for (size_t i = 0; i < h->score_count; i++) free(h->scores[i].task);
  free(h->samples);
  free(h->scores);
  free(h->steps);
  free(h->vals);
  free(h->name);
  free(h->reason);
  cJSON_Delete(h->start);
  cJSON_Delete(h->opened);
}

const cJSON *history_start(const History *h, const char *name) {
  return h->start ? cJSON_GetObjectItemCaseSensitive(h->start, name) : NULL;
}

const HistoryScore *history_score(const History *h, const char *task) {
  for (size_t i = h->score_count; i > 0; i--)
    if (strcmp(h->scores[i - 1].task, task) == 0) return &h->scores[i - 1];
  return NULL;
}

HistoryPlace history_end(const History *h) {
  HistoryPlace end = place_before(h);
  if (h->val_count > 0 && h->vals[h->val_count - 1].at.step > end.step)
    end = h->vals[h->val_count - 1].at;
  return end;
}
