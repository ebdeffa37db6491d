#include "data/tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/tokenizer/json.h"

// ---- Reading the model

static void check_empty(const cJSON *model, const char *key, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(model, key);
  const bool empty = !field || cJSON_IsNull(field) ||
                     (cJSON_IsString(field) && field->valuestring[0] == '\0') ||
                     (cJSON_IsNumber(field) && field->valuedouble == 0);
  if (!empty) error_set(err, "model.%s is not supported", key);
}

static int read_unknown(Bpe *bpe, const cJSON *model, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(model, "unk_token");
  bpe->unknown = NO_TOKEN;
  if (!field || cJSON_IsNull(field)) return 0;
  const char *text = component_string(model, "unk_token", err);
  if (err->text[0]) return -1;
  bpe->unknown = vocabulary_find_named(&bpe->vocabulary, span_of(text), bpe->byte_level);
  if (bpe->unknown == NO_TOKEN && !bpe->byte_level)
    return error_set(err, "model.unk_token '%.100s' is not in the vocabulary", text);
  return 0;
}

static void index_bytes(Bpe *bpe) {
  const Vocabulary *v = &bpe->vocabulary;
  for (int i = 0; i < 256; i++) {
    const char c = (char)i;
    bpe->byte[i] = vocabulary_find(v, &c, 1, bpe->byte_level);
    bpe->fallback[i] = vocabulary_find(v, short_text("<0x%02X>", i).text, 6, bpe->byte_level);
  }
}

static int read_model(Bpe *bpe, const cJSON *model, Error *err) {
  const char *type = component_string(model, "type", err);
  bpe->ignore_merges = component_flag(model, "ignore_merges", false, err);
  bpe->fuse_unknown = component_flag(model, "fuse_unk", false, err);
  bpe->byte_fallback = component_flag(model, "byte_fallback", false, err);
  check_empty(model, "dropout", err);
  check_empty(model, "continuing_subword_prefix", err);
  check_empty(model, "end_of_word_suffix", err);
  if (strcmp(type, "BPE") != 0) error_set(err, "its type %.50s is not supported", type);
  return err->text[0] ? -1 : 0;
}

// ---- Where a text may be cut

static bool is_meta(const char *text, size_t bytes) { // U+2581
  return bytes >= 3 && memcmp(text, "\xe2\x96\x81", 3) == 0;
}

// A bit of `joined`, by the characters that meet at text[at].
typedef struct Meeting {
  unsigned char before, behind;
} Meeting;

static Meeting meeting(const char *text, size_t bytes, size_t at) {
  const bool before = at >= 3 && is_meta(text + at - 3, 3), behind = is_meta(text + at, bytes - at);
  return (Meeting){before ? 0xff : (unsigned char)text[at - 1],
                   behind ? 0xff : (unsigned char)text[at]};
}

static bool begins_character(char byte) {
  return ((unsigned char)byte & 0xc0) != 0x80;
}

// A token that stands for something else than its own text.
static bool stands_in(const Bpe *bpe, int32_t id) {
  if (id == bpe->unknown) return true;
  const char first = *vocabulary_text(&bpe->vocabulary, id);
  for (int i = 0; i < 256 && bpe->byte_fallback && first == '<'; i++)
    if (bpe->fallback[i] == id) return true;
  return false;
}

// No unknown token may come of it, since two of them beside each other can become one.
static void find_breaks(Bpe *bpe) {
  const Vocabulary *v = &bpe->vocabulary;
  bpe->breaks = !bpe->byte_level && !bpe->ignore_merges && bpe->byte_fallback;
  for (int i = 0; i < 256; i++) bpe->breaks &= bpe->fallback[i] != NO_TOKEN;
  for (size_t i = 0; bpe->breaks && i < bpe->merges.count; i++) {
    const Merge *m = &bpe->merges.list[i];
    const char *text = vocabulary_text(v, m->merged);
    const size_t bytes = v->tokens[m->merged].length;
    for (size_t at = 1; at < bytes; at++) {
      const Meeting meets = meeting(text, bytes, at);
      if (begins_character(text[at])) byte_set_add(&bpe->joined[meets.before], (char)meets.behind);
    }
    if (stands_in(bpe, m->left) || stands_in(bpe, m->right)) bpe->breaks = false;
  }
}

size_t bpe_word_length(const Bpe *bpe, const char *text, size_t bytes) {
  for (size_t at = 1; at < bytes; at++) {
    if (!begins_character(text[at])) continue;
    const Meeting meets = meeting(text, bytes, at);
    if (!byte_set_has(&bpe->joined[meets.before], (char)meets.behind)) return at;
  }
  return bytes;
}

// Two unknown characters can become one token, and merged bytes spell <0x0A>.
bool bpe_hides_newlines(const Bpe *bpe) {
  if (bpe->byte['\n'] != NO_TOKEN) return false;
  const int32_t newline = bpe->fallback['\n'];
  if (!bpe->byte_fallback || newline == NO_TOKEN)
    return bpe->fuse_unknown && bpe->unknown != NO_TOKEN;
  for (size_t i = 0; i < bpe->merges.count; i++)
    if (bpe->merges.list[i].left == newline || bpe->merges.list[i].right == newline) return true;
  return false;
}

int bpe_read(Bpe *bpe, const Document *document, bool byte_level, Error *err) {
  const cJSON *model = cJSON_GetObjectItemCaseSensitive(document->tree, "model");
  bpe->byte_level = byte_level;
  if (read_model(bpe, model, err) != 0) return error_prefix(err, "%s: model", document->name);
  if (document_read_vocabulary(document, byte_level, &bpe->vocabulary, err) != 0 ||
      document_read_merges(document, byte_level, &bpe->vocabulary, &bpe->merges, err) != 0)
    return -1;
  if (read_unknown(bpe, model, err) != 0) return error_prefix(err, "%s", document->name);
  merges_index(&bpe->merges);
  index_bytes(bpe);
  find_breaks(bpe);
  for (int i = 0; byte_level && bpe->byte_fallback && i < 256; i++)
    if (bpe->byte[i] == NO_TOKEN)
      return error_set(err, "%s: byte_fallback behind ByteLevel needs a token for each byte",
                       document->name);
  return 0;
}

void bpe_close(Bpe *bpe) {
  vocabulary_close(&bpe->vocabulary);
  merges_close(&bpe->merges);
}

void bpe_scratch_close(BpeScratch *s) {
  free(s->links);
  free(s->heap.items);
}

void token_ids_push(TokenIds *list, int32_t id) {
  LIST_ROOM(list->ids, list->count, list->capacity);
  list->ids[list->count++] = id;
}

void token_ids_remove(TokenIds *list, int64_t at) {
  list->count--;
  memmove(list->ids + at, list->ids + at + 1, (size_t)(list->count - at) * sizeof *list->ids);
}

// ---- A word's symbols: the ids that are merged

// Appends <0x..> for every byte of a character, if there is one for each.
static bool push_fallback(const Bpe *bpe, TokenIds *ids, const char *text, size_t bytes) {
  if (!bpe->byte_fallback) return false;
  for (size_t i = 0; i < bytes; i++)
    if (bpe->fallback[(unsigned char)text[i]] == NO_TOKEN) return false;
  for (size_t i = 0; i < bytes; i++) token_ids_push(ids, bpe->fallback[(unsigned char)text[i]]);
  return true;
}

// In the Python package's order: an unknown character waits for the next one that has a token, and
// bytes that take the place of a character pass it by.
static void push_symbols(const Bpe *bpe, TokenIds *ids, const char *word, size_t bytes) {
  bool unknown = false; // it waits
  for (size_t i = 0, n; i < bytes; i += n) {
    const unsigned char c = (unsigned char)word[i];
    n = bpe->byte_level || c < 0x80 ? 1 : utf8_length(word + i, bytes - i);
    const bool character = n > 0;
    n += !character;
    const int32_t id = n == 1 && (bpe->byte_level || c < 0x80) ? bpe->byte[c]
                       : character ? vocabulary_find(&bpe->vocabulary, word + i, n, false)
                                   : NO_TOKEN;
    if (id == NO_TOKEN && push_fallback(bpe, ids, word + i, n)) continue;
    if (id == NO_TOKEN && bpe->unknown == NO_TOKEN) continue;
    if (unknown && (id != NO_TOKEN || !bpe->fuse_unknown)) token_ids_push(ids, bpe->unknown);
    unknown = id == NO_TOKEN;
    if (id != NO_TOKEN) token_ids_push(ids, id);
  }
  if (unknown) token_ids_push(ids, bpe->unknown);
}

// ---- Merging: always the pair of the lowest rank, and of those the leftmost

enum { SHORT_WORD = 48 }; // symbols up to which looking at all pairs beats a heap

// Of ids[count]; returns how many are left.
static int32_t merge_short(const Merges *merges, int32_t *ids, int32_t count) {
  const Merge *pairs[SHORT_WORD]; // [i]: of the ids i and i + 1
  for (int32_t i = 0; i + 1 < count; i++) pairs[i] = merges_find(merges, ids[i], ids[i + 1]);
  for (;;) {
    int32_t best = -1, rank = INT32_MAX;
    for (int32_t i = 0; i + 1 < count; i++)
      if (pairs[i] && pairs[i]->rank < rank) best = i, rank = pairs[i]->rank;
    if (best < 0) return count;
    ids[best] = pairs[best]->merged;
    count--;
    for (int32_t i = best + 1; i < count; i++) {
      ids[i] = ids[i + 1];
      if (i + 1 < count) pairs[i] = pairs[i + 1];
    }
    if (best > 0) pairs[best - 1] = merges_find(merges, ids[best - 1], ids[best]);
    if (best + 1 < count) pairs[best] = merges_find(merges, ids[best], ids[best + 1]);
  }
}

// The merge of the ids at `left` and `right`, if there is one, waits: that of the lowest rank is
// next.
static void push_merge(Heap *heap, const Merges *merges, const int32_t *ids, int32_t left,
                       int32_t right) {
  const Merge *merge = merges_find(merges, ids[left], ids[right]);
  if (merge) heap_push(heap, (uint64_t)merge->rank, (uint64_t)left);
}

static int32_t merge_long(const Merges *merges, BpeScratch *s, int32_t *ids, int32_t count) {
  if ((size_t)count > s->capacity) {
    s->capacity = 2 * (size_t)count;
    s->links = xrealloc(s->links, s->capacity * sizeof *s->links);
  }
  Link *const links = s->links;
  s->heap.count = 0;
  for (int32_t i = 0; i < count; i++) {
    links[i] = (Link){i - 1, i + 1};
    if (i + 1 < count) push_merge(&s->heap, merges, ids, i, i + 1);
  }
  while (s->heap.count > 0) {
    const HeapItem top = heap_pop(&s->heap);
    const int32_t left = (int32_t)top.second, right = links[left].next;
    if (ids[left] == NO_TOKEN || right == count) continue;
    const Merge *merge = merges_find(merges, ids[left], ids[right]);
    if (!merge || (uint64_t)merge->rank != top.first) continue; // one of them has changed since
    const int32_t previous = links[left].previous, next = links[right].next;
    ids[left] = merge->merged;
    ids[right] = NO_TOKEN;
    links[left].next = next;
    if (next < count) {
      links[next].previous = left;
      push_merge(&s->heap, merges, ids, left, next);
    }
    if (previous >= 0) push_merge(&s->heap, merges, ids, previous, left);
  }
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++)
    if (ids[i] != NO_TOKEN) ids[kept++] = ids[i];
  return kept;
}

void bpe_encode(const Bpe *bpe, BpeScratch *s, const char *word, size_t bytes, TokenIds *ids) {
  if (bpe->ignore_merges) {
    const int32_t id = vocabulary_find(&bpe->vocabulary, word, bytes, bpe->byte_level);
    if (id != NO_TOKEN) {
      token_ids_push(ids, id);
      return;
    }
  }
  const int64_t first = ids->count;
  push_symbols(bpe, ids, word, bytes);
  if (bpe->merges.count == 0 || ids->count == first) return;
  int32_t *const symbols = ids->ids + first, count = (int32_t)(ids->count - first);
  ids->count = first + (count <= SHORT_WORD ? merge_short(&bpe->merges, symbols, count)
                                            : merge_long(&bpe->merges, s, symbols, count));
}
