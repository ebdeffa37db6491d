#include "data/tokenizer/sentencepiece.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

// The file is a protocol buffer: field 1, a piece of fewer than 128 bytes, whose own field 1 is its
// text, with its score, field 2, behind that.
int sentencepiece_refuse(const char *path, const void *data, size_t bytes, Error *err) {
  enum { MESSAGE = 0x0a, FLOAT = 0x15 };
  const unsigned char *at = data;
  if (bytes < 8 || at[0] != MESSAGE || at[2] != MESSAGE || at[3] > 127 || bytes < 5u + at[3] ||
      at[4 + at[3]] != FLOAT)
    return 0;
  const PathText folder = path_parent(path);
  return error_set(err,
                   "'%s' is a SentencePiece model, which is not read here: make a tokenizer.json "
                   "of it: pip install transformers sentencepiece protobuf; python3 -c \"from "
                   "transformers import LlamaTokenizerFast as T; "
                   "T.from_pretrained('%s').save_pretrained('%s')\"",
                   path, folder.text, folder.text);
}

int tokenizer_advise(const char *folder, Error *err) {
  enum { MAX_BYTES = 64 << 20 };
  const PathText path = path_text("%s/tokenizer.model", folder);
  Error advice;
  char *data;
  size_t bytes;
  if (!path_exists(path.text) || file_read(path.text, MAX_BYTES, &data, &bytes, &advice) != 0)
    return -1;
  if (sentencepiece_refuse(path.text, data, bytes, &advice) != 0)
    error_append(err, "; %s", advice.text);
  free(data);
  return -1;
}
