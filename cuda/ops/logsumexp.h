// max + log(sum(exp(x - max))): one value for each row, or its two terms.
#pragma once

#include <limits>

#include "softmax.h"

namespace jax_softmax::JS_ISA {

// The statistics are softmax's, but that +inf is a value like any other: terms are shifted by the
// largest finite number there, so that only a NaN makes the sum NaN. The exponentials' last digits
// are lost in the logarithm, so that its arithmetic may leave them out.
template <typename M>
struct LogSumExp : Softmax<typename M::ForLogSums, AsTheyLie<typename M::ForLogSums>> {
  using Math = typename M::ForLogSums;
  using Base = Softmax<Math, AsTheyLie<Math>>;
  using T = typename Math::T;
  using First = typename Base::First;
  using Second = typename Base::Second;
  static constexpr bool kPerRow = true;
  static constexpr auto kLargest = std::numeric_limits<typename Math::Scalar>::max();

  JS_HD T Pivot(First max) const {
    const T pivot = Base::Pivot(max);
    return pivot > kLargest ? T{} + kLargest : pivot;
  }
  JS_HD void Rescale(Second& sum, First from, First to) const {
    const T factor = Math::ShiftedRatio(Pivot(from), Pivot(to));
    sum.Scale(from.value == First{}.value ? T{} + 1 : factor);
  }

  typename Math::Scalar* seconds = nullptr;  // where the second terms go, if these are wanted

  struct Row {
    T pivot, log_sum;
    JS_HD T Whole() const { return pivot + log_sum; }
  };
  JS_HD Row Close(First max, Second sum) const {
    const T pivot = Pivot(max);
    return {pivot, Math::LogOfSum(Math::Unshifted(sum.Value(), pivot))};
  }
};

}  // namespace jax_softmax::JS_ISA
