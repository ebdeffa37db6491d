// The safetensors reader and writer: what is refused and why, exact conversions, round trips.
#define _GNU_SOURCE // memmem
#include <time.h>
#include <unistd.h>

#include "data/safetensors.h"
#include "tests/support/safe_values.h"
#include "tests/support/test.h"

// A file in memory: the header's length, the header, `data_bytes` bytes 0, 1, 2, ...
static unsigned char *make_file(const char *header, size_t length, size_t data_bytes,
                                size_t *count) {
  *count = 8 + length + data_bytes;
  unsigned char *bytes = xmalloc(*count); // exactly as large, so that ASan sees a byte too far
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
  memcpy(bytes + 8, header, length);
  for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (unsigned char)i;
  return bytes;
}

static void must(int status, const Error *err) {
  if (status != 0) fail_msg("%s", err->text);
}

static void expect_refusal(const char *what, const unsigned char *bytes, size_t count,
                           const char *word) {
  Error err = {""};
  SafeFile file;
  if (safetensors_parse(&file, "x.safetensors", bytes, count, &err) == 0)
    fail_msg("%s was accepted", what);
  if (!strstr(err.text, word) || !strstr(err.text, "x.safetensors"))
    fail_msg("%s: the sentence '%s' lacks '%s' or the file", what, err.text, word);
  assert_null(file.tensors);
}

#define ENTRY(dtype, shape, offsets)                                                               \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"a\":" ENTRY(dtype, shape, offsets) "}"

static const struct {
  const char *what, *header;
  size_t data_bytes;
  const char *word; // of the sentence
} malformed[] = {
    {"an empty header", "", 0, "does not begin with '{'"},
    {"a header that begins with a space", " {}", 0, "does not begin with '{'"},
    {"an array as header", "[]", 0, "does not begin with '{'"},
    {"an object that does not end", "{", 0, "not valid JSON"},
    {"a string that does not end", "{\"a", 0, "not valid JSON"},
    {"a string that ends in a backslash", "{\"a\\", 0, "not valid JSON"},
    {"a header that ends after a comma", "{\"a\":1,", 0, "not valid JSON"},
    {"a comma too many", "{\"a\":{},}", 0, "not valid JSON"},
    {"two objects", "{}{}", 0, "text after the JSON value"},
    {"a comment", "{}//", 0, "outside any string"},
    {"a control byte", "{\"a\001\":{}}", 0, "control byte"},
    {"a NUL in a name", "{\"a\\u0000b\":{}}", 0, "NUL"},
    {"an escaped control character in a name", "{\"a\\u001b\":" ENTRY("U8", "[0]", "[0,0]") "}", 0,
     "control character"},
    {"a tensor that is a number", "{\"a\":1}", 0, "not an object"},
    {"a tensor that is null", "{\"a\":null}", 0, "outside any string"},
    {"a tensor without fields", "{\"a\":{}}", 0, "'dtype' is missing"},
    {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, "'shape' is missing"},
    {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "'data_offsets' is missing"},
    {"an unknown field", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}",
     0, "the key 'x' is unknown"},
    {"a field in capitals", "{\"a\":{\"Dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     "'Dtype' is unknown"},
    {"a field twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     "a.shape appears twice"},
    {"a name twice",
     "{\"a\":" ENTRY("U8", "[1]", "[0,1]") ",\"a\":" ENTRY("U8", "[1]", "[1,2]") "}", 2,
     "a appears twice"},
    {"a name twice, once escaped",
     "{\"a\":" ENTRY("U8", "[1]", "[0,1]") ",\"\\u0061\":" ENTRY("U8", "[1]", "[1,2]") "}", 2,
     "a appears twice"},
    {"__metadata__ twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0,
     "__metadata__ appears twice"},
    {"a key twice in __metadata__", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0,
     "__metadata__.k appears twice"},
    {"a number in __metadata__", "{\"__metadata__\":{\"k\":1}}", 0, "not a string"},
    {"a string as __metadata__", "{\"__metadata__\":\"k\"}", 0, "not an object"},
    {"a dtype that is a number", "{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     "dtype is not a string"},
    {"an unknown dtype", ONE("F12", "[0]", "[0,0]"), 0, "'F12' is unknown"},
    {"a dtype in small letters", ONE("f32", "[0]", "[0,0]"), 0, "'f32' is unknown"},
    {"a shape that is a number", ONE("U8", "1", "[0,1]"), 1, "shape is not an array"},
    {"a shape of strings", ONE("U8", "[\"1\"]", "[0,1]"), 1, "not a whole number"},
    {"a shape of arrays", ONE("U8", "[[1]]", "[0,1]"), 1, "nested too deeply"},
    {"a negative dimension", ONE("U8", "[-1]", "[0,1]"), 1, "byte 0x2d outside any string"},
    {"a fraction", ONE("U8", "[1.0]", "[0,1]"), 1, "byte 0x2e outside any string"},
    {"an exponent", ONE("U8", "[1e0]", "[0,1]"), 1, "byte 0x65 outside any string"},
    {"NaN", ONE("U8", "[NaN]", "[0,1]"), 1, "byte 0x4e outside any string"},
    {"a leading zero", ONE("U8", "[01]", "[0,1]"), 1, "begins with 0"},
    {"nine dimensions", ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "more than 8"},
    {"an array of nine where a tensor should be", "{\"a\":[0,0,0,0,0,0,0,0,0]}", 0, "more than 8"},
    {"one offset", ONE("U8", "[0]", "[0]"), 0, "only 1 of its two"},
    {"three offsets", ONE("U8", "[0]", "[0,0,0]"), 0, "more than 2"},
    {"offsets that are strings", ONE("U8", "[1]", "[\"0\",\"1\"]"), 1, "not a whole number"},
    {"offsets as an object", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":{}}}", 0,
     "data_offsets is not an array"},
    {"offsets in the wrong order", ONE("U8", "[1]", "[1,0]"), 1, "do not lie in order"},
    {"an end behind the file", ONE("U8", "[9]", "[0,9]"), 8, "do not lie in order"},
    {"an end of 2^53", ONE("U8", "[1]", "[0,9007199254740992]"), 1,
     "not a whole number below 2^53"},
    {"an end of 2^64", ONE("U8", "[1]", "[0,18446744073709551616]"), 1,
     "not a whole number below 2^53"},
    {"a dimension of 2^53 + 1", ONE("U8", "[9007199254740993]", "[0,1]"), 1,
     "not a whole number below 2^53"},
    {"a size that overflows", ONE("F32", "[4503599627370496,4503599627370496]", "[0,0]"), 0,
     "overflows"},
    {"a size that overflows before its 0",
     ONE("F32", "[4503599627370496,4503599627370496,0]", "[0,0]"), 0, "overflows"},
    {"a size that overflows to the right one", ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0,
     "overflows"},
    {"too few bytes for the shape", ONE("F32", "[2,3]", "[0,20]"), 20,
     "dtype F32 and shape [2, 3] need 24 bytes"},
    {"too many bytes for the shape", ONE("BF16", "[]", "[0,4]"), 4, "need 2 bytes"},
    {"a wrong size of a dtype that is not read", ONE("F8_E5M2", "[3]", "[0,4]"), 4, "need 3 bytes"},
    {"a hole at the start", ONE("U8", "[1]", "[1,2]"), 2, "hole"},
    {"a hole between tensors",
     "{\"a\":" ENTRY("U8", "[1]", "[0,1]") ",\"b\":" ENTRY("U8", "[1]", "[2,3]") "}", 3, "hole"},
    {"an overlap", "{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[1,3]") "}",
     3, "overlap"},
    {"two tensors on the same bytes",
     "{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[0,2]") "}", 2, "overlap"},
    {"bytes behind the last tensor", ONE("U8", "[1]", "[0,1]"), 2, "the file has 2 bytes"},
    {"data without tensors", "{}", 1, "the file has 1 bytes"},
};

TEST(malformed_headers_are_refused_with_the_reason) {
  for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
    size_t count;
    unsigned char *bytes = make_file(malformed[i].header, strlen(malformed[i].header),
                                     malformed[i].data_bytes, &count);
    expect_refusal(malformed[i].what, bytes, count, malformed[i].word);
    free(bytes);
  }
}

TEST(embedded_nul_bytes_are_refused) {
  static const char behind[] = "{}\0";
  static const char inside[] = "{\"a\0b\":{}}";
  size_t count;
  unsigned char *bytes = make_file(behind, sizeof behind - 1, 0, &count);
  expect_refusal("a NUL behind the object", bytes, count, "control byte 0");
  free(bytes);
  bytes = make_file(inside, sizeof inside - 1, 0, &count);
  expect_refusal("a NUL inside a name", bytes, count, "control byte 0");
  free(bytes);
}

TEST(every_truncation_of_a_good_file_is_refused) {
  const char *header = "{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"__metadata__\":{\"k\":\"v\"}}";
  size_t count;
  unsigned char *bytes = make_file(header, strlen(header), 8, &count);
  SafeFile file;
  must(safetensors_parse(&file, "whole", bytes, count, &err), &err);
  safetensors_close(&file);
  for (size_t cut = 0; cut < count; cut++) {
    unsigned char *part = xmalloc(cut);
    memcpy(part, bytes, cut);
    if (safetensors_parse(&file, "cut", part, cut, &err) == 0)
      fail_msg("the first %zu of %zu bytes were accepted", cut, count);
    free(part);
  }
  free(bytes);
}

TEST(a_header_length_beyond_the_limit_or_the_file_is_refused) {
  size_t count;
  unsigned char *bytes = make_file("{}", 2, 0, &count);
  bytes[0] = 3;
  expect_refusal("a header one byte longer than the file", bytes, count, "cut off");
  memset(bytes, 0xff, 8);
  expect_refusal("a header of 2^64 - 1 bytes", bytes, count, "more than the 16000000 allowed");
  free(bytes);
  // One byte over the limit, and the file really has it.
  const size_t length = 16 * 1000 * 1000 + 1;
  char *header = xmalloc(length);
  memset(header, ' ', length);
  memcpy(header, "{}", 2);
  bytes = make_file(header, length, 0, &count);
  expect_refusal("a header over 16 MB", bytes, count, "more than the 16000000 allowed");
  free(bytes);
  free(header);
}

TEST(a_packed_file_is_named) {
  static const unsigned char gzip[] = "\x1f\x8b\x08\0\0\0\0\0\0\3 packed",
                             zstd[] = "\x28\xb5\x2f\xfd packed",
                             pointer[] = "version https://git-lfs.github.com/spec/v1\n";
  (void)state;
  expect_refusal("gzip", gzip, sizeof gzip, "gunzip");
  expect_refusal("zstd", zstd, sizeof zstd, "unzstd");
  expect_refusal("a pointer", pointer, sizeof pointer, "git lfs pull");
  // The length of a header may begin with the same bytes as gzip.
  enum { LENGTH = 0x088b1f };
  char *header = xmalloc(LENGTH);
  memset(header, ' ', LENGTH);
  memcpy(header, "{}", 2);
  size_t count;
  unsigned char *bytes = make_file(header, LENGTH, 0, &count);
  SafeFile file;
  must(safetensors_parse(&file, "x", bytes, count, &err), &err);
  safetensors_close(&file);
  free(bytes);
  free(header);
}

TEST(a_file_with_unordered_scalar_and_empty_tensors_is_read) {
  const char *header = "{\"late\":" ENTRY("U8", "[2]", "[4,6]") ",\n\t\"empty\":" ENTRY(
      "F64", "[3,0]",
      "[4,4]") ",\"scalar\":" ENTRY("F32", "[]", "[0,4]") ",\"__metadata__\":{\"format\":\"pt\"},"
                                                          "\"\":" ENTRY("F8_E4M3",
                                                                        "[1,1,1,1,1,1,1,1]",
                                                                        "[6,7]") "}   ";
  size_t count;
  unsigned char *bytes = make_file(header, strlen(header), 7, &count);
  SafeFile file;
  must(safetensors_parse(&file, "x", bytes, count, &err), &err);
  assert_int_equal(file.count, 4);
  const char *const order[] = {"scalar", "empty", "late", ""};
  for (int i = 0; i < 4; i++) {
    assert_string_equal(file.tensors[i].name, order[i]);
    assert_ptr_equal(safetensors_find(&file, order[i]), &file.tensors[i]);
  }
  assert_null(safetensors_find(&file, "lat"));
  assert_null(safetensors_find(&file, "__metadata__"));
  assert_int_equal(file.tensors[0].rank, 0);
  assert_int_equal(file.tensors[3].dtype, SAFE_F8_E4M3);
  assert_string_equal(safetensors_shape_text(&file.tensors[1]).text, "[3, 0]");
  float value;
  safe_floats(&file.tensors[0], 0, 1, &value);
  const unsigned char expected[4] = {0, 1, 2, 3};
  assert_memory_equal(&value, expected, 4);
  safetensors_close(&file);
  free(bytes);
}

TEST(ten_thousand_tensors_are_read_in_a_moment) {
  enum { TENSORS = 10000 };
  char *header = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&header, &length);
  assert_non_null(out);
  for (int i = 0; i < TENSORS; i++)
    fprintf(out,
            "%s\"model.layers.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
            "\"data_offsets\":[%d,%d]}",
            i ? "," : "{", i, i, i + 1);
  fputc('}', out);
  assert_int_equal(fclose(out), 0);
  size_t count;
  unsigned char *bytes = make_file(header, length, TENSORS, &count);
  SafeFile file;
  const clock_t start = clock();
  must(safetensors_parse(&file, "x", bytes, count, &err), &err);
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("# %d tensors: %.3f s, bound 2 s\n", TENSORS, seconds);
  assert_int_equal(file.count, TENSORS);
  for (int i = 0; i < TENSORS; i++)
    assert_ptr_equal(safetensors_find(&file, file.tensors[i].name), &file.tensors[i]);
  if (!(seconds <= 2)) fail_msg("%.3f s", seconds); // quadratic searches take far longer
  safetensors_close(&file);
  free(bytes);
  free(header);
}

// ---- Conversions

// The value of a small float by the definition of IEEE 754, with none of the reader's bit tricks.
static float by_definition(uint16_t bits, int fraction_bits, int exponent_bits) {
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : (float)(sign * INFINITY);
  const double significand = (double)fraction / (1 << fraction_bits) + (exponent > 0);
  return (float)(sign * ldexp(significand, (exponent > 0 ? exponent : 1) - bias));
}

static void check_all_16_bit_values(const char *dtype, int fraction_bits, int exponent_bits) {
  enum { VALUES = 1 << 16 };
  char header[256];
  snprintf(
      header, sizeof header,
      "{\"pad\":" ENTRY("U8", "[1]", "[0,1]") ",\"a\":{\"dtype\":\"%s\",\"shape\":[65536],"
                                              "\"data_offsets\":[1,131073]}}", // odd: unaligned
      dtype);
  size_t count;
  unsigned char *bytes = make_file(header, strlen(header), 1 + 2 * VALUES, &count);
  unsigned char *data = bytes + 8 + strlen(header) + 1;
  for (int i = 0; i < VALUES; i++) {
    data[2 * i] = (unsigned char)i;
    data[2 * i + 1] = (unsigned char)(i >> 8);
  }
  Error err = {""};
  SafeFile file;
  must(safetensors_parse(&file, "x", bytes, count, &err), &err);
  float *values = xmalloc(VALUES * sizeof *values);
  const SafeTensor *t = safetensors_find(&file, "a");
  safe_floats(t, 0, VALUES, values);
  for (int i = 0; i < VALUES; i++) {
    const float expected = by_definition((uint16_t)i, fraction_bits, exponent_bits);
    const bool same = isnan(expected)
                          ? isnan(values[i])
                          : values[i] == expected && !signbit(values[i]) == !signbit(expected);
    if (!same) fail_msg("%s 0x%04x became %a, not %a", dtype, i, values[i], expected);
  }
  float middle[3];
  safe_floats(t, 0x3c00, 3, middle);
  assert_memory_equal(middle, values + 0x3c00, sizeof middle);
  free(values);
  safetensors_close(&file);
  free(bytes);
}

TEST(every_bf16_value_is_converted_exactly) {
  check_all_16_bit_values("BF16", 7, 8);
}

TEST(every_f16_value_is_converted_exactly) {
  check_all_16_bit_values("F16", 10, 5);
}

// ---- Writing

static char *temporary_path(void) {
  char *path = xasprintf("/tmp/test_safetensors.XXXXXX");
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  return path;
}

TEST(what_is_written_is_read_back) {
  char *path = temporary_path();
  const SafeTensor tensors[] = {
      {.name = "z.weight", .dtype = SAFE_F32, .rank = 2, .shape = {2, 3}},
      {.name = "a", .dtype = SAFE_I64, .rank = 1, .shape = {1}},
      {.name = "none", .dtype = SAFE_BF16, .rank = 2, .shape = {0, 5}},
      {.name = "scalar", .dtype = SAFE_U8, .rank = 0},
  };
  const float z[6] = {1, -0.0f, 0x1p-149f, INFINITY, 3.25f, -1e30f};
  const int64_t a = -5;
  const unsigned char scalar = 7;
  SafeWriter w;
  must(safetensors_create(&w, path, -1, 4, tensors, &err), &err);
  must(safetensors_append(&w, z, 8, &err), &err);
  must(safetensors_append(&w, z + 2, 16, &err), &err);
  must(safetensors_append(&w, &a, 8, &err), &err);
  must(safetensors_append(&w, &scalar, 1, &err), &err);
  must(safetensors_finish(&w, &err), &err);
  SafeFile file;
  must(safetensors_open(&file, path, &err), &err);
  assert_int_equal(file.start % 8, 0);
  assert_non_null(memmem(file.header, 64, "\"__metadata__\":{\"format\":\"pt\"}", 30));
  safetensors_close(&file);
  safe_open(&file, path);
  assert_int_equal(file.count, 4);
  for (int i = 0; i < 4; i++) {
    const SafeTensor *t = safetensors_find(&file, tensors[i].name);
    assert_non_null(t);
    assert_int_equal(t->dtype, tensors[i].dtype);
    assert_int_equal(t->rank, tensors[i].rank);
    assert_memory_equal(t->shape, tensors[i].shape, sizeof t->shape);
  }
  float back[6];
  safe_floats(safetensors_find(&file, "z.weight"), 0, 6, back);
  assert_memory_equal(back, z, sizeof z);
  assert_memory_equal(safetensors_find(&file, "a")->data, &a, 8);
  safetensors_close(&file);
  unlink(path);
  free(path);
}

TEST(too_little_or_too_much_data_is_an_error) {
  char *path = temporary_path();
  const SafeTensor t = {.name = "a", .dtype = SAFE_F32, .rank = 1, .shape = {2}};
  const float values[3] = {1, 2, 3};
  for (size_t bytes = 4; bytes <= 12; bytes += 8) {
    SafeWriter w;
    must(safetensors_create(&w, path, -1, 1, &t, &err), &err);
    must(safetensors_append(&w, values, bytes, &err), &err);
    assert_int_equal(safetensors_finish(&w, &err), -1);
    assert_non_null(strstr(err.text, "bytes of data, but its tensors have 8"));
  }
  unlink(path);
  free(path);
}

TEST(names_and_sizes_that_no_file_can_have_are_not_written) {
  const SafeTensor bad[] = {
      {.name = "a\"b", .dtype = SAFE_F32, .rank = 0},
      {.name = "a\nb", .dtype = SAFE_F32, .rank = 0},
      {.name = "a", .dtype = SAFE_F32, .rank = 1, .shape = {-1}},
      {.name = "a", .dtype = SAFE_F32, .rank = 2, .shape = {INT64_C(1) << 40, INT64_C(1) << 40}},
      {.name = "a", .dtype = SAFE_U8, .rank = 1, .shape = {INT64_C(1) << 53}},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    SafeWriter w;
    assert_int_equal(safetensors_create(&w, "/tmp/never-written.safetensors", -1, 1, &bad[i], &err),
                     -1);
    assert_int_not_equal(err.text[0], '\0');
    assert_int_equal(access("/tmp/never-written.safetensors", F_OK), -1);
  }
}

TEST(a_missing_file_and_a_folder_are_refused) {
  SafeFile file;
  assert_int_equal(safetensors_open(&file, "/tmp/no/such/file.safetensors", &err), -1);
  assert_non_null(strstr(err.text, "/tmp/no/such/file.safetensors"));
  assert_int_equal(safetensors_open(&file, "/tmp", &err), -1);
  assert_non_null(strstr(err.text, "not a regular file"));
}
