// Checking cuBLASLt calls, as check.h does CUDA's. It stands apart because cublasLt.h brings the
// headers of all number formats: 18,000 lines that no kernel's file should have to read.
#pragma once
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/error.h"

static inline void cublas_check(cublasStatus_t status, const char *call, const char *file,
                                int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fprintf(stderr, "%s:%d: %s failed in cuBLASLt: %s\n", file, line, call,
          cublasLtGetStatusString(status));
  exit(EXIT_FAILURE);
}

#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)

// err: Error *
#define CUBLAS_TRY(err, call)                                                                      \
  do {                                                                                             \
    const cublasStatus_t status_ = (call);                                                         \
    if (status_ != CUBLAS_STATUS_SUCCESS)                                                          \
      return error_set(err, "%s failed in cuBLASLt: %s", #call, cublasLtGetStatusString(status_)); \
  } while (0)
