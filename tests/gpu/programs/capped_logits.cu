// Logits that are capped softly at 30, 30 tanh(z / 30), as Gemma 2 has them: arXiv 2408.00118; and
// the gradient of their loss with a z-loss, the mean of lse^2 times a coefficient:
// arXiv 2204.02311.
#include "kernels/fused/define.cuh"

static DEVICE float capped(float z) {
  return 60 * sigmoid(z * (2 / 30.0f)) - 30;
}

//   The operands are those of Logits (kernels/fused/bases.cuh).
template <class In> struct CappedLogits : Logits<CappedLogits<In>, In> {
  static DEVICE float logit(float z) {
    return capped(z);
  }
};
DEFINE_PROGRAM(CappedLogits<Bf16>, capped_logits)
DEFINE_PROGRAM(CappedLogits<E4m3<>>, capped_logits_fp8)

template <class In> struct RstdAndLse {
  static constexpr int COUNT = 2;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    rstd_of_rows<2>(args, row, M, values[0]);
    In::scale_rows(args, row, M, values[0]);
    row_log_sum_exp(args.in[1], row, M, values[1]);
  }
};

// p (1 + 2 c lse) (1 - (logit / 30)^2), p = exp(logit - lse): d loss / dz but for the targets.
//   args.in[0], inverse_D, eps, in[1] what CappedLogits leaves, params[0].f c   stores[0] [M, N]
template <class In> struct CappedDlogits : Pairs<CappedDlogits<In>, In> {
  using RowValues = RstdAndLse<In>;

  static DEVICE float gradient(float z, float lse, float c) {
    const float logit = capped(z);
    return __expf(logit - lse) * (1 + 2 * c * lse) * (1 - logit * logit * (1 / 900.0f));
  }
  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) const {
    const float r = s.row_value(i, 0), lse = s.row_value(i, 1), c = s.block.args.params[0].f;
    return bf16_two(gradient(v.x * r, lse, c), gradient(v.y * r, lse, c));
  }
};
DEFINE_PROGRAM(CappedDlogits<Bf16>, capped_dlogits)
DEFINE_PROGRAM(CappedDlogits<E4m3<>>, capped_dlogits_fp8)
