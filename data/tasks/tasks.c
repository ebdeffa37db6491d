#include "data/tasks/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/prepare/parquet.h"

// ---- The table

// How a document becomes a question.
typedef struct Task {
  const char *name;
  // {field} is that field's text. {field|strip}, |lstrip, |capitalize (first letter, others small)
  // and |words (_ is a space) change it.
  const char *context;
  // Names of fields, each a choice; "field[]": a list of choices; "=A =B": the texts themselves.
  const char *choices;
  // A field: a number is the choice's index, from `first` on, and a text is a choice, or one of the
  // list `labels`. "=3": always that choice.
  const char *gold, *labels;
  int first, metrics;
  const char *before; // in front of the examples, too
  enum Shape { PLAIN, WIKIHOW, BLANK, LAST_WORD } shape;
} Task;

#define QUESTION "Question: {question}\nAnswer:"
#define ARC QUESTION, "choices.text[]", "answerKey", "choices.label", .metrics = ACC | ACC_NORM
static const Task tasks[] = {
    {"hellaswag", "{activity_label}: {ctx_a} {ctx_b|capitalize}", "endings[]", "label",
     .metrics = ACC | ACC_NORM, .shape = WIKIHOW},
    {"piqa", "Question: {goal}\nAnswer:", "sol1 sol2", "label", .metrics = ACC | ACC_NORM},
    {"arc_easy", ARC},
    {"arc_challenge", ARC},
    {"openbookqa", "{question_stem}", "choices.text[]", "answerKey", "choices.label",
     .metrics = ACC | ACC_NORM},
    {"winogrande", "{sentence}", "option1 option2", "answer", .first = 1, .metrics = ACC,
     .shape = BLANK},
    {"lambada_openai", "{text}", "", "=0", .metrics = ACC | PERPLEXITY, .shape = LAST_WORD},
    {"blimp", "", "sentence_good sentence_bad", "=0", .metrics = ACC},
    {"mmlu",
     "{question|strip}\nA. {choices.0}\nB. {choices.1}\nC. {choices.2}\nD. {choices.3}\nAnswer:",
     "=A =B =C =D", "answer", .metrics = ACC,
     .before = "The following are multiple choice questions (with answers) about "
               "{subject|words}.\n\n"},
    {"boolq", "{passage}\nQuestion: {question}?\nAnswer:", "=no =yes", "label", .metrics = ACC},
    {"sciq", "{support|lstrip}\n" QUESTION, "distractor1 distractor2 distractor3 correct_answer",
     "=3", .metrics = ACC | ACC_NORM},
};
enum { TASKS = sizeof tasks / sizeof *tasks };

ShortText task_names(void) {
  ShortText names = {""};
  for (int i = 0; i < TASKS; i++) short_append(&names, "%s, ", tasks[i].name);
  short_append(&names, CORE_TASK);
  return names;
}

static const Task *find_task(const char *name, size_t bytes) {
  for (int i = 0; i < TASKS; i++)
    if (span_is((Span){name, bytes}, tasks[i].name)) return &tasks[i];
  return NULL;
}

const char *task_of_file(const char *file) {
  const size_t bytes = strcspn(file, ".-");
  const Task *task = find_task(file, bytes);
  return task ? task->name : span_is((Span){file, bytes}, CORE_TASK) ? CORE_TASK : NULL;
}

// ---- Documents

int document_field(const cJSON *document, const char *path, const cJSON **field, Error *err) {
  const cJSON *at = document;
  for (const char *name = path; at && *name;) {
    const size_t bytes = strcspn(name, ".");
    char *part = xasprintf("%.*s", (int)bytes, name);
    at = cJSON_IsArray(at) ? cJSON_GetArrayItem(at, atoi(part))
                           : cJSON_GetObjectItemCaseSensitive(at, part);
    free(part);
    name += bytes + (name[bytes] == '.');
  }
  *field = at;
  return at ? 0 : error_set(err, "it has no \"%s\"", path);
}

int document_text(const cJSON *document, const char *path, const char **text, Error *err) {
  const cJSON *field;
  if (document_field(document, path, &field, err) != 0) return -1;
  *text = field->valuestring;
  if (cJSON_IsString(field)) return 0;
  return error_set(err, "\"%s\" is %s, but must be a text", path, json_shown(field).text);
}

static int read_line(const char *path, char *line, size_t bytes, int64_t number, DocumentRead read,
                     void *context, Error *err) {
  line[bytes] = '\0';
  cJSON *document = json_parse("the line", line, bytes, err);
  int status = document ? 0 : -1;
  if (status == 0 && !cJSON_IsObject(document))
    status = error_set(err, "it is %s, but must be a JSON object", json_shown(document).text);
  if (status == 0) status = read(context, document, number, err);
  cJSON_Delete(document);
  return status == 0 ? 0 : error_prefix(err, "'%s', line %lld", path, (long long)number);
}

// The rows of a Parquet file as JSON lines.
static int read_parquet(const char *path, char **lines, size_t *bytes, Error *err) {
  enum { PIECE = 1 << 20 };
  Text text = {0};
  ssize_t n = 1;
  ParquetReader *reader = parquet_open(&path, 1, true, NULL, err);
  while (reader && n > 0) {
    n = parquet_read(reader, text_room(&text, PIECE + 1), PIECE, err);
    if (n > 0) text.bytes += (size_t)n;
  }
  parquet_close(reader);
  *lines = text.data;
  *bytes = text.bytes;
  if (reader && n == 0) return 0;
  free(text.data);
  return -1;
}

static int read_file(const char *path, char **text, size_t *bytes, Error *err) {
  const size_t most = (size_t)4 << 30;
  if (name_ends_with(path, ".parquet")) return read_parquet(path, text, bytes, err);
  if (file_read(path, most, text, bytes, err) != 0) return -1;
  if (file_refuse_pointer(path, *text, *bytes, err) == 0 &&
      file_refuse_packed(path, *text, *bytes, err) == 0)
    return 0;
  free(*text);
  return -1;
}

int documents_read(const char *path, DocumentRead read, void *context, Error *err) {
  char *text, *end;
  size_t bytes;
  int status = read_file(path, &text, &bytes, err);
  if (status != 0) return -1;
  int64_t number = 1;
  for (char *line = text; status == 0 && line < text + bytes; line = end + 1, number++) {
    const size_t left = (size_t)(text + bytes - line);
    if (!(end = memchr(line, '\n', left))) end = line + left;
    const Span stripped = text_strip((Span){line, (size_t)(end - line)}, true, true);
    if (stripped.bytes > 0)
      status = read_line(path, line + (stripped.text - line), stripped.bytes, number, read, context,
                         err);
  }
  free(text);
  return status;
}

// ---- Texts, as Python has them

static bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

Span text_strip(Span text, bool left, bool right) {
  const utf8proc_uint8_t *const at = (const utf8proc_uint8_t *)text.text;
  size_t begin = 0, end = text.bytes;
  int32_t c;
  while (left && begin < end) {
    const utf8proc_ssize_t n = utf8proc_iterate(at + begin, (utf8proc_ssize_t)(end - begin), &c);
    if (n <= 0 || !is_space(c)) break;
    begin += (size_t)n;
  }
  while (right && begin < end) {
    size_t first = end - 1;
    while (first > begin && (at[first] & 0xc0) == 0x80) first--;
    const utf8proc_ssize_t n = utf8proc_iterate(at + first, (utf8proc_ssize_t)(end - first), &c);
    if (n <= 0 || first + (size_t)n != end || !is_space(c)) break;
    end = first;
  }
  return (Span){text.text + begin, end - begin};
}

// A character for a character: Python makes two of the few such as ß.
static void append_capitalized(Text *to, Span text) {
  for (size_t i = 0; i < text.bytes;) {
    utf8proc_uint8_t small[4];
    int32_t c;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text.text + i,
                                                (utf8proc_ssize_t)(text.bytes - i), &c);
    if (n > 0) {
      c = i == 0 ? utf8proc_totitle(c) : utf8proc_tolower(c);
      text_append(to, (const char *)small, (size_t)utf8proc_encode_char(c, small));
    } else {
      text_append(to, text.text + i, 1);
    }
    i += n > 0 ? (size_t)n : 1;
  }
}

static void replace(Text *text, const char *old, const char *new) {
  Text made = {0};
  const size_t bytes = strlen(old);
  for (size_t i = 0; i < text->bytes;) {
    const bool here = text->bytes - i >= bytes && memcmp(text->data + i, old, bytes) == 0;
    text_append(&made, here ? new : text->data + i, here ? strlen(new) : 1);
    i += here ? bytes : 1;
  }
  free(text->data);
  *text = made;
}

// Without what stands in [brackets], on one line.
static void remove_brackets(Text *text) {
  size_t used = 0;
  for (size_t i = 0; i < text->bytes;) {
    size_t end = i;
    while (text->data[i] == '[' && end < text->bytes && text->data[end] != ']' &&
           text->data[end] != '\n')
      end++;
    if (text->data[i] == '[' && end < text->bytes && text->data[end] == ']')
      i = end + 1;
    else
      text->data[used++] = text->data[i++];
  }
  text->bytes = used;
}

// HellaSwag's texts from WikiHow have marks of their source in them.
static void tidy(Text *text) {
  const Span stripped = text_strip((Span){text->data, text->bytes}, true, true);
  Text made = {0};
  text_append(&made, stripped.text, stripped.bytes);
  free(text->data);
  *text = made;
  replace(text, " [title]", ". ");
  remove_brackets(text);
  replace(text, "  ", " ");
}

// NUL-terminated; the text is of no use afterwards.
static char *take_text(Text *text) {
  *text_room(text, 1) = '\0';
  return text->data;
}

static int64_t characters(const char *text) {
  int64_t count = 0;
  for (; *text; text++) count += ((unsigned char)*text & 0xc0) != 0x80;
  return count;
}

// ---- Templates

static int append_field(Text *to, const cJSON *document, const char *name, Error *err) {
  const size_t bytes = strcspn(name, "|}");
  const char *text, *how = name + bytes + (name[bytes] == '|');
  char *path = xasprintf("%.*s", (int)bytes, name);
  const int status = document_text(document, path, &text, err);
  free(path);
  if (status != 0) return -1;
  if (strncmp(how, "capitalize", 10) == 0) {
    append_capitalized(to, span_of(text));
    return 0;
  }
  const bool right = strncmp(how, "strip", 5) == 0, left = right || strncmp(how, "lstrip", 6) == 0;
  const Span span = text_strip(span_of(text), left, right);
  text_append(to, span.text, span.bytes);
  for (size_t i = 0; strncmp(how, "words", 5) == 0 && i < span.bytes; i++)
    if (span.text[i] == '_') to->data[to->bytes - span.bytes + i] = ' ';
  return 0;
}

static int render(Text *to, const cJSON *document, const char *template, Error *err) {
  while (*template) {
    const size_t plain = strcspn(template, "{");
    text_append(to, template, plain);
    template += plain;
    if (*template == '\0') break;
    if (append_field(to, document, template + 1, err) != 0) return -1;
    template += strcspn(template, "}") + 1;
  }
  return 0;
}

// ---- Questions

void questions_free(QuestionSet *set) {
  for (int64_t q = 0; q < set->count; q++) {
    const Question *question = &set->list[q];
    for (int i = question->count; i-- > 0;) {
      const Choice *c = &question->choices[i];
      free(c->continuation);
      if (i == 0 || c->context != question->choices->context) free(c->context);
    }
    free(question->choices);
  }
  free(set->list);
  free(set->task);
  free(set->path);
  *set = (QuestionSet){0};
}

void questions_sample(QuestionSet *set, int64_t most) {
  const int64_t all = set->count;
  if (most <= 0 || most >= all) return;
  QuestionSet rest = {.list = xcalloc((size_t)(all - most), sizeof *rest.list)};
  int64_t kept = 0;
  for (int64_t i = 0; i < all; i++) {
    if (kept < most && i == (2 * kept + 1) * all / (2 * most))
      set->list[kept++] = set->list[i];
    else
      rest.list[rest.count++] = set->list[i];
  }
  set->count = kept;
  questions_free(&rest);
}

Question *questions_add(QuestionSet *set, int count, int64_t line) {
  LIST_ROOM(set->list, set->count, set->capacity);
  Question *q = &set->list[set->count++];
  *q = (Question){
      .choices = xcalloc((size_t)count, sizeof *q->choices), .count = count, .line = line};
  return q;
}

// ---- A document's question

enum { MOST_CHOICES = 26 };

static void add_choice(Question *q, const Task *task, const char *text) {
  Text choice = {0};
  text_append(&choice, text, strlen(text));
  if (task->shape == WIKIHOW) tidy(&choice);
  const char *tidied = take_text(&choice);
  q->choices[q->count++] = (Choice){NULL, xasprintf(" %s", tidied), characters(tidied)};
  free(choice.data);
}

static int add_listed(Question *q, const Task *task, const cJSON *document, const char *path,
                      Error *err) {
  const cJSON *field, *item;
  if (document_field(document, path, &field, err) != 0) return -1;
  const int count = cJSON_IsArray(field) ? cJSON_GetArraySize(field) : 0;
  if (count < 1 || count > MOST_CHOICES)
    return error_set(err, "\"%s\" is %s, but must be a list of 1 to %d texts", path,
                     json_shown(field).text, MOST_CHOICES);
  cJSON_ArrayForEach(item, field) {
    if (!cJSON_IsString(item))
      return error_set(err, "\"%s\" holds %s, but must hold texts", path, json_shown(item).text);
    add_choice(q, task, item->valuestring);
  }
  return 0;
}

// As task->choices says.
static int add_choices(Question *q, const Task *task, const cJSON *document, Error *err) {
  int status = 0;
  const char *next = task->choices, *text;
  for (size_t bytes; *next && status == 0; next += bytes + (next[bytes] == ' ')) {
    bytes = strcspn(next, " ");
    const bool list = next[bytes - 1] == ']';
    char *word = xasprintf("%.*s", (int)(list ? bytes - 2 : bytes), next);
    if (list)
      status = add_listed(q, task, document, word, err);
    else if (*word == '=')
      add_choice(q, task, word + 1);
    else if ((status = document_text(document, word, &text, err)) == 0)
      add_choice(q, task, text);
    free(word);
  }
  return status;
}

// The text of a label: a string without white space around it, or a number.
static char *label_text(const cJSON *label) {
  if (cJSON_IsBool(label)) return xstrdup(cJSON_IsTrue(label) ? "1" : "0");
  if (cJSON_IsNumber(label)) return xstrdup(number_text(label->valuedouble).text);
  const Span text =
      text_strip(span_of(cJSON_IsString(label) ? label->valuestring : ""), true, true);
  return xasprintf("%.*s", (int)text.bytes, text.text);
}

// Which of the labels, or without them, of the choices it names. -1: none.
static int find_choice(const Task *task, const char *label, const cJSON *labels,
                       const Question *q) {
  char *end;
  const long number = strtol(label, &end, 10) - task->first;
  if (!labels && *label && *end == '\0') return number < q->count ? (int)number : -1;
  for (int i = 0; i < q->count; i++) {
    char *other = labels ? label_text(cJSON_GetArrayItem(labels, i))
                         : xstrdup(q->choices[i].continuation + 1);
    const bool same = strcmp(label, other) == 0;
    free(other);
    if (same) return i;
  }
  return -1;
}

static int find_gold(Question *q, const Task *task, const cJSON *document, Error *err) {
  const cJSON *field, *labels = NULL;
  q->gold = atoi(task->gold + 1);
  if (*task->gold == '=') return 0;
  if (document_field(document, task->gold, &field, err) != 0 ||
      (task->labels && document_field(document, task->labels, &labels, err) != 0))
    return -1;
  char *label = label_text(field);
  q->gold = find_choice(task, label, labels, q);
  free(label);
  if (q->gold >= 0) return 0;
  return error_set(err, "\"%s\" is %s, which is none of its %d choices", task->gold,
                   json_shown(field).text, q->count);
}

// A choice ends a context; what follows the blank is to be predicted behind each.
static int fill_blank(Question *q, const Text *context, Error *err) {
  const char *blank = memchr(context->data, '_', context->bytes);
  if (!blank) return error_set(err, "its sentence has no _ for the choices");
  const size_t before = (size_t)(blank - context->data);
  const Span rest = text_strip((Span){blank + 1, context->bytes - before - 1}, true, true);
  for (Choice *c = q->choices; c < q->choices + q->count; c++) {
    c->context = xasprintf("%.*s%s", (int)before, context->data, c->continuation + 1);
    free(c->continuation);
    c->continuation = xasprintf(" %.*s", (int)rest.bytes, rest.text);
  }
  return 0;
}

static void cut_last_word(Question *q, const Task *task, const Text *context) {
  size_t word = context->bytes;
  while (word > 0 && context->data[word - 1] != ' ') word--;
  char *text = xasprintf("%.*s", (int)(context->bytes - word), context->data + word);
  add_choice(q, task, text);
  free(text);
  q->choices->context = xasprintf("%.*s", word > 0 ? (int)word - 1 : 0, context->data);
}

// before: in front of its context.
static int add_question(QuestionSet *set, const Task *task, const cJSON *document, Span before,
                        int64_t line, Error *err) {
  Question *q = questions_add(set, MOST_CHOICES, line);
  Text context = {0}, whole = {0};
  text_room(&context, 1);
  q->count = 0;
  int status = render(&context, document, task->context, err) ||
                       add_choices(q, task, document, err) || find_gold(q, task, document, err)
                   ? -1
                   : 0;
  if (task->shape == WIKIHOW) tidy(&context);
  text_append(&whole, before.text, before.bytes);
  text_append(&whole, context.data, context.bytes);
  take_text(&whole);
  if (status == 0 && task->shape == BLANK) status = fill_blank(q, &whole, err);
  if (status == 0 && task->shape == LAST_WORD) cut_last_word(q, task, &whole);
  const bool shared = task->shape == PLAIN || task->shape == WIKIHOW;
  for (int i = 0; i < q->count && shared; i++) q->choices[i].context = whole.data;
  if (!shared || q->count == 0) free(whole.data);
  free(context.data);
  return status;
}

// ---- Files

// A question with its answer, to stand in front of others about its subject.
typedef struct Example {
  char *subject, *text;
} Example;

typedef struct Reading {
  const Task *task;
  QuestionSet *set;
  const char *examples_path; // NULL: none
  Example *examples;         // [count], in the order of the file
  int64_t count, capacity;
} Reading;

static int read_example(void *reading, const cJSON *document, int64_t line, Error *err) {
  Reading *r = reading;
  QuestionSet one = {0};
  const char *subject;
  int status = document_text(document, "subject", &subject, err);
  if (status == 0) status = add_question(&one, r->task, document, span_of(""), line, err);
  if (status == 0) {
    const Choice *c = &one.list->choices[one.list->gold];
    LIST_ROOM(r->examples, r->count, r->capacity);
    r->examples[r->count++] =
        (Example){xstrdup(subject), xasprintf("%s%s\n\n", c->context, c->continuation)};
  }
  questions_free(&one);
  return status;
}

static int append_examples(Text *to, const Reading *r, const cJSON *document, Error *err) {
  enum { EXAMPLES = 5 };
  const char *subject;
  int used = 0;
  if (document_text(document, "subject", &subject, err) != 0) return -1;
  for (int64_t i = 0; i < r->count && used < EXAMPLES; i++) {
    if (strcmp(r->examples[i].subject, subject) != 0) continue;
    text_append(to, r->examples[i].text, strlen(r->examples[i].text));
    used++;
  }
  if (used == EXAMPLES) return 0;
  return error_set(err, "'%s' has %d questions about \"%s\", but %d are needed", r->examples_path,
                   used, subject, EXAMPLES);
}

static int read_question(void *reading, const cJSON *document, int64_t line, Error *err) {
  const Reading *r = reading;
  Text before = {0};
  text_room(&before, 1);
  int status = render(&before, document, r->task->before ? r->task->before : "", err);
  if (status == 0 && r->examples_path) status = append_examples(&before, r, document, err);
  if (status == 0)
    status = add_question(r->set, r->task, document, (Span){before.data, before.bytes}, line, err);
  free(before.data);
  return status;
}

int questions_read(QuestionSet *set, const char *task, const char *path, const char *examples,
                   Error *err) {
  Reading r = {.task = find_task(task, strlen(task)), .set = set, .examples_path = examples};
  *set = (QuestionSet){0};
  if (!r.task)
    return error_set(err, "there is no task '%s'; there are %s", task, task_names().text);
  if (examples && !r.task->before)
    return error_set(err, "%s takes no file of examples, such as '%s'; only mmlu does", task,
                     examples);
  set->task = xstrdup(r.task->name);
  set->metrics = r.task->metrics;
  set->path = xstrdup(path);
  int status = examples ? documents_read(examples, read_example, &r, err) : 0;
  if (status == 0) status = documents_read(path, read_question, &r, err);
  if (status == 0 && set->count == 0) status = error_set(err, "'%s' has no questions", path);
  while (r.count > 0) {
    free(r.examples[--r.count].subject);
    free(r.examples[r.count].text);
  }
  free(r.examples);
  return status;
}
