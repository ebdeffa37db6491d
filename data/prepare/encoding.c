#include "data/prepare/encoding.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/chat/render.h"

// As much text may be under way as the slots usually hold, or one batch of the largest piece: an
// encoder may need 50 bytes for a byte of it.
enum { USUAL_BATCH_BYTES = 1 << 20, LARGE_BATCH_BYTES = 16 << 20 };

struct Encoding {
  const Tokenizer *tokenizer;
  const ChatTemplate *chat;
  bool skip_bad;
  pthread_mutex_t mutex;
  pthread_cond_t given, done;
  TextBatch *ring; // [slots]; batch number n lies in ring[n % slots]
  size_t slots;
  size_t given_count, begun_count, taken_count; // batches so far
  size_t text_bytes, most_text_bytes;           // under way
  bool closing;
  int threads;
  pthread_t *workers; // [threads]
};

void text_batch_add(TextBatch *b, const char *text, size_t bytes, Segment segment) {
  LIST_ROOM(b->segments, b->count, b->capacity);
  segment.text = b->text.bytes;
  segment.bytes = bytes;
  b->segments[b->count++] = segment;
  text_append(&b->text, text, bytes);
}

// ---- The workers

typedef struct Worker {
  const Encoding *encoding;
  Encoder *encoder;   // NULL until the first batch
  Renderer *renderer; // the same, for conversations
  Conversation conversation;
  TextBatch *batch; // that is being encoded
} Worker;

// A part of a document, with BOS and EOS around the whole: one of each, where the text spells them
// out, too.
static int encode_text(Worker *w, const Segment *s) {
  TextBatch *b = w->batch;
  const Tokenizer *tokenizer = w->encoding->tokenizer;
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  if (!w->encoder) w->encoder = encoder_open(tokenizer);
  const bool begins = s->first && facts->bos != NO_TOKEN;
  if (begins) token_ids_push(&b->ids, facts->bos);
  const int64_t first = b->ids.count;
  if (encoder_append(w->encoder, b->text.data + s->text, s->bytes, !s->first, &b->ids, &b->error) !=
      0)
    return -1;
  const bool has_begin = begins && b->ids.count > first && b->ids.ids[first] == facts->bos;
  if (has_begin) token_ids_remove(&b->ids, first);
  b->spelled_begins += has_begin;
  if (!s->last || facts->eos == NO_TOKEN) return 0;
  const bool has_end = b->ids.count > first && b->ids.ids[b->ids.count - 1] == facts->eos;
  if (!has_end) token_ids_push(&b->ids, facts->eos);
  b->spelled_ends += has_end;
  return 0;
}

static int encode_chat(Worker *w, Segment *s) {
  TextBatch *b = w->batch;
  if (!w->renderer)
    w->renderer = renderer_open(w->encoding->tokenizer, w->encoding->chat, &b->error);
  if (!w->renderer ||
      conversation_parse(&w->conversation, b->text.data + s->text, s->bytes, &b->error) != 0)
    return -1;
  s->bytes = 0;
  for (size_t i = 0; i < w->conversation.count; i++)
    s->bytes += w->conversation.messages[i].text.bytes;
  return renderer_append(w->renderer, &w->conversation, false, &b->ids, &b->mask, &b->error);
}

static void encode_segment(Worker *w, Segment *s) {
  TextBatch *b = w->batch;
  const bool chat = w->encoding->chat;
  s->ids = b->ids.count;
  if ((chat ? encode_chat(w, s) : encode_text(w, s)) == 0) return;
  s->bad = chat && w->encoding->skip_bad;
  b->failed = !s->bad;
  if (s->bad)
    bad_line(&b->bad, s->file, s->line, &b->error);
  else if (s->line > 0)
    error_prefix(&b->error, "'%s' line %" PRId64, s->file, s->line);
  else
    error_prefix(&b->error, "'%s'", s->file);
  if (chat && b->failed) error_append(&b->error, "; --skip-bad passes over such lines");
}

static void encode_batch(void *worker) {
  Worker *w = worker;
  TextBatch *b = w->batch;
  for (size_t i = 0; i < b->count && !b->failed; i++) encode_segment(w, &b->segments[i]);
}

// The next batch to encode; NULL at the end.
static TextBatch *begin_batch(Encoding *e) {
  pthread_mutex_lock(&e->mutex);
  while (e->begun_count == e->given_count && !e->closing) pthread_cond_wait(&e->given, &e->mutex);
  TextBatch *b = e->closing ? NULL : &e->ring[e->begun_count++ % e->slots];
  pthread_mutex_unlock(&e->mutex);
  return b;
}

static void *work(void *encoding) {
  Encoding *e = encoding;
  Worker w = {.encoding = e};
  while ((w.batch = begin_batch(e))) {
    if (!memory_try(encode_batch, &w, &w.batch->error)) {
      w.batch->failed = true;
      error_append(&w.batch->error, "; " LESS_MEMORY);
      w.encoder = NULL; // a buffer that could not grow may have its new size already
      w.renderer = NULL;
      w.conversation = (Conversation){0};
    }
    pthread_mutex_lock(&e->mutex);
    w.batch->done = true;
    pthread_cond_signal(&e->done);
    pthread_mutex_unlock(&e->mutex);
  }
  encoder_close(w.encoder);
  renderer_close(w.renderer);
  conversation_free(&w.conversation);
  return NULL;
}

// ---- The thread that gives and takes

// A tokenizer that does not serve the template is an error before anything is read.
static int check_chat(const Tokenizer *tokenizer, const ChatTemplate *chat, Error *err) {
  Renderer *renderer = chat ? renderer_open(tokenizer, chat, err) : NULL;
  renderer_close(renderer);
  return chat && !renderer ? -1 : 0;
}

Encoding *encoding_open(const Tokenizer *tokenizer, const ChatTemplate *chat, bool skip_bad,
                        int threads, Error *err) {
  if (check_chat(tokenizer, chat, err) != 0) return NULL;
  Encoding *e = xcalloc(1, sizeof *e);
  e->tokenizer = tokenizer;
  e->chat = chat;
  e->skip_bad = skip_bad;
  e->slots = 2 * (size_t)threads + 2;
  e->most_text_bytes = e->slots * USUAL_BATCH_BYTES;
  if (e->most_text_bytes < LARGE_BATCH_BYTES) e->most_text_bytes = LARGE_BATCH_BYTES;
  e->ring = xcalloc(e->slots, sizeof *e->ring);
  e->workers = xcalloc((size_t)threads, sizeof *e->workers);
  pthread_mutex_init(&e->mutex, NULL);
  pthread_cond_init(&e->given, NULL);
  pthread_cond_init(&e->done, NULL);
  while (e->threads < threads && pthread_create(&e->workers[e->threads], NULL, work, e) == 0)
    e->threads++;
  if (e->threads > 0) return e;
  encoding_close(e);
  error_set(err, "the system has no threads left: use fewer --threads");
  return NULL;
}

TextBatch *encoding_free_batch(Encoding *e) {
  const bool full =
      e->given_count - e->taken_count == e->slots || e->text_bytes >= e->most_text_bytes;
  return full ? NULL : &e->ring[e->given_count % e->slots];
}

void encoding_give(Encoding *e, TextBatch *batch) {
  e->text_bytes += batch->text.bytes;
  pthread_mutex_lock(&e->mutex);
  e->given_count++;
  pthread_cond_signal(&e->given);
  pthread_mutex_unlock(&e->mutex);
}

TextBatch *encoding_take(Encoding *e, bool wait) {
  if (e->taken_count == e->given_count) return NULL;
  TextBatch *b = &e->ring[e->taken_count % e->slots];
  pthread_mutex_lock(&e->mutex);
  while (!b->done && wait) pthread_cond_wait(&e->done, &e->mutex);
  const bool done = b->done;
  pthread_mutex_unlock(&e->mutex);
  return done ? b : NULL;
}

// One that was large gives its memory back.
void encoding_return(Encoding *e, TextBatch *b) {
  e->taken_count++;
  e->text_bytes -= b->text.bytes;
  b->text.bytes = b->count = 0;
  b->ids.count = 0;
  b->mask.bytes = 0;
  b->bad.count = b->spelled_begins = b->spelled_ends = 0;
  b->done = false;
  if (b->text.capacity > LARGE_BATCH_BYTES) {
    free(b->text.data);
    free(b->ids.ids);
    free(b->mask.data);
    *b = (TextBatch){.segments = b->segments, .capacity = b->capacity};
  }
}

void encoding_close(Encoding *e) {
  if (!e) return;
  pthread_mutex_lock(&e->mutex);
  e->closing = true;
  pthread_cond_broadcast(&e->given);
  pthread_mutex_unlock(&e->mutex);
  for (int i = 0; i < e->threads; i++) pthread_join(e->workers[i], NULL);
  for (size_t i = 0; i < e->slots; i++) {
    free(e->ring[i].text.data);
    free(e->ring[i].segments);
    free(e->ring[i].ids.ids);
    free(e->ring[i].mask.data);
  }
  pthread_cond_destroy(&e->given);
  pthread_cond_destroy(&e->done);
  pthread_mutex_destroy(&e->mutex);
  free(e->workers);
  free(e->ring);
  free(e);
}
