// y = x - max - log(sum(exp(x - max)))
#pragma once

#include "logits.h"

namespace jax_softmax::JS_ISA {

template <typename M, typename Logits = typename LogitsOf<M>::Type>
struct LogSoftmax {
  using T = typename M::T;
  using First = Max<M>;
  using Second = ExponentialSum<M>;
  static constexpr int kInputs = 1;
  static constexpr int kSweeps = 2;

  Logits logits = {};

  // In float32 a tie is subtracted, not chosen from, which takes an instruction less: rows of 1,001
  // and 50,257 columns ran at 0.942 and 0.937 of the copy limit in place of 0.928 and 0.926, over
  // 20 lengths 1.001 times as fast (benchmarks/results/h200-log-ties.json). Of 16 bits along
  // another axis there is no register for it.
  static constexpr bool kSubtractsTies = M::kExact && requires { requires M::kScales; };

  // Ties are rarely worth counting where results are rounded to 16 bits: the plain sum is good
  // unless it is so close to 1, its largest term, that too few of its digits are the others'. Then
  // there is one maximum, or none in a row of -inf, and the others are summed once more.
  static constexpr bool kEstimates = !M::kExact;
  using Estimate = Sum<M>;
  JS_HD T EstimateTerm(Element<T, 1> e, T pivot) const { return logits.ExpEstimated(e[0], pivot); }
  JS_HD Second FromEstimate(Estimate sum, T pivot) const {
    Second second;
    second.below.high = logits.Unshifted(sum.Value(), pivot);
    return second;
  }
  JS_HD bool IsGood(Second estimated) const { return estimated.below.high > 1 + 0x1p-6f; }
  // At +inf, the maximum's difference is NaN.
  JS_HD T RefinedTerm(Element<T, 1> e, T pivot) const {
    const T difference = e[0] - pivot;
    return e[0] == pivot ? difference : logits.Exp(difference);
  }
  JS_HD Second FromRefined(Estimate others, Second estimated) const {
    Second second;
    second.below = others;
    second.ties = estimated.below.high == 0 ? 0 : 1;
    return second;
  }

  JS_HD static T Absent(int) { return First{}.value; }

  JS_HD T FirstTerm(Element<T, 1> e) const { return e[0]; }
  // In a row of -inf so far, shift by zero: -inf - -inf would be NaN.
  JS_HD T Pivot(First max) const { return max.value == First{}.value ? T{} : max.value; }
  JS_HD typename Second::Term SecondTerm(Element<T, 1> e, T pivot) const {
    const T term = logits.ExpOfDifference(e[0], pivot);
    const auto is_max = logits.AreEqual(e[0], pivot);
    const T tie = is_max ? T{} + 1 : T{};
    if constexpr (kSubtractsTies) {
      return {term - tie * term, tie};
    } else {
      return {is_max ? T{} : term, tie};
    }
  }
  JS_HD void Rescale(Second& sum, First from, First to) const {
    const auto unmoved = from.value == to.value;
    const auto empty = from.value == First{}.value;
    const T factor = logits.ExpOfDifference(from.value, to.value);
    sum.below.Scale(unmoved || empty ? T{} + 1 : factor);
    // Terms that were maxima are ordinary terms under a larger maximum.
    typename Sum<M>::template Terms<1> demoted;
    demoted.Set(0, unmoved || empty ? T{} : sum.ties * factor);
    sum.below.Add(demoted);
    sum.ties = unmoved ? sum.ties : T{};
  }

  struct Row {
    T pivot, log_sum;
  };
  JS_HD Row Close(First max, Second sum) const {
    const T pivot = Pivot(max);
    const T nan_or_zero = pivot - pivot;  // NaN where the maximum is +inf
    return {pivot, sum.Log() + nan_or_zero};
  }
  JS_HD T Finish(Element<T, 1> e, Row row) const {
    return logits.LogOfRatio(e[0], row.pivot, row.log_sum);
  }
};

}  // namespace jax_softmax::JS_ISA
