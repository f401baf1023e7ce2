// dy = y * (t - sum(y * t)): the JVP of softmax and, its Jacobian being symmetric, its VJP.
#pragma once

#include "../stats.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct SoftmaxTangent {
  using T = typename M::T;
  using First = Sum<M>;
  using Second = Nothing;
  static constexpr int kInputs = 2;  // y, t
  static constexpr int kSweeps = 1;

  JS_HD static T Absent(int) { return T{}; }

  JS_HD T FirstTerm(Element<T, 2> e) const { return e[0] * e[1]; }

  using Row = T;
  JS_HD Row Close(First dot, Second) const { return dot.Value(); }
  JS_HD T Finish(Element<T, 2> e, Row dot) const { return e[0] * (e[1] - dot); }
};

}  // namespace jax_softmax::JS_ISA
