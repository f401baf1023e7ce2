// dx = g - exp(y) * sum(g): the VJP of log-softmax.
#pragma once

#include "../stats.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct LogSoftmaxCotangent {
  using T = typename M::T;
  using First = Sum<M>;
  using Second = Nothing;
  static constexpr int kInputs = 2;  // y, g
  static constexpr int kSweeps = 1;

  JS_HD static constexpr bool SweepsNeed(int input) { return input == 1; }
  JS_HD static T Absent(int) { return T{}; }

  JS_HD T FirstTerm(Element<T, 2> e) const { return e[1]; }

  using Row = T;
  JS_HD Row Close(First total, Second) const { return total.Value(); }
  JS_HD T Finish(Element<T, 2> e, Row total) const { return e[1] - M::Exp(e[0]) * total; }
};

}  // namespace jax_softmax::JS_ISA
