// y = exp(x - max) / sum(exp(x - max))
#pragma once

#include "logits.h"

namespace jax_softmax::JS_ISA {

template <typename M, typename Logits = typename LogitsOf<M>::Type>
struct Softmax {
  using T = typename M::T;
  using First = Max<M>;
  using Second = Sum<M>;
  static constexpr int kInputs = 1;
  static constexpr int kSweeps = 2;

  Logits logits = {};

  JS_HD static T Absent(int) { return First{}.value; }

  JS_HD T FirstTerm(Element<T, 1> e) const { return e[0]; }
  // In a row of -inf so far, shift by zero: -inf - -inf would be NaN.
  JS_HD T Pivot(First max) const { return max.value == First{}.value ? T{} : max.value; }
  JS_HD T SecondTerm(Element<T, 1> e, T pivot) const { return logits.ExpShifted(e[0], pivot); }
  JS_HD void Rescale(Second& sum, First from, First to) const { sum.Scale(Ratio(from, to)); }

  struct Row {
    T pivot, factor;
  };
  JS_HD Row Close(First max, Second sum) const { return {Pivot(max), 1 / sum.Value()}; }
  // For terms that were shifted by the maximum `own` of a part of the row.
  JS_HD Row ForTermsOf(First own, First max, Row row) const {
    return {row.pivot, row.factor * Ratio(own, max)};
  }
  JS_HD T Finish(Element<T, 1> e, Row row) const {
    return FinishFromTerm(SecondTerm(e, row.pivot), row);
  }
  // The same from the second sweep's term, for strategies that have kept it.
  JS_HD T FinishFromTerm(T term, Row row) const { return term * row.factor; }

 private:
  // What turns terms of a part whose maximum is `from` into terms shifted by `to`. A part that is
  // all -inf, of a row that may have a sink, holds no finite term, and its pivot is not its
  // maximum. The ratio of equals may be a rounding off 1, which would add up, and keep a row's only
  // finite logit from exactly 1.
  JS_HD T Ratio(First from, First to) const {
    const auto unmoved = from.value == to.value;
    const auto empty = from.value == First{}.value;
    const T factor = logits.ShiftedRatio(from.value, to.value);
    return unmoved || empty ? T{} + 1 : factor;
  }
};

}  // namespace jax_softmax::JS_ISA
