// The documents in text files, folders and .jsonl files, one after the other and in blocks, so that
// files of any size can be read. Each text file is a document, and so is each line of a .jsonl
// file: an object whose "text" is the document. Documents without text are passed over.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/error.h"

// What a file in a folder is. All but text is passed over; FILE_SPECIAL: devices, links to folders.
typedef enum FileKind {
  FILE_HIDDEN,
  FILE_BINARY,
  FILE_EMPTY,
  FILE_UNREADABLE,
  FILE_SPECIAL,
  FILE_TEXT
} FileKind;

typedef struct Corpus {
  char **files; // [count] paths, owned
  size_t count;
  uint64_t bytes;             // of all files
  uint64_t text_bytes;        // of the files that are not .jsonl
  int64_t skipped[FILE_TEXT]; // files and hidden folders that were passed over, by kind
} Corpus;

// Adds a file, or what is in a folder, in name order: symbolic links to folders are not followed;
// what is not text is counted and passed over. A file named by the caller that is binary or not
// readable is an error.
int corpus_add(Corpus *corpus, const char *path, Error *err);
void corpus_free(Corpus *corpus);
// Counts the documents, no further than `limit`; reads .jsonl files only.
int corpus_count(const Corpus *corpus, int64_t limit, int64_t *documents, Error *err);

typedef struct CorpusReader {
  const Corpus *corpus;
  size_t next_file;     // to open
  FILE *file;           // open, or NULL
  uint64_t bytes_read;  // of all files so far
  int64_t documents;    // begun so far
  int64_t size, offset; // of the document in the open text file
  char *buffer;         // text blocks, or the line of a .jsonl file
  size_t buffer_bytes;
  int64_t line; // of the open .jsonl file, from 1
  void *json;   // of that line
} CorpusReader;

// A piece of a document: bytes [offset, offset + bytes) of document_bytes > 0.
typedef struct CorpusBlock {
  const char *text; // not NUL-terminated; valid until the next call
  int64_t bytes, offset, document_bytes;
  int64_t document; // its number, from 0
} CorpusBlock;

void corpus_open(CorpusReader *reader, const Corpus *corpus);
// 1 and the next block, 0 at the end, -1 on error.
int corpus_next(CorpusReader *reader, CorpusBlock *block, Error *err);
void corpus_close(CorpusReader *reader);
