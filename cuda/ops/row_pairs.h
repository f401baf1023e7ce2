// Two values for each row, of which softmax or log-softmax are expressions of single elements: the
// maximum, and 1 / sum(exp(x - max)) or the logarithm of that sum; or all three, for both.
#pragma once

#include "log_softmax.h"

namespace jax_softmax::JS_ISA {

// No op of its own: logsumexp of 16 bits in float32, or of float32, with two results.
template <typename M>
struct RowPairs : LogSoftmax<M, AsTheyLie<M>> {
  using Base = LogSoftmax<M, AsTheyLie<M>>;
  using T = typename M::T;
  using First = typename Base::First;
  using Second = typename Base::Second;
  static constexpr bool kPerRow = true;

  T* seconds = nullptr;  // where the second values go
  T* factors = nullptr;  // and 1 / the sums, if these are wanted beside their logarithms
  bool log_sums = false;

  JS_HD typename Second::Term SecondTerm(Element<T, 1> e, T pivot) const {
    if constexpr (Base::kSubtractsTies) return Base::SecondTerm(e, pivot);
    // The exponential of the maximum is exactly 1.
    const T tie = e[0] == pivot ? 1 : 0;
    return {M::ExpOfDifference(e[0], pivot) - tie, tie};
  }

  struct Row {
    T pivot, second, factor;
  };
  JS_HD Row Close(First max, Second sum) const {
    const auto row = Base::Close(max, sum);
    const T factor = 1 / (sum.below.Value() + sum.ties) + (row.pivot - row.pivot);
    return {row.pivot, log_sums ? row.log_sum : factor, factor};
  }
};

// The same of rows that are kept, in float32: the plain sum first, as logsumexp has it. Of a small
// one the logarithm has the other terms' digits, which are summed once more then, all but the
// largest, of which there is one alone: two are a sum of 2.
template <typename M>
struct KeptRowPairs : RowPairs<M> {
  using Base = RowPairs<M>;
  using T = typename M::T;
  using Second = typename Base::Second;
  using Sums = typename M::ForLogSums;
  static constexpr bool kIsKept = true;

  static constexpr bool kEstimates = true;
  using Estimate = Sum<Sums>;
  JS_HD T EstimateTerm(Element<T, 1> e, T pivot) const { return Sums::ExpShifted(e[0], pivot); }
  JS_HD Second FromEstimate(Estimate sum, T pivot) const {
    Second second;
    second.below.high = Sums::Unshifted(sum.Value(), pivot);
    return second;
  }
  JS_HD bool IsGood(Second estimated) const { return estimated.below.high > 1.95f; }
  // At +inf, the maximum's difference is NaN.
  JS_HD T RefinedTerm(Element<T, 1> e, T pivot) const {
    return e[0] == pivot ? e[0] - pivot : M::ExpOfDifference(e[0], pivot);
  }
  JS_HD Second FromRefined(Estimate others, Second estimated) const {
    Second second;
    second.below.high = others.Value();
    second.ties = estimated.below.high == 0 ? 0 : 1;
    return second;
  }
};

// Whether these are of rows that are kept.
template <typename Op>
inline constexpr bool kIsKept = requires { requires Op::kIsKept; };

}  // namespace jax_softmax::JS_ISA
