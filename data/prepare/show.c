#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "data/prepare/run.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"

// ---- Printing. A document begins with the first id of text, and ends with one that stands around
// documents

typedef struct Printer {
  Decoder *decoder;
  int32_t begin, end;
  bool open;           // a document is being printed
  int64_t shown, most; // documents
  int64_t tokens;      // of the open one
  int64_t vocab_size;
} Printer;

static void end_document(Printer *p) {
  if (!p->open) return;
  const char *text;
  const size_t bytes = decoder_end(p->decoder, &text);
  fwrite(text, 1, bytes, stdout);
  printf("\n--- end of document %" PRId64 ", %" PRId64 " tokens ---\n", ++p->shown, p->tokens);
  p->open = false;
  p->tokens = 0;
}

static void print_token(Printer *p, int32_t id) {
  if (id == p->begin || id == p->end) {
    end_document(p);
    return;
  }
  const char *text;
  const size_t bytes = decoder_next(p->decoder, id, &text);
  fwrite(text, 1, bytes, stdout);
  p->open = true;
  p->tokens++;
}

static int print_file(Printer *p, const TokenFile *file, Error *err) {
  enum { CHUNK = 4096 };
  int32_t ids[CHUNK];
  for (int64_t at = 0; at < file->count && p->shown < p->most; at += CHUNK) {
    const int64_t n = file->count - at < CHUNK ? file->count - at : CHUNK;
    if (tokens_read(file, at, n, p->vocab_size, ids, err) != 0) return -1;
    for (int64_t i = 0; i < n && p->shown < p->most; i++) print_token(p, ids[i]);
  }
  return 0;
}

// ---- Files

static Tokenizer *open_tokenizer(const char *name, const char *folder, const TokenFile *file,
                                 Error *err) {
  if (!name && !file->tokenizer) {
    error_set(err, "'%s' does not say which tokenizer made it: name it with --tokenizer",
              file->path);
    return NULL;
  }
  Tokenizer *t = tokenizer_open(name ? name : folder, err);
  if (!t || !file->tokenizer || tokenizer_facts(t)->fingerprint == file->tokenizer) return t;
  error_set(err, "'%s' was made by another tokenizer than '%s': name that one with --tokenizer",
            file->path, name ? name : folder);
  tokenizer_close(t);
  return NULL;
}

// Prints from this file on, and from those of the folder that follow it.
static int print_files(const char *folder, const char *first, Printer *p, bool all, Error *err) {
  PathText path = path_text("%s", first);
  for (int i = 0; p->shown < p->most; i++) {
    if (all) path = path_text("%s/train-%05d.bin", folder, i);
    if (i > 0 && (!all || !path_exists(path.text))) break;
    TokenFile file;
    if (tokens_open(&file, path.text, err) != 0) return -1;
    const int status = print_file(p, &file, err);
    tokens_close(&file);
    if (status != 0) return -1;
  }
  end_document(p);
  return 0;
}

int prepare_show(const char *path, const char *tokenizer, int64_t documents, Error *err) {
  const bool all = path_is_directory(path);
  const PathText folder = all ? path_text("%s", path) : path_parent(path);
  const PathText first = all ? path_text("%s/train-00000.bin", path) : path_text("%s", path);
  TokenFile file;
  if (tokens_open(&file, first.text, err) != 0) return -1;
  Tokenizer *t = open_tokenizer(tokenizer, folder.text, &file, err);
  TokenCheck check = {0};
  int status = t ? 1 : -1;
  while (status > 0) status = tokens_check(&file, tokenizer_facts(t)->vocab_size, &check, err);
  token_check_end(&check);
  tokens_close(&file);
  if (status == 0) {
    Printer p = {.decoder = decoder_open(t),
                 .begin = tokenizer_facts(t)->bos,
                 .end = tokenizer_facts(t)->eos,
                 .vocab_size = tokenizer_facts(t)->vocab_size,
                 .most = documents};
    status = print_files(folder.text, first.text, &p, all, err);
    decoder_close(p.decoder);
  }
  tokenizer_close(t);
  return status;
}
