#include "kernels/cuda/cupti_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cudnn.h"

static const LibraryFunction functions[] = {
    {"cuptiGetVersion", offsetof(CuptiApi, get_version)},
    {"cuptiGetResultString", offsetof(CuptiApi, result_string)},
    {"cuptiActivityRegisterCallbacks", offsetof(CuptiApi, register_callbacks)},
    {"cuptiActivityEnable", offsetof(CuptiApi, enable)},
    {"cuptiActivityDisable", offsetof(CuptiApi, disable)},
    {"cuptiActivityFlushAll", offsetof(CuptiApi, flush_all)},
    {"cuptiActivityGetNextRecord", offsetof(CuptiApi, next_record)},
    {"cuptiActivityGetNumDroppedRecords", offsetof(CuptiApi, dropped_records)},
};

// NULL with the dynamic linker's words of the first place where it looked.
static void *load(const char *library, int cuda_major, char *why, size_t why_bytes) {
  static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                        "/usr/local/cuda/extras/CUPTI/lib64/"};
  void *handle = NULL;
  for (size_t i = 0; !handle && i < sizeof folders / sizeof *folders; i++) {
    char path[128];
    snprintf(path, sizeof path, "%slibcupti.so.%d", folders[i], cuda_major);
    handle = dlopen(library ? library : path, RTLD_NOW | RTLD_LOCAL);
    if (!handle && i == 0) snprintf(why, why_bytes, "%s", dlerror());
    if (library) break;
  }
  return handle;
}

int cupti_open(CuptiApi *api, const char *library, int cuda_major, Error *err) {
  memset(api, 0, sizeof *api);
  char why[512] = "";
  void *handle = load(library, cuda_major, why, sizeof why);
  if (!handle)
    return error_set(err,
                     "CUPTI is missing (%s): install it (apt install cuda-cupti-%d-0, or the minor "
                     "version of the CUDA that is here), or put the folder that holds "
                     "libcupti.so.%d into LD_LIBRARY_PATH",
                     why, cuda_major, cuda_major);
  const char *missing =
      library_functions(handle, functions, sizeof functions / sizeof *functions, api);
  if (missing)
    return error_set(err, "the CUPTI that is here has no function %s: install CUDA %d's", missing,
                     cuda_major);
  if (cupti_check(api, api->get_version(&api->version), "asking for its version", err)) return -1;
  if (api->version < CUPTI_OLDEST_VERSION)
    return error_set(err,
                     "CUPTI is of version %u, but 18 (CUDA 11.8) or later is needed: install "
                     "CUDA %d's",
                     (unsigned)api->version, cuda_major);
  return 0;
}

int cupti_check(const CuptiApi *api, int status, const char *doing, Error *err) {
  if (status == 0) return 0;
  if (status == CUPTI_MULTIPLE_SUBSCRIBERS || status == CUPTI_OLD_PROFILER_API_INITIALIZED)
    return error_set(err,
                     "CUPTI, %s: another profiler (nsys, ncu, ...) watches this process, and there "
                     "can be only one: run without it",
                     doing);
  const char *text = NULL;
  if (api->result_string(status, &text) != 0 || !text) text = "a status without a name";
  return error_set(err, "CUPTI, %s: %s (%d)", doing, text, status);
}
