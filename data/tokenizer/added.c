#include "data/tokenizer/added.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/json.h"
#include "data/tokenizer/component.h"

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

static int read_flags(AddedToken *token, const cJSON *item, Error *err) {
  const struct {
    const char *key;
    bool *value;
  } flags[] = {{"special", &token->special},
               {"normalized", &token->normalized},
               {"single_word", &token->single_word},
               {"lstrip", &token->left},
               {"rstrip", &token->right}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    if (component_flag(item, flags[i].key, flags[i].value, err) != 0) return -1;
  return 0;
}

static int make_pattern(AddedToken *token, const Normalizer *normalizer, Error *err) {
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
               const Normalizer *normalizer, Vocabulary *vocabulary, Error *err) {
  if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
    return error_set(err, "added_tokens is not a list");
  int32_t next = vocabulary->count;
  for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
    AddedToken token = {0};
    int64_t id = -1;
    const char *content = component_string(item, "content", err);
    if (!content || component_count(item, "id", &id, err) != 0 ||
        read_flags(&token, item, err) != 0)
      return error_prefix(err, "added_tokens");
    const int32_t known = vocabulary_find_named(vocabulary, content, byte_level);
    token.id = known >= 0 ? known : next++;
    if (token.id != id)
      return error_set(err,
                       "the added token '%.100s' has the id %" PRId64
                       ", but its id in the vocabulary, or the next free one, is %d",
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

const AddedToken *added_next(const AddedTokens *added, const char *text, size_t bytes, size_t at,
                             size_t *begin, size_t *end) {
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
