// z = r (A B^T), y = silu(gate) up of z's column pairs, before they are rounded: arXiv 2002.05202.
//   The operands are those of Gated (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

template <class In> struct Swiglu : Gated<Swiglu<In>, In> {
  static constexpr bool KEEPS_ZERO = true;
  static DEVICE float activation(float gate, float up) {
    return swiglu(gate, up);
  }
};
DEFINE_PROGRAM(Swiglu<Bf16>, swiglu)
DEFINE_PROGRAM(Swiglu<E4m3<>>, swiglu_fp8)
