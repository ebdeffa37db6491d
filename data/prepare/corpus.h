// The documents in text files, folders, JSON lines, Parquet files and standard input, one after the
// other and in pieces, so that documents of any size can be read. Text and JSON lines may be
// compressed (stream.h).
//
// A text file is a document, or holds several with a separator between them. In a file of JSON
// lines each line is one. Documents without text are passed over. Python reads Parquet files, as
// JSON lines with a row each (parquet.h).
//
// To read whole lines, whatever the kind of the file:
//
//   Corpus corpus = {.format = FORMAT_LINES, .whole_lines = true}; // Parquet: all columns
//   CorpusReader reader;
//   CorpusBlock block;
//   int got = corpus_add(&corpus, path, false, err);
//   corpus_open(&reader, &corpus);
//   if (got == 0)
//     while ((got = corpus_next(&reader, &block, err)) > 0)
//       use(block.text, block.bytes, block.file, block.line); // and its newline, if it has one
//   corpus_close(&reader);
//   corpus_free(&corpus);
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/text.h"
#include "base/error.h"
#include "data/prepare/parquet.h"
#include "data/prepare/stream.h"

// The kinds of files in a folder. Those before FILE_TEXT are skipped; FILE_JSON: it is not lines;
// FILE_SPECIAL: devices, links to folders; FILE_LEFT_OUT: corpus_leave_out, and folders of datasets
// and runs. A broken one (compressed, but damaged; a Git LFS pointer) is an error even there.
typedef enum FileKind {
  FILE_HIDDEN,
  FILE_BINARY,
  FILE_JSON,
  FILE_EMPTY,
  FILE_UNREADABLE,
  FILE_SPECIAL,
  FILE_LEFT_OUT,
  FILE_TEXT,
  FILE_LINES,
  FILE_PARQUET,
  FILE_BROKEN
} FileKind;

// What files are. FORMAT_TOLD: lines where the first one is an object with the field, or the name
// ends in .jsonl, .ndjson or .jsonlines; else text.
typedef enum CorpusFormat { FORMAT_TOLD, FORMAT_TEXT, FORMAT_LINES } CorpusFormat;

typedef struct CorpusFile {
  char *path;    // owned; STREAM_STDIN is standard input
  int64_t size;  // bytes of a plain text file that is one document; else -1
  FileKind kind; // text, lines or Parquet; of standard input it is known when it is read
  bool val;      // as corpus_add got it
} CorpusFile;

typedef struct FileId {
  dev_t device;
  ino_t inode; // 0: there is none
} FileId;

// Start from zeros, and set what differs from the defaults here.
typedef struct Corpus {
  const char *field;     // of a JSON line, as jsonl_text has it; NULL: "text". With whole_lines:
                         // the one column of Parquet files, "messages"; NULL: all columns
  const char *separator; // between the documents of a text file; NULL: none
  CorpusFormat format;
  bool whole_lines; // FORMAT_LINES, and a line is a document as it is, in one piece
  bool skip_bad;    // a line without a document is counted, else an error
  ByteSet joined;   // no document is cut between a newline and one of these bytes

  CorpusFile *files; // [count]
  size_t count;
  FileId *left_out; // [left_out_count]
  size_t left_out_count;
  uint64_t bytes;             // of all files, as they lie on the disk
  uint64_t text_bytes;        // of text files that are not compressed
  bool reads_stdin;           // so that `bytes` is not all
  int64_t skipped[FILE_TEXT]; // files and hidden folders that were passed over, by kind
} Corpus;

// Files and folders that are not added from now on: this one, if it is there.
void corpus_leave_out(Corpus *corpus, const char *path);
// Adds a file, standard input (STREAM_STDIN, once), the files of a folder, or where nothing has the
// name those that match it as a glob(7) pattern, in name order: symbolic links to folders are not
// followed; files that are not text are counted and skipped. A file named by the caller that is
// binary or not readable is an error. val: it is for validation; it is not added again.
int corpus_add(Corpus *corpus, const char *path, bool val, Error *err);
void corpus_free(Corpus *corpus);
// The files of this kind, without standard input.
size_t corpus_count(const Corpus *corpus, FileKind kind);

// "3 hidden, 2 binary"; empty when nothing was skipped.
ShortText corpus_skipped(const Corpus *corpus);

// ---- The kind of a file, by its name and its first bytes, decompressed

bool file_is_stdin(const char *path);
// Whether corpus_kind has to know more than start[bytes], if there is more.
bool corpus_wants_more(const char *start, size_t bytes);
// The sentence says why it is neither FILE_TEXT nor FILE_LINES; of FILE_PARQUET, why it cannot be
// read in this way.
FileKind corpus_kind(const Corpus *corpus, const char *name, const char *start, size_t bytes,
                     Error *err);

// ---- Reading

// Lines that hold no document.
typedef struct BadLines {
  int64_t count;
  Error first; // "FILE:LINE: why"
} BadLines;
void bad_line(BadLines *bad, const char *file, int64_t line, const Error *why);

typedef struct CorpusReader {
  const Corpus *corpus;
  size_t next_file;       // to open
  const CorpusFile *file; // that is open, or NULL
  Stream *stream;         // of the open file; NULL: of Parquet
  ParquetReader *parquet; // of all those files, from the first one on
  const char **tables;    // [...], their paths
  bool jsonl, ended;      // of the open file: what it is; all of it is in the buffer
  uint64_t bytes_read;    // of the files before the open one
  int64_t documents;      // begun so far
  int64_t line;           // of the open file of lines, from 1
  BadLines bad;           // passed over so far
  char *buffer;           // [capacity], bytes [start, end) wait
  size_t capacity, start, end;
  size_t looked;    // of those that wait: no end of a line, no separator begins before here
  bool in_document; // more of a document waits in the buffer:
  bool complete;    // its end is there
  size_t known;     // bytes that are surely its own
  size_t behind;    // bytes to pass over at its end
  size_t searched;  // no place to cut it up to here
  int64_t offset;   // in the document
} CorpusReader;

// A piece of a document. Pieces of a long one meet behind a line's end that has no white space on
// either side, where one comes within 16 MiB, so that a tokenizer gives the ids that it gives for
// the whole.
typedef struct CorpusBlock {
  const char *text;      // not NUL-terminated; valid until the next call
  int64_t bytes, offset; // bytes > 0, but for the last piece of a document, which may be empty
  int64_t size;          // of the document, where it is known by now; else -1
  bool last;             // the document ends with it
  int64_t document;      // its number, from 0
  const char *file;      // it is in, for sentences
  bool val;              // as the file was added
  int64_t line;          // of a file of lines; 0 in text
} CorpusBlock;

void corpus_open(CorpusReader *reader, const Corpus *corpus);
// 1 and the next piece, 0 at the end, -1 on error.
int corpus_next(CorpusReader *reader, CorpusBlock *block, Error *err);
uint64_t corpus_position(const CorpusReader *reader); // bytes of the files that were read
void corpus_close(CorpusReader *reader);

// line[bytes] must be one JSON object with the string `field`: a key, or keys with dots between
// them for objects inside each other. Unescapes in place, so that the line is spoilt and
// *text lies in it. "\u0000" is a NUL; half of a surrogate pair becomes U+FFFD; bytes
// that are no UTF-8 stay. The sentence is about "it", the line, and has the column.
int jsonl_text(char *line, size_t bytes, const char *field, Span *text, Error *err);
