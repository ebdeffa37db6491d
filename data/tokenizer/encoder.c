#include <inttypes.h>
#include <stdlib.h>

#include "base/text.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/parts.h"

// ---- Added tokens

static int compare(const void *a, const void *b) {
  const Text *x = &((const AddedToken *)a)->pattern, *y = &((const AddedToken *)b)->pattern;
  const int order = memcmp(x->data, y->data, x->bytes < y->bytes ? x->bytes : y->bytes);
  return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int sort(AddedTokens *added, Error *err) {
  if (added->count > 0) qsort(added->tokens, added->count, sizeof *added->tokens, compare);
  size_t i = 0;
  for (int c = 0; c < 256; c++) {
    added->first_at[c] = i;
    while (i < added->count && (unsigned char)added->tokens[i].pattern.data[0] == c) i++;
  }
  added->first_at[256] = i;
  for (i = 1; i < added->count; i++)
    if (compare(&added->tokens[i - 1], &added->tokens[i]) == 0)
      return error_set(err, "added_tokens has '%.100s' twice", added->tokens[i].content);
  return 0;
}

static int make_pattern(AddedToken *token, const Steps *normalizer, Error *err) {
  NormalizerBuffers buffers = {0};
  const size_t bytes = strlen(token->content);
  int result = 0;
  if (token->normalized) {
    result = normalizer_apply(normalizer, &buffers, token->content, bytes, false, err);
    text_append(&token->pattern, buffers.now.data, buffers.now.bytes);
  } else {
    text_append(&token->pattern, token->content, bytes);
  }
  normalizer_buffers_close(&buffers);
  if (result == 0 && token->pattern.bytes == 0)
    return error_set(err, "the added token '%.100s' is empty", token->content);
  return result;
}

// One more at the end of the list that it belongs to.
static AddedToken *push(AddedTokens *added, const AddedToken *token) {
  added->tokens = xrealloc(added->tokens, (added->count + 1) * sizeof *added->tokens);
  added->tokens[added->count] = *token;
  return &added->tokens[added->count++];
}

int added_read(AddedTokens *raw, AddedTokens *normalized, const cJSON *list, bool byte_level,
               const Steps *normalizer, Vocabulary *vocabulary, Error *err) {
  if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
    return error_set(err, "added_tokens is not a list");
  int32_t next = vocabulary->count;
  for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
    AddedToken token = {.special = component_flag(item, "special", false, err),
                        .normalized = component_flag(item, "normalized", false, err),
                        .left = component_flag(item, "lstrip", false, err),
                        .right = component_flag(item, "rstrip", false, err)};
    const int64_t id = component_count(item, "id", -1, err);
    const char *content = component_string(item, "content", err);
    if (component_flag(item, "single_word", false, err)) component_refused(item, err);
    if (err->text[0]) return error_prefix(err, "added_tokens");
    const int32_t known = vocabulary_find_named(vocabulary, span_of(content), byte_level);
    token.id = known >= 0 ? known : next++;
    if (token.id != id)
      return error_set(err, "the added token '%.100s' has the id %" PRId64 " instead of %d",
                       content, id, token.id);
    token.content = xstrdup(content);
    AddedToken *added = push(token.normalized ? normalized : raw, &token);
    if (make_pattern(added, normalizer, err) != 0) return -1;
    if (known < 0 && vocabulary_add_id(vocabulary, id, err) != 0) return -1;
  }
  return sort(raw, err) != 0 || sort(normalized, err) != 0 ? -1 : 0;
}

void added_close(AddedTokens *added) {
  for (size_t i = 0; i < added->count; i++) {
    free(added->tokens[i].content);
    free(added->tokens[i].pattern.data);
  }
  free(added->tokens);
}

// The first token in [low, high) whose byte at `depth` is not below c. They are sorted by it.
static size_t lower_bound(const AddedTokens *added, size_t low, size_t high, size_t depth, int c) {
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if ((unsigned char)added->tokens[middle].pattern.data[depth] < c)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The longest token that text[bytes] begins with, or NULL. Those that agree with its first `depth`
// bytes lie side by side, the shortest first.
static const AddedToken *longest(const AddedTokens *added, const char *text, size_t bytes) {
  size_t low = added->first_at[(unsigned char)text[0]];
  size_t high = added->first_at[(unsigned char)text[0] + 1];
  const AddedToken *best = NULL;
  for (size_t depth = 1; low < high; depth++) {
    if (added->tokens[low].pattern.bytes == depth) best = &added->tokens[low++];
    if (depth == bytes) break;
    const int c = (unsigned char)text[depth];
    low = lower_bound(added, low, high, depth, c);
    high = lower_bound(added, low, high, depth, c + 1);
  }
  return best;
}

// The next one that begins in text[bytes] at or after `at`, and its bounds: the leftmost, and of
// these the longest. NULL: there is none.
static const AddedToken *added_next(const AddedTokens *added, const char *text, size_t bytes,
                                    size_t at, size_t *begin, size_t *end) {
  if (added->count == 0) return NULL;
  for (size_t i = at; i < bytes; i++) {
    const unsigned char c = (unsigned char)text[i];
    if (added->first_at[c] == added->first_at[c + 1]) continue;
    const AddedToken *found = longest(added, text + i, bytes - i);
    if (!found) continue;
    *begin = i;
    *end = i + found->pattern.bytes;
    return found;
  }
  return NULL;
}

// ---- The tokens of words that were met before: text repeats. A table of a fixed size, where a
// word takes the place of the one that was there. A word and its tokens fill a cache line

enum { CACHE_MAX_BYTES = 32, CACHE_MAX_IDS = 7, CACHE_WORDS = 1 << 17, CACHE_LINE = 64 };

typedef struct CachedWord {
  uint64_t key[4]; // the word, by which it is known together with its length
  int32_t ids[CACHE_MAX_IDS];
  uint8_t bytes, count; // bytes is 0 where there is no word
} CachedWord;
_Static_assert(sizeof(CachedWord) == CACHE_LINE, "one look, one line");

static inline uint64_t load_bytes(const char *text, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, text, bytes);
  return value;
}

// The word's key: of up to 16 bytes two loads that overlap, beyond that four. Nothing outside of
// the word is read.
static inline void cache_key(const char *word, size_t bytes, uint64_t key[4]) {
  key[2] = key[3] = 0;
  if (bytes >= 8) {
    key[0] = load_bytes(word, 8);
    if (bytes > 16) {
      key[2] = load_bytes(word + 8, 8);
      key[3] = load_bytes(word + bytes - 16, 8);
    }
    key[1] = load_bytes(word + bytes - 8, 8);
  } else if (bytes >= 4) {
    key[0] = load_bytes(word, 4);
    key[1] = load_bytes(word + bytes - 4, 4);
  } else { // the first, the middle and the last byte
    key[0] = (uint64_t)(unsigned char)word[0] << 8 | (unsigned char)word[bytes / 2];
    key[1] = (unsigned char)word[bytes - 1];
  }
}

// Where the word with this key is, if it is there.
static inline CachedWord *cache_slot(CachedWord *words, const uint64_t key[4], size_t bytes) {
  uint64_t hash = (key[0] ^ key[2] * 0x9fb21c651e98df25) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
  hash = (hash + (key[1] ^ key[3] * 0xc2b2ae3d27d4eb4f) + bytes) * 0xd6e8feb86659fd93;
  return &words[hash >> 47];
}

static inline bool cache_is(const CachedWord *word, const uint64_t key[4], size_t bytes) {
  const uint64_t differs = (word->key[0] ^ key[0]) | (word->key[1] ^ key[1]) |
                           (word->key[2] ^ key[2]) | (word->key[3] ^ key[3]) |
                           (word->bytes ^ bytes);
  return differs == 0;
}

// ---- Encoding

struct Encoder {
  const Tokenizer *tokenizer;
  NormalizerBuffers normal;
  Cutter cutter;
  BpeScratch scratch;
  void *memory;
  CachedWord *words; // [CACHE_WORDS] in it, each on a cache line
  TokenIds *ids;     // where the ids go
  bool plain;        // special tokens are text
};

Encoder *encoder_open(const Tokenizer *tokenizer) {
  Encoder *e = xcalloc(1, sizeof *e);
  e->tokenizer = tokenizer;
  e->memory = xcalloc(CACHE_WORDS + 1, sizeof *e->words);
  e->words = (CachedWord *)(((uintptr_t)e->memory + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
  cutter_open(&e->cutter, &tokenizer->pre_tokenizer);
  return e;
}

void encoder_close(Encoder *e) {
  if (!e) return;
  normalizer_buffers_close(&e->normal);
  cutter_close(&e->cutter);
  bpe_scratch_close(&e->scratch);
  free(e->memory);
  free(e);
}

static void push_ids(TokenIds *list, const int32_t *ids, int64_t count) {
  LIST_ROOM(list->ids, list->count + CACHE_MAX_IDS, list->capacity);
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
  for (size_t length; bytes > 0; text += length, bytes -= length) {
    length = bpe->breaks ? bpe_word_length(bpe, text, bytes) : bytes;
    encode_word(e, text, length);
  }
  return 0;
}

// ---- Finding added tokens

static int encode_part(Encoder *e, bool normal, Piece piece, size_t from, size_t to, Error *err);

// Finds the added tokens of a piece; the text between them is encoded. normal: it is normalized.
// The white space before `done` and after `limit` belongs to special tokens beside the piece, but
// added tokens are found in it all the same, as in the Python package.
static int find_added(Encoder *e, bool normal, Piece piece, size_t done, size_t limit, Error *err) {
  const AddedTokens *added = normal ? &e->tokenizer->normalized : &e->tokenizer->raw;
  const char *const text = piece.text;
  const size_t bytes = piece.bytes;
  size_t at = 0, begin, end;
  for (const AddedToken *token; (token = added_next(added, text, bytes, at, &begin, &end));) {
    at = end;
    if (e->plain && token->special) continue;
    if (token->left) begin -= white_space_at_end(text, begin);
    if (token->right) end += white_space_at_start(text + end, bytes - end);
    // Else the one before has taken these spaces.
    if (begin > done && encode_part(e, normal, piece, done, begin, err) != 0) return -1;
    token_ids_push(e->ids, token->id);
    done = end;
  }
  return done < limit ? encode_part(e, normal, piece, done, limit, err) : 0;
}

// [from, to) of a piece.
static int encode_part(Encoder *e, bool normal, Piece piece, size_t from, size_t to, Error *err) {
  const Steps *normalizer = &e->tokenizer->normalizer;
  piece.text += from;
  piece.bytes = to - from;
  piece.first &= from == 0;
  if (normal) return cutter_cut(&e->cutter, piece, encode_pre_token, e, err);
  if (normalizer->count > 0) {
    const bool continues = piece.first && piece.continues;
    if (normalizer_apply(normalizer, &e->normal, piece.text, piece.bytes, continues, err) != 0)
      return -1;
    piece.text = e->normal.now.data;
    piece.bytes = e->normal.now.bytes;
  }
  return find_added(e, true, piece, 0, piece.bytes, err);
}

static int append(Encoder *e, Piece piece, size_t begin, size_t end, TokenIds *ids, Error *err) {
  e->ids = ids;
  const int64_t before = ids->count;
  if (find_added(e, false, piece, begin, end, err) == 0) return 0;
  ids->count = before;
  return -1;
}

int encoder_append(Encoder *encoder, const char *text, size_t bytes, bool continues, TokenIds *ids,
                   Error *err) {
  const Piece piece = {.text = text, .bytes = bytes, .first = true, .continues = continues};
  encoder->plain = false;
  return append(encoder, piece, 0, bytes, ids, err);
}

int encoder_append_between(Encoder *encoder, const Between *b, TokenIds *ids, Error *err) {
  const AddedToken *const *added = encoder->tokenizer->added;
  const bool right = b->before != NO_TOKEN && added[b->before]->right;
  const bool left = b->behind != NO_TOKEN && added[b->behind]->left;
  const Piece piece = {.text = b->text,
                       .bytes = b->bytes,
                       .first = b->continues || b->before == NO_TOKEN,
                       .continues = b->continues};
  const size_t begin = right ? white_space_at_start(b->text, b->bytes) : 0;
  const size_t end = b->bytes - (left ? white_space_at_end(b->text, b->bytes) : 0);
  encoder->plain = true;
  return append(encoder, piece, begin, end, ids, err);
}
