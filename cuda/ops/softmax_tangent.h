// dy = scale * y * (t - sum(y * t)): the JVP of softmax, and its VJP.
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

  typename M::Scalar scale = 1;
  // Whether y = 0 says that the element is masked, and what t holds there is not looked at.
  bool zeros_are_masked = false;

  JS_HD static T Absent(int) { return T{}; }

  JS_HD T FirstTerm(Element<T, 2> e) const { return e[0] * Seen(e); }

  using Row = T;
  JS_HD Row Close(First dot, Second) const { return dot.Value(); }
  JS_HD T Finish(Element<T, 2> e, Row dot) const { return e[0] * scale * (Seen(e) - dot); }

 private:
  JS_HD T Seen(Element<T, 2> e) const { return zeros_are_masked ? (e[0] == 0 ? T{} : e[1]) : e[1]; }
};

}  // namespace jax_softmax::JS_ISA
