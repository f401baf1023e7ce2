// max + log(sum(exp(x - max))): one value for each row.
#pragma once

#include "log_softmax.h"

namespace jax_softmax::JS_ISA {

// The statistics are log-softmax's, but that +inf is a maximum like any other: the sum counts those
// that equal it, and only a NaN makes it NaN.
template <typename M>
struct LogSumExp : LogSoftmax<M> {
  using T = typename M::T;
  using Base = LogSoftmax<M>;
  static constexpr bool kPerRow = true;

  JS_HD T RefinedTerm(Element<T, 1> e, T pivot) const {
    return e[0] == pivot ? T{} : M::Exp(e[0] - pivot);
  }
  JS_HD typename Base::Second::Term SecondTerm(Element<T, 1> e, T pivot) const {
    const T term = M::ExpOfDifference(e[0], pivot);
    const auto is_max = e[0] == pivot;
    return {is_max ? T{} : term, is_max ? T{} + 1 : T{}};
  }

  using Row = T;
  JS_HD Row Close(typename Base::First max, typename Base::Second sum) const {
    return Base::Pivot(max) + sum.Log();
  }
};

}  // namespace jax_softmax::JS_ISA
