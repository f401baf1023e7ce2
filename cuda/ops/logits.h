// The exponentials of logits as they lie in memory, or of these times a number.
#pragma once

#include "../stats.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct AsTheyLie {
  using T = typename M::T;
  JS_HD static T Exp(T x) { return M::Exp(x); }
  JS_HD static T ExpOfDifference(T x, T top) { return M::ExpOfDifference(x, top); }
  JS_HD static T ExpShifted(T x, T top) { return M::ExpShifted(x, top); }
  JS_HD static T ShiftedRatio(T from, T to) { return M::ShiftedRatio(from, to); }
  JS_HD static T ExpEstimated(T x, T top) { return M::ExpEstimated(x, top); }
  JS_HD static T Unshifted(T sum, T top) { return M::Unshifted(sum, top); }
  JS_HD static auto AreEqual(T x, T top) { return x == top; }
  JS_HD static T LogOfRatio(T x, T top, T log_sum) { return (x - top) - log_sum; }
};

// Maxima are those of the logits in memory, so that it has to be positive.
template <typename M>
struct Scaled {
  using T = typename M::T;
  typename M::Scalar scale = 1;

  JS_HD T Exp(T x) const { return M::Exp(M::Product(x, scale)); }
  JS_HD T ExpOfDifference(T x, T top) const { return M::ExpOfDifference(x, top, scale); }
  JS_HD T ExpShifted(T x, T top) const { return M::ExpShifted(x, top, scale); }
  JS_HD T ShiftedRatio(T from, T to) const { return M::ShiftedRatio(from, to, scale); }
  JS_HD T ExpEstimated(T x, T top) const { return M::ExpEstimated(x, top, scale); }
  JS_HD T Unshifted(T sum, T top) const { return M::Unshifted(sum, top, scale); }
  JS_HD bool AreEqual(T x, T top) const {
    return M::kExact ? M::Product(x, scale) == M::Product(top, scale) : x == top;
  }
  JS_HD T LogOfRatio(T x, T top, T log_sum) const { return M::LogOfRatio(x, top, log_sum, scale); }
};

// What an op has whose arithmetic knows of such a number; the others' are as they lie.
template <typename M>
struct LogitsOf {
  using Type = AsTheyLie<M>;
};
template <typename M>
  requires M::kScales
struct LogitsOf<M> {
  using Type = Scaled<M>;
};

template <typename Op>
inline constexpr bool kScalesLogits = requires(Op op) { op.logits.scale; };

// The op on products, for a strategy that holds a row and has multiplied it. Where these are
// rounded they are what the program would have had in memory; any other op does that itself.
template <typename Op>
struct OnProducts {
  static constexpr bool kMultiplies = false;
  JS_HD static const Op& Of(const Op& op) { return op; }
};
template <template <typename, typename> class OpOf, typename M>
  requires M::kExact
struct OnProducts<OpOf<M, Scaled<M>>> {
  static constexpr bool kMultiplies = true;
  JS_HD static OpOf<M, AsTheyLie<M>> Of(const OpOf<M, Scaled<M>>&) { return {}; }
  JS_HD static typename M::T Product(const OpOf<M, Scaled<M>>& op, typename M::T x) {
    return M::Product(x, op.logits.scale);
  }
};

}  // namespace jax_softmax::JS_ISA
