#include "kernels/cuda/gemm_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/choices.h"

enum { MAX_LINE = 512, ALGORITHM_WORDS = 8 };
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGORITHM_WORDS * sizeof(uint64_t),
               "an algorithm is eight words");

bool gemm_same_problem(const GemmProblem *a, const GemmProblem *b) {
  return a->M == b->M && a->N == b->N && a->K == b->K && a->form == b->form &&
         a->formats == b->formats && a->accurate == b->accurate && a->out_fp32 == b->out_fp32 &&
         a->add == b->add && a->alignment == b->alignment && a->lda == b->lda && a->ldb == b->ldb &&
         a->ldd == b->ldd;
}

static char *identity(const Gpu *gpu) {
  return xasprintf("coda gemm 2 gpu %s sm %d driver %d cublaslt %zu\n", gpu->name, gpu->sm_count,
                   gpu->driver, gpu->cublaslt);
}

char *gemm_cache_default_path(const Gpu *gpu) {
  return choices_path("gemm", gpu->name, gpu->driver, gpu->cublaslt);
}

// One problem a line: M N K lda ldb ldd form formats accurate fp32 add alignment microseconds, then
// the algorithm's words.
static bool parse_line(const char *line, GemmPlan *plan) {
  GemmProblem *p = &plan->problem;
  uint64_t words[ALGORITHM_WORDS];
  int form, formats, accurate, fp32, add, used = 0;
  if (sscanf(line,
             "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
             " %d %d %d %d %d %d %f %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
             " %" SCNx64 " %" SCNx64 " %" SCNx64 "%n",
             &p->M, &p->N, &p->K, &p->lda, &p->ldb, &p->ldd, &form, &formats, &accurate, &fp32,
             &add, &p->alignment, &plan->microseconds, words, words + 1, words + 2, words + 3,
             words + 4, words + 5, words + 6, words + 7, &used) != 21 ||
      line[used] != '\n')
    return false;
  p->form = (GemmForm)form;
  p->formats = (GemmFormats)formats;
  p->accurate = accurate != 0;
  p->out_fp32 = fp32 != 0;
  p->add = add != 0;
  memcpy(&plan->algorithm, words, sizeof words);
  return p->M > 0 && p->N > 0 && p->K > 0 && form >= GEMM_NT && form <= GEMM_TN &&
         formats >= GEMM_BF16 && formats <= GEMM_E4M3;
}

GemmPlan *gemm_cache_read(const char *path, const Gpu *gpu, int *count) {
  *count = 0;
  char *first = identity(gpu), *text = choices_read(path, first);
  GemmPlan *plans = NULL;
  for (const char *line = text; line && *line; line = strchr(line, '\n') + 1) {
    plans = xrealloc(plans, ((size_t)*count + 1) * sizeof *plans);
    plans[*count] = (GemmPlan){0};
    if (!parse_line(line, &plans[*count])) {
      *count = 0; // the checksum held, so another version wrote this: nothing of it is trusted
      break;
    }
    ++*count;
  }
  free(text);
  free(first);
  return plans;
}

static size_t print_line(char *to, const GemmPlan *plan) {
  const GemmProblem *p = &plan->problem;
  uint64_t w[ALGORITHM_WORDS];
  memcpy(w, &plan->algorithm, sizeof w);
  return (size_t)snprintf(to, MAX_LINE,
                          "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                          " %d %d %d %d %d %d %.3f %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64
                          " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 "\n",
                          p->M, p->N, p->K, p->lda, p->ldb, p->ldd, (int)p->form, (int)p->formats,
                          p->accurate, p->out_fp32, p->add, p->alignment,
                          (double)plan->microseconds, w[0], w[1], w[2], w[3], w[4], w[5], w[6],
                          w[7]);
}

int gemm_cache_write(const char *path, const Gpu *gpu, const GemmPlan *plans, int count,
                     Error *err) {
  char *first = identity(gpu), *lines = xmalloc((size_t)count * MAX_LINE + 1);
  size_t used = 0;
  lines[0] = '\0';
  for (int i = 0; i < count; i++)
    if (plans[i].microseconds > 0) used += print_line(lines + used, &plans[i]);
  const int status = choices_write(path, first, lines, err);
  free(lines);
  free(first);
  return status;
}
