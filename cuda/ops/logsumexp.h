// max + log(sum(exp(x - max))): one value for each row, or two that softmax is made of.
#pragma once

#include <limits>
#include <type_traits>

#include "log_softmax.h"
#include "softmax.h"

namespace jax_softmax::JS_ISA {

// Whether results have digits that the inputs lack: 16 bits in float32, on a GPU.
template <typename M>
inline constexpr bool kWidens = requires { requires M::kWidens; };

// Where the second of two values for each row goes; nowhere if there is one.
template <typename T>
struct Seconds {
  T* seconds = nullptr;
};
struct NoSeconds {};

// The maximum and log(sum(exp(x - max))), of which log-softmax in float32 is an expression of
// single elements: near 0 it has the digits of the second. By "stream" alone.
template <typename M>
struct LogSums : LogSoftmax<M>, Seconds<typename M::T> {
  using Base = LogSoftmax<M>;
  using T = typename M::T;
  using Row = typename Base::Row;
  static constexpr bool kPerRow = true;

  // The exponential of the maximum is exactly 1.
  JS_HD typename Base::Second::Term SecondTerm(Element<T, 1> e, T pivot) const {
    const T tie = e[0] == pivot ? 1 : 0;
    return {M::ExpOfDifference(e[0], pivot) - tie, tie};
  }
  JS_HD T FirstValue(Row row) const { return row.pivot; }
  JS_HD T SecondValue(Row row) const { return row.log_sum; }
};

template <typename M>
struct LogSumsFor {};
template <typename M>
  requires kWidens<M>
struct LogSumsFor<M> {
  using Type = LogSums<typename M::ForPairs>;
};

// The statistics are softmax's, but that +inf is a value like any other: terms are shifted by the
// largest finite number there, so that only a NaN makes the sum NaN. The exponentials' last digits
// are lost in the logarithm, so that its arithmetic may leave them out.
//
// With `seconds` the values are the maximum and 1 / sum(exp(x - max)), of which softmax in float32
// is an expression of single elements.
template <typename M>
struct LogSumExp : Softmax<typename M::ForLogSums>,
                   std::conditional_t<kWidens<M>, Seconds<typename M::ForLogSums::T>, NoSeconds> {
  using Math = typename M::ForLogSums;
  using Base = Softmax<Math>;
  using T = typename Math::T;
  using First = typename Base::First;
  using Second = typename Base::Second;
  using ForPairs = LogSumsFor<M>;  // of log-softmax
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

  struct Pair {
    T max, pivot, sum;
  };
  using Row = std::conditional_t<kWidens<M>, Pair, T>;
  JS_HD Row Close(First max, Second sum) const {
    const Pair row = {max.value, Pivot(max), sum.Value()};
    if constexpr (kWidens<M>) {
      return row;
    } else {
      return Value(row);
    }
  }
  JS_HD T Value(Pair row) const {
    return row.pivot + Math::LogOfSum(Math::Unshifted(row.sum, row.pivot));
  }
  JS_HD T FirstValue(Pair row) const { return row.pivot; }
  // Without the error of the largest term, which may be most of the sum. NaN, as softmax is, where
  // the maximum is not finite.
  JS_HD T SecondValue(Pair row) const {
    const T factor = Math::FactorOf(row.pivot);
    const T error = Math::ExpShifted(row.pivot, row.pivot) - factor;
    return factor / (row.sum - error) + (row.max - row.max);
  }
};

}  // namespace jax_softmax::JS_ISA
