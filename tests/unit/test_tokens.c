// Token files: what is written is read back, and every fault of a header is named.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokens.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

static void check_round_trip(const char *folder, int64_t vocab, int token_bytes) {
  enum { COUNT = 1000003 }; // more than the writer's buffer holds
  int32_t *tokens = held(xmalloc(COUNT * sizeof *tokens));
  int32_t *back = held(xcalloc(COUNT, sizeof *back));
  for (int64_t i = 0; i < COUNT; i++) tokens[i] = (int32_t)((i * 7919 + i / 3) % vocab);
  tokens[0] = (int32_t)(vocab - 1);
  char *path = held_text("%s/round.bin", folder);
  write_tokens(path, tokens, COUNT, vocab);
  Error err;
  TokenFile file;
  must(tokens_open(&file, path, &err), &err);
  assert_int_equal(file.count, COUNT);
  assert_int_equal(file.token_bytes, token_bytes);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_size, 1024 + (size_t)COUNT * (size_t)token_bytes);
  must(tokens_check(&file, &err), &err);
  assert_int_equal(file.documents.facts.largest, vocab - 1);
  must(tokens_read(&file, 0, COUNT, vocab, back, &err), &err);
  assert_memory_equal(tokens, back, COUNT * sizeof *tokens);
  must(tokens_read(&file, COUNT - 2, 2, vocab, back, &err), &err);
  assert_memory_equal(tokens + COUNT - 2, back, 2 * sizeof *tokens);
  tokens_close(&file);
}

TEST(uint16_tokens_are_read_back) {
  check_round_trip(*state, 65536, 2);
}

TEST(uint32_tokens_are_read_back) {
  check_round_trip(*state, 65537, 4);
}

TEST(a_file_of_no_tokens_is_valid) {
  char *path = held_text("%s/none.bin", (char *)*state);
  const int32_t unused = 0;
  write_tokens(path, &unused, 0, 258);
  TokenFile file;
  must(tokens_open(&file, path, &err), &err);
  assert_int_equal(file.count, 0);
  must(tokens_check(&file, &err), &err);
  assert_int_equal(file.documents.facts.largest, 0);
  tokens_close(&file);
}

// The bytes are spelled out, so that the format and not only the pair of reader and writer is held.
TEST(the_header_is_that_of_llm_c) {
  char *path = held_text("%s/header.bin", (char *)*state);
  const int32_t tokens[3] = {1, 258, 65535};
  write_tokens(path, tokens, 3, 65536);
  size_t bytes;
  const char *data = file_text(path, &bytes);
  assert_int_equal(bytes, 1024 + 6);
  const unsigned char start[12] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0};
  const unsigned char end[6] = {1, 0, 2, 1, 255, 255};
  assert_memory_equal(data, start, sizeof start);
  for (int i = 12; i < 1024; i++) assert_int_equal(data[i], 0);
  assert_memory_equal(data + 1024, end, sizeof end);
  write_tokens(path, tokens, 3, 128256);
  data = file_text(path, &bytes);
  assert_int_equal(bytes, 1024 + 12);
  const unsigned char wide[12] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 3, 0, 0, 0};
  assert_memory_equal(data, wide, sizeof wide);
}

// A file of 8 tokens whose header is {magic, version, count}, `size` bytes of it in all.
static void refused(const char *folder, int32_t magic, int32_t version, int32_t count, size_t size,
                    const char *why) {
  const PathText path = path_text("%s/faulty.bin", folder);
  unsigned char bytes[2048] = {0};
  const int32_t header[3] = {magic, version, count};
  memcpy(bytes, header, sizeof header);
  Error err;
  TokenFile file;
  must(file_write(path.text, bytes, size, &err), &err);
  expect_error(tokens_open(&file, path.text, &err), &err, "faulty.bin'");
  assert_says(&err, why);
  assert_null(file.path);
}

TEST(a_faulty_header_is_refused) {
  refused(*state, 20240521, 1, 8, 1024 + 16, "it begins with 20240521, 1, not 20240520, 1");
  refused(*state, 0, 0, 0, 1024, "it begins with 0, 0, not");
  refused(*state, 20240520, 2, 8, 1024 + 16, "it begins with 20240520, 2, not");
  refused(*state, 20240520, 7, 8, 1024 + 16, "it begins with 20240520, 7, not");
  refused(*state, 20240801, 1, 8, 1024 + 32, "it begins with 20240801, 1, not");
  refused(*state, 20240520, 1, -1, 1024 + 16, "number of tokens is -1");
  refused(*state, 20240801, 7, INT32_MIN, 1024, "number of tokens is -2147483648");
  refused(*state, 20240520, 1, 0, 1023, "it has 1023 bytes, less than the header's 1024");
  refused(*state, 20240520, 1, 0, 0, "it has 0 bytes");
  refused(*state, 20240520, 1, 8, 1024 + 15, "is cut short: its header promises 1040 bytes");
  refused(*state, 20240801, 7, 8, 1024 + 16, "promises 1056 bytes, but it has 1040");
  refused(*state, 20240801, 7, INT32_MAX, 1024 + 16, "promises 8589935612 bytes");
  refused(*state, 20240520, 1, 8, 1024 + 17, "is too long: its header promises 1040 bytes");
  refused(*state, 20240520, 1, 0, 1026, "is too long");
}

TEST(a_missing_file_and_a_folder_are_refused) {
  TokenFile file;
  expect_error(tokens_open(&file, "/tmp/there/is/none.bin", &err), &err,
               "'/tmp/there/is/none.bin'");
  expect_error(tokens_open(&file, *state, &err), &err, "not a regular file");
}

// The id is in the last of several pieces that a check reads.
static void check_bad_id(const char *folder, int64_t writer_vocab, int32_t bad) {
  enum { COUNT = 700001, AT = 600000 };
  int32_t *tokens = held(xmalloc(COUNT * sizeof *tokens));
  for (int i = 0; i < COUNT; i++) tokens[i] = i % 50;
  tokens[AT] = tokens[COUNT - 1] = bad;
  char *path = held_text("%s/bad.bin", folder);
  write_tokens(path, tokens, COUNT, writer_vocab);
  Error err = {""};
  TokenFile file;
  must(tokens_open(&file, path, &err), &err);
  const bool none_has_it = (uint32_t)bad >= TOKENS_MOST_IDS;
  assert_int_equal(tokens_check(&file, &err), none_has_it ? -1 : 0);
  assert_true(file.documents.facts.largest == (uint32_t)bad);
  char *says = held_text("'%s' has the token id %u", path, (uint32_t)bad);
  if (none_has_it) assert_says(&err, says);
  const int64_t first = AT - 20000, length = 30000;
  must(tokens_read(&file, first, length, 0, tokens, &err), &err);
  must(tokens_read(&file, first, AT - first, (uint32_t)bad, tokens, &err), &err);
  expect_error(tokens_read(&file, first, length, (uint32_t)bad, tokens, &err), &err, says);
  assert_says(&err, "between tokens 580000 and 610000");
  tokens_close(&file);
}

TEST(an_id_out_of_range_is_named) {
  check_bad_id(*state, 65536, 50);
  check_bad_id(*state, 65536, 65535);
  check_bad_id(*state, 128256, 128000);
  check_bad_id(*state, 128256, -1); // as uint32 the largest id there is
}

TEST(more_tokens_than_a_header_can_count_are_refused) {
  char *path = held_text("%s/many.bin", (char *)*state);
  TokenWriter w;
  const int32_t tokens[2] = {1, 2};
  must(token_writer_open(&w, path, 258, 0, &err), &err);
  w.count = (int64_t)TOKENS_MAX_COUNT - 1;
  expect_error(token_writer_append(&w, tokens, 2, &err), &err, "2147483647");
  must(token_writer_append(&w, tokens, 1, &err), &err);
  token_writer_close(&w);
}

TEST(a_full_disk_is_an_error_of_the_writer) {
  TokenWriter w;
  const int32_t tokens[2] = {1, 2};
  must(token_writer_open(&w, "/dev/full", 258, 0, &err), &err);
  must(token_writer_append(&w, tokens, 2, &err), &err);
  expect_error(token_writer_finish(&w, &err), &err, "No space left on device");
  token_writer_close(&w);
}

// The header's words are spelled out. The checksum of no tokens is XXH3-64's own test vector.
TEST(a_marked_file_says_who_made_it_and_what_it_holds) {
  char *path = held_text("%s/marked.bin", (char *)*state);
  TokenWriter w;
  const int32_t tokens[3] = {7, 258, 65535};
  for (int pieces = 0; pieces <= 3; pieces += 3) {
    must(token_writer_open(&w, path, 65536, 0x1122334455667788, &err), &err);
    for (int i = 0; i < pieces; i++) must(token_writer_append(&w, tokens + i, 1, &err), &err);
    must(token_writer_finish(&w, &err), &err);
    TokenFile file;
    must(tokens_open(&file, path, &err), &err);
    unsigned char held[12];
    const unsigned char mark[12] = {'c',  'o',  'd',  'a',  0x88, 0x77,
                                    0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    must(file_read_at(file.fd, path, 12, held, sizeof held, &err), &err);
    assert_memory_equal(held, mark, sizeof mark);
    assert_true(file.tokenizer == 0x1122334455667788);
    assert_true(file.checksum == w.facts.checksum);
    if (pieces == 0) assert_true(file.checksum == 0x2d06800538d394c2);
    must(tokens_check(&file, &err), &err);
    assert_true(file.documents.facts.checksum == file.checksum &&
                file.documents.facts.largest == w.facts.largest);
    tokens_close(&file);
    token_writer_close(&w);
  }
}

TEST(a_flipped_bit_of_a_marked_file_is_found) {
  char *path = held_text("%s/flipped.bin", (char *)*state);
  TokenWriter w;
  int32_t tokens[1000];
  for (int i = 0; i < 1000; i++) tokens[i] = i;
  must(token_writer_open(&w, path, 100000, 1, &err), &err);
  must(token_writer_append(&w, tokens, 1000, &err), &err);
  must(token_writer_finish(&w, &err), &err);
  token_writer_close(&w);
  const int fd = open(path, O_RDWR);
  for (off_t at = 1024; at < 1024 + 4000; at += 997) {
    TokenFile file;
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    const uint8_t flipped = byte ^ 1;
    assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
    must(tokens_open(&file, path, &err), &err);
    expect_error(tokens_check(&file, &err), &err, "flipped.bin' is damaged");
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    must(tokens_check(&file, &err), &err);
    // From now on it is compared as it is read.
    const int64_t token = (at - 1024) / 4;
    assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
    expect_error(tokens_read(&file, token, 1, 0, tokens, &err), &err,
                 "flipped.bin' was changed while it was in use, or is damaged: bytes 1024 to");
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    must(tokens_read(&file, token, 1, 0, tokens, &err), &err);
    tokens_close(&file);
  }
  close(fd);
}

TEST_GROUP(make_folder, NULL);
