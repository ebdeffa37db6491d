#include "kernels/cuda/gemm_cublaslt.h"

#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm_cache.h"

enum { MAX_ALGORITHMS = 16, ROUNDS = 5, PATTERN = 1 << 20 };

// ---- Descriptors. cuBLASLt is column-major: a row-major D = A B is computed as D^T = B^T A^T, so
// its A is our B and its M our N.

static int make_descriptors(GemmPlan *plan, Error *err) {
  const GemmProblem *p = &plan->problem;
  const cudaDataType_t out = p->out_fp32 ? CUDA_R_32F : CUDA_R_16BF;
  const bool a_stored_km = p->form == GEMM_TN, b_stored_nk = p->form == GEMM_NT;
  const cublasOperation_t first = b_stored_nk ? CUBLAS_OP_T : CUBLAS_OP_N,
                          second = a_stored_km ? CUBLAS_OP_T : CUBLAS_OP_N;
  CUBLAS_TRY(err, cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CUBLAS_TRY(err, cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                 &first, sizeof first));
  CUBLAS_TRY(err, cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                                 &second, sizeof second));
  const uint64_t b_rows = (uint64_t)(b_stored_nk ? p->K : p->N),
                 b_cols = (uint64_t)(b_stored_nk ? p->N : p->K);
  const uint64_t a_rows = (uint64_t)(a_stored_km ? p->M : p->K),
                 a_cols = (uint64_t)(a_stored_km ? p->K : p->M);
  CUBLAS_TRY(err, cublasLtMatrixLayoutCreate(&plan->a, CUDA_R_16BF, b_rows, b_cols,
                                             b_stored_nk ? p->K : p->N));
  CUBLAS_TRY(err, cublasLtMatrixLayoutCreate(&plan->b, CUDA_R_16BF, a_rows, a_cols,
                                             a_stored_km ? p->M : p->K));
  CUBLAS_TRY(err, cublasLtMatrixLayoutCreate(&plan->d, out, (uint64_t)p->N, (uint64_t)p->M, p->N));
  return 0;
}

static void free_descriptors(GemmPlan *plan) {
  if (plan->operation) CUBLAS_CHECK(cublasLtMatmulDescDestroy(plan->operation));
  if (plan->a) CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
  if (plan->b) CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
  if (plan->d) CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

static int ask_heuristics(const Gpu *gpu, const GemmPlan *plan, int most,
                          cublasLtMatmulHeuristicResult_t *results, int *count, Error *err) {
  const GemmProblem *p = &plan->problem;
  cublasLtMatmulPreference_t preference;
  CUBLAS_TRY(err, cublasLtMatmulPreferenceCreate(&preference));
  const cublasLtMatmulPreferenceAttributes_t alignments[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const uint32_t alignment = (uint32_t)p->alignment;
  cublasStatus_t status =
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &gpu->workspace_bytes, sizeof gpu->workspace_bytes);
  // Products split along K may add their parts up in fp32 only: in bf16 each part would be rounded.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
  for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
    status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                  sizeof alignment);
  *count = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(gpu->blas, plan->operation, plan->a, plan->b, plan->d,
                                            plan->d, preference, most, results, count);
  CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  if (status != CUBLAS_STATUS_SUCCESS || *count == 0)
    return error_set(err,
                     "cuBLASLt has no algorithm for a product of M %lld, N %lld, K %lld (form %d, "
                     "%s): %s",
                     (long long)p->M, (long long)p->N, (long long)p->K, (int)p->form,
                     p->out_fp32 ? "fp32" : "bf16", cublasLtGetStatusString(status));
  return 0;
}

// ---- The list of plans

static GemmPlan *find(const Gemm *gemm, const GemmProblem *problem) {
  for (int i = 0; i < gemm->count; i++)
    if (gemm_same_problem(&gemm->plans[i].problem, problem)) return &gemm->plans[i];
  return NULL;
}

const GemmPlan *gemm_find(const Gemm *gemm, const GemmProblem *problem) {
  return find(gemm, problem);
}

static GemmPlan *append(Gemm *gemm, const GemmPlan *plan) {
  if (gemm->count == gemm->capacity) {
    gemm->capacity = gemm->capacity * 2 + 32;
    gemm->plans = xrealloc(gemm->plans, (size_t)gemm->capacity * sizeof *gemm->plans);
  }
  gemm->plans[gemm->count] = *plan;
  return &gemm->plans[gemm->count++];
}

void gemm_open(Gemm *gemm, Gpu *gpu, const char *cache_path) {
  *gemm = (Gemm){.gpu = gpu};
  if (!cache_path)
    gemm->cache_path = gemm_cache_default_path(gpu);
  else if (*cache_path)
    gemm->cache_path = xstrdup(cache_path);
}

void gemm_close(Gemm *gemm) {
  for (int i = 0; i < gemm->count; i++) free_descriptors(&gemm->plans[i]);
  free(gemm->plans);
  free(gemm->cache_path);
  *gemm = (Gemm){0};
}

// ---- Timing

// Operands for timing: random values like those of a model, since the clock a GPU holds depends on
// the data.
typedef struct Trial {
  void *A, *B, *C, *D; // C is D where the run's will be: see gemm_run
  cudaEvent_t start, stop;
} Trial;

static size_t operand_bytes(const GemmProblem *p, char which) {
  const size_t M = (size_t)p->M, N = (size_t)p->N, K = (size_t)p->K;
  return which == 'A' ? M * K * 2 : which == 'B' ? N * K * 2 : M * N * (p->out_fp32 ? 4 : 2);
}

// Fills with copies of one random pattern, each as long as all before it.
static void fill(void *to, size_t bytes, const uint16_t *pattern, cudaStream_t stream) {
  size_t done = bytes < PATTERN * 2 ? bytes : PATTERN * 2;
  CUDA_CHECK(cudaMemcpyAsync(to, pattern, done, cudaMemcpyHostToDevice, stream));
  while (done < bytes) {
    const size_t next = bytes - done < done ? bytes - done : done;
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, to, next, cudaMemcpyDeviceToDevice, stream));
    done += next;
  }
}

static uint16_t *random_pattern(void) {
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (uint64_t i = 0; i < PATTERN; i++) {
    const float value = (float)(0.05 * rng_normal(1, i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  return pattern;
}

static float time_once(const Gpu *gpu, const GemmPlan *plan, const cublasLtMatmulAlgo_t *algorithm,
                       const Trial *trial) {
  const float alpha = 1, beta = plan->problem.add ? 1.0f : 0.0f;
  CUDA_CHECK(cudaEventRecord(trial->start, gpu->stream));
  const cublasStatus_t status = cublasLtMatmul(
      gpu->blas, plan->operation, &alpha, trial->B, plan->a, trial->A, plan->b, &beta, trial->C,
      plan->d, trial->D, plan->d, algorithm, gpu->workspace, gpu->workspace_bytes, gpu->stream);
  CUDA_CHECK(cudaEventRecord(trial->stop, gpu->stream));
  CUDA_CHECK(cudaEventSynchronize(trial->stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, trial->start, trial->stop));
  return status == CUBLAS_STATUS_SUCCESS ? ms * 1e3f : -1;
}

static int by_value(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

// The fastest of the candidates. After a first round only those within a fifth of the best go on.
static void choose(const Gpu *gpu, GemmPlan *plan, const cublasLtMatmulHeuristicResult_t *results,
                   int count, const Trial *trial) {
  float times[MAX_ALGORITHMS][ROUNDS], best = -1;
  for (int i = 0; i < count; i++) {
    time_once(gpu, plan, &results[i].algo, trial); // loads the kernel
    times[i][0] = time_once(gpu, plan, &results[i].algo, trial);
    if (times[i][0] > 0 && (best < 0 || times[i][0] < best)) best = times[i][0];
  }
  const float limit = best * 1.2f;
  plan->candidates = count;
  plan->first_microseconds = times[0][0];
  for (int round = 1; round < ROUNDS; round++)
    for (int i = 0; i < count; i++)
      if (times[i][0] > 0 && times[i][0] <= limit)
        times[i][round] = time_once(gpu, plan, &results[i].algo, trial);
  best = -1;
  for (int i = 0; i < count; i++) {
    if (!(times[i][0] > 0 && times[i][0] <= limit)) continue;
    qsort(times[i], ROUNDS, sizeof times[i][0], by_value);
    const float median = times[i][ROUNDS / 2];
    if (i == 0) plan->first_microseconds = median;
    if (best < 0 || median < best) {
      best = median;
      plan->algorithm = results[i].algo;
      plan->microseconds = median;
    }
  }
}

static int time_algorithms(const Gpu *gpu, GemmPlan *plan,
                           const cublasLtMatmulHeuristicResult_t *results, int count,
                           const uint16_t *pattern) {
  const GemmProblem *p = &plan->problem;
  Trial trial = {0};
  const bool apart = p->add && !p->out_fp32;
  const bool fits = cudaMalloc(&trial.A, operand_bytes(p, 'A')) == cudaSuccess &&
                    cudaMalloc(&trial.B, operand_bytes(p, 'B')) == cudaSuccess &&
                    cudaMalloc(&trial.D, operand_bytes(p, 'D')) == cudaSuccess &&
                    (!apart || cudaMalloc(&trial.C, operand_bytes(p, 'D')) == cudaSuccess);
  if (fits) {
    if (apart)
      fill(trial.C, operand_bytes(p, 'D'), pattern, gpu->stream);
    else
      trial.C = trial.D;
    CUDA_CHECK(cudaEventCreate(&trial.start));
    CUDA_CHECK(cudaEventCreate(&trial.stop));
    fill(trial.A, operand_bytes(p, 'A'), pattern, gpu->stream);
    fill(trial.B, operand_bytes(p, 'B'), pattern, gpu->stream);
    CUDA_CHECK(cudaMemsetAsync(trial.D, 0, operand_bytes(p, 'D'), gpu->stream));
    choose(gpu, plan, results, count, &trial);
    CUDA_CHECK(cudaEventDestroy(trial.start));
    CUDA_CHECK(cudaEventDestroy(trial.stop));
  } else {
    (void)cudaGetLastError(); // out of memory: the heuristics' first choice stays
  }
  CUDA_CHECK(cudaFree(trial.A));
  CUDA_CHECK(cudaFree(trial.B));
  CUDA_CHECK(cudaFree(trial.D));
  if (apart) CUDA_CHECK(cudaFree(trial.C));
  return fits ? 0 : -1;
}

// ---- Making plans

// A remembered algorithm, if this library still takes it for this problem.
static bool recall(const Gpu *gpu, GemmPlan *plan, const GemmPlan *remembered, int count) {
  for (int i = 0; i < count; i++) {
    if (!gemm_same_problem(&remembered[i].problem, &plan->problem)) continue;
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(gpu->blas, plan->operation, plan->a, plan->b, plan->d, plan->d,
                                &remembered[i].algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > gpu->workspace_bytes)
      return false;
    plan->algorithm = remembered[i].algorithm;
    plan->microseconds = remembered[i].microseconds;
    return true;
  }
  return false;
}

int gemm_prepare(Gemm *gemm, const GemmProblem *problems, int count, Error *err) {
  const Gpu *gpu = gemm->gpu;
  int remembered_count = 0, timed = 0;
  GemmPlan *remembered =
      gemm->cache_path ? gemm_cache_read(gemm->cache_path, gpu, &remembered_count) : NULL;
  uint16_t *pattern = NULL;
  int status = 0;
  for (int i = 0; i < count && !status; i++) {
    if (find(gemm, &problems[i])) continue;
    GemmPlan plan = {.problem = problems[i]};
    cublasLtMatmulHeuristicResult_t results[MAX_ALGORITHMS];
    int found = 0;
    status = make_descriptors(&plan, err);
    if (!status && !recall(gpu, &plan, remembered, remembered_count)) {
      status = ask_heuristics(gpu, &plan, MAX_ALGORITHMS, results, &found, err);
      if (!status) {
        plan.algorithm = results[0].algo;
        if (!pattern) pattern = random_pattern();
        if (found > 1 && time_algorithms(gpu, &plan, results, found, pattern) == 0) timed++;
      }
    }
    if (status)
      free_descriptors(&plan);
    else
      append(gemm, &plan);
  }
  // A cache that cannot be written (a read-only home) is no failure, but the next start times anew,
  // and may find another algorithm the faster: then its sums round in another order.
  Error ignored;
  if (timed && gemm->cache_path)
    (void)gemm_cache_write(gemm->cache_path, gpu, gemm->plans, gemm->count, remembered,
                           remembered_count, &ignored);
  free(remembered);
  free(pattern);
  return status;
}

static const GemmPlan *plan_untimed(Gemm *gemm, const GemmProblem *problem) {
  GemmPlan plan = {.problem = *problem};
  cublasLtMatmulHeuristicResult_t result;
  Error err;
  int found = 0;
  if (make_descriptors(&plan, &err) || ask_heuristics(gemm->gpu, &plan, 1, &result, &found, &err)) {
    fprintf(stderr, "%s\n", err.text);
    exit(EXIT_FAILURE);
  }
  plan.algorithm = result.algo;
  return append(gemm, &plan);
}

static int common_alignment(const void *A, const void *B, const void *C, const void *D) {
  const uintptr_t bits = (uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D | 16;
  return (int)(bits & -bits);
}

void gemm_run(Gemm *gemm, GemmProblem problem, const void *A, const void *B, const void *C,
              void *D) {
  const Gpu *gpu = gemm->gpu;
  problem.alignment = common_alignment(A, B, problem.add ? C : NULL, D);
  const GemmPlan *plan = find(gemm, &problem);
  if (!plan) plan = plan_untimed(gemm, &problem);
  const float alpha = 1, beta = problem.add ? 1.0f : 0.0f;
  CUBLAS_CHECK(cublasLtMatmul(gpu->blas, plan->operation, &alpha, B, plan->a, A, plan->b, &beta,
                              problem.add ? C : D, plan->d, D, plan->d, &plan->algorithm,
                              gpu->workspace, gpu->workspace_bytes, gpu->stream));
}
