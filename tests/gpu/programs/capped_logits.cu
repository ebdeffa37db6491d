// Logits that are capped softly at 30, 30 tanh(z / 30): arXiv 2408.00118.
//   The operands are those of Logits (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

template <class In> struct CappedLogits : Logits<CappedLogits<In>, In> {
  static DEVICE float logit(float z) {
    return 60 * sigmoid(z * (2 / 30.0f)) - 30;
  }
};
DEFINE_PROGRAM(CappedLogits<Bf16>, capped_logits)
DEFINE_PROGRAM(CappedLogits<E4m3<>>, capped_logits_fp8)
