#include "model/run/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/bf16_products.h"
#include "kernels/gpu_backends.h"
#include "model/llama.h"
#include "model/tensors.h"

// The tokens that a sample feeds: the one that it starts from, and all that follow but the last.
static int64_t sample_context(const TrainConfig *t) {
  if (t->sample_interval < 0) return 0;
  return t->sample_tokens < t->sequence_length ? t->sample_tokens : t->sequence_length;
}

RunShape run_shape(const Config *c) {
  return (RunShape){.batch = c->train.batch_size,
                    .seq = c->train.sequence_length,
                    .loss_chunks = c->train.loss_chunks,
                    .recompute = c->train.recompute,
                    .recompute_layers = c->train.recompute_layers,
                    .train = true,
                    .context = sample_context(&c->train),
                    .fp8 = c->backend.precision == PRECISION_FP8,
                    .muon = c->optimizer.kind == OPTIMIZER_MUON};
}

// A batch of random windows has a quarter more documents than the mean only seldom.
void run_documents(RunShape *shape, const Loader *loader) {
  if (!loader) return;
  const Epoch *e = &loader->epoch;
  shape->whole_windows |= !loader_packs(loader);
  if (!loader_packs(loader)) return;
  const int64_t most = shape->batch * e->most_documents,
                many = (int64_t)ceil(1.25 * (double)shape->batch * e->mean_documents),
                usual = many < most ? many : most;
  if (usual > shape->usual_documents) shape->usual_documents = usual;
  if (e->longest > shape->longest_document) shape->longest_document = e->longest;
}

bool backend_attends_documents(void) {
  const char *forced = getenv("CODA_DOCUMENT_ATTENTION");
  return !(forced && strcmp(forced, "none") == 0) && !gpu_lacks_documents();
}

int64_t tokens_per_step(const Config *c) {
  return c->train.batch_size * c->train.sequence_length * c->train.gradient_accumulation;
}

double flops_per_step(const Config *c) {
  const double tokens = (double)tokens_per_step(c);
  return model_step_flops(&c->model, tokens, tokens * (double)c->train.sequence_length);
}

bool run_graphs(const Config *c) {
  return c->backend.graphs && c->output.profile_steps == 0;
}

static OpsConfig ops_config(const Config *c, const RunShape *shape, int64_t max_positions) {
  const CpuProducts products = c->backend.cpu_products;
  OpsConfig ops = llama_ops_config(&c->model, shape, max_positions, (int)c->backend.threads);
  ops.moments = c->backend.moments;
  ops.masters = c->backend.masters;
  ops.offload = c->backend.offload;
  const bool some = c->backend.offload_layers < c->model.num_hidden_layers;
  ops.offload_layers = some ? c->backend.offload_layers : 0;
  ops.bf16_products =
      products == PRODUCTS_BF16 || (products == PRODUCTS_AUTO && bf16_products_pay());
  return ops;
}

static GpuOptions gpu_options(const Config *c, const RunShape *shape) {
  const Mainloop asked = c->backend.mainloop;
  return (GpuOptions){.kernels = c->backend.kernels,
                      .mainloop = asked == MAINLOOP_AUTO ? shape->mainloop : asked,
                      .train = shape->train,
                      .accumulates = c->train.gradient_accumulation > 1,
                      .grads_fp32 = c->train.gradient_accumulation > 1 &&
                                    c->backend.gradients == GRADIENTS_AUTO,
                      .deterministic = c->backend.deterministic,
                      .graphs = run_graphs(c),
                      .batch = shape->train ? shape->batch : 0,
                      .seq = shape->seq,
                      .loss_tokens = model_sizes(&c->model, shape).head_rows};
}

static Backend *gpu_create(const Config *c, const OpsConfig *ops, const RunShape *shape,
                           Error *err) {
  const GpuOptions options = gpu_options(c, shape);
  return backend_gpu_create(ops, &options, err);
}

Backend backend_outline(const Config *c, const RunShape *shape, bool gpu) {
  enum { LIBRARIES = 256 << 20 }; // code and workspace of cuBLASLt and cuDNN, roughly
  const OpsConfig ops = ops_config(c, shape, c->train.sequence_length);
  if (!gpu) return backend_cpu_outline(&ops);
  const GpuOptions options = gpu_options(c, shape);
  Backend be = backend_gpu_outline(&ops, &options);
  be.workspace_bytes += LIBRARIES;
  return be;
}

static size_t estimate_bytes(const Config *c, const RunShape *shape) {
  const OpsConfig ops = ops_config(c, shape, c->train.sequence_length);
  const GpuOptions options = gpu_options(c, shape);
  const Backend sizes = backend_gpu_outline(&ops, &options);
  MemoryPlan plan;
  memory_plan(&plan, &c->model, shape, &sizes);
  return plan.total_bytes;
}

int64_t choose_loss_chunks(const Config *c, RunShape shape, size_t memory) {
  if (memory == 0) return 1;
  const int64_t M = shape.batch * shape.seq, least = shape.fp8 ? FP8_GROUP : 1;
  int64_t chunks = 1;
  for (int64_t next = 1; next <= 256 && M % (next * least) == 0; next *= 2) {
    shape.loss_chunks = chunks = next;
    if ((double)estimate_bytes(c, &shape) <= 0.95 * (double)memory) break;
    if ((double)(M / next * c->model.vocab_size) * 2 < 0.1 * (double)memory && next > 1) break;
  }
  return chunks;
}

int backend_outlook(Outlook *o, const Config *c, RunShape *shape, Error *err) {
  GpuMemory memory = {0};
  *o = (Outlook){.gpu = c->backend.device != DEVICE_CPU};
  if (o->gpu && gpu_usable(&memory, &o->why_no_gpu) != 0) {
    o->gpu = false;
    if (c->backend.device == DEVICE_CUDA)
      return error_set(err, "backend.device is \"cuda\", but %s; backend.device=cpu needs no GPU",
                       o->why_no_gpu.text);
  }
  if (!o->gpu && c->backend.cpu_products == PRODUCTS_BF16 && bf16_products_usable(err) != 0)
    return error_prefix(err, "backend.cpu_products=bf16 is not available (auto selects fp32)");
  o->gpu_bytes = o->gpu ? memory.all : 0;
  o->mainloop = shape->mainloop = memory.mainloop;
  if (shape->loss_chunks == 0) shape->loss_chunks = choose_loss_chunks(c, *shape, o->gpu_bytes);
  o->sizes = backend_outline(c, shape, o->gpu);
  if (o->gpu) o->sizes.memory_bytes = memory.free;
  if (o->gpu) o->sizes.host_bytes = memory_available();
  return 0;
}

Backend *backend_create(const Config *c, RunShape *shape, int64_t max_positions, Error *err) {
  Outlook outlook;
  if (backend_outlook(&outlook, c, shape, err) != 0) return NULL;
  OpsConfig ops = ops_config(c, shape, max_positions);
  if (shape->fp8) scalings_declare(&c->model, &ops);
  Backend *be = outlook.gpu ? gpu_create(c, &ops, shape, err) : backend_cpu_create(&ops);
  free((void *)ops.scalings);
  if (!be || outlook.why_no_gpu.text[0] == '\0') return be;
  const size_t used = strlen(be->description);
  snprintf(be->description + used, sizeof be->description - used, "; not the GPU, because %.300s",
           outlook.why_no_gpu.text);
  return be;
}

BackendText backend_identity(const Backend *be) {
  BackendText t;
  snprintf(t.text, sizeof t.text, "%.40s: %.148s", be->name, be->description);
  t.text[strcspn(t.text, ";")] = '\0';
  return t;
}
