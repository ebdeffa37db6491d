// Text that ./prepare cuts into pieces and encodes on several threads has the ids of the whole.
#include "base/rng.h"
#include "data/prepare/encoding.h"
#include "data/tokenizer/cut.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/train.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

// Code, prose, blank lines, numbers, several scripts, spaces at line ends.
static char *mixed_text(size_t bytes) {
  static const char *const words[] = {"for (int i = 0; i < n; i++)",
                                      "  return x;",
                                      "\n",
                                      "\n\n  ",
                                      "The fox",
                                      "jumps ",
                                      "1234567",
                                      "\t",
                                      "été",
                                      "漢字\n",
                                      "don't",
                                      " \n",
                                      ".\n",
                                      "\r\n",
                                      "{",
                                      "}\n",
                                      "日本語。\n",
                                      "😀\n",
                                      "x\ny",
                                      " ",
                                      "!!\n",
                                      "/* */"};
  char *text = held(xmalloc(bytes + 64));
  size_t used = 0;
  for (uint64_t i = 0; used < bytes; i++) {
    const char *word = words[rng_u64(1, i) % (sizeof words / sizeof *words)];
    memcpy(text + used, word, strlen(word));
    used += strlen(word);
  }
  text[used] = '\0';
  return text;
}

static Tokenizer *train_tokenizer(const char *folder, const char *text, size_t bytes) {
  Error err;
  const BpeOptions options = {.vocab_size = 400, .pattern = LLAMA3_PATTERN, .threads = 1};
  BpeTrainer *trainer = must_make(bpe_trainer_open(&options, &err), &err);
  must(bpe_trainer_add(trainer, text, bytes, &err), &err);
  int status;
  while ((status = bpe_trainer_step(trainer, 1000, &err)) > 0) continue;
  must(status ? status : bpe_trainer_save(trainer, folder, &err), &err);
  bpe_trainer_close(trainer);
  return open_tokenizer(folder);
}

static TokenIds encode_whole(const Tokenizer *tokenizer, const char *text, size_t bytes) {
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  Encoder *encoder = open_encoder(tokenizer);
  TokenIds ids = {0};
  Error err;
  token_ids_push(&ids, facts->bos);
  must(encoder_append(encoder, text, bytes, false, &ids, &err), &err);
  token_ids_push(&ids, facts->eos);
  held(ids.ids);
  return ids;
}

// Every piece in a batch of its own, in the order in which they come back.
static TokenIds encode_pieces(const Tokenizer *tokenizer, const char *text, size_t bytes,
                              int threads, int *pieces) {
  Error err;
  Encoding *encoding = encoding_open(tokenizer, NULL, false, threads, &err);
  TokenIds all = {0};
  size_t at = 0;
  *pieces = 0;
  for (bool more = true; more;) {
    TextBatch *batch = encoding_free_batch(encoding);
    if (batch && at < bytes) {
      size_t searched = 0;
      const size_t n =
          cut_piece(&tokenizer_facts(tokenizer)->joined, text + at, bytes - at, true, &searched);
      const Segment segment = {.first = at == 0, .last = at + n == bytes, .file = "test"};
      text_batch_add(batch, text + at, n, segment);
      encoding_give(encoding, batch);
      at += n;
      ++*pieces;
      continue;
    }
    TextBatch *done = encoding_take(encoding, true);
    more = done != NULL;
    if (!done) continue;
    assert_false(done->failed);
    for (int64_t i = 0; i < done->ids.count; i++) token_ids_push(&all, done->ids.ids[i]);
    encoding_return(encoding, done);
  }
  encoding_close(encoding);
  held(all.ids);
  return all;
}

TEST(pieces_on_any_number_of_threads_have_the_ids_of_the_whole) {
  enum { BYTES = 9 << 20, TRAIN_BYTES = 100000 };
  char *text = mixed_text(BYTES);
  const size_t bytes = strlen(text);
  Tokenizer *tokenizer = train_tokenizer(*state, text, TRAIN_BYTES);
  TokenIds whole = encode_whole(tokenizer, text, bytes);
  assert_true(whole.count < (int64_t)bytes / 2); // it does merge
  for (int threads = 1; threads <= 3; threads++) {
    int pieces;
    TokenIds cut = encode_pieces(tokenizer, text, bytes, threads, &pieces);
    assert_in_range(pieces, 9, 11);
    assert_int_equal(cut.count, whole.count);
    assert_memory_equal(cut.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids);
  }
}

// Every place that is safe to cut, not only those that pieces of a MiB happen to meet at.
TEST(a_cut_at_any_safe_place_keeps_the_ids) {
  enum { BYTES = 20000, MIB = 1 << 20 };
  char *text = mixed_text(BYTES);
  const size_t bytes = strlen(text);
  Tokenizer *tokenizer = train_tokenizer(*state, text, bytes);
  TokenIds whole = encode_whole(tokenizer, text, bytes);
  // Behind a MiB of letters without a newline, the first safe place is found.
  char *long_text = held(xmalloc(MIB + bytes));
  memset(long_text, 'a', MIB);
  memcpy(long_text + MIB, text, bytes);
  Encoder *encoder = open_encoder(tokenizer);
  int cuts = 0;
  for (size_t searched = 0, at = 0;; cuts++) {
    searched = MIB + at;
    at = cut_piece(&tokenizer_facts(tokenizer)->joined, long_text, MIB + bytes, true, &searched) -
         MIB;
    if (at >= bytes) break;
    TokenIds ids = {0};
    token_ids_push(&ids, tokenizer_facts(tokenizer)->bos);
    must(encoder_append(encoder, text, at, false, &ids, &err), &err);
    must(encoder_append(encoder, text + at, bytes - at, true, &ids, &err), &err);
    token_ids_push(&ids, tokenizer_facts(tokenizer)->eos);
    assert_int_equal(ids.count, whole.count);
    assert_memory_equal(ids.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids);
    free(ids.ids);
  }
  assert_in_range(cuts, 300, 3000);
}

// A vocabulary without a pre-tokenizer, whose tokens hold a newline and what follows: "c\nd",
// "\ne".
TEST(a_cut_spares_what_tokens_have_across_a_newline) {
  enum { LINES = 400000 };
  static const char json[] =
      "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"c\":0,\"d\":1,\"e\":2,"
      "\"f\":3,"
      "\"\\n\":4,\"c\\n\":5,\"c\\nd\":6,\"\\ne\":7},\"merges\":[[\"c\",\"\\n\"],[\"c\\n\",\"d\"],"
      "[\"\\n\",\"e\"]]},\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"special\":true},"
      "{\"id\":9,\"content\":\"</s>\",\"special\":true}],\"post_processor\":{\"type\":"
      "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
      "\"ids\":[8]}}}}";
  Tokenizer *tokenizer = parse_tokenizer(json);
  char *text = held(xmalloc(3 * LINES));
  for (size_t i = 0; i < LINES; i++) // of ten lines one begins with f, which nothing is joined with
    memcpy(text + 3 * i, i % 10 == 0 ? "fc\n" : i % 2 ? "df\n" : "ec\n", 3);
  int pieces;
  TokenIds whole = encode_whole(tokenizer, text, 3 * LINES),
           cut = encode_pieces(tokenizer, text, 3 * LINES, 1, &pieces);
  assert_int_equal(pieces, 2);
  assert_int_equal(cut.count, whole.count);
  assert_memory_equal(cut.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids);
}

TEST_GROUP(make_folder, NULL);
