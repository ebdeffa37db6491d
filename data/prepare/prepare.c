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
    "object whose \"text\" is a document), a .parquet file (its column \"text\"; Python with\n"
    "pyarrow reads it), a folder of all these, with the folders in it, or - for standard input.\n"
    "Text and lines may be compressed: .gz, .zst. ./train takes the token files. With --chat\n"
    "a line is {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}, a conversation:\n"
    "the loss counts the assistant's words.\n"
    "\n"
    "  --out FOLDER         where train-00000.bin, val-00000.bin, ... and the tokenizer go\n"
    "  --force              replace the dataset that is there\n"
    "  --tokenizer T        a tokenizer.json, or a folder with one, such as a run's (bytes: a\n"
    "                       token a byte)\n"
    "  --template NAME      llama3 or chatml: how conversations are written (the tokenizer's "
    "own).\n"
    "                       With --train-tokenizer: its markers become special tokens\n"
    "  --train-tokenizer N  train one of N ids on the text, into FOLDER\n"
    "  --pattern REGEX      cuts the text that a tokenizer is trained on (Llama 3's)\n"
    "  --field NAME         of JSON lines, column of Parquet; a.b is b inside of a (text)\n"
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
  PathText out; // as given, without slashes at its end
  int64_t show; // 0: not asked for
  bool help;
  int argc, status;
  char **argv;
  Error err;
} Command;

// The paths move to the front of argv.
static int parse_arguments(Command *c, Error *err) {
  const int argc = c->argc;
  char **const argv = c->argv;
  PrepareOptions *p = &c->prepare;
  const Option options[] = {
      {.name = "--out", .needs = "a folder", .text = &p->out},
      {.name = "--force", .flag = &p->force},
      {.name = "--tokenizer", .needs = "a tokenizer.json or a folder", .text = &p->tokenizer},
      {.name = "--train-tokenizer", .low = 1, .high = INT32_MAX, .whole = &p->vocab_size},
      {.name = "--chat", .flag = &p->chat},
      {.name = "--template", .needs = "llama3 or chatml", .text = &p->template},
      {.name = "--pattern", .needs = "a regular expression", .text = &p->pattern},
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
static int check_options(const PrepareOptions *p, Error *err) {
  static const char no_files[] = "--train-tokenizer makes no token files";
  static const char no_lines[] = "--text takes no JSON lines";
  static const char messages[] = "--chat reads the messages of each line";
  static const char named[] = "--val names what is for validation";
  const bool trains = p->vocab_size > 0, fraction = p->val_fraction >= 0, seed = p->seed >= 0;
  const struct {
    bool wrong;
    const char *why, *option;
  } rules[] = {
      {trains && p->tokenizer, no_files, "--tokenizer"},
      {trains && p->val_count > 0, no_files, "--val"},
      {trains && fraction, no_files, "--val-fraction"},
      {trains && seed, no_files, "--seed"},
      {trains && p->shard_tokens > 0, no_files, "--shard-tokens"},
      {trains && p->chat, "--train-tokenizer reads text", "--chat"},
      {!trains && p->pattern, "--pattern is for --train-tokenizer alone", "it"},
      {p->chat && p->field, messages, "--field"},
      {p->chat && p->separator, messages, "--separator"},
      {p->chat && p->text, messages, "--text"},
      {p->text && p->jsonl, no_lines, "it or --jsonl"},
      {p->text && p->field, no_lines, "it or --field"},
      {p->text && p->skip_bad, no_lines, "it or --skip-bad"},
      {p->jsonl && p->separator, "--separator stands in text, not in JSON lines", "it or --jsonl"},
      {p->val_count > 0 && fraction, named, "--val-fraction"},
      {p->val_count > 0 && seed, named, "--seed"},
      {p->val_fraction == 0 && seed, "--val-fraction 0 keeps nothing for validation", "--seed"},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].wrong) return error_set(err, "%s: leave %s out", rules[i].why, rules[i].option);
  if (p->template && !p->chat && !trains)
    return error_set(err, "--template is for --chat or --train-tokenizer: add one of them");
  if (!p->template || template_named(p->template)) return 0;
  return error_set(err, "--template '%.100s' is none of the templates here: name " TEMPLATE_NAMES,
                   p->template);
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
  if (c->show > 0 && (p->path_count > 1 || p->out || p->vocab_size > 0))
    return error_set(err, "--show takes one folder or token file, and but --tokenizer no option");
  if (c->show > 0) return 0;
  if (check_options(p, err) != 0) return -1;
  if (!p->out || !*p->out)
    return error_set(err, "--out is missing: it names the folder to write, such as data/mine");
  size_t length = strlen(p->out);
  while (length > 1 && p->out[length - 1] == '/') length--;
  c->out = path_text("%.*s", (int)length, p->out);
  p->out = c->out.text;
  return 0;
}

static int run_command(Command *c, Error *err) {
  PrepareOptions *p = &c->prepare;
  if (c->help) {
    fputs(HELP, stdout);
    return 0;
  }
  if (check_arguments(c, err) != 0) return -1;
  if (c->show > 0) return prepare_show(p->paths[0], p->tokenizer, c->show, err);
  if (p->vocab_size > 0) return prepare_tokenizer(p, err);
  fill_defaults(p);
  return prepare_run(p, err);
}

static void try_command(void *command) {
  Command *c = command;
  if (parse_arguments(c, &c->err) == 0) c->status = run_command(c, &c->err);
}

int main(int argc, char **argv) {
  Command c = {.argc = argc, .argv = argv, .status = -1};
  // -1: not given
  c.prepare = (PrepareOptions){.val_fraction = -1, .seed = -1, .threads = omp_get_num_procs()};
  sigset_t before;
  streams_fill();
  sigprocmask(SIG_SETMASK, NULL, &before);
  if (!memory_try(try_command, &c, &c.err))
    error_append(&c.err, "; " LESS_MEMORY);
  if (c.status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
    c.status = error_set(&c.err, "cannot write to standard output: %s", strerror(errno));
  if (c.status != 0) fprintf(stderr, "prepare: %s\n", c.err.text);
  free(c.prepare.val_paths);
  sigprocmask(SIG_SETMASK, &before, NULL); // a signal that was held back ends the program here
  return c.status == 0 ? 0 : 1;
}
