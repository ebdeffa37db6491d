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
  unsigned char *bytes =
      held(xmalloc(*count)); // exactly as large, so that ASan sees a byte too far
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
  memcpy(bytes + 8, header, length);
  for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (unsigned char)i;
  return bytes;
}

// The file that the bytes are written to.
static int open_bytes(SafeFile *file, const unsigned char *bytes, size_t count, Error *err) {
  const PathText path = path_text("/tmp/test_safetensors-%d.x.safetensors", (int)getpid());
  must(file_write(path.text, bytes, count, err), err);
  const int status = safetensors_open(file, path.text, err);
  if (status == 0) {
    safetensors_close(file);
    safe_open(file, path.text);
  }
  unlink(path.text);
  return status;
}

static void close_file(void *what) {
  SafeFile *file = what;
  safetensors_close(file);
  free(file);
}

static SafeFile *parse(const unsigned char *bytes, size_t count) {
  Error err = {""};
  SafeFile *file = xcalloc(1, sizeof *file);
  must(open_bytes(file, bytes, count, &err), &err);
  return hold(file, close_file);
}

static void expect_refusal(const char *what, const unsigned char *bytes, size_t count,
                           const char *word) {
  Error err = {""};
  SafeFile file;
  if (open_bytes(&file, bytes, count, &err) == 0) fail_msg("%s was accepted", what);
  if (!strstr(err.text, word) || !strstr(err.text, "x.safetensors"))
    fail_msg("%s: the sentence '%s' lacks '%s' or the file", what, err.text, word);
  assert_null(file.tensors);
}

#define ENTRY(dtype, shape, offsets)                                                               \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

// Malformed headers are rows of tests/fixtures/messages.txt. A text there has no NUL and no other
// control byte.
TEST(embedded_control_bytes_are_refused) {
  static const struct {
    const char *what, *header;
    size_t length;
    const char *word;
  } cases[] = {{"a control byte", "{\"a\001\":{}}", 9, "a control character in a string"},
               {"a NUL behind the object", "{}\0", 3, "NUL"},
               {"a NUL inside a name", "{\"a\0b\":{}}", 10, "NUL"}};
  for (int i = 0; i < 3; i++) {
    size_t count;
    unsigned char *bytes = make_file(cases[i].header, cases[i].length, 0, &count);
    expect_refusal(cases[i].what, bytes, count, cases[i].word);
  }
}

TEST(every_truncation_of_a_good_file_is_refused) {
  const char *header = "{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"__metadata__\":{\"k\":\"v\"}}";
  size_t count;
  unsigned char *bytes = make_file(header, strlen(header), 8, &count);
  SafeFile file;
  must(open_bytes(&file, bytes, count, &err), &err);
  safetensors_close(&file);
  for (size_t cut = 0; cut < count; cut++) {
    unsigned char *part = held(xmalloc(cut));
    memcpy(part, bytes, cut);
    if (open_bytes(&file, part, cut, &err) == 0)
      fail_msg("the first %zu of %zu bytes were accepted", cut, count);
  }
}

TEST(a_header_length_beyond_the_limit_or_the_file_is_refused) {
  size_t count;
  unsigned char *bytes = make_file("{}", 2, 0, &count);
  bytes[0] = 3;
  expect_refusal("a header one byte longer than the file", bytes, count, "cut off");
  memset(bytes, 0xff, 8);
  expect_refusal("a header of 2^64 - 1 bytes", bytes, count, "more than the 16000000 allowed");
  // One byte over the limit, and the file really has it.
  const size_t length = 16 * 1000 * 1000 + 1;
  char *header = held(xmalloc(length));
  memset(header, ' ', length);
  memcpy(header, "{}", 2);
  bytes = make_file(header, length, 0, &count);
  expect_refusal("a header over 16 MB", bytes, count, "more than the 16000000 allowed");
}

TEST(a_packed_file_is_named) {
  static const unsigned char gzip[] = "\x1f\x8b\x08\0\0\0\0\0\0\3 packed",
                             zstd[] = "\x28\xb5\x2f\xfd packed",
                             pointer[] = "version https://git-lfs.github.com/spec/v1\n";
  expect_refusal("gzip", gzip, sizeof gzip, "gunzip");
  expect_refusal("zstd", zstd, sizeof zstd, "unzstd");
  expect_refusal("a pointer", pointer, sizeof pointer, "git lfs pull");
  // The length of a header may begin with the same bytes as gzip.
  enum { LENGTH = 0x088b1f };
  char *header = held(xmalloc(LENGTH));
  memset(header, ' ', LENGTH);
  memcpy(header, "{}", 2);
  size_t count;
  unsigned char *bytes = make_file(header, LENGTH, 0, &count);
  parse(bytes, count);
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
  const SafeFile *file = parse(bytes, count);
  assert_int_equal(file->count, 4);
  const char *const order[] = {"scalar", "empty", "late", ""};
  for (int i = 0; i < 4; i++) {
    assert_string_equal(file->tensors[i].name, order[i]);
    assert_ptr_equal(safetensors_find(file, order[i]), &file->tensors[i]);
  }
  assert_null(safetensors_find(file, "lat"));
  assert_null(safetensors_find(file, "__metadata__"));
  assert_int_equal(file->tensors[0].rank, 0);
  assert_int_equal(file->tensors[3].dtype, SAFE_F8_E4M3);
  assert_string_equal(safetensors_shape_text(&file->tensors[1]).text, "[3, 0]");
  float value;
  safe_floats(file, &file->tensors[0], 0, 1, &value);
  const unsigned char expected[4] = {0, 1, 2, 3};
  assert_memory_equal(&value, expected, 4);
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
  const clock_t start = clock();
  const SafeFile *file = parse(bytes, count);
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("# %d tensors: %.3f s, bound 2 s\n", TENSORS, seconds);
  assert_int_equal(file->count, TENSORS);
  for (int i = 0; i < TENSORS; i++)
    assert_ptr_equal(safetensors_find(file, file->tensors[i].name), &file->tensors[i]);
  if (!(seconds <= 2)) fail_msg("%.3f s", seconds); // quadratic searches take far longer
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
  const SafeFile *file = parse(bytes, count);
  float *values = held(xmalloc(VALUES * sizeof *values));
  const SafeTensor *t = safetensors_find(file, "a");
  safe_floats(file, t, 0, VALUES, values);
  for (int i = 0; i < VALUES; i++) {
    const float expected = by_definition((uint16_t)i, fraction_bits, exponent_bits);
    const bool same = isnan(expected)
                          ? isnan(values[i])
                          : values[i] == expected && !signbit(values[i]) == !signbit(expected);
    if (!same) fail_msg("%s 0x%04x became %a, not %a", dtype, i, values[i], expected);
  }
  float middle[3];
  safe_floats(file, t, 0x3c00, 3, middle);
  assert_memory_equal(middle, values + 0x3c00, sizeof middle);
}

TEST(every_bf16_value_is_converted_exactly) {
  check_all_16_bit_values("BF16", 7, 8);
}

TEST(every_f16_value_is_converted_exactly) {
  check_all_16_bit_values("F16", 10, 5);
}

// ---- Writing

TEST(what_is_written_is_read_back) {
  const char *path = held_text("%s/written.safetensors", temporary_folder());
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
  safe_floats(&file, safetensors_find(&file, "z.weight"), 0, 6, back);
  assert_memory_equal(back, z, sizeof z);
  assert_memory_equal(safe_data(&file, safetensors_find(&file, "a")), &a, 8);
  safetensors_close(&file);
}

TEST(a_missing_file_and_a_folder_are_refused) {
  SafeFile file;
  expect_error(safetensors_open(&file, "/tmp/no/such/file.safetensors", &err), &err,
               "/tmp/no/such/file.safetensors");
  expect_error(safetensors_open(&file, "/tmp", &err), &err, "not a regular file");
}
