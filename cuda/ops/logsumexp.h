// max + log(sum(exp(x - max))): one value for each row, or its two terms.
#pragma once

#include <limits>

#include "log_softmax.h"
#include "softmax.h"

namespace jax_softmax::JS_ISA {

// What sums the exponentials: softmax's statistics where the arithmetic is one for such sums, whose
// logarithms lose the exponentials' last digits; elsewhere log-softmax's, so that a logarithm near
// 0 keeps its own.
template <typename Math>
struct SumsFor {
  using Op = LogSoftmax<Math, AsTheyLie<Math>>;
};
template <typename Math>
  requires requires(typename Math::T x) { Math::LogOfSum(x); }
struct SumsFor<Math> {
  using Op = Softmax<Math, AsTheyLie<Math>>;
};

// +inf is a value like any other: terms are shifted by the largest finite number there, so that
// only a NaN makes the sum NaN.
template <typename M>
struct LogSumExp : SumsFor<typename M::ForLogSums>::Op {
  using Math = typename M::ForLogSums;
  using Base = typename SumsFor<Math>::Op;
  using T = typename Math::T;
  using First = typename Base::First;
  using Second = typename Base::Second;
  static constexpr bool kPerRow = true;
  static constexpr auto kLargest = std::numeric_limits<typename Math::Scalar>::max();
  static constexpr bool kKeepsTies = requires(Second sum) { sum.Log(); };

  JS_HD T Pivot(First max) const {
    const T pivot = Base::Pivot(max);
    return pivot > kLargest ? T{} + kLargest : pivot;
  }
  JS_HD void Rescale(Second& sum, First from, First to) const {
    if constexpr (kKeepsTies) {
      Base::Rescale(sum, Finite(from), Finite(to));
    } else {
      const T factor = Math::ShiftedRatio(Pivot(from), Pivot(to));
      sum.Scale(from.value == First{}.value ? T{} + 1 : factor);
    }
  }

  typename Math::Scalar* seconds = nullptr;  // where the second terms go, if these are wanted
  bool of_log_softmax = false;  // which has no results, but NaN, where the maximum is +inf

  struct Row {
    T pivot, log_sum;
    JS_HD T Whole() const { return pivot + log_sum; }
  };
  JS_HD Row Close(First max, Second sum) const {
    const T pivot = Pivot(max);
    if constexpr (kKeepsTies) {
      const T whole = Base::Pivot(max);
      return {pivot, sum.Log() + (of_log_softmax ? whole - whole : T{})};
    } else {
      return {pivot, Math::LogOfSum(Math::Unshifted(sum.Value(), pivot))};
    }
  }

 private:
  JS_HD static First Finite(First max) {
    max.value = max.value > kLargest ? T{} + kLargest : max.value;
    return max;
  }
};

}  // namespace jax_softmax::JS_ISA
