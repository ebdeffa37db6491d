// Tasks whose answers a model's likelihoods give: multiple choice, and a text's last word. Their
// files are those of the Hugging Face Hub, their texts and decisions lm-evaluation-harness' (of
// 0.4.13, without examples in front unless said), and CORE's are nanochat's.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include "base/error.h"
#include "base/text.h"

// What a question asks the likelihood of: `continuation` behind `context`. characters: code points
// of the choice itself, without the space in front of it.
typedef struct Choice {
  char *context; // the first choice's own where all have the same one
  char *continuation;
  int64_t characters;
} Choice;

typedef struct Question {
  Choice *choices; // [count]
  int count, gold; // gold: the index of the right one
  int64_t line;    // in its file, from 1
} Question;

// Where the tokens of a continuation begin: behind as many tokens as the context alone has; behind
// the longest beginning that all choices share; or where their longest common end begins. In the
// latter two contexts are "" and continuations whole.
typedef enum Split { SPLIT_CONTEXT, SPLIT_PREFIX, SPLIT_SUFFIX } Split;

// What is reported. By ACC the likeliest choice counts, where there is only one whether each of its
// tokens is the likeliest; by ACC_NORM the one of most likelihood a character; by ACC_MEAN a token.
enum { ACC = 1, ACC_NORM = 2, PERPLEXITY = 4, ACC_MEAN = 8 };

// The questions of one file.
typedef struct QuestionSet {
  char *task; // "hellaswag"; owned, as path is
  char *path;
  Question *list; // [count]
  int64_t count, capacity;
  int metrics;
  Split split;
  bool core;     // one of CORE's: a text always begins with BOS, and is cut one token earlier
  double chance; // of CORE's: how often a guess is right, in percent
} QuestionSet;
void questions_free(QuestionSet *set); // zeros are fine
// Keeps `most` questions, spread evenly; 0: all.
void questions_sample(QuestionSet *set, int64_t most);

#define CORE_TASK "core"
// "hellaswag, piqa, ...": all names, for sentences.
ShortText task_names(void);
// The name that `file` begins with, up to its end, a dot or a dash; NULL: none. CORE_TASK is one.
const char *task_of_file(const char *file);

// The questions in a file of JSON lines or Parquet. examples: a file of the same task, whose first
// five questions about the same subject stand in front of each, with their answers; NULL: none. Of
// mmlu alone. A line that lacks a field, or has another kind of value in it, is an error.
int questions_read(QuestionSet *set, const char *task, const char *path, const char *examples,
                   Error *err);

// Calls `use` with the questions of each of CORE's tasks (DCLM, arXiv 2406.11794), from the folder
// of its bundle: core.yaml, eval_meta_data.csv, eval_data. `use` may keep them by zeroing *set.
int core_read(const char *folder, int (*use)(void *context, QuestionSet *set, Error *err),
              void *context, Error *err);

// ---- For the files of this folder

// A document of a file: its fields.
typedef int (*DocumentRead)(void *context, const cJSON *document, int64_t line, Error *err);
// Calls `read` for each document of a file, of JSON lines or Parquet.
int documents_read(const char *path, DocumentRead read, void *context, Error *err);
// A field of a document; a path such as "choices.text" goes into objects and, by number, lists. The
// text belongs to the document.
int document_field(const cJSON *document, const char *path, const cJSON **field, Error *err);
int document_text(const cJSON *document, const char *path, const char **text, Error *err);

// Appends a question of so many choices, which are for the caller to fill in.
Question *questions_add(QuestionSet *set, int count, int64_t line);
// The same text without white space at its ends, as Python's strip, lstrip and rstrip have it.
Span text_strip(Span text, bool left, bool right);
