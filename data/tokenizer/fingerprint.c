// The fingerprint is a hash of what decides between text and ids, in this order and form for good:
// token files carry it. begin and end are not in it, since ids mean the same whatever they are.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data/tokenizer/tokenizer_parts.h"

static void put_number(XXH3_state_t *hash, int64_t number) {
  XXH3_64bits_update(hash, &number, sizeof number);
}

static void put_text(XXH3_state_t *hash, const char *text, size_t bytes) {
  put_number(hash, (int64_t)bytes);
  XXH3_64bits_update(hash, text, bytes);
}

static void put_string(XXH3_state_t *hash, const char *string) {
  put_text(hash, string ? string : "", string ? strlen(string) : 0);
}

static void put_bpe(XXH3_state_t *hash, const Bpe *bpe) {
  const Vocabulary *v = &bpe->vocabulary;
  put_number(hash, bpe->byte_level);
  put_number(hash, bpe->ignore_merges);
  put_number(hash, bpe->byte_fallback);
  put_number(hash, bpe->unknown == NO_TOKEN ? NO_TOKEN : bpe->unknown * 2 + bpe->fuse_unknown);
  put_number(hash, v->size);
  for (int32_t id = 0; id < v->size; id++) {
    put_number(hash, v->tokens[id].there * 2 + v->tokens[id].raw);
    put_text(hash, vocabulary_text(v, id), v->tokens[id].length);
  }
  put_number(hash, (int64_t)bpe->merges.count);
  for (size_t i = 0; i < bpe->merges.count; i++) {
    put_number(hash, bpe->merges.list[i].left);
    put_number(hash, bpe->merges.list[i].right);
  }
}

static void put_added(XXH3_state_t *hash, const AddedTokens *added) {
  put_number(hash, (int64_t)added->count);
  for (size_t i = 0; i < added->count; i++) {
    const AddedToken *t = &added->tokens[i];
    put_number(hash, t->id);
    put_string(hash, t->content);
    put_number(hash, t->special + 2 * t->single_word + 4 * t->left + 8 * t->right);
  }
}

static void put_normalizer(XXH3_state_t *hash, const Normalizer *n) {
  put_number(hash, n->count);
  for (int i = 0; i < n->count; i++) {
    const NormalizerStep *s = &n->steps[i];
    put_number(hash, s->kind);
    put_number(hash, s->form);
    put_number(hash, s->left + 2 * s->right);
    put_string(hash, s->from);
    put_string(hash, s->to);
  }
}

static void put_pre_tokenizer(XXH3_state_t *hash, const PreTokenizer *p) {
  put_number(hash, p->count);
  for (int i = 0; i < p->count; i++) {
    const CutStep *s = &p->steps[i];
    put_number(hash, s->kind);
    put_number(hash, s->scheme);
    put_number(hash, s->behavior * 2 + s->invert);
    put_string(hash, s->prefix);
    put_string(hash, s->pattern);
  }
}

static void put_decoder(XXH3_state_t *hash, const DecodeSteps *d) {
  put_number(hash, d->spaces);
  put_number(hash, d->count);
  for (int i = 0; i < d->count; i++) {
    const DecodeStep *s = &d->steps[i];
    put_number(hash, s->kind);
    put_number(hash, s->start_is_empty + 2 * s->fused);
    put_number(hash, s->left);
    put_number(hash, s->right);
    put_string(hash, s->from);
    put_string(hash, s->to);
  }
}

uint64_t tokenizer_fingerprint(const Tokenizer *t) {
  XXH3_state_t *hash = XXH3_createState();
  if (!hash || XXH3_64bits_reset(hash) != XXH_OK) return 1;
  put_bpe(hash, &t->bpe);
  put_added(hash, &t->raw);
  put_added(hash, &t->normalized);
  put_normalizer(hash, &t->normalizer);
  put_pre_tokenizer(hash, &t->pre_tokenizer);
  put_decoder(hash, &t->decoder);
  const uint64_t result = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return result ? result : 1;
}
