// Two values for each row, of which softmax or log-softmax are expressions of single elements: the
// maximum, and 1 / sum(exp(x - max)) or the logarithm of that sum.
#pragma once

#include "log_softmax.h"

namespace jax_softmax::JS_ISA {

// No op of its own: logsumexp of 16 bits in float32, or of float32, with two results. By "stream"
// alone.
template <typename M>
struct RowPairs : LogSoftmax<M, AsTheyLie<M>> {
  using Base = LogSoftmax<M, AsTheyLie<M>>;
  using T = typename M::T;
  using First = typename Base::First;
  using Second = typename Base::Second;
  static constexpr bool kPerRow = true;

  T* seconds = nullptr;  // where the second values go
  bool log_sums = false;

  JS_HD typename Second::Term SecondTerm(Element<T, 1> e, T pivot) const {
    if constexpr (Base::kSubtractsTies) return Base::SecondTerm(e, pivot);
    // The exponential of the maximum is exactly 1.
    const T tie = e[0] == pivot ? 1 : 0;
    return {M::ExpOfDifference(e[0], pivot) - tie, tie};
  }

  struct Row {
    T pivot, second;
  };
  JS_HD Row Close(First max, Second sum) const {
    const auto row = Base::Close(max, sum);
    const T factor = 1 / (sum.below.Value() + sum.ties) + (row.pivot - row.pivot);
    return {row.pivot, log_sums ? row.log_sum : factor};
  }
};

}  // namespace jax_softmax::JS_ISA
