// Which backend a run gets, whether it fits, and how long a step may take.
#pragma once
#include "data/loader.h"
#include "model/spec.h"
#include "model/tensors.h"

// Makes room in the spec for the documents of a batch of these windows; the loader may be NULL.
void spec_documents(Spec *asked, const Loader *loader);

// Finds the device that backend.device asks for, without opening it. "auto" takes the GPU where one
// is usable, else the CPU. -1 where a GPU is asked for and cannot be used, or where
// backend.cpu_products cannot be had.
int hardware_find(Hardware *hardware, const Config *config, Error *err);

// Whether documents are best judged together in windows of T rows, with heads of d columns. False
// where the GPU's attention stops at their ends by a bias, and windows are so long that the bias
// takes much memory: then windows with one piece of a document each do the same. For tests alone:
// CODA_DOCUMENT_ATTENTION=none says so of every backend.
bool hardware_attends_documents(const Hardware *hardware, int64_t d, int64_t T);

// Opens the backend of this hardware for a spec that spec_resolve made for it. On a CPU the
// description names what a GPU lacks. NULL and a sentence where a GPU's cannot be opened.
Backend *backend_open(const Config *config, const Spec *spec, const Hardware *hardware, Error *err);

// The largest runs that fit by the memory plan, 0 where none does. Of another length or batch all
// else stays as configured.
typedef struct PlanLimits {
  int64_t window; // tokens of one sequence alone: 16 to 31 times a power of two, or less than 16
  int64_t batch;  // sequences of train.sequence_length
} PlanLimits;
PlanLimits plan_limits(const Config *config, const Hardware *hardware);

bool plan_fits(const Config *config, const Hardware *hardware);

// 0 unless the run does not fit into the host's memory: all of it on a CPU, else what is offloaded.
// A GPU's is judged when its backend is open.
int plan_check(const Config *config, const Spec *spec, const Hardware *hardware, Error *err);
// Appends to the message which keys would make the run fit into the memory that its spec names, on
// the device and on the host: each alone, or where none does several together. hardware: that the
// spec was resolved on.
void plan_advise(const Config *config, const Spec *spec, const Hardware *hardware, Error *err);

// Milliseconds of an optimizer step by count: the work of its parts over the rates of the card's
// data sheet, times what an H200 was measured to take. host_bytes: of what is offloaded. NAN
// where the rates are not known.
double step_estimate_ms(const Config *config, const Spec *spec, const Gpu *gpu, size_t host_bytes);

// The run's bits depend on this besides the configuration: backend, hardware, libraries and, on a
// CPU, threads and the instructions that oneDNN uses: "cpu: 2 threads, oneDNN 2.6.3 (AVX2),
// fp32". Without the rest of the description.
ShortText backend_identity(const Backend *be);
