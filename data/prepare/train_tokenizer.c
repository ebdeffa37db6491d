#include "data/prepare/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/command.h"
#include "base/os.h"
#include "data/chat/template.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/train.h"

// The folder that is to hold `out`, or out itself: one that is there.
static PathText standing_folder(const char *out) {
  PathText at = path_text("%s", out);
  while (!path_exists(at.text)) at = path_parent(at.text);
  return at;
}

static BpeTrainer *open_trainer(const PrepareOptions *o, Error *err) {
  BpeOptions options = {.vocab_size = o->vocab_size,
                        .pattern = o->pattern ? o->pattern : LLAMA3_PATTERN,
                        .threads = (int)o->threads};
  const ChatTemplate *t = o->template ? template_named(o->template) : NULL;
  if (t) {
    options.chat_template = t->text;
    options.markers[0] = t->open;
    options.markers[1] = t->close;
    options.markers[2] = t->middle;
  }
  BpeTrainer *trainer = bpe_trainer_open(&options, err);
  if (!trainer) error_prefix(err, "--train-tokenizer");
  return trainer;
}

static int check_folder(const PrepareOptions *o, Error *err) {
  const PathText file = path_text("%s/tokenizer.json", o->out), at = standing_folder(o->out),
                 jinja = path_text("%s/" CHAT_TEMPLATE_FILE, o->out);
  if (path_exists(file.text) && !o->force)
    return error_set(err, "'%s' exists: --force replaces it", file.text);
  if (path_exists(jinja.text))
    return error_set(err, "'%s' would become the new tokenizer's chat template: remove it",
                     jinja.text);
  if (!path_is_directory(at.text)) return error_set(err, "'%s' is not a folder", at.text);
  if (access(at.text, W_OK | X_OK) == 0) return 0;
  return error_set(err, "cannot write into '%s': %s", at.text, strerror(errno));
}

static int read_texts(BpeTrainer *trainer, const Corpus *corpus, BadLines *bad, Error *err) {
  Progress progress = progress_begin("MB", 1e6);
  CorpusReader reader;
  CorpusBlock block;
  corpus_open(&reader, corpus);
  int status;
  while ((status = corpus_next(&reader, &block, err)) > 0) {
    status = bpe_trainer_add(trainer, block.text, (size_t)block.bytes, err);
    if (status == 0) status = stream_interrupted(err);
    if (status != 0) break;
    progress_show(&progress, corpus_position(&reader), corpus->reads_stdin ? 0 : corpus->bytes,
                  (uint64_t)bpe_trainer_progress(trainer).bytes);
  }
  progress_end(&progress);
  *bad = reader.bad;
  corpus_close(&reader);
  return status;
}

static int make_tokens(BpeTrainer *trainer, Error *err) {
  enum { STEP = 16 };                             // tokens between two looks at signals
  int status = bpe_trainer_step(trainer, 0, err); // counts the rest, which takes a while
  Progress progress = progress_begin("MB", 1e6);
  while (status >= 0 && (status = bpe_trainer_step(trainer, STEP, err)) > 0) {
    if (stream_interrupted(err) != 0) return -1;
    const BpeProgress p = bpe_trainer_progress(trainer);
    progress_show(&progress, (uint64_t)p.tokens, (uint64_t)p.vocab_size, 0);
  }
  progress_end(&progress);
  return status;
}

static int save(const BpeTrainer *trainer, const char *out, Error *err) {
  const PathText stood = standing_folder(out);
  if (directory_create(out, err) == 0 && bpe_trainer_save(trainer, out, err) == 0) return 0;
  PathText at = path_text("%s", out);
  while (strcmp(at.text, stood.text) != 0 && rmdir(at.text) == 0) at = path_parent(at.text);
  return -1;
}

static void print_report(const BpeTrainer *trainer, const Corpus *corpus, const BadLines *bad,
                         const char *out) {
  const BpeProgress p = bpe_trainer_progress(trainer);
  prepare_print_input(corpus, bad);
  printf("trained    %" PRId64 " tokens on %.1f MB in %zu file%s (%" PRId64 " different words)\n",
         p.tokens, (double)p.bytes / 1e6, corpus->count, corpus->count == 1 ? "" : "s", p.words);
  printf("text       %.3f bytes a token\n",
         (double)p.bytes / (double)bpe_trainer_text_tokens(trainer));
  printf("tokenizer  %s/tokenizer.json\n", out);
  char *word = shell_word(out);
  printf("next       ./prepare --tokenizer %s --out FOLDER TEXT..., and \"vocab_size\": %" PRId64
         " in \"model\"\n",
         word, p.vocab_size);
  free(word);
}

// Signals are held back before the trainer starts its threads, which inherit that.
int prepare_tokenizer(const PrepareOptions *o, Error *err) {
  Corpus corpus = {0};
  BpeTrainer *trainer = NULL;
  BadLines bad;
  bool failed = check_folder(o, err) != 0 || prepare_gather(&corpus, o, err) != 0;
  signals_hold();
  if (!failed) failed = !(trainer = open_trainer(o, err));
  if (!failed)
    failed = read_texts(trainer, &corpus, &bad, err) != 0 || make_tokens(trainer, err) != 0 ||
             save(trainer, o->out, err) != 0;
  if (!failed) print_report(trainer, &corpus, &bad, o->out);
  bpe_trainer_close(trainer);
  corpus_free(&corpus);
  return failed ? -1 : 0;
}
