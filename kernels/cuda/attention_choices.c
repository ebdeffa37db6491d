#include "kernels/cuda/attention_choices.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/choices.h"

enum { MAX_LINE = 320 };

static bool same_question(const AttentionQuestion *a, const AttentionQuestion *b) {
  const AttentionShape *s = &a->shape, *t = &b->shape;
  return s->B == t->B && s->T == t->T && s->H == t->H && s->KV == t->KV && s->d == t->d &&
         a->direction == b->direction && a->deterministic == b->deterministic &&
         a->both_forms == b->both_forms && a->first == b->first;
}

// Timed, and an answer to its question: of a form that may be chosen, and the first where that was
// asked for.
static bool answers(const AttentionChoice *c) {
  const AttentionQuestion *q = &c->question;
  return isfinite(c->milliseconds) && c->milliseconds > 0 && isfinite(c->other_form) &&
         c->other_form >= 0 && c->number >= 0 && (!q->first || c->number == 0) &&
         (c->deterministic == q->deterministic || (q->both_forms && c->deterministic));
}

// B T H KV d direction deterministic both first, then number engine kernel form and two times.
static bool parse_line(const char *line, AttentionChoice *c) {
  AttentionShape *s = &c->question.shape;
  int direction, deterministic, both, first, form, used = 0;
  if (sscanf(line,
             "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %d %d %d %d %d %" SCNd64
             " %" SCNd64 " %d %lf %lf%n",
             &s->B, &s->T, &s->H, &s->KV, &s->d, &direction, &deterministic, &both, &first,
             &c->number, &c->engine, &c->kernel, &form, &c->milliseconds, &c->other_form,
             &used) != 15 ||
      line[used] != '\n')
    return false;
  c->question.direction = (AttentionDirection)direction;
  c->question.deterministic = deterministic != 0;
  c->question.both_forms = both != 0;
  c->question.first = first != 0;
  c->deterministic = form != 0;
  return (direction == ATTENTION_FORWARD || direction == ATTENTION_BACKWARD) && answers(c);
}

static int print_line(char *to, const AttentionChoice *c) {
  const AttentionQuestion *q = &c->question;
  const AttentionShape *s = &q->shape;
  return snprintf(to, MAX_LINE,
                  "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                  " %d %d %d %d %d %" PRId64 " %" PRId64 " %d %.9g %.9g\n",
                  s->B, s->T, s->H, s->KV, s->d, (int)q->direction, q->deterministic, q->both_forms,
                  q->first, c->number, c->engine, c->kernel, c->deterministic, c->milliseconds,
                  c->other_form);
}

static AttentionChoice *add(AttentionChoices *all) {
  all->list = xrealloc(all->list, ((size_t)all->count + 1) * sizeof *all->list);
  all->list[all->count] = (AttentionChoice){.number = 0};
  return &all->list[all->count++];
}

void attention_choices_open(AttentionChoices *all, const char *path, const char *first) {
  *all = (AttentionChoices){.first = xstrdup(first)};
  if (!path) return;
  all->path = xstrdup(path);
  char *text = choices_read(path, first);
  for (const char *line = text; line && *line; line = strchr(line, '\n') + 1) {
    if (parse_line(line, add(all))) continue;
    all->count = 0; // the checksum held, so another version wrote this: nothing of it is trusted
    break;
  }
  free(text);
}

void attention_choices_close(AttentionChoices *all) {
  free(all->path);
  free(all->first);
  free(all->list);
  *all = (AttentionChoices){.count = 0};
}

const AttentionChoice *attention_choices_find(const AttentionChoices *all,
                                              const AttentionQuestion *question) {
  for (int i = 0; i < all->count; i++)
    if (same_question(&all->list[i].question, question)) return &all->list[i];
  return NULL;
}

void attention_choices_keep(AttentionChoices *all, const AttentionChoice *choice) {
  if (!answers(choice)) return;
  int i = 0;
  while (i < all->count && !same_question(&all->list[i].question, &choice->question)) i++;
  if (i == all->count) add(all);
  all->list[i] = *choice;
  all->changed = true;
}

void attention_choices_save(AttentionChoices *all) {
  if (!all->path || !all->changed) return;
  char *lines = xmalloc((size_t)all->count * MAX_LINE + 1);
  size_t used = 0;
  for (int i = 0; i < all->count; i++) used += (size_t)print_line(lines + used, &all->list[i]);
  Error ignored;
  (void)choices_write(all->path, all->first, lines, &ignored);
  all->changed = false;
  free(lines);
}
