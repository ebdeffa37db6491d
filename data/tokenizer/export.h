// A byte-level BPE as the two files that the Python packages tokenizers and transformers load,
// tokenizer.json and tokenizer_config.json. The same input gives the same bytes.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct BpeExport {
  const char *bytes;          // the tokens' bytes, one token after the other
  const size_t *offsets;      // [count + 1] token i is bytes [offsets[i], offsets[i + 1])
  int32_t count;              // tokens; no two are the same bytes, and every byte is one of them
  const int32_t (*merges)[2]; // [merge_count] the tokens to join, the first to be joined first
  int64_t merge_count;
  const char *pattern;     // text is cut by this regular expression first; NULL: it is not cut
  const char *begin, *end; // the special tokens around a document: ids count and count + 1
} BpeExport;

// tokenizer.json. NUL-terminated; the caller frees it.
char *export_tokenizer(const BpeExport *bpe);
// tokenizer_config.json, of any tokenizer. begin and end may be NULL. The caller frees it.
char *export_tokenizer_config(const char *begin, const char *end);
