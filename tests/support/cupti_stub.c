// A library that trace.c can load for CUPTI: what the GPU does is said by the test, with stub_emit,
// and is recorded while its kind is asked for. Every buffer is filled to its end before the next.
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
enum { RECORD_BYTES = 216, KINDS = 64 }; // CUpti_ActivityKernel10's

typedef void Requested(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void Completed(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);

// CUPTI's functions get no context either.
static struct Stub {
  Requested *requested;
  Completed *completed;
  bool enabled[KINDS];
  uint8_t *buffer;
  size_t bytes, used, dropped;
  int enable_status, flush_status;
  uint32_t version;
} stub = {.version = 130000};

EXPORTED int cuptiGetVersion(uint32_t *version);
EXPORTED int cuptiGetResultString(int status, const char **text);
EXPORTED int cuptiActivityRegisterCallbacks(Requested *requested, Completed *completed);
EXPORTED int cuptiActivityEnable(int kind);
EXPORTED int cuptiActivityDisable(int kind);
EXPORTED int cuptiActivityFlushAll(uint32_t flag);
EXPORTED int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record);
EXPORTED int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped);
EXPORTED void stub_emit(int kind, uint64_t start, uint64_t end, const char *name);
EXPORTED void stub_answer(int enable_status, int flush_status, uint32_t version);
EXPORTED int stub_enabled(void);

int cuptiGetVersion(uint32_t *version) {
  *version = stub.version;
  return 0;
}

int cuptiGetResultString(int status, const char **text) {
  (void)status;
  *text = "STUB_STATUS";
  return 0;
}

int cuptiActivityRegisterCallbacks(Requested *requested, Completed *completed) {
  stub.requested = requested;
  stub.completed = completed;
  return 0;
}

int cuptiActivityEnable(int kind) {
  if (stub.enable_status == 0) stub.enabled[kind] = true;
  return stub.enable_status;
}

int cuptiActivityDisable(int kind) {
  stub.enabled[kind] = false;
  return 0;
}

static void complete(void) {
  if (stub.buffer) stub.completed(NULL, 0, stub.buffer, stub.bytes, stub.used);
  stub.buffer = NULL;
  stub.bytes = stub.used = 0;
}

int cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  complete();
  return stub.flush_status;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
  uint8_t *next = *record ? *record + RECORD_BYTES : buffer;
  if (next + RECORD_BYTES > buffer + valid) return 12;
  *record = next;
  return 0;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  (void)context;
  (void)stream;
  *dropped = stub.dropped;
  stub.dropped = 0;
  return 0;
}

void stub_emit(int kind, uint64_t start, uint64_t end, const char *name) {
  if (!stub.enabled[kind]) return;
  if (stub.used + RECORD_BYTES > stub.bytes) {
    size_t most;
    complete();
    stub.requested(&stub.buffer, &stub.bytes, &most);
  }
  if (!stub.buffer) {
    stub.dropped++;
    return;
  }
  uint8_t *record = stub.buffer + stub.used;
  memset(record, 0xa5, RECORD_BYTES);
  memcpy(record, &(uint32_t){(uint32_t)kind}, 4);
  memcpy(record + 16, &start, sizeof start);
  memcpy(record + 24, &end, sizeof end);
  memcpy(record + 104, &name, sizeof name);
  stub.used += RECORD_BYTES;
}

void stub_answer(int enable_status, int flush_status, uint32_t version) {
  stub.enable_status = enable_status;
  stub.flush_status = flush_status;
  stub.version = version;
}

int stub_enabled(void) {
  int count = 0;
  for (int i = 0; i < KINDS; i++) count += stub.enabled[i];
  return count;
}
