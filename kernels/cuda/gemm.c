#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"

enum { MAX_ALGORITHMS = 16, ROUNDS = 5 };
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGORITHM_WORDS * sizeof(uint64_t),
               "an algorithm is eight words");

struct GemmPlan {
  const CublasLt *lt; // not owned
  GemmProblem problem;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, d; // of cuBLASLt's column-major operands
  GemmChoice choice;
};

// ---- Descriptors. cuBLASLt is column-major: a row-major D = A B is computed as D^T = B^T A^T, so
// its A is our B and its M our N.

static GemmProblem with_strides(GemmProblem p) {
  if (p.lda == 0) p.lda = p.form == GEMM_TN ? p.M : p.K;
  if (p.ldb == 0) p.ldb = p.form == GEMM_NT ? p.K : p.N;
  if (p.ldd == 0) p.ldd = p.N;
  if (p.batch == 0) p.batch = 1;
  if (p.alpha == 0) p.alpha = 1;
  if (p.beta == 0) p.beta = 1;
  return p;
}

static cublasStatus_t set_attribute(const GemmPlan *plan, cublasLtMatmulDescAttributes_t name,
                                    const void *value, size_t bytes) {
  return plan->lt->MatmulDescSetAttribute(plan->operation, name, value, bytes);
}

// cuBLASLt reads the descriptor when it launches, so earlier launches and graphs keep their
// pointers.
static cublasStatus_t set_scales(const GemmPlan *plan, const float *inverse_A,
                                 const float *inverse_B) {
  const cublasStatus_t status =
      set_attribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &inverse_B, sizeof inverse_B);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return set_attribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &inverse_A, sizeof inverse_A);
}

// A row-major matrix, or a batch of them.
static int make_layout(const CublasLt *lt, cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                       int64_t rows, int64_t cols, int64_t stride, int64_t batch, Error *err) {
  const int32_t count = (int32_t)batch;
  const int64_t apart = rows * stride;
  CUBLAS_TRY(lt, err, lt->MatrixLayoutCreate(layout, type, (uint64_t)cols, (uint64_t)rows, stride));
  if (batch == 1) return 0;
  CUBLAS_TRY(lt, err,
             lt->MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof count));
  CUBLAS_TRY(lt, err,
             lt->MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &apart, sizeof apart));
  return 0;
}

static int make_descriptors(const Gpu *gpu, GemmPlan *plan, Error *err) {
  const CublasLt *lt = plan->lt;
  const GemmProblem *p = &plan->problem;
  const bool fp8 = p->formats != GEMM_BF16;
  const cudaDataType_t out = p->out_fp32 ? CUDA_R_32F : CUDA_R_16BF,
                       in = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  const cublasOperation_t b_turned = p->form == GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N,
                          a_turned = p->form == GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int64_t b_cols = p->form == GEMM_NT ? p->K : p->N, b_rows = p->N + p->K - b_cols,
                a_cols = p->form == GEMM_TN ? p->M : p->K, a_rows = p->M + p->K - a_cols;
  const int8_t fast = !p->accurate;
  CUBLAS_TRY(lt, err, lt->MatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CUBLAS_TRY(lt, err, set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSA, &b_turned, sizeof b_turned));
  CUBLAS_TRY(lt, err, set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSB, &a_turned, sizeof a_turned));
  if (fp8) {
    CUBLAS_TRY(lt, err, set_attribute(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    // The heuristics see that there will be scales; they do not read them.
    CUBLAS_TRY(lt, err, set_scales(plan, gpu->workspace, gpu->workspace));
  }
  if (make_layout(lt, &plan->a, in, b_rows, b_cols, p->ldb, p->batch, err) ||
      make_layout(lt, &plan->b, in, a_rows, a_cols, p->lda, p->batch, err))
    return -1;
  return make_layout(lt, &plan->d, out, p->M, p->N, p->ldd, p->batch, err);
}

static cublasStatus_t set_preferences(cublasLtMatmulPreference_t preference, const Gpu *gpu,
                                      int alignment) {
  // GEMMs split along K may add their parts up in fp32 only: in bf16 each part would be rounded.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, bytes = (uint32_t)alignment;
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    const void *value;
    size_t size;
  } list[] = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &gpu->workspace_bytes, sizeof(size_t)},
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &bytes, sizeof bytes},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &bytes, sizeof bytes},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &bytes, sizeof bytes},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &bytes, sizeof bytes},
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (size_t i = 0; i < sizeof list / sizeof *list && status == CUBLAS_STATUS_SUCCESS; i++)
    status = gpu->lt->MatmulPreferenceSetAttribute(preference, list[i].name, list[i].value,
                                                   list[i].size);
  return status;
}

static int ask_heuristics(const Gpu *gpu, const GemmPlan *plan, int most,
                          cublasLtMatmulHeuristicResult_t *results, int *count, Error *err) {
  const GemmProblem *p = &plan->problem;
  cublasLtMatmulPreference_t preference;
  CUBLAS_TRY(plan->lt, err, plan->lt->MatmulPreferenceCreate(&preference));
  cublasStatus_t status = set_preferences(preference, gpu, p->alignment);
  *count = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = plan->lt->MatmulAlgoGetHeuristic(gpu->blas, plan->operation, plan->a, plan->b, plan->d,
                                              plan->d, preference, most, results, count);
  CUBLAS_CHECK(plan->lt, plan->lt->MatmulPreferenceDestroy(preference));
  static const char *const formats[] = {"bf16", "e4m3"};
  if (status != CUBLAS_STATUS_SUCCESS || *count == 0)
    return error_set(err,
                     "cuBLASLt has no algorithm for a product of M %lld, N %lld, K %lld (form %d, "
                     "%s to %s): %s",
                     (long long)p->M, (long long)p->N, (long long)p->K, (int)p->form,
                     formats[p->formats], p->out_fp32 ? "fp32" : "bf16",
                     plan->lt->GetStatusString(status));
  return 0;
}

static cublasStatus_t multiply(const Gpu *gpu, const GemmPlan *plan,
                               const cublasLtMatmulAlgo_t *algorithm, const void *A, const void *B,
                               const void *C, void *D) {
  const float alpha = plan->problem.alpha, beta = plan->problem.add ? plan->problem.beta : 0.0f;
  return plan->lt->Matmul(gpu->blas, plan->operation, &alpha, B, plan->a, A, plan->b, &beta, C,
                          plan->d, D, plan->d, algorithm, gpu->workspace, gpu->workspace_bytes,
                          gpu->stream);
}

// ---- Remembered algorithms, a line of Choices for each problem

// M N K lda ldb ldd form formats accurate fp32 add alignment, and the batch where there is one
static ShortText question_of(const GemmProblem *p) {
  ShortText q = short_text("%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                           " %d %d %d %d %d %d",
                           p->M, p->N, p->K, p->lda, p->ldb, p->ldd, (int)p->form, (int)p->formats,
                           p->accurate, p->out_fp32, p->add, p->alignment);
  if (p->batch > 1) short_append(&q, " x %" PRId64, p->batch);
  return q;
}

static cublasLtMatmulAlgo_t algorithm_of(const GemmPlan *plan) {
  cublasLtMatmulAlgo_t algorithm;
  memcpy(&algorithm, plan->choice.algorithm, sizeof algorithm);
  return algorithm;
}

static void set_algorithm(GemmPlan *plan, const cublasLtMatmulAlgo_t *algorithm) {
  memcpy(plan->choice.algorithm, algorithm, sizeof *algorithm);
}

// True where this library still accepts the plan's algorithm for its problem.
static bool still_runs(const Gpu *gpu, const GemmPlan *plan) {
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(plan);
  cublasLtMatmulHeuristicResult_t result;
  return plan->lt->MatmulAlgoCheck(gpu->blas, plan->operation, plan->a, plan->b, plan->d, plan->d,
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= gpu->workspace_bytes;
}

// The answer: microseconds, then the algorithm's words. False where no algorithm that runs is
// known.
static bool recall(const Gemm *gemm, GemmPlan *plan) {
  const char *answer = choices_find(&gemm->choices, question_of(&plan->problem).text);
  uint64_t *w = plan->choice.algorithm;
  int used = 0;
  return answer &&
         sscanf(answer,
                "%f %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                " %" SCNx64 " %" SCNx64 "%n",
                &plan->choice.microseconds, w, w + 1, w + 2, w + 3, w + 4, w + 5, w + 6, w + 7,
                &used) == 1 + ALGORITHM_WORDS &&
         answer[used] == '\n' && plan->choice.microseconds > 0 && still_runs(gemm->gpu, plan);
}

static void remember(Gemm *gemm, const GemmPlan *plan) {
  const uint64_t *w = plan->choice.algorithm;
  ShortText answer = short_text("%.3f", (double)plan->choice.microseconds);
  for (int i = 0; i < ALGORITHM_WORDS; i++) short_append(&answer, " %" PRIx64, w[i]);
  choices_keep(&gemm->choices, question_of(&plan->problem).text, answer.text);
}

// ---- The list of plans

static bool same_problem(const GemmProblem *a, const GemmProblem *b) {
  return a->M == b->M && a->N == b->N && a->K == b->K && a->form == b->form &&
         a->formats == b->formats && a->accurate == b->accurate && a->out_fp32 == b->out_fp32 &&
         a->add == b->add && a->alignment == b->alignment && a->lda == b->lda && a->ldb == b->ldb &&
         a->ldd == b->ldd && a->batch == b->batch && a->alpha == b->alpha && a->beta == b->beta;
}

static const GemmPlan *find(const Gemm *gemm, const GemmProblem *problem) {
  for (int i = 0; i < gemm->count; i++)
    if (same_problem(&gemm->plans[i].problem, problem)) return &gemm->plans[i];
  return NULL;
}

const GemmChoice *gemm_find(const Gemm *gemm, const GemmProblem *problem) {
  const GemmProblem whole = with_strides(*problem);
  const GemmPlan *plan = find(gemm, &whole);
  return plan ? &plan->choice : NULL;
}

static GemmPlan *append(Gemm *gemm, const GemmProblem *problem) {
  if (gemm->count >= gemm->capacity) {
    gemm->capacity = gemm->count * 2 + 32;
    gemm->plans = xrealloc(gemm->plans, (size_t)gemm->capacity * sizeof *gemm->plans);
  }
  gemm->plans[gemm->count] = (GemmPlan){.lt = gemm->gpu->lt, .problem = *problem};
  return &gemm->plans[gemm->count++];
}

static Choices choices_of(const Gpu *gpu, const char *cache_path) {
  Choices choices;
  char *usual = cache_path ? NULL : choices_path("gemm", gpu->name, gpu->driver, gpu->cublaslt);
  char *first = xasprintf("coda gemm 3 gpu %s sm %d driver %d cublaslt %zu\n", gpu->name,
                          gpu->sm_count, gpu->driver, gpu->cublaslt);
  choices_open(&choices, cache_path && *cache_path ? cache_path : usual, first);
  free(usual);
  free(first);
  return choices;
}

void gemm_open(Gemm *gemm, Gpu *gpu, const char *cache_path) {
  *gemm = (Gemm){.gpu = gpu, .choices = choices_of(gpu, cache_path)};
}

char *gpu_recall(const Gpu *gpu, const char *cache, const char *question) {
  Choices choices = choices_of(gpu, cache);
  const char *answer = choices_find(&choices, question);
  char *copy = answer ? xstrdup(answer) : NULL;
  if (copy) copy[strcspn(copy, "\n")] = '\0';
  choices_close(&choices);
  return copy;
}

void gpu_remember(const Gpu *gpu, const char *cache, const char *question, const char *answer) {
  Choices choices = choices_of(gpu, cache);
  choices_keep(&choices, question, answer);
  choices_save(&choices);
  choices_close(&choices);
}

void gemm_close(Gemm *gemm) {
  for (int i = 0; i < gemm->count; i++) {
    const GemmPlan *plan = &gemm->plans[i];
    const CublasLt *lt = plan->lt;
    if (plan->operation) CUBLAS_CHECK(lt, lt->MatmulDescDestroy(plan->operation));
    if (plan->a) CUBLAS_CHECK(lt, lt->MatrixLayoutDestroy(plan->a));
    if (plan->b) CUBLAS_CHECK(lt, lt->MatrixLayoutDestroy(plan->b));
    if (plan->d) CUBLAS_CHECK(lt, lt->MatrixLayoutDestroy(plan->d));
  }
  free(gemm->plans);
  choices_close(&gemm->choices);
  *gemm = (Gemm){0};
}

// ---- Timing

// A candidate and operands to time it on, in one piece of memory.
typedef struct Trial {
  const Gpu *gpu;
  const GemmPlan *plan;
  const cublasLtMatmulAlgo_t *algorithm;
  void *A, *B, *C, *D; // C is D where the run's will be: see gemm_run
  float *one;          // the inverse scale of FP8 operands
} Trial;

// Returns the bytes of all.
static size_t place(Trial *t, char *memory) {
  const GemmProblem *p = &t->plan->problem;
  const size_t in = p->formats == GEMM_BF16 ? 2 : 1,
               out = (size_t)(p->batch * p->M * p->ldd) * (p->out_fp32 ? 4 : 2);
  const int64_t a_rows = p->form == GEMM_TN ? p->K : p->M,
                b_rows = p->form == GEMM_NT ? p->N : p->K;
  Arena arena = {.block = memory};
  t->A = arena_take(&arena, (size_t)(p->batch * a_rows * p->lda) * in);
  t->B = arena_take(&arena, (size_t)(p->batch * b_rows * p->ldb) * in);
  t->C = t->D = arena_take(&arena, out);
  if (p->add && !p->out_fp32) t->D = arena_take(&arena, out);
  t->one = arena_take(&arena, sizeof *t->one);
  return arena.used;
}

static int call(const void *context, Error *err) {
  const Trial *t = context;
  CUBLAS_TRY(t->plan->lt, err, multiply(t->gpu, t->plan, t->algorithm, t->A, t->B, t->C, t->D));
  return 0;
}

// Milliseconds of one call, -1 where the algorithm does not run.
static double time_once(Trial *t, const cublasLtMatmulHeuristicResult_t *result, int warm_up) {
  double ms;
  Error ignored;
  t->algorithm = &result->algo;
  return time_calls(call, t, warm_up, 1, t->gpu->stream, &ms, &ignored) ? -1 : ms;
}

// The fastest of the candidates. After a first round only those within a fifth of the best are
// timed again.
static void choose(GemmPlan *plan, const cublasLtMatmulHeuristicResult_t *results, int count,
                   Trial *trial) {
  double times[MAX_ALGORITHMS][ROUNDS], best = -1;
  for (int i = 0; i < count; i++) {
    times[i][0] = time_once(trial, &results[i], 1); // the first loads the kernel
    if (times[i][0] > 0 && (best < 0 || times[i][0] < best)) best = times[i][0];
  }
  const double limit = best * 1.2;
  for (int round = 1; round < ROUNDS; round++)
    for (int i = 0; i < count; i++)
      if (times[i][0] > 0 && times[i][0] <= limit)
        times[i][round] = time_once(trial, &results[i], 0);
  best = -1;
  for (int i = 0; i < count; i++) {
    if (!(times[i][0] > 0 && times[i][0] <= limit)) continue;
    const double ms = median(times[i], ROUNDS);
    if (best >= 0 && ms >= best) continue;
    best = ms;
    set_algorithm(plan, &results[i].algo);
    plan->choice.microseconds = (float)(ms * 1e3);
  }
}

// False where there is no memory for timing: the heuristics' first choice stays.
static bool time_algorithms(const Gpu *gpu, GemmPlan *plan,
                            const cublasLtMatmulHeuristicResult_t *results, int count) {
  Trial trial = {.gpu = gpu, .plan = plan};
  const size_t bytes = place(&trial, NULL);
  char *memory = gpu_alloc(bytes);
  if (!memory) return false;
  place(&trial, memory);
  if (plan->problem.formats == GEMM_BF16) {
    fill_random(memory, bytes, 0.05, gpu->stream); // like a model's
  } else {
    const float one = 1;
    fill_random_fp8(memory, bytes, gpu->stream);
    CUDA_CHECK(cudaMemcpy(trial.one, &one, sizeof one, cudaMemcpyHostToDevice));
    CUBLAS_CHECK(plan->lt, set_scales(plan, trial.one, trial.one));
  }
  choose(plan, results, count, &trial);
  CUDA_CHECK(cudaFree(memory));
  return true;
}

// ---- Making plans

// The problem's plan, made where there is none: with the remembered algorithm, or the fastest of
// `most`. NULL on failure.
static const GemmPlan *plan_for(Gemm *gemm, const GemmProblem *problem, int most, Error *err) {
  cublasLtMatmulHeuristicResult_t results[MAX_ALGORITHMS];
  const GemmProblem whole = with_strides(*problem);
  const GemmPlan *known = find(gemm, &whole);
  int found = 0;
  if (known) return known;
  GemmPlan *plan = append(gemm, &whole);
  if (make_descriptors(gemm->gpu, plan, err)) return NULL;
  if (recall(gemm, plan)) return plan;
  if (ask_heuristics(gemm->gpu, plan, most, results, &found, err)) return NULL;
  set_algorithm(plan, &results[0].algo);
  plan->choice.microseconds = 0;
  if (found > 1 && time_algorithms(gemm->gpu, plan, results, found)) remember(gemm, plan);
  return plan;
}

// Another start that times the candidates again may choose another algorithm, whose sums round in
// another order.
int gemm_prepare(Gemm *gemm, const GemmProblem *problems, int count, Error *err) {
  int status = 0;
  for (int i = 0; i < count && !status; i++)
    status = plan_for(gemm, &problems[i], MAX_ALGORITHMS, err) ? 0 : -1;
  choices_save(&gemm->choices);
  return status;
}

static int common_alignment(const void *A, const void *B, const void *C, const void *D) {
  const uintptr_t bits = (uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D | 16;
  return (int)(bits & -bits);
}

static const GemmPlan *plan_of_run(Gemm *gemm, GemmProblem problem, const void *A, const void *B,
                                   const void *C, const void *D) {
  problem.alignment = common_alignment(A, B, problem.add ? C : NULL, D);
  Error err;
  const GemmPlan *plan = plan_for(gemm, &problem, 1, &err);
  error_check(plan ? 0 : -1, &err);
  return plan;
}

static void run_plan(const Gemm *gemm, const GemmPlan *plan, const void *A, const void *B,
                     const void *C, void *D) {
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(plan);
  CUBLAS_CHECK(plan->lt, multiply(gemm->gpu, plan, &algorithm, A, B, plan->problem.add ? C : D, D));
}

void gemm_run(Gemm *gemm, GemmProblem problem, const void *A, const void *B, const void *C,
              void *D) {
  run_plan(gemm, plan_of_run(gemm, problem, A, B, C, D), A, B, C, D);
}

void gemm_run_fp8(Gemm *gemm, GemmProblem problem, const void *A, const float *inverse_A,
                  const void *B, const float *inverse_B, const void *C, void *D) {
  const GemmPlan *plan = plan_of_run(gemm, problem, A, B, C, D);
  CUBLAS_CHECK(plan->lt, set_scales(plan, inverse_A, inverse_B));
  run_plan(gemm, plan, A, B, C, D);
}

// ---- The backends' products, and the operations that are nothing else

// For a forward: a sum of one sign is 6 % too small there where only the tensor cores add.
enum { MOST_FAST_K = 4096 };

// The same product of FP8 copies, whose rows are along K, and padded: lda, ldb of the copies.
static GemmProblem of_copies(GemmProblem p, int64_t lda, int64_t ldb) {
  p.formats = GEMM_E4M3;
  p.form = GEMM_NT;
  p.N = fp8_padded(p.N);
  p.K = fp8_padded(p.K);
  p.lda = lda;
  p.ldb = ldb;
  return p;
}

// A weight gradient is also added to: by later micro-batches, and lm_head's by later chunks, which
// where gradients are rounded add up apart, in fp32. x's copies by column hold all tokens, of which
// a chunk reads some.
int cuda_problems_of(const Cuda *c, Operation operation, GemmProblem problems[MOST_PROBLEMS]) {
  const OperationWork w = cuda_work(c, operation);
  const Spec *o = &c->base.spec;
  const int64_t tokens = c->base.spec.max_tokens;
  const bool fp8 = c->base.spec.fp8, of_weight = w.form == GEMM_TN,
             chunks = operation == OP_lm_head_wgrad && chunk_rows(o) < tokens;
  GemmProblem p = {.M = w.M,
                   .N = w.N,
                   .K = w.K,
                   .form = w.form,
                   .out_fp32 = of_weight && (chunks || o->grads_fp32),
                   .add = w.adds,
                   .alignment = 16,
                   .lda = w.lda,
                   .ldd = w.ldd};
  if (fp8) p = of_copies(p, 0, of_weight ? fp8_padded(tokens) : 0);
  if (fp8) p.accurate = w.form == GEMM_NT ? w.K > MOST_FAST_K : operation != OP_out_dgrad;
  int count = 0;
  problems[count++] = p;
  if (!of_weight) return count;
  p.add = true;
  if (chunks || o->accumulates) problems[count++] = p;
  p.out_fp32 = false;
  if (chunks && o->accumulates && !o->grads_fp32) problems[count++] = p;
  return count;
}

static void multiply_operands(Cuda *c, GemmProblem p, Operand A, Operand B, const void *add,
                              void *out) {
  p.add = add != NULL;
  if (!A.by_row && !B.data) B = cuda_widened(c, p.N, p.K, B);
  if (!A.by_row || !B.by_row) {
    p.accurate = false;
    p.lda = A.row_stride;
    gemm_run(&c->gemm, p, A.data, B.data, add, out);
    return;
  }
  const bool A_by_col = p.form == GEMM_TN, B_by_row = p.form == GEMM_NT;
  p = of_copies(p, A_by_col ? A.stride : A.row_stride, B_by_row ? 0 : B.stride);
  gemm_run_fp8(&c->gemm, p, A_by_col ? A.by_col : A.by_row, &c->scalings[A.scaling].inverse,
               B_by_row ? B.by_row : B.by_col, &c->scalings[B.scaling].inverse, add, out);
}

void cuda_multiply(Cuda *c, GemmProblem p, Operand A, Operand B, const void *add, void *out) {
  const bool noted = c->base.observed == OBSERVE_GEMMS;
  if (noted) cuda_mark(&c->base, MARK_GEMM);
  multiply_operands(c, p, A, B, add, out);
  if (noted) cuda_mark(&c->base, MARK_GEMM_END);
}

void cuda_forward(Cuda *c, int64_t M, int64_t N, int64_t K, Operand a, Operand W, const act_t *add,
                  act_t *out, int64_t stride) {
  if (cuda_one_row(c, M)) {
    cuda_gemv(c, N, K, a.data, W, add, out);
    return;
  }
  const GemmProblem p = {
      .M = M, .N = N, .K = K, .form = GEMM_NT, .accurate = K > MOST_FAST_K, .ldd = stride};
  cuda_multiply(c, p, a, W, add, out);
}

void cuda_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {.M = M, .N = K, .K = c->base.spec.D, .form = GEMM_NN};
  cuda_multiply(c, p, dy, W, NULL, da);
}

void cuda_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x, grad_t *dW,
                bool accumulate) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {.M = N,
                         .N = K,
                         .K = M,
                         .form = GEMM_TN,
                         .accurate = true,
                         .out_fp32 = c->base.spec.grads_fp32};
  cuda_multiply(c, p, dz, x, accumulate ? dW : NULL, dW);
}

void cuda_head_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                     stat_t *sum, bool add, grad_t *dW) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {
      .M = N, .N = K, .K = M, .form = GEMM_TN, .accurate = true, .out_fp32 = true};
  if (!sum) {
    cuda_wgrad(be, M, N, K, dz, x, dW, add);
    return;
  }
  cuda_multiply(c, p, dz, x, add ? sum : NULL, sum);
  if (dW) cuda_round_gradient(c, N * K, sum, dW);
}
