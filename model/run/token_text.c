#include "model/run/token_text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

int prompt_ids(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenIds *ids,
               Error *err) {
  const int32_t begin = tokenizer_facts(tokenizer)->bos, end = tokenizer_facts(tokenizer)->eos;
  const int64_t first = ids->count;
  if (begin != NO_TOKEN) token_ids_push(ids, begin);
  const int64_t text_at = ids->count;
  Encoder *encoder = encoder_open(tokenizer);
  const int status = encoder_append(encoder, text, bytes, false, ids, err);
  encoder_close(encoder);
  if (status != 0) return -1;
  if (text_at > first && ids->count > text_at && ids->ids[text_at] == begin)
    token_ids_remove(ids, text_at);
  if (ids->count == first && end != NO_TOKEN) token_ids_push(ids, end);
  if (ids->count > first) return 0;
  return error_set(err, "the prompt is empty, and the tokenizer '%s' has no token to start from",
                   tokenizer_facts(tokenizer)->name);
}

static int show(const TextGeneration *w, const char *text, size_t bytes, Error *err) {
  return bytes > 0 ? w->show(w->context, text, bytes, err) : 0;
}

// Shows what the model generates, until its end, *stop or an error.
static int show_tokens(const TextGeneration *w, Decoder *decoder, Error *err) {
  char number[16];
  const char *text = number;
  for (int32_t id; !*w->stop;) {
    const int status = generator_next(w->generator, &id, err);
    if (status <= 0) return status;
    const size_t bytes = decoder ? decoder_next(decoder, id, &text)
                                 : (size_t)snprintf(number, sizeof number, " %d", id);
    if (show(w, text, bytes, err) != 0) return -1;
  }
  return 0;
}

// The decoder is given the prompt, too, since some put no space in front of a text's first word.
// Bytes at the prompt's end that begin a character wait in it, and come with the rest.
int text_generate(const TextGeneration *w, const char *prompt, size_t bytes, const TokenIds *ids,
                  Error *err) {
  if (generator_start(w->generator, ids->ids, ids->count, &w->options, err) != 0) return -1;
  Decoder *decoder = w->tokenizer ? decoder_open(w->tokenizer) : NULL;
  const char *text;
  for (int64_t i = 0; decoder && i < ids->count; i++) decoder_next(decoder, ids->ids[i], &text);
  const size_t waiting = decoder ? utf8_begun(prompt, bytes) : 0;
  int status = show(w, prompt, bytes - waiting, err);
  if (status == 0) status = show_tokens(w, decoder, err);
  if (status == 0 && decoder) {
    const size_t last = decoder_end(decoder, &text);
    status = show(w, text, last, err);
  }
  decoder_close(decoder);
  return status;
}

int text_print(void *context, const char *text, size_t bytes, Error *err) {
  (void)context;
  if (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0 && !ferror(stdout)) return 0;
  return error_set(err, "cannot write to standard output: %s", strerror(errno));
}

// ---- Counting bytes

void text_bytes_open(TextBytes *t, const Tokenizer *tokenizer) {
  *t = (TextBytes){.bos = NO_TOKEN, .eos = NO_TOKEN};
  if (!tokenizer) return;
  t->decoder = decoder_open(tokenizer);
  t->bos = tokenizer_facts(tokenizer)->bos;
  t->eos = tokenizer_facts(tokenizer)->eos;
}

void text_bytes_close(TextBytes *t) {
  decoder_close(t->decoder);
  *t = (TextBytes){0};
}

static void begin_text(TextBytes *t, int32_t first) {
  const char *text;
  decoder_next(t->decoder, first, &text);
  // The bytes of an incomplete character come again with its rest.
  t->count -= (int64_t)decoder_end(t->decoder, &text);
  decoder_next(t->decoder, first, &text);
}

static void end_text(TextBytes *t) {
  const char *text;
  t->count += (int64_t)decoder_end(t->decoder, &text);
}

static void add_token(TextBytes *t, int32_t id) {
  const char *text;
  t->count += (int64_t)decoder_next(t->decoder, id, &text);
  if (id == t->bos || id == t->eos) end_text(t);
}

void text_bytes_targets(TextBytes *t, const int32_t *tokens, const int32_t *targets, int64_t rows) {
  bool open = false;
  for (int64_t i = 0; t->decoder && i < rows; i++) {
    const bool counts = targets[i] != NO_TARGET;
    if (counts && !open) begin_text(t, tokens[i]);
    if (counts) add_token(t, targets[i]);
    if (!counts && open) end_text(t);
    open = counts;
  }
  if (open) end_text(t);
}

void text_bytes_batch(TextBytes *t, const Batch *batch, int64_t windows, int64_t T) {
  for (int64_t i = 0, at = 0, rows; at < windows * T; i++, at += rows) {
    rows = batch->documents > 0 ? batch->lengths[i] : T;
    text_bytes_targets(t, batch->tokens + at, batch->targets + at, rows);
  }
}

double bits_per_byte(double nats, int64_t bytes) {
  return bytes > 0 ? nats / log(2) / (double)bytes : NAN;
}
