// The file of documents' ends and of the mask: read back as written, and one sentence for each
// fault.
#include <unistd.h>
#include <xxhash.h>

#include "data/documents.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

enum { TOKENS = 20, FILE_BYTES = DOCUMENTS_HEADER_BYTES + 3 * 4 + 3 + 8, TOKENS_SUM = 77 };

static uint64_t block_of_tokens = 0x1122334455667788;
static const TokenFacts facts = {&block_of_tokens, .checksum = TOKENS_SUM, .largest = 19};

// Documents of 5, 9 and 6 tokens, given in pieces; of the second, tokens 8 to 10 do not count.
static PathText write_three(const char *folder, const char *name) {
  const uint8_t mask[9] = {1, 1, 1, 0, 0, 0, 1, 1, 1};
  const PathText path = path_text("%s/%s.bin", folder, name);
  DocumentsWriter w = {0};
  Error err;
  documents_add(&w, 2, NULL, false);
  documents_add(&w, 3, NULL, true);
  documents_add(&w, 9, mask, true);
  documents_add(&w, 6, NULL, false);
  must(documents_write(&w, path.text, &facts, &err), &err);
  documents_writer_free(&w);
  return path;
}

TEST(ends_and_mask_are_read_back) {
  const PathText path = write_three(*state, "three");
  Documents d;
  must(documents_open(&d, path.text, TOKENS, TOKENS_SUM, &err), &err);
  assert_int_equal(d.count, 3);
  assert_int_equal(d.facts.largest, 19);
  assert_true(d.facts.sums[0] == block_of_tokens);
  assert_int_equal(d.ends[0], 5);
  assert_int_equal(d.ends[1], 14);
  assert_int_equal(d.ends[2], 20);
  for (int i = 0; i < TOKENS; i++) assert_int_equal(documents_counts(&d, i), i < 8 || i > 10);
  documents_close(&d);
}

TEST(without_a_file_the_ends_are_not_known) {
  Documents d;
  must(documents_open(&d, "/tmp/there/is/none.bin", 5, 0, &err), &err);
  assert_null(d.path);
  assert_int_equal(d.count, 0);
  documents_close(&d);
}

TEST(a_long_mask_is_read_back) {
  enum { COUNT = 100003 };
  const PathText path = path_text("%s/long.bin", (char *)*state);
  uint8_t *mask = held(xmalloc(COUNT));
  for (int i = 0; i < COUNT; i++) mask[i] = (i * 7919 >> 5) & 1;
  DocumentsWriter w = {0};
  for (int i = 0; i < COUNT; i += 1009)
    documents_add(&w, COUNT - i < 1009 ? COUNT - i : 1009, mask + i, true);
  uint64_t blocks[(COUNT + BLOCK_TOKENS - 1) / BLOCK_TOKENS] = {0};
  must(documents_write(&w, path.text, &(TokenFacts){.sums = blocks}, &err), &err);
  documents_writer_free(&w);
  Documents d;
  must(documents_open(&d, path.text, COUNT, 0, &err), &err);
  assert_int_equal(d.count, 100);
  for (int i = 0; i < COUNT; i++)
    if (documents_counts(&d, i) != mask[i]) fail_msg("token %d", i);
  documents_close(&d);
}

// ---- Faults

typedef struct Bytes {
  const char *folder;
  unsigned char at[FILE_BYTES + 1];
} Bytes;

static Bytes good_bytes(const char *folder) {
  Bytes b = {.folder = folder};
  size_t bytes;
  write_three(folder, "good");
  const char *data = file_text(path_text("%s/good.docs", folder).text, &bytes);
  memcpy(b.at, data, bytes);
  return b;
}

// A writer's mistake: the checksum is that of the bytes.
static void seal(Bytes *b) {
  XXH3_state_t *hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  XXH3_64bits_update(hash, b->at, 40);
  XXH3_64bits_update(hash, b->at + 48, FILE_BYTES - 48);
  const uint64_t checksum = XXH3_64bits_digest(hash);
  memcpy(b->at + 40, &checksum, 8);
  XXH3_freeState(hash);
}

static void refused(const Bytes *b, size_t size, uint64_t tokens_sum, const char *says) {
  Documents d;
  Error err = {""};
  must(file_write(path_text("%s/faulty.docs", b->folder).text, b->at, size, &err), &err);
  if (documents_open(&d, path_text("%s/faulty.bin", b->folder).text, TOKENS, tokens_sum, &err) !=
      -1)
    fail_msg("accepted: %s", says);
  assert_says(&err, "faulty.docs");
  assert_says(&err, says);
  assert_null(d.path);
}

static Bytes with(Bytes b, size_t at, uint32_t value) {
  memcpy(b.at + at, &value, sizeof value);
  seal(&b);
  return b;
}

TEST(each_fault_has_its_sentence) {
  static const struct {
    size_t at;
    uint32_t value;
    const char *says;
  } rows[] = {
      {0, 5, "does not hold the ends of documents: it begins with 5, 2, not"},
      {4, 3, "it begins with 1935896420, 3, not 1935896420, 1 or 2"},
      {4, 1, "too long: its header promises 63 bytes"},
      // 21 tokens have as many bytes of mask.
      {8, TOKENS + 1, "document 3 of 3 ends at token 20 of 21, before the last"},
      {56, TOKENS + 1, "document 3 of 3 ends at token 21 of 20, beyond the last"},
      {52, 5, "document 2 of 3 ends at token 5 of 20, not behind the end"},
      {48, 0, "document 1 of 3 ends at token 0 of 20, not behind the end"},
      {24, TOKENS + 1, "damaged header: 21 documents in 20 tokens"},
      {24, 0, "damaged header: 0 documents in 20 tokens"},
      {12, 1, "damaged header: 3 documents in 4294967316 tokens"}, // beyond 2^31 tokens
  };
  const Bytes good = good_bytes(*state);
  const Bytes same = with(good, 0, DOCUMENTS_MAGIC);
  assert_memory_equal(same.at, good.at, FILE_BYTES);
  refused(&good, FILE_BYTES - 1, TOKENS_SUM, "cut short: its header promises 71 bytes");
  refused(&good, FILE_BYTES + 1, TOKENS_SUM, "too long: its header promises 71 bytes");
  refused(&good, DOCUMENTS_HEADER_BYTES - 1, TOKENS_SUM, "47 bytes, less than the header's 48");
  refused(&good, FILE_BYTES, TOKENS_SUM + 1, "belongs to other tokens");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const Bytes b = with(good, rows[i].at, rows[i].value);
    refused(&b, FILE_BYTES, TOKENS_SUM, rows[i].says);
  }
}

TEST(version_1_is_read_and_has_the_same_content) {
  const PathText path = write_three(*state, "older");
  Documents two, one;
  must(documents_open(&two, path.text, TOKENS, TOKENS_SUM, &err), &err);
  make_version_1(path_text("%s/older.docs", (char *)*state).text);
  must(documents_open(&one, path.text, TOKENS, TOKENS_SUM, &err), &err);
  assert_int_equal(one.count, 3);
  assert_null(one.facts.sums);
  assert_true(one.facts.checksum == TOKENS_SUM);
  assert_true(one.content == two.content);
  documents_close(&one);
  documents_close(&two);
}

TEST(every_flipped_bit_is_found) {
  Bytes b = good_bytes(*state);
  for (size_t i = 0; i < 8 * FILE_BYTES; i++) {
    b.at[i / 8] ^= (unsigned char)(1u << i % 8);
    refused(&b, FILE_BYTES, TOKENS_SUM, "");
    b.at[i / 8] ^= (unsigned char)(1u << i % 8);
  }
}

TEST(every_cut_is_found) {
  const Bytes b = good_bytes(*state);
  for (size_t size = 0; size < FILE_BYTES; size++) refused(&b, size, TOKENS_SUM, "");
}

TEST(a_full_disk_is_an_error) {
  DocumentsWriter w = {0};
  documents_add(&w, 3, NULL, true);
  const PathText path = path_text("%s/full", (char *)*state);
  assert_int_equal(symlink("/dev/full", path_text("%s.docs", path.text).text), 0);
  expect_error(documents_write(&w, path.text, &facts, &err), &err, "No space left on device");
  documents_writer_free(&w);
}

// ---- Beside token files

TEST(the_files_of_two_datasets_are_refused) {
  const int32_t tokens[4] = {1, 2, 3, 4};
  for (int i = 0; i < 2; i++) {
    TokenWriter t;
    DocumentsWriter w = {0};
    const PathText path = path_text("%s/set-%d.bin", (char *)*state, i);
    must(token_writer_open(&t, path.text, 258, 5, &err), &err);
    must(token_writer_append(&t, tokens + i, 3, &err), &err);
    must(token_writer_finish(&t, &err), &err);
    documents_add(&w, 3, NULL, true);
    must(documents_write(&w, path.text, &t.facts, &err), &err);
    token_writer_close(&t);
    documents_writer_free(&w);
  }
  TokenFile file;
  const PathText path = path_text("%s/set-0.bin", (char *)*state),
                 mine = path_text("%s/set-0.docs", (char *)*state),
                 other = path_text("%s/set-1.docs", (char *)*state);
  must(tokens_open(&file, path.text, &err), &err);
  assert_int_equal(file.documents.count, 1);
  tokens_close(&file);
  must(path_rename(other.text, mine.text, &err), &err);
  expect_error(tokens_open(&file, path.text, &err), &err,
               "set-0.docs' belongs to other tokens than those in the file beside it");
}

TEST_GROUP(make_folder, NULL);
