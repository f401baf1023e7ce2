// What a row is reduced to: statistics that take terms a few at a time and merge with each other.
//
// T is a scalar, or on the CPU a vector whose lanes are independent statistics.
#pragma once

#include <limits>
#include <type_traits>

#include "common.h"

namespace jax_softmax::JS_ISA {

// Sums the first kLeft pairwise: the rounding error grows with log2(kLeft), not with kLeft.
template <int kLeft, typename T, int kCount>
JS_HD T PairwiseSumOf(T (&x)[kCount]) {
  if constexpr (kLeft == 1) {
    return x[0];
  } else {
    JS_UNROLL
    for (int i = 0; i < kLeft / 2; ++i) x[i] += x[kLeft - 1 - i];
    return PairwiseSumOf<kLeft - kLeft / 2>(x);
  }
}

template <typename T, int kCount>
JS_HD T PairwiseSum(const T (&x)[kCount]) {
  T partial[kCount];
  JS_UNROLL
  for (int i = 0; i < kCount; ++i) partial[i] = x[i];
  return PairwiseSumOf<kCount>(partial);
}

// The terms of a few elements, for a statistic to take in.
template <typename T, int kCount>
struct TermsOf {
  T x[kCount];
  JS_HD void Set(int i, T term) { x[i] = term; }
};

// A plain sum: what crosses lanes in place of a compensated one where results are rounded to 16
// bits. The few additions of a butterfly cost no digit of those.
template <typename T>
struct PlainSum {
  T value;
  JS_HD void Merge(PlainSum other) { value += other.value; }
};

// The maximum. A NaN does not raise it: NaN reaches the result through the second sweep.
template <typename M>
struct Max {
  using T = typename M::T;
  using Term = T;
  template <int kCount>
  using Terms = TermsOf<T, kCount>;

  using Crossing = Max;  // what lanes exchange
  JS_HD Crossing Cross() const { return *this; }

  T value = T{} - std::numeric_limits<typename M::Scalar>::infinity();

  template <int kCount>
  JS_HD void Add(const Terms<kCount>& terms) {
    JS_UNROLL
    for (int i = 0; i < kCount; ++i) value = M::Larger(terms.x[i], value);
  }
  JS_HD void Merge(const Max& other) { value = M::Larger(other.value, value); }
};

// A compensated sum. Few terms are added pairwise, then folded in with their rounding error kept,
// so that a million equal terms cost no more digits than sixteen.
template <typename M>
struct Sum {
  using T = typename M::T;
  using Term = T;
  template <int kCount>
  using Terms = TermsOf<T, kCount>;

  using Crossing = std::conditional_t<M::kExact, Sum, PlainSum<T>>;

  T high = T{};
  T low = T{};

  Sum() = default;
  JS_HD explicit Sum(PlainSum<T> plain) : high(plain.value) {}
  JS_HD Crossing Cross() const {
    if constexpr (M::kExact) {
      return *this;
    } else {
      return {Value()};
    }
  }

  template <int kCount>
  JS_HD void Add(const Terms<kCount>& terms) {
    if constexpr (M::kPlainSums) {
      high += PairwiseSum(terms.x);
    } else {
      Fold(PairwiseSum(terms.x));
    }
  }
  JS_HD void Merge(const Sum& other) {
    Fold(other.high);
    low += other.low;
  }
  JS_HD void Scale(T factor) {
    high *= factor;
    low *= factor;
  }
  // Where the sum overflowed, the error term is NaN and the sum itself is the answer.
  JS_HD T Value() const { return low == low ? high + low : high; }

 private:
  // Knuth's two-term sum: exact for any order of magnitudes.
  JS_HD void Fold(T x) {
    const T sum = high + x;
    const T x_part = sum - high;
    low += (high - (sum - x_part)) + (x - x_part);
    high = sum;
  }
};

// A sum of exponentials in which the terms that equal 1, the row's maxima, are counted apart:
// 1 + 2e-9 is 1 in float32, and log-softmax at the maximum is -log1p of the rest.
template <typename M>
struct ExponentialSum {
  using T = typename M::T;
  struct Term {
    T below;
    T tie;
  };
  template <int kCount>
  struct Terms {
    typename Sum<M>::template Terms<kCount> below;
    T tie[kCount];
    JS_HD void Set(int i, Term term) {
      below.Set(i, term.below);
      tie[i] = term.tie;
    }
  };

  struct Plain {
    PlainSum<T> below, ties;
    JS_HD void Merge(Plain other) {
      below.Merge(other.below);
      ties.Merge(other.ties);
    }
  };
  using Crossing = std::conditional_t<M::kExact, ExponentialSum, Plain>;

  Sum<M> below;
  T ties = T{};

  ExponentialSum() = default;
  JS_HD explicit ExponentialSum(Plain plain) : below(plain.below), ties(plain.ties.value) {}
  JS_HD Crossing Cross() const {
    if constexpr (M::kExact) {
      return *this;
    } else {
      return {below.Cross(), {ties}};
    }
  }

  template <int kCount>
  JS_HD void Add(const Terms<kCount>& terms) {
    below.Add(terms.below);
    ties += PairwiseSum(terms.tie);
  }
  JS_HD void Merge(const ExponentialSum& other) {
    below.Merge(other.below);
    ties += other.ties;
  }
  // The logarithm of the whole sum.
  JS_HD T Log() const { return M::Log1p(below.Value() + (ties - 1)); }
};

// For ops that need one sweep only.
struct Nothing {
  JS_HD void Merge(Nothing) {}
};

// What a part of a row is reduced to.
template <typename Op>
struct Partial {
  typename Op::First first;
  typename Op::Second second;
};

// Combines two parts of a row: the same function across lanes, blocks, slices and devices.
template <typename Op>
JS_HD void Merge(const Op& op, Partial<Op>& into, const Partial<Op>& other) {
  if constexpr (Op::kSweeps == 1) {
    into.first.Merge(other.first);
  } else {
    Partial<Op> theirs = other;
    typename Op::First both = into.first;
    both.Merge(theirs.first);
    op.Rescale(into.second, into.first, both);
    op.Rescale(theirs.second, theirs.first, both);
    into.first = both;
    into.second.Merge(theirs.second);
  }
}

// Takes `term` of the elements of a few columns into a statistic; returns those terms.
template <typename S, typename E, int kCount, typename F>
JS_HD auto AddTerms(S& into, const E (&e)[kCount], F term) {
  typename S::template Terms<kCount> terms;
  JS_UNROLL
  for (int i = 0; i < kCount; ++i) terms.Set(i, term(e[i]));
  into.Add(terms);
  return terms;
}

// The two sweeps over the elements of a few columns.
template <typename Op, int kCount>
JS_HD void AddFirst(const Op& op, typename Op::First& into,
                    const Element<typename Op::T, Op::kInputs> (&e)[kCount]) {
  AddTerms(into, e, [&](const auto& one) { return op.FirstTerm(one); });
}

// Returns the terms, for FinishFromTerm.
template <typename Op, int kCount>
JS_HD auto AddSecond(const Op& op, typename Op::Second& into,
                     const Element<typename Op::T, Op::kInputs> (&e)[kCount],
                     typename Op::T pivot) {
  return AddTerms(into, e, [&](const auto& one) { return op.SecondTerm(one, pivot); });
}

// Whether the op has an estimate of its second statistic, good for most rows.
template <typename Op>
inline constexpr bool kEstimates = requires { requires Op::kEstimates; };

// Whether the sweeps read this input: all of them, unless the op says otherwise.
template <typename Op>
JS_HD constexpr bool SweepsNeed(int input) {
  if constexpr (requires { Op::SweepsNeed(input); }) {
    return Op::SweepsNeed(input);
  } else {
    return true;
  }
}

// Whether the op can finish an element from its second sweep's term, sparing an exponential.
template <typename Op>
inline constexpr bool kFinishesFromTerm =
    requires(Op op, typename Op::Row row) { op.FinishFromTerm(typename Op::T{}, row); };

template <typename Statistic>
inline constexpr bool kIsMaximum = false;
template <typename M>
inline constexpr bool kIsMaximum<Max<M>> = true;

// Whether the first sweep is for the largest element.
template <typename Op>
inline constexpr bool kFirstIsMaximum = kIsMaximum<typename Op::First>;

// Whether the op's result is one value for each row, its Row, instead of one for each element.
template <typename Op>
inline constexpr bool kPerRow = requires { requires Op::kPerRow; };

// Closes a row. A `row` of terms may have a sink: one more logit, without a result.
template <typename Op, typename Row>
JS_HD typename Op::Row CloseRow(const Op& op, const Row& row, typename Op::First first,
                                typename Op::Second second) {
  if constexpr (requires { row.sink; }) {
    if (row.has_sink) {
      const Element<typename Op::T, 1> sink[1] = {{row.sink}};
      if constexpr (kFinishesFromTerm<Op>) {
        // Terms that were taken stay as they are; those of a row of -inf are all 0, however
        // shifted.
        const auto empty = first.value == typename Op::First{}.value;
        first.value = empty ? sink[0][0] : first.value;
        AddSecond(op, second, sink, op.Pivot(first));
      } else {
        Partial<Op> total = {first, second}, other;
        AddFirst(op, other.first, sink);
        AddSecond(op, other.second, sink, op.Pivot(other.first));
        Merge(op, total, other);
        return op.Close(total.first, total.second);
      }
    }
  }
  return op.Close(first, second);
}

// Whether the op's input has terms that are applied as it is loaded.
template <typename Op>
inline constexpr bool kTakesTerms = requires { requires Op::kTakesTerms; };

// Takes in the elements of a few vectors at once, rescaling when `first` moves: the online form,
// for strategies that cannot keep the row on chip.
template <int kPacks, typename Op, int kCount>
JS_HD void AddVectorsOnline(const Op& op, Partial<Op>& into,
                            const Element<typename Op::T, Op::kInputs> (*e)[kCount]) {
  const typename Op::First before = into.first;
  JS_UNROLL
  for (int k = 0; k < kPacks; ++k) AddFirst(op, into.first, e[k]);
  if constexpr (Op::kSweeps == 2) {
    op.Rescale(into.second, before, into.first);
    JS_UNROLL
    for (int k = 0; k < kPacks; ++k) AddSecond(op, into.second, e[k], op.Pivot(into.first));
  }
}
template <typename Op, int kPacks, int kCount>
JS_HD void AddOnline(const Op& op, Partial<Op>& into,
                     const Element<typename Op::T, Op::kInputs> (&e)[kPacks][kCount]) {
  AddVectorsOnline<kPacks>(op, into, e);
}
template <typename Op, int kCount>
JS_HD void AddOnline(const Op& op, Partial<Op>& into,
                     const Element<typename Op::T, Op::kInputs> (&e)[kCount]) {
  AddVectorsOnline<1>(op, into, &e);
}

}  // namespace jax_softmax::JS_ISA
