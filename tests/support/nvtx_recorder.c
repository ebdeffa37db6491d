// A library for NVTX to load, as profilers have one: it writes every range that is opened ("push
// NAME") and closed ("pop") to the file that NVTX_RECORD names.
#include <stdio.h>
#include <stdlib.h>
#include <nvtx3/nvToolsExt.h>

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table);

// NVTX calls what is below with nothing of ours; that is why the file is a global.
static FILE *record;

static int NVTX_API on_push(const char *name) {
  fprintf(record, "push %s\n", name);
  return 0;
}

static int NVTX_API on_pop(void) {
  fprintf(record, "pop\n");
  return 0;
}

static int fails(const char *why) {
  fprintf(stderr, "nvtx_recorder: %s\n", why);
  return 0;
}

// Called at the first range. 0: failed, and NVTX goes on without a library.
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const NvtxExportTableCallbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
  const char *path = getenv("NVTX_RECORD");
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return fails("this NVTX has no table of the core functions");
  if (!path) return fails("NVTX_RECORD names no file");
  record = fopen(path, "w");
  if (!record) return fails("the file that NVTX_RECORD names cannot be written");
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)on_push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)on_pop;
  return 1;
}
