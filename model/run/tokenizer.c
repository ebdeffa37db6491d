// Which tokenizer a run has.
#include <inttypes.h>

#include "base/file.h"
#include "model/run/run.h"

// The tokenizer beside the token files in place of an equal one, where it has a chat template: that
// of the conversations in them. Where it has checksums, one that cannot be read is an error.
static int take_template(Tokenizer **tokenizer, const char *beside, Error *err) {
  if (!has_file(beside, TOKENIZER_FILE)) return 0;
  Tokenizer *theirs = tokenizer_open(beside, err);
  if (!theirs) return has_file(beside, CHECKSUMS_FILE) ? -1 : 0;
  if (tokenizer_facts(theirs)->chat_template &&
      tokenizer_facts(theirs)->fingerprint == tokenizer_facts(*tokenizer)->fingerprint) {
    tokenizer_close(*tokenizer);
    *tokenizer = theirs;
  } else {
    tokenizer_close(theirs);
  }
  return 0;
}

static int choose_tokenizer(Tokenizer **tokenizer, const Config *c, const TokenFile *file,
                            const char *from, Error *err) {
  const PathText beside = path_parent(file->path);
  const char *path = c->data.tokenizer[0] != '\0'                ? c->data.tokenizer
                     : has_file(beside.text, TOKENIZER_FILE)     ? beside.text
                     : from[0] && has_file(from, TOKENIZER_FILE) ? from
                                                                 : NULL;
  *tokenizer = tokenizer_open(path ? path : BYTES_NAME, err);
  if (!*tokenizer && path == from) return 0;
  if (!*tokenizer) return path == beside.text ? -1 : error_prefix(err, "data.tokenizer");
  const bool bytes = file->tokenizer == tokenizer_facts(*tokenizer)->fingerprint ||
                     (file->tokenizer == 0 && c->model.vocab_size == BYTE_VOCAB);
  const int status = path && path != beside.text ? take_template(tokenizer, beside.text, err) : 0;
  if (status == 0 && (path || bytes)) return 0;
  tokenizer_close(*tokenizer);
  *tokenizer = NULL;
  return status;
}

int check_token_files(const Loader *loader, const Tokenizer *tokenizer, Error *err) {
  const TokenizerFacts *facts = tokenizer ? tokenizer_facts(tokenizer) : NULL;
  for (const TokenFile *f = loader->files; f < loader->files + loader->file_count; f++) {
    if (f->tokenizer == 0 || (facts && f->tokenizer == facts->fingerprint)) continue;
    if (facts)
      return error_set(err,
                       "'%s' was made with another tokenizer than '%s': make it anew by ./prepare",
                       f->path, facts->name);
    return error_set(err, "the tokenizer of '%s' is not in its folder: put it there", f->path);
  }
  return 0;
}

// Fewer ids than the tokenizer's are fine as long as no file has the others: check_ids looks.
static int check_vocabulary(const Config *c, const Tokenizer *tokenizer, const char *from,
                            Error *err) {
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  const int64_t V = c->model.vocab_size, ids = facts->vocab_size;
  if (V <= ids + SPARE_TOKENS || c->data.tokenizer[0] != '\0') return 0;
  return error_set(err,
                   "model.vocab_size is %" PRId64 ", but the tokenizer '%s' has %" PRId64
                   " tokens: %stake the model's tokenizer, or name this one in data.tokenizer",
                   V, facts->name, ids, from[0] == '\0' ? "set it to that, " : "");
}

int run_tokenizer(Tokenizer **tokenizer, const Config *config, const Loader *train,
                  const Loader *val, const char *from, Error *err) {
  if (choose_tokenizer(tokenizer, config, &train->files[0], from, err) != 0) return -1;
  int status = check_token_files(train, *tokenizer, err);
  if (status == 0 && val) status = check_token_files(val, *tokenizer, err);
  if (status != 0) error_append(err, ", or name the files' own in data.tokenizer");
  if (status == 0 && *tokenizer) status = check_vocabulary(config, *tokenizer, from, err);
  if (status == 0) return 0;
  tokenizer_close(*tokenizer);
  *tokenizer = NULL;
  return -1;
}
