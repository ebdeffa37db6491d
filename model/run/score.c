// --score: a model's results on tasks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/minmax.h"
#include "data/tasks/tasks.h"
#include "model/run/commands.h"
#include "model/run/run.h"
#include "model/run/scorer.h"

typedef struct Scoring {
  double limit; // questions of each file; 0: all
  bool json;
  LoadedModel loaded;
  Scorer *scorer;
} Scoring;

// The arguments behind the folder: options, whose places in argv are then NULL, and tasks.
static int parse(Scoring *c, int argc, char **argv, Error *err) {
  const Option options[] = {{.name = "--limit", .low = 1, .high = 1e9, .number = &c->limit},
                            {.name = "--json", .flag = &c->json}};
  int tasks = 0;
  for (int i = 1; i < argc; i++) {
    const int first = i;
    const bool option = strncmp(argv[i], "--", 2) == 0;
    if (!option) tasks++;
    if (option &&
        option_read(options, sizeof options / sizeof *options, "--score", argc, argv, &i, err) != 0)
      return -1;
    for (int k = first; option && k <= i; k++) argv[k] = NULL;
  }
  if (tasks > 0) return 0;
  return error_set(err, "--score needs TASK=FILE or a folder of such files; tasks are %s",
                   task_names().text);
}

// Windows are long where attention stops at documents' ends, and else short: it is quadratic.
static int open_model(Scoring *c, Error *err) {
  enum { LONG = 8192, SHORT = 1024, MOST_LOGITS = 1 << 26 };
  LoadedModel *t = &c->loaded;
  const bool gpu = t->hardware.gpu,
             documents = hardware_attends_documents(&t->hardware, t->model.head_dim, SHORT),
             ends = gpu && documents &&
                    !gpu_biases_documents(&t->hardware.card, t->model.head_dim, false);
  Spec asked = scorer_spec(c->scorer, documents, ends ? LONG : SHORT, gpu ? LONG : SHORT);
  const int64_t rows = max_i64(MOST_LOGITS / t->model.vocab_size, 1), M = batch_rows(&asked);
  asked.loss_chunks = (M + rows - 1) / rows;
  return loaded_load(t, asked, "score on a machine with more", err);
}

static int read_tasks(Scoring *c, int argc, char **argv, Error *err) {
  enum { WINDOW = 8192 };
  const LoadedModel *t = &c->loaded;
  const int64_t positions = t->model.max_position_embeddings;
  if (!t->tokenizer) {
    error_set(err, "'%s' has no tokenizer.json, so it cannot read tasks", t->start.path);
    return tokenizer_advise(t->start.path, err);
  }
  c->scorer =
      scorer_create(t->tokenizer, t->model.vocab_size, positions, max_i64(positions, WINDOW), err);
  for (int i = 1; i < argc && c->scorer; i++)
    if (argv[i] && scorer_add(c->scorer, argv[i], (int64_t)c->limit, err) != 0) return -1;
  return c->scorer ? 0 : -1;
}

// ---- Its output

// A column of the table, with the spaces in front of it. Returns those that the next one needs.
static int print_cell(int spaces, const char *text) {
  enum { WIDTH = 20 };
  return *text ? WIDTH - (printf("%*s%s", spaces, "", text) - spaces) : spaces + WIDTH;
}

static ShortText estimate_text(Estimate e) {
  if (isnan(e.mean)) return (ShortText){""};
  if (isnan(e.error)) return short_text("%.4f", e.mean);
  return short_text(e.mean < 1000 ? "%.4f +- %.4f" : "%.4g +- %.4g", e.mean, e.error);
}

// A task's name; of one of its several files with the file's, "blimp anaphor_number_agreement".
static ShortText name_text(const Scorer *s, const TaskResult *r) {
  TaskResult other;
  int files = 0;
  for (int i = 0; scorer_result(s, i, &other); i++)
    files += other.path && strcmp(other.task, r->task) == 0;
  if (!r->path || files < 2) return short_text("%s", r->task);
  const char *name = path_name(r->path);
  return short_text("%s %.*s", r->task, (int)strcspn(name, "."), name);
}

static void print_table(const Scorer *s) {
  TaskResult r;
  bool norm = false, perplexity = false, centered = false;
  for (int i = 0; scorer_result(s, i, &r); i++) {
    norm |= !isnan(r.acc_norm.mean);
    perplexity |= !isnan(r.perplexity.mean);
    centered |= !isnan(r.centered);
  }
  printf("%-34s %9s", "task", "questions");
  int spaces = print_cell(2, "acc");
  if (norm) spaces = print_cell(spaces, "acc_norm");
  if (perplexity) spaces = print_cell(spaces, "perplexity");
  if (centered) print_cell(spaces, "centered");
  for (int i = 0; scorer_result(s, i, &r); i++) {
    printf("\n%-34s %9lld", name_text(s, &r).text, (long long)r.questions);
    spaces = print_cell(2, estimate_text(r.acc).text);
    if (norm) spaces = print_cell(spaces, estimate_text(r.acc_norm).text);
    if (perplexity) spaces = print_cell(spaces, estimate_text(r.perplexity).text);
    if (centered) print_cell(spaces, estimate_text((Estimate){r.centered, NAN}).text);
  }
  printf("\n");
}

static void print_json(const Scorer *s) {
  TaskResult r;
  for (int i = 0; scorer_result(s, i, &r); i++) {
    JsonWriter w = {.foreign = true};
    scorer_json(s, i, &w);
    printf("%s\n", w.text);
    free(w.text);
  }
}

int score_command(int argc, char **argv, Error *err) {
  Scoring c = {.json = false};
  if (argc < 1) return error_set(err, "--score needs the folder of a run or checkpoint");
  if (parse(&c, argc, argv, err) != 0) return -1;
  const volatile sig_atomic_t *stop = process_catch_signals();
  int status =
      loaded_open(&c.loaded, argv[0], err) || read_tasks(&c, argc, argv, err) || open_model(&c, err)
          ? -1
          : 0;
  if (status == 0) {
    const int scored = scorer_run(c.scorer, &c.loaded.llama, stop, true, err);
    status = scored > 0 ? 0 : scored < 0 ? -1 : error_set(err, "stopped before all was scored");
  }
  if (status == 0) (c.json ? print_json : print_table)(c.scorer);
  scorer_destroy(c.scorer);
  loaded_close(&c.loaded);
  return status;
}
