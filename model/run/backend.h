// Which backend a run gets.
#pragma once
#include "data/loader.h"
#include "model/tensors.h"

// The shapes of a training run, with room for samples where any are asked for (they need a
// tokenizer); loss_chunks as configured, 0 = backend_create chooses.
RunShape run_shape(const Config *config);
// Gives the shape places for the documents of a batch of these windows; the loader may be NULL.
void run_documents(RunShape *shape, const Loader *loader);

// False where the attention of the GPU here cannot stop at a document's end: then windows with one
// piece of a document each do the same. For tests alone: CODA_DOCUMENT_ATTENTION=none says so of
// every backend.
bool backend_attends_documents(void);

// Tokens of an optimizer step.
int64_t tokens_per_step(const Config *config);
// Its model FLOPs (model/tensors.h), were every window one document.
double flops_per_step(const Config *config);

// Whether steps are to be recorded as CUDA graphs: ranges on a profiler's time line hold the
// kernels that are launched inside them, and a recorded step is one launch.
bool run_graphs(const Config *config);

// A training run's Backend for memory plans alone: on a GPU its workspace is an estimate, and
// memory_bytes is not known. Nothing is allocated.
Backend backend_outline(const Config *config, const RunShape *shape, bool gpu);

// The backend that backend_create would open, found without opening it: nothing is allocated or
// written.
typedef struct Outlook {
  bool gpu;
  size_t gpu_bytes;  // all of its memory, 0 of a CPU
  Mainloop mainloop; // as in RunShape
  Backend sizes;     // of backend_outline, with the memory that is free
  Error why_no_gpu;  // "" where one is used, or none was asked for
} Outlook;
// Fails as backend_create does where backend.device asks for a GPU that cannot be used.
// loss_chunks of 0 become the number that it would choose, and mainloop is set.
int backend_outlook(Outlook *outlook, const Config *config, RunShape *shape, Error *err);
// That number: the fewest with which the run fits into 95 % of a GPU with this many bytes. Where
// none fits, the fewest that keep the logits below a tenth of it: llama_create then reports the
// missing memory. 1 on a CPU, of 0 bytes.
int64_t choose_loss_chunks(const Config *config, RunShape shape, size_t gpu_bytes);

// The largest runs that fit by the memory plan, 0 where none does. Of another length or batch all
// else stays as configured.
typedef struct PlanLimits {
  int64_t window; // tokens of one sequence alone: 16 to 31 times a power of two, or less than 16
  int64_t batch;  // sequences of train.sequence_length
} PlanLimits;
PlanLimits plan_limits(const Config *config, const Outlook *outlook);

// 0 unless the run does not fit into the host's memory: all of it on a CPU, else what is offloaded.
// A GPU's is judged when its backend is open.
int plan_check(const Config *config, const RunShape *shape, Error *err);
// For --plan and the start of a run: the lengths of warm-up and decay where they are not the
// configured ones, a warning about more CPU threads than processors, and unless the run is resumed
// one about each key that is far from configs/RECIPE.md.
void recipe_print(const Config *config, bool gpu, bool resumed);
// Appends to the sentence which keys would make the run fit into that backend's memory, and the
// host's: each alone, or where none does several together.
void plan_advise(const Config *config, const RunShape *shape, const Backend *be, Error *err);

// The backend that backend.device asks for, for runs of this shape and RoPE positions below
// max_positions. "auto" takes the GPU where one is usable, else the CPU, whose description then
// names the missing parts for a GPU. loss_chunks of 0 become as few as fit the memory.
Backend *backend_create(const Config *config, RunShape *shape, int64_t max_positions, Error *err);

// The run's bits depend on this besides the configuration: backend, hardware, libraries and, on a
// CPU, threads and the instructions that oneDNN uses: "cpu: 2 threads, oneDNN 2.6.3 (AVX2),
// fp32". Without the rest of the description.
typedef struct BackendText {
  char text[192]; // as TrainState.backend
} BackendText;
BackendText backend_identity(const Backend *be);

// doctor.c: prints which paths this machine can train on and, tried with a tiny model, whether they
// work. 0 if every path that the machine has the hardware for works; 1 if one fails or misses
// something.
int doctor(void);
