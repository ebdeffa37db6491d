#include <stdlib.h>

#include "base/text.h"
#include "data/tokenizer/cache.h"
#include "data/tokenizer/tokenizer_parts.h"

struct Encoder {
  const Tokenizer *tokenizer;
  NormalizerBuffers normal;
  Cutter cutter;
  BpeScratch scratch;
  RegexScan *word; // finds a letter where an added token wants to stand alone
  void *memory;
  CachedWord *words; // [CACHE_WORDS] in it, each on a cache line
  TokenIds *ids;     // where the ids go
};

Encoder *encoder_open(const Tokenizer *tokenizer) {
  Encoder *e = xcalloc(1, sizeof *e);
  e->tokenizer = tokenizer;
  e->memory = xcalloc(CACHE_WORDS + 1, sizeof *e->words);
  e->words = (CachedWord *)(((uintptr_t)e->memory + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
  cutter_open(&e->cutter, &tokenizer->pre_tokenizer);
  e->word = regex_scan_open(tokenizer->word);
  return e;
}

void encoder_close(Encoder *e) {
  if (!e) return;
  normalizer_buffers_close(&e->normal);
  cutter_close(&e->cutter);
  bpe_scratch_close(&e->scratch);
  regex_scan_close(e->word);
  free(e->memory);
  free(e);
}

static void push_ids(TokenIds *list, const int32_t *ids, int64_t count) {
  if (list->capacity - list->count < CACHE_MAX_IDS) {
    list->capacity = 2 * list->capacity + 1024;
    list->ids = xrealloc(list->ids, (size_t)list->capacity * sizeof *list->ids);
  }
  // All of them, which is quicker than as many as there are.
  memcpy(list->ids + list->count, ids, CACHE_MAX_IDS * sizeof *ids);
  list->count += count;
}

static void encode_word(Encoder *e, const char *word, size_t bytes) {
  if (bytes > CACHE_MAX_BYTES) {
    bpe_encode(&e->tokenizer->bpe, &e->scratch, word, bytes, e->ids);
    return;
  }
  uint64_t key[4];
  cache_key(word, bytes, key);
  CachedWord *cached = cache_slot(e->words, key, bytes);
  if (cache_is(cached, key, bytes)) {
    push_ids(e->ids, cached->ids, cached->count);
    return;
  }
  const int64_t before = e->ids->count;
  bpe_encode(&e->tokenizer->bpe, &e->scratch, word, bytes, e->ids);
  const int64_t count = e->ids->count - before;
  if (count > CACHE_MAX_IDS) return;
  memcpy(cached->key, key, sizeof key);
  if (count > 0) memcpy(cached->ids, e->ids->ids + before, (size_t)count * sizeof *cached->ids);
  cached->bytes = (uint8_t)bytes;
  cached->count = (uint8_t)count;
}

static int encode_pre_token(void *to, const char *text, size_t bytes, Error *err) {
  Encoder *e = to;
  if (bytes > BPE_MAX_BYTES)
    return error_set(err, "%s without a place to cut are too long; cut the text into pieces",
                     size_text(bytes).text);
  const Bpe *bpe = &e->tokenizer->bpe;
  while (bpe->breaks && bytes > 0) {
    const size_t length = bpe_word_length(bpe, text, bytes);
    encode_word(e, text, length);
    text += length, bytes -= length;
  }
  if (bytes > 0) encode_word(e, text, bytes);
  return 0;
}

// ---- Added tokens

// Does a word go on at the start or the end of the text?
static int is_word(Encoder *e, const char *text, size_t bytes, bool at_end, Error *err) {
  if (bytes == 0) return 0;
  size_t length = 1, begin, end;
  while (at_end && length < bytes && ((unsigned char)text[bytes - length] & 0xc0) == 0x80) length++;
  const char *character = at_end ? text + bytes - length : text;
  length = utf8_length(character, at_end ? length : bytes);
  return length == 0 ? 0 : regex_next(e->word, character, length, 0, &begin, &end, err);
}

typedef int PlainTaker(Encoder *e, Piece piece, Error *err);

// Finds the added tokens of a piece; what lies between them goes to `take`.
static int find_added(Encoder *e, const AddedTokens *added, Piece piece, PlainTaker *take,
                      Error *err) {
  const char *const text = piece.text;
  const size_t bytes = piece.bytes;
  const bool first = piece.first;
  size_t done = 0, at = 0, begin, end;
  for (const AddedToken *token; (token = added_next(added, text, bytes, at, &begin, &end));) {
    at = end;
    if (token->single_word) {
      const int before = is_word(e, text, begin, true, err);
      const int behind = before == 0 ? is_word(e, text + end, bytes - end, false, err) : 0;
      if (before < 0 || behind < 0) return -1;
      if (before || behind) continue;
    }
    if (token->left) begin -= white_space_at_end(text, begin);
    if (token->right) end += white_space_at_start(text + end, bytes - end);
    if (begin > done) { // else the one before has taken these spaces
      piece.text = text + done, piece.bytes = begin - done, piece.first = first && done == 0;
      if (take(e, piece, err) != 0) return -1;
    }
    token_ids_push(e->ids, token->id);
    done = end;
  }
  if (done >= bytes) return 0;
  piece.text = text + done, piece.bytes = bytes - done, piece.first = first && done == 0;
  return take(e, piece, err);
}

static int encode_normal(Encoder *e, Piece piece, Error *err) {
  const bool valid = utf8_valid(piece.text, piece.bytes) == piece.bytes;
  return cutter_cut(&e->cutter, piece, valid, encode_pre_token, e, err);
}

static int encode_raw(Encoder *e, Piece piece, Error *err) {
  const Tokenizer *t = e->tokenizer;
  if (t->normalizer.count > 0) {
    const bool continues = piece.first && piece.continues;
    if (normalizer_apply(&t->normalizer, &e->normal, piece.text, piece.bytes, continues, err) != 0)
      return -1;
    piece.text = e->normal.now.data;
    piece.bytes = e->normal.now.bytes;
  }
  return find_added(e, &t->normalized, piece, encode_normal, err);
}

int encoder_append(Encoder *encoder, const char *text, size_t bytes, bool continues, TokenIds *ids,
                   Error *err) {
  encoder->ids = ids;
  const int64_t before = ids->count;
  const Piece piece = {text, bytes, true, continues};
  if (find_added(encoder, &encoder->tokenizer->raw, piece, encode_raw, err) == 0) return 0;
  ids->count = before;
  return -1;
}
