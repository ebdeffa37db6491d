// cuBLASLt, loaded at run time: half a gigabyte that a program on a CPU does without. The program
// is built with its header alone, starts without the library, and says what to install when a GPU
// needs it.
#pragma once
#include <cublasLt.h>
#include "base/error.h"

// clang-format off
#define CUBLASLT_FUNCTIONS(X) \
  X(GetVersion) X(GetStatusString) X(Create) X(Destroy) X(Matmul) \
  X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
  X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) \
  X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck)
// clang-format on

// Each field is the function of its name, without the leading cublasLt.
#define CUBLASLT_POINTER(name) __typeof__(&cublasLt##name) name;
typedef struct CublasLt {
  CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
} CublasLt;
#undef CUBLASLT_POINTER

// The library of the version that this program was built for, such as "libcublasLt.so.13".
#define CUBLASLT_TEXT_OF(major) "libcublasLt.so." #major
#define CUBLASLT_NAMED(major) CUBLASLT_TEXT_OF(major)
#define CUBLASLT_LIBRARY CUBLASLT_NAMED(CUBLAS_VER_MAJOR)

// Loads `library`. Where it is missing, or is another, err says what to install.
int cublaslt_open(CublasLt *lt, const char *library, Error *err);

#define CUBLAS_CHECK(lt, call)                                                                     \
  do {                                                                                             \
    const cublasStatus_t status_ = (call);                                                         \
    if (status_ == CUBLAS_STATUS_SUCCESS) break;                                                   \
    fprintf(stderr, "%s:%d: %s failed in cuBLASLt: %s\n", __FILE__, __LINE__, #call,               \
            (lt)->GetStatusString(status_));                                                       \
    exit(EXIT_FAILURE);                                                                            \
  } while (0)

// err: Error *
#define CUBLAS_TRY(lt, err, call)                                                                  \
  do {                                                                                             \
    const cublasStatus_t status_ = (call);                                                         \
    if (status_ != CUBLAS_STATUS_SUCCESS)                                                          \
      return error_set(err, "%s failed in cuBLASLt: %s", #call, (lt)->GetStatusString(status_));   \
  } while (0)
