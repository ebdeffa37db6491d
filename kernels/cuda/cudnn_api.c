#include "kernels/cuda/cudnn_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/library.h"

static const LibraryFunction functions[] = {
    {"cudnnGetVersion", offsetof(CudnnApi, get_version)},
    {"cudnnGetCudartVersion", offsetof(CudnnApi, get_cudart_version)},
    {"cudnnGetErrorString", offsetof(CudnnApi, error_string)},
    {"cudnnGetLastErrorString", offsetof(CudnnApi, last_error_string)},
    {"cudnnCreate", offsetof(CudnnApi, create)},
    {"cudnnDestroy", offsetof(CudnnApi, destroy)},
    {"cudnnSetStream", offsetof(CudnnApi, set_stream)},
    {"cudnnBackendCreateDescriptor", offsetof(CudnnApi, create_descriptor)},
    {"cudnnBackendDestroyDescriptor", offsetof(CudnnApi, destroy_descriptor)},
    {"cudnnBackendFinalize", offsetof(CudnnApi, finalize)},
    {"cudnnBackendSetAttribute", offsetof(CudnnApi, set_attribute)},
    {"cudnnBackendGetAttribute", offsetof(CudnnApi, get_attribute)},
    {"cudnnBackendExecute", offsetof(CudnnApi, execute)},
};

CudnnVersionText cudnn_version_text(size_t version) {
  CudnnVersionText v;
  const size_t major = version < 10000 ? version / 1000 : version / 10000; // 8907 is 8.9.7
  snprintf(v.text, sizeof v.text, "%zu.%zu.%zu", major,
           version / 100 % (version < 10000 ? 10 : 100), version % 100);
  return v;
}

// 9.10.0 and 9.10.1 have no working backward, and before 9.11 the mask value and the reduction's
// attributes differ (cudnn-frontend, scaled_dot_product_flash_attention.h).
int cudnn_version_supported(size_t version, Error *err) {
  if (version >= 91100 && version < 100000) return 0;
  return error_set(err,
                   "cuDNN %s is installed, and attention on the GPU needs 9.11 or later of major "
                   "version 9: install a newer one (apt install cudnn9-cuda-13, or pip install "
                   "nvidia-cudnn-cu13)",
                   cudnn_version_text(version).text);
}

// cuDNN loads its compiler (NVRTC, 110 MB) and unloads it again for every configuration it looks
// at, and each unloading leaks; one that is held open it finds loaded. Where we do not find it,
// cuDNN may.
static void hold_compiler(const CudnnApi *api) {
  char name[32];
  snprintf(name, sizeof name, "libnvrtc.so.%zu", api->get_cudart_version() / 1000);
  dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

// There is no libcudnn.so.9, for `why`.
static int missing(const char *why, Error *err) {
  static const char *const others[] = {"libcudnn.so.8", "libcudnn.so.10"};
  error_set(err,
            "cuDNN 9 is missing (%s): install it (apt install cudnn9-cuda-13), or put the folder "
            "that holds libcudnn.so.9 into LD_LIBRARY_PATH",
            why);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    void *library = dlopen(others[i], RTLD_LAZY | RTLD_LOCAL);
    const LibraryFunction version = {"cudnnGetVersion", offsetof(CudnnApi, get_version)};
    CudnnApi api;
    if (library && !library_functions(library, &version, 1, &api))
      return cudnn_version_supported(api.get_version(), err);
  }
  return -1;
}

int cudnn_open(CudnnApi *api, Error *err) {
  memset(api, 0, sizeof *api);
  void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!library) return missing(dlerror(), err);
  const char *absent =
      library_functions(library, functions, sizeof functions / sizeof *functions, api);
  if (absent)
    return error_set(err, "libcudnn.so.9 has no function %s: reinstall cuDNN 9.11 or later",
                     absent);
  api->version = api->get_version();
  if (cudnn_version_supported(api->version, err)) return -1;
  hold_compiler(api);
  return 0;
}

int cudnn_check(const CudnnApi *api, int status, const char *doing, Error *err) {
  if (status == 0) return 0;
  char detail[1024] = "";
  api->last_error_string(detail, sizeof detail);
  detail[sizeof detail - 1] = 0;
  return error_set(err, "cuDNN %s, %s: %s%s%s", cudnn_version_text(api->version).text, doing,
                   api->error_string(status), *detail ? ": " : "", detail);
}
