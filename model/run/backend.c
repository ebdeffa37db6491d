#include "model/run/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "kernels/bf16_products.h"
#include "model/run/check.h"

// A batch of random windows has a quarter more documents than the mean only seldom.
void spec_documents(Spec *asked, const Loader *loader) {
  if (!loader) return;
  const Epoch *e = &loader->epoch;
  asked->whole_windows |= !loader_packs(loader);
  if (!loader_packs(loader)) return;
  const int64_t most = asked->batch * e->most_documents,
                many = (int64_t)ceil(1.25 * (double)asked->batch * e->mean_documents);
  asked->usual_documents = max_i64(asked->usual_documents, min_i64(many, most));
  asked->longest_document = max_i64(asked->longest_document, e->longest);
}

int hardware_find(Hardware *h, const Config *c, Error *err) {
  *h = (Hardware){.gpu = c->backend.device != DEVICE_CPU, .host_bytes = memory_available()};
  if (h->gpu && gpu_find(&h->card, &h->why_no_gpu) != 0) {
    h->gpu = false;
    h->card = (Gpu){0};
    if (c->backend.device == DEVICE_CUDA)
      return error_set(err, "backend.device is \"cuda\", but %s; backend.device=cpu needs no GPU",
                       h->why_no_gpu.text);
  }
  h->memory_bytes = h->gpu ? h->card.free_bytes : h->host_bytes;
  if (!h->gpu && c->backend.cpu_products == PRODUCTS_BF16 && bf16_products_usable(err) != 0)
    return error_prefix(err, "backend.cpu_products=bf16 is not available (auto selects fp32)");
  return 0;
}

bool hardware_attends_documents(const Hardware *h, int64_t d, int64_t T) {
  enum { LONGEST_BIASED = 8192 };
  const char *forced = getenv("CODA_DOCUMENT_ATTENTION");
  return !(forced && strcmp(forced, "none") == 0) &&
         (!h->gpu || T <= LONGEST_BIASED || !gpu_biases_documents(&h->card, d, false));
}

static bool auto_fuses(const Spec *spec, const Gpu *gpu) {
  Error ignored;
  return spec->kernels == KERNELS_AUTO && gpu_fuses(gpu) &&
         backend_fused_supported(spec, &ignored) == 0;
}

Backend *backend_open(const Config *c, const Spec *spec, const Hardware *h, Error *err) {
  Spec scaled = *spec;
  if (h->gpu && auto_fuses(spec, &h->card)) check_remembered(&scaled, &c->model, &h->card);
  if (has_fp8_weights(spec)) scalings_declare(&c->model, &scaled);
  Backend *be = h->gpu ? backend_gpu_create(&scaled, &h->card, err) : backend_cpu_create(&scaled);
  free((void *)scaled.scalings);
  if (!be || h->why_no_gpu.text[0] == '\0') return be;
  const size_t used = strlen(be->description);
  snprintf(be->description + used, sizeof be->description - used, "; not the GPU, because %.300s",
           h->why_no_gpu.text);
  return be;
}

ShortText backend_identity(const Backend *be) {
  ShortText t = short_text("%.40s: %.148s", be->name, be->description);
  t.text[strcspn(t.text, ";")] = '\0';
  return t;
}
