#include "kernels/cuda/gemm_cache.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

enum { MAX_CACHE_BYTES = 4 << 20, MAX_LINE = 512, ALGORITHM_WORDS = 8 };
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
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (!(cache && *cache) && !(home && *home)) return NULL;
  char name[sizeof gpu->name];
  snprintf(name, sizeof name, "%s", gpu->name);
  for (char *c = name; *c; c++)
    if (!isalnum((unsigned char)*c)) *c = '-';
  const bool set = cache && *cache;
  return xasprintf("%s%s/coda/gemm-%s-%d-%zu.txt", set ? cache : home, set ? "" : "/.cache", name,
                   gpu->driver, gpu->cublaslt);
}

// FNV-1a
static uint64_t checksum(const char *text, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
  return h;
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

// The lines between the first and the checksum, or NULL where the file is not whole or not ours.
// Cuts the checksum off.
static char *verified_lines(char *text, const Gpu *gpu) {
  char *tail = strstr(text, "\nchecksum ");
  if (!tail) return NULL;
  uint64_t expected;
  int used = 0;
  if (sscanf(tail + 1, "checksum %" SCNx64 "%n", &expected, &used) != 1 ||
      strcmp(tail + 1 + used, "\n") != 0)
    return NULL;
  tail[1] = '\0';
  if (checksum(text, strlen(text)) != expected) return NULL;
  char *first = identity(gpu);
  const size_t length = strlen(first);
  const bool ours = strncmp(text, first, length) == 0;
  free(first);
  return ours ? text + length : NULL;
}

GemmPlan *gemm_cache_read(const char *path, const Gpu *gpu, int *count) {
  *count = 0;
  char *text;
  size_t bytes;
  Error ignored;
  if (!path_exists(path) || file_read(path, MAX_CACHE_BYTES, &text, &bytes, &ignored)) return NULL;
  char *lines = strlen(text) == bytes ? verified_lines(text, gpu) : NULL;
  GemmPlan *plans = NULL;
  while (lines && *lines) {
    plans = xrealloc(plans, ((size_t)*count + 1) * sizeof *plans);
    plans[*count] = (GemmPlan){0};
    if (!parse_line(lines, &plans[*count])) {
      *count = 0; // the checksum held, so another version wrote this: nothing of it is trusted
      break;
    }
    ++*count;
    lines = strchr(lines, '\n') + 1;
  }
  free(text);
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
  if (directory_create(path_parent(path).text, err)) return -1;
  char *first = identity(gpu);
  char *text = xmalloc(strlen(first) + (size_t)(count + 1) * MAX_LINE);
  size_t used = (size_t)sprintf(text, "%s", first);
  free(first);
  for (int i = 0; i < count; i++)
    if (plans[i].microseconds > 0) used += print_line(text + used, &plans[i]);
  used += (size_t)sprintf(text + used, "checksum %" PRIx64 "\n", checksum(text, used));
  const int status = file_write_atomic(path, text, used, err);
  free(text);
  return status;
}
