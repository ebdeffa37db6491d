// The rig of the GPU backends' operations. An operation is a row of a table (Case): its tensors and
// its call. The rig makes the tensors, calls the CPU backend for the reference, from the same bf16
// or FP8 inputs widened to fp32, and then the GPU backend twice, with poison in and around what is
// written. The bound of each error is twice the error of a twin: the CPU backend with a rounding to
// bf16 wherever the operation stores a bf16 value.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "tests/gpu/gpu_test.h"

typedef struct Shape {
  const char *name;
  int64_t D, F, H, KV, d, V, B, T;
} Shape;

typedef struct Subject {
  Shape s;
  int64_t M, R, Hd;
  Backend *cpu, *twin;  // twin: bf16_twin.h, which leaves gradients in fp32
  Backend *bf16, *fp32; // fp32: gradients in fp32
  Backend *writer;      // for generation alone; NULL in FP8
  bool fused;           // then z holds the row scale already
  bool fp8;
} Subject;

typedef struct Subjects {
  Subject list[16];
  int count;
} Subjects;

// RoPE's angle per position of pair j.
double inv_freq(const Shape *s, int64_t j);

static const float eps = 1e-5f; // of RMSNorm

// The scalings of an FP8 subject: 2 moves some values of normal tensors beyond 448.
enum { FIXED, DELAYED, WEIGHTS, SCALINGS };
static const float scales[SCALINGS] = {1, 128, 32};

// ---- A row of the table

typedef enum Use {
  NO_TENSOR,
  // Inputs
  IN,         // random values of deviation `scale`
  WEIGHT,     // the same, of deviation scale / sqrt(columns)
  TOKENS,     // the first and last of the vocabulary among them
  TOKEN_RUNS, // so that tokens of one, of several and of very many rows occur
  POSITION,   // of the first of Q rows that end at T
  SQUARES,    // sums of squares of the rows of tensor `of`
  SUMS,       // a row statistic of deviation `scale`
  // Outputs; INOUT and GRAD_ADDED begin with random values
  OUT,
  INOUT,
  LOGITS, // rows of padded_vocab
  GRAD,
  GRAD_ADDED,
  ROW_SUMS,
  FLOATS,         // fp32 numbers
  STORED_SQUARES, // sums of squares of the rows of tensor `of` as stored
  COPIED,         // FP8 copies without data; on the CPU tensor `of` holds the values
  SCRATCH,        // activations that are not compared
  SCRATCH_FLOATS,
} Use;

typedef struct Tensor {
  const char *name;  // of its random values, too
  const char *shape; // rows and columns, a letter each: kernels/ops.h has M, D, F, V, R; H is H d;
                     // Z is 2 F, Q rows of attention_decode
  Use use;
  double scale; // 0: 1
  int of;
  double floor; // of the error; 0: 1e-6. Of copies: how far beyond rounding, by the largest value
  bool exact;   // the reference's bits
  // FP8: what copies there are, and their scaling.
  enum { NO_COPIES, UNUSED_COPIES, COPIES_READ, COPIES_WRITTEN } copies;
  int scaling;
  bool scaled_rows; // an input has q in row_scale
  int scaled_by;    // an output gets q, by the sums of squares of this tensor; 0: none
} Tensor;

enum { MOST_TENSORS = 10 };

// A tensor on one side: the GPU's or the CPU's. A statistic has stat alone. data is x.data, or the
// memory of integers, gradients and fp32 numbers.
typedef struct Arg {
  void *data;
  Operand x;
  RowStat stat;
} Arg;

// The values of all tensors as fp32; NULL: it has none.
typedef struct Values {
  float *in[MOST_TENSORS], *reference[MOST_TENSORS], *twin[MOST_TENSORS], *got[MOST_TENSORS];
} Values;

typedef struct Case {
  const char *name; // of the test
  const char *operation;
  Tensor tensors[MOST_TENSORS];
  void (*run)(const Subject *t); // a test that is none of the rig's; else NULL
  void (*call)(Backend *be, const Subject *t, Arg *a);
  // NULL: the CPU backend computes the reference. Else this does, in v->reference, which is zeros.
  void (*formula)(const Subject *t, const Values *v);
  // NULL, or changes v->twin where the GPU rounds more than what it stores. It may also change
  // v->reference and v->got, such as to multiply what is stored in two factors.
  void (*adjust)(const Subject *t, const Values *v);
  // NULL: the CPU gets the same inputs.
  void (*cpu_inputs)(const Subject *t, float *const *in);
  bool with_fp32_gradients; // once more on the backend with fp32 gradients
  bool one_row;             // once more on the backend that only writes, with one row
  bool fp8;
} Case;

void check_case(const Case *c, const Subject *t, Backend *be);

// ---- Parts of twins and tests; arrays are fresh memory

float *floats(int64_t n); // zeros
float *copy_of(const float *x, int64_t n);
float *row_squares(const float *x, int64_t M, int64_t n);       // [M]: of x [M, n]
int32_t *random_tokens(int64_t M, int64_t V, const char *name); // [M]
float *weight(int64_t N, int64_t K, const char *name);          // [N, K]: of a GEMM over K inputs
// x [M, K] times W [N, K] transposed, rounded to bf16.
float *product_rounded(int64_t M, int64_t N, int64_t K, const float *x, const float *W);
// Each row of x [M, n] times its r of RMSNorm.
void scale_rows(const Subject *t, const float *sumsq, int64_t n, float *x);
// Rotates the q and k heads of rows of qkv [rows, R], which are at positions first + m % T.
void rotate_rows(const Subject *t, int64_t rows, int64_t T, int64_t first, float *qkv);
// q of a row with scaled_rows: a power of two around 1.
float row_scale_at(int64_t m);
// "what, shape", until the next call.
const char *label(const Subject *t, const char *what);
// bf16 in memory of the host, for the CPU backend, whose classes are all floats.
static inline act_t *act(const float *x) {
  return (act_t *)(uintptr_t)x;
}
static inline RowStat whole(const float *values, int64_t M) {
  return (RowStat){.data = (stat_t *)(uintptr_t)values, .stride = M, .parts = 1};
}

// ---- FP8

// Memory for both copies, and a group more in the rows of by_col.
Operand copies_new(Bench *b, int64_t rows, int64_t cols, int scaling);
// As when the backend was opened.
void scalings_reset(Backend *be);
// As an update begins that is applied; returns what it tells of saturation. No scaling is a
// parameter's.
StepState scalings_step(Backend *be);
uint8_t *bytes_of(Backend *be, const void *from, int64_t count); // in fresh memory
// The values' copies, to bits; with a slack, as near to the values as rounding allows and slack
// times the largest of them more.
void expect_copies(Backend *be, const char *what, Operand x, int64_t rows, int64_t cols,
                   const float *values, double slack);

// ---- Running over all subjects

// Every shape that the kernels of this mode run; in FP8 with scalings, and on unfused kernels.
Subjects *subjects_open(const KernelMode *mode, bool fp8);
void subjects_close(Subjects *all);
