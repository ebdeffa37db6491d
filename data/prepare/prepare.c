// ./prepare: text -> token files for training and validation, or a tokenizer.
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/os.h"
#include "data/chat/template.h"
#include "data/prepare/encoding.h"
#include "data/prepare/run.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"

static const char HELP[] =
    "usage: ./prepare --out FOLDER [options] PATH...      text -> token files\n"
    "       ./prepare --chat --out FOLDER --tokenizer T PATH...   conversations -> token files\n"
    "       ./prepare --train-tokenizer N --out FOLDER PATH...\n"
    "       ./prepare --show N FOLDER_OR_TOKEN_FILE\n"
    "\n"
    "A PATH is a text file (one document), a file of JSON lines (.jsonl, .ndjson, .json; each an\n"
    "object whose \"text\" is a document), a folder of both, with the folders in it, or - for\n"
    "standard input. All may be compressed: .gz, .zst. ./train takes the token files. With --chat\n"
    "a line is {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}, a conversation:\n"
    "the loss counts the assistant's words.\n"
    "\n"
    "  --out FOLDER         where train-00000.bin, val-00000.bin, ..., the tokenizer and\n"
    "                       dataset.json go\n"
    "  --force              replace the dataset that is there\n"
    "  --tokenizer T        a tokenizer.json, or a folder with one, such as a run's (bytes: a\n"
    "                       token a byte)\n"
    "  --template NAME      llama3 or chatml: how conversations are written (the tokenizer's "
    "own).\n"
    "                       With --train-tokenizer: its markers become special tokens\n"
    "  --train-tokenizer N  train one of N ids on the text, into FOLDER\n"
    "  --pattern REGEX      cuts the text that a tokenizer is trained on (Llama 3's)\n"
    "  --field NAME         of JSON lines; a.b is b inside of a (text)\n"
    "  --jsonl              every file is JSON lines, whatever its name\n"
    "  --text               every file is plain text, also JSON\n"
    "  --skip-bad           pass over lines without a document, and count them\n"
    "  --separator TEXT     stands between documents in a text file, as <|endoftext|> does\n"
    "  --val PATH...        all paths behind it are for validation, and no part of the others\n"
    "  --val-fraction F     part kept for validation, from 0 (none) to below 1 (0.1)\n"
    "  --seed N             chooses the documents for validation (0)\n"
    "  --shard-tokens N     tokens in a file at most (1000000000)\n"
    "  --threads N          that encode (one for each core)\n"
    "  --show N             print the first N documents as text; of conversations what the loss\n"
    "                       counts in [[ ]]\n"
    "  --help               this text\n"
    "\n"
    "Of fewer than 100 documents the tail of each is kept for validation; of more, whole ones.\n";

enum { MAX_THREADS = 1024, MAX_NAME_BYTES = 256 };

typedef struct Command {
  PrepareOptions prepare;
  PathText out;             // as given, without slashes at its end
  const char *pattern;      // of the tokenizer to train; NULL: Llama 3's
  int64_t show, vocab_size; // 0: not asked for
  bool help;
} Command;

// The paths move to the front of argv.
static int parse_arguments(Command *c, int argc, char **argv, Error *err) {
  PrepareOptions *p = &c->prepare;
  const Option options[] = {
      {.name = "--out", .needs = "a folder", .text = &p->out},
      {.name = "--force", .flag = &p->force},
      {.name = "--tokenizer", .needs = "a tokenizer.json or a folder", .text = &p->tokenizer},
      {.name = "--train-tokenizer", .low = 1, .high = INT32_MAX, .whole = &c->vocab_size},
      {.name = "--chat", .flag = &p->chat},
      {.name = "--template", .needs = "llama3 or chatml", .text = &p->template},
      {.name = "--pattern", .needs = "a regular expression", .text = &c->pattern},
      {.name = "--field", .needs = "the name of a field", .text = &p->field},
      {.name = "--jsonl", .flag = &p->jsonl},
      {.name = "--text", .flag = &p->text},
      {.name = "--skip-bad", .flag = &p->skip_bad},
      {.name = "--separator", .needs = "a text, such as '<|endoftext|>'", .text = &p->separator},
      {.name = "--val-fraction", .high = 0.999999, .number = &p->val_fraction},
      {.name = "--seed", .high = JSON_MAX_INTEGER, .whole = &p->seed},
      {.name = "--shard-tokens", .low = 1, .high = TOKENS_MAX_COUNT, .whole = &p->shard_tokens},
      {.name = "--threads", .low = 1, .high = MAX_THREADS, .whole = &p->threads},
      {.name = "--show", .low = 1, .high = JSON_MAX_INTEGER, .whole = &c->show},
      {.name = "--help", .flag = &c->help}};
  bool only_paths = false, val = false;
  p->paths = argv;
  p->val_paths = xcalloc((size_t)argc, sizeof *p->val_paths);
  for (int i = 1; i < argc; i++) {
    const bool path = only_paths || argv[i][0] != '-' || !argv[i][1];
    if (path && val)
      p->val_paths[p->val_count++] = argv[i];
    else if (path)
      p->paths[p->path_count++] = argv[i];
    else if (val && p->val_count == 0)
      break;
    else if (strncmp(argv[i], "--val=", 6) == 0)
      p->val_paths[p->val_count++] = argv[i] + 6;
    else if ((val = strcmp(argv[i], "--val") == 0))
      continue;
    else if (strcmp(argv[i], "--") == 0)
      only_paths = true;
    else if (strcmp(argv[i], "-h") == 0)
      c->help = true;
    else if (option_read(options, sizeof options / sizeof *options, "./prepare", argc, argv, &i,
                         err) != 0)
      return -1;
  }
  return val && p->val_count == 0 ? error_set(err, "--val needs files or folders behind it") : 0;
}

static int check_text(const char *name, const char *value, Error *err) {
  if (!value || (*value && strlen(value) <= MAX_NAME_BYTES)) return 0;
  return error_set(err, "%s needs 1 to %d bytes, not %zu", name, MAX_NAME_BYTES, strlen(value));
}

// Options that contradict each other, or have nothing to act on.
static int check_format(const PrepareOptions *p, Error *err) {
  const char *lines = p->jsonl ? "--jsonl" : p->field ? "--field" : "--skip-bad";
  if (p->text && (p->jsonl || p->field || p->skip_bad))
    return error_set(err, "--text takes no JSON lines: leave it or %s out", lines);
  if (p->jsonl && p->separator)
    return error_set(err, "--separator stands in text, not in JSON lines: leave it or --jsonl out");
  const char *idle = p->val_fraction >= 0 ? "--val-fraction" : p->seed >= 0 ? "--seed" : NULL;
  if (p->val_count > 0 && idle)
    return error_set(err, "--val names what is for validation: leave %s out", idle);
  if (p->val_fraction == 0 && p->seed >= 0)
    return error_set(err, "--val-fraction 0 keeps nothing for validation: leave --seed out");
  return 0;
}

static int check_chat(const Command *c, Error *err) {
  const PrepareOptions *p = &c->prepare;
  const char *idle = p->field       ? "--field"
                     : p->separator ? "--separator"
                     : p->text      ? "--text"
                                    : NULL;
  if (p->chat && c->vocab_size > 0)
    return error_set(err, "--train-tokenizer reads text: leave --chat out");
  if (p->chat && idle)
    return error_set(err, "--chat reads the messages of each line: leave %s out", idle);
  if (p->template && !p->chat && c->vocab_size == 0)
    return error_set(err, "--template is for --chat or --train-tokenizer: add one of them");
  if (!p->template || template_named(p->template)) return 0;
  return error_set(err, "--template '%.100s' is none of the templates here: name " TEMPLATE_NAMES,
                   p->template);
}

// Token files and a tokenizer are made by two calls, and an option that one of them would pass by
// is a mistake.
static int check_aim(const Command *c, Error *err) {
  const PrepareOptions *p = &c->prepare;
  const char *idle = p->tokenizer           ? "--tokenizer"
                     : p->val_count > 0     ? "--val"
                     : p->val_fraction >= 0 ? "--val-fraction"
                     : p->seed >= 0         ? "--seed"
                     : p->shard_tokens > 0  ? "--shard-tokens"
                                            : NULL;
  if (c->vocab_size > 0 && idle)
    return error_set(err, "--train-tokenizer makes no token files: leave %s out", idle);
  if (c->vocab_size > 0 || !c->pattern) return check_chat(c, err);
  return error_set(err, "--pattern is for --train-tokenizer alone: leave it out");
}

static void fill_defaults(PrepareOptions *p) {
  if (!p->tokenizer) p->tokenizer = BYTES_NAME;
  if (p->val_fraction < 0) p->val_fraction = 0.1;
  if (p->seed < 0) p->seed = 0;
  if (p->shard_tokens == 0) p->shard_tokens = 1000000000;
}

static int check_arguments(Command *c, Error *err) {
  PrepareOptions *p = &c->prepare;
  if (p->path_count == 0 && p->val_count > 0)
    return error_set(err, "every path stands behind --val: put those to train on in front of it");
  if (p->path_count == 0)
    return error_set(err, "name the text files, folders or JSON lines to prepare, as in "
                          "'./prepare --out data/mine my.txt': --help says more");
  if (check_text("--field", p->field, err) != 0 ||
      check_text("--separator", p->separator, err) != 0)
    return -1;
  if (c->show > 0 && (p->path_count > 1 || p->out || c->vocab_size > 0))
    return error_set(err, "--show takes one folder or token file, and but --tokenizer no option");
  if (c->show > 0) return 0;
  if (check_aim(c, err) != 0 || check_format(p, err) != 0) return -1;
  if (!p->out || !*p->out)
    return error_set(err,
                     "--out is missing: it names the folder to write, as in './prepare --out "
                     "data/mine %.200s'",
                     p->paths[0]);
  size_t length = strlen(p->out);
  while (length > 1 && p->out[length - 1] == '/') length--;
  c->out = path_text("%.*s", (int)length, p->out);
  p->out = c->out.text;
  return 0;
}

static int train_tokenizer(const Command *c, Error *err) {
  const PrepareOptions *p = &c->prepare;
  const TokenizerJob job = {.out = p->out,
                            .vocab_size = c->vocab_size,
                            .pattern = c->pattern,
                            .template = p->template,
                            .threads = (int)p->threads,
                            .force = p->force};
  Corpus corpus = prepare_corpus(p);
  int status = prepare_tokenizer_check(&job, err);
  if (status == 0) status = prepare_gather(&corpus, p, err);
  signals_hold();
  if (status == 0) status = prepare_tokenizer(&corpus, &job, err);
  corpus_free(&corpus);
  return status;
}

static int run_command(Command *c, Error *err) {
  PrepareOptions *p = &c->prepare;
  if (c->help) {
    fputs(HELP, stdout);
    return 0;
  }
  if (check_arguments(c, err) != 0) return -1;
  if (c->show > 0) return prepare_show(p->paths[0], p->tokenizer, c->show, err);
  if (c->vocab_size > 0) return train_tokenizer(c, err);
  fill_defaults(p);
  return prepare_run(p, err);
}

typedef struct Call {
  Command command;
  int argc, status;
  char **argv;
  Error err;
} Call;

static void try_call(void *context) {
  Call *call = context;
  if (parse_arguments(&call->command, call->argc, call->argv, &call->err) == 0)
    call->status = run_command(&call->command, &call->err);
}

int main(int argc, char **argv) {
  Call call = {.argc = argc, .argv = argv, .status = -1};
  call.command.prepare = (PrepareOptions){.val_fraction = -1, .seed = -1}; // -1: not given
  call.command.prepare.threads = omp_get_num_procs();
  sigset_t before;
  streams_fill();
  sigprocmask(SIG_SETMASK, NULL, &before);
  if (stack_check(&call.err) == 0 && !memory_try(try_call, &call, &call.err))
    error_append(&call.err, "; " LESS_MEMORY);
  if (call.status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
    call.status = error_set(&call.err, "cannot write to standard output: %s", strerror(errno));
  if (call.status != 0) fprintf(stderr, "prepare: %s\n", call.err.text);
  free(call.command.prepare.val_paths);
  sigprocmask(SIG_SETMASK, &before, NULL); // a signal that was held back ends the program here
  return call.status == 0 ? 0 : 1;
}
