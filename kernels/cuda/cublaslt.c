#include "kernels/cuda/cublaslt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "kernels/cuda/cudnn.h"

#define CUBLASLT_NAME(name) {"cublasLt" #name, offsetof(CublasLt, name)},
static const LibraryFunction functions[] = {CUBLASLT_FUNCTIONS(CUBLASLT_NAME)};

int cublaslt_open(CublasLt *lt, const char *library, Error *err) {
  void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!loaded)
    return error_set(err,
                     "cuBLASLt %d is missing (%s): install it (apt install libcublas-%d-%d, or pip "
                     "install nvidia-cublas), or put the folder that holds %s into LD_LIBRARY_PATH",
                     CUBLAS_VER_MAJOR, dlerror(), CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                     library);
  const char *absent =
      library_functions(loaded, functions, sizeof functions / sizeof *functions, lt);
  return absent ? error_set(err, "%s has no function %s: reinstall cuBLASLt %d", library, absent,
                            CUBLAS_VER_MAJOR)
                : 0;
}
