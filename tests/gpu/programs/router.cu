// A router of experts, 64 columns a group: P = softmax(A B^T) over each group, and of each row the
// two largest in it.
//   stores[0] P [M, N]   args.out[0] four numbers of each group [N / 64, stride]: the column of the
//   largest and its P, the column of the second and its P
#include "kernels/fused/define.cuh"

struct Routing {
  static constexpr int COUNT = 5;
  enum { SUM, FIRST, FIRST_COLUMN, SECOND, SECOND_COLUMN }; // SUM: of exp(logit - FIRST)
  using Values = float[COUNT];

  template <class S> static DEVICE void compute(const S &s, int h, Values &v) {
    v[SUM] = 0;
    v[FIRST] = v[SECOND] = -INFINITY;
    v[FIRST_COLUMN] = v[SECOND_COLUMN] = INFINITY;
#pragma unroll
    for (int i = h; i < 16; i += 2)
      if (s.inside(i)) {
        insert(v, s.product(i).x, (float)s.column(i));
        insert(v, s.product(i).y, (float)(s.column(i) + 1));
      }
#pragma unroll
    for (int i = h; i < 16; i += 2)
      if (s.inside(i))
        v[SUM] += __expf(s.product(i).x - v[FIRST]) + __expf(s.product(i).y - v[FIRST]);
  }
  static DEVICE void join(Values &v, const Values &others) {
    const float top = fmaxf(v[FIRST], others[FIRST]);
    v[SUM] = v[SUM] * OnlineSoftmax::scale(v[FIRST], top) +
             others[SUM] * OnlineSoftmax::scale(others[FIRST], top);
    insert(v, others[FIRST], others[FIRST_COLUMN]);
    insert(v, others[SECOND], others[SECOND_COLUMN]);
  }

private:
  // Of equal logits the one of the lower column is first.
  static DEVICE void insert(Values &v, float logit, float column) {
    const bool first = logit > v[FIRST] || (logit == v[FIRST] && column < v[FIRST_COLUMN]),
               second = logit > v[SECOND] || (logit == v[SECOND] && column < v[SECOND_COLUMN]);
    v[SECOND] = first ? v[FIRST] : second ? logit : v[SECOND];
    v[SECOND_COLUMN] = first ? v[FIRST_COLUMN] : second ? column : v[SECOND_COLUMN];
    v[FIRST] = first ? logit : v[FIRST];
    v[FIRST_COLUMN] = first ? column : v[FIRST_COLUMN];
  }
};

struct Router : Pairs<Router> {
  static constexpr int GROUP = 64;
  static constexpr bool FITS_64 = true, FITS_192 = false;
  using GroupValues = Routing;

  template <class S> static DEVICE float probability(const S &s, int i, float logit) {
    return __expf(logit - s.group_value(i, Routing::FIRST)) * (1 / s.group_value(i, Routing::SUM));
  }
  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) const {
    return bf16_two(probability(s, i, v.x), probability(s, i, v.y));
  }
  template <class S> DEVICE void step(const S &s) {
    if (!s.inside(0)) return; // no expert is here
    Pairs<Router>::step(s);
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (s.block.writes(h))
        s.template group_part<float4>(s.block.args.out[0],
                                      h) = {s.group_value(h, Routing::FIRST_COLUMN),
                                            probability(s, h, s.group_value(h, Routing::FIRST)),
                                            s.group_value(h, Routing::SECOND_COLUMN),
                                            probability(s, h, s.group_value(h, Routing::SECOND))};
  }
};
DEFINE_PROGRAM(Router, router)
