// The update over the parameters' tables, and what comes before the first.
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"

// Sets the scale of tensors with FP8 copies that have none yet, from their largest value.
static void calibrate(Cuda *c, const ParamTensor *list, int count) {
  Backend *be = &c->base;
  ScalingState *states = xmalloc((size_t)c->base.spec.scaling_count * sizeof *states);
  be->services.scalings_read(be, states);
  cuda_largest_weights(c);
  for (int i = 0; i < count; i++) {
    const Operand *fp8 = cuda_fp8_use(&list[i]);
    if (fp8 && states[fp8->scaling].scale == 0)
      launch_scaling_set(&c->scalings[fp8->scaling], c->gpu.stream);
  }
  free(states);
}

static void op_refresh(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  if (c->orthogonalize == cuda_orthogonalize) cuda_prepare_muon(c);
  if (table->plain_blocks < table->update_blocks) calibrate(c, list, count);
  cuda_copy_weights(c);
}

void cuda_set_update(Cuda *c) {
  Backend *be = &c->base;
  be->spec.list_bytes = cuda_list_bytes;
  c->orthogonalize = cuda_orthogonalize;
  be->services.refresh = op_refresh;
}
