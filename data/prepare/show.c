#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/documents.h"
#include "data/prepare/run.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"

// ---- Printing. A document ends where the file beside the tokens says so; a file's last one may
// continue in the next file. Without such a file it begins with BOS or ends with EOS

typedef struct Printer {
  Tokenizer *tokenizer;
  const TokenizerFacts *facts;
  Decoder *decoder;
  bool open;           // a document is being printed
  bool ends;           // of documents are known
  bool masked;         // [[ ]] stand around tokens that count
  bool marking;        // between these
  int64_t shown, most; // documents
  int64_t tokens;      // of the open one
  int32_t last;        // of its ids
} Printer;

static void print_waiting(Printer *p) {
  const char *text;
  const size_t bytes = decoder_end(p->decoder, &text);
  fwrite(text, 1, bytes, stdout);
}

static void print_mark(Printer *p, bool counts) {
  if (counts != p->marking) fputs(counts ? "[[" : "]]", stdout);
  p->marking = counts;
}

static void end_document(Printer *p) {
  if (!p->open) return;
  print_waiting(p);
  print_mark(p, false);
  printf("\n--- end of document %" PRId64 ", %" PRId64 " tokens ---\n", ++p->shown, p->tokens);
  p->open = false;
  p->tokens = 0;
}

static void print_text(Printer *p, int32_t id) {
  const char *text = tokenizer_special_text(p->tokenizer, id);
  if (text) {
    print_waiting(p);
    fputs(text, stdout);
    return;
  }
  const size_t bytes = decoder_next(p->decoder, id, &text);
  fwrite(text, 1, bytes, stdout);
}

// first: of a file, where a document of the file before may be open.
static void print_token(Printer *p, int32_t id, bool first, bool counts) {
  const bool may_end = !p->ends && p->open;
  if (id == p->facts->bos && p->open && (first || !p->ends)) end_document(p);
  if (p->masked) print_mark(p, counts);
  print_text(p, id);
  p->open = true;
  p->tokens++;
  p->last = id;
  if (id == p->facts->eos && id != p->facts->bos && may_end) end_document(p);
}

// Tokens [first, first + count), of one document where that is known.
static int print_tokens(Printer *p, const TokenFile *file, int64_t first, int64_t count,
                        Error *err) {
  enum { CHUNK = 4096 };
  int32_t ids[CHUNK];
  for (int64_t at = first, end = first + count; at < end && p->shown < p->most; at += CHUNK) {
    const int64_t n = end - at < CHUNK ? end - at : CHUNK;
    if (tokens_read(file, at, n, p->facts->vocab_size, ids, err) != 0) return -1;
    for (int64_t i = 0; i < n && p->shown < p->most; i++)
      print_token(p, ids[i], at + i == 0, documents_counts(&file->documents, at + i));
  }
  return 0;
}

static int print_documents(Printer *p, const TokenFile *file, Error *err) {
  const Documents *documents = &file->documents;
  uint32_t begin = 0;
  for (int64_t i = 0; i < documents->count && p->shown < p->most; begin = documents->ends[i++]) {
    if (print_tokens(p, file, begin, documents->ends[i] - begin, err) != 0) return -1;
    const bool continues =
        i + 1 == documents->count && (p->facts->eos != NO_TOKEN || p->facts->bos != NO_TOKEN);
    if (!continues || p->last == p->facts->eos) end_document(p);
  }
  return 0;
}

static int print_file(Printer *p, const TokenFile *file, Error *err) {
  p->ends = file->documents.path != NULL;
  p->masked = file->documents.mask != NULL;
  return p->ends ? print_documents(p, file, err) : print_tokens(p, file, 0, file->count, err);
}

// ---- Files

// The tokenizer of this name, or with NULL the one that lies with the token file.
static int open_tokenizer(Printer *p, const char *name, const TokenFile *file, Error *err) {
  if (!name && !file->tokenizer)
    return error_set(err, "'%s' does not say which tokenizer made it: name it with --tokenizer",
                     file->path);
  const PathText folder = path_parent(file->path);
  if (!name) name = folder.text;
  p->tokenizer = tokenizer_open(name, err);
  if (!p->tokenizer) return -1;
  p->facts = tokenizer_facts(p->tokenizer);
  p->decoder = decoder_open(p->tokenizer);
  if (!file->tokenizer || p->facts->fingerprint == file->tokenizer) return 0;
  return error_set(err,
                   "'%s' was made by another tokenizer than '%s': name that one with --tokenizer",
                   file->path, name);
}

static int show_file(Printer *p, const char *path, const char *tokenizer, Error *err) {
  TokenFile file;
  if (tokens_open(&file, path, err) != 0) return -1;
  const int status = (!p->tokenizer && open_tokenizer(p, tokenizer, &file, err) != 0) ||
                             tokens_check(&file, err) != 0
                         ? -1
                         : print_file(p, &file, err);
  tokens_close(&file);
  return status;
}

int prepare_show(const char *path, const char *tokenizer, int64_t documents, Error *err) {
  const bool all = path_is_directory(path);
  Printer p = {.most = documents};
  int status = 0;
  for (int i = 0; status == 0 && p.shown < p.most && (all || i == 0); i++) {
    const PathText file = all ? path_text("%s/train-%05d.bin", path, i) : path_text("%s", path);
    if (i > 0 && !path_exists(file.text)) break;
    status = show_file(&p, file.text, tokenizer, err);
  }
  if (status == 0) end_document(&p);
  decoder_close(p.decoder);
  tokenizer_close(p.tokenizer);
  return status;
}
