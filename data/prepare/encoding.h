// Encodes batches of text on several threads. They come back in the order in which they were given,
// so that the result does not depend on the number of threads.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "data/chat/template.h"
#include "data/prepare/corpus.h"
#include "data/tokenizer/tokenizer.h"

#define LESS_MEMORY "use fewer --threads" // the advice where memory runs out

// A part of a document, in the text of a batch.
typedef struct Segment {
  size_t text, bytes;
  int64_t ids;      // where its ids begin in the batch; they end where the next document's begin
  bool first, last; // of the part's: BOS and EOS go around it
  bool val;         // kept for validation; the batch's user's alone
  bool bad;         // a line that could not be encoded, and is passed over: it has no ids
  const char *file; // for sentences
  int64_t line;     // 0: none
} Segment;

typedef struct TextBatch {
  Text text;
  Segment *segments; // [count]
  size_t count, capacity;
  TokenIds ids;
  Text mask; // a byte for each id, 1 where it counts; of text that is no chat: none
  BadLines bad;
  int64_t spelled_begins, spelled_ends; // documents whose text has its own BOS, its own EOS
  bool done, failed;
  Error error; // if it failed
} TextBatch;

// Copies the text; s->text and s->bytes say where it lies now.
void text_batch_add(TextBatch *batch, const char *text, size_t bytes, Segment segment);

typedef struct Encoding Encoding;
// chat: segments are lines with conversations, which this template renders, and a segment's `bytes`
// become those of its messages; NULL: they are text. skip_bad: a conversation that is wrong goes
// into batch->bad, else it is an error. NULL on error.
Encoding *encoding_open(const Tokenizer *tokenizer, const ChatTemplate *chat, bool skip_bad,
                        int threads, Error *err);
// An empty batch to fill, or NULL while as much is under way as may be.
TextBatch *encoding_free_batch(Encoding *encoding);
void encoding_give(Encoding *encoding, TextBatch *batch);
// The oldest batch, when it is done: waits for it, or gives NULL where it is not ready or there is
// none. It must be returned by encoding_return before the next is taken.
TextBatch *encoding_take(Encoding *encoding, bool wait);
void encoding_return(Encoding *encoding, TextBatch *batch);
void encoding_close(Encoding *encoding); // batches under way are dropped
