#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/tokenizer/tokenizer.h"

enum { FORMAT = 1 };

// Numbers of 64 bits are hexadecimal text: JSON's are exact up to 2^53 only.
static void put_part(JsonWriter *w, const char *name, const DatasetPart *part) {
  json_open(w, name, '{');
  json_whole(w, "files", part->files);
  json_whole(w, "tokens", part->tokens);
  json_whole(w, "documents", part->documents);
  json_whole(w, "bytes", part->bytes);
  json_open(w, "xxh3", '[');
  for (int i = 0; i < part->files; i++) json_string(w, NULL, hex_text(part->checksums[i]).text);
  json_close(w, ']');
  json_close(w, '}');
}

static void put_token(JsonWriter *w, const char *name, int32_t id) {
  if (id == NO_TOKEN)
    json_raw(w, name, "null");
  else
    json_whole(w, name, id);
}

int dataset_write(const Dataset *d, const char *folder, Error *err) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "format", FORMAT);
  json_open(&w, "tokenizer", '{');
  json_bytes(&w, "name", d->tokenizer, strlen(d->tokenizer));
  json_string(&w, "fingerprint", hex_text(d->fingerprint).text);
  json_whole(&w, "vocab_size", d->vocab_size);
  put_token(&w, "begin", d->begin);
  put_token(&w, "end", d->end);
  json_close(&w, '}');
  put_part(&w, "train", &d->train);
  put_part(&w, "val", &d->val);
  json_open(&w, "split", '{');
  json_string(&w, "val", d->whole_documents ? "whole documents" : "the tail of each document");
  json_number(&w, "fraction", d->val_fraction, JSON_EXACT);
  json_whole(&w, "seed", d->seed);
  json_close(&w, '}');
  json_close(&w, '}');
  const int status = file_write(path_text("%s/%s", folder, DATASET_FILE).text, w.text, w.used, err);
  free(w.text);
  return status;
}
