// The part of CUPTI that we call, loaded at run time: the program builds without CUPTI, runs
// without it, and says what to install when it is missing. Needs no CUDA or CUPTI header.
//
// The constants and records below are CUPTI's binary interface. Newer versions append fields to a
// record, and its beginning has been the same since CUDA 9 (CUpti_ActivityKernel4) up to CUDA 13.0
// (CUpti_ActivityKernel10); tests/unit/test_trace.c compares it with the installed header.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

enum {
  CUPTI_KIND_MEMCPY = 1,
  CUPTI_KIND_MEMSET = 2,
  CUPTI_KIND_CONCURRENT_KERNEL = 10, // as KIND_KERNEL, but kernels are not kept from overlapping
  CUPTI_FLUSH_FORCED = 1,
  CUPTI_MAX_LIMIT_REACHED = 12,            // a buffer has no more records
  CUPTI_MULTIPLE_SUBSCRIBERS = 39,         // another profiler has the GPU
  CUPTI_OLD_PROFILER_API_INITIALIZED = 36, // likewise
  CUPTI_OLDEST_VERSION = 18,               // CUDA 11.8
};

// The beginning of CUpti_ActivityMemcpy*, CUpti_ActivityMemset* and CUpti_ActivityKernel*.
typedef struct CuptiRecord {
  uint32_t kind;
  uint8_t unread[12];
  uint64_t start, end; // nanoseconds; both 0: not known
} CuptiRecord;

typedef struct CuptiKernel {
  CuptiRecord record;
  uint8_t unread[72];
  const char *name; // all records of a kernel share it, and CUPTI keeps it
} CuptiKernel;

typedef void CuptiBufferRequested(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void CuptiBufferCompleted(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                  size_t valid_bytes);

// CUPTI's functions. Statuses are 0 for success; the int arguments are its enumerations.
typedef struct CuptiApi {
  uint32_t version; // 19 is CUDA 12.0's, 130000 CUDA 13.0's
  int (*get_version)(uint32_t *version);
  int (*result_string)(int status, const char **text);
  int (*register_callbacks)(CuptiBufferRequested *requested, CuptiBufferCompleted *completed);
  int (*enable)(int kind);
  int (*disable)(int kind);
  int (*flush_all)(uint32_t flag);
  int (*next_record)(uint8_t *buffer, size_t valid_bytes, CuptiRecord **record);
  int (*dropped_records)(void *context, uint32_t stream, size_t *dropped);
} CuptiApi;

// Loads `library`, or where it is NULL the CUPTI of this major version of CUDA, as the dynamic
// linker finds it or where CUDA's toolkit puts it. It stays loaded until the program ends.
int cupti_open(CuptiApi *api, const char *library, int cuda_major, Error *err);

// 0 if status is success; else fails with `doing` and what CUPTI calls the status.
int cupti_check(const CuptiApi *api, int status, const char *doing, Error *err);
