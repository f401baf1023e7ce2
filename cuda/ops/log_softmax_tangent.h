// dy = t - sum(exp(y) * t): the JVP of log-softmax.
#pragma once

#include "../stats.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct LogSoftmaxTangent {
  using T = typename M::T;
  using First = Sum<M>;
  using Second = Nothing;
  static constexpr int kInputs = 2;  // y, t
  static constexpr int kSweeps = 1;

  JS_HD static T Absent(int) { return T{}; }

  JS_HD T FirstTerm(Element<T, 2> e) const { return M::Exp(e[0]) * e[1]; }

  using Row = T;
  JS_HD Row Close(First mean, Second) const { return mean.Value(); }
  JS_HD T Finish(Element<T, 2> e, Row mean) const { return e[1] - mean; }
};

}  // namespace jax_softmax::JS_ISA
