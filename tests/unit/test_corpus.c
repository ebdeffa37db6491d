// The documents of files: fields of JSON, separators, compressed files, and where long documents
// are cut. What is read must not depend on how it was packed.
#include <zlib.h>
#include <zstd.h>

#include "data/prepare/corpus.h"
#include "data/tokenizer/cut.h"
#include "tests/support/data_test.h"
#include "tests/support/test.h"

// ---- One line of .jsonl

static void field_is(const char *line, const char *field, const char *expected, size_t bytes) {
  char copy[512];
  const size_t length = strlen(line);
  memcpy(copy, line, length);
  Span text;
  Error err;
  must(jsonl_text(copy, length, field, &text, &err), &err);
  assert_int_equal(text.bytes, bytes);
  assert_memory_equal(text.text, expected, bytes);
}

#define FIELD_IS(line, field, expected) field_is(line, field, expected, sizeof expected - 1)

TEST(a_field_is_unescaped) {
  FIELD_IS("{\"text\":\"a\"}", "text", "a");
  FIELD_IS(" { \"b\" : [ 1 , {\"text\" : 2} ] , \"text\" : \"a\" } ", "text", "a");
  FIELD_IS("{\"text\":\"\"}", "text", "");
  FIELD_IS("{\"t\\u0065xt\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "text", "\"\\/\b\f\n\r\t");
  FIELD_IS("{\"text\":\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00.\"}", "text", "Aé€😀.");
  FIELD_IS("{\"text\":\"a\\u0000b\"}", "text", "a\0b");
  FIELD_IS("{\"text\":\"\\ud800|\\udc00\\ud800\\u0041\"}", "text",
           "\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd"
           "A");
  FIELD_IS("{\"text\":\"\xff\xc3\"}", "text", "\xff\xc3");
  FIELD_IS("{\"n\":[0,-0.5e+7,1E2,true,false,null,\"\",{},[]],\"text\":\"x\"}", "text", "x");
}

TEST(a_dotted_field_lies_in_objects) {
  FIELD_IS("{\"c\":{\"b\":1},\"a\":{\"x\":{},\"b\":{\"c\":\"deep\"}}}", "a.b.c", "deep");
  FIELD_IS("{\"b\":\"no\",\"a\":{\"b\":\"yes\"}}", "a.b", "yes");
}

TEST(values_too_deep_in_each_other_are_refused) {
  for (int object = 0; object < 2; object++) {
    const size_t depth = 100000, unit = object ? 5 : 1;
    char *line = held(xmalloc(6 + depth * unit));
    Span text;
    memcpy(line, "{\"x\":", 5);
    for (size_t i = 0; i < depth; i++) memcpy(line + 5 + i * unit, object ? "{\"x\":" : "[", unit);
    expect_error(jsonl_text(line, 5 + depth * unit, "text", &text, &err), &err, "512 deep");
  }
}

// ---- Where long documents are cut

enum { MIB = 1 << 20 };
static const ByteSet none;

TEST(a_long_text_is_cut_behind_a_newline_between_words) {
  const size_t bytes = 3 * MIB;
  char *text = held(xmalloc(bytes));
  memset(text, 'a', bytes);
  size_t searched = 0;
  text[1000] = '\n';
  assert_int_equal(cut_piece(&none, text, bytes, false, &searched), 1001);
  static const char *const unsafe[] = {
      "\n\n", "\n ", " \n", "\r\n", "\n\xc2\xa0", "\xe3\x80\x80\n", "\n\xe2\x80\x83", "\t\n"};
  for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++) {
    memset(text, 'a', bytes);
    memcpy(text + 2000, unsafe[i], strlen(unsafe[i]));
    text[1000] = '\n';
    assert_int_equal(cut_piece(&none, text, bytes, false, &searched), 1001);
  }
  static const char *const safe[] = {"\xc3\xa9\n\xc3\xa9", "\xe3\x81\x82\n\xe3\x81\x82", "}\n}",
                                     "\xf0\x9f\x98\x80\n\xf0\x9f\x98\x80"};
  for (size_t i = 0; i < sizeof safe / sizeof *safe; i++) {
    memset(text, 'a', bytes);
    memcpy(text + 2000, safe[i], strlen(safe[i]));
    assert_int_equal(cut_piece(&none, text, bytes, false, &searched),
                     2001 + strcspn(safe[i], "\n"));
  }
  memset(text, 'a', bytes);
  text[2 * MIB] = '\n';
  assert_int_equal(cut_piece(&none, text, bytes, false, &searched), 2 * MIB + 1);
  ByteSet joined = {0};
  byte_set_add(&joined, 'b');
  memcpy(text + 1000, "\na\nb", 4);
  searched = 0;
  assert_int_equal(cut_piece(&joined, text, bytes, false, &searched), 1001);
}

TEST(more_is_asked_for_until_a_place_is_known) {
  const size_t bytes = (size_t)17 * MIB;
  char *text = held(xmalloc(bytes));
  for (size_t i = 0; i < bytes; i++) text[i] = "\xe2\x82\xac"[i % 3];
  size_t searched = 0;
  assert_int_equal(cut_piece(&none, text, 0, false, &searched), 0);
  assert_int_equal(cut_piece(&none, text, MIB, false, &searched), 0);
  assert_int_equal(cut_piece(&none, text, MIB, true, &searched), MIB);
  for (size_t known = 2 * MIB; known <= (size_t)16 * MIB; known += 2 * MIB)
    assert_int_equal(cut_piece(&none, text, known, false, &searched), 0);
  assert_int_equal(cut_piece(&none, text, 15 * MIB, true, &searched), 15 * MIB);
  const size_t cut = cut_piece(&none, text, bytes, false, &searched);
  assert_int_equal(cut, (size_t)16 * MIB / 3 * 3);
}

// ---- Whole files

typedef enum Compression { PLAIN, GZIP, GZIP_MEMBERS, ZSTD, ZSTD_FRAMES, PACKINGS } Compression;

static void write_gzip(const char *path, const char *mode, const char *text, size_t bytes) {
  gzFile file = gzopen(path, mode);
  assert_non_null(file);
  if (bytes > 0) assert_int_equal(gzwrite(file, text, (unsigned)bytes), (int)bytes);
  assert_int_equal(gzclose(file), Z_OK);
}

static void write_zstd(const char *path, const char *mode, const char *text, size_t bytes) {
  const size_t room = ZSTD_compressBound(bytes);
  char *packed = held(xmalloc(room));
  const size_t n = ZSTD_compress(packed, room, text, bytes, 3);
  assert_false(ZSTD_isError(n));
  FILE *file = fopen(path, mode);
  assert_int_equal(fwrite(packed, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static void write_packed(const char *path, Compression packing, const char *text, size_t bytes) {
  Error err;
  const size_t half = bytes / 2;
  if (packing == PLAIN) must(file_write(path, text, bytes, &err), &err);
  if (packing == GZIP) write_gzip(path, "wb", text, bytes);
  if (packing == ZSTD) write_zstd(path, "wb", text, bytes);
  if (packing == GZIP_MEMBERS) {
    write_gzip(path, "wb", text, half);
    write_gzip(path, "ab", text, 0);
    write_gzip(path, "ab", text + half, bytes - half);
  }
  if (packing == ZSTD_FRAMES) {
    write_zstd(path, "wb", text, half);
    write_zstd(path, "ab", text, 0);
    write_zstd(path, "ab", text + half, bytes - half);
  }
}

// All documents as one text: each between '<' and '>', its pieces joined.
static char *documents_of(const Corpus *options, const char *path) {
  Corpus corpus = *options;
  CorpusReader reader;
  CorpusBlock block;
  Error err;
  must(corpus_add(&corpus, path, false, &err), &err);
  int64_t offset = 0;
  size_t used = 0;
  char *all = xmalloc(16);
  int status;
  corpus_open(&reader, &corpus);
  while ((status = corpus_next(&reader, &block, &err)) > 0) {
    all = xrealloc(all, used + (size_t)block.bytes + 3);
    assert_int_equal(block.offset, offset);
    if (offset == 0) all[used++] = '<';
    memcpy(all + used, block.text, (size_t)block.bytes);
    used += (size_t)block.bytes;
    offset = block.last ? 0 : offset + block.bytes;
    if (block.last || block.size >= 0)
      assert_in_range(block.offset + block.bytes, block.last ? block.size : 0, block.size);
    if (block.last) all[used++] = '>';
  }
  must(status, &err);
  assert_int_equal(offset, 0);
  corpus_close(&reader);
  corpus_free(&corpus);
  all[used] = '\0';
  return held(all);
}

static void documents_are(const Corpus *options, const char *folder, const char *name,
                          const char *text, const char *expected) {
  char *path = held_text("%s/%s", folder, name);
  for (Compression packing = PLAIN; packing < PACKINGS; packing++) {
    write_packed(path, packing, text, strlen(text));
    char *found = documents_of(options, path);
    if (strcmp(found, expected) != 0)
      fail_msg("packing %d: %.200s, not %.200s", packing, found, expected);
  }
}

TEST(a_separator_ends_documents) {
  const Corpus plain = {0}, split = {.separator = "<|end|>"};
  documents_are(&plain, *state, "a.txt", "\na\n<|end|>\nb\n", "<\na\n<|end|>\nb\n>");
  documents_are(&split, *state, "a.txt", "a\n<|end|>\nb\n", "<a><b\n>");
  documents_are(&split, *state, "a.txt",
                "\r\n<|end|><|end|>\n\n a\r\n\r\n<|end|>\r\n\nb <|end|> c<|end|>\n",
                "< a><b >< c>");
  documents_are(&split, *state, "a.txt", "a<|end|", "<a<|end|>");
  documents_are(&split, *state, "a.txt", "<|end<|end|>|>", "<<|end><|>>");
}

TEST(lines_are_documents_whatever_the_end_of_the_file) {
  const Corpus plain = {0}, other = {.field = "x.y"};
  documents_are(&plain, *state, "a.jsonl",
                "{\"text\":\"a\"}\n\n{\"text\":\"\"}\r\n{\"text\":\"b\"}", "<a><b>");
  documents_are(&plain, *state, "a.jsonl.gz", "\xef\xbb\xbf{\"text\":\"a\"}\n", "<a>");
  documents_are(&other, *state, "a.jsonl.zst", "{\"x\":{\"y\":\"a\"}}\n", "<a>");
}

// A separator at, before and behind every border of blocks and pieces.
TEST(documents_of_any_length_come_whole) {
  const Corpus split = {.separator = "\n--\n"};
  char *path = held_text("%s/long.txt", (char *)*state);
  const size_t sizes[] = {MIB - 5, MIB, 1, MIB + 4, 5 * MIB + 17, 2, 3 * MIB};
  size_t used = 0, expected_used = 0;
  char *text = held(xmalloc(16 * MIB)), *expected = held(xmalloc(16 * MIB));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    expected[expected_used++] = '<';
    for (size_t k = 0; k < sizes[i]; k++) {
      const char c = k % 61 == 60 && k + 1 < sizes[i] ? '\n' : (char)('a' + (k * 7 + i) % 26);
      text[used++] = expected[expected_used++] = c;
    }
    expected[expected_used++] = '>';
    memcpy(text + used, "\n--\n", 4);
    used += 4;
  }
  expected[expected_used] = '\0';
  for (Compression packing = PLAIN; packing < PACKINGS; packing++) {
    write_packed(path, packing, text, used);
    char *found = documents_of(&split, path);
    assert_int_equal(strlen(found), expected_used);
    assert_memory_equal(found, expected, expected_used);
  }
}

// Reads it to its end, and gives the sentence.
static int read_all(const char *path, Error *err) {
  Corpus corpus = {0};
  CorpusReader reader;
  CorpusBlock block;
  int status = corpus_add(&corpus, path, false, err);
  corpus_open(&reader, &corpus);
  while (status == 0 && (status = corpus_next(&reader, &block, err)) > 0) status = 0;
  corpus_close(&reader);
  corpus_free(&corpus);
  return status;
}

// Cut at any length, and with any byte flipped, a packed file gives a sentence or, where a flipped
// bit means nothing, the text; never silence about a missing part.
TEST(a_damaged_file_is_refused) {
  char *path = held_text("%s/damaged.jsonl", (char *)*state);
  char text[6000] = "";
  for (int i = 0; i < 100; i++)
    snprintf(text + strlen(text), 60, "{\"text\": \"line %d %d\"}\n", i * i * 7919, i);
  for (Compression packing = GZIP; packing < PACKINGS; packing++) {
    size_t bytes;
    write_packed(path, packing, text, strlen(text));
    must(read_all(path, &err), &err);
    char *data = file_text(path, &bytes); // and room for one byte
    int complete = 0;
    for (size_t n = 5; n < bytes; n++) {
      must(file_write(path, data, n, &err), &err);
      err.text[0] = '\0';
      if (read_all(path, &err) == 0)
        complete++; // cut between two members or frames
      else
        assert_says(&err, "damaged.jsonl'");
    }
    assert_in_range(complete, 0, packing == GZIP || packing == ZSTD ? 0 : 2);
    if (packing == GZIP || packing == GZIP_MEMBERS) {
      data[bytes / 2] ^= 0x10;
      must(file_write(path, data, bytes, &err), &err);
      assert_int_equal(read_all(path, &err), -1);
      data[bytes / 2] ^= 0x10;
      data[bytes] = 'x';
      must(file_write(path, data, bytes + 1, &err), &err);
      expect_error(read_all(path, &err), &err, "is not gzip");
    }
  }
}

TEST_GROUP(make_folder, NULL);
